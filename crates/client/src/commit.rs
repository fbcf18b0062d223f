//! Sends commits, and requests that change nothing, and retries them if they fail. See `doubt.rs` for
//! operations that may have happened.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use host::Instant;
use meta::{Effect, EngineError, ErrorKind, Outcome, Record, RecordKey, Txn};
use metrics::{WaitTarget, wait_on};
use ops::{Authority, Op};
use types::{BootInstant, Errno, Ino, OpId, Term, Time};

use crate::activity::count;
use crate::doubt::{InDoubtTxn, MARK_NEEDED, Plan, mark_owner};
use crate::driver::Meta;
use crate::failure::Failure;
use crate::ticket::Ticket;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The error that is recorded under the id of an operation that is canceled.
const CANCELED: Errno = Errno::EINTR;

impl Meta {
    /// Sets the retry timeout: how long a failed request is retried before the operation fails. An operation
    /// in doubt that no term guards is not retried once the engine may have dropped its id, even if the
    /// timeout is longer.
    pub fn set_retry_timeout(&self, retry_timeout: Duration) {
        self.retry_timeout_millis.store(millis(retry_timeout), Ordering::Release);
    }

    /// Sets for how long an operation in doubt that no term guards is retried (default: 90 seconds). For
    /// tests.
    pub fn set_repeat_for(&self, time: Duration) {
        self.repeat_for_millis.store(millis(time), Ordering::Release);
    }

    /// Runs an operation that must not be tried under another id while it may have happened. After an
    /// indeterminate error, `in_doubt` holds the transaction, and the next call with this `in_doubt` retries
    /// it.
    ///
    /// # Errors
    /// As [`Meta::run`]. If `in_doubt` is `None` after an error, the operation did not happen and never will.
    pub fn run_once<O: Op<Reply = ()>>(
        &self,
        op: &O,
        authority: &Authority<'_>,
        in_doubt: &mut Option<InDoubtTxn>,
    ) -> Result<(), Failure> {
        self.run_in_doubt(op, authority, in_doubt, Some(|| ()))
    }

    /// As [`Meta::run`]. If the operation may still happen after an error, `in_doubt` holds its transaction,
    /// for [`Meta::cancel`].
    ///
    /// # Errors
    /// As [`Meta::run`]. If `in_doubt` is `None` after an error, the operation did not happen and never will.
    pub fn run_cancelable<O: Op>(
        &self,
        op: &O,
        authority: &Authority<'_>,
        in_doubt: &mut Option<InDoubtTxn>,
    ) -> Result<O::Reply, Failure> {
        self.run_in_doubt(op, authority, in_doubt, None)
    }

    /// Ends an in-doubt transaction. If its operation has not happened yet, it never happens after this call,
    /// because this call commits a cancellation under the id of the operation. The operation itself is not
    /// sent again. If it has happened, returns the inodes that it has left without a name, as orphans of its
    /// session.
    ///
    /// # Errors
    /// Those of the database; the operation may then still happen. It is no error if the session of the
    /// operation was removed, or if the engine may have dropped the id ([`Meta::is_forgotten`]): `in_doubt`
    /// becomes `None`, and the result is `None` even if the operation has happened.
    pub fn cancel(&self, in_doubt: &mut Option<InDoubtTxn>) -> Result<Option<Vec<Ino>>, Failure> {
        in_doubt.take_if(|in_doubt| self.is_forgotten(in_doubt));
        let Some(canceled) = in_doubt else { return Ok(None) };
        let op_id = canceled.txn.op_id;
        if canceled.errno() != Some(CANCELED) {
            let guards = self.with_own_guard(Vec::new(), op_id)?;
            self.replan(canceled, Txn { op_id, guards, effects: Vec::new() }, Some(CANCELED));
        }
        let done = self.send_cancel(in_doubt);
        self.conclude(done, in_doubt)
    }

    fn send_cancel(&self, in_doubt: &mut Option<InDoubtTxn>) -> Result<Option<Vec<Ino>>, Failure> {
        let Some(InDoubtTxn { txn, ticket, since, .. }) = in_doubt else { return Ok(None) };
        let (txn, ticket, since) = (txn.clone(), ticket.clone(), *since);
        if let Outcome::Conflict(snapshot) = self.commit(&txn, Some(&ticket), in_doubt)? {
            // The term is over, probably because the session was removed. So the operation can no longer
            // happen.
            *in_doubt = None;
            let _ = self.check_own(&txn.guards, &snapshot);
            return Ok(None);
        }
        let committed = self.committed_plan(txn.op_id, since)?;
        let settled = in_doubt.take().filter(|_| committed.errno.is_none());
        Ok(settled.map(|in_doubt| in_doubt.orphans_of(committed)))
    }

    /// Whether the engine may have dropped the operation's id. It can then no longer tell whether the
    /// operation happened.
    pub fn is_forgotten(&self, in_doubt: &InDoubtTxn) -> bool {
        self.may_be_forgotten(&in_doubt.txn, in_doubt.since)
    }

    /// Runs an operation. If `in_doubt` holds a transaction, it is retried first. After an error, `in_doubt`
    /// holds the transaction that may have been committed, if there is one. `earlier` makes the reply for the
    /// transactions that earlier calls have sent under this id.
    pub(crate) fn run_in_doubt<O: Op>(
        &self,
        op: &O,
        authority: &Authority<'_>,
        in_doubt: &mut Option<InDoubtTxn>,
        earlier: Option<fn() -> O::Reply>,
    ) -> Result<O::Reply, Failure> {
        let done = self.run_loop(op, authority, in_doubt, earlier);
        self.conclude(done, in_doubt)
    }

    /// Makes the result of a call whose operation may be in doubt. If the operation is in doubt, an engine's
    /// error becomes indeterminate.
    fn conclude<T>(&self, done: Result<T, Failure>, in_doubt: &Option<InDoubtTxn>) -> Result<T, Failure> {
        self.begin_term_if_due();
        match (done, in_doubt) {
            (Err(Failure::Engine(error)), Some(in_doubt)) => {
                self.invalidate_in_doubt(&in_doubt.txn);
                self.terms.give_up(&in_doubt.ticket);
                Err(EngineError { kind: ErrorKind::Indeterminate, ..error }.into())
            }
            (done, _) => done,
        }
    }

    /// Commits a transaction, with retries. If the result of an attempt is indeterminate, the transaction is
    /// stored in `in_doubt`.
    ///
    /// # Errors
    /// The error of the last attempt. The error is also indeterminate if the engine may have dropped the
    /// result of an earlier attempt.
    pub(crate) fn commit(
        &self,
        txn: &Txn,
        ticket: Option<&Ticket>,
        in_doubt: &mut Option<InDoubtTxn>,
    ) -> Result<Outcome, Failure> {
        if in_doubt.as_ref().is_some_and(|in_doubt| self.is_forgotten(in_doubt)) {
            let message =
                "an earlier attempt may have been committed, and the database may have dropped its result";
            return Err(EngineError::indeterminate(message).into());
        }
        let since = Cell::new(in_doubt.as_ref().map(|in_doubt| in_doubt.since));
        let lost = Cell::new(false);
        let attempt = || {
            self.make_slices_durable(txn)?;
            let sent = BootInstant::now();
            let outcomes = self.engine.commit(std::slice::from_ref(txn));
            let outcome = outcomes.and_then(|outcomes| {
                let outcome = outcomes.into_iter().next();
                outcome.ok_or_else(|| EngineError::indeterminate("the engine returned no outcome"))
            });
            let is_lost = matches!(&outcome, Err(error) if error.kind == ErrorKind::Indeterminate);
            // A transaction without effects cannot leave anything in doubt.
            if is_lost && !txn.effects.is_empty() {
                // Other clients may see the effects from now on. This call also lets this client apply its
                // own change when the change stream delivers it.
                if !lost.replace(true) {
                    self.invalidate_in_doubt(txn);
                }
                since.set(since.get().or(Some(sent)));
            }
            outcome
        };
        let may_repeat = || since.get().is_none_or(|since| !self.may_be_forgotten(txn, since));
        let done = self.retry_if(attempt, may_repeat);
        if let (true, Some(since), Some(ticket)) = (lost.get(), since.get(), ticket)
            && in_doubt.is_none()
        {
            *in_doubt = Some(InDoubtTxn::new(txn.clone(), ticket.clone(), since));
        }
        done
    }

    /// Makes `txn` the transaction that is sent next under an id in doubt. `errno` is the error of its plan,
    /// if the plan ended in one.
    pub(crate) fn replan(&self, in_doubt: &mut InDoubtTxn, txn: Txn, errno: Option<Errno>) {
        self.invalidate_in_doubt(&in_doubt.txn);
        in_doubt.replan(txn, errno);
    }

    /// The plan that was committed under an id in doubt, after the engine has answered that the id is
    /// committed.
    ///
    /// # Errors
    /// Those of the database; indeterminate if the mark is missing and may have been removed, together with
    /// the session or because it was old. The operation then stays in doubt.
    pub(crate) fn committed_plan(&self, id: OpId, since: BootInstant) -> Result<Plan, Failure> {
        let keys = [RecordKey::Waits, RecordKey::Session(id.session())];
        let snapshot = self.retry(|| self.engine.read(&keys))?;
        let is_removed = snapshot.records.iter().any(|record| matches!(record, Record::Session(_, None)));
        let waits = snapshot.records.iter().find_map(|record| match record {
            Record::Waits(waits) => Some(waits),
            _ => None,
        });
        let waits = waits.ok_or_else(|| EngineError::permanent("the engine returned no waits"))?;
        let plan = Plan::committed(id, waits);
        // This client may have been stopped for any time between the answer to the commit and the read.
        let lost = match id.term() {
            Term::NONE => (since.elapsed() >= MARK_NEEDED).then_some("too much time has passed"),
            _ => is_removed.then_some("the session was removed"),
        };
        if let (0, Some(lost)) = (plan.number, lost) {
            let message = format!("{lost} before it was known which plan was committed");
            return Err(EngineError::indeterminate(message).into());
        }
        if plan.number > 0 {
            self.drop_mark(id);
        }
        Ok(plan)
    }

    /// Removes the mark of an operation that is no longer in doubt. If this fails, a mount removes the mark
    /// later: after the session was removed, or, if no term guards the operation, after [`MARK_NEEDED`].
    pub(crate) fn drop_mark(&self, id: OpId) {
        if let Ok(ticket) = self.terms.next_op(self.session()) {
            let guards = self.own_guard(ticket.id).ok().flatten().into_iter().collect();
            let effects = vec![Effect::DropWait { owner: mark_owner(id) }];
            if let Err(error) = self.engine.commit(&[Txn { op_id: ticket.id, guards, effects }]) {
                tracing::debug!(%error, "cannot remove the mark of an operation in doubt");
            }
        }
    }

    /// Sends a request that changes nothing, and retries it if it fails.
    ///
    /// # Errors
    /// The error of the last attempt.
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
        let retry_timeout = Duration::from_millis(self.retry_timeout_millis.load(Ordering::Acquire));
        loop {
            let error = match request() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let worth_it = error.kind != ErrorKind::Determinate { transient: false };
            if !worth_it || began.elapsed() >= retry_timeout || !may_repeat() {
                count(&self.events.failures);
                tracing::error!(%error, retries, "the metadata engine failed");
                return Err(error.into());
            }
            retries += 1;
            count(&self.events.retries);
            let pause = pause(retries);
            wait_on(WaitTarget::Pause, || (host::sleep(pause), pause));
        }
    }

    /// Whether the engine may have dropped the result of a transaction that was first sent at `since`.
    fn may_be_forgotten(&self, txn: &Txn, since: BootInstant) -> bool {
        match txn.kept_by() {
            // The results of a session's operations are dropped with it.
            Some((session, _)) => session != self.session() || self.is_fenced(),
            None => {
                let repeat_for = Duration::from_millis(self.repeat_for_millis.load(Ordering::Acquire));
                since.elapsed() >= repeat_for
            }
        }
    }
}

/// The delay before a retry. Its upper bound doubles with each retry, up to [`LONGEST_PAUSE`]. The delay is
/// between half the bound and the bound, by jitter, so that colliding clients spread out.
pub(crate) fn pause(retry: u32) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(1 << retry.min(16)).min(LONGEST_PAUSE);
    let jitter = Time::now().nsec() % 1000;
    full / 2 + full.mul_f64(f64::from(jitter) / 2000.0)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
