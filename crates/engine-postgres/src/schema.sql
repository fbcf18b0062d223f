-- The tables of one volume. @ is the table prefix. Numbers are signed 64-bit; those that are unsigned elsewhere and reach
-- beyond (the end of a lock, its owner) show as negative. Names and values are bytea, for text holds neither a zero
-- byte nor what is not UTF-8: convert_from(name, 'UTF8') shows them.
--
-- Columns that change often (links, size, times, numbers) are in no index, and pages of their tables keep room, so that a
-- change is a HOT update: it writes no index and leaves nothing to vacuum.

CREATE TABLE @layout (            -- one row: which tables these are
    version     bigint NOT NULL
);

CREATE TABLE @node (              -- an inode
    ino         bigint PRIMARY KEY,
    kind        smallint NOT NULL, -- as d_type: 1 fifo, 2 char device, 4 directory, 6 block device, 8 file, 10 symlink, 12 socket
    mode        smallint NOT NULL, -- the 12 permission bits: suid, sgid, sticky, rwxrwxrwx
    uid         bigint NOT NULL,
    gid         bigint NOT NULL,
    rdev        bigint NOT NULL,   -- device number as makedev(3) packs it; 0 unless a device
    nlink       bigint NOT NULL,   -- hard links; for a directory 2 plus its subdirectories
    size        bigint NOT NULL,   -- in bytes
    atime       bigint NOT NULL,   -- times are nanoseconds since 1970-01-01 UTC
    mtime       bigint NOT NULL,
    ctime       bigint NOT NULL,
    parent      bigint NOT NULL,   -- of a directory, the directory that holds it; of the root, itself; else 0
    access_rev  bigint NOT NULL,   -- moves with each change of mode, owner, group and ACLs
    access_acl  bytea,             -- acl.id, or NULL where mode says all
    default_acl bytea              -- acl.id that new entries of this directory inherit, or NULL
) WITH (fillfactor = 80);

CREATE TABLE @edge (              -- a directory entry
    parent      bigint NOT NULL,   -- node.ino of the directory
    name        bytea NOT NULL,    -- any bytes but / and zero
    ino         bigint NOT NULL,   -- node.ino the name refers to
    kind        smallint NOT NULL, -- that inode's node.kind
    PRIMARY KEY (parent, name)
);

CREATE TABLE @slice (             -- one write to one chunk of 64 MiB; where slices overlap, the one with the higher seq holds
    ino         bigint NOT NULL,
    chunk       bigint NOT NULL,   -- the chunk's position in the file
    seq         bigint NOT NULL,   -- order of writing within the chunk
    pos         bigint NOT NULL,   -- first byte, counted from the chunk's start
    len         bigint NOT NULL,   -- bytes
    data        bytea,             -- the bytes themselves, if small
    slice       bigint,            -- the object-store slice that holds them; a hole (zeros) if this and data are NULL
    slice_off   bigint,            -- first byte within that slice
    slice_size  bigint,            -- bytes of the whole slice
    PRIMARY KEY (ino, chunk, seq)
);

CREATE TABLE @xattr (             -- extended attributes other than ACLs
    ino         bigint NOT NULL,
    name        bytea NOT NULL,    -- with its namespace: user.mime_type
    value       bytea NOT NULL,
    PRIMARY KEY (ino, name)
);

CREATE TABLE @symlink (
    ino         bigint PRIMARY KEY,
    target      bytea NOT NULL
);

CREATE TABLE @acl (               -- each distinct ACL once; never changed
    id          bytea PRIMARY KEY, -- 16 bytes: the hash of its contents
    text        text NOT NULL
);

CREATE TABLE @setting (           -- of the volume, from when it was formatted
    name        text PRIMARY KEY,
    value       text NOT NULL
);

CREATE TABLE @counter (           -- sources of numbers; value is the next one to lease
    name        text PRIMARY KEY,
    value       bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE @usage (             -- the sum of all rows is the volume's: count(*), sum of blocks over files FROM node
    part        bigint PRIMARY KEY, -- 0 to 63; a commit takes a row that no other is writing, so a row may be negative
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
    start_time  bigint NOT NULL,   -- of the process, in clock ticks since boot; 0 if unknown
    first_slice bigint NOT NULL,   -- from this slice on, objects may be stored before their rows
    boot_id     text NOT NULL,     -- /proc/sys/kernel/random/boot_id; empty if unknown
    version     text NOT NULL,     -- of limen
    terms       bigint[] NOT NULL DEFAULT '{0}' -- that are open; 0 as long as the session is there
) WITH (fillfactor = 50);

CREATE TABLE @orphan (            -- an inode without a name that a session still has open
    session     bigint NOT NULL,
    ino         bigint NOT NULL,
    PRIMARY KEY (session, ino)
);

CREATE TABLE @lock (              -- a lock on a file; rows of one inode never overlap for one owner
    ino         bigint NOT NULL,
    first       bigint NOT NULL,   -- bytes, both included
    last        bigint NOT NULL,
    session     bigint NOT NULL,   -- session.id of the mount it is held on, and there the kernel's number of the holder
    owner       bigint NOT NULL,
    kind        smallint NOT NULL, -- 0 fcntl(2), 1 flock(2)
    exclusive   smallint NOT NULL, -- 1 a write lock, 0 a read lock
    pid         bigint NOT NULL,
    PRIMARY KEY (ino, first, last, session, owner, kind)
);

CREATE TABLE @lock_wait (         -- somebody waits for a lock; columns as in table lock
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

CREATE TABLE @garbage (           -- a slice no file refers to; its objects are to be deleted
    slice       bigint PRIMARY KEY,
    size        bigint NOT NULL    -- bytes
);

CREATE TABLE @shared (            -- a slice that more than one row of table slice has referred to
    slice       bigint PRIMARY KEY,
    extra       bigint NOT NULL    -- rows beyond the first; 0 once one is left
) WITH (fillfactor = 80);

CREATE TABLE @log (               -- the transactions of the last minutes, and of terms that are open: for repetitions, and for who watches
    session     bigint NOT NULL,   -- the two halves of the operation's id
    op          bigint NOT NULL,   -- its upper half is the term
    seq         bigint NOT NULL,   -- order of commits that meet in a record
    xid         xid8 NOT NULL,     -- the server's own transaction, by which snapshots tell what they saw
    at          timestamptz NOT NULL,
    touched     bytea,             -- what it changed: see Touched::encode; NULL: everything, or (seq 0) what was removed
    PRIMARY KEY (session, op)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 1);
CREATE INDEX @log_xid ON @log (xid);

CREATE SEQUENCE @seq;             -- where log.seq comes from

CREATE VIEW @files AS             -- for people: directory entries as ls -l shows them
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
