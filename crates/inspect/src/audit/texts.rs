//! The texts of ACLs, read when a class first needs them.
//!
//! The texts are not read with the inodes that have the ACLs. In a directory in which every file has a
//! different ACL, each page would contain as many texts as files. Instead, a miss reads the ACLs of the
//! following inodes in the same request.
//!
//! So an ACL is read later than the inode that names it. It cannot be a different ACL, because its id is its
//! hash, but it may be gone: the inode got another ACL or was removed, and `limen gc` removed the old ACL. So
//! if an ACL is not stored, the inode is read again, with its ACL as of the same moment.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meta::{Engine, EngineError, Inode, Record, RecordKey};
use types::{AclId, Ino};

use super::model::AuditError;

/// The maximum size of cached texts in bytes. A full cache is cleared.
const MAX_BYTES: usize = 16 << 20;

/// The maximum number of ACLs read in one request. Each has at most 64 KiB, or a few times that as text.
const MAX_ACLS: usize = 64;

/// The maximum number of following inodes whose ACLs are prefetched.
const MAX_AHEAD: usize = 1024;

#[derive(Debug)]
pub(super) struct Texts<'e> {
    engine: &'e dyn Engine,
    /// `None` for an ACL that was not stored although an inode named it at the same moment. That is damage.
    known: HashMap<AclId, Option<Arc<str>>>,
    bytes: usize,
}

/// Why there is no decision about an inode.
#[derive(Debug)]
pub(super) enum Undecided {
    /// The inode has got another ACL since it was read. This is its present state; `None` if it does not
    /// exist any more.
    Changed(Option<Inode>),
    Failed(AuditError),
}

impl<E: Into<AuditError>> From<E> for Undecided {
    fn from(error: E) -> Self {
        Undecided::Failed(error.into())
    }
}

impl<'e> Texts<'e> {
    pub(super) fn new(engine: &'e dyn Engine) -> Self {
        Texts { engine, known: HashMap::new(), bytes: 0 }
    }

    /// The text of an inode's ACL; `None` if the inode has no ACL, or its ACL is not stored. `ahead` are the
    /// inodes whose ACLs are needed next; the same request reads these.
    ///
    /// # Errors
    /// The inode has changed; the database fails.
    pub(super) fn get<'n>(
        &mut self,
        inode: &Inode,
        ahead: impl Iterator<Item = &'n Inode>,
    ) -> Result<Option<Arc<str>>, Undecided> {
        let id = inode.access_acl;
        if id.is_none() {
            return Ok(None);
        }
        if let Some(known) = self.known.get(&id) {
            return Ok(known.clone());
        }
        if self.bytes > MAX_BYTES {
            self.known.clear();
            self.bytes = 0;
        }
        let mut wanted = HashSet::from([id]);
        for id in ahead.take(MAX_AHEAD).map(|inode| inode.access_acl) {
            if wanted.len() == MAX_ACLS {
                break;
            }
            if !id.is_none() && !self.known.contains_key(&id) {
                wanted.insert(id);
            }
        }
        let keys: Vec<RecordKey> = wanted.into_iter().map(RecordKey::Acl).collect();
        self.read(&keys)?;
        if !self.known.contains_key(&id) {
            let now = self.inode(inode.ino)?;
            if now.is_none_or(|now| now.access_acl != id) {
                return Err(Undecided::Changed(now));
            }
        }
        Ok(self.known.get(&id).cloned().flatten())
    }

    /// Reads an inode, and its ACL as of the same moment. `None` if the inode does not exist.
    ///
    /// # Errors
    /// The database fails.
    pub(super) fn inode(&mut self, ino: Ino) -> Result<Option<Inode>, EngineError> {
        let inode = self.read(&[RecordKey::Inode(ino)])?;
        if let Some(id) = inode.map(|inode| inode.access_acl).filter(|id| !id.is_none()) {
            self.known.entry(id).or_default();
        }
        Ok(inode)
    }

    /// Reads records, and remembers the texts among them. Returns the inode, if one was to be read.
    fn read(&mut self, keys: &[RecordKey]) -> Result<Option<Inode>, EngineError> {
        let mut found = None;
        for record in self.engine.read(keys)?.records {
            match record {
                Record::Acl(id, Some(text)) => {
                    self.bytes += text.len();
                    self.known.insert(id, Some(text));
                }
                Record::Inode(_, inode) => found = inode,
                _ => {}
            }
        }
        Ok(found)
    }
}
