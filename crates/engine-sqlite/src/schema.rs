//! The tables, documented so that the output of `.schema` explains them, and the version of the schema.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::error::OpenError;

/// The `PRAGMA application_id` of every limenfs database: "limn".
const APPLICATION_ID: i64 = 0x6c69_6d6e;

/// The schema version that this code reads and writes, stored as `PRAGMA user_version`.
pub const VERSION: i64 = MIGRATIONS.len() as i64;

/// Step `n` migrates version `n` to version `n + 1`. Add steps; do not change a step, because it has already
/// run on existing volumes. [`LATE_TABLES`] repairs the volumes for which this rule was once broken.
const MIGRATIONS: &[&str] = &[V1, V2, V3, V4, V5];

/// Numbers are signed 64-bit. A number above `i64::MAX` would appear as negative, but limenfs creates no such
/// numbers. Foreign keys are not checked, because ACL IDs and entries refer to missing rows only in a damaged
/// volume.
const V1: &str = "
CREATE TABLE node (              -- an inode
    ino         INTEGER PRIMARY KEY,
    kind        INTEGER NOT NULL, -- as d_type: 1 fifo, 2 char device, 4 directory, 6 block device, 8 file, 10 symlink, 12 socket
    mode        INTEGER NOT NULL, -- the 12 permission bits: suid, sgid, sticky, rwxrwxrwx
    uid         INTEGER NOT NULL,
    gid         INTEGER NOT NULL,
    rdev        INTEGER NOT NULL, -- device number as makedev(3) packs it; 0 unless a device
    nlink       INTEGER NOT NULL, -- hard links; for a directory 2 plus its subdirectories
    size        INTEGER NOT NULL, -- in bytes
    atime       INTEGER NOT NULL, -- times are nanoseconds since 1970-01-01 UTC
    mtime       INTEGER NOT NULL,
    ctime       INTEGER NOT NULL,
    access_acl  BLOB,             -- acl.id, or NULL if mode is the whole ACL
    default_acl BLOB,             -- acl.id that new entries of this directory inherit, or NULL
    parent      INTEGER NOT NULL, -- for a directory, its parent directory; for the root, itself; else 0
    access_rev  INTEGER NOT NULL  -- increases with each change of mode, owner, group and ACLs
) STRICT;

CREATE TABLE edge (               -- a directory entry
    parent      INTEGER NOT NULL, -- node.ino of the directory
    name        BLOB NOT NULL,    -- any bytes except / and NUL
    ino         INTEGER NOT NULL, -- node.ino the name refers to
    kind        INTEGER NOT NULL, -- that inode's node.kind
    PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE slice (              -- one write to one chunk of 64 MiB; if slices overlap, the one with the highest seq wins
    ino         INTEGER NOT NULL,
    chunk       INTEGER NOT NULL, -- the chunk's index in the file
    seq         INTEGER NOT NULL, -- order of the writes to the chunk
    pos         INTEGER NOT NULL, -- first byte, counted from the chunk's start
    len         INTEGER NOT NULL, -- bytes
    data        BLOB,             -- the bytes themselves, if small
    slice       INTEGER,          -- the object-store slice that holds them; a hole (zeros) if this and data are NULL
    slice_off   INTEGER,          -- first byte within that slice
    slice_size  INTEGER,          -- bytes of the whole slice
    PRIMARY KEY (ino, chunk, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE xattr (              -- extended attributes other than ACLs
    ino         INTEGER NOT NULL,
    name        BLOB NOT NULL,    -- with its namespace: user.mime_type
    value       BLOB NOT NULL,
    PRIMARY KEY (ino, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE symlink (
    ino         INTEGER PRIMARY KEY,
    target      BLOB NOT NULL
) STRICT;

CREATE TABLE acl (                -- each distinct ACL once; text begins with ! if it is condemned
    id          BLOB PRIMARY KEY, -- 16 bytes: the hash of its contents
    text        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE setting (            -- settings of the volume
    name        TEXT PRIMARY KEY,
    value       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE counter (            -- allocators of numbers; value is the next one to allocate
    name        TEXT PRIMARY KEY,
    value       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (              -- one row, equal to: SELECT count(*), sum of (size + 4095) / 4096 over files FROM node
    id          INTEGER PRIMARY KEY CHECK (id = 0),
    inodes      INTEGER NOT NULL,
    blocks      INTEGER NOT NULL  -- of 4096 bytes
) STRICT;
INSERT INTO usage VALUES (0, 0, 0);

CREATE TABLE session (            -- a mounted client
    id          INTEGER PRIMARY KEY,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    mountpoint  TEXT NOT NULL,
    since       INTEGER NOT NULL, -- nanoseconds since 1970-01-01 UTC
    heartbeat   INTEGER NOT NULL
) STRICT;

CREATE TABLE orphan (             -- an inode without a name that a session still has open
    session     INTEGER NOT NULL,
    ino         INTEGER NOT NULL,
    PRIMARY KEY (session, ino)
) STRICT, WITHOUT ROWID;

CREATE TABLE lock (               -- a lock on a file; rows of one inode never overlap for one owner
    ino         INTEGER NOT NULL,
    first       INTEGER NOT NULL, -- bytes, both included; 9223372036854775807 is the end of any file
    last        INTEGER NOT NULL,
    session     INTEGER NOT NULL, -- session.id of the mount of the holder
    owner       INTEGER NOT NULL, -- the number by which the kernel of that mount identifies the holder
    kind        INTEGER NOT NULL, -- 0 fcntl(2), 1 flock(2)
    exclusive   INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    PRIMARY KEY (ino, first, last, session, owner, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE lock_wait (          -- a request that waits for a lock; columns as in table lock
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

CREATE TABLE garbage (            -- a slice to which no file refers; its objects can be deleted
    slice       INTEGER PRIMARY KEY,
    size        INTEGER NOT NULL  -- bytes
) STRICT;

CREATE TABLE shared (             -- a slice to which several rows of table slice refer or have referred
    slice       INTEGER PRIMARY KEY,
    extra       INTEGER NOT NULL  -- references beyond the first; 0 if only one is left
) STRICT;

CREATE VIEW files AS              -- for people: directory entries as ls -l shows them
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
";

/// The row of `usage` added one page to almost every commit. A handle with the exclusive lock counts in
/// memory instead, and first sets `exact` to 0, so that no other handle trusts the row if this one dies.
const V2: &str = "
ALTER TABLE usage ADD COLUMN exact INTEGER NOT NULL DEFAULT 1; -- 0: counted in memory; this row is out of date
";

/// The data that proves that a session's process is gone; the slices whose objects it may have stored before
/// their rows; the open terms of a session.
const V3: &str = "
ALTER TABLE session ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';           -- /proc/sys/kernel/random/boot_id
ALTER TABLE session ADD COLUMN pid_namespace INTEGER NOT NULL DEFAULT 0;   -- inode of /proc/self/ns/pid
ALTER TABLE session ADD COLUMN start_time INTEGER NOT NULL DEFAULT 0;      -- of the process, clock ticks since boot
ALTER TABLE session ADD COLUMN version TEXT NOT NULL DEFAULT '';           -- of limen
ALTER TABLE session ADD COLUMN first_slice INTEGER NOT NULL DEFAULT 0;     -- first slice whose objects may be stored before their rows
CREATE TABLE term (               -- the open terms of a session; an operation is applied only if its term, the prefix of its number, is open
    session     INTEGER NOT NULL,
    term        INTEGER NOT NULL,
    PRIMARY KEY (session, term)
) STRICT, WITHOUT ROWID;
";

/// The size of an inode's extended attributes, which counts in `usage`.
const V4: &str = "
ALTER TABLE node ADD COLUMN xattr_blocks INTEGER NOT NULL DEFAULT 0; -- counted in usage.blocks: of its rows in xattr
UPDATE node SET xattr_blocks = (SELECT sum(max(1, (length(value) + 4095) / 4096)) FROM xattr WHERE xattr.ino = node.ino)
    WHERE ino IN (SELECT ino FROM xattr);
UPDATE usage SET blocks = blocks + (SELECT coalesce(sum(xattr_blocks), 0) FROM node);
";

/// Quotas of directories, users and groups.
const V5: &str = "
ALTER TABLE node ADD COLUMN quota INTEGER NOT NULL DEFAULT 0; -- 2 * quota.number of its directory quota, + 1 if it counts in the quotas of its owner and group
CREATE TABLE quota (              -- a limit, and the usage that it limits
    kind        INTEGER NOT NULL, -- 0 directory, 1 user, 2 group
    number      INTEGER NOT NULL, -- of the directory quota; uid; gid
    inodes      INTEGER NOT NULL, -- used
    blocks      INTEGER NOT NULL, -- used, of 4096 bytes
    next        INTEGER NOT NULL, -- quota.number of the directory quota around it; 0 if there is none
    max_inodes  INTEGER NOT NULL, -- hard limits; 9223372036854775807 if there is none
    max_blocks  INTEGER NOT NULL,
    soft_inodes INTEGER NOT NULL, -- soft limits
    soft_blocks INTEGER NOT NULL,
    root        INTEGER NOT NULL, -- node.ino of the directory; 0 for a user or group
    state       INTEGER NOT NULL, -- 0 all inodes have it, 1 being given to them, 2 being taken from them
    PRIMARY KEY (kind, number)
) STRICT, WITHOUT ROWID;
";

/// Tables that were added to the steps of versions 1 and 3 when volumes of these versions already existed.
/// Volumes created before 2026-11-20 20:33 UTC, and volumes of version 3 created before 2026-11-23 06:23 UTC,
/// lack some of these tables. [`migrate`] creates the missing ones, empty.
const LATE_TABLES: [&str; 4] = ["shared", "lock", "lock_wait", "term"];

/// Every table except `usage`, whose single row is kept.
pub(crate) const TABLES: [&str; 16] = [
    "node",
    "edge",
    "slice",
    "xattr",
    "symlink",
    "acl",
    "setting",
    "counter",
    "session",
    "term",
    "orphan",
    "garbage",
    "shared",
    "lock",
    "lock_wait",
    "quota",
];

/// Migrates the database of `conn` to [`VERSION`], and creates it if it is empty and `create` is set.
///
/// # Errors
/// [`OpenError::Missing`] if the database is empty and `create` is not set, [`OpenError::NotLimenfs`] if
/// another program created it, [`OpenError::Newer`] if its version is above [`VERSION`].
pub(crate) fn prepare(conn: &mut Connection, path: &Path, create: bool) -> Result<(), OpenError> {
    migrate(conn, path, create, MIGRATIONS)
}

fn migrate(conn: &mut Connection, path: &Path, create: bool, steps: &[&str]) -> Result<(), OpenError> {
    let fail = |error| OpenError::new(path, error);
    // The write transaction starts before the first query, so that two processes that format concurrently do
    // it once.
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fail)?;
    let number = |sql: &str| tx.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(fail);
    let fresh = number("SELECT count(*) FROM sqlite_schema")? == 0;
    let found = number("PRAGMA user_version")?;
    let application_id = number("PRAGMA application_id")?;
    if fresh && application_id == 0 {
        if !create {
            return Err(OpenError::Missing(path.to_owned()));
        }
    } else if application_id != APPLICATION_ID {
        return Err(OpenError::NotLimenfs(path.to_owned()));
    }
    let known = steps.len() as i64;
    let todo = usize::try_from(found).ok().and_then(|found| steps.get(found..));
    let Some(todo) = todo else { return Err(OpenError::Newer { path: path.to_owned(), found, known }) };
    let done = &steps[..steps.len() - todo.len()];
    for statement in done.iter().flat_map(|step| late_tables(step)) {
        tx.execute_batch(&statement).map_err(fail)?;
    }
    if !todo.is_empty() {
        for step in todo {
            tx.execute_batch(step).map_err(fail)?;
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(fail)?;
        tx.pragma_update(None, "user_version", known).map_err(fail)?;
    }
    tx.commit().map_err(fail)
}

/// The statements that create each of the [`LATE_TABLES`] in the text of a step, unless the table exists.
fn late_tables(step: &str) -> impl Iterator<Item = String> {
    LATE_TABLES.iter().filter_map(move |table| {
        let (_, columns) = step.split_once(&format!("CREATE TABLE {table} "))?;
        // Comments contain semicolons.
        let (columns, rest) = columns.split_once("\n)")?;
        let (options, _) = rest.split_once(';')?;
        Some(format!("CREATE TABLE IF NOT EXISTS {table} {columns}\n){options}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_version(conn: &Connection) -> i64 {
        conn.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn pending_migrations_run_once() {
        let mut conn = Connection::open_in_memory().unwrap();
        let path = Path::new("/v.db");
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x)", "CREATE TABLE c (x)"];
        assert!(matches!(migrate(&mut conn, path, false, &steps), Err(OpenError::Missing(_))));
        for (upto, version) in [(1, 1), (3, 3), (3, 3)] {
            migrate(&mut conn, path, true, &steps[..upto]).unwrap();
            assert_eq!(user_version(&conn), version);
        }
        let newer = migrate(&mut conn, path, true, &steps[..2]).unwrap_err();
        assert!(matches!(newer, OpenError::Newer { found: 3, known: 2, .. }), "{newer}");
    }

    #[test]
    fn failed_migration_keeps_the_previous_version() {
        let mut conn = Connection::open_in_memory().unwrap();
        let path = Path::new("/v.db");
        migrate(&mut conn, path, true, &["CREATE TABLE a (x)"]).unwrap();
        migrate(&mut conn, path, true, &["", "CREATE TABLE b (x); nonsense"]).unwrap_err();
        assert_eq!(user_version(&conn), 1);
        assert!(!conn.table_exists(None, "b").unwrap());
    }

    #[test]
    fn extended_attributes_of_an_older_volume_are_counted() {
        let mut conn = Connection::open_in_memory().unwrap();
        let path = Path::new("/v.db");
        migrate(&mut conn, path, true, &MIGRATIONS[..3]).unwrap();
        conn.execute_batch(
            "INSERT INTO node VALUES (2, 8, 0, 0, 0, 0, 1, 0, 0, 0, 0, NULL, NULL, 0, 1), \
                                     (3, 8, 0, 0, 0, 0, 1, 0, 0, 0, 0, NULL, NULL, 0, 1); \
             INSERT INTO xattr VALUES (2, x'61', x''), (2, x'62', zeroblob(4097)); \
             UPDATE usage SET inodes = 2, blocks = 7;",
        )
        .unwrap();
        prepare(&mut conn, path, false).unwrap();
        let blocks = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(blocks("SELECT xattr_blocks FROM node WHERE ino = 2"), 3);
        assert_eq!(blocks("SELECT xattr_blocks FROM node WHERE ino = 3"), 0);
        assert_eq!(blocks("SELECT blocks FROM usage"), 10);
    }

    #[test]
    fn files_view_is_valid_and_tables_are_complete() {
        let mut conn = Connection::open_in_memory().unwrap();
        prepare(&mut conn, Path::new("/v.db"), true).unwrap();
        assert!(!conn.prepare("SELECT * FROM files").unwrap().exists([]).unwrap());
        let tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name <> 'usage'";
        assert_eq!(conn.query_row(tables, [], |r| r.get::<_, i64>(0)).unwrap(), TABLES.len() as i64);
    }
}
