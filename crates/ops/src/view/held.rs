//! Directories that other sessions hold: a plan stops there, because their stored records may be out of date.

use meta::{Inode, RecordKey};
use types::{Ino, Name, SessionId};

use super::{PlanStop, View};
use crate::known::{Key, Value};

impl View<'_> {
    /// Sets the session that runs the operation. It may use the directories that it holds; without this call,
    /// the plan stops at every directory that is held.
    pub fn set_session(&mut self, own: SessionId) {
        self.own = own;
    }

    /// Uses the stored records of directories that other sessions hold, instead of stopping there. The other
    /// clients of the embedded engine see only what the holder has committed.
    pub fn trust_held(&mut self) {
        self.trusts_held = true;
    }

    fn is_held_elsewhere(&self, inode: Option<&Inode>) -> bool {
        let holder = inode.and_then(Inode::holder);
        !self.trusts_held && holder.is_some_and(|holder| holder != self.own)
    }

    /// As [`View::known_inode`], for an inode that is to be copied: stops if another session holds it.
    pub fn inode_not_held(&self, ino: Ino) -> Result<Option<Inode>, PlanStop> {
        let inode = self.known_inode(ino);
        if self.is_held_elsewhere(inode.as_ref()) { Err(PlanStop::Held(ino)) } else { Ok(inode) }
    }

    pub(super) fn peek_inode(&mut self, ino: Ino) -> Result<Option<Inode>, PlanStop> {
        let Some(Value::Inode(inode)) = self.lookup(Key::Inode(ino)) else {
            return self.missing(RecordKey::Inode(ino));
        };
        if self.is_held_elsewhere(inode.as_ref()) {
            return Err(PlanStop::Held(ino));
        }
        self.not_held = [ino, self.not_held[0]];
        Ok(inode)
    }

    /// Stops if another session holds the directory, because its stored entries may then be out of date. If
    /// neither the directory nor the entry is known, both are missing.
    pub(super) fn require_not_held(&mut self, dir: Ino, name: &Name) -> Result<(), PlanStop> {
        if self.not_held.contains(&dir) {
            return Ok(());
        }
        match self.peek_inode(dir) {
            Err(PlanStop::Missing) => {
                if self.find(&Key::Dirent(dir, name.clone())).is_none() {
                    self.missing.push(RecordKey::Dirent(dir, name.clone()));
                }
                Err(PlanStop::Missing)
            }
            done => done.map(drop),
        }
    }
}
