-- One page of a queue: at most `most` envelopes behind `after`, and at most `most_bytes` of
-- ciphertext, but never less than the first envelope.
WITH page AS MATERIALIZED (
    -- One more than asked for tells whether there is more, without reading its ciphertext.
    SELECT seq, message_id, protocol_version, size, accepted_at, expires_at
      FROM relay_envelope
     WHERE shard = %(shard)s AND device_id = %(device_id)s AND seq > %(after)s
       AND {pending}
     ORDER BY seq
     LIMIT %(most)s + 1
), measured AS (
    SELECT page.*,
           row_number() OVER in_order AS position,
           sum(size) OVER in_order AS bytes_so_far,
           count(*) OVER () AS found
      FROM page
    WINDOW in_order AS (ORDER BY seq)
)
SELECT measured.*, body.ciphertext
  FROM measured
  JOIN relay_body AS body
    ON body.shard = %(shard)s AND body.device_id = %(device_id)s AND body.seq = measured.seq
 WHERE position = 1 OR (position <= %(most)s AND bytes_so_far <= %(most_bytes)s)
 ORDER BY measured.seq
