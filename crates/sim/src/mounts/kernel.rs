//! A model of a client's kernel: the attributes and names that it caches, as Linux does (`fs/fuse/inode.c`,
//! `dir.c`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use host::Instant;
use types::{Errno, Ino};
use vfs::{Caller, Kernel, KernelNames, Vfs};

use crate::mounts::scheduler;
use crate::mutant::Mutant;

/// The kernel's caches.
#[derive(Debug, Default)]
pub(super) struct Memory {
    state: Mutex<State>,
    /// The names that the mount lists if all are to be expired.
    listed: OnceLock<Arc<KernelNames>>,
    mutant: Option<Mutant>,
}

#[derive(Debug, Default)]
struct State {
    inodes: BTreeMap<Ino, Inode>,
    /// Counts notifications and replies (`fuse_conn.attr_version`).
    version: u64,
    /// Counts evicted inodes (`fuse_conn.evict_ctr`).
    evictions: u64,
    /// The names, positive and negative, and the directories that the kernel knows.
    names: BTreeMap<(Ino, Vec<u8>), Dentry>,
    directories: BTreeSet<Ino>,
    /// Counts each beginning and each end of a change of names by this client's programs. The kernel locks
    /// the directory during such a change, so no lookup overlaps it.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Dentry {
    exists: bool,
    valid_until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Inode {
    mode: u32,
    valid_until: Instant,
    version: u64,
}

impl Memory {
    pub(super) fn new(mutant: Option<Mutant>) -> Self {
        Memory { state: Mutex::default(), listed: OnceLock::new(), mutant }
    }

    /// Sets the mount of this kernel.
    pub(super) fn set_mount(&self, vfs: &Vfs) {
        let _ = self.listed.set(Arc::clone(vfs.caches.kernel_names()));
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

    /// Whether a name exists. The kernel sends LOOKUP unless its dentry is valid (`fuse_dentry_revalidate`);
    /// `delay` returns the time that each way takes.
    pub(super) fn exists(
        &self,
        vfs: &Vfs,
        caller: &Caller<'_>,
        (dir, name): (Ino, &[u8]),
        delay: impl Fn() -> Duration,
    ) -> Result<bool, Errno> {
        if !self.lock().directories.contains(&dir) {
            vfs.attributes.getattr(dir)?;
            self.lock().directories.insert(dir);
        }
        let key = (dir, name.to_vec());
        let begun = {
            let state = self.lock();
            let is_valid = |name: &&Dentry| Instant::now() < name.valid_until;
            if let Some(name) = state.names.get(&key).filter(is_valid) {
                return Ok(name.exists);
            }
            state.changes
        };
        host::sleep(delay());
        let reply = vfs.caches.begin_reply();
        let exists = vfs.names.lookup(caller, dir, name)?.is_some();
        let lifetime = vfs.caches.name_sent(dir, name, reply.lifetimes().name);
        drop(reply);
        host::sleep(delay());
        let mut state = self.lock();
        if state.changes == begun {
            let valid_until = Instant::now() + lifetime;
            state.names.insert(key, Dentry { exists, valid_until });
        }
        Ok(exists)
    }

    /// Called before and after a program of this client changes names in a directory.
    pub(super) fn changes_names(&self, dir: Ino) {
        let mut state = self.lock();
        state.changes += 1;
        state.names.retain(|(parent, _), _| *parent != dir);
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

    fn expire_name(&self, parent: Ino, name: &[u8]) {
        self.lock().names.remove(&(parent, name.to_vec()));
    }

    fn expire_directory(&self, dir: Ino) {
        let names = self.listed.get().map(|names| names.of(dir)).unwrap_or_default();
        names.iter().for_each(|name| self.expire_name(dir, name));
    }

    fn expire_all(&self) {
        let all: Vec<_> = self.listed.get().map(|names| names.all().collect()).unwrap_or_default();
        all.iter().for_each(|(dir, names)| names.iter().for_each(|name| self.expire_name(*dir, name)));
    }

    fn can_expire_names(&self) -> bool {
        true
    }
}
