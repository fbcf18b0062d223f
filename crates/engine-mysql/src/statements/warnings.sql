-- Warnings about the settings of the server, one sentence per row.

SELECT CONCAT('innodb_flush_log_at_trx_commit is ', @@GLOBAL.innodb_flush_log_at_trx_commit,
    ': a crash of the machine of the server can lose the last second of acknowledged changes; set it to 1')
FROM DUAL WHERE @@GLOBAL.innodb_flush_log_at_trx_commit <> 1
UNION ALL SELECT CONCAT('sync_binlog is ', @@GLOBAL.sync_binlog,
    ': after a crash replicas can have changes that the server lost, or lack some; set it to 1')
FROM DUAL WHERE @@GLOBAL.log_bin AND @@GLOBAL.sync_binlog <> 1
UNION ALL SELECT 'the server is read-only: it is a replica, or about to be one; connect to the primary'
FROM DUAL WHERE @@GLOBAL.read_only
