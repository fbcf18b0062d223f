//! The texts of ACLs, read when a class first needs them.
//!
//! The texts are not read with the inodes that have the ACLs. In a directory in which every file has a
//! different ACL, each page would contain as many texts as files. Instead, a miss reads the ACLs of the
//! following inodes in the same request.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meta::{Engine, EngineError, Inode, Record, RecordKey};
use types::AclId;

/// The maximum size of cached texts in bytes. A full cache is cleared.
const MAX_BYTES: usize = 16 << 20;

/// The maximum number of ACLs read in one request. Each has at most 64 KiB, or a few times that as text.
const MAX_ACLS: usize = 64;

/// The maximum number of following inodes whose ACLs are prefetched.
const MAX_AHEAD: usize = 1024;

#[derive(Debug)]
pub(super) struct Texts<'e> {
    engine: &'e dyn Engine,
    /// `None` for an ACL that is not stored.
    known: HashMap<AclId, Option<Arc<str>>>,
    bytes: usize,
}

impl<'e> Texts<'e> {
    pub(super) fn new(engine: &'e dyn Engine) -> Self {
        Texts { engine, known: HashMap::new(), bytes: 0 }
    }

    /// The text stored under an id, or None. `ahead` are the inodes whose ACLs are needed next; the same
    /// request reads these.
    pub(super) fn get<'n>(
        &mut self,
        id: AclId,
        ahead: impl Iterator<Item = &'n Inode>,
    ) -> Result<Option<Arc<str>>, EngineError> {
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
        let wants: Vec<RecordKey> = wanted.into_iter().map(RecordKey::Acl).collect();
        for record in self.engine.read(&wants)?.records {
            if let Record::Acl(id, text) = record {
                self.bytes += text.as_ref().map_or(0, |text| text.len());
                self.known.insert(id, text);
            }
        }
        Ok(self.known.get(&id).cloned().flatten())
    }
}
