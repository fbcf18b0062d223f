//! Takes directories that exist; see `held.rs`.
//!
//! If this client creates several files in a directory within a short time, and is not notified of a change
//! there by another client, the thread that commits the queue takes the directory:
//!
//! 1. From now on, transactions of this client that concern the directory wait (`State::taking`).
//! 2. One transaction makes this session the holder, and increments the access revision of the directory.
//!    Transactions that were planned earlier, by this client or another one, guard the old revision. So they
//!    fail if they are committed later.
//! 3. The names do not change any more, so this client can read them in several pages. Then the directory is
//!    held.
//!
//! If another client recalls the directory meanwhile, if its names cannot be read, or if it is not known
//! whether the take was committed, the directory's record may name this session although the directory is
//! not held (`State::stale_holds`). A change that gives the directory back is then queued.
//!
//! When other clients are notified of the take ([`Invalidation::Names`](meta::Invalidation::Names)), they
//! drop the cached names of the directory. From then on, each of their operations in the directory reads its
//! record, which names the holder, and recalls it.
//!
//! The inodes that had a name in the directory before are not held. They may have other names, or be open or
//! locked elsewhere. Transactions that change them are sent to the engine.

use std::sync::atomic::Ordering;

use host::Instant;
use meta::{Effect, Engine, Inode, Record, RecordKey, Scan, ScanInclude, Txn};
use ops::TakeDirectory;
use types::{Ino, SessionId};

use crate::candidates::{TakePolicy, Taking};
use crate::driver::{BY_KERNEL, Meta};
use crate::failure::Failure;
use crate::held::{MAX_INODES, NoteTaken, POLL_INTERVAL, State};

/// A directory with more names than this is given back at once.
const MAX_NAMES: usize = 10_000;
/// How many names are read in one request.
const PAGE: usize = 1024;
/// The maximum number of directories that wait to be taken.
const MAX_WANTED: usize = 16;

/// The records of a directory that was taken.
#[derive(Debug)]
struct Loaded {
    effects: Vec<Effect>,
    names: usize,
}

impl State {
    /// Whether the transaction concerns the directory that is being taken, and is not the take itself.
    pub(crate) fn concerns_taken(&self, txn: &Txn) -> bool {
        let Some(Taking { dir, .. }) = self.taking else { return false };
        let own = Inode::held_size(txn.op_id.session());
        let is_take = |effect: &Effect| match effect {
            Effect::SetSize { ino, size } => *ino == dir && Some(*size) == own,
            _ => false,
        };
        let is_of_dir = |effect: &Effect| effect.footprint().part.inode() == Some(dir);
        !txn.effects.iter().any(is_take)
            && (txn.effects.iter().any(is_of_dir)
                || txn.guards.iter().any(|guard| guard.part().inode() == Some(dir)))
    }

    /// Whether there is room for the records of a directory.
    fn has_room_for(&self, loaded: &Loaded) -> bool {
        self.inodes.len() + self.taken_names + loaded.names < MAX_INODES
    }

    /// Holds a directory that was taken.
    fn hold(&mut self, dir: Ino, loaded: Loaded, txn: Txn) {
        self.taken_names += loaded.names;
        self.taken.insert(dir);
        // The engine in memory does not fail.
        let _ = self.records.commit(&[Txn { effects: loaded.effects, ..txn }]);
        self.inodes.insert(dir);
        self.directories.insert(dir);
        self.stale_holds.remove(&dir);
    }
}

impl Meta {
    /// Sets what is called after a take, before this client commits anything with the new access revision.
    /// Only the first call has an effect.
    pub fn set_note_taken(&self, note: NoteTaken) {
        let _ = self.held.note_taken.set(note);
    }

    /// From now on, takes directories that exist. Only the first call has an effect.
    pub fn set_take_policy(&self, policy: TakePolicy) {
        let _ = self.held.candidates.policy.set(policy);
    }

    /// Whether a directory may be taken now.
    fn may_take(&self) -> bool {
        self.held.candidates.policy.get().is_some()
            && !self.is_embedded()
            && self.may_hold()
            && self.nanos_of(Instant::now()) >= self.held.no_take_before.load(Ordering::Acquire)
    }

    /// Counts the files that a transaction has created in directories that are not held.
    pub(crate) fn note_created(&self, txn: &Txn) {
        // A transaction that charges a quota would be sent to the engine even if the directory was held.
        if !self.may_take() || txn.effects.iter().any(|effect| matches!(effect, Effect::Charge { .. })) {
            return;
        }
        let is_new = |ino: Ino| {
            txn.effects.iter().any(|effect| matches!(effect, Effect::PutInode(inode) if inode.ino == ino))
        };
        for effect in &txn.effects {
            if let Effect::PutDirent { parent, ino, .. } = effect
                && *parent != Ino::ROOT
                && is_new(*ino)
                && !is_new(*parent)
                && self.held.candidates.count(*parent, Instant::now())
            {
                let mut state = host::lock(&self.held.state);
                let is_known = state.directories.contains(parent)
                    || state.wanted.contains(parent)
                    || state.taking.is_some_and(|taking| taking.dir == *parent);
                if state.wanted.len() < MAX_WANTED && !is_known {
                    state.wanted.push_back(*parent);
                    self.held.changed.notify_all();
                }
            }
        }
    }

    /// Takes the first directory that is to be taken, if there is one.
    pub(crate) fn take_wanted(&self) {
        let own = self.session();
        let mut state = host::lock(&self.held.state);
        let Some(dir) = state.wanted.pop_front() else { return };
        let is_used = [&state.directories, &state.being_created, &state.stale_holds]
            .into_iter()
            .any(|used| used.contains(&dir));
        if is_used || state.is_closing || state.must_give_back || !self.may_take() {
            return;
        }
        // A held transaction that the engine is processing may also concern this directory. Its effects are
        // applied to `records` after its commit, so the names that are read must not have them already.
        if state.is_held_txn_in_flight {
            state.wanted.push_front(dir);
            drop(host::wait_timeout(&self.held.changed, &self.held.state, state, POLL_INTERVAL));
            return;
        }
        state.taking = Some(Taking { dir, is_recalled: false });
        self.held.note(&state);
        drop(state);

        let mut in_doubt = None;
        let done = self.run_once(&TakeDirectory(dir), &BY_KERNEL, &mut in_doubt);
        let may_be_held = done.is_ok() || in_doubt.is_some();
        let loaded = done.and_then(|()| self.load(dir, own));
        // A transaction of this client that was committed before the take may be answered only now. Its
        // names must not enter the cache any more.
        self.drop_names(dir);
        let ticket = self.terms.next_op(own);

        let mut state = host::lock(&self.held.state);
        let is_recalled = state.taking.take().is_some_and(|taking| taking.is_recalled);
        let may_hold = !is_recalled
            && !state.is_closing
            && !state.must_give_back
            && state.journal.is_some()
            // If the change stream was interrupted, a recall may have been missed.
            && self.may_hold();
        match (loaded, ticket) {
            // The session that took the directory has ended, so it holds nothing. But if the take was planned
            // after the next session had begun, the next session may be the holder.
            _ if self.fence.is_lost(own) || own != self.session() => {
                if may_be_held && own != self.session() && !self.fence.is_lost(self.session()) {
                    state.stale_holds.insert(dir);
                    self.queue_release(&mut state, [dir]);
                }
            }
            (Ok(Some(loaded)), Ok(ticket)) if may_hold && state.has_room_for(&loaded) => {
                tracing::debug!(%dir, names = loaded.names, "took a directory");
                let txn = Txn { op_id: ticket.id, guards: Vec::new(), effects: Vec::new() };
                state.hold(dir, loaded, txn);
                self.held.candidates.taken(dir);
            }
            (loaded, _) => {
                tracing::debug!(%dir, is_recalled, error = ?loaded.err(), "did not take a directory");
                self.held.candidates.put_off(dir, Instant::now());
                if may_be_held {
                    state.stale_holds.insert(dir);
                    self.queue_release(&mut state, [dir]);
                }
            }
        }
        self.held.note(&state);
    }

    /// Reads a directory that this session has taken. Nobody changes it meanwhile. `None` if the directory
    /// must be given back.
    fn load(&self, dir: Ino, own: SessionId) -> Result<Option<Loaded>, Failure> {
        let began = Instant::now();
        let keys = [RecordKey::Inode(dir), RecordKey::Xattrs(dir)];
        let snapshot = self.retry(|| self.engine.read(&keys))?;
        self.cache.absorb(&snapshot, began);
        let mut loaded = Loaded { effects: Vec::new(), names: 0 };
        for record in snapshot.records {
            match record {
                Record::Inode(_, Some(inode)) if inode.holder() == Some(own) => {
                    if let Some(note) = self.held.note_taken.get() {
                        note(dir, inode.access_rev);
                    }
                    loaded.effects.push(Effect::PutInode(inode));
                }
                Record::Inode(..) => return Ok(None),
                Record::Xattrs(ino, xattrs) => {
                    loaded.effects.extend(xattrs.iter().map(|(name, value)| Effect::PutXattr {
                        ino,
                        name: name.clone(),
                        value: value.clone(),
                    }))
                }
                _ => {}
            }
        }
        let mut after = None;
        loop {
            let scan =
                Scan::Dir { parent: dir, after: after.take(), limit: PAGE, include: ScanInclude::Nothing };
            let page = self.retry(|| self.engine.scan(&scan))?;
            for record in page.snapshot.records {
                if let Record::Dirent(parent, name, Some(dirent)) = record {
                    after = Some(name.clone());
                    loaded.names += 1;
                    loaded.effects.push(Effect::PutDirent {
                        parent,
                        name,
                        ino: dirent.ino,
                        kind: dirent.kind,
                    });
                }
            }
            if loaded.names > MAX_NAMES {
                return Ok(None);
            }
            if !page.more {
                return Ok(Some(loaded));
            }
            let is_recalled = {
                let state = host::lock(&self.held.state);
                state.must_give_back || state.taking.is_none_or(|taking| taking.is_recalled)
            };
            // After an empty page, it is not known where the next page begins.
            if is_recalled || after.is_none() {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
