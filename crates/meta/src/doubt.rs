//! Operations in doubt: a commit had no answer, so the operation may have happened, or may happen later.
//!
//! An engine applies an operation id once. So an operation in doubt is repeated under its id, until the engine gives a
//! determinate answer. Other rules follow from it:
//!
//! - If a repetition meets a conflict, no attempt has happened so far. But an earlier one may still be under way in the
//!   network, and its guards may hold again when it arrives. So the next plan is sent under the same id.
//! - If that plan ends in an error, or changes nothing, the result is recorded under the id too, so that the earlier attempt
//!   does nothing when it arrives. The only effect is a mark: a lock wait that nobody has, of an owner with the number of
//!   the operation. The engine may answer that it knew the id. Then the mark tells whether it is the result that was
//!   recorded, or whether the earlier attempt happened and the operation succeeded.
//! - An engine knows the id for as long as its term is open, and the term is open for as long as the operation has no
//!   answer: see `terms.rs`. So it is repeated as long as the retry timeout says, and a doubt that is kept can be ended at
//!   any later time. If the session is lost, that ends the doubt: none of its operations happens any more.
//! - Operations that no term guards, which are those of tools and of the beginning of a session, are forgotten after some
//!   minutes, and would then be done twice. So none of them is repeated later than [`REPEAT_FOR`] after its first attempt,
//!   however long the retry timeout is: the operation fails with EIO.

use host::Instant;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use types::{BootInstant, Errno, Ino, OpId, SessionId, Time};

use crate::driver::{Failure, Meta, Op, Vouch};
use crate::engine::{EngineError, ErrorKind, Outcome};
use crate::lock::{Lock, LockKind, LockOwner};
use crate::record::{LockWait, Node, Record, Want};
use crate::terms::Ticket;
use crate::txn::{Effect, Txn};

/// A transaction that may have happened, or may happen later.
#[derive(Debug)]
pub struct Doubt {
    pub(crate) txn: Txn,
    pub(crate) ticket: Ticket,
    /// When the first attempt under its id began.
    since: BootInstant,
    /// The last result that was sent to be recorded under the id.
    recorded: Option<Result<(), Errno>>,
}

impl Doubt {
    /// The session under which it began, and ends.
    pub fn session(&self) -> SessionId {
        self.txn.op_id.session()
    }

    /// What to send first: the transaction, and the error that it records.
    pub(crate) fn resumed(&self) -> (Option<Errno>, Txn) {
        let is_mark = matches!(self.txn.effects[..], [Effect::PutWait(wait)] if wait == mark(self.txn.op_id));
        let recorded = self.recorded.filter(|_| is_mark);
        (recorded.and_then(Result::err), self.txn.clone())
    }
}

/// How long after its first attempt an operation in doubt is repeated that no term guards. Redis remembers ids for 120 s, MySQL, etcd and TiKV
/// for 180 s, PostgreSQL for 300 s; a request that is sent last needs some of that time to arrive. The embedded engine
/// leaves nothing in doubt.
pub(crate) const REPEAT_FOR: Duration = Duration::from_secs(90);

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Meta {
    /// How long a failed request is repeated before the operation fails with EIO. An operation in doubt of a client that is
    /// not registered is given up earlier if the engine may forget its id.
    pub fn set_patience(&self, patience: Duration) {
        self.patience_millis.store(millis(patience), Ordering::Release);
    }

    /// How long an operation in doubt is repeated that no term guards, 90 seconds unless said otherwise. For tests.
    pub fn set_repeat_for(&self, time: Duration) {
        self.repeat_for_millis.store(millis(time), Ordering::Release);
    }

    /// Runs an operation that must not be tried under another id while it may have happened. If it fails in doubt, the
    /// transaction is left in `doubt`, and the next call goes on with it.
    ///
    /// # Errors
    /// As [`Meta::run`]. If `doubt` holds nothing afterwards, the operation did not happen and never will.
    pub fn run_once<O: Op<Reply = ()>>(
        &self,
        op: &O,
        vouch: &Vouch<'_>,
        doubt: &mut Option<Doubt>,
    ) -> Result<(), Failure> {
        let tried = doubt.is_some().then_some(());
        self.run_under_doubt(op, vouch, doubt, tried)
    }

    /// Whether the engine may have forgotten the id, so that nobody can learn any more whether the operation happened.
    pub fn is_forgotten(&self, doubt: &Doubt) -> bool {
        self.may_be_forgotten(&doubt.txn, doubt.since)
    }

    /// Runs an operation. If `doubt` holds a transaction, that is repeated first. After an error, `doubt` holds the
    /// transaction that may have happened, if there is one. `tried` is the reply of the last transaction that was sent under
    /// this id and may have happened.
    pub(crate) fn run_under_doubt<O: Op>(
        &self,
        op: &O,
        vouch: &Vouch<'_>,
        doubt: &mut Option<Doubt>,
        tried: Option<O::Reply>,
    ) -> Result<O::Reply, Failure> {
        let done = self.carry(op, vouch, doubt, tried);
        self.begin_term_if_due();
        match (done, doubt) {
            (Err(Failure::Engine(error)), Some(doubt)) => {
                self.doubt(&doubt.txn);
                self.terms.give_up(&doubt.ticket);
                Err(EngineError { kind: ErrorKind::Indeterminate, ..error }.into())
            }
            (done, _) => done,
        }
    }

    /// Commits a transaction. If an attempt has no answer, it is noted in `doubt`.
    ///
    /// # Errors
    /// The last one; indeterminate also if the engine may have forgotten what became of an earlier attempt.
    pub(crate) fn commit(
        &self,
        txn: &Txn,
        ticket: Option<&Ticket>,
        doubt: &mut Option<Doubt>,
    ) -> Result<Outcome, Failure> {
        if doubt.as_ref().is_some_and(|doubt| self.is_forgotten(doubt)) {
            let message =
                "it is not known whether an earlier attempt happened, and the database may have forgotten it";
            return Err(EngineError::indeterminate(message).into());
        }
        let since = Cell::new(doubt.as_ref().map(|doubt| doubt.since));
        let lost = Cell::new(false);
        let attempt = || {
            let sent = BootInstant::now();
            let outcomes = self.engine.commit(std::slice::from_ref(txn));
            let outcome = outcomes.and_then(|outcomes| {
                let outcome = outcomes.into_iter().next();
                outcome.ok_or_else(|| EngineError::indeterminate("the engine gave no outcome"))
            });
            let is_lost = matches!(&outcome, Err(error) if error.kind == ErrorKind::Indeterminate);
            // A transaction without effects can leave nothing behind.
            if is_lost && !txn.effects.is_empty() {
                // Others may know of it from now on, however long the answer takes, and what this client hears of its own
                // changes is no news otherwise.
                if !lost.replace(true) {
                    self.doubt(txn);
                }
                since.set(since.get().or(Some(sent)));
            }
            outcome
        };
        let may_repeat = || since.get().is_none_or(|since| !self.may_be_forgotten(txn, since));
        let done = self.retry_if(attempt, may_repeat);
        if let (true, Some(since), Some(ticket)) = (lost.get(), since.get(), ticket)
            && doubt.is_none()
        {
            *doubt = Some(Doubt { txn: txn.clone(), ticket: ticket.clone(), since, recorded: None });
        }
        done
    }

    /// A transaction that is to be sent under an id in doubt, with what records `result` if it would change nothing.
    pub(crate) fn go_on<R>(&self, doubt: &mut Doubt, mut txn: Txn, result: &Result<R, Failure>) -> Txn {
        if txn.effects.is_empty() {
            txn.effects = vec![Effect::PutWait(mark(txn.op_id))];
            doubt.recorded = Some(match result {
                Err(Failure::Refused(errno)) => Err(*errno),
                _ => Ok(()),
            });
        }
        if doubt.txn != txn {
            self.doubt(&doubt.txn);
            doubt.txn = txn.clone();
        }
        txn
    }

    /// The error that was recorded under an id which the engine knows now. The doubt ends.
    ///
    /// # Errors
    /// Those of the database; the doubt stays.
    pub(crate) fn recorded(&self, doubt: &mut Option<Doubt>) -> Result<Option<Errno>, Failure> {
        let Some(Doubt { txn, recorded: Some(result), .. }) = doubt else {
            *doubt = None;
            return Ok(None);
        };
        let wait = mark(txn.op_id);
        let facts = self.retry(|| self.engine.read(&[Want::Waits]))?;
        let is_there = facts
            .records
            .iter()
            .any(|record| matches!(record, Record::Waits(waits) if waits.contains(&wait)));
        let result = if is_there { result.err() } else { None };
        if is_there {
            // What stays is removed with the session.
            if let Ok(ticket) = self.next_op(self.session()) {
                let guards = self.own_guard(ticket.id).ok().flatten().into_iter().collect();
                let effects = vec![Effect::DropWait { owner: wait.lock.owner }];
                if let Err(error) = self.engine.commit(&[Txn { op_id: ticket.id, guards, effects }]) {
                    tracing::debug!(%error, "the mark of an operation remains");
                }
            }
        }
        *doubt = None;
        Ok(result)
    }

    /// Repeats a request that failed and changes nothing.
    ///
    /// # Errors
    /// The last one.
    pub(crate) fn retry<T>(&self, request: impl FnMut() -> Result<T, EngineError>) -> Result<T, Failure> {
        self.retry_if(request, || true)
    }

    fn retry_if<T>(
        &self,
        mut request: impl FnMut() -> Result<T, EngineError>,
        may_repeat: impl Fn() -> bool,
    ) -> Result<T, Failure> {
        let mut retries = 0;
        let began = Instant::now();
        let patience = Duration::from_millis(self.patience_millis.load(Ordering::Acquire));
        loop {
            let error = match request() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let worth_it = error.kind != ErrorKind::Determinate { transient: false };
            if !worth_it || began.elapsed() >= patience || !may_repeat() {
                tracing::error!(%error, retries, "the metadata engine failed");
                return Err(error.into());
            }
            retries += 1;
            host::sleep(pause(retries));
        }
    }

    /// Whether the engine may have forgotten a transaction that was sent first at `since`.
    fn may_be_forgotten(&self, txn: &Txn, since: BootInstant) -> bool {
        match txn.kept_by() {
            // With a session go the results of its operations.
            Some((session, _)) => session != self.session() || self.is_fenced(),
            None => {
                let repeat_for = Duration::from_millis(self.repeat_for_millis.load(Ordering::Acquire));
                since.elapsed() >= repeat_for
            }
        }
    }
}

/// Whether the answer to a transaction may be that of an earlier attempt with another plan. A transaction that is applied
/// answers with the inodes that it changed.
pub(crate) fn may_be_earlier(doubt: &Option<Doubt>, is_other: bool, nodes: &[Node]) -> bool {
    nodes.is_empty() && doubt.as_ref().is_some_and(|doubt| is_other || doubt.recorded.is_some())
}

/// What shows that a result was recorded.
fn mark(id: OpId) -> LockWait {
    let session = id.session();
    let owner = LockOwner { session, owner: id.0 as u64, kind: LockKind::Flock };
    LockWait { ino: Ino::ROOT, lock: Lock { start: 0, end: 0, owner, exclusive: false, pid: 0 } }
}

/// Doubles with each retry and is drawn from the upper half of its range, so that clients that collided part.
pub(crate) fn pause(retry: u32) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(1 << retry.min(16)).min(LONGEST_PAUSE);
    let jitter = Time::now().nsec() % 1000;
    full / 2 + full.mul_f64(f64::from(jitter) / 2000.0)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
