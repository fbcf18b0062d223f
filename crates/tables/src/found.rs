//! Answers record keys from the rows of a reply.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meta::{Dirent, Inode, Lock, LockWait, Record, RecordKey, Session, Settings, Usage, Xattrs};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, XattrName};

use crate::kind;
use crate::reply::{Malformed, ReplyRow, Row, Values};

/// The kind of the rows that answer a record key.
pub fn kind_of(key: &RecordKey) -> i16 {
    match key {
        RecordKey::Inode(_) => kind::INODE,
        RecordKey::Entry(..) => kind::DIRENT,
        RecordKey::Empty(_) => kind::NOT_EMPTY,
        RecordKey::Xattrs(_) => kind::XATTR,
        RecordKey::Symlink(_) => kind::SYMLINK,
        RecordKey::Slices(..) => kind::SLICE,
        RecordKey::Acl(_) => kind::ACL,
        RecordKey::Settings => kind::SETTING,
        RecordKey::Counter(_) => kind::COUNTER,
        RecordKey::Usage => kind::USAGE,
        RecordKey::Locks(_) => kind::LOCK,
        RecordKey::Waits => kind::LOCK_WAIT,
        RecordKey::Session(_) => kind::SESSION,
    }
}

/// The content of a reply; records that are not in it are absent.
#[derive(Debug, Default)]
pub struct Found {
    pub inodes: HashMap<Ino, Inode>,
    dirents: HashMap<(Ino, Name), Dirent>,
    filled: HashSet<Ino>,
    xattrs: HashMap<Ino, Xattrs>,
    symlinks: HashMap<Ino, Arc<[u8]>>,
    /// Each row with its position in the chunk.
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
    /// [`Malformed`], also for rows of a kind that answers no record key.
    pub fn take<R: Row>(&mut self, row: &ReplyRow<R>) -> Result<(), Malformed> {
        let values = row.values();
        match row.kind {
            kind::INODE => self.take_inode(&values)?,
            kind::DIRENT => self.take_dirent(&values)?,
            kind::NOT_EMPTY => drop(self.filled.insert(values.ino(0)?)),
            kind::XATTR => {
                let name = XattrName::new(values.bytes(0)?);
                let name = name.map_err(|_| Malformed("an extended attribute has an invalid name"))?;
                self.xattrs.entry(values.ino(0)?).or_default().insert(name, values.bytes(1)?.into());
            }
            kind::SYMLINK => drop(self.symlinks.insert(values.ino(0)?, values.bytes(0)?.into())),
            kind::SLICE => {
                let (chunk, place, slice) = values.slice()?;
                self.slices.entry(chunk).or_default().push((place, slice));
            }
            kind::ACL => self.acls.extend([values.acl()?]),
            kind::SETTING => {
                drop(self.settings.insert(values.text(0)?.to_owned(), values.text(1)?.to_owned()))
            }
            kind::COUNTER => drop(self.counters.insert(values.text(0)?.to_owned(), values.number(0)?)),
            kind::USAGE => {
                let known = |at| values.signed(at).map(|sum| u64::try_from(sum).unwrap_or(0));
                self.usage = Usage { inodes: known(0)?, blocks: known(1)? };
            }
            kind::LOCK => self.locks.entry(values.ino(0)?).or_default().push(values.lock()?),
            kind::SESSION => {
                let session = values.session()?;
                self.sessions.insert(session.id, session);
            }
            kind::LOCK_WAIT => self.waits.push(LockWait { ino: values.ino(0)?, lock: values.lock()? }),
            kind::DIRENT_WITH_INODE => {
                self.take_dirent(&values)?;
                self.take_joined(&values)?;
            }
            _ => return Err(Malformed("a row of an unknown kind")),
        }
        Ok(())
    }

    fn take_dirent<R: Row>(&mut self, values: &Values<'_, R>) -> Result<(), Malformed> {
        let (parent, name, dirent) = values.dirent()?;
        self.dirents.insert((parent, name), dirent);
        Ok(())
    }

    /// Takes the inode of a row of kind [`kind::DIRENT_WITH_INODE`], if it is not absent.
    pub(crate) fn take_joined<R: Row>(&mut self, values: &Values<'_, R>) -> Result<(), Malformed> {
        let inode = values.behind(3, 1);
        if inode.optional(0)?.is_some() { self.take_inode(&inode) } else { Ok(()) }
    }

    fn take_inode<R: Row>(&mut self, values: &Values<'_, R>) -> Result<(), Malformed> {
        let inode = values.inode()?;
        self.acls.extend(values.acls_of(&inode)?);
        self.inodes.insert(inode.ino, inode);
        Ok(())
    }

    /// Answers every record key, in order.
    pub fn answer<'w>(&self, wants: impl IntoIterator<Item = &'w RecordKey>) -> Vec<Record> {
        let mut records = Vec::new();
        for want in wants {
            match want {
                RecordKey::Inode(ino) => self.push_inode(*ino, &mut records),
                RecordKey::Entry(parent, name) => {
                    let dirent = self.dirents.get(&(*parent, name.clone())).copied();
                    records.push(Record::Dirent(*parent, name.clone(), dirent));
                    if let Some(dirent) = dirent {
                        self.push_inode(dirent.ino, &mut records);
                    }
                }
                RecordKey::Empty(ino) => records.push(Record::Empty(*ino, !self.filled.contains(ino))),
                RecordKey::Xattrs(ino) => {
                    let xattrs = self.xattrs.get(ino).cloned().unwrap_or_default();
                    records.push(Record::Xattrs(*ino, Arc::new(xattrs)));
                }
                RecordKey::Symlink(ino) => {
                    records.push(Record::Symlink(*ino, self.symlinks.get(ino).cloned()));
                }
                RecordKey::Slices(ino, chunk) => {
                    let mut rows = self.slices.get(&(*ino, *chunk)).cloned().unwrap_or_default();
                    rows.sort_by_key(|(place, _)| *place);
                    let rows = rows.into_iter().map(|(_, slice)| slice).collect();
                    records.push(Record::Slices(*ino, *chunk, rows));
                }
                RecordKey::Acl(id) => records.push(self.acl(*id)),
                RecordKey::Settings => records.push(Record::Settings(Arc::new(self.settings.clone()))),
                RecordKey::Counter(counter) => {
                    let value = self.counters.get(counter.name()).copied().unwrap_or(0);
                    records.push(Record::Counter(*counter, value));
                }
                RecordKey::Usage => records.push(Record::Usage(self.usage)),
                RecordKey::Locks(ino) => {
                    let locks = self.locks.get(ino).cloned().unwrap_or_default();
                    records.push(Record::Locks(*ino, sorted(locks)));
                }
                RecordKey::Waits => {
                    let mut waits = self.waits.clone();
                    waits.sort_unstable_by_key(|wait| wait.lock.owner);
                    records.push(Record::Waits(waits.into()));
                }
                RecordKey::Session(id) => records.push(Record::Session(*id, self.sessions.get(id).cloned())),
            }
        }
        records
    }

    pub(crate) fn inode(&self, ino: Ino) -> Record {
        Record::Inode(ino, self.inodes.get(&ino).copied())
    }

    pub(crate) fn acl(&self, id: AclId) -> Record {
        Record::Acl(id, self.acls.get(&id).cloned())
    }

    /// Appends an inode and its ACLs.
    pub(crate) fn push_inode(&self, ino: Ino, records: &mut Vec<Record>) {
        records.push(self.inode(ino));
        records.extend(self.inodes.get(&ino).iter().flat_map(|inode| inode.acls()).map(|id| self.acl(id)));
    }
}

/// Sorts locks by unsigned numbers; the order of the table may differ.
pub(crate) fn sorted(mut locks: Vec<Lock>) -> Arc<[Lock]> {
    locks.sort_unstable();
    locks.into()
}
