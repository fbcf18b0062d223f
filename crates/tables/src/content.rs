//! Builds, from the rows of a reply, the records that answer record keys.

use std::sync::Arc;

use host::{HashMap, HashSet};
use meta::{
    Dirent, Inode, Lock, LockWait, Quota, QuotaKey, Record, RecordKey, Session, Settings, Usage, Xattrs,
};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, XattrName};

use crate::kind;
use crate::reply::{Malformed, ReplyRow, RowValues};

/// The kind of the rows that answer a record key.
pub fn kind_of(key: &RecordKey) -> i16 {
    match key {
        RecordKey::Inode(_) => kind::INODE,
        RecordKey::Dirent(..) => kind::DIRENT,
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
        RecordKey::Quota(_) => kind::QUOTA,
    }
}

/// The content of a reply; records that are not in it are absent.
#[derive(Debug, Default)]
pub struct ReplyContent {
    pub inodes: HashMap<Ino, Inode>,
    dirents: HashMap<(Ino, Name), Dirent>,
    /// Directories that are not empty.
    filled: HashSet<Ino>,
    xattrs: HashMap<Ino, Xattrs>,
    symlinks: HashMap<Ino, Arc<[u8]>>,
    /// Each row with its position in the chunk.
    slices: HashMap<(Ino, ChunkIndex), Vec<(i64, Slice)>>,
    acls: HashMap<AclId, Arc<str>>,
    settings: Settings,
    counters: HashMap<String, u64>,
    pub usage: Usage,
    locks: HashMap<Ino, Vec<Lock>>,
    waits: Vec<LockWait>,
    sessions: HashMap<SessionId, Session>,
    quotas: HashMap<QuotaKey, Quota>,
}

impl ReplyContent {
    /// The records of `keys`, in order, from all rows of a reply.
    ///
    /// # Errors
    /// The first error of `rows`; those of [`ReplyContent::take`].
    pub fn in_rows<R: RowValues, F: From<Malformed>>(
        rows: impl IntoIterator<Item = Result<ReplyRow<R>, F>>,
        keys: &[RecordKey],
    ) -> Result<Vec<Record>, F> {
        let mut found = ReplyContent::default();
        for row in rows {
            found.take(&row?)?;
        }
        Ok(found.answer(keys))
    }

    /// Adds a row of the reply.
    ///
    /// # Errors
    /// [`Malformed`]; this includes rows of a kind that answers no record key.
    pub fn take<R: RowValues>(&mut self, row: &ReplyRow<R>) -> Result<(), Malformed> {
        match row.kind {
            kind::INODE => self.take_inode(row, 0, 0)?,
            kind::DIRENT => self.take_dirent(row)?,
            kind::NOT_EMPTY => drop(self.filled.insert(row.ino(0)?)),
            kind::XATTR => {
                let name = XattrName::new(row.bytes(0)?);
                let name = name.map_err(|_| Malformed("an extended attribute has an invalid name"))?;
                self.xattrs.entry(row.ino(0)?).or_default().insert(name, row.bytes(1)?.into());
            }
            kind::SYMLINK => drop(self.symlinks.insert(row.ino(0)?, row.bytes(0)?.into())),
            kind::SLICE => self.slices.entry(row.chunk()?).or_default().push(row.slice()?),
            kind::ACL => self.acls.extend([row.acl()?]),
            kind::SETTING => drop(self.settings.insert(row.text(0)?.to_owned(), row.text(1)?.to_owned())),
            kind::COUNTER => drop(self.counters.insert(row.text(0)?.to_owned(), row.number(0)?)),
            kind::USAGE => {
                let count = |at| row.signed(at).map(|sum| u64::try_from(sum).unwrap_or(0));
                self.usage = Usage { inodes: count(0)?, blocks: count(1)? };
            }
            kind::LOCK => self.locks.entry(row.ino(0)?).or_default().push(row.lock()?),
            kind::SESSION => {
                let session = row.session()?;
                self.sessions.insert(session.id, session);
            }
            kind::QUOTA => self.quotas.extend([row.quota()?]),
            kind::LOCK_WAIT => self.waits.push(LockWait { ino: row.ino(0)?, lock: row.lock()? }),
            kind::DIRENT_WITH_INODE => {
                self.take_dirent(row)?;
                self.take_joined(row)?;
            }
            _ => return Err(Malformed("a row of an unknown kind")),
        }
        Ok(())
    }

    /// If `key` is that of an inode or a dirent, appends its records, which are all in this row, and returns
    /// true. Otherwise returns false: the caller must [take](ReplyContent::take) the rows and
    /// [answer](ReplyContent::answer).
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn answer_row<R: RowValues>(
        key: &RecordKey,
        row: &ReplyRow<R>,
        records: &mut Vec<Record>,
    ) -> Result<bool, Malformed> {
        let (ino, inode, texts) = match key {
            RecordKey::Inode(ino) => (*ino, Some(row.inode()?), 2),
            RecordKey::Dirent(parent, name) => {
                let dirent = row.dirent_value()?;
                records.push(Record::Dirent(*parent, name.clone(), Some(dirent)));
                (dirent.ino, row.joined_inode()?, 3)
            }
            _ => return Ok(false),
        };
        records.push(Record::Inode(ino, inode));
        for (at, id) in
            inode.iter().flat_map(|inode| [(texts, inode.access_acl), (texts + 1, inode.default_acl)])
        {
            if !id.is_none() {
                records.push(Record::Acl(id, row.acl_text(at)?.map(Arc::from)));
            }
        }
        Ok(true)
    }

    fn take_dirent<R: RowValues>(&mut self, row: &ReplyRow<R>) -> Result<(), Malformed> {
        let (parent, name, dirent) = row.dirent()?;
        self.dirents.insert((parent, name), dirent);
        Ok(())
    }

    /// Takes the inode of a row of kind [`kind::DIRENT_WITH_INODE`], if the inode exists.
    fn take_joined<R: RowValues>(&mut self, row: &ReplyRow<R>) -> Result<(), Malformed> {
        if row.optional(3)?.is_some() { self.take_inode(row, 3, 1) } else { Ok(()) }
    }

    /// Returns the inode of a row of kind [`kind::DIRENT_WITH_INODE`]. Takes the texts of its ACLs, but not
    /// the inode.
    pub(crate) fn take_joined_acls<R: RowValues>(
        &mut self,
        row: &ReplyRow<R>,
    ) -> Result<Option<Inode>, Malformed> {
        let inode = row.joined_inode()?;
        inode.map_or(Ok(()), |inode| self.take_acls(row, 1, &inode))?;
        Ok(inode)
    }

    /// Takes the inode whose numbers and byte strings begin at these positions, and the texts of its ACLs.
    fn take_inode<R: RowValues>(
        &mut self,
        row: &ReplyRow<R>,
        number: usize,
        string: usize,
    ) -> Result<(), Malformed> {
        let inode = row.inode_at(number, string)?;
        self.take_acls(row, string, &inode)?;
        self.inodes.insert(inode.ino, inode);
        Ok(())
    }

    fn take_acls<R: RowValues>(
        &mut self,
        row: &ReplyRow<R>,
        string: usize,
        inode: &Inode,
    ) -> Result<(), Malformed> {
        for (at, id) in [(2, inode.access_acl), (3, inode.default_acl)] {
            if !id.is_none() && !self.acls.contains_key(&id) {
                let text = row.acl_text(string + at)?;
                self.acls.extend(text.map(|text| (id, text.into())));
            }
        }
        Ok(())
    }

    /// Answers every record key, in order.
    pub fn answer<'w>(&self, keys: impl IntoIterator<Item = &'w RecordKey>) -> Vec<Record> {
        let mut records = Vec::new();
        for key in keys {
            match key {
                RecordKey::Inode(ino) => self.push_inode(*ino, &mut records),
                RecordKey::Dirent(parent, name) => {
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
                    // Sort here, because a database with signed numbers sorts differently.
                    let mut locks = self.locks.get(ino).cloned().unwrap_or_default();
                    locks.sort_unstable();
                    records.push(Record::Locks(*ino, locks.into()));
                }
                RecordKey::Waits => {
                    let mut waits = self.waits.clone();
                    waits.sort_unstable_by_key(|wait| wait.lock.owner);
                    records.push(Record::Waits(waits.into()));
                }
                RecordKey::Session(id) => records.push(Record::Session(*id, self.sessions.get(id).cloned())),
                RecordKey::Quota(key) => records.push(Record::Quota(*key, self.quotas.get(key).copied())),
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
