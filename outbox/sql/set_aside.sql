-- What is not done, in one shard: each event with its own next time, failures and code. Only
-- where the lease is still ours: another claim may be at work on it.
UPDATE outbox_event AS event
   SET state = said.state, failures = said.failures, starts = said.starts,
       next_at = said.next_at, last_error = said.code
  FROM unnest(
           %(event_ids)s::uuid[], %(states)s::text[], %(failures)s::int[], %(starts)s::int[],
           %(next_ats)s::timestamptz[], %(codes)s::text[]
       ) AS said (event_id, state, failures, starts, next_at, code)
 WHERE event.shard = %(shard)s AND event.event_id = said.event_id
   AND event.state = 'published' AND event.next_at = %(lease_end)s
