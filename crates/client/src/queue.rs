//! How the queue of changes in held directories is committed, and how the directories are given back; see
//! `held.rs`. The same thread takes directories (`taking.rs`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use host::{HashSet, Instant};
use meta::{Effect, EngineError, ErrorKind, Outcome, Txn};
use types::{Errno, Ino, SessionId, SliceId};

use crate::driver::Meta;
use crate::failure::Failure;
use crate::group::{MAX_GROUP, Sent};
use crate::held::{
    GATHER_FOR, GATHER_STEP, LOOK_FOR_ROOM_AFTER, MIN_SUSPENSION, POLL_INTERVAL, RETRY_AFTER, State,
    slices_of,
};

/// Whether changes that are answered but not committed survive the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueAtExit {
    /// There are none.
    Empty,
    /// The next mount on this machine commits them, if the session is not removed before.
    Kept,
    /// This many are lost.
    Lost(usize),
}

impl Meta {
    /// Returns when everything that was queued before the call is committed.
    ///
    /// # Errors
    /// Those of the database; the transactions remain queued. [`Failure::Fenced`]: they will never be
    /// committed.
    pub fn settle_held(&self) -> Result<(), Failure> {
        if self.held.is_idle() {
            return Ok(());
        }
        let (target, losses) = {
            let state = host::lock(&self.held.state);
            (state.queued, state.losses)
        };
        loop {
            let state = host::lock(&self.held.state);
            if state.losses != losses {
                return Err(Failure::Fenced(self.session()));
            }
            if state.committed >= target {
                return Ok(());
            }
            drop(state);
            self.send_queued(target)?;
        }
    }

    /// Sends the first part of the queue, with retries, unless the first `target` transactions that were ever
    /// queued are committed.
    pub(crate) fn send_queued(&self, target: u64) -> Result<(), Failure> {
        let own = self.session();
        self.retry(|| {
            if self.fence.is_lost(own) || own != self.session() {
                return Ok(());
            }
            self.send_group(own, target)
        })?;
        if self.fence.is_lost(own) || own != self.session() { Err(Failure::Fenced(own)) } else { Ok(()) }
    }

    fn send_group(&self, own: SessionId, target: u64) -> Result<(), EngineError> {
        let failures = self.held.failures.load(Ordering::Acquire);
        let mut sending = host::lock(&self.held.sending);
        if self.held.failures.load(Ordering::Acquire) != failures {
            // Another thread has sent the queue meanwhile, without success.
            return Err(EngineError::transient("the database did not accept earlier changes"));
        }
        let first = {
            let mut state = host::lock(&self.held.state);
            if state.committed >= target {
                return Ok(());
            }
            let Some(first) = state.queue.front() else { return Ok(()) };
            let first = first.txn.op_id;
            // If a request that begins with the first queued transaction was sent before, it is sent again. A
            // request that begins with another transaction is from a lost session, and is not sent again.
            if sending.as_ref().is_none_or(|sent| sent.txns[0].op_id != first) {
                let mut group = Sent::first_of(&state.queue);
                state.note_sent(&group.merged);
                if self.is_embedded() {
                    group.mark(&mut state.last_mark);
                }
                *sending = Some(group);
            }
            first
        };
        let Some(sent) = sending.as_mut() else { return Ok(()) };
        let slices: Vec<SliceId> = sent.txns.iter().flat_map(slices_of).collect();
        // An embedded engine refuses no transaction for what it contains, but may fail for a while. The queue
        // is then kept.
        let refused = |error: &EngineError| {
            !self.is_embedded()
                && error.kind == ErrorKind::Determinate { transient: false }
                && error.errno != Errno::ENOSPC
        };
        let outcomes = self.make_durable(&slices).and_then(|()| match self.engine.commit(&sent.txns) {
            // One of the transactions may be refused, so the first one is sent alone. The others are sent
            // again unchanged.
            Err(error) if refused(&error) && sent.txns.len() > 1 => self.engine.commit(&sent.txns[..1]),
            done => done,
        });
        if outcomes.is_err() {
            self.held.failures.fetch_add(1, Ordering::AcqRel);
        }
        let outcomes = match outcomes {
            Err(error) if refused(&error) => {
                tracing::error!(%error, "the database refuses a change that was answered, so this mount ends its session");
                self.remove_own_session(own);
                return Ok(());
            }
            outcomes => outcomes?,
        };
        for ((txn, merged), outcome) in sent.txns.iter().zip(&sent.merged).zip(&outcomes) {
            let Outcome::Conflict(snapshot) = outcome else { continue };
            if self.check_own(&txn.guards, snapshot).is_err() {
                return Ok(());
            }
            if !merged.is_optional {
                tracing::error!(
                    ?txn,
                    ?snapshot,
                    "a change in a held directory was refused: another client has changed the directory, so this mount ends its session"
                );
                self.remove_own_session(own);
                return Ok(());
            }
        }
        let done = outcomes.len().min(sent.txns.len());
        let count: usize = sent.merged[..done].iter().map(|merged| merged.count).sum();
        let mut state = host::lock(&self.held.state);
        if state.queue.front().map(|queued| queued.txn.op_id) == Some(first) {
            state.pop(count, &sent.merged[done..]);
        }
        for ((txn, merged), outcome) in sent.txns.iter().zip(&sent.merged).zip(&outcomes) {
            // The directory stays in `stale_holds` if the guard failed, because a request that arrives late
            // may still create it.
            if let (Outcome::Committed { .. }, [Effect::SetSize { ino, .. }, ..], true) =
                (outcome, &txn.effects[..], merged.is_optional)
            {
                state.stale_holds.remove(ino);
            }
        }
        if state.directories.is_empty() && state.queue.is_empty() {
            // Nothing is held or queued, so `records` is not needed.
            drop(state.drop_records(&self.held.drops));
        }
        self.held.note(&state);
        drop(state);
        sent.txns.drain(..done);
        sent.merged.drain(..done);
        if sent.txns.is_empty() {
            *sending = None;
        }
        Ok(())
    }

    /// Removes this client's own session, so that others need not wait until it counts as dead.
    fn remove_own_session(&self, own: SessionId) {
        self.held.is_ending.store(true, Ordering::Release);
        if let Err(error) = self.drop_session(own) {
            tracing::warn!(%error, "cannot remove the session");
        }
        self.fence.set_lost(own);
        self.held.is_ending.store(false, Ordering::Release);
    }

    /// Makes slices durable before a row that names them is committed. An exclusive mount does this when it
    /// makes the rows durable.
    pub(crate) fn make_durable(&self, slices: &[SliceId]) -> Result<(), EngineError> {
        match self.held.make_durable.get() {
            Some(make_durable) if !slices.is_empty() && !self.is_exclusive() => {
                let failed = |errno| EngineError::transient("cannot make blocks durable").with_errno(errno);
                make_durable(slices).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// As [`Meta::make_durable`], for the slices of a transaction.
    pub(crate) fn make_slices_durable(&self, txn: &Txn) -> Result<(), EngineError> {
        if !self.is_holding() {
            return Ok(());
        }
        self.make_durable(&slices_of(txn).collect::<Vec<_>>())
    }

    /// Commits everything that is queued, and gives all directories back.
    ///
    /// # Errors
    /// Those of the database. Then either everything is still held, or nothing is held, but changes of the
    /// directories' records are still queued. [`Failure::Fenced`]: the session is lost.
    pub fn give_back(&self) -> Result<(), Failure> {
        let mut state = host::lock(&self.held.state);
        while state.is_held_txn_in_flight || state.is_closing || state.taking.is_some() {
            // The thread that takes a directory then gives it back.
            state.taking.iter_mut().for_each(|taking| taking.is_recalled = true);
            state = host::wait_timeout(&self.held.changed, &self.held.state, state, POLL_INTERVAL);
        }
        if state.directories.is_empty() && state.queue.is_empty() {
            state.must_give_back = false;
            return Ok(());
        }
        state.is_closing = true;
        drop(state);
        let settled = self.settle_held();
        let mut state = host::lock(&self.held.state);
        if settled.is_ok() {
            let directories = state.drop_records(&self.held.drops);
            state.stale_holds.extend(directories.iter().copied());
            // They are sorted so that runs of the simulator are repeatable.
            let mut directories: Vec<Ino> = directories.into_iter().collect();
            directories.sort_unstable();
            self.queue_release(&mut state, directories);
        }
        state.is_closing = false;
        self.held.note(&state);
        drop(state);
        settled?;
        self.settle_held()
    }

    /// Handles a change of an inode's locks by another client, which may be a recall (`recall.rs`). If the
    /// inode is a held directory, the thread that commits the queue gives everything back. If it is a
    /// directory that is not held, its record may still name this session (`stale_holds`). Then a change is
    /// queued that removes the session from the record.
    pub fn recalled(&self, ino: Ino) {
        if !self.is_holding() {
            return;
        }
        let mut state = host::lock(&self.held.state);
        if let Some(taking) = state.taking.as_mut().filter(|taking| taking.dir == ino) {
            if !std::mem::replace(&mut taking.is_recalled, true) {
                self.suspend(&mut state, ino);
            }
        } else if state.directories.contains(&ino) {
            if !state.must_give_back {
                let time = self.suspend(&mut state, ino);
                tracing::debug!(%ino, directories = state.directories.len(), ?time, "another client recalls a directory that this client holds");
            }
            state.must_give_back = true;
        } else if state.stale_holds.contains(&ino) {
            self.queue_release(&mut state, [ino]);
        } else {
            return;
        }
        self.held.note(&state);
    }

    /// For a while, holds no new directory and takes none, because another client has recalled `recalled`.
    /// Returns for how long no new directory is held.
    fn suspend(&self, state: &mut State, recalled: Ino) -> Duration {
        let time = state.suspend_holding();
        let now = Instant::now();
        self.held.not_before.store(self.nanos_of(now + time), Ordering::Release);
        let no_take = state.suspend_taking(recalled, MIN_SUSPENSION * self.held.candidates.policy().pauses);
        self.held.no_take_before.fetch_max(self.nanos_of(now + no_take), Ordering::AcqRel);
        state.wanted.clear();
        time
    }

    /// Makes this client give everything back soon, for example because it may have missed recalls.
    pub fn give_back_soon(&self) {
        if self.held.is_idle() {
            return;
        }
        let mut state = host::lock(&self.held.state);
        state.taking.iter_mut().for_each(|taking| taking.is_recalled = true);
        state.must_give_back = true;
        drop(state);
        self.held.changed.notify_all();
    }

    /// Drops everything that is held, and the queue, because the session is lost. Returns the number of
    /// transactions that were answered and are lost, and the inodes that they concern.
    pub fn drop_held(&self) -> (usize, HashSet<Ino>) {
        let mut state = host::lock(&self.held.state);
        drop(state.drop_records(&self.held.drops));
        self.end_journal(&mut state);
        state.stale_holds.clear();
        state.wanted.clear();
        state.last_mark = None;
        let mut lost = std::mem::take(&mut state.queue);
        state.committed = state.queued;
        state.losses += 1;
        lost.retain(|queued| !queued.is_optional);
        self.held.has_lost.fetch_or(!lost.is_empty(), Ordering::AcqRel);
        self.held.note(&state);
        drop(state);
        let effects = lost.iter().flat_map(|queued| &queued.txn.effects);
        (lost.len(), effects.filter_map(|effect| effect.footprint().part.inode()).collect())
    }

    /// Whether the queue would survive if this process ended now.
    pub fn queue_at_exit(&self) -> QueueAtExit {
        let state = host::lock(&self.held.state);
        match state.queue.iter().filter(|queued| !queued.is_optional).count() {
            0 => QueueAtExit::Empty,
            _ if !self.is_fenced() && state.journal.as_ref().is_some_and(journal::Journal::is_whole) => {
                QueueAtExit::Kept
            }
            changes => QueueAtExit::Lost(changes),
        }
    }

    /// Whether changes that were answered were lost with a session since the last call.
    pub fn take_held_loss(&self) -> bool {
        self.held.has_lost.swap(false, Ordering::AcqRel)
    }

    /// Commits queued changes, gives back directories that others recall, and takes directories that exist,
    /// until `stop` returns true. Runs on a thread of its own.
    pub fn commit_queued(&self, stop: &dyn Fn() -> bool) {
        while !stop() {
            self.look_for_room();
            self.take_wanted();
            let mut state = host::lock(&self.held.state);
            if state.queue.is_empty() && !state.must_give_back && state.wanted.is_empty() {
                state = host::wait_timeout(&self.held.changed, &self.held.state, state, POLL_INTERVAL);
            }
            let (must_give_back, is_empty) = (state.must_give_back, state.queue.is_empty());
            drop(state);
            let done = match (must_give_back, is_empty) {
                (true, _) => self.give_back(),
                (false, false) => {
                    self.gather();
                    self.send_queued(u64::MAX)
                }
                (false, true) => Ok(()),
            };
            if let Err(error) = done {
                tracing::debug!(%error, "cannot commit the changes in held directories; trying again");
                host::sleep(RETRY_AFTER);
            }
        }
    }

    /// Waits for more transactions, until the queue fills a request or [`GATHER_FOR`] has passed
    /// ([`GATHER_STEP`] on an embedded engine). A recall also ends the wait.
    fn gather(&self) {
        let until = Instant::now() + if self.is_embedded() { GATHER_STEP } else { GATHER_FOR };
        loop {
            let state = host::lock(&self.held.state);
            let is_enough = state.queue.len() >= MAX_GROUP;
            let is_awaited = state.is_awaited();
            drop(state);
            if is_enough || is_awaited || Instant::now() >= until {
                return;
            }
            host::sleep(GATHER_STEP);
        }
    }

    /// If the disk of an embedded database is nearly full, makes this client give everything back soon and
    /// hold nothing for a while. So no change is answered that cannot be committed.
    pub(crate) fn look_for_room(&self) {
        if self.held.has_room.get().is_none_or(|has_room| has_room()) {
            return;
        }
        let until = self.nanos_of(Instant::now() + LOOK_FOR_ROOM_AFTER);
        self.held.not_before.fetch_max(until, Ordering::AcqRel);
        if self.held.directories() > 0 {
            host::lock(&self.held.state).must_give_back = true;
        }
    }

    pub(crate) fn retry_timeout(&self) -> Duration {
        Duration::from_millis(self.retry_timeout_millis.load(Ordering::Acquire))
    }
}
