-- End pending envelopes of some queues of one shard, and say what each queue got back.
-- {predicate} is DUE_SQL of relay.expiry, or just "outcome = 'pending'" for a closed queue.
-- The caller holds the usage rows of all these queues, so nothing else flips them meanwhile.
WITH ending AS MATERIALIZED (
    -- So many of each queue, so that a long one leaves the others their share; so many in all.
    SELECT queue.device_id, mine.seq
      FROM unnest(%(device_ids)s::uuid[]) AS queue (device_id)
     CROSS JOIN LATERAL (
           SELECT seq
             FROM relay_envelope
            WHERE shard = %(shard)s
              AND relay_envelope.device_id = queue.device_id
              AND {predicate}
            ORDER BY seq
            LIMIT %(most_each)s
           ) AS mine
     ORDER BY queue.device_id, mine.seq
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
