//! One statement that answers any number of wants, so that all records are of one moment: each statement has its own
//! snapshot at READ COMMITTED.
//!
//! It is a union of selects whose rows are facts (crate `tables`): a number that says what they are about, and as many
//! numbers and strings of bytes as any fact has, of which each select fills those that it needs. Wants of one kind are one
//! select, in which no row comes twice.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Facts, Seq, Want};
use tables::{Found, Table};

use crate::error::Fault;
use crate::rows::{Row, fact, plain};
use crate::sql::{bytes, is, joined, list, row};

const NUMBERS: usize = 16;
const STRINGS: usize = 5;

/// What to select from where, for a fact about this.
pub(crate) struct Source {
    pub(crate) about: i16,
    pub(crate) numbers: Vec<String>,
    pub(crate) strings: Vec<String>,
    pub(crate) from: String,
}

impl Source {
    fn new(about: i16, numbers: &[&str], from: impl Into<String>) -> Self {
        let numbers = numbers.iter().map(|&column| column.to_owned()).collect();
        Source { about, numbers, strings: Vec::new(), from: from.into() }
    }

    /// Rows `r` of a table.
    pub(crate) fn table(table: &Table) -> Self {
        let from = format!("`@{}` AS r FORCE INDEX (PRIMARY)", table.name);
        let mut source = Source::new(table.fact, &[], from);
        source.add("r", table);
        source
    }

    /// Entries `r`, each with its inode.
    pub(crate) fn entries() -> Self {
        let mut source = Source { about: 17, ..Source::table(&Table::EDGE) };
        source.add("n", &Table::NODE);
        source.from += " LEFT JOIN `@node` AS n ON n.ino = r.ino";
        source
    }

    fn add(&mut self, name: &str, table: &Table) {
        let columns =
            |columns: &[&str]| columns.iter().map(|column| format!("{name}.{column}")).collect::<Vec<_>>();
        self.numbers.extend(columns(table.numbers));
        self.strings.extend(columns(table.strings));
    }

    /// With the texts of the ACLs of the inode, which has this name.
    pub(crate) fn with_acls(mut self, node: &str) -> Self {
        for (name, id) in [("a", "access_acl"), ("d", "default_acl")] {
            self.strings.push(format!("{name}.text"));
            self.from += &format!(" LEFT JOIN `@acl` AS {name} ON {name}.id = {node}.{id}");
        }
        self
    }

    /// The select of all of it; columns that it lacks are NULL.
    fn select(&self) -> String {
        let padded = |columns: &[String], count| {
            list((0..count).map(|at| columns.get(at).map_or("NULL", String::as_str).to_owned()))
        };
        let (numbers, strings) = (padded(&self.numbers, NUMBERS), padded(&self.strings, STRINGS));
        format!("SELECT {}, {numbers}, {strings} FROM {}", self.about, self.from)
    }
}

/// The statement for `wants`.
pub(crate) fn statement(wants: &[Want]) -> String {
    let mut selects: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for want in wants {
        let key = tables::wanted(want);
        let whose = || is(&key.as_ref().map(row).unwrap_or_default(), "=");
        let (source, whose) = match (want, &key) {
            (Want::Entry(parent, name), _) => {
                let whose = format!("r.parent = {parent} AND r.name = {}", bytes(name.as_bytes()));
                (Source::entries().with_acls("n"), whose)
            }
            (Want::Empty(ino), _) => {
                let exists = format!("EXISTS(SELECT 1 FROM `@edge` WHERE {})", whose());
                (Source::new(3, &[&ino.to_string()], "DUAL"), exists)
            }
            (Want::Node(_), _) => (Source::table(&Table::NODE).with_acls("r"), whose()),
            (Want::Slices(..), _) => {
                let mut source = Source::table(&Table::SLICE);
                source.numbers.push("r.seq".to_owned());
                (source, whose())
            }
            (_, Some(key)) => (Source::table(&key.table), whose()),
            (_, None) => (Source::new(10, &["SUM(inodes)", "SUM(blocks)"], "`@usage`"), whose()),
        };
        selects.entry(source.select()).or_default().insert(whose);
    }
    if selects.is_empty() {
        return "SELECT 0 FROM DUAL WHERE 0".to_owned();
    }
    let select = |(select, whose)| format!("{select} WHERE {}", joined::<String>(whose, " OR "));
    joined(selects.into_iter().map(select), " UNION ALL ")
}

/// What the rows that came back for [`statement`] say to each want, in order.
pub(crate) fn facts(rows: &[Row], seq: Seq, wants: &[Want]) -> Result<Facts, Fault> {
    let mut found = Found::default();
    for row in rows {
        let about = i16::try_from(plain(row).number(0)?).unwrap_or(0);
        found.take(&fact(about, row.get(1..).unwrap_or_default(), NUMBERS))?;
    }
    Ok(Facts { seq, records: found.answer(wants) })
}
