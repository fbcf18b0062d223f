//! One statement answers any number of record keys, so that all records are of one moment: at READ COMMITTED,
//! each statement has its own snapshot.
//!
//! The statement is a union of selects whose rows the crate `tables` describes. A row consists of its kind,
//! and of as many numbers and byte strings as a row of any kind has; each select fills those that it needs.
//! Record keys of one kind form one select, which returns no row twice.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;

use meta::{RecordKey, Seq, Snapshot};
use tables::{ReplyContent, RowSource, joined, list};

use crate::connect::{Row, plain, reply_row};
use crate::error::Failure;
use crate::sql::{is, row};

const NUMBERS: usize = 18;
const STRINGS: usize = 5;

/// The select without its condition; missing columns are NULL.
fn select(source: &RowSource) -> String {
    let padded = |columns: &[String], count| {
        list(columns.iter().map(String::as_str).chain(repeat("NULL")).take(count))
    };
    let (numbers, strings) = (padded(&source.numbers, NUMBERS), padded(&source.strings, STRINGS));
    format!("SELECT {}, {numbers}, {strings} FROM {}", source.kind, source.from)
}

/// The statement that answers `keys`.
pub(crate) fn statement(keys: &[RecordKey]) -> String {
    let mut selects: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for key in keys {
        let (row_key, mut source) = (tables::row_key(key), RowSource::of_record(key));
        let row = row(&row_key).into_iter().map(|(column, value)| (format!("r.{column}"), value));
        let mut condition = is(&row.collect::<Vec<_>>(), "=");
        if let RecordKey::Empty(ino) = key {
            condition = format!("EXISTS(SELECT 1 FROM {} WHERE {condition})", source.from);
            (source.numbers, source.from) = (vec![ino.to_string()], "DUAL".to_owned());
        }
        selects.entry(select(&source)).or_default().insert(condition);
    }
    if selects.is_empty() {
        return "SELECT 0 FROM DUAL WHERE 0".to_owned();
    }
    let each = |(select, conditions): (String, BTreeSet<String>)| {
        // If there are several conditions, a server may prefer a full scan to the index.
        let hint = if conditions.len() > 1 { " AS r FORCE INDEX (PRIMARY)" } else { " AS r" };
        format!("{} WHERE {}", select.replacen(" AS r", hint, 1), joined(conditions, " OR "))
    };
    joined(selects.into_iter().map(each), " UNION ALL ")
}

/// Builds the records of `keys`, in order, from the rows that [`statement`] returned.
pub(crate) fn snapshot(rows: &[Row], seq: Seq, keys: &[RecordKey]) -> Result<Snapshot, Failure> {
    let reply = |row| {
        let kind = i16::try_from(plain(row).number(0)?).unwrap_or(0);
        Ok::<_, Failure>(reply_row(kind, row.get(1..).unwrap_or_default(), NUMBERS))
    };
    Ok(Snapshot { seq, records: ReplyContent::in_rows(rows.iter().map(reply), keys)? })
}
