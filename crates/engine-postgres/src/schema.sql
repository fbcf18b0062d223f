-- The tables of one volume. @ is the table prefix. Numbers are signed 64-bit. Numbers that are unsigned
-- elsewhere (the end of a lock, its owner) are negative here if they exceed 2^63-1. Names and values are
-- bytea, because text can hold neither a zero byte nor invalid UTF-8: convert_from(name, 'UTF8') shows them
-- as text.
--
-- Columns that change often (links, size, times, numbers) are in no index, and the pages of their tables keep
-- free space. So a change is a HOT update: it writes no index entry and leaves nothing to vacuum.

CREATE TABLE @layout (            -- one row: the version of the tables
    version     bigint NOT NULL
);

CREATE TABLE @node (              -- an inode
    ino         bigint PRIMARY KEY,
    kind        smallint NOT NULL, -- like d_type: 1 fifo, 2 char device, 4 directory, 6 block device, 8 file, 10 symlink, 12 socket
    mode        smallint NOT NULL, -- the 12 permission bits: suid, sgid, sticky, rwxrwxrwx
    uid         bigint NOT NULL,
    gid         bigint NOT NULL,
    rdev        bigint NOT NULL,   -- device number, encoded as by makedev(3); 0 if not a device
    nlink       bigint NOT NULL,   -- hard links; for a directory 2 plus its subdirectories
    size        bigint NOT NULL,   -- in bytes
    atime       bigint NOT NULL,   -- times are nanoseconds since 1970-01-01 UTC
    mtime       bigint NOT NULL,
    ctime       bigint NOT NULL,
    parent      bigint NOT NULL,   -- for a directory, its parent directory (the root is its own parent); else 0
    access_rev  bigint NOT NULL,   -- increases with each change of mode, owner, group or ACLs
    xattr_blocks integer NOT NULL, -- the sum over its rows in xattr of greatest(1, (length(value) + 4095) / 4096)
    access_acl  bytea,             -- acl.id, or NULL if the mode is the whole ACL
    default_acl bytea,             -- acl.id of the ACL that new entries of this directory inherit, or NULL
    quota       bigint NOT NULL DEFAULT 0 -- 2 * quota.number of its directory quota, + 1 if it counts in the quotas of its owner and group
) WITH (fillfactor = 80);

CREATE TABLE @edge (              -- a directory entry
    parent      bigint NOT NULL,   -- node.ino of the directory
    name        bytea NOT NULL,    -- any bytes except / and zero
    ino         bigint NOT NULL,   -- the node.ino that the name refers to
    kind        smallint NOT NULL, -- node.kind of that inode
    PRIMARY KEY (parent, name)
);

CREATE TABLE @slice (             -- one write to one chunk of 64 MiB; if slices overlap, the higher seq wins
    ino         bigint NOT NULL,
    chunk       bigint NOT NULL,   -- the chunk's position in the file
    seq         bigint NOT NULL,   -- order of the writes to the chunk
    pos         bigint NOT NULL,   -- first byte, counted from the chunk's start
    len         bigint NOT NULL,   -- bytes
    data        bytea,             -- the data itself, if it is small
    slice       bigint,            -- the object-store slice that holds the data; if this and data are NULL, a hole (zeros)
    slice_off   bigint,            -- first byte within that slice
    slice_size  bigint,            -- bytes of the whole slice
    PRIMARY KEY (ino, chunk, seq)
);

CREATE TABLE @xattr (             -- extended attributes other than ACLs
    ino         bigint NOT NULL,
    name        bytea NOT NULL,    -- including the namespace: user.mime_type
    value       bytea NOT NULL,
    PRIMARY KEY (ino, name)
);

CREATE TABLE @symlink (
    ino         bigint PRIMARY KEY,
    target      bytea NOT NULL
);

CREATE TABLE @acl (               -- each distinct ACL once; text begins with ! if the ACL is condemned
    id          bytea PRIMARY KEY, -- 16 bytes: the hash of its contents
    text        text NOT NULL
);

CREATE TABLE @setting (           -- settings of the volume
    name        text PRIMARY KEY,
    value       text NOT NULL
);

CREATE TABLE @counter (           -- number generators; value is the next number to allocate
    name        text PRIMARY KEY,
    value       bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE @usage (             -- the sum of all rows is the usage of the volume: the number of inodes, the blocks of all files and xattrs
    part        bigint PRIMARY KEY, -- 0 to 63; a commit adds to any row that is not locked, so one row may be negative
    inodes      bigint NOT NULL,
    blocks      bigint NOT NULL    -- of 4096 bytes
) WITH (fillfactor = 20);

CREATE TABLE @session (           -- a mounted client
    id          bigint PRIMARY KEY,
    host        text NOT NULL,
    pid         bigint NOT NULL,
    mountpoint  text NOT NULL,
    since       bigint NOT NULL,   -- nanoseconds since 1970-01-01 UTC
    heartbeat   bigint NOT NULL,
    pid_namespace bigint NOT NULL, -- inode of /proc/self/ns/pid; 0 if unknown
    start_time  bigint NOT NULL,   -- start time of the process, in clock ticks since boot; 0 if unknown
    first_slice bigint NOT NULL,   -- objects of this and later slices may be stored before their rows
    boot_id     text NOT NULL,     -- /proc/sys/kernel/random/boot_id; empty if unknown
    version     text NOT NULL,     -- of limenfs
    terms       bigint[] NOT NULL DEFAULT '{0}' -- open terms; term 0 is open as long as the session exists
) WITH (fillfactor = 50);

CREATE TABLE @orphan (            -- an unlinked inode that a session still has open
    session     bigint NOT NULL,
    ino         bigint NOT NULL,
    PRIMARY KEY (session, ino)
);

CREATE TABLE @lock (              -- a lock on a file; locks of one owner on one inode never overlap
    ino         bigint NOT NULL,
    first       bigint NOT NULL,   -- first and last byte, inclusive
    last        bigint NOT NULL,
    session     bigint NOT NULL,   -- session.id of the mount, and the number of the lock owner in its kernel
    owner       bigint NOT NULL,
    kind        smallint NOT NULL, -- 0 fcntl(2), 1 flock(2)
    exclusive   smallint NOT NULL, -- 1: write lock; 0: read lock
    pid         bigint NOT NULL,
    PRIMARY KEY (ino, first, last, session, owner, kind)
);

CREATE TABLE @lock_wait (         -- a waiting lock request; columns as in table lock
    session     bigint NOT NULL,
    owner       bigint NOT NULL,
    kind        smallint NOT NULL,
    ino         bigint NOT NULL,
    first       bigint NOT NULL,
    last        bigint NOT NULL,
    exclusive   smallint NOT NULL,
    pid         bigint NOT NULL,
    PRIMARY KEY (session, owner, kind)
);

CREATE TABLE @garbage (           -- a slice that no file refers to; its objects can be deleted
    slice       bigint PRIMARY KEY,
    size        bigint NOT NULL    -- bytes
);

CREATE TABLE @shared (            -- a slice that has been referred to by more than one row of table slice
    slice       bigint PRIMARY KEY,
    extra       bigint NOT NULL    -- the number of references beyond the first; 0 if one is left
) WITH (fillfactor = 80);

CREATE TABLE @log (               -- the transactions of the last minutes and of open terms: to detect repetitions, and for watchers
    session     bigint NOT NULL,   -- the two halves of the operation's id
    op          bigint NOT NULL,   -- the upper half is the term
    seq         bigint NOT NULL,   -- orders commits that access the same record
    xid         xid8 NOT NULL,     -- the transaction id of the server, which snapshots refer to
    at          timestamptz NOT NULL,
    invalidations bytea,           -- the changed records: see Invalidation::encode; NULL: everything, or, if seq is 0, this row is the mark of function trim
    PRIMARY KEY (session, op)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 1);
CREATE INDEX @log_xid ON @log (xid);

CREATE SEQUENCE @seq;             -- generates log.seq

CREATE VIEW @files AS             -- for people: directory entries like ls -l
SELECT e.parent,
       encode(e.name, 'escape') AS name,
       e.ino,
       CASE e.kind WHEN 1 THEN 'fifo' WHEN 2 THEN 'char' WHEN 4 THEN 'dir' WHEN 6 THEN 'block'
                   WHEN 8 THEN 'file' WHEN 10 THEN 'symlink' WHEN 12 THEN 'socket' END AS kind,
       ((n.mode >> 9) & 7)::text || ((n.mode >> 6) & 7) || ((n.mode >> 3) & 7) || (n.mode & 7) AS mode,
       n.nlink, n.uid, n.gid, n.size,
       to_timestamp(n.mtime / 1e9) AS mtime,
       a.text AS access_acl, d.text AS default_acl
FROM @edge e LEFT JOIN @node n USING (ino)
     LEFT JOIN @acl a ON a.id = n.access_acl LEFT JOIN @acl d ON d.id = n.default_acl;
