//! One statement that answers any number of wants, so that all records are of one moment: each statement has its own
//! snapshot at READ COMMITTED.
//!
//! It is a union of selects whose rows have the same columns: a number that says what they answer, fifteen numbers and
//! four strings of bytes, of which each select fills those that it needs. All wants of inodes become one select, as do
//! those of ACLs; each other want has one of its own.

use std::collections::HashMap;
use std::sync::Arc;

use meta::{Edge, Facts, LockWait, Node, Record, Seq, Usage, Want};
use types::{AclId, Ino, Name};

use crate::error::Fault;
use crate::rows::{Row, RowReader, lock_at, node_at, slice_at};
use crate::sql::{Bytes, joined, list};

/// What the first column says of selects for many wants; others have the place of their want.
const NODES: i64 = -1;
const ACLS: i64 = -2;

const NUMBERS: usize = 15;
const STRINGS: usize = 4;

/// A select whose columns beyond `numbers` and `strings` are NULL.
fn select(what: i64, numbers: &[&str], strings: &[&str], from: &str) -> String {
    let nulls = |given: usize, of: usize| std::iter::repeat_n("NULL", of.saturating_sub(given));
    let numbers = numbers.iter().copied().chain(nulls(numbers.len(), NUMBERS));
    let strings = strings.iter().copied().chain(nulls(strings.len(), STRINGS));
    format!("SELECT {what}, {}, {} {from}", list(numbers), list(strings))
}

const NODE_NUMBERS: [&str; 13] = [
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
const NODE_STRINGS: [&str; 4] = ["n.access_acl", "n.default_acl", "a.text", "d.text"];

/// The statement for `wants`; `p` is what the names of tables begin with.
pub(crate) fn statement(p: &str, wants: &[Want]) -> String {
    let mut selects = Vec::new();
    let (mut nodes, mut acls) = (Vec::new(), Vec::new());
    let acls_of_node = acls_of_node(p);
    for (index, want) in wants.iter().enumerate() {
        let what = i64::try_from(index).unwrap_or(i64::MAX);
        let mut one = |numbers: &[&str], strings: &[&str], from: String| {
            selects.push(select(what, numbers, strings, &from));
        };
        match want {
            Want::Node(ino) => nodes.push(ino.0),
            Want::Entry(parent, name) => {
                let numbers = [&NODE_NUMBERS[..], &["e.ino", "e.kind"]].concat();
                let from = format!(
                    "FROM `{p}edge` AS e LEFT JOIN `{p}node` AS n ON n.ino = e.ino {acls_of_node} \
                     WHERE e.parent = {} AND e.name = {}",
                    parent.0,
                    Bytes(name.as_bytes())
                );
                one(&numbers, &NODE_STRINGS, from);
            }
            Want::Acl(id) => acls.push(Bytes(&id.to_bytes()).to_string()),
            Want::Empty(ino) => {
                one(
                    &["1"],
                    &[],
                    format!("FROM (SELECT 1 FROM `{p}edge` WHERE parent = {} LIMIT 1) AS x", ino.0),
                );
            }
            Want::Xattrs(ino) => {
                one(&[], &["name", "value"], format!("FROM `{p}xattr` WHERE ino = {}", ino.0));
            }
            Want::Symlink(ino) => {
                one(&[], &["target"], format!("FROM `{p}symlink` WHERE ino = {}", ino.0));
            }
            Want::Slices(ino, chunk) => one(
                &["pos", "len", "slice", "slice_off", "slice_size", "seq"],
                &["data"],
                format!("FROM `{p}slice` WHERE ino = {} AND chunk = {}", ino.0, chunk.0),
            ),
            Want::Settings => one(&[], &["name", "value"], format!("FROM `{p}setting`")),
            Want::Counter(counter) => {
                let name = Bytes(counter.name().as_bytes());
                one(&["value"], &[], format!("FROM `{p}counter` WHERE name = {name}"));
            }
            Want::Usage => one(&["SUM(inodes)", "SUM(blocks)"], &[], format!("FROM `{p}usage`")),
            Want::Locks(ino) => one(
                &["first", "last", "session", "owner", "kind", "exclusive", "pid"],
                &[],
                format!("FROM `{p}lock` WHERE ino = {}", ino.0),
            ),
            Want::Waits => one(
                &["first", "last", "session", "owner", "kind", "exclusive", "pid", "ino"],
                &[],
                format!("FROM `{p}lock_wait`"),
            ),
        }
    }
    if !nodes.is_empty() {
        let from = format!("FROM `{p}node` AS n {acls_of_node} WHERE n.ino IN ({})", list(nodes));
        selects.push(select(NODES, &NODE_NUMBERS, &NODE_STRINGS, &from));
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
#[derive(Debug, Default)]
pub(crate) struct Answers {
    nodes: HashMap<Ino, NodeAndAcls>,
    acls: HashMap<AclId, Arc<str>>,
    /// The rows of each want that has a select of its own, by its place.
    own: HashMap<usize, Vec<Row>>,
}

/// A node, and the texts of its two ACLs.
#[derive(Clone, Debug)]
pub(crate) struct NodeAndAcls {
    pub(crate) node: Node,
    texts: [Option<Arc<str>>; 2],
}

impl NodeAndAcls {
    /// A node whose columns begin at `at`: thirteen numbers; and at `strings`: two ids, two texts. NULL where a join
    /// found none.
    pub(crate) fn at(row: &RowReader<'_>, at: usize, strings: usize) -> Result<Option<Self>, Fault> {
        if row.optional_bytes(at)?.is_none() {
            return Ok(None);
        }
        let text = |at| match row.optional_bytes(at)? {
            Some(_) => row.text(at).map(|text| Some(text.into())),
            None => Ok(None),
        };
        let texts = [text(strings + 2)?, text(strings + 3)?];
        Ok(Some(NodeAndAcls { node: node_at(row, at, strings)?, texts }))
    }

    /// The ACLs that the node carries.
    pub(crate) fn acls(&self) -> impl Iterator<Item = (AclId, Option<Arc<str>>)> + '_ {
        let ids = [self.node.access_acl, self.node.default_acl];
        ids.into_iter().zip(self.texts.iter().cloned()).filter(|(id, _)| !id.is_none())
    }
}

impl Answers {
    pub(crate) fn from_rows(rows: Vec<Row>) -> Result<Self, Fault> {
        let mut answers = Answers::default();
        for values in rows {
            let row = RowReader(&values);
            match row.number::<i64>(0)? {
                NODES => {
                    let node = NodeAndAcls::at(&row, 1, 1 + NUMBERS)?;
                    answers.nodes.extend(node.map(|node| (node.node.ino, node)));
                }
                ACLS => {
                    let text = row.text(2 + NUMBERS)?.into();
                    answers.acls.insert(row.acl_id(1 + NUMBERS)?, text);
                }
                place => {
                    let place =
                        usize::try_from(place).map_err(|_| Fault::malformed("no want has the place"))?;
                    answers.own.entry(place).or_default().push(values);
                }
            }
        }
        Ok(answers)
    }

    /// The answer to each want, in order.
    pub(crate) fn facts(&self, seq: Seq, wants: &[Want]) -> Result<Facts, Fault> {
        let mut records = Vec::with_capacity(wants.len() * 2);
        for (place, want) in wants.iter().enumerate() {
            let rows = self.own.get(&place).map_or(&[][..], Vec::as_slice);
            self.answer(want, rows, &mut records)?;
        }
        Ok(Facts { seq, records })
    }

    fn answer(&self, want: &Want, rows: &[Row], records: &mut Vec<Record>) -> Result<(), Fault> {
        const FIRST: usize = 1;
        const STRING: usize = 1 + NUMBERS;
        let first = rows.first().map(RowReader);
        match want {
            Want::Node(ino) => push_node(*ino, self.nodes.get(ino), records),
            Want::Entry(parent, name) => {
                let edge = first.map(|row| -> Result<_, Fault> {
                    let ino = Ino(row.number(FIRST + 13)?);
                    Ok(Edge { ino, kind: row.kind(FIRST + 14)? })
                });
                let edge = edge.transpose()?;
                records.push(Record::Edge(*parent, Name::clone(name), edge));
                if let (Some(edge), Some(row)) = (edge, first) {
                    push_node(edge.ino, NodeAndAcls::at(&row, FIRST, STRING)?.as_ref(), records);
                }
            }
            Want::Empty(ino) => records.push(Record::Empty(*ino, rows.is_empty())),
            Want::Xattrs(ino) => {
                let all = rows.iter().map(RowReader).map(|row| {
                    let value: Arc<[u8]> = row.bytes(STRING + 1)?.into();
                    Ok((row.xattr_name(STRING)?, value))
                });
                records.push(Record::Xattrs(*ino, Arc::new(all.collect::<Result<_, Fault>>()?)));
            }
            Want::Symlink(ino) => {
                let target = first.map(|row| row.bytes(STRING)).transpose()?;
                records.push(Record::Symlink(*ino, target.map(Arc::from)));
            }
            Want::Slices(ino, chunk) => {
                let all = rows
                    .iter()
                    .map(RowReader)
                    .map(|row| Ok((row.number(FIRST + 5)?, slice_at(&row, FIRST, STRING)?)));
                let mut all = all.collect::<Result<Vec<(u64, _)>, Fault>>()?;
                all.sort_unstable_by_key(|(seq, _)| *seq);
                records.push(Record::Slices(*ino, *chunk, all.into_iter().map(|(_, slice)| slice).collect()));
            }
            Want::Acl(id) => records.push(Record::Acl(*id, self.acls.get(id).cloned())),
            Want::Settings => {
                let all = rows
                    .iter()
                    .map(RowReader)
                    .map(|row| Ok((row.text(STRING)?.to_owned(), row.text(STRING + 1)?.to_owned())));
                records.push(Record::Settings(Arc::new(all.collect::<Result<_, Fault>>()?)));
            }
            Want::Counter(counter) => {
                let value = first.map(|row| row.number(FIRST)).transpose()?;
                records.push(Record::Counter(*counter, value.unwrap_or(0)));
            }
            Want::Usage => {
                let row = first.ok_or(Fault::malformed("the usage has no rows"))?;
                let [inodes, blocks] = [row.number::<i64>(FIRST)?, row.number(FIRST + 1)?];
                let known = |sum: i64| u64::try_from(sum).unwrap_or(0);
                records.push(Record::Usage(Usage { inodes: known(inodes), blocks: known(blocks) }));
            }
            Want::Locks(ino) => {
                let all = rows.iter().map(|row| lock_at(&RowReader(row), FIRST));
                let mut all = all.collect::<Result<Vec<_>, Fault>>()?;
                all.sort_unstable();
                records.push(Record::Locks(*ino, all.into()));
            }
            Want::Waits => {
                let all = rows.iter().map(RowReader).map(|row| {
                    Ok(LockWait { lock: lock_at(&row, FIRST)?, ino: Ino(row.number(FIRST + 7)?) })
                });
                let mut all = all.collect::<Result<Vec<_>, Fault>>()?;
                all.sort_unstable_by_key(|wait| wait.lock.owner);
                records.push(Record::Waits(all.into()));
            }
        }
        Ok(())
    }
}

/// A node and the ACLs it carries.
fn push_node(ino: Ino, found: Option<&NodeAndAcls>, records: &mut Vec<Record>) {
    records.push(Record::Node(ino, found.map(|found| found.node)));
    records.extend(found.into_iter().flat_map(NodeAndAcls::acls).map(|(id, text)| Record::Acl(id, text)));
}
