//! Answers operations from the directories that a client holds, and decides which transactions are sent to
//! the engine; see `held.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use host::Instant;
use journal::{Header, Journal, Journals};
use meta::{
    DIR_BYTES, Effect, Engine, EngineError, Guard, Inode, Outcome, Page, Record, RecordKey, Scan,
    ScanInclude, Snapshot, Txn,
};
use ops::{Acl, Key, Value};
use types::{AclId, BootInstant, Ino, Name, SessionId, SliceId, Time};

use crate::driver::Meta;
use crate::failure::Failure;
use crate::held::{
    Entered, HasRoom, HeldRead, Known, MAX_ACL_TEXTS, MAX_INODES, MAX_QUEUED, MakeDurable, POLL_INTERVAL,
    State, changes_files, slices_of,
};
use crate::ticket::Ticket;

impl Meta {
    /// From the next session on, holds the directories that this client creates. A thread must run
    /// [`Meta::commit_queued`]. `make_durable` is called before a row that names slices is committed. Changes
    /// that are answered before they are committed are written to a journal. Only the first call has an
    /// effect.
    pub fn hold_new_directories(&self, make_durable: MakeDurable, journals: Arc<dyn Journals>) {
        let _ = self.held.journals.set(journals);
        let _ = self.held.make_durable.set(make_durable);
    }

    /// Holds nothing while `has_room` returns false. Only the first call has an effect.
    pub fn set_room_check(&self, has_room: HasRoom) {
        let _ = self.held.has_room.set(has_room);
    }

    /// Begins a journal for a session. If that fails, nothing is held.
    pub fn begin_journal(&self, session: SessionId, since: Time) {
        let Some(journals) = self.held.journals.get() else { return };
        self.look_for_room();
        let (volume, loaded) = (self.volume().uuid.clone(), self.volume().loaded.clone());
        let begun = journals.create(&volume, session).and_then(|storage| {
            let (format, boot_id) = (journal::FORMAT, host::boot_id());
            Journal::begin(storage, &Header { format, boot_id, volume, loaded, session, since })
        });
        let journal = begun.inspect_err(|error| {
            tracing::warn!(%error, ?journals, "cannot create a journal, so changes are committed before they are answered");
        });
        let mut state = host::lock(&self.held.state);
        state.journal = journal.ok();
        self.held.has_journal.store(state.journal.is_some(), Ordering::Release);
    }

    /// Removes the journal, because its session has ended, or nothing is held or queued.
    pub(crate) fn end_journal(&self, state: &mut State) {
        self.held.has_journal.store(false, Ordering::Release);
        if let Some(journal) = state.journal.take() {
            journal.remove();
        }
    }

    /// Removes the journal of a session that continues, if nothing is held or queued. From then on no
    /// directory is held, until [`Meta::begin_journal`]. Returns false if something is held or queued.
    pub fn end_empty_journal(&self) -> bool {
        let mut state = host::lock(&self.held.state);
        let is_empty = state.queue.is_empty() && state.directories.is_empty() && state.taking.is_none();
        if is_empty {
            self.end_journal(&mut state);
        }
        is_empty
    }

    /// Whether [`Meta::hold_new_directories`] was called.
    pub fn is_holding(&self) -> bool {
        self.held.make_durable.get().is_some()
    }

    /// Whether the session has a journal. The lock on the journal tells others on this machine whether the
    /// process has ended.
    pub fn has_journal(&self) -> bool {
        self.held.has_journal.load(Ordering::Acquire)
    }

    /// The number of directories that this client holds.
    pub fn held_directories(&self) -> usize {
        self.held.directories()
    }

    /// Whether a directory that is created now is to be held.
    pub(crate) fn holds_new(&self) -> bool {
        self.may_hold()
            && (self.held.directories() > 0
                || self.nanos_of(Instant::now()) >= self.held.not_before.load(Ordering::Acquire))
    }

    /// Whether this client may hold directories, apart from the pause after a recall (`Held::not_before`).
    pub(crate) fn may_hold(&self) -> bool {
        self.has_journal()
            && (self.is_exclusive() || !self.is_embedded())
            && self.is_current()
            && self.volume().limits().is_none()
            && !self.volume().sync_metadata
    }

    pub(crate) fn known(&self) -> Known<'_> {
        let may_be_held = self.may_answer_held();
        Known { held: &self.held, cache: &self.cache, kind: self.volume().acl, may_be_held }
    }

    /// Whether anything is held, and this client may answer from it. It may not if its session was not
    /// renewed for a long time: other clients may then have removed the session and changed its directories.
    fn may_answer_held(&self) -> bool {
        !self.held.is_idle()
            && !self.held.is_ending.load(Ordering::Acquire)
            && (self.is_exclusive() || self.fence.is_valid(BootInstant::now()))
    }

    /// The lowest slice that a queued transaction names. No committed row names it yet.
    pub fn first_queued_slice(&self) -> Option<SliceId> {
        if self.held.is_idle() {
            return None;
        }
        let state = host::lock(&self.held.state);
        state.queue.iter().flat_map(|queued| slices_of(&queued.txn)).min()
    }

    /// Applies a transaction to the held records, and queues it. `None` if it must be sent to the engine
    /// instead, for example because it concerns anything that is not held, or because the journal cannot take
    /// it.
    ///
    /// # Errors
    /// [`Failure::Fenced`]; [`Failure::Engine`] if the database has not accepted earlier transactions for too
    /// long. Then nothing was changed.
    pub(crate) fn commit_held(&self, txn: &Txn, ticket: &Ticket) -> Result<Option<Outcome>, Failure> {
        if !self.may_answer_held() {
            return Ok(None);
        }
        let Some(queued) = self.with_acls(txn) else { return Ok(None) };
        let own = txn.op_id.session();
        let (began, timeout) = (Instant::now(), self.retry_timeout());
        let mut state = host::lock(&self.held.state);
        loop {
            if state.is_closing || !state.covers(&queued, own) {
                return Ok(None);
            }
            if self.fence.is_lost(own) || own != self.session() {
                return Err(Failure::Fenced(own));
            }
            let is_full = state.queue.len() >= MAX_QUEUED && !queued.effects.is_empty();
            if !state.is_held_txn_in_flight && !is_full {
                break;
            }
            if began.elapsed() >= timeout {
                let message = "the database has not accepted earlier changes for too long";
                return Err(EngineError::transient(message).into());
            }
            if state.is_held_txn_in_flight {
                state = host::wait_timeout(&self.held.changed, &self.held.state, state, POLL_INTERVAL);
            } else {
                let target = state.committed + 1;
                drop(state);
                self.send_queued(target)?;
                state = host::lock(&self.held.state);
            }
        }
        let guards = queued.guards.iter().filter(|guard| !matches!(guard, Guard::Term { .. }));
        let op_id = queued.op_id;
        let check = Txn { op_id, guards: guards.cloned().collect(), effects: Vec::new() };
        if let Some(Outcome::Conflict(snapshot)) = state.records.commit(&[check])?.pop() {
            return Ok(Some(Outcome::Conflict(state.only_held(snapshot))));
        }
        // A transaction that the journal cannot take is committed before it is answered.
        if !queued.effects.is_empty() && !state.keep(&queued) {
            return Ok(None);
        }
        let change = Txn { op_id, guards: Vec::new(), effects: queued.effects.clone() };
        let outcome = state.records.commit(&[change])?.pop();
        let outcome = outcome.ok_or_else(|| EngineError::permanent("a transaction has no outcome"))?;
        if !queued.effects.is_empty() {
            state.note(&queued.effects, own);
            state.must_give_back |= state.inodes.len() > MAX_INODES;
            state.push(queued, ticket.clone());
            self.held.note(&state);
        }
        Ok(Some(outcome))
    }

    /// The transaction with an effect that stores the ACL in place of each guard of an ACL, because such a
    /// guard might fail later. `None` if an ACL is not known.
    fn with_acls(&self, txn: &Txn) -> Option<Txn> {
        let mut queued = txn.clone();
        queued.guards.retain(|guard| !matches!(guard, Guard::Acl { .. }));
        for guard in &txn.guards {
            let Guard::Acl { id } = *guard else { continue };
            queued.effects.push(Effect::PutAcl { id, text: self.acl_text(id)? });
        }
        Some(queued)
    }

    /// The text of an ACL; `None` if this client does not know it.
    fn acl_text(&self, id: AclId) -> Option<Arc<str>> {
        if let Some(text) = host::lock(&self.held.acl_texts).get(&id) {
            return Some(Arc::clone(text));
        }
        let Some(Value::Acl(Some(acl))) = self.cache.get(&Key::Acl(id), None) else { return None };
        let text: Arc<str> = match acl {
            Acl::Posix(acl) => acl.to_storage().into(),
            Acl::Nfs4(acl) => acl.acl().to_storage().into(),
        };
        let mut texts = host::lock(&self.held.acl_texts);
        if texts.len() >= MAX_ACL_TEXTS {
            texts.clear();
        }
        texts.insert(id, Arc::clone(&text));
        Some(text)
    }

    /// Prepares for a transaction that is to be sent to the engine. If it changes files, everything that is
    /// queued is committed first. If it concerns held records, no other transaction changes them until the
    /// returned [`Entered`] is dropped.
    ///
    /// # Errors
    /// Those of [`Meta::settle_held`].
    pub(crate) fn enter(&self, txn: &Txn) -> Result<Option<Entered<'_>>, Failure> {
        let own = txn.op_id.session();
        let created = |effect: &Effect| match effect {
            Effect::PutInode(inode) => inode.holder().filter(|holder| *holder == own).map(|_| inode.ino),
            _ => None,
        };
        let being_created: Vec<Ino> = txn.effects.iter().filter_map(created).collect();
        if self.held.is_idle() && being_created.is_empty() {
            return Ok(None);
        }
        let (began, timeout) = (Instant::now(), self.retry_timeout());
        let mut state = host::lock(&self.held.state);
        loop {
            let concerns_held = state.concerns_held(txn);
            let must_wait = state.concerns_new_directory(txn)
                || state.concerns_taken(txn)
                || concerns_held && (state.is_held_txn_in_flight || state.is_closing);
            if !must_wait {
                state.is_held_txn_in_flight |= concerns_held;
                state.being_created.extend(&being_created);
                self.held.note(&state);
                drop(state);
                let entered = Entered { held: &self.held, concerns_held, being_created };
                if concerns_held || txn.effects.iter().any(changes_files) {
                    self.settle_held()?;
                }
                return Ok(Some(entered));
            }
            if began.elapsed() >= timeout {
                let message = "an earlier change of the same directories has not ended for too long";
                return Err(EngineError::transient(message).into());
            }
            state = host::wait_timeout(&self.held.changed, &self.held.state, state, POLL_INTERVAL);
        }
    }

    /// Updates what is held after a transaction that was sent to the engine. `is_known` says whether the
    /// transaction was certainly committed.
    pub(crate) fn leave(&self, entered: Option<Entered<'_>>, txn: &Txn, is_known: bool) {
        let Some(entered) =
            entered.filter(|entered| entered.concerns_held || !entered.being_created.is_empty())
        else {
            return;
        };
        let own = txn.op_id.session();
        let mut state = host::lock(&self.held.state);
        if self.fence.is_lost(own) || own != self.session() {
            // The session of the transaction has ended, so it holds nothing.
        } else if is_known && !state.is_closing {
            // If the transaction concerned nothing held when it was sent, a directory that it concerns may
            // have been taken since. The records that were read for the take already include its effects, so
            // only the new directories are added.
            let only = (!entered.concerns_held).then_some(&entered.being_created[..]);
            state.apply(txn, own, only);
            // If an earlier attempt had no known result, the new directories are in `stale_holds`. Now they
            // are held.
            entered.being_created.iter().for_each(|ino| _ = state.stale_holds.remove(ino));
            // If the change stream was interrupted, a recall of a new directory may have been missed.
            state.must_give_back |= !entered.being_created.is_empty() && !self.is_current();
            if state.directories.is_empty() && state.queue.is_empty() {
                // Nothing is held or queued, so `records` is not needed.
                drop(state.drop_records(&self.held.drops));
            }
        } else {
            // The records of the new directories may name this session, although the directories are not
            // held. If the transaction concerned held records, `records` may be out of date, so it is
            // dropped.
            state.stale_holds.extend(&entered.being_created);
            if entered.concerns_held {
                let directories = state.drop_records(&self.held.drops);
                state.stale_holds.extend(directories);
            }
            let mut stale_holds: Vec<Ino> = state.stale_holds.iter().copied().collect();
            stale_holds.sort_unstable();
            self.queue_release(&mut state, stale_holds);
        }
        self.held.note(&state);
        drop(state);
        drop(entered);
    }

    /// Queues the changes that remove this session from the records of directories.
    pub(crate) fn queue_release(&self, state: &mut State, directories: impl IntoIterator<Item = Ino>) {
        let own = self.session();
        let Some(size) = Inode::held_size(own) else { return };
        for ino in directories {
            let Ok(ticket) = self.terms.next_op(own) else { return };
            let Ok(guards) = self.with_own_guard(vec![Guard::Size { ino, size }], ticket.id) else { return };
            let effects = vec![Effect::SetSize { ino, size: DIR_BYTES }];
            state.push_optional(Txn { op_id: ticket.id, guards, effects }, ticket);
        }
    }

    /// Reads records that an operation needs, if all of them are held. Otherwise prepares for reading them
    /// from the engine.
    ///
    /// # Errors
    /// Those of [`Meta::settle_held`].
    pub(crate) fn read_held(&self, keys: &[RecordKey]) -> Result<HeldRead, Failure> {
        if self.held.is_idle() {
            return Ok(HeldRead::Nothing);
        }
        let until = Instant::now() + self.retry_timeout();
        let mut state = host::lock(&self.held.state);
        let (held, reads_acl) = loop {
            let held =
                keys.iter().filter(|key| state.is_held(key) && !matches!(key, RecordKey::Locks(_))).count();
            let reads_acl =
                keys.iter().any(|key| matches!(key, RecordKey::Acl(_))) && !state.queue.is_empty();
            if held < keys.len() || !self.may_answer_held() {
                break (held, reads_acl);
            }
            let snapshot = state.read(keys);
            let elsewhere = |record: &Record| match record {
                Record::Dirent(_, _, Some(dirent)) if !state.inodes.contains(&dirent.ino) => {
                    Some(RecordKey::Inode(dirent.ino))
                }
                _ => None,
            };
            let inodes: Vec<RecordKey> = snapshot.records.iter().filter_map(elsewhere).collect();
            if inodes.is_empty() {
                return Ok(HeldRead::All(snapshot));
            }
            // A transaction that the engine is processing may already have removed such an inode there. Its
            // name is removed from `records` after that.
            if !state.is_held_txn_in_flight || Instant::now() >= until {
                return Ok(HeldRead::Linked(snapshot, inodes));
            }
            state = host::wait_timeout(&self.held.changed, &self.held.state, state, POLL_INTERVAL);
        };
        drop(state);
        // A transaction in the queue may store the ACL, so the engine may not have it yet.
        if held > 0 || reads_acl {
            self.settle_held()?;
        }
        Ok(if held > 0 { HeldRead::Some } else { HeldRead::Nothing })
    }

    /// Whether this client holds the directory.
    pub(crate) fn is_held_here(&self, dir: Ino) -> bool {
        !self.held.is_idle() && host::lock(&self.held.state).directories.contains(&dir)
    }

    /// One page of a directory, as [`Meta::list`]. `None` if the directory is not held, if the engine is
    /// processing a change of held records, or if `inodes` are requested and one of them is neither held nor
    /// cached. An inode is not held if it has a name elsewhere, or had its name before the directory was
    /// taken.
    pub(crate) fn list_held(
        &self,
        parent: Ino,
        after: Option<&Name>,
        limit: usize,
        inodes: bool,
    ) -> Option<Page> {
        if !self.may_answer_held() {
            return None;
        }
        let state = host::lock(&self.held.state);
        if !state.directories.contains(&parent) || state.is_held_txn_in_flight {
            return None;
        }
        let include = if inodes { ScanInclude::Inodes } else { ScanInclude::Nothing };
        let scan = Scan::Dir { parent, after: after.cloned(), limit, include };
        let mut page = Engine::scan(&state.records, &scan).ok()?;
        let elsewhere: Vec<Ino> = page
            .snapshot
            .records
            .iter()
            .filter_map(|record| match record {
                Record::Inode(ino, _) if !state.inodes.contains(ino) => Some(*ino),
                _ => None,
            })
            .collect();
        drop(state);
        let mut known = elsewhere.iter().zip(self.known_inodes(&elsewhere)).peekable();
        for record in &mut page.snapshot.records {
            if let Record::Inode(ino, inode) = record
                && let Some((_, known)) = known.next_if(|(elsewhere, _)| **elsewhere == *ino)
            {
                *inode = Some(known?);
            }
        }
        Some(page)
    }

    /// Adds the names of those inodes that have a name in a held directory, each with this directory. Reads
    /// all held entries, and operations in held directories wait meanwhile.
    pub(crate) fn add_held_names(&self, inos: &BTreeSet<Ino>, names: &mut BTreeMap<Ino, (Ino, Name)>) {
        if self.held.is_idle() {
            return;
        }
        let state = host::lock(&self.held.state);
        for parent in state.directories.iter().filter(|_| inos.iter().any(|ino| state.inodes.contains(ino))) {
            let include = ScanInclude::Nothing;
            let all = Scan::Dir { parent: *parent, after: None, limit: usize::MAX, include };
            for record in
                Engine::scan(&state.records, &all).map_or_else(|_| Vec::new(), |page| page.snapshot.records)
            {
                if let Record::Dirent(parent, name, Some(dirent)) = record
                    && inos.contains(&dirent.ino)
                {
                    names.insert(dirent.ino, (parent, name));
                }
            }
        }
    }

    /// Reads records. Held records come from memory. Unless `is_remembered` is set, only records that never
    /// change are cached. Also returns the number of snapshots that the records are from.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn read_records(
        &self,
        keys: &[RecordKey],
        is_remembered: bool,
    ) -> Result<(Vec<(Key, Value)>, u32), Failure> {
        loop {
            let drops = self.held_drops();
            let (here, keys) = match self.read_held(keys)? {
                HeldRead::All(snapshot) => return Ok((self.cache.pass(&snapshot, Instant::now()), 1)),
                HeldRead::Linked(snapshot, inodes) => (Some(snapshot), inodes),
                HeldRead::Nothing => (None, keys.to_vec()),
                HeldRead::Some => {
                    let began = Instant::now();
                    let snapshot = self.retry(|| self.engine.read(keys))?;
                    return Ok((self.cache.pass(&snapshot, began), 1));
                }
            };
            let began = Instant::now();
            let snapshot = self.retry(|| self.engine.read(&keys))?;
            let snapshot = self.without_held(snapshot);
            // If held records were dropped meanwhile, `without_held` did not remove them from this answer,
            // which may be older than their last commit.
            if self.held_drops() != drops {
                continue;
            }
            let mut records = match is_remembered {
                true => self.cache.absorb_and_return(&snapshot, began),
                false => self.cache.pass(&snapshot, began),
            };
            let moments = 1 + u32::from(here.is_some());
            records.extend(here.iter().flat_map(|here| self.cache.pass(here, began)));
            return Ok((records, moments));
        }
    }

    /// How often this client has dropped its held records.
    pub(crate) fn held_drops(&self) -> u64 {
        self.held.drops.load(Ordering::Acquire)
    }

    /// Removes held records from an answer of the engine, because they may be out of date there.
    pub(crate) fn without_held(&self, mut snapshot: Snapshot) -> Snapshot {
        if self.held.is_idle() {
            return snapshot;
        }
        let state = host::lock(&self.held.state);
        snapshot.records.retain(|record| match record {
            Record::Inode(ino, _) => !state.is_held(&RecordKey::Inode(*ino)),
            Record::Dirent(parent, ..) => !state.directories.contains(parent),
            _ => true,
        });
        snapshot
    }

    /// Prepares for a scan, which only the engine can answer.
    ///
    /// # Errors
    /// Those of [`Meta::settle_held`].
    pub(crate) fn before_scan(&self, scan: &Scan) -> Result<(), Failure> {
        match scan {
            Scan::Sessions { .. } | Scan::Quotas { .. } | Scan::Acls { .. } | Scan::Garbage { .. } => Ok(()),
            _ => self.settle_held(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
