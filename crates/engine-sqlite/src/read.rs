//! Records out of rows.
//!
//! Every function here reads through one connection, inside whatever transaction is open on it: a reader's snapshot, or
//! the writer's batch.

use std::sync::Arc;

use meta::{Counter, Edge, Facts, Node, Process, Record, Seq, Session, Settings, Usage, Want, Xattrs};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, Error, OptionalExtension, Result, Row};
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, SliceSource, Time, XattrName,
};

use crate::locks;

/// The columns of a node from `n`, in the order [`node_at`] reads them.
macro_rules! node_columns {
    () => {
        "n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime, n.mtime, n.ctime, \
         n.access_acl, n.default_acl, n.parent, n.access_rev"
    };
}
pub(crate) use node_columns;

/// The columns of a session, in the order [`session_at`] reads them.
macro_rules! session_columns {
    () => {
        "id, host, pid, mountpoint, since, heartbeat, boot_id, pid_namespace, start_time, version, first_slice"
    };
}
pub(crate) use session_columns;

/// Answers every want, in order; with `counted` about the usage where it is known better than its row says.
pub(crate) fn facts(conn: &Connection, seq: Seq, wants: &[Want], counted: Option<Usage>) -> Result<Facts> {
    let mut records = Vec::with_capacity(wants.len() * 2);
    for want in wants {
        match (want, counted) {
            (Want::Usage, Some(counted)) => records.push(Record::Usage(counted)),
            _ => answer(conn, want, &mut records)?,
        }
    }
    Ok(Facts { seq, records })
}

fn answer(conn: &Connection, want: &Want, records: &mut Vec<Record>) -> Result<()> {
    match want {
        Want::Node(ino) => push_node(conn, *ino, node(conn, *ino)?, records)?,
        Want::Entry(parent, name) => match entry(conn, *parent, name)? {
            None => records.push(Record::Edge(*parent, name.clone(), None)),
            Some((edge, node)) => {
                records.push(Record::Edge(*parent, name.clone(), Some(edge)));
                push_node(conn, edge.ino, node, records)?;
            }
        },
        Want::Empty(ino) => records.push(Record::Empty(*ino, is_empty(conn, *ino)?)),
        Want::Xattrs(ino) => records.push(Record::Xattrs(*ino, Arc::new(xattrs(conn, *ino)?))),
        Want::Symlink(ino) => records.push(Record::Symlink(*ino, symlink(conn, *ino)?)),
        Want::Slices(ino, chunk) => {
            records.push(Record::Slices(*ino, *chunk, slices(conn, *ino, *chunk)?.into()));
        }
        Want::Acl(id) => records.push(Record::Acl(*id, acl(conn, *id)?)),
        Want::Settings => records.push(Record::Settings(Arc::new(settings(conn)?))),
        Want::Counter(which) => records.push(Record::Counter(*which, counter(conn, *which)?)),
        Want::Locks(ino) => records.push(Record::Locks(*ino, locks::of(conn, *ino)?.into())),
        Want::Waits => records.push(Record::Waits(locks::waits(conn)?.into())),
        Want::Usage => records.push(Record::Usage(usage(conn)?)),
        Want::Session(id) => records.push(Record::Session(*id, session(conn, *id)?)),
    }
    Ok(())
}

/// A node and the ACLs it carries.
pub(crate) fn push_node(
    conn: &Connection,
    ino: Ino,
    node: Option<Node>,
    records: &mut Vec<Record>,
) -> Result<()> {
    records.push(Record::Node(ino, node));
    for id in node.iter().flat_map(Node::acls) {
        records.push(Record::Acl(id, acl(conn, id)?));
    }
    Ok(())
}

pub(crate) fn node(conn: &Connection, ino: Ino) -> Result<Option<Node>> {
    const SQL: &str = concat!("SELECT ", node_columns!(), " FROM node n WHERE n.ino = ?1");
    conn.prepare_cached(SQL)?.query_row([int(ino.0)], |row| node_at(row, 0)).optional()
}

pub(crate) fn edge(conn: &Connection, parent: Ino, name: &Name) -> Result<Option<Edge>> {
    const SQL: &str = "SELECT ino, kind FROM edge WHERE parent = ?1 AND name = ?2";
    let mut statement = conn.prepare_cached(SQL)?;
    statement.query_row((int(parent.0), name.as_bytes()), |row| edge_at(row, 0)).optional()
}

fn session(conn: &Connection, id: SessionId) -> Result<Option<Session>> {
    const SQL: &str = concat!("SELECT ", session_columns!(), " FROM session WHERE id = ?1");
    conn.prepare_cached(SQL)?.query_row([int(id.0)], session_at).optional()
}

/// A session out of a row of [`session_columns`].
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

/// The heartbeat of a session, if its record is there.
pub(crate) fn heartbeat(conn: &Connection, id: SessionId) -> Result<Option<Time>> {
    const SQL: &str = "SELECT heartbeat FROM session WHERE id = ?1";
    let found = conn.prepare_cached(SQL)?.query_row([int(id.0)], |row| row.get(0)).optional()?;
    Ok(found.map(Time::from_nanos))
}

/// A directory entry and, if it is there, the inode it refers to.
pub(crate) fn entry(conn: &Connection, parent: Ino, name: &Name) -> Result<Option<(Edge, Option<Node>)>> {
    const SQL: &str = concat!(
        "SELECT e.ino, e.kind, ",
        node_columns!(),
        " FROM edge e LEFT JOIN node n ON n.ino = e.ino WHERE e.parent = ?1 AND e.name = ?2"
    );
    let mut statement = conn.prepare_cached(SQL)?;
    let found = statement
        .query_row((int(parent.0), name.as_bytes()), |row| Ok((edge_at(row, 0)?, node_joined(row, 2)?)));
    found.optional()
}

pub(crate) fn is_empty(conn: &Connection, ino: Ino) -> Result<bool> {
    let mut statement = conn.prepare_cached("SELECT 1 FROM edge WHERE parent = ?1 LIMIT 1")?;
    Ok(!statement.exists([int(ino.0)])?)
}

pub(crate) fn has_xattr(conn: &Connection, ino: Ino, name: &XattrName) -> Result<bool> {
    let mut statement = conn.prepare_cached("SELECT 1 FROM xattr WHERE ino = ?1 AND name = ?2")?;
    statement.exists((int(ino.0), name.as_bytes()))
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

/// By the row, or where that is behind by all nodes.
pub(crate) fn usage(conn: &Connection) -> Result<Usage> {
    const SQL: &str = "SELECT iif(exact, inodes, (SELECT count(*) FROM node)), \
                       iif(exact, blocks, (SELECT coalesce(sum((size + 4095) / 4096), 0) FROM node WHERE kind = 8)) \
                       FROM usage";
    let mut statement = conn.prepare_cached(SQL)?;
    statement.query_row([], |row| Ok(Usage { inodes: uint(row.get(0)?), blocks: uint(row.get(1)?) }))
}

pub(crate) fn is_usage_exact(conn: &Connection) -> Result<bool> {
    conn.prepare_cached("SELECT exact FROM usage")?.query_row([], |row| row.get(0))
}

pub(crate) fn edge_at(row: &Row<'_>, at: usize) -> Result<Edge> {
    Ok(Edge { ino: Ino(uint(row.get(at)?)), kind: kind_at(row, at + 1)? })
}

/// A node whose columns begin at `at`.
pub(crate) fn node_at(row: &Row<'_>, at: usize) -> Result<Node> {
    Ok(Node {
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
    })
}

/// The node of an outer join, whose columns are all NULL where there is none.
pub(crate) fn node_joined(row: &Row<'_>, at: usize) -> Result<Option<Node>> {
    if row.get_ref(at)? == rusqlite::types::ValueRef::Null { Ok(None) } else { node_at(row, at).map(Some) }
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

/// A value in a column that limenfs never writes there.
fn malformed(at: usize, kind: Type, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::FromSqlConversionFailure(at, kind, Box::new(error))
}

/// A number as SQLite stores it, and [`uint`] back. Those above `i64::MAX`, which limenfs never makes but a forged
/// request may ask for, turn negative and come back unchanged.
pub(crate) fn int(n: u64) -> i64 {
    n as i64
}

pub(crate) fn uint(n: i64) -> u64 {
    n as u64
}
