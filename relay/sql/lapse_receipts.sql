-- Forget receipts whose time is up: a repeated acknowledgement says "unknown" from now on, and
-- the message_id is free. Only rows whose ciphertext is gone are receipts.
WITH due AS MATERIALIZED (
    SELECT device_id, seq
      FROM relay_envelope
     WHERE shard = %(shard)s AND receipt_until <= %(now)s AND cleaned_at IS NOT NULL
     ORDER BY receipt_until
     LIMIT %(most)s
       FOR UPDATE SKIP LOCKED
)
DELETE FROM relay_envelope AS envelope
 USING due
 WHERE envelope.shard = %(shard)s
   AND envelope.device_id = due.device_id AND envelope.seq = due.seq
