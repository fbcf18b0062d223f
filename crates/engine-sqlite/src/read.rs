//! Decodes rows into records.
//!
//! Every function here reads through one connection, inside the transaction that is open on it: a reader's
//! snapshot or the writer's batch.

use std::sync::Arc;

use meta::{
    Counter, Dirent, Inode, Process, Record, RecordKey, Seq, Session, Settings, Snapshot, Usage, Xattrs,
};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, Error, OptionalExtension, Result, Row};
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, SliceSource, Time, XattrName,
};

use crate::locks;
use crate::number::{int, uint};

/// The columns of an inode from table alias `n`, in the order in which [`inode_at`] reads them.
macro_rules! inode_columns {
    () => {
        "n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime, n.mtime, n.ctime, \
         n.access_acl, n.default_acl, n.parent, n.access_rev, n.xattr_blocks"
    };
}
pub(crate) use inode_columns;

/// The columns of a session, in the order in which [`session_at`] reads them.
macro_rules! session_columns {
    () => {
        "id, host, pid, mountpoint, since, heartbeat, boot_id, pid_namespace, start_time, version, first_slice"
    };
}
pub(crate) use session_columns;

/// Answers every record key, in order. `counted` is the usage if the stored row is out of date.
pub(crate) fn snapshot(
    conn: &Connection,
    seq: Seq,
    wants: &[RecordKey],
    counted: Option<Usage>,
) -> Result<Snapshot> {
    let mut records = Vec::with_capacity(wants.len() * 2);
    for want in wants {
        match (want, counted) {
            (RecordKey::Usage, Some(counted)) => records.push(Record::Usage(counted)),
            _ => answer(conn, want, &mut records)?,
        }
    }
    Ok(Snapshot { seq, records })
}

fn answer(conn: &Connection, want: &RecordKey, records: &mut Vec<Record>) -> Result<()> {
    match want {
        RecordKey::Inode(ino) => push_inode(conn, *ino, inode(conn, *ino)?, records)?,
        RecordKey::Entry(parent, name) => match entry(conn, *parent, name)? {
            None => records.push(Record::Dirent(*parent, name.clone(), None)),
            Some((dirent, inode)) => {
                records.push(Record::Dirent(*parent, name.clone(), Some(dirent)));
                push_inode(conn, dirent.ino, inode, records)?;
            }
        },
        RecordKey::Empty(ino) => records.push(Record::Empty(*ino, is_empty(conn, *ino)?)),
        RecordKey::Xattrs(ino) => records.push(Record::Xattrs(*ino, Arc::new(xattrs(conn, *ino)?))),
        RecordKey::Symlink(ino) => records.push(Record::Symlink(*ino, symlink(conn, *ino)?)),
        RecordKey::Slices(ino, chunk) => {
            records.push(Record::Slices(*ino, *chunk, slices(conn, *ino, *chunk)?.into()));
        }
        RecordKey::Acl(id) => records.push(Record::Acl(*id, acl(conn, *id)?)),
        RecordKey::Settings => records.push(Record::Settings(Arc::new(settings(conn)?))),
        RecordKey::Counter(which) => records.push(Record::Counter(*which, counter(conn, *which)?)),
        RecordKey::Locks(ino) => records.push(Record::Locks(*ino, locks::of(conn, *ino)?.into())),
        RecordKey::Waits => records.push(Record::Waits(locks::waits(conn)?.into())),
        RecordKey::Usage => records.push(Record::Usage(usage(conn)?)),
        RecordKey::Session(id) => records.push(Record::Session(*id, session(conn, *id)?)),
    }
    Ok(())
}

/// Adds an inode and its ACLs.
pub(crate) fn push_inode(
    conn: &Connection,
    ino: Ino,
    inode: Option<Inode>,
    records: &mut Vec<Record>,
) -> Result<()> {
    records.push(Record::Inode(ino, inode));
    for id in inode.iter().flat_map(Inode::acls) {
        records.push(Record::Acl(id, acl(conn, id)?));
    }
    Ok(())
}

pub(crate) fn inode(conn: &Connection, ino: Ino) -> Result<Option<Inode>> {
    const SQL: &str = concat!("SELECT ", inode_columns!(), " FROM node n WHERE n.ino = ?1");
    conn.prepare_cached(SQL)?.query_row([int(ino.0)], |row| inode_at(row, 0)).optional()
}

pub(crate) fn dirent(conn: &Connection, parent: Ino, name: &Name) -> Result<Option<Dirent>> {
    const SQL: &str = "SELECT ino, kind FROM edge WHERE parent = ?1 AND name = ?2";
    let mut statement = conn.prepare_cached(SQL)?;
    statement.query_row((int(parent.0), name.as_bytes()), |row| dirent_at(row, 0)).optional()
}

fn session(conn: &Connection, id: SessionId) -> Result<Option<Session>> {
    const SQL: &str = concat!("SELECT ", session_columns!(), " FROM session WHERE id = ?1");
    conn.prepare_cached(SQL)?.query_row([int(id.0)], session_at).optional()
}

/// Decodes a session from a row of [`session_columns`].
pub(crate) fn session_at(row: &Row<'_>) -> Result<Session> {
    Ok(Session {
        id: SessionId(uint(row.get(0)?)),
        host: row.get(1)?,
        pid: row.get(2)?,
        mountpoint: row.get(3)?,
        since: Time::from_nanos(row.get(4)?),
        heartbeat: Time::from_nanos(row.get(5)?),
        process: Process {
            boot_id: row.get(6)?,
            pid_namespace: uint(row.get(7)?),
            start_time: uint(row.get(8)?),
        },
        version: row.get(9)?,
        first_slice: SliceId(uint(row.get(10)?)),
    })
}

/// The heartbeat of a session, if the session exists.
pub(crate) fn heartbeat(conn: &Connection, id: SessionId) -> Result<Option<Time>> {
    const SQL: &str = "SELECT heartbeat FROM session WHERE id = ?1";
    let found = conn.prepare_cached(SQL)?.query_row([int(id.0)], |row| row.get(0)).optional()?;
    Ok(found.map(Time::from_nanos))
}

/// A directory entry and, if it exists, the inode to which it refers.
pub(crate) fn entry(conn: &Connection, parent: Ino, name: &Name) -> Result<Option<(Dirent, Option<Inode>)>> {
    const SQL: &str = concat!(
        "SELECT e.ino, e.kind, ",
        inode_columns!(),
        " FROM edge e LEFT JOIN node n ON n.ino = e.ino WHERE e.parent = ?1 AND e.name = ?2"
    );
    let mut statement = conn.prepare_cached(SQL)?;
    let params = (int(parent.0), name.as_bytes());
    statement.query_row(params, |row| Ok((dirent_at(row, 0)?, inode_joined(row, 2)?))).optional()
}

pub(crate) fn is_empty(conn: &Connection, ino: Ino) -> Result<bool> {
    Ok(!conn.prepare_cached("SELECT 1 FROM edge WHERE parent = ?1 LIMIT 1")?.exists([int(ino.0)])?)
}

pub(crate) fn xattr_blocks(conn: &Connection, ino: Ino, name: &XattrName) -> Result<u16> {
    let mut statement =
        conn.prepare_cached("SELECT length(value) FROM xattr WHERE ino = ?1 AND name = ?2")?;
    let len = statement.query_row((int(ino.0), name.as_bytes()), |row| row.get(0)).optional()?;
    Ok(len.map_or(0, |len| meta::xattr_blocks(uint(len) as usize)))
}

fn xattrs(conn: &Connection, ino: Ino) -> Result<Xattrs> {
    let mut statement = conn.prepare_cached("SELECT name, value FROM xattr WHERE ino = ?1 ORDER BY name")?;
    let rows = statement.query_map([int(ino.0)], |row| {
        let name = XattrName::new(row.get_ref(0)?.as_blob()?).map_err(|e| malformed(0, Type::Blob, e))?;
        Ok((name, Arc::from(row.get_ref(1)?.as_blob()?)))
    })?;
    rows.collect()
}

fn symlink(conn: &Connection, ino: Ino) -> Result<Option<Arc<[u8]>>> {
    let mut statement = conn.prepare_cached("SELECT target FROM symlink WHERE ino = ?1")?;
    statement.query_row([int(ino.0)], |row| Ok(Arc::from(row.get_ref(0)?.as_blob()?))).optional()
}

pub(crate) fn slices(conn: &Connection, ino: Ino, chunk: ChunkIndex) -> Result<Vec<Slice>> {
    const SQL: &str = "SELECT pos, len, data, slice, slice_off, slice_size FROM slice \
                       WHERE ino = ?1 AND chunk = ?2 ORDER BY seq";
    let mut statement = conn.prepare_cached(SQL)?;
    let rows = statement.query_map((int(ino.0), int(chunk.0)), |row| {
        let source = match (row.get_ref(2)?.as_blob_or_null()?, row.get::<_, Option<i64>>(3)?) {
            (Some(data), _) => SliceSource::Inline(data.into()),
            (None, Some(id)) => {
                SliceSource::Blocks { id: SliceId(uint(id)), offset: row.get(4)?, size: row.get(5)? }
            }
            (None, None) => SliceSource::Hole,
        };
        Ok(Slice { pos: row.get(0)?, len: row.get(1)?, source })
    })?;
    rows.collect()
}

pub(crate) fn acl(conn: &Connection, id: AclId) -> Result<Option<Arc<str>>> {
    let mut statement = conn.prepare_cached("SELECT text FROM acl WHERE id = ?1")?;
    statement.query_row([id.to_bytes()], |row| Ok(Arc::from(row.get_ref(0)?.as_str()?))).optional()
}

fn settings(conn: &Connection) -> Result<Settings> {
    let mut statement = conn.prepare_cached("SELECT name, value FROM setting ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

pub(crate) fn setting(conn: &Connection, name: &str) -> Result<Option<String>> {
    let mut statement = conn.prepare_cached("SELECT value FROM setting WHERE name = ?1")?;
    statement.query_row([name], |row| row.get(0)).optional()
}

pub(crate) fn counter(conn: &Connection, which: Counter) -> Result<u64> {
    let mut statement = conn.prepare_cached("SELECT value FROM counter WHERE name = ?1")?;
    let value = statement.query_row([which.name()], |row| row.get(0)).optional()?;
    Ok(value.map_or(0, uint))
}

/// The usage from its row, or counted over all inodes if the row is inexact.
pub(crate) fn usage(conn: &Connection) -> Result<Usage> {
    const SQL: &str = "SELECT iif(exact, inodes, (SELECT count(*) FROM node)), iif(exact, blocks, \
                       (SELECT coalesce(sum(xattr_blocks + iif(kind = 8, (size + 4095) / 4096, 0)), 0) FROM node)) \
                       FROM usage";
    let mut statement = conn.prepare_cached(SQL)?;
    statement.query_row([], |row| Ok(Usage { inodes: uint(row.get(0)?), blocks: uint(row.get(1)?) }))
}

pub(crate) fn is_usage_exact(conn: &Connection) -> Result<bool> {
    conn.prepare_cached("SELECT exact FROM usage")?.query_row([], |row| row.get(0))
}

pub(crate) fn dirent_at(row: &Row<'_>, at: usize) -> Result<Dirent> {
    Ok(Dirent { ino: Ino(uint(row.get(at)?)), kind: kind_at(row, at + 1)? })
}

/// An inode whose columns begin at `at`.
pub(crate) fn inode_at(row: &Row<'_>, at: usize) -> Result<Inode> {
    Ok(Inode {
        ino: Ino(uint(row.get(at)?)),
        kind: kind_at(row, at + 1)?,
        mode: Mode::new(row.get(at + 2)?),
        uid: row.get(at + 3)?,
        gid: row.get(at + 4)?,
        rdev: row.get(at + 5)?,
        nlink: row.get(at + 6)?,
        size: uint(row.get(at + 7)?),
        atime: Time::from_nanos(row.get(at + 8)?),
        mtime: Time::from_nanos(row.get(at + 9)?),
        ctime: Time::from_nanos(row.get(at + 10)?),
        access_acl: acl_id_at(row, at + 11)?,
        default_acl: acl_id_at(row, at + 12)?,
        parent: Ino(uint(row.get(at + 13)?)),
        access_rev: uint(row.get(at + 14)?),
        xattr_blocks: row.get(at + 15)?,
    })
}

/// The inode from an outer join; `None` if its columns are NULL.
pub(crate) fn inode_joined(row: &Row<'_>, at: usize) -> Result<Option<Inode>> {
    if row.get_ref(at)? == rusqlite::types::ValueRef::Null { Ok(None) } else { inode_at(row, at).map(Some) }
}

pub(crate) fn name_at(row: &Row<'_>, at: usize) -> Result<Name> {
    Name::new(row.get_ref(at)?.as_blob()?).map_err(|e| malformed(at, Type::Blob, e))
}

fn acl_id_at(row: &Row<'_>, at: usize) -> Result<AclId> {
    match row.get_ref(at)?.as_blob_or_null()? {
        None => Ok(AclId::NONE),
        Some(id) => Ok(AclId::from_bytes(id.try_into().map_err(|e| malformed(at, Type::Blob, e))?)),
    }
}

fn kind_at(row: &Row<'_>, at: usize) -> Result<FileType> {
    let dtype: u8 = row.get(at)?;
    let kind = FileType::from_ifmt(u32::from(dtype) << 12);
    kind.ok_or_else(|| malformed(at, Type::Integer, FromSqlError::OutOfRange(dtype.into())))
}

/// The error for a column value that limenfs never writes.
fn malformed(at: usize, kind: Type, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::FromSqlConversionFailure(at, kind, Box::new(error))
}
