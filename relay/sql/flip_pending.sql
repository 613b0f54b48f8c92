-- End pending envelopes of some queues of one shard, and say what each queue got back.
-- {predicate} is DUE_SQL of relay.expiry, or just "outcome = 'pending'" for a closed queue.
-- The caller holds the usage rows of all these queues, so nothing else flips them meanwhile.
WITH ending AS MATERIALIZED (
    SELECT device_id, seq
      FROM relay_envelope
     WHERE shard = %(shard)s
       AND device_id = ANY(%(device_ids)s)
       AND {predicate}
     ORDER BY device_id, seq
     LIMIT %(most)s
), flipped AS (
    UPDATE relay_envelope AS envelope
       SET outcome = %(outcome)s, cleanup_after = %(now)s
      FROM ending
     WHERE envelope.shard = %(shard)s
       AND envelope.device_id = ending.device_id
       AND envelope.seq = ending.seq
       AND envelope.outcome = 'pending'
 RETURNING envelope.device_id, envelope.size
)
SELECT device_id, count(*) AS count, sum(size) AS bytes FROM flipped GROUP BY device_id
