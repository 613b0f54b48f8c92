-- Acknowledge some message ids of one locked queue, and tell what became of each that is known.
-- A pending one whose time was up is flipped to expired instead: it can never be delivered now.
WITH flipped AS (
    UPDATE relay_envelope
       SET outcome = CASE WHEN {pending} THEN 'acknowledged' ELSE 'expired' END,
           acked_at = CASE WHEN {pending} THEN %(now)s::timestamptz END,
           cleanup_after = %(now)s
     WHERE shard = %(shard)s
       AND device_id = %(device_id)s
       AND message_id = ANY(%(message_ids)s)
       AND outcome = 'pending'
 RETURNING seq, outcome, size
)
-- The outer read sees the queue as it was before the flip; what was flipped overrides it.
SELECT known.message_id,
       coalesce(flipped.outcome, known.outcome) AS outcome,
       flipped.size AS freed
  FROM relay_envelope AS known
  LEFT JOIN flipped ON flipped.seq = known.seq
 WHERE known.shard = %(shard)s
   AND known.device_id = %(device_id)s
   AND known.message_id = ANY(%(message_ids)s)
