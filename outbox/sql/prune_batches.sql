-- Forget batches of one shard that were claimed long ago: done, or given up with their lease.
WITH old AS MATERIALIZED (
    SELECT batch_id
      FROM outbox_batch
     WHERE shard = %(shard)s AND claimed_at <= %(before)s
     ORDER BY claimed_at
     LIMIT %(most)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox_batch AS batch
 USING old
 WHERE batch.shard = %(shard)s AND batch.batch_id = old.batch_id
