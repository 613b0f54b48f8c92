-- Events of one shard that are done. By their ids alone, whoever holds a lease on them by now:
-- their effect happened.
DELETE FROM outbox_event
 WHERE shard = %(shard)s AND event_id = ANY(%(event_ids)s)
