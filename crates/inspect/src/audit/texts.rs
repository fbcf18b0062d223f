//! The texts of ACLs, read when a class is met for the first time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meta::{Engine, EngineError, Node, Record, Want};
use types::AclId;

/// Texts kept, in bytes; when there are more, they are read anew.
const MAX_BYTES: usize = 16 << 20;

/// ACLs read in one request, which have 64 KiB each at most, or a few times that as text.
const MAX_ACLS: usize = 64;

/// Of so many inodes to come the ACLs are looked at, to be read along.
const MAX_AHEAD: usize = 1024;

#[derive(Debug)]
pub(super) struct Texts<'e> {
    engine: &'e dyn Engine,
    /// `None` for one that is not stored.
    known: HashMap<AclId, Option<Arc<str>>>,
    bytes: usize,
}

impl<'e> Texts<'e> {
    pub(super) fn new(engine: &'e dyn Engine) -> Self {
        Texts { engine, known: HashMap::new(), bytes: 0 }
    }

    /// The text stored under an id, if there is one. `ahead` are inodes whose ACLs will be asked for next: those are read
    /// in the same request.
    pub(super) fn get<'n>(
        &mut self,
        id: AclId,
        ahead: impl Iterator<Item = &'n Node>,
    ) -> Result<Option<Arc<str>>, EngineError> {
        if let Some(known) = self.known.get(&id) {
            return Ok(known.clone());
        }
        if self.bytes > MAX_BYTES {
            self.known.clear();
            self.bytes = 0;
        }
        let mut wanted = HashSet::from([id]);
        for id in ahead.take(MAX_AHEAD).map(|node| node.access_acl) {
            if wanted.len() == MAX_ACLS {
                break;
            }
            if !id.is_none() && !self.known.contains_key(&id) {
                wanted.insert(id);
            }
        }
        let wants: Vec<Want> = wanted.into_iter().map(Want::Acl).collect();
        for record in self.engine.read(&wants)?.records {
            if let Record::Acl(id, text) = record {
                self.bytes += text.as_ref().map_or(0, |text| text.len());
                self.known.insert(id, text);
            }
        }
        Ok(self.known.get(&id).cloned().flatten())
    }
}
