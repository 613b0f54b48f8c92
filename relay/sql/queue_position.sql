-- What a pull needs to know before it reads: the time, which history of the database this is,
-- and how far the queue has come. The timeline comes from the running server's WAL position;
-- the control file would lag a promotion by up to a checkpoint.
SELECT relay_now() AS now,
       instance.epoch,
       ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS timeline,
       usage.next_seq
  FROM relay_instance AS instance
  LEFT JOIN quotas_queueusage AS usage
    ON usage.shard = %(shard)s AND usage.device_id = %(device_id)s
 WHERE instance.id = 1
