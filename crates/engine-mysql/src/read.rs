//! One statement that answers any number of wants, so that all records are of one moment: each statement has its own
//! snapshot at READ COMMITTED.
//!
//! It is a union of selects whose rows are facts (crate `tables`): a number that says what they are about, and as many
//! numbers and strings of bytes as any fact has, of which each select fills those that it needs. All wants of inodes
//! become one select, as do those of ACLs; each other want has one of its own.

use meta::{Facts, Seq, Want};
use tables::{Fact, Found};

use crate::error::Fault;
use crate::rows::{Columns, Row, RowReader};
use crate::sql::{Bytes, joined, list};

/// Facts that several wants share, or that are more than is wanted: inodes, ACLs, an entry with its inode.
const NODES: i16 = 1;
const ACLS: i16 = 7;
pub(crate) const WITH_NODE: i16 = 17;

const NUMBERS: usize = 16;
const STRINGS: usize = 5;

/// A select whose columns beyond `numbers` and `strings` are NULL.
fn select(what: i16, numbers: &[&str], strings: &[&str], from: &str) -> String {
    let nulls = |given: usize, of: usize| std::iter::repeat_n("NULL", of.saturating_sub(given));
    let numbers = numbers.iter().copied().chain(nulls(numbers.len(), NUMBERS));
    let strings = strings.iter().copied().chain(nulls(strings.len(), STRINGS));
    format!("SELECT {what}, {}, {} {from}", list(numbers), list(strings))
}

/// Of the inode `n`.
const NODE: [&str; 13] = [
    "n.ino",
    "n.kind",
    "n.mode",
    "n.uid",
    "n.gid",
    "n.rdev",
    "n.nlink",
    "n.size",
    "n.atime",
    "n.mtime",
    "n.ctime",
    "n.parent",
    "n.access_rev",
];
const NODE_ACLS: [&str; 4] = ["n.access_acl", "n.default_acl", "a.text", "d.text"];
const LOCK: [&str; 8] = ["ino", "first", "last", "session", "owner", "kind", "exclusive", "pid"];

/// The statement for `wants`; `p` is what the names of tables begin with.
pub(crate) fn statement(p: &str, wants: &[Want]) -> String {
    let mut selects = Vec::new();
    let (mut nodes, mut acls) = (Vec::new(), Vec::new());
    let acls_of_node = acls_of_node(p);
    for (index, want) in wants.iter().enumerate() {
        let mut one = |numbers: &[&str], strings: &[&str], from: String| {
            selects.push(select(tables::want(want), numbers, strings, &from));
        };
        match want {
            Want::Node(ino) => nodes.push(ino.0),
            Want::Acl(id) => acls.push(Bytes(&id.to_bytes()).to_string()),
            // Rows that came twice would count twice.
            Want::Slices(..) | Want::Locks(_) | Want::Waits
                if wants.iter().take(index).any(|w| w == want) => {}
            Want::Entry(parent, name) => {
                let numbers = [&["e.parent", "e.ino", "e.kind"], &NODE[..]].concat();
                let strings = [&["e.name"], &NODE_ACLS[..]].concat();
                let from = format!(
                    "FROM `{p}edge` AS e LEFT JOIN `{p}node` AS n ON n.ino = e.ino {acls_of_node} \
                     WHERE e.parent = {} AND e.name = {}",
                    parent.0,
                    Bytes(name.as_bytes())
                );
                selects.push(select(WITH_NODE, &numbers, &strings, &from));
            }
            Want::Empty(ino) => one(
                &["parent"],
                &[],
                format!("FROM (SELECT parent FROM `{p}edge` WHERE parent = {} LIMIT 1) AS x", ino.0),
            ),
            Want::Xattrs(ino) => {
                one(&["ino"], &["name", "value"], format!("FROM `{p}xattr` WHERE ino = {}", ino.0));
            }
            Want::Symlink(ino) => {
                one(&["ino"], &["target"], format!("FROM `{p}symlink` WHERE ino = {}", ino.0));
            }
            Want::Slices(ino, chunk) => one(
                &["ino", "chunk", "pos", "len", "slice", "slice_off", "slice_size", "seq"],
                &["data"],
                format!("FROM `{p}slice` WHERE ino = {} AND chunk = {}", ino.0, chunk.0),
            ),
            Want::Settings => one(&[], &["name", "value"], format!("FROM `{p}setting`")),
            Want::Counter(counter) => {
                let name = Bytes(counter.name().as_bytes());
                one(&["value"], &["name"], format!("FROM `{p}counter` WHERE name = {name}"));
            }
            Want::Usage => one(&["SUM(inodes)", "SUM(blocks)"], &[], format!("FROM `{p}usage`")),
            Want::Locks(ino) => one(&LOCK, &[], format!("FROM `{p}lock` WHERE ino = {}", ino.0)),
            Want::Waits => one(&LOCK, &[], format!("FROM `{p}lock_wait`")),
        }
    }
    if !nodes.is_empty() {
        let from = format!("FROM `{p}node` AS n {acls_of_node} WHERE n.ino IN ({})", list(nodes));
        selects.push(select(NODES, &NODE, &NODE_ACLS, &from));
    }
    if !acls.is_empty() {
        let from = format!("FROM `{p}acl` WHERE id IN ({})", list(acls));
        selects.push(select(ACLS, &[], &["id", "text"], &from));
    }
    if selects.is_empty() { "SELECT 0 FROM DUAL WHERE 0".to_owned() } else { joined(selects, " UNION ALL ") }
}

/// Joins the ACLs of the node `n`.
pub(crate) fn acls_of_node(p: &str) -> String {
    format!("LEFT JOIN `{p}acl` AS a ON a.id = n.access_acl LEFT JOIN `{p}acl` AS d ON d.id = n.default_acl")
}

/// What came back for [`statement`].
#[derive(Debug)]
pub(crate) struct Answers(Found);

impl Answers {
    pub(crate) fn from_rows(rows: Vec<Row>) -> Result<Self, Fault> {
        let mut found = Found::default();
        for row in &rows {
            let about = RowReader(row).number(0)?;
            found.take(&Fact { about, row: Columns { row, numbers: 1, strings: 1 + NUMBERS } })?;
        }
        Ok(Answers(found))
    }

    /// The answer to each want, in order.
    pub(crate) fn facts(&self, seq: Seq, wants: &[Want]) -> Result<Facts, Fault> {
        Ok(Facts { seq, records: self.0.answer(wants) })
    }
}
