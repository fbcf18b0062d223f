//! The one loop that runs an operation from plan to commit, including all retries.
//!
//! Each round plans the operation with the records that are known. If the plan is missing records, they are
//! read. If its answer is certain ([`certainty`]), the operation ends. Otherwise its guards and effects
//! become an [`Attempt`], which is committed. If a guard fails, the engine returns the current records of all
//! guards as of one moment, and the next round plans with those.

use std::ops::ControlFlow;

use host::Instant;
use meta::{Effect, EngineError, Outcome, Record, RecordKey, Snapshot, Txn};
use ops::{Authority, Ctx, Key, Op, OwnReads, Plan, PlanStop, Value, View};
use types::{BootInstant, Errno, Ino, Time, counted};

use crate::activity::count;
use crate::certainty::{self, Decided, Evidence, Next};
use crate::commit::pause;
use crate::doubt::{InDoubtTxn, may_be_earlier};
use crate::driver::Meta;
use crate::failure::Failure;
use crate::held::{Entered, is_determinate};
use crate::recall::is_recall_forbidden;
use crate::ticket::Ticket;

/// How many conflicts an operation may meet before it fails with EIO.
const MAX_CONFLICTS: u32 = 64;
/// After each of the first conflicts, up to this many, the operation retries at once. Later it pauses first.
const PROMPT_CONFLICTS: u32 = 3;
/// The maximum number of reads of one operation. A rename needs many: it reads all directories above its new
/// parent, one after another.
const MAX_READS: u32 = 10_000;

/// One transaction, and the answer of the operation if it is committed. If the answer is an error, the
/// transaction has no effects: its guards confirm the error.
#[derive(Debug)]
struct Attempt<R> {
    answer: Result<R, Errno>,
    txn: Txn,
    /// The transaction was sent before, and is in doubt.
    is_sent: bool,
}

/// The result of planning.
#[derive(Debug)]
enum Planned<R> {
    Missing(Missing),
    /// The records contradict each other, possibly because they are of different moments.
    Inconsistent,
    /// Another session holds this directory.
    Held(Ino),
    /// The answer is certain.
    Answer(Result<R, Errno>),
    Attempt(Attempt<R>),
}

/// The records that a plan is missing.
#[derive(Debug)]
struct Missing {
    keys: Vec<RecordKey>,
    /// Whether they must be read as of one moment ([`View::prefetch_snapshot`]).
    as_snapshot: bool,
    /// A directory: the records of the path from it up to the root are missing too.
    ancestors_from: Option<Ino>,
    /// Cached records that are older than this do not count.
    oldest: Option<Instant>,
}

/// An operation that is being run.
struct Run<'a, O: Op> {
    meta: &'a Meta,
    op: &'a O,
    ctx: Ctx<'a>,
    is_exclusive: bool,
    /// The transaction that may have been committed, if there is one.
    in_doubt: &'a mut Option<InDoubtTxn>,
    /// Makes the reply for the transactions that were sent under this id before this run.
    earlier: Option<fn() -> O::Reply>,
    /// The replies for the transactions that met a conflict in this run while the operation was in doubt, by
    /// the numbers of their plans.
    replies: Vec<(u32, O::Reply)>,
    /// The operation gets its id when it first has something to commit, and keeps it.
    ticket: Option<Ticket>,
    /// The records that the operation has read. They are from `reads` moments. `all_reads` also counts reads
    /// whose records were discarded.
    fresh: OwnReads,
    reads: u32,
    all_reads: u32,
    conflicts: u32,
    must_back_off: bool,
    /// The records were read again because they contradicted each other.
    is_reread: bool,
    /// Records from before this time are not used.
    not_before: Option<Instant>,
}

impl Meta {
    /// Runs an operation: plans it, reads the records that the plan is missing, and commits its decision.
    ///
    /// # Errors
    /// - [`Failure::Operation`]: the operation fails by its rules, with this errno. `certainty.rs` says when
    ///   such an answer is certain.
    /// - [`Failure::Engine`]: the database failed, or the operation met too many conflicts or needed too many
    ///   reads. If the error is indeterminate, the operation may have happened.
    /// - [`Failure::Fenced`]: the session was removed, and the operation did not happen.
    pub fn run<O: Op>(&self, op: &O, authority: &Authority<'_>) -> Result<O::Reply, Failure> {
        self.run_in_doubt(op, authority, &mut None, None)
    }

    /// The loop of [`Meta::run`], for [`Meta::run_in_doubt`].
    pub(crate) fn run_loop<O: Op>(
        &self,
        op: &O,
        authority: &Authority<'_>,
        in_doubt: &mut Option<InDoubtTxn>,
        earlier: Option<fn() -> O::Reply>,
    ) -> Result<O::Reply, Failure> {
        let mut run = Run::new(self, op, authority, in_doubt, earlier);
        let mut resumed = run.resume();
        while run.conflicts < MAX_CONFLICTS && run.all_reads < MAX_READS {
            let planned = match resumed.take() {
                Some(attempt) => Planned::Attempt(attempt),
                None => run.plan()?,
            };
            match planned {
                Planned::Missing(missing) => run.read(missing)?,
                Planned::Inconsistent => run.read_again(),
                Planned::Held(dir) => run.recall(dir)?,
                Planned::Answer(answer) => return answer.map_err(Failure::from),
                // After repeated conflicts, back off and re-read before retrying: older records would only
                // cause the next conflict. An error is confirmed at once, by the records that the conflict
                // has just returned.
                Planned::Attempt(attempt) if run.must_back_off && attempt.answer.is_ok() => run.back_off(),
                Planned::Attempt(attempt) => {
                    if let ControlFlow::Break(answer) = run.commit(attempt)? {
                        return answer.map_err(Failure::from);
                    }
                }
            }
        }
        Err(run.give_up())
    }
}

impl<'a, O: Op> Run<'a, O> {
    fn new(
        meta: &'a Meta,
        op: &'a O,
        authority: &'a Authority<'a>,
        in_doubt: &'a mut Option<InDoubtTxn>,
        earlier: Option<fn() -> O::Reply>,
    ) -> Self {
        // An operation in doubt keeps its id and its session.
        let ticket = in_doubt.as_ref().map(|in_doubt| in_doubt.ticket.clone());
        let session = in_doubt.as_ref().map_or_else(|| meta.session(), InDoubtTxn::session);
        let (volume, decisions, traversers) = (meta.volume(), &meta.decisions, meta.traversers());
        let (now, trash) = (Time::now(), Some(&meta.trash));
        let holds = meta.holds_new();
        Run {
            meta,
            op,
            ctx: Ctx { now, authority, session, volume, decisions, traversers, trash, holds },
            is_exclusive: meta.is_exclusive(),
            in_doubt,
            earlier,
            replies: Vec::new(),
            ticket,
            fresh: OwnReads::default(),
            reads: 0,
            all_reads: 0,
            conflicts: 0,
            must_back_off: false,
            is_reread: false,
            not_before: None,
        }
    }

    /// The transaction in doubt, which is sent again before anything else. `None` if there is none, or if its
    /// reply is not known.
    fn resume(&mut self) -> Option<Attempt<O::Reply>> {
        let in_doubt = self.in_doubt.as_ref()?;
        let answer = match in_doubt.errno() {
            Some(errno) => Err(errno),
            None => Ok(self.earlier?()),
        };
        Some(Attempt { answer, txn: in_doubt.txn.clone(), is_sent: true })
    }

    // This is called once, in the loop. It is inlined because its result is large.
    #[inline(always)]
    fn plan(&mut self) -> Result<Planned<O::Reply>, Failure> {
        let oldest = self.oldest();
        let known = self.meta.known();
        let mut view = View::new(&known, oldest, &self.fresh);
        view.set_session(self.ctx.session);
        if self.meta.is_embedded() {
            view.trust_held();
        }
        view.set_consistency(self.is_exclusive, self.reads <= 1);
        if O::READ && self.in_doubt.is_none() {
            view.omit_guards();
        }
        let (decided, answer, effects) = match ops::plan(self.op, &mut view, &self.ctx) {
            Err(PlanStop::Missing) => {
                let (ancestors_from, as_snapshot) = (view.ancestors_from(), view.needs_snapshot());
                return Ok(Planned::Missing(Missing {
                    keys: view.into_missing(),
                    as_snapshot,
                    ancestors_from,
                    oldest,
                }));
            }
            Err(PlanStop::Held(dir)) => return Ok(Planned::Held(dir)),
            Err(PlanStop::KernelIsStale) => (Decided::Stale, Err(Errno::ESTALE), Vec::new()),
            Err(PlanStop::Failed(Errno::EIO)) => (Decided::Damage, Err(Errno::EIO), Vec::new()),
            Err(PlanStop::Failed(errno)) => (Decided::Error, Err(errno), Vec::new()),
            Ok(Plan { reply, effects }) if effects.is_empty() => (Decided::Reply, Ok(reply), effects),
            Ok(Plan { reply, effects }) => (Decided::Effects, Ok(reply), effects),
        };
        debug_assert!(
            !O::READ || self.in_doubt.is_none() && effects.is_empty(),
            "{}: a read commits nothing",
            O::NAME
        );
        let evidence = Evidence {
            in_doubt: self.in_doubt.is_some(),
            is_read: O::READ,
            assumed: view.assumed(),
            exclusive: self.is_exclusive,
            one_moment: !view.used_known() && self.reads <= 1,
            reread: self.is_reread,
        };
        Ok(match certainty::next(decided, evidence) {
            Next::Answer => Planned::Answer(answer),
            Next::ReadAgain => Planned::Inconsistent,
            Next::Commit => {
                let guards = view.into_guards();
                let op_id = match &self.ticket {
                    Some(ticket) => ticket.id,
                    None => self.ticket.insert(self.meta.terms.next_op(self.ctx.session)?).id,
                };
                let guards = self.meta.with_own_guard(guards, op_id)?;
                Planned::Attempt(Attempt { answer, txn: Txn { op_id, guards, effects }, is_sent: false })
            }
        })
    }

    /// Cached records that are older than this are not used. `None` if their age does not matter.
    fn oldest(&self) -> Option<Instant> {
        // A change is confirmed by its guards, so it may be planned from cached records of any age.
        let by_lifetime = match !O::READ || self.meta.is_current() {
            true => None,
            false => Instant::now().checked_sub(self.meta.lifetime()),
        };
        by_lifetime.max(self.not_before)
    }

    fn read(
        &mut self,
        Missing { keys, as_snapshot, ancestors_from, oldest }: Missing,
    ) -> Result<(), Failure> {
        if as_snapshot {
            // The keys include every record that was read before.
            self.fresh.clear();
            self.reads = 0;
        }
        let (records, mut reads) = self.meta.read_records(&keys, O::IS_REMEMBERED)?;
        self.fresh.extend(records);
        if let Some(dir) = ancestors_from {
            let most = MAX_READS.saturating_sub(self.all_reads + reads);
            reads += self.meta.read_ancestors(dir, oldest, most, &mut self.fresh)?;
        }
        self.reads += reads;
        self.all_reads += reads;
        Ok(())
    }

    /// Splits a snapshot into its records. If the operation is to be remembered, caches them.
    fn take(&self, snapshot: &Snapshot, began: Instant) -> Vec<(Key, Value)> {
        match O::IS_REMEMBERED {
            true => self.meta.cache.absorb_and_return(snapshot, began),
            false => self.meta.cache.pass(snapshot, began),
        }
    }

    /// Makes another session give a directory back. Discards the records that were read before.
    ///
    /// # Errors
    /// EBUSY in [`crate::without_recalls`], unless an earlier attempt may have been committed; those of
    /// [`Meta::recall`].
    fn recall(&mut self, dir: Ino) -> Result<(), Failure> {
        if self.in_doubt.is_none() && is_recall_forbidden() {
            return Err(Errno::EBUSY.into());
        }
        let session = self.meta.session();
        if self.ctx.session != session {
            // The new session does not hold the directories that the earlier session held.
            if self.ticket.is_some() || self.in_doubt.is_some() {
                return Err(Failure::Fenced(self.ctx.session));
            }
            self.ctx.session = session;
        }
        self.meta.recall(dir)?;
        self.all_reads += 1;
        // While the other session held the directory, it may have changed names that this client has cached.
        // Drop them before the directory's inode, which now names no holder, can be read again.
        self.meta.drop_names(dir);
        self.meta.cache.invalidate_any_seq(Key::Inode(dir));
        self.forget_reads();
        Ok(())
    }

    /// Lets the next round read all records again, as of one moment.
    fn read_again(&mut self) {
        self.is_reread = true;
        self.forget_reads();
    }

    fn back_off(&mut self) {
        host::sleep(pause(self.conflicts - PROMPT_CONFLICTS));
        self.must_back_off = false;
        self.forget_reads();
    }

    fn forget_reads(&mut self) {
        self.fresh.clear();
        self.reads = 0;
        self.not_before = Some(Instant::now());
    }

    /// Sends an attempt. After a conflict the operation continues.
    // Inlined for the same reason as `plan`.
    #[inline(always)]
    fn commit(
        &mut self,
        Attempt { answer, txn, is_sent }: Attempt<O::Reply>,
    ) -> Result<ControlFlow<Result<O::Reply, Errno>>, Failure> {
        let meta = self.meta;
        let txn = match self.in_doubt {
            Some(in_doubt) if !is_sent => {
                meta.replan(in_doubt, txn, answer.as_ref().err().copied());
                in_doubt.txn.clone()
            }
            _ => txn,
        };
        let new_dir = if O::IS_REMEMBERED && meta.is_current() { meta.new_directory(&txn) } else { None };
        if let (None, Some(ticket)) = (&self.in_doubt, &self.ticket)
            && let Some(outcome) = meta.commit_held(&txn, ticket)?
        {
            return Ok(self.took_effect_here(&txn, outcome, answer));
        }
        let drops = meta.held_drops();
        let entered = meta.enter(&txn)?;
        let began = Instant::now();
        let outcome = match meta.commit(&txn, self.ticket.as_ref(), self.in_doubt) {
            Ok(outcome) => outcome,
            Err(failure) => {
                if self.in_doubt.is_some() || !is_determinate(&failure) {
                    meta.leave(entered, &txn, false);
                }
                return Err(failure);
            }
        };
        match outcome {
            Outcome::Committed { inodes, .. } if may_be_earlier(self.in_doubt, &inodes) => {
                // The engine may have answered for an earlier plan with other effects, so the present values
                // of the records that this plan changes are not known.
                meta.invalidate_txn(&txn);
                meta.leave(entered, &txn, false);
                let last = self.last_plan();
                let since = self.in_doubt.as_ref().map_or_else(BootInstant::now, |in_doubt| in_doubt.since);
                let committed = meta.committed_plan(txn.op_id, since)?;
                *self.in_doubt = None;
                Ok(ControlFlow::Break(match committed.errno {
                    Some(errno) => Err(errno),
                    None if committed.number == last => answer,
                    None => Ok(self.reply_of(committed.number)?),
                }))
            }
            Outcome::Committed { seq, inodes } => {
                let is_marked = self.in_doubt.take().is_some_and(|in_doubt| in_doubt.plan > 0);
                if O::IS_REMEMBERED {
                    meta.remember(&txn, seq, &inodes, began);
                }
                if let Some((dir, before)) = new_dir {
                    meta.cache.listed(dir, None, None, before, seq);
                }
                meta.leave(entered, &txn, true);
                // Do not take the target of a copy of a tree: a copy makes its transactions smaller if the
                // engine rejects one as too large, and the queue does not reject them.
                if O::IS_REMEMBERED {
                    meta.note_created(&txn);
                }
                if is_marked {
                    meta.drop_mark(txn.op_id);
                }
                Ok(ControlFlow::Break(answer))
            }
            Outcome::Conflict(snapshot) => {
                let concerns_held = entered.as_ref().is_some_and(Entered::concerns_held);
                // An earlier attempt may still change held records, or create a directory that names this
                // session.
                match self.in_doubt {
                    Some(_) => meta.leave(entered, &txn, false),
                    None => drop(entered),
                }
                if let Err(fenced) = meta.check_own(&txn.guards, &snapshot) {
                    // From now on no attempt can commit. An earlier one may have committed before the session
                    // was removed, and its result was removed with the session.
                    return Err(match self.in_doubt {
                        Some(_) => EngineError::indeterminate(fenced.to_string()).into(),
                        None => fenced,
                    });
                }
                if self.in_doubt.is_some() {
                    self.replies.extend(answer.ok().map(|reply| (self.last_plan(), reply)));
                }
                // The conflict returned all guarded records as of one moment; they supersede what was read
                // before.
                if concerns_held {
                    // All records, including the held ones, are as of one moment. They are not cached.
                    self.fresh = meta.cache.pass(&snapshot, began).into_iter().collect();
                    self.conflicted();
                    return Ok(ControlFlow::Continue(()));
                }
                let snapshot = meta.without_held(snapshot);
                if meta.held_drops() == drops {
                    self.fresh = self.take(&snapshot, began).into_iter().collect();
                } else {
                    // The held records were dropped meanwhile, so the database may have newer records than
                    // this snapshot.
                    self.forget_reads();
                }
                self.conflicted();
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    /// The number of the last plan that was sent.
    fn last_plan(&self) -> u32 {
        self.in_doubt.as_ref().map_or(0, |in_doubt| in_doubt.plan)
    }

    /// The reply for an earlier plan, which was committed.
    ///
    /// # Errors
    /// Indeterminate if the reply is not known.
    fn reply_of(&mut self, plan: u32) -> Result<O::Reply, EngineError> {
        let here = self.replies.iter().position(|(number, _)| *number == plan);
        let reply =
            here.map(|at| self.replies.swap_remove(at).1).or_else(|| self.earlier.map(|reply| reply()));
        reply.ok_or_else(|| EngineError::indeterminate("the reply of an earlier attempt is not known"))
    }

    /// Handles the outcome of a transaction whose guards were checked against the held records.
    fn took_effect_here(
        &mut self,
        txn: &Txn,
        outcome: Outcome,
        answer: Result<O::Reply, Errno>,
    ) -> ControlFlow<Result<O::Reply, Errno>> {
        match outcome {
            Outcome::Committed { .. } => {
                // The cache has the records that the transaction changes as they were before it.
                self.meta.invalidate_txn(txn);
                let acl = |effect: &Effect| match effect {
                    Effect::PutAcl { id, text } => Some(Record::Acl(*id, Some(text.clone()))),
                    _ => None,
                };
                let records: Vec<Record> = txn.effects.iter().filter_map(acl).collect();
                if !records.is_empty() {
                    self.meta.cache.absorb(&Snapshot { records, ..Snapshot::default() }, Instant::now());
                }
                ControlFlow::Break(answer)
            }
            Outcome::Conflict(snapshot) => {
                self.fresh = self.meta.cache.pass(&snapshot, Instant::now()).into_iter().collect();
                self.conflicted();
                ControlFlow::Continue(())
            }
        }
    }

    fn conflicted(&mut self) {
        self.reads = 1;
        self.conflicts += 1;
        count(&self.meta.events.conflicts);
        self.must_back_off = self.conflicts > PROMPT_CONFLICTS;
    }

    fn give_up(self) -> Failure {
        let message = format!(
            "{}: gave up after {} with other clients and {}",
            O::NAME,
            counted(self.conflicts, "conflict", "conflicts"),
            counted(self.all_reads, "read", "reads")
        );
        tracing::error!("{message}");
        EngineError::permanent(message).into()
    }
}
