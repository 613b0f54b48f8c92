-- Claim due events of one shard and topic: published from now on, and due again when the lease
-- ends. One column is lease, backoff and reconciler at once. MATERIALIZED keeps the LIMIT: under
-- a nested loop the subselect could run again and again and lock far more than it returns.
WITH due AS MATERIALIZED (
    SELECT event_id
      FROM outbox_event
     WHERE shard = %(shard)s AND topic = %(topic)s AND state <> 'dead' AND next_at <= %(now)s
     ORDER BY next_at, event_id
     LIMIT %(most)s
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE outbox_event AS event
   SET state = 'published', deliveries = event.deliveries + 1, next_at = %(lease_end)s
  FROM due
 WHERE event.shard = %(shard)s AND event.event_id = due.event_id
RETURNING event.event_id, event.failures, event.starts
