-- Of these devices, the ones that a wake is of use to: active, registered, and with mail that
-- waits. Sorted, so that every batch meets them in one order. {pending} is PENDING_SQL of
-- relay.expiry.
SELECT device.device_id, device.wake_sealed
  FROM unnest(%(shards)s::smallint[], %(device_ids)s::uuid[]) AS wanted (shard, device_id)
  JOIN relay_device AS device ON device.device_id = wanted.device_id
 WHERE device.state = 'active'
   AND device.wake_sealed IS NOT NULL
   AND EXISTS (
       SELECT 1
         FROM relay_envelope AS envelope
        WHERE envelope.shard = wanted.shard AND envelope.device_id = wanted.device_id
          AND {pending}
   )
 ORDER BY device.device_id
