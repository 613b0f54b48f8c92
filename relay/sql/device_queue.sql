-- What a device sees of its own queue: the totals less what is due but not flipped yet.
-- {due} is DUE_SQL of relay.expiry.
WITH due AS (
    SELECT count(*) AS count, coalesce(sum(size), 0) AS bytes
      FROM relay_envelope
     WHERE shard = %(shard)s AND device_id = %(device_id)s AND {due}
)
SELECT usage.pending_count - due.count AS count,
       usage.pending_bytes - due.bytes AS bytes,
       device.wake_transport
  FROM quotas_queueusage AS usage
  JOIN relay_device AS device ON device.device_id = usage.device_id
 CROSS JOIN due
 WHERE usage.shard = %(shard)s AND usage.device_id = %(device_id)s
