//! The columns of selects, and the sources of their rows.

use meta::{RecordKey, Scan, ScanInclude};

use crate::kind;
use crate::line::row_key;
use crate::scan::Select;
use crate::table::Table;

/// The columns and the source of the rows of one kind. The texts have the form that [`Select`] describes.
#[derive(Clone, Debug)]
pub struct RowSource {
    pub kind: i16,
    pub numbers: Vec<String>,
    pub strings: Vec<String>,
    /// The FROM clause.
    pub from: String,
}

impl RowSource {
    /// Selects rows `r` of a table. If `with_inodes` is set, they are dirents, joined with their inodes `n`;
    /// if `with_acls` is set, the texts of the inodes' ACLs are joined too.
    fn new(table: Table, rows: &str, with_inodes: bool, with_acls: bool) -> Self {
        let columns = |of: fn(&Table) -> &'static [&'static str]| {
            let inodes = of(&Table::INODE).iter().filter(|_| with_inodes).map(|column| format!("n.{column}"));
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
        RowSource { kind, numbers, strings, from }
    }

    /// The rows that answer a scan.
    pub fn of_scan(scan: &Scan, select: &Select<'_>) -> Self {
        let include = if let Scan::Dir { include, .. } = scan { *include } else { ScanInclude::Nothing };
        let (with_inodes, with_acls) =
            (include != ScanInclude::Nothing, include == ScanInclude::InodesWithAcls);
        RowSource::new(select.table, select.from, with_inodes, with_acls)
    }

    /// The rows that answer record keys of the kind of `key`; the condition for `key` is
    /// [`row_key`](crate::row_key). The usage is one row.
    pub fn of_record(key: &RecordKey) -> Self {
        let table = row_key(key).table;
        let is_entry = matches!(key, RecordKey::Dirent(..));
        let with_acls = is_entry || matches!(key, RecordKey::Inode(_));
        let mut source = RowSource::new(table, &format!("`@{}` AS r", table.name), is_entry, with_acls);
        let numbers = |columns: &[&str]| columns.iter().map(|column| (*column).to_owned()).collect();
        match key {
            RecordKey::Slices(..) => source.numbers.push("r.seq".to_owned()),
            RecordKey::Usage => source.numbers = numbers(&["SUM(inodes)", "SUM(blocks)"]),
            RecordKey::Empty(_) => {
                source = RowSource {
                    kind: kind::NOT_EMPTY,
                    numbers: numbers(&["r.parent"]),
                    strings: Vec::new(),
                    ..source
                };
            }
            _ => {}
        }
        source
    }
}
