-- A volume that limen of commit 6d24c3e made and filled, without comments.
BEGIN TRANSACTION;
CREATE TABLE acl (
    id          BLOB PRIMARY KEY,
    text        TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "acl" VALUES(X'0B3DFDCBDF341067A09FA0DED6EA436A','u::rw-,g::r-x,g:4321:r-x,m::r--,o::r--');
INSERT INTO "acl" VALUES(X'62A54C8B21C1A9416B5507E9D4778EB8','u::rwx,g::r-x,g:4321:r-x,m::r-x,o::r-x');
INSERT INTO "acl" VALUES(X'7C52413AB6B82D5044DCC6C20E9B1EF6','u::rw-,u:1234:r--,g::r--,m::r--,o::r--');
CREATE TABLE counter (
    name        TEXT PRIMARY KEY,
    value       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "counter" VALUES('next_ino',4099);
INSERT INTO "counter" VALUES('next_session',2);
INSERT INTO "counter" VALUES('next_slice',4097);
CREATE TABLE edge (
    parent      INTEGER NOT NULL,
    name        BLOB NOT NULL,
    ino         INTEGER NOT NULL,
    kind        INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "edge" VALUES(2,X'646972',3,4);
INSERT INTO "edge" VALUES(2,X'68617264',4,8);
INSERT INTO "edge" VALUES(2,X'6C696E6B',6,10);
INSERT INTO "edge" VALUES(2,X'737061727365',8,8);
INSERT INTO "edge" VALUES(3,X'696E686572697473',7,8);
INSERT INTO "edge" VALUES(3,X'6C61726765',5,8);
INSERT INTO "edge" VALUES(3,X'736D616C6C',4,8);
CREATE TABLE garbage (
    slice       INTEGER PRIMARY KEY,
    size        INTEGER NOT NULL
) STRICT;
CREATE TABLE lock (
    ino         INTEGER NOT NULL,
    first       INTEGER NOT NULL,
    last        INTEGER NOT NULL,
    session     INTEGER NOT NULL,
    owner       INTEGER NOT NULL,
    kind        INTEGER NOT NULL,
    exclusive   INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    PRIMARY KEY (ino, first, last, session, owner, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE lock_wait (
    session     INTEGER NOT NULL,
    owner       INTEGER NOT NULL,
    kind        INTEGER NOT NULL,
    ino         INTEGER NOT NULL,
    first       INTEGER NOT NULL,
    last        INTEGER NOT NULL,
    exclusive   INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    PRIMARY KEY (session, owner, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE node (
    ino         INTEGER PRIMARY KEY,
    kind        INTEGER NOT NULL,
    mode        INTEGER NOT NULL,
    uid         INTEGER NOT NULL,
    gid         INTEGER NOT NULL,
    rdev        INTEGER NOT NULL,
    nlink       INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    atime       INTEGER NOT NULL,
    mtime       INTEGER NOT NULL,
    ctime       INTEGER NOT NULL,
    access_acl  BLOB,
    default_acl BLOB,
    parent      INTEGER NOT NULL,
    access_rev  INTEGER NOT NULL
) STRICT;
INSERT INTO "node" VALUES(2,4,493,0,0,0,3,4096,1795767603273947351,1795767603628797492,1795767603628797492,NULL,NULL,2,1);
INSERT INTO "node" VALUES(3,4,493,0,0,0,2,4096,1795767603400874464,1795767603622474899,1795767603622474899,NULL,X'62A54C8B21C1A9416B5507E9D4778EB8',2,2);
INSERT INTO "node" VALUES(4,8,420,0,0,0,2,6,1000000000000000000,1000000000000000000,1795767603631780848,X'7C52413AB6B82D5044DCC6C20E9B1EF6',NULL,0,2);
INSERT INTO "node" VALUES(5,8,420,0,0,0,1,6000,1000000000000000000,1000000000000000000,1795767603631876442,NULL,NULL,0,1);
INSERT INTO "node" VALUES(6,10,511,0,0,0,1,9,1795767603613949116,1795767603613949116,1795767603613949116,NULL,NULL,0,1);
INSERT INTO "node" VALUES(7,8,420,0,0,0,1,0,1000000000000000000,1000000000000000000,1795767603631922131,X'0B3DFDCBDF341067A09FA0DED6EA436A',NULL,0,1);
INSERT INTO "node" VALUES(8,8,420,0,0,0,1,100003,1000000000000000000,1000000000000000000,1795767603631964748,NULL,NULL,0,1);
CREATE TABLE orphan (
    session     INTEGER NOT NULL,
    ino         INTEGER NOT NULL,
    PRIMARY KEY (session, ino)
) STRICT, WITHOUT ROWID;
CREATE TABLE session (
    id          INTEGER PRIMARY KEY,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    mountpoint  TEXT NOT NULL,
    since       INTEGER NOT NULL,
    heartbeat   INTEGER NOT NULL
) STRICT;
CREATE TABLE setting (
    name        TEXT PRIMARY KEY,
    value       TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "setting" VALUES('abe','off');
INSERT INTO "setting" VALUES('acl','posix');
INSERT INTO "setting" VALUES('aclinherit','restricted');
INSERT INTO "setting" VALUES('aclmode','discard');
INSERT INTO "setting" VALUES('bucket','@DIR@/vol.data');
INSERT INTO "setting" VALUES('capacity_bytes','0');
INSERT INTO "setting" VALUES('compression','none');
INSERT INTO "setting" VALUES('created','1795767603273947351');
INSERT INTO "setting" VALUES('encryption','');
INSERT INTO "setting" VALUES('format_version','1');
INSERT INTO "setting" VALUES('inline_bytes','4096');
INSERT INTO "setting" VALUES('max_inodes','0');
INSERT INTO "setting" VALUES('name','vol');
INSERT INTO "setting" VALUES('storage','file');
INSERT INTO "setting" VALUES('uuid','d40b6ed3-e25c-4bf4-95ad-d60ef231b3a6');
CREATE TABLE shared (
    slice       INTEGER PRIMARY KEY,
    extra       INTEGER NOT NULL
) STRICT;
CREATE TABLE slice (
    ino         INTEGER NOT NULL,
    chunk       INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    pos         INTEGER NOT NULL,
    len         INTEGER NOT NULL,
    data        BLOB,
    slice       INTEGER,
    slice_off   INTEGER,
    slice_size  INTEGER,
    PRIMARY KEY (ino, chunk, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO "slice" VALUES(4,0,1,0,6,X'736D616C6C0A',NULL,NULL,NULL);
INSERT INTO "slice" VALUES(5,0,1,0,6000,NULL,1,0,6000);
INSERT INTO "slice" VALUES(8,0,1,100000,67008864,NULL,NULL,NULL,NULL);
INSERT INTO "slice" VALUES(8,0,2,100000,3,NULL,2,0,3);
CREATE TABLE symlink (
    ino         INTEGER PRIMARY KEY,
    target      BLOB NOT NULL
) STRICT;
INSERT INTO "symlink" VALUES(6,X'6469722F736D616C6C');
CREATE TABLE usage (
    id          INTEGER PRIMARY KEY CHECK (id = 0),
    inodes      INTEGER NOT NULL,
    blocks      INTEGER NOT NULL
, exact INTEGER NOT NULL DEFAULT 1) STRICT;
INSERT INTO "usage" VALUES(0,7,28,1);
CREATE TABLE xattr (
    ino         INTEGER NOT NULL,
    name        BLOB NOT NULL,
    value       BLOB NOT NULL,
    PRIMARY KEY (ino, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "xattr" VALUES(4,X'757365722E636F6C6F7572',X'626C7565');
CREATE VIEW files AS
SELECT e.parent,
       CAST(e.name AS TEXT) AS name,
       e.ino,
       CASE e.kind WHEN 1 THEN 'fifo' WHEN 2 THEN 'char' WHEN 4 THEN 'dir' WHEN 6 THEN 'block'
                   WHEN 8 THEN 'file' WHEN 10 THEN 'symlink' WHEN 12 THEN 'socket' END AS kind,
       printf('%04o', n.mode) AS mode, n.nlink, n.uid, n.gid, n.size,
       datetime(n.mtime / 1000000000, 'unixepoch') AS mtime,
       a.text AS access_acl, d.text AS default_acl
FROM edge e LEFT JOIN node n USING (ino)
     LEFT JOIN acl a ON a.id = n.access_acl LEFT JOIN acl d ON d.id = n.default_acl;
COMMIT;
PRAGMA application_id = 0x6c696d6e;
PRAGMA user_version = 2;
