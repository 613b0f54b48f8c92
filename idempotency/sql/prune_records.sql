-- Forget answers that are old enough. A claim that is not completed yet is never due.
WITH due AS MATERIALIZED (
    SELECT scope_hash
      FROM idempotency_record
     WHERE shard = %(shard)s AND expires_at <= %(now)s
     ORDER BY expires_at
     LIMIT %(most)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency_record AS record
 USING due
 WHERE record.shard = %(shard)s AND record.scope_hash = due.scope_hash
