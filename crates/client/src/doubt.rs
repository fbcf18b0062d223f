//! Operations in doubt: a commit got no answer, so it may have happened, or may happen later.
//!
//! An engine applies an operation id at most once. So an operation in doubt is retried under its id until the
//! engine gives a determinate answer. Further rules follow:
//!
//! - If a retry meets a conflict, no attempt has committed so far. But an earlier attempt may still be in
//!   flight, and its guards may hold again when it arrives. So the next plan is sent under the same id.
//! - If that plan ends in an error or has no effects, its result is also recorded under the id, so that an
//!   earlier attempt has no effect when it arrives. The only effect of this transaction is a mark: a record of
//!   a wait for a lock on the root, whose lock owner has the number of the operation. If the engine answers that
//!   the id was committed before, the mark tells what was committed: the recorded result if the mark exists,
//!   else an earlier attempt, and then the operation succeeded.
//! - An engine remembers the id as long as its term is open, and the term stays open as long as the operation
//!   has no answer: see `terms.rs`. So the operation is retried for the whole retry timeout, and a caller that
//!   keeps the [`Doubt`] can retry it at any later time. After the loss of the session, none of the session's
//!   operations can commit any more.
//! - The ids of operations that no term guards (those of tools, and of the beginning of a session) are
//!   dropped by the engine after some minutes, and a later retry would apply them twice. So these are not
//!   retried later than [`REPEAT_FOR`] after the first attempt, even if the retry timeout is longer: the
//!   operation then fails with EIO.

use std::time::Duration;

use meta::{Effect, Inode, Lock, LockKind, LockOwner, LockWait, Txn};
use types::{BootInstant, Errno, Ino, OpId, SessionId, Term};

use crate::ticket::Ticket;

/// A transaction that may have been committed, or may be committed later.
#[derive(Debug)]
pub struct Doubt {
    pub(crate) txn: Txn,
    pub(crate) ticket: Ticket,
    /// When the first attempt under this id was sent.
    pub(crate) since: BootInstant,
    /// The last result that was sent to be recorded under this id.
    pub(crate) recorded: Option<Result<(), Errno>>,
}

impl Doubt {
    /// The session of the operation. After its removal, the operation can no longer commit.
    pub fn session(&self) -> SessionId {
        self.txn.op_id.session()
    }

    /// The transaction to send first, and the error that it records, if any.
    pub(crate) fn resumed(&self) -> (Option<Errno>, Txn) {
        let is_mark = matches!(self.txn.effects[..], [Effect::PutWait(wait)] if wait == mark(self.txn.op_id));
        let recorded = self.recorded.filter(|_| is_mark);
        (recorded.and_then(Result::err), self.txn.clone())
    }
}

/// For how long after the first attempt an operation in doubt that no term guards is retried. Redis keeps its
/// id for 120 s (or for a million results, if they come faster), MySQL, etcd and TiKV for 180 s, PostgreSQL for
/// 300 s. The last request that is sent needs some of that time to arrive.
pub(crate) const REPEAT_FOR: Duration = Duration::from_secs(90);

/// Whether the answer to a transaction may be about an earlier attempt with another plan. An engine returns the
/// changed inodes only when it applies a transaction, not when it finds the id already committed.
pub(crate) fn may_be_earlier(doubt: &Option<Doubt>, is_other: bool, inodes: &[Inode]) -> bool {
    inodes.is_empty() && doubt.as_ref().is_some_and(|doubt| is_other || doubt.recorded.is_some())
}

/// The mark which shows that a result was recorded.
pub(crate) fn mark(id: OpId) -> LockWait {
    let session = id.session();
    let owner = LockOwner { session, owner: id.0 as u64, kind: LockKind::Flock };
    LockWait { ino: Ino::ROOT, lock: Lock { start: 0, end: 0, owner, exclusive: false, pid: 0 } }
}

/// Whether this is the mark of an operation that no term guards. No session record tells whether the operation still
/// needs the mark. The mark is no longer needed when [`MARK_NEEDED`] has passed since it was seen.
pub fn is_mark_without_term(wait: &LockWait) -> bool {
    let LockOwner { session, owner, .. } = wait.lock.owner;
    let id = OpId(u128::from(session.0) << 64 | u128::from(owner));
    id.term() == Term::NONE && *wait == mark(id)
}

/// For how long an operation that no term guards may read its mark: it is sent for the last time [`REPEAT_FOR`] after the
/// first attempt, which was before the mark was stored, and the last answer needs some time to arrive.
pub const MARK_NEEDED: Duration = Duration::from_secs(300);
