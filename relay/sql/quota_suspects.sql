-- Usage rows of one shard whose totals are not the sums over what is pending, or whose clock
-- is later than it can be. Read without locks: each is looked at again under its own.
SELECT usage.device_id
  FROM quotas_queueusage AS usage
  LEFT JOIN (
        SELECT device_id, count(*) AS count, sum(size) AS bytes
          FROM relay_envelope
         WHERE shard = %(shard)s AND outcome = 'pending'
         GROUP BY device_id
       ) AS held ON held.device_id = usage.device_id
 WHERE usage.shard = %(shard)s
   AND (usage.pending_count <> coalesce(held.count, 0)
        OR usage.pending_bytes <> coalesce(held.bytes, 0)
        OR usage.last_accepted_us > %(latest_us)s)
 ORDER BY usage.device_id
