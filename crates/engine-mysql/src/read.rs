//! One statement answers any number of record keys, so that all records are of one moment: at READ COMMITTED,
//! each statement has its own snapshot.
//!
//! The statement is a union of selects whose rows the crate `tables` describes. A row consists of its
//! kind, and of as many numbers and byte strings as a row of any kind has; each select fills those that it needs.
//! Record keys of one kind form one select, which returns no row twice.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;

use meta::{RecordKey, Seq, Snapshot};
use tables::{Found, Table, joined, kind, list};

use crate::connect::{Row, plain, reply_row};
use crate::error::Fault;
use crate::sql::{is, row};

const NUMBERS: usize = 17;
const STRINGS: usize = 5;

/// The columns and the source of the rows of one kind.
pub(crate) struct Source {
    pub(crate) kind: i16,
    pub(crate) numbers: Vec<String>,
    pub(crate) strings: Vec<String>,
    pub(crate) from: String,
}

impl Source {
    /// Rows `r` of a table; if `with_inodes`, joined with the inodes `n` that dirents refer to; if
    /// `with_acls`, with the texts of the inodes' ACLs.
    pub(crate) fn new(table: Table, rows: &str, with_inodes: bool, with_acls: bool) -> Self {
        let columns = |of: fn(&Table) -> &'static [&'static str]| {
            let inodes = of(&Table::NODE).iter().filter(|_| with_inodes).map(|column| format!("n.{column}"));
            of(&table).iter().map(|column| format!("r.{column}")).chain(inodes).collect::<Vec<_>>()
        };
        let (numbers, mut strings) = (columns(|table| table.numbers), columns(|table| table.strings));
        let (mut kind, mut from) = (table.kind, rows.to_owned());
        if with_inodes {
            kind = kind::DIRENT_WITH_INODE;
            from += " LEFT JOIN `@node` AS n ON n.ino = r.ino";
        }
        let inode = if with_inodes { "n" } else { "r" };
        for (name, id) in [("a", "access_acl"), ("d", "default_acl")].iter().filter(|_| with_acls) {
            strings.push(format!("{name}.text"));
            from += &format!(" LEFT JOIN `@acl` AS {name} ON {name}.id = {inode}.{id}");
        }
        Source { kind, numbers, strings, from }
    }

    /// The select without its condition; missing columns are NULL.
    fn select(&self) -> String {
        let padded = |columns: &[String], count| {
            list(columns.iter().map(String::as_str).chain(repeat("NULL")).take(count))
        };
        let (numbers, strings) = (padded(&self.numbers, NUMBERS), padded(&self.strings, STRINGS));
        format!("SELECT {}, {numbers}, {strings} FROM {}", self.kind, self.from)
    }
}

/// The statement that answers `wants`.
pub(crate) fn statement(wants: &[RecordKey]) -> String {
    let mut selects: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for want in wants {
        let (key, is_entry) = (tables::wanted(want), matches!(want, RecordKey::Entry(..)));
        let rows = format!("`@{}` AS r", key.table.name);
        let mut source =
            Source::new(key.table, &rows, is_entry, is_entry || matches!(want, RecordKey::Inode(_)));
        let row = row(&key).into_iter().map(|(column, value)| (format!("r.{column}"), value));
        let mut whose = is(&row.collect::<Vec<_>>(), "=");
        match want {
            RecordKey::Empty(ino) => {
                whose = format!("EXISTS(SELECT 1 FROM {} WHERE {whose})", source.from);
                let (numbers, strings) = (vec![ino.to_string()], Vec::new());
                source = Source { kind: kind::NOT_EMPTY, numbers, strings, from: "DUAL".to_owned() };
            }
            RecordKey::Slices(..) => source.numbers.push("r.seq".to_owned()),
            RecordKey::Usage => source.numbers = ["SUM(inodes)", "SUM(blocks)"].map(str::to_owned).into(),
            _ => {}
        }
        selects.entry(source.select()).or_default().insert(whose);
    }
    if selects.is_empty() {
        return "SELECT 0 FROM DUAL WHERE 0".to_owned();
    }
    let select = |(select, whose): (String, BTreeSet<String>)| {
        // With several conditions to choose an index for, a server may treat a full scan as cheap.
        let hint = if whose.len() > 1 { " AS r FORCE INDEX (PRIMARY)" } else { " AS r" };
        format!("{} WHERE {}", select.replacen(" AS r", hint, 1), joined(whose, " OR "))
    };
    joined(selects.into_iter().map(select), " UNION ALL ")
}

/// Builds the records of `wants`, in order, from the rows that [`statement`] returned.
pub(crate) fn snapshot(rows: &[Row], seq: Seq, wants: &[RecordKey]) -> Result<Snapshot, Fault> {
    let mut found = Found::default();
    for row in rows {
        let kind = i16::try_from(plain(row).number(0)?).unwrap_or(0);
        found.take(&reply_row(kind, row.get(1..).unwrap_or_default(), NUMBERS))?;
    }
    Ok(Snapshot { seq, records: found.answer(wants) })
}
