//! Wants, answered by facts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meta::{Edge, Lock, LockWait, Node, Record, Session, Settings, Usage, Want, Xattrs};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, XattrName};

use crate::fact::{Fact, Malformed, Row, Values};

/// The kind of the facts that a want asks for.
pub fn want(want: &Want) -> i16 {
    match want {
        Want::Node(_) => 1,
        Want::Entry(..) => 2,
        Want::Empty(_) => 3,
        Want::Xattrs(_) => 4,
        Want::Symlink(_) => 5,
        Want::Slices(..) => 6,
        Want::Acl(_) => 7,
        Want::Settings => 8,
        Want::Counter(_) => 9,
        Want::Usage => 10,
        Want::Locks(_) => 11,
        Want::Waits => 12,
        Want::Session(_) => 13,
    }
}

/// What an answer holds; what is not in it is not there.
#[derive(Debug, Default)]
pub struct Found {
    pub nodes: HashMap<Ino, Node>,
    edges: HashMap<(Ino, Name), Edge>,
    filled: HashSet<Ino>,
    xattrs: HashMap<Ino, Xattrs>,
    symlinks: HashMap<Ino, Arc<[u8]>>,
    /// Each row behind its place in the chunk.
    slices: HashMap<(Ino, ChunkIndex), Vec<(i64, Slice)>>,
    acls: HashMap<AclId, Arc<str>>,
    settings: Settings,
    counters: HashMap<String, u64>,
    usage: Usage,
    locks: HashMap<Ino, Vec<Lock>>,
    waits: Vec<LockWait>,
    sessions: HashMap<SessionId, Session>,
}

impl Found {
    /// # Errors
    /// [`Malformed`], also for facts that answer no want.
    pub fn take<R: Row>(&mut self, fact: &Fact<R>) -> Result<(), Malformed> {
        let values = fact.values();
        match fact.about {
            1 => self.take_node(&values)?,
            2 => self.take_edge(&values)?,
            3 => drop(self.filled.insert(values.ino(0)?)),
            4 => {
                let name = XattrName::new(values.bytes(0)?);
                let name = name.map_err(|_| Malformed("an attribute's name cannot be one"))?;
                self.xattrs.entry(values.ino(0)?).or_default().insert(name, values.bytes(1)?.into());
            }
            5 => drop(self.symlinks.insert(values.ino(0)?, values.bytes(0)?.into())),
            6 => {
                let (chunk, place, slice) = values.slice()?;
                self.slices.entry(chunk).or_default().push((place, slice));
            }
            7 => self.acls.extend([values.acl()?]),
            8 => drop(self.settings.insert(values.text(0)?.to_owned(), values.text(1)?.to_owned())),
            9 => drop(self.counters.insert(values.text(0)?.to_owned(), values.number(0)?)),
            10 => {
                let known = |at| values.signed(at).map(|sum| u64::try_from(sum).unwrap_or(0));
                self.usage = Usage { inodes: known(0)?, blocks: known(1)? };
            }
            11 => self.locks.entry(values.ino(0)?).or_default().push(values.lock()?),
            13 => {
                let session = values.session()?;
                self.sessions.insert(session.id, session);
            }
            12 => self.waits.push(LockWait { ino: values.ino(0)?, lock: values.lock()? }),
            17 => {
                self.take_edge(&values)?;
                self.take_joined(&values)?;
            }
            _ => return Err(Malformed("a fact of an unknown kind")),
        }
        Ok(())
    }

    fn take_edge<R: Row>(&mut self, values: &Values<'_, R>) -> Result<(), Malformed> {
        let (parent, name, edge) = values.edge()?;
        self.edges.insert((parent, name), edge);
        Ok(())
    }

    /// The inode of a fact of kind 17, if it is there.
    pub(crate) fn take_joined<R: Row>(&mut self, values: &Values<'_, R>) -> Result<(), Malformed> {
        let node = values.behind(3, 1);
        if node.optional(0)?.is_some() { self.take_node(&node) } else { Ok(()) }
    }

    fn take_node<R: Row>(&mut self, values: &Values<'_, R>) -> Result<(), Malformed> {
        let node = values.node()?;
        self.acls.extend(values.acls_of(&node)?);
        self.nodes.insert(node.ino, node);
        Ok(())
    }

    /// Answers every want, in order.
    pub fn answer<'w>(&self, wants: impl IntoIterator<Item = &'w Want>) -> Vec<Record> {
        let mut records = Vec::new();
        for want in wants {
            match want {
                Want::Node(ino) => self.push_node(*ino, &mut records),
                Want::Entry(parent, name) => {
                    let edge = self.edges.get(&(*parent, name.clone())).copied();
                    records.push(Record::Edge(*parent, name.clone(), edge));
                    if let Some(edge) = edge {
                        self.push_node(edge.ino, &mut records);
                    }
                }
                Want::Empty(ino) => records.push(Record::Empty(*ino, !self.filled.contains(ino))),
                Want::Xattrs(ino) => {
                    let xattrs = self.xattrs.get(ino).cloned().unwrap_or_default();
                    records.push(Record::Xattrs(*ino, Arc::new(xattrs)));
                }
                Want::Symlink(ino) => {
                    records.push(Record::Symlink(*ino, self.symlinks.get(ino).cloned()));
                }
                Want::Slices(ino, chunk) => {
                    let mut rows = self.slices.get(&(*ino, *chunk)).cloned().unwrap_or_default();
                    rows.sort_by_key(|(place, _)| *place);
                    let rows = rows.into_iter().map(|(_, slice)| slice).collect();
                    records.push(Record::Slices(*ino, *chunk, rows));
                }
                Want::Acl(id) => records.push(self.acl(*id)),
                Want::Settings => records.push(Record::Settings(Arc::new(self.settings.clone()))),
                Want::Counter(counter) => {
                    let value = self.counters.get(counter.name()).copied().unwrap_or(0);
                    records.push(Record::Counter(*counter, value));
                }
                Want::Usage => records.push(Record::Usage(self.usage)),
                Want::Locks(ino) => {
                    let locks = self.locks.get(ino).cloned().unwrap_or_default();
                    records.push(Record::Locks(*ino, sorted(locks)));
                }
                Want::Waits => {
                    let mut waits = self.waits.clone();
                    waits.sort_unstable_by_key(|wait| wait.lock.owner);
                    records.push(Record::Waits(waits.into()));
                }
                Want::Session(id) => records.push(Record::Session(*id, self.sessions.get(id).cloned())),
            }
        }
        records
    }

    pub(crate) fn node(&self, ino: Ino) -> Record {
        Record::Node(ino, self.nodes.get(&ino).copied())
    }

    pub(crate) fn acl(&self, id: AclId) -> Record {
        Record::Acl(id, self.acls.get(&id).cloned())
    }

    /// A node and the ACLs it carries.
    pub(crate) fn push_node(&self, ino: Ino, records: &mut Vec<Record>) {
        records.push(self.node(ino));
        records.extend(self.nodes.get(&ino).iter().flat_map(|node| node.acls()).map(|id| self.acl(id)));
    }
}

/// Locks in the order of numbers without a sign, which need not be the table's.
pub(crate) fn sorted(mut locks: Vec<Lock>) -> Arc<[Lock]> {
    locks.sort_unstable();
    locks.into()
}
