//! Reads records by their record keys.
//!
//! Every function here reads through one connection, inside the transaction that is open on it: a reader's
//! snapshot or the writer's batch. A reader that needs only one statement opens no transaction.

use std::sync::{LazyLock, OnceLock};

use host::HashSet;
use meta::{Inode, Record, RecordKey, Seq, Snapshot, Usage};
use rusqlite::{Connection, OptionalExtension, Result, params_from_iter};
use tables::{ReplyContent, RowSource, Table, joined, kind, list};
use types::{Ino, Name};

use crate::additions::TOGETHER;
use crate::number::{int, uint};
use crate::sql::{ByKind, Select, Statements, has, parameters};

/// Answers every record key, in order. `counted` is the usage if the stored row is out of date.
pub(crate) fn snapshot(
    conn: &Connection,
    seq: Seq,
    keys: &[RecordKey],
    counted: Option<Usage>,
) -> Result<Snapshot> {
    let mut records = Vec::with_capacity(keys.len());
    let together = Together::read(conn, keys)?;
    for key in keys {
        match (key, counted) {
            (RecordKey::Usage, Some(counted)) => records.push(Record::Usage(counted)),
            (RecordKey::Usage, None) => records.push(Record::Usage(usage(conn)?)),
            _ if together.keys.contains(key) => records.extend(together.found.answer([key])),
            _ => find(conn, key, &mut records)?,
        }
    }
    Ok(Snapshot { seq, records })
}

/// Records of those kinds of which one request may read many. One statement reads [`TOGETHER`] of them,
/// because SQLite spends more time on the beginning and the end of a statement than on a row.
#[derive(Default)]
struct Together<'k> {
    found: ReplyContent,
    /// The keys that `found` answers.
    keys: HashSet<&'k RecordKey>,
}

impl<'k> Together<'k> {
    fn read(conn: &Connection, keys: &'k [RecordKey]) -> Result<Self> {
        static SELECTS: ByKind<Select> = [const { OnceLock::new() }; _];
        let mut together = Together::default();
        if keys.len() < TOGETHER {
            return Ok(together);
        }
        for of in [kind::INODE, kind::SLICE, kind::XATTR, kind::SYMLINK] {
            let of_kind = keys.iter().filter(|key| tables::kind_of(key) == of);
            // A key may come several times.
            let new: Vec<&RecordKey> = of_kind.filter(|key| together.keys.insert(*key)).collect();
            let parts = new.chunks_exact(TOGETHER);
            // The last keys, if they are fewer, are read one by one.
            parts.remainder().iter().for_each(|key| _ = together.keys.remove(key));
            for part in parts {
                let select = SELECTS[of as usize].get_or_init(|| select_together(part[0]));
                let numbers = part.iter().flat_map(|key| tables::row_key(key).numbers).flatten();
                let parameters = params_from_iter(numbers.map(|number| number as i64));
                select.each(conn, parameters, |row| together.found.take(row))?;
            }
        }
        Ok(together)
    }
}

/// Selects the rows of [`TOGETHER`] keys of the kind of `key`. Such a key consists of numbers only.
fn select_together(key: &RecordKey) -> Select {
    let columns: Vec<&str> = tables::row_key(key).columns().collect();
    let places = format!("({})", list(columns.iter().map(|_| "?")));
    let keys = list([&places[..]; TOGETHER]);
    let is_equal = (1..).zip(columns).map(|(place, column)| format!("r.{column} = k.column{place}"));
    let mut source = RowSource::of_record(key);
    // The order of the tables in a CROSS JOIN is the order in which SQLite searches them.
    source.from = format!("(VALUES {keys}) AS k CROSS JOIN {}", source.from);
    Select::new(&source, &format!("WHERE {}", joined(is_equal, " AND ")))
}

/// Answers one record key.
pub(crate) fn records(conn: &Connection, key: &RecordKey) -> Result<Vec<Record>> {
    Ok(snapshot(conn, Seq(0), std::slice::from_ref(key), None)?.records)
}

/// Appends the records of one record key.
fn find(conn: &Connection, key: &RecordKey, records: &mut Vec<Record>) -> Result<()> {
    static SELECTS: ByKind<Select> = [const { OnceLock::new() }; _];
    let row_key = tables::row_key(key);
    let select = SELECTS[tables::kind_of(key) as usize].get_or_init(|| {
        let limit = if matches!(key, RecordKey::Empty(_)) { " LIMIT 1" } else { "" };
        Select::new(&RowSource::of_record(key), &format!("WHERE {}{limit}", has(&row_key)))
    });
    // Most reads are for inodes and dirents. `answer_row` answers these directly, without the maps of
    // `ReplyContent`.
    let mut found = None;
    let mut is_answered = false;
    select.each(conn, parameters(&row_key), |row| {
        is_answered = ReplyContent::answer_row(key, row, records)?;
        if is_answered { Ok(()) } else { found.get_or_insert_with(ReplyContent::default).take(row) }
    })?;
    if !is_answered {
        records.extend(found.unwrap_or_default().answer([key]));
    }
    Ok(())
}

/// An inode, without the texts of its ACLs.
pub(crate) fn inode(statements: &mut Statements<'_>, ino: Ino) -> Result<Option<Inode>> {
    static SELECT: LazyLock<Select> = LazyLock::new(|| {
        let columns = |names: &[&str]| names.iter().map(|name| format!("r.{name}")).collect();
        let (kind, from) = (Table::INODE.kind, format!("{} AS r", Table::INODE.name));
        let (numbers, strings) = (columns(Table::INODE.numbers), columns(Table::INODE.strings));
        Select::new(&RowSource { kind, numbers, strings, from }, "WHERE r.ino = ?1")
    });
    let mut inode = None;
    SELECT.run(statements.get(SELECT.text())?, [int(ino.0)], |row| {
        inode = Some(row.inode()?);
        Ok(())
    })?;
    Ok(inode)
}

/// The inode that a directory entry refers to, if the entry exists.
pub(crate) fn dirent(statements: &mut Statements<'_>, parent: Ino, name: &Name) -> Result<Option<Ino>> {
    let statement = statements.get("SELECT ino FROM edge WHERE parent = ?1 AND name = ?2")?;
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
