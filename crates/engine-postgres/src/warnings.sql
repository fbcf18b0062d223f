-- Server settings that can lose acknowledged changes, one sentence per row.
SELECT what
FROM (VALUES
    (current_setting('fsync') = 'off', 'fsync is off: a power failure can destroy the database'),
    (current_setting('full_page_writes') = 'off', 'full_page_writes is off: a power failure can destroy the database'),
    (current_setting('synchronous_commit') = 'off',
     'synchronous_commit is off: a server crash loses the latest changes, except those before an fsync'),
    (pg_is_in_recovery(), 'the server is a standby: it accepts no changes')) risk (is_there, what)
WHERE is_there
