//! What the kernel of a client holds of attributes, as Linux does (`fs/fuse/inode.c`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::Instant;
use types::Ino;
use vfs::{Kernel, Vfs};

use crate::mounts::scheduler;
use crate::mutant::Mutant;

/// Attributes in the kernel's memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    state: Mutex<State>,
    mutant: Option<Mutant>,
}

#[derive(Debug, Default)]
struct State {
    inodes: BTreeMap<Ino, Inode>,
    /// Counts notifications and replies (`fuse_conn.attr_version`).
    version: u64,
    /// Inodes that were dropped (`fuse_conn.evict_ctr`).
    evictions: u64,
}

#[derive(Clone, Copy, Debug)]
struct Inode {
    mode: u32,
    valid_until: Instant,
    version: u64,
}

impl Memory {
    pub(super) fn new(mutant: Option<Mutant>) -> Self {
        Memory { state: Mutex::default(), mutant }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mode by which a caller is checked. GETATTR is sent unless the attributes are valid; `delay` says how long each way
    /// takes. `None` if the request failed, or its reply was dropped.
    pub(super) fn mode(&self, vfs: &Vfs, ino: Ino, delay: impl Fn() -> Duration) -> Option<u32> {
        let begun = {
            let state = self.lock();
            if let Some(inode) = state.inodes.get(&ino).filter(|inode| Instant::now() < inode.valid_until) {
                return Some(inode.mode);
            }
            (state.version, state.evictions)
        };
        host::sleep(delay());
        let reply = vfs.begin_reply();
        let attr = vfs.getattr(ino).ok()?;
        let lifetimes = reply.lifetimes();
        drop(reply);
        host::sleep(delay());
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        let valid_until = Instant::now() + lifetimes.attributes;
        let new = Inode { mode: attr.mode.bits(), valid_until, version };
        match state.inodes.get_mut(&ino) {
            // A notification, or another reply, came meanwhile: the attributes are dropped, and the kernel goes by those that it
            // has, once. Nothing that this client could do keeps it from that.
            Some(inode) if inode.version > begun.0 => None,
            Some(inode) => {
                *inode = new;
                Some(new.mode)
            }
            None => {
                // What an inode was told that is gone since is not known any more.
                let is_valid = state.evictions == begun.1;
                let valid_until = if is_valid { new.valid_until } else { Instant::now() };
                state.inodes.insert(ino, Inode { valid_until, ..new });
                Some(new.mode)
            }
        }
    }

    /// A reply to SETATTR, which is always taken in (`fuse_do_setattr`).
    pub(super) fn set(&self, ino: Ino, mode: u32, lifetime: Duration) {
        let mut state = self.lock();
        state.version += 1;
        let (version, valid_until) = (state.version, Instant::now() + lifetime);
        state.inodes.insert(ino, Inode { mode, valid_until, version });
    }

    /// The kernel needs the memory for something else.
    pub(super) fn evict(&self, vfs: &Vfs, ino: Ino) {
        let mut state = self.lock();
        let is_known = state.inodes.remove(&ino).is_some();
        state.evictions += u64::from(is_known);
        drop(state);
        if is_known {
            vfs.forget(ino, 1);
        }
    }
}

impl Kernel for Memory {
    fn forget_attributes(&self, ino: Ino) {
        if self.mutant == Some(Mutant::NotRepeated) && scheduler::name() == "limen-lease" {
            return;
        }
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        if let Some(inode) = state.inodes.get_mut(&ino) {
            (inode.valid_until, inode.version) = (Instant::now(), version);
        }
    }

    fn forget_content(&self, ino: Ino) {
        self.forget_attributes(ino);
    }

    fn expire_name(&self, _: Ino, _: &[u8]) {}

    fn expire_all(&self) {}

    fn can_expire_all(&self) -> bool {
        true
    }
}
