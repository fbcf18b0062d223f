//! One statement that answers any number of wants, so that all records are of one moment: each statement has its own
//! snapshot at READ COMMITTED.
//!
//! It is a union of selects whose rows are facts (crate `tables`): a number that says what they are about, and as many
//! numbers and strings of bytes as any fact has, of which each select fills those that it needs. Wants of one kind are one
//! select, in which no row comes twice.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;

use meta::{Facts, Seq, Want};
use tables::{Found, Table, joined, list};

use crate::connect::{Row, fact, plain};
use crate::error::Fault;
use crate::sql::{is, row};

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
    /// Rows `r` of a table, if asked for with the inodes `n` to which entries refer, and with the texts of inodes' ACLs.
    pub(crate) fn new(table: Table, rows: &str, with_nodes: bool, with_acls: bool) -> Self {
        let columns = |of: fn(&Table) -> &'static [&'static str]| {
            let nodes = of(&Table::NODE).iter().filter(|_| with_nodes).map(|column| format!("n.{column}"));
            of(&table).iter().map(|column| format!("r.{column}")).chain(nodes).collect::<Vec<_>>()
        };
        let (numbers, mut strings) = (columns(|table| table.numbers), columns(|table| table.strings));
        let (mut about, mut from) = (table.fact, rows.to_owned());
        if with_nodes {
            about = 17;
            from += " LEFT JOIN `@node` AS n ON n.ino = r.ino";
        }
        let node = if with_nodes { "n" } else { "r" };
        for (name, id) in [("a", "access_acl"), ("d", "default_acl")].iter().filter(|_| with_acls) {
            strings.push(format!("{name}.text"));
            from += &format!(" LEFT JOIN `@acl` AS {name} ON {name}.id = {node}.{id}");
        }
        Source { about, numbers, strings, from }
    }

    /// The select of all of it; columns that it lacks are NULL.
    fn select(&self) -> String {
        let padded = |columns: &[String], count| {
            list(columns.iter().map(String::as_str).chain(repeat("NULL")).take(count))
        };
        let (numbers, strings) = (padded(&self.numbers, NUMBERS), padded(&self.strings, STRINGS));
        format!("SELECT {}, {numbers}, {strings} FROM {}", self.about, self.from)
    }
}

/// The statement for `wants`.
pub(crate) fn statement(wants: &[Want]) -> String {
    let mut selects: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for want in wants {
        let (key, is_entry) = (tables::wanted(want), matches!(want, Want::Entry(..)));
        let rows = format!("`@{}` AS r", key.table.name);
        let mut source = Source::new(key.table, &rows, is_entry, is_entry || matches!(want, Want::Node(_)));
        let row: Vec<_> =
            row(&key).into_iter().map(|(column, value)| (format!("r.{column}"), value)).collect();
        let mut whose = is(&row, "=");
        match want {
            Want::Empty(ino) => {
                whose = format!("EXISTS(SELECT 1 FROM {} WHERE {whose})", source.from);
                let (numbers, strings) = (vec![ino.to_string()], Vec::new());
                source = Source { about: 3, numbers, strings, from: "DUAL".to_owned() };
            }
            Want::Slices(..) => source.numbers.push("r.seq".to_owned()),
            Want::Usage => source.numbers = ["SUM(inodes)", "SUM(blocks)"].map(str::to_owned).into(),
            _ => {}
        }
        selects.entry(source.select()).or_default().insert(whose);
    }
    if selects.is_empty() {
        return "SELECT 0 FROM DUAL WHERE 0".to_owned();
    }
    let select = |(select, whose): (String, BTreeSet<String>)| {
        // A server may take all rows for few, if it has to choose how to find several of them.
        let hint = if whose.len() > 1 { " AS r FORCE INDEX (PRIMARY)" } else { " AS r" };
        format!("{} WHERE {}", select.replacen(" AS r", hint, 1), joined(whose, " OR "))
    };
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
