-- Undo a claim that came to nothing, in one shard: nothing is held against the events.
UPDATE outbox_event
   SET state = 'pending', next_at = %(next_at)s, last_error = %(code)s
 WHERE shard = %(shard)s AND event_id = ANY(%(event_ids)s)
   AND state = 'published' AND next_at = %(lease_end)s
   AND schema_version <> ALL(%(but_versions)s)
