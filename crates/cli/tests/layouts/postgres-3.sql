-- The PostgreSQL tables of version 3, as commit 25ac8b7 creates them, without comments, and the rows of sqlite-4.sql.
CREATE TABLE vol_layout (
    version     bigint NOT NULL
);
CREATE TABLE vol_node (
    ino         bigint PRIMARY KEY,
    kind        smallint NOT NULL,
    mode        smallint NOT NULL,
    uid         bigint NOT NULL,
    gid         bigint NOT NULL,
    rdev        bigint NOT NULL,
    nlink       bigint NOT NULL,
    size        bigint NOT NULL,
    atime       bigint NOT NULL,
    mtime       bigint NOT NULL,
    ctime       bigint NOT NULL,
    parent      bigint NOT NULL,
    access_rev  bigint NOT NULL,
    xattr_blocks integer NOT NULL,
    access_acl  bytea,
    default_acl bytea
) WITH (fillfactor = 80);
CREATE TABLE vol_edge (
    parent      bigint NOT NULL,
    name        bytea NOT NULL,
    ino         bigint NOT NULL,
    kind        smallint NOT NULL,
    PRIMARY KEY (parent, name)
);
CREATE TABLE vol_slice (
    ino         bigint NOT NULL,
    chunk       bigint NOT NULL,
    seq         bigint NOT NULL,
    pos         bigint NOT NULL,
    len         bigint NOT NULL,
    data        bytea,
    slice       bigint,
    slice_off   bigint,
    slice_size  bigint,
    PRIMARY KEY (ino, chunk, seq)
);
CREATE TABLE vol_xattr (
    ino         bigint NOT NULL,
    name        bytea NOT NULL,
    value       bytea NOT NULL,
    PRIMARY KEY (ino, name)
);
CREATE TABLE vol_symlink (
    ino         bigint PRIMARY KEY,
    target      bytea NOT NULL
);
CREATE TABLE vol_acl (
    id          bytea PRIMARY KEY,
    text        text NOT NULL
);
CREATE TABLE vol_setting (
    name        text PRIMARY KEY,
    value       text NOT NULL
);
CREATE TABLE vol_counter (
    name        text PRIMARY KEY,
    value       bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE vol_usage (
    part        bigint PRIMARY KEY,
    inodes      bigint NOT NULL,
    blocks      bigint NOT NULL
) WITH (fillfactor = 20);
CREATE TABLE vol_session (
    id          bigint PRIMARY KEY,
    host        text NOT NULL,
    pid         bigint NOT NULL,
    mountpoint  text NOT NULL,
    since       bigint NOT NULL,
    heartbeat   bigint NOT NULL,
    pid_namespace bigint NOT NULL,
    start_time  bigint NOT NULL,
    first_slice bigint NOT NULL,
    boot_id     text NOT NULL,
    version     text NOT NULL,
    terms       bigint[] NOT NULL DEFAULT '{0}'
) WITH (fillfactor = 50);
CREATE TABLE vol_orphan (
    session     bigint NOT NULL,
    ino         bigint NOT NULL,
    PRIMARY KEY (session, ino)
);
CREATE TABLE vol_lock (
    ino         bigint NOT NULL,
    first       bigint NOT NULL,
    last        bigint NOT NULL,
    session     bigint NOT NULL,
    owner       bigint NOT NULL,
    kind        smallint NOT NULL,
    exclusive   smallint NOT NULL,
    pid         bigint NOT NULL,
    PRIMARY KEY (ino, first, last, session, owner, kind)
);
CREATE TABLE vol_lock_wait (
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
CREATE TABLE vol_garbage (
    slice       bigint PRIMARY KEY,
    size        bigint NOT NULL
);
CREATE TABLE vol_shared (
    slice       bigint PRIMARY KEY,
    extra       bigint NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE vol_log (
    session     bigint NOT NULL,
    op          bigint NOT NULL,
    seq         bigint NOT NULL,
    xid         xid8 NOT NULL,
    at          timestamptz NOT NULL,
    touched     bytea,
    PRIMARY KEY (session, op)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 1);
CREATE INDEX vol_log_xid ON vol_log (xid);
CREATE SEQUENCE vol_seq;
CREATE VIEW vol_files AS
SELECT e.parent,
       encode(e.name, 'escape') AS name,
       e.ino,
       CASE e.kind WHEN 1 THEN 'fifo' WHEN 2 THEN 'char' WHEN 4 THEN 'dir' WHEN 6 THEN 'block'
                   WHEN 8 THEN 'file' WHEN 10 THEN 'symlink' WHEN 12 THEN 'socket' END AS kind,
       ((n.mode >> 9) & 7)::text || ((n.mode >> 6) & 7) || ((n.mode >> 3) & 7) || (n.mode & 7) AS mode,
       n.nlink, n.uid, n.gid, n.size,
       to_timestamp(n.mtime / 1e9) AS mtime,
       a.text AS access_acl, d.text AS default_acl
FROM vol_edge e LEFT JOIN vol_node n USING (ino)
     LEFT JOIN vol_acl a ON a.id = n.access_acl LEFT JOIN vol_acl d ON d.id = n.default_acl;
INSERT INTO vol_counter VALUES ('next_ino', 0), ('next_slice', 0), ('next_session', 0);
INSERT INTO vol_usage SELECT part, 0, 0 FROM generate_series(0, 63) part;
INSERT INTO vol_log VALUES (-1, -1, nextval('vol_seq'), pg_current_xact_id(), now(), NULL);
INSERT INTO vol_layout VALUES (3);
INSERT INTO vol_acl (id, text) VALUES ('\x0b3dfdcbdf341067a09fa0ded6ea436a', 'u::rw-,g::r-x,g:4321:r-x,m::r--,o::r--');
INSERT INTO vol_acl (id, text) VALUES ('\x62a54c8b21c1a9416b5507e9d4778eb8', 'u::rwx,g::r-x,g:4321:r-x,m::r-x,o::r-x');
INSERT INTO vol_acl (id, text) VALUES ('\x7c52413ab6b82d5044dcc6c20e9b1ef6', 'u::rw-,u:1234:r--,g::r--,m::r--,o::r--');
INSERT INTO vol_edge (parent, name, ino, kind) VALUES (2, '\x646972', 3, 4);
INSERT INTO vol_edge (parent, name, ino, kind) VALUES (2, '\x68617264', 4, 8);
INSERT INTO vol_edge (parent, name, ino, kind) VALUES (2, '\x6c696e6b', 6, 10);
INSERT INTO vol_edge (parent, name, ino, kind) VALUES (2, '\x737061727365', 8, 8);
INSERT INTO vol_edge (parent, name, ino, kind) VALUES (3, '\x696e686572697473', 7, 8);
INSERT INTO vol_edge (parent, name, ino, kind) VALUES (3, '\x6c61726765', 5, 8);
INSERT INTO vol_edge (parent, name, ino, kind) VALUES (3, '\x736d616c6c', 4, 8);
INSERT INTO vol_node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, access_acl, default_acl, parent, access_rev, xattr_blocks) VALUES (2, 4, 493, 0, 0, 0, 3, 4096, 1795767574686431437, 1795767574791543045, 1795767574791543045, NULL, NULL, 2, 1, 0);
INSERT INTO vol_node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, access_acl, default_acl, parent, access_rev, xattr_blocks) VALUES (3, 4, 493, 0, 0, 0, 2, 4096, 1000000000000000000, 1000000000000000000, 1795767574800553213, NULL, '\x62a54c8b21c1a9416b5507e9d4778eb8', 2, 2, 0);
INSERT INTO vol_node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, access_acl, default_acl, parent, access_rev, xattr_blocks) VALUES (4, 8, 420, 0, 0, 0, 2, 6, 1000000000000000000, 1000000000000000000, 1795767574799674349, '\x7c52413ab6b82d5044dcc6c20e9b1ef6', NULL, 0, 2, 1);
INSERT INTO vol_node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, access_acl, default_acl, parent, access_rev, xattr_blocks) VALUES (5, 8, 420, 0, 0, 0, 1, 6000, 1000000000000000000, 1000000000000000000, 1795767574800338905, NULL, NULL, 0, 1, 0);
INSERT INTO vol_node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, access_acl, default_acl, parent, access_rev, xattr_blocks) VALUES (6, 10, 511, 0, 0, 0, 1, 9, 1000000000000000000, 1000000000000000000, 1795767574800748799, NULL, NULL, 0, 1, 0);
INSERT INTO vol_node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, access_acl, default_acl, parent, access_rev, xattr_blocks) VALUES (7, 8, 420, 0, 0, 0, 1, 0, 1000000000000000000, 1000000000000000000, 1795767574800493496, '\x0b3dfdcbdf341067a09fa0ded6ea436a', NULL, 0, 1, 0);
INSERT INTO vol_node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, access_acl, default_acl, parent, access_rev, xattr_blocks) VALUES (8, 8, 493, 0, 0, 0, 1, 100003, 1000000000000000000, 1000000000000000000, 1795767574800639724, NULL, NULL, 0, 1, 0);
INSERT INTO vol_setting (name, value) VALUES ('abe', 'off');
INSERT INTO vol_setting (name, value) VALUES ('acl', 'posix');
INSERT INTO vol_setting (name, value) VALUES ('aclinherit', 'restricted');
INSERT INTO vol_setting (name, value) VALUES ('aclmode', 'groupmask');
INSERT INTO vol_setting (name, value) VALUES ('bucket', '@DIR@/vol.data');
INSERT INTO vol_setting (name, value) VALUES ('capacity_bytes', '0');
INSERT INTO vol_setting (name, value) VALUES ('compression', 'none');
INSERT INTO vol_setting (name, value) VALUES ('created', '1795767574686431437');
INSERT INTO vol_setting (name, value) VALUES ('encryption', '');
INSERT INTO vol_setting (name, value) VALUES ('format_version', '1');
INSERT INTO vol_setting (name, value) VALUES ('inline_bytes', '4096');
INSERT INTO vol_setting (name, value) VALUES ('max_inodes', '0');
INSERT INTO vol_setting (name, value) VALUES ('name', 'vol');
INSERT INTO vol_setting (name, value) VALUES ('storage', 'file');
INSERT INTO vol_setting (name, value) VALUES ('store_marker', 'on');
INSERT INTO vol_setting (name, value) VALUES ('uuid', '71c2dc3e-5d06-49d7-aea0-ef9abcee0a58');
INSERT INTO vol_slice (ino, chunk, seq, pos, len, data, slice, slice_off, slice_size) VALUES (4, 0, 1, 0, 6, '\x736d616c6c0a', NULL, NULL, NULL);
INSERT INTO vol_slice (ino, chunk, seq, pos, len, data, slice, slice_off, slice_size) VALUES (5, 0, 1, 0, 6000, NULL, 1, 0, 6000);
INSERT INTO vol_slice (ino, chunk, seq, pos, len, data, slice, slice_off, slice_size) VALUES (8, 0, 1, 100000, 3, NULL, 2, 0, 3);
INSERT INTO vol_symlink (ino, target) VALUES (6, '\x6469722f736d616c6c');
INSERT INTO vol_xattr (ino, name, value) VALUES (4, '\x757365722e636f6c6f7572', '\x626c7565');
UPDATE vol_counter SET value = 4099 WHERE name = 'next_ino';
UPDATE vol_counter SET value = 2 WHERE name = 'next_session';
UPDATE vol_counter SET value = 4097 WHERE name = 'next_slice';
UPDATE vol_usage SET inodes = 7, blocks = 29 WHERE part = 0;
