-- What in the server's settings can lose what was acknowledged, one sentence a row.
SELECT what
FROM (VALUES
    (current_setting('fsync') = 'off', 'fsync is off: a loss of power can destroy the database'),
    (current_setting('full_page_writes') = 'off', 'full_page_writes is off: a loss of power can destroy the database'),
    (current_setting('synchronous_commit') = 'off',
     'synchronous_commit is off: a crash of the server loses the last changes, fsync on a file keeps them'),
    (pg_is_in_recovery(), 'the server is a standby: it takes no changes')) risk (is_there, what)
WHERE is_there
