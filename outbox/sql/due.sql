-- Where there is work: the oldest due event of one shard and topic, one probe of the index.
-- The arms for all shards and topics are put together with UNION ALL (services/claiming.py):
-- looking for the oldest by GROUP BY would read everything that is due, each time.
(SELECT shard, topic, next_at
   FROM outbox_event
  WHERE shard = %(shard)s AND topic = %(topic)s AND state <> 'dead' AND next_at <= %(now)s
  ORDER BY next_at
  LIMIT 1)
