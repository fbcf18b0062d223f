//! One statement that answers any number of wants, so that all records are of one moment: each statement has its own
//! snapshot at READ COMMITTED.
//!
//! It is a union of selects whose rows are facts (crate `tables`): a number that says what they are about, and as many
//! numbers and strings of bytes as any fact has, of which each select fills those that it needs. All wants of inodes
//! become one select, as do those of ACLs; each other want has one of its own.

use meta::{Facts, Seq, Want};
use tables::{Found, Table};

use crate::error::Fault;
use crate::rows::{self, Reader, fact};
use crate::sql::{Row, bytes, is, joined, list, row};

/// The kind of a fact that is more than is wanted: an entry with its inode.
pub(crate) const ENTRY_WITH_NODE: i16 = 17;

const NUMBERS: usize = 16;
const STRINGS: usize = 5;

/// Joins the ACLs of the node `n`.
const ACLS: &str =
    "LEFT JOIN `@acl` AS a ON a.id = n.access_acl LEFT JOIN `@acl` AS d ON d.id = n.default_acl";

/// A select whose columns beyond `numbers` and `strings` are NULL.
fn select<C: AsRef<str>>(what: i16, numbers: &[C], strings: &[C], from: &str) -> String {
    let column = |columns: &[C], at| columns.get(at).map_or("NULL", C::as_ref).to_owned();
    let numbers = list((0..NUMBERS).map(|at| column(numbers, at)));
    let strings = list((0..STRINGS).map(|at| column(strings, at)));
    format!("SELECT {what}, {numbers}, {strings} FROM {from}")
}

/// The statement for `wants`.
pub(crate) fn statement(wants: &[Want]) -> String {
    let mut selects = Vec::new();
    let (mut nodes, mut acls) = (Vec::new(), Vec::new());
    for (index, want) in wants.iter().enumerate() {
        let mut of = |Table { fact, name, numbers, strings }: Table, whose: Row| {
            selects.push(select(fact, numbers, strings, &format!("`@{name}` WHERE {}", is(&whose, "="))));
        };
        match want {
            Want::Node(ino) => nodes.push(ino.0),
            Want::Acl(id) => acls.push(bytes(&id.to_bytes())),
            // Rows that came twice would count twice.
            Want::Slices(..) | Want::Locks(_) | Want::Waits
                if wants.iter().take(index).any(|w| w == want) => {}
            Want::Entry(parent, name) => {
                let (numbers, strings, from) = entry_with_node(true);
                let whose = format!("r.parent = {parent} AND r.name = {}", bytes(name.as_bytes()));
                selects.push(select(ENTRY_WITH_NODE, &numbers, &strings, &format!("{from} WHERE {whose}")));
            }
            Want::Empty(ino) => {
                let from = format!("(SELECT parent FROM `@edge` WHERE parent = {ino} LIMIT 1) AS x");
                selects.push(select(3, &["parent"], &[], &from));
            }
            Want::Slices(ino, chunk) => {
                let Table { fact, numbers, strings, .. } = Table::SLICE;
                let from = format!("`@slice` WHERE ino = {ino} AND chunk = {chunk}");
                selects.push(select(fact, &[numbers, &["seq"]].concat(), strings, &from));
            }
            Want::Xattrs(ino) => of(Table::XATTR, row!(ino = ino)),
            Want::Symlink(ino) => of(Table::SYMLINK, row!(ino = ino)),
            Want::Settings => of(Table::SETTING, row!()),
            Want::Counter(counter) => of(Table::COUNTER, row!(name = bytes(counter.name().as_bytes()))),
            Want::Usage => selects.push(select(10, &["SUM(inodes)", "SUM(blocks)"], &[], "`@usage`")),
            Want::Locks(ino) => of(Table::LOCK, row!(ino = ino)),
            Want::Waits => of(Table::LOCK_WAIT, row!()),
        }
    }
    if !nodes.is_empty() {
        let from = format!("`@node` AS n {ACLS} WHERE n.ino IN ({})", list(nodes));
        let strings = [Table::NODE.strings, &["a.text", "d.text"]].concat();
        selects.push(select(Table::NODE.fact, Table::NODE.numbers, &strings, &from));
    }
    if !acls.is_empty() {
        let Table { fact, numbers, strings, .. } = Table::ACL;
        selects.push(select(fact, numbers, strings, &format!("`@acl` WHERE id IN ({})", list(acls))));
    }
    if selects.is_empty() { "SELECT 0 FROM DUAL WHERE 0".to_owned() } else { joined(selects, " UNION ALL ") }
}

/// What to select of an entry `r` and its inode, the numbers and the strings, and from where; if asked for, with the texts
/// of the inode's ACLs.
pub(crate) fn entry_with_node(with_acls: bool) -> (Vec<String>, Vec<String>, String) {
    let both = |entry, node| [columns_of("r", entry), columns_of("n", node)].concat();
    let numbers = both(Table::EDGE.numbers, Table::NODE.numbers);
    let mut strings = both(Table::EDGE.strings, Table::NODE.strings);
    let mut from = "`@edge` AS r LEFT JOIN `@node` AS n ON n.ino = r.ino".to_owned();
    if with_acls {
        strings.extend(["a.text", "d.text"].map(str::to_owned));
        from = format!("{from} {ACLS}");
    }
    (numbers, strings, from)
}

/// Columns of what has this name in a statement.
pub(crate) fn columns_of(name: &str, columns: &[&str]) -> Vec<String> {
    columns.iter().map(|column| format!("{name}.{column}")).collect()
}

/// What the rows that came back for [`statement`] say to each want, in order.
pub(crate) fn facts(rows: &[rows::Row], seq: Seq, wants: &[Want]) -> Result<Facts, Fault> {
    let mut found = Found::default();
    for row in rows {
        let about = i16::try_from(Reader::new(row).number(0)?).unwrap_or(0);
        found.take(&fact(about, row.get(1..).unwrap_or_default(), NUMBERS))?;
    }
    Ok(Facts { seq, records: found.answer(wants) })
}
