//! Records out of facts.
//!
//! A fact is a row of what it is about, its numbers and its byte strings:
//!
//! | | fact | numbers | byte strings |
//! |---|---|---|---|
//! | 1 | inode | ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, parent, access_rev | access ACL, default ACL |
//! | 2 | directory entry | parent, ino, kind | name |
//! | 3 | a directory is not empty | ino | |
//! | 4 | extended attribute | ino | name, value |
//! | 5 | symlink | ino | target |
//! | 6 | row of a chunk | ino, chunk, pos, len, slice, slice_off, slice_size | data |
//! | 7 | ACL | | id, text |
//! | 8, 9 | setting; counter | ; value | name, value; name |
//! | 10 | usage | inodes, blocks | |
//! | 11, 12 | lock; who waits for one | ino, first, last, session, owner, kind, exclusive, pid | |
//! | 13 | session | id, pid, since, heartbeat | host, mountpoint |
//! | 14, 15, 16 | orphan; garbage; shared slice | session, ino; slice, size; slice, extra | |
//! | 20, 21 | a transaction is committed; repeated | session, op, seq | |
//! | 22 | transactions of which a guard failed; up to 23, what their guards looked at | their places in the run, from 1 | |

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meta::{
    Edge, Garbage, Lock, LockKind, LockOwner, LockWait, Node, Record, Session, Settings, Usage, Want, Xattrs,
};
use tokio_postgres::Row;
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, SliceSource, Time, XattrName,
};

use crate::error::Failure;

/// One row of an answer.
pub(crate) struct Fact<'r> {
    pub(crate) about: i16,
    pub(crate) numbers: Vec<Option<i64>>,
    bytes: Vec<Option<&'r [u8]>>,
}

/// A number as PostgreSQL stores it; those above `i64::MAX` turn negative and come back unchanged.
pub(crate) fn int(n: u64) -> i64 {
    n as i64
}

/// Wants as arrays: what, two numbers, a name.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    pub(crate) what: Vec<i16>,
    pub(crate) a: Vec<Option<i64>>,
    pub(crate) b: Vec<Option<i64>>,
    pub(crate) x: Vec<Option<Vec<u8>>>,
}

impl Wants {
    pub(crate) fn new(wants: &[Want]) -> Self {
        let mut all = Wants::default();
        for want in wants {
            let (what, a, b, x) = match want {
                Want::Node(ino) => (1, Some(ino.0), None, None),
                Want::Entry(parent, name) => (2, Some(parent.0), None, Some(name.as_bytes().to_vec())),
                Want::Empty(ino) => (3, Some(ino.0), None, None),
                Want::Xattrs(ino) => (4, Some(ino.0), None, None),
                Want::Symlink(ino) => (5, Some(ino.0), None, None),
                Want::Slices(ino, chunk) => (6, Some(ino.0), Some(chunk.0), None),
                Want::Acl(id) => (7, None, None, Some(id.to_bytes().to_vec())),
                Want::Settings => (8, None, None, None),
                Want::Counter(_) => (9, None, None, None),
                Want::Usage => (10, None, None, None),
                Want::Locks(ino) => (11, Some(ino.0), None, None),
                Want::Waits => (12, None, None, None),
            };
            all.what.push(what);
            all.a.push(a.map(int));
            all.b.push(b.map(int));
            all.x.push(x);
        }
        all
    }
}

/// What an answer holds; what is not in it is not there.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) nodes: HashMap<Ino, Node>,
    edges: HashMap<(Ino, Name), Edge>,
    filled: HashSet<Ino>,
    xattrs: HashMap<Ino, Xattrs>,
    symlinks: HashMap<Ino, Arc<[u8]>>,
    slices: HashMap<(Ino, ChunkIndex), Vec<Slice>>,
    acls: HashMap<AclId, Arc<str>>,
    settings: Settings,
    counters: HashMap<String, u64>,
    usage: Usage,
    locks: HashMap<Ino, Vec<Lock>>,
    waits: Vec<LockWait>,
}

impl Found {
    pub(crate) fn take(&mut self, fact: &Fact<'_>) -> Result<(), Failure> {
        match fact.about {
            1 => drop(self.nodes.insert(fact.ino(0)?, fact.node()?)),
            2 => {
                let (parent, name, edge) = fact.edge()?;
                self.edges.insert((parent, name), edge);
            }
            3 => drop(self.filled.insert(fact.ino(0)?)),
            4 => {
                let name =
                    XattrName::new(fact.bytes(0)?).map_err(|_| Failure::Malformed("an attribute's name"))?;
                self.xattrs.entry(fact.ino(0)?).or_default().insert(name, fact.bytes(1)?.into());
            }
            5 => drop(self.symlinks.insert(fact.ino(0)?, fact.bytes(0)?.into())),
            6 => {
                let (ino, chunk, slice) = fact.slice()?;
                self.slices.entry((ino, chunk)).or_default().push(slice);
            }
            7 => {
                let (id, text) = fact.acl()?;
                self.acls.insert(id, text);
            }
            8 => drop(self.settings.insert(fact.text(0)?, fact.text(1)?)),
            9 => drop(self.counters.insert(fact.text(0)?, fact.number(0)?)),
            10 => self.usage = Usage { inodes: fact.number(0)?, blocks: fact.number(1)? },
            11 => self.locks.entry(fact.ino(0)?).or_default().push(fact.lock()?),
            12 => self.waits.push(LockWait { ino: fact.ino(0)?, lock: fact.lock()? }),
            _ => return Err(Failure::Malformed("a fact of an unknown kind")),
        }
        Ok(())
    }

    /// Answers every want, in order.
    pub(crate) fn answer<'w>(&self, wants: impl IntoIterator<Item = &'w Want>) -> Vec<Record> {
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
                    let rows = self.slices.get(&(*ino, *chunk)).map(|rows| rows.as_slice().into());
                    records.push(Record::Slices(*ino, *chunk, rows.unwrap_or_default()));
                }
                Want::Acl(id) => records.push(Record::Acl(*id, self.acls.get(id).cloned())),
                Want::Settings => records.push(Record::Settings(Arc::new(self.settings.clone()))),
                Want::Counter(counter) => {
                    let value = self.counters.get(counter.name()).copied().unwrap_or(0);
                    records.push(Record::Counter(*counter, value));
                }
                Want::Usage => records.push(Record::Usage(self.usage)),
                Want::Locks(ino) => {
                    records
                        .push(Record::Locks(*ino, sorted(self.locks.get(ino).cloned().unwrap_or_default())));
                }
                Want::Waits => {
                    let mut waits = self.waits.clone();
                    waits.sort_unstable_by_key(|wait| wait.lock.owner);
                    records.push(Record::Waits(waits.into()));
                }
            }
        }
        records
    }

    pub(crate) fn node(&self, ino: Ino) -> Record {
        Record::Node(ino, self.nodes.get(&ino).copied())
    }

    /// A node and the ACLs it carries.
    pub(crate) fn push_node(&self, ino: Ino, records: &mut Vec<Record>) {
        let node = self.nodes.get(&ino).copied();
        records.push(self.node(ino));
        for id in node.iter().flat_map(|n| [n.access_acl, n.default_acl]).filter(|id| !id.is_none()) {
            records.push(Record::Acl(id, self.acls.get(&id).cloned()));
        }
    }
}

/// Locks in the order of numbers without a sign, which is not the table's.
pub(crate) fn sorted(mut locks: Vec<Lock>) -> Arc<[Lock]> {
    locks.sort_unstable();
    locks.into()
}

impl<'r> Fact<'r> {
    pub(crate) fn new(row: &'r Row) -> Result<Self, Failure> {
        let malformed = |_| Failure::Malformed("a row that is no fact");
        let numbers: Option<_> = row.try_get(1).map_err(malformed)?;
        let bytes: Option<_> = row.try_get(2).map_err(malformed)?;
        Ok(Fact {
            about: row.try_get(0).map_err(malformed)?,
            numbers: numbers.unwrap_or_default(),
            bytes: bytes.unwrap_or_default(),
        })
    }

    fn signed(&self, at: usize) -> Result<i64, Failure> {
        self.numbers.get(at).copied().flatten().ok_or(Failure::Malformed("a number is missing"))
    }

    pub(crate) fn number(&self, at: usize) -> Result<u64, Failure> {
        self.signed(at).map(|n| n as u64)
    }

    fn small<T: TryFrom<i64>>(&self, at: usize) -> Result<T, Failure> {
        T::try_from(self.signed(at)?).map_err(|_| Failure::Malformed("a number is out of its range"))
    }

    pub(crate) fn ino(&self, at: usize) -> Result<Ino, Failure> {
        self.number(at).map(Ino)
    }

    fn time(&self, at: usize) -> Result<Time, Failure> {
        self.signed(at).map(Time::from_nanos)
    }

    fn bytes(&self, at: usize) -> Result<&'r [u8], Failure> {
        self.bytes.get(at).copied().flatten().ok_or(Failure::Malformed("a value is missing"))
    }

    fn text(&self, at: usize) -> Result<String, Failure> {
        let text = str::from_utf8(self.bytes(at)?).map_err(|_| Failure::Malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn acl_id(&self, at: usize) -> Result<AclId, Failure> {
        match self.bytes.get(at).copied().flatten() {
            None => Ok(AclId::NONE),
            Some(id) => id.try_into().map(AclId::from_bytes).map_err(|_| Failure::Malformed("an ACL's id")),
        }
    }

    fn kind(&self, at: usize) -> Result<FileType, Failure> {
        let kind = self.small::<u8>(at).ok().and_then(|dtype| FileType::from_ifmt(u32::from(dtype) << 12));
        kind.ok_or(Failure::Malformed("a kind of inode that is none"))
    }

    pub(crate) fn node(&self) -> Result<Node, Failure> {
        Ok(Node {
            ino: self.ino(0)?,
            kind: self.kind(1)?,
            mode: Mode::new(self.small(2)?),
            uid: self.small(3)?,
            gid: self.small(4)?,
            rdev: self.small(5)?,
            nlink: self.small(6)?,
            size: self.number(7)?,
            atime: self.time(8)?,
            mtime: self.time(9)?,
            ctime: self.time(10)?,
            access_acl: self.acl_id(0)?,
            default_acl: self.acl_id(1)?,
            parent: self.ino(11)?,
            access_rev: self.number(12)?,
        })
    }

    pub(crate) fn edge(&self) -> Result<(Ino, Name, Edge), Failure> {
        let name = Name::new(self.bytes(0)?).map_err(|_| Failure::Malformed("a name that cannot be"))?;
        Ok((self.ino(0)?, name, Edge { ino: self.ino(1)?, kind: self.kind(2)? }))
    }

    pub(crate) fn slice(&self) -> Result<(Ino, ChunkIndex, Slice), Failure> {
        let source = match (self.bytes.first().copied().flatten(), self.numbers.get(4).copied().flatten()) {
            (Some(data), _) => SliceSource::Inline(data.into()),
            (None, Some(id)) => {
                SliceSource::Blocks { id: SliceId(id as u64), offset: self.small(5)?, size: self.small(6)? }
            }
            (None, None) => SliceSource::Hole,
        };
        let slice = Slice { pos: self.small(2)?, len: self.small(3)?, source };
        Ok((self.ino(0)?, ChunkIndex(self.number(1)?), slice))
    }

    pub(crate) fn acl(&self) -> Result<(AclId, Arc<str>), Failure> {
        Ok((self.acl_id(0)?, self.text(1)?.into()))
    }

    pub(crate) fn lock(&self) -> Result<Lock, Failure> {
        let kind = match self.small(5)? {
            0 => LockKind::Posix,
            1 => LockKind::Flock,
            _ => return Err(Failure::Malformed("a kind of lock that is none")),
        };
        let owner = LockOwner { session: SessionId(self.number(3)?), owner: self.number(4)?, kind };
        let (start, end) = (self.number(1)?, self.number(2)?);
        Ok(Lock { start, end, owner, exclusive: self.signed(6)? != 0, pid: self.small(7)? })
    }

    pub(crate) fn session(&self) -> Result<Session, Failure> {
        Ok(Session {
            id: SessionId(self.number(0)?),
            host: self.text(0)?,
            pid: self.small(1)?,
            mountpoint: self.text(1)?,
            since: self.time(2)?,
            heartbeat: self.time(3)?,
        })
    }

    pub(crate) fn garbage(&self) -> Result<Garbage, Failure> {
        Ok(Garbage { slice: SliceId(self.number(0)?), size: self.small(1)? })
    }
}
