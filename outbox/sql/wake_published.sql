-- Redis was wiped: what one shard has under way in a topic is due now. A start that may still be
-- under way is not held against its event, so that nothing has to travel alone for it.
WITH lost AS MATERIALIZED (
    SELECT event_id
      FROM outbox_event
     WHERE shard = %(shard)s AND topic = %(topic)s AND next_at > %(now)s AND state = 'published'
     ORDER BY next_at, event_id
     LIMIT %(most)s
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE outbox_event AS event
   SET state = 'pending', next_at = %(now)s,
       starts = CASE WHEN event.starts > 0 THEN event.starts - 1 ELSE 0 END
  FROM lost
 WHERE event.shard = %(shard)s AND event.event_id = lost.event_id
