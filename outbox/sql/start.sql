-- Stamp the events of a batch before their effects, in one shard, and read them: the state
-- query of the batch. Only those that are still ours: `next_at` is the end of our lease, and a
-- second claim, or a wiped Redis noticed, has given them another. An event that never came to
-- its end after so many starts dies here instead of starting once more.
UPDATE outbox_event
   SET starts = CASE WHEN starts >= %(starts_most)s THEN starts ELSE starts + 1 END,
       state = CASE WHEN starts >= %(starts_most)s THEN 'dead' ELSE state END,
       last_error = CASE WHEN starts >= %(starts_most)s THEN 'NO_END' ELSE last_error END
 WHERE shard = %(shard)s AND event_id = ANY(%(event_ids)s)
   AND state = 'published' AND next_at = %(lease_end)s
   AND schema_version = ANY(%(schema_versions)s)
RETURNING event_id, device_id, kind, schema_version, failures, created_at, state
