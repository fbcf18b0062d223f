//! A model of a client's kernel: the attributes that it caches, as Linux does (`fs/fuse/inode.c`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::Instant;
use types::Ino;
use vfs::{Kernel, Vfs};

use crate::mounts::scheduler;
use crate::mutant::Mutant;

/// The kernel's attribute cache.
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
    /// Counts evicted inodes (`fuse_conn.evict_ctr`).
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

    /// The mode that the kernel uses for an access check. It sends GETATTR unless its attributes are valid;
    /// `delay` returns the time that each way takes. `None` if the request failed, or the kernel dropped the
    /// reply.
    pub(super) fn mode(&self, vfs: &Vfs, ino: Ino, delay: impl Fn() -> Duration) -> Option<u32> {
        let begun = {
            let state = self.lock();
            if let Some(inode) = state.inodes.get(&ino).filter(|inode| Instant::now() < inode.valid_until) {
                return Some(inode.mode);
            }
            (state.version, state.evictions)
        };
        host::sleep(delay());
        let reply = vfs.caches.begin_reply();
        let attr = vfs.attributes.getattr(ino).ok()?;
        let lifetimes = reply.lifetimes();
        drop(reply);
        host::sleep(delay());
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        let valid_until = Instant::now() + lifetimes.attributes;
        let new = Inode { mode: attr.mode.bits(), valid_until, version };
        match state.inodes.get_mut(&ino) {
            // A notification or another reply arrived meanwhile: the kernel drops the attributes of this
            // reply and uses the old ones, once. The client cannot prevent that.
            Some(inode) if inode.version > begun.0 => None,
            Some(inode) => {
                *inode = new;
                Some(new.mode)
            }
            None => {
                // If an inode was evicted meanwhile, a notification for it may be lost, so the attributes are
                // not valid.
                let is_valid = state.evictions == begun.1;
                let valid_until = if is_valid { new.valid_until } else { Instant::now() };
                state.inodes.insert(ino, Inode { valid_until, ..new });
                Some(new.mode)
            }
        }
    }

    /// A reply to SETATTR, which the kernel always applies (`fuse_do_setattr`).
    pub(super) fn set(&self, ino: Ino, mode: u32, lifetime: Duration) {
        let mut state = self.lock();
        state.version += 1;
        let (version, valid_until) = (state.version, Instant::now() + lifetime);
        state.inodes.insert(ino, Inode { mode, valid_until, version });
    }

    /// Removes an inode, as the kernel does under memory pressure.
    pub(super) fn evict(&self, vfs: &Vfs, ino: Ino) {
        let mut state = self.lock();
        let is_known = state.inodes.remove(&ino).is_some();
        state.evictions += u64::from(is_known);
        drop(state);
        if is_known {
            vfs.attributes.forget(ino, 1);
        }
    }
}

impl Kernel for Memory {
    fn invalidate_attributes(&self, ino: Ino) {
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

    fn invalidate_content(&self, ino: Ino) {
        self.invalidate_attributes(ino);
    }

    fn invalidate_content_then(&self, ino: Ino, then: Box<dyn FnOnce() + Send>) {
        self.invalidate_content(ino);
        then();
    }

    fn invalidate_range(&self, ino: Ino, _: u64, _: u64) {
        self.invalidate_attributes(ino);
    }

    fn expire_name(&self, _: Ino, _: &[u8]) {}

    fn expire_all(&self) {}

    fn can_expire_all(&self) -> bool {
        true
    }
}
