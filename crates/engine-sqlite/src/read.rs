//! Reads the records of record keys.
//!
//! Every function here reads through one connection, inside the transaction that is open on it: a reader's
//! snapshot or the writer's batch.

use std::sync::OnceLock;

use meta::{Record, RecordKey, Seq, Snapshot, Usage};
use rusqlite::{Connection, OptionalExtension, Result};
use tables::{Found, Source};
use types::{Ino, Name};

use crate::number::{int, uint};
use crate::sql::{ByKind, Select, has, values};

/// Answers every record key, in order. `counted` is the usage if the stored row is out of date.
pub(crate) fn snapshot(
    conn: &Connection,
    seq: Seq,
    wants: &[RecordKey],
    counted: Option<Usage>,
) -> Result<Snapshot> {
    let mut found = Found::default();
    for (nth, want) in wants.iter().enumerate() {
        match (want, counted) {
            (RecordKey::Usage, Some(counted)) => found.usage = counted,
            (RecordKey::Usage, None) => found.usage = usage(conn)?,
            // The rows of a record key that occurs twice must be taken only once.
            _ if wants[..nth].contains(want) => {}
            _ => find(conn, want, &mut found)?,
        }
    }
    Ok(Snapshot { seq, records: found.answer(wants) })
}

/// Answers one record key.
pub(crate) fn records(conn: &Connection, want: &RecordKey) -> Result<Vec<Record>> {
    Ok(snapshot(conn, Seq(0), std::slice::from_ref(want), None)?.records)
}

fn find(conn: &Connection, want: &RecordKey, found: &mut Found) -> Result<()> {
    static SELECTS: ByKind<Select> = [const { OnceLock::new() }; _];
    let key = tables::wanted(want);
    let select = SELECTS[tables::kind_of(want) as usize].get_or_init(|| {
        let limit = if matches!(want, RecordKey::Empty(_)) { " LIMIT 1" } else { "" };
        Select::new(&Source::of_record(want), &format!("WHERE {}{limit}", has(&key)))
    });
    select.each(conn, values(&key), |row| found.take(row))
}

/// The inode that a directory entry refers to, if the entry exists.
pub(crate) fn dirent(conn: &Connection, parent: Ino, name: &Name) -> Result<Option<Ino>> {
    let mut statement = conn.prepare_cached("SELECT ino FROM edge WHERE parent = ?1 AND name = ?2")?;
    statement.query_row((int(parent.0), name.as_bytes()), |row| Ok(Ino(uint(row.get(0)?)))).optional()
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
