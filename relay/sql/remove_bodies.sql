-- Remove the ciphertext of envelopes that ended, and turn their rows into receipts, which say
-- neither how large it was nor when it was acknowledged.
-- Neither counters nor outcome change, so no usage row is needed; rows that somebody else
-- holds just now are left for the next round.
WITH due AS MATERIALIZED (
    SELECT device_id, seq
      FROM relay_envelope
     WHERE shard = %(shard)s AND cleanup_after <= %(now)s AND cleaned_at IS NULL
     ORDER BY cleanup_after
     LIMIT %(most)s
       FOR NO KEY UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM relay_body AS body
     USING due
     WHERE body.shard = %(shard)s
       AND body.device_id = due.device_id AND body.seq = due.seq
)
UPDATE relay_envelope AS envelope
   SET cleaned_at = %(today)s, cleanup_after = NULL,
       size = NULL, acked_at = NULL, protocol_version = NULL
  FROM due
 WHERE envelope.shard = %(shard)s
   AND envelope.device_id = due.device_id AND envelope.seq = due.seq
