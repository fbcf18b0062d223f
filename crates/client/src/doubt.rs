//! Operations in doubt: a commit got no answer, so it may have happened, or may happen later.
//!
//! An engine applies an operation id at most once. So an operation in doubt is retried under its id until the
//! engine gives a determinate answer. Further rules follow:
//!
//! - If a retry meets a conflict, no attempt has committed so far. But an earlier attempt may still be in
//!   flight, and its guards may hold again when it arrives. So the next plan is sent under the same id, also
//!   if it ends in an error or has no effects: an earlier attempt then has no effect when it arrives.
//! - The engine does not tell which plan was committed under an id. So each plan but the first has one more
//!   effect, a mark. A mark has the form of a wait for a lock on the root directory. It contains the id of
//!   the operation in its lock owner, the number of the plan, and the error in which the plan ended. If the
//!   engine answers that the id was committed before, the mark tells the answer of the operation; if there is
//!   none, the first plan was committed.
//! - An engine remembers the id as long as the id's term is open, and the term stays open as long as the
//!   operation has no answer: see `terms.rs`. So the operation is retried for the whole retry timeout, and a
//!   caller that keeps the [`InDoubtTxn`] can retry it at any later time. After the loss of the session, none
//!   of the session's operations can commit any more.
//! - Some operations are guarded by no term: those of tools, those of a client that has the volume
//!   exclusively, and the beginning of a session. The engine drops their ids after some time, and a later
//!   retry would apply them twice. So they are not retried later than [`REPEAT_FOR`] after the first attempt,
//!   even if the retry timeout is longer: the operation then fails with EIO.

use std::time::Duration;

use meta::{Effect, Inode, Lock, LockKind, LockOwner, LockWait, Txn};
use types::{BootInstant, Errno, Ino, OpId, SessionId, Term};

use crate::ticket::Ticket;

/// A transaction that may have been committed, or may be committed later.
#[derive(Debug)]
pub struct InDoubtTxn {
    /// The last transaction that was sent under this id.
    pub(crate) txn: Txn,
    pub(crate) ticket: Ticket,
    /// When the first attempt whose result is not known was sent.
    pub(crate) since: BootInstant,
    /// The number of the plan of `txn`. The first one, which has no mark, is 0.
    pub(crate) plan: u32,
    /// The inodes that each plan leaves without a name, but open.
    orphans: Vec<(u32, Ino)>,
}

impl InDoubtTxn {
    pub(crate) fn new(txn: Txn, ticket: Ticket, since: BootInstant) -> Self {
        let orphans = orphans(0, &txn).collect();
        InDoubtTxn { txn, ticket, since, plan: 0, orphans }
    }

    /// The session of the operation. After its removal, the operation can no longer commit.
    pub fn session(&self) -> SessionId {
        self.txn.op_id.session()
    }

    /// The error of the last plan, if the plan ended in one.
    pub(crate) fn errno(&self) -> Option<Errno> {
        let mark = |effect: &Effect| match effect {
            Effect::PutWait(wait) => read_mark(self.txn.op_id, wait),
            _ => None,
        };
        self.txn.effects.iter().find_map(mark)?.errno
    }

    /// The inodes that a plan leaves without a name, but open.
    pub(crate) fn orphans_of(&self, plan: Plan) -> Vec<Ino> {
        self.orphans.iter().filter(|(number, _)| *number == plan.number).map(|(_, ino)| *ino).collect()
    }

    /// Makes `txn` the last transaction under this id, and adds its mark.
    pub(crate) fn replan(&mut self, mut txn: Txn, errno: Option<Errno>) {
        self.plan += 1;
        self.orphans.extend(orphans(self.plan, &txn));
        txn.effects.push(Effect::PutWait(mark(txn.op_id, Plan { number: self.plan, errno })));
        self.txn = txn;
    }
}

fn orphans(plan: u32, txn: &Txn) -> impl Iterator<Item = (u32, Ino)> {
    txn.effects.iter().filter_map(move |effect| match effect {
        Effect::PutOrphan { ino, .. } => Some((plan, *ino)),
        _ => None,
    })
}

/// A plan that was sent under an id in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) number: u32,
    /// Its error, if it ended in one.
    pub(crate) errno: Option<Errno>,
}

impl Plan {
    /// The first plan that was sent under an id. It has effects, because otherwise it could not be in doubt.
    const FIRST: Plan = Plan { number: 0, errno: None };

    /// The plan that was committed under an id, after the engine has answered that the id is committed.
    pub(crate) fn committed(id: OpId, waits: &[LockWait]) -> Plan {
        waits.iter().find_map(|wait| read_mark(id, wait)).unwrap_or(Plan::FIRST)
    }
}

/// For how long after the first attempt an operation in doubt that no term guards is retried. Redis keeps the
/// operation's id for 120 s (or for a million results, if they come faster), MySQL, etcd and TiKV for 180 s,
/// PostgreSQL for 300 s. The last request needs some of that time to arrive. The embedded engine keeps the
/// last 16,384 ids.
pub(crate) const REPEAT_FOR: Duration = Duration::from_secs(90);

/// Whether the answer to a transaction may be about an earlier plan under the same id. An engine returns the
/// changed inodes only when it applies a transaction, not when it finds the id already committed.
pub(crate) fn may_be_earlier(in_doubt: &Option<InDoubtTxn>, inodes: &[Inode]) -> bool {
    inodes.is_empty() && in_doubt.as_ref().is_some_and(|in_doubt| in_doubt.plan > 0)
}

/// The owner of an operation's mark.
pub(crate) fn mark_owner(id: OpId) -> LockOwner {
    LockOwner { session: id.session(), owner: id.0 as u64, kind: LockKind::Flock }
}

fn mark(id: OpId, Plan { number, errno }: Plan) -> LockWait {
    let (owner, pid) = (mark_owner(id), errno.map_or(0, |errno| errno.raw().unsigned_abs()));
    LockWait { ino: Ino::ROOT, lock: Lock { start: 0, end: number.into(), owner, exclusive: false, pid } }
}

/// The plan whose mark this is, if it is a mark of the operation.
fn read_mark(id: OpId, wait: &LockWait) -> Option<Plan> {
    let number = u32::try_from(wait.lock.end).ok()?;
    let errno = i32::try_from(wait.lock.pid).ok().filter(|raw| *raw != 0).map(Errno::from_raw);
    Some(Plan { number, errno }).filter(|plan| *wait == mark(id, *plan))
}

/// Whether this is the mark of an operation that no term guards. No session record tells whether the
/// operation still needs the mark. The mark is no longer needed when [`MARK_NEEDED`] has passed since it was
/// seen.
pub fn is_mark_without_term(wait: &LockWait) -> bool {
    let LockOwner { session, owner, .. } = wait.lock.owner;
    let id = OpId(u128::from(session.0) << 64 | u128::from(owner));
    id.term() == Term::NONE && read_mark(id, wait).is_some()
}

/// How long the mark of an operation that no term guards is needed, from the first attempt on. The mark is
/// stored after the first attempt. The operation is sent for the last time [`REPEAT_FOR`] after the first
/// attempt, and the last answer needs some time to arrive. If the mark is read later, because the tool was
/// stopped, it may have been removed, so a missing mark does not say which plan was committed.
pub const MARK_NEEDED: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meta::{Engine, ErrorKind, MemEngine, Session, Volume};
    use ops::Configure;
    use suite::{Fault, FaultRates, Faulty};
    use types::Time;

    use super::*;
    use crate::driver::{BY_KERNEL, Meta};
    use crate::failure::Failure;

    /// Cancels a change in doubt. The cancellation is committed, but its answer is lost. While it is retried,
    /// a mount removes the mark, and the session if there is one, between the two requests by which the
    /// client learns the result. Returns the error of the retry.
    fn cancel_without_mark(has_session: bool, since: impl Fn(BootInstant) -> BootInstant) -> Failure {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let faulty = Arc::new(Faulty::new(engine, 1, FaultRates::default()));
        let meta = Meta::open(faulty.clone(), 1000).unwrap();
        if has_session {
            let session = Session::new(meta.session(), Time::from_nanos(1));
            meta.begin_session(session, Duration::from_secs(3600)).unwrap();
        }
        meta.set_retry_timeout(Duration::ZERO);
        meta.set_repeat_for(Duration::MAX);
        faulty.arm(true);
        let mut in_doubt = None;
        faulty.script([Fault::None, Fault::Late]);
        let op = Configure { abe: Some(true), ..Configure::default() };
        meta.run_once(&op, &BY_KERNEL, &mut in_doubt).unwrap_err();
        faulty.script([Fault::After]);
        meta.cancel(&mut in_doubt).unwrap_err();
        let canceled = in_doubt.as_mut().unwrap();
        canceled.since = since(canceled.since);
        let id = canceled.txn.op_id;
        faulty.set_rival(move |engine| {
            let session = has_session.then_some(Effect::DropSession { session: id.session() });
            let mark = Effect::DropWait { owner: mark_owner(id) };
            let effects = session.into_iter().chain([mark]).collect();
            let op_id = OpId::new(SessionId(u64::MAX), Term::NONE, 0);
            engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
        });
        faulty.script([Fault::None, Fault::RivalOfRead]);
        meta.cancel(&mut in_doubt).unwrap_err()
    }

    #[test]
    fn a_missing_mark_is_no_answer_if_it_may_have_been_removed() {
        // A tool was stopped for minutes.
        let long_ago = |since: BootInstant| since.checked_sub(MARK_NEEDED).unwrap();
        for failure in [cancel_without_mark(true, |since| since), cancel_without_mark(false, long_ago)] {
            let Failure::Engine(error) = failure else { panic!("{failure}") };
            assert_eq!(error.kind, ErrorKind::Indeterminate);
        }
    }
}
