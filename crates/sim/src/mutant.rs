//! Mutants of the engine and the clients that break one rule each. The simulator has to find every one of
//! them.

use meta::{Effect, Guard, Txn};
use types::OpId;

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Changes of a removed session are applied.
    NoSession,
    /// A retry is not recognised by its operation id.
    ForgetsIds,
    NoAccess,
    NoDirentAbsent,
    NoDirentIs,
    NoEmpty,
    NoLinks,
    NoSize,
    NoLocks,
    NoCounter,
    /// Every transaction is applied twice.
    Twice,
    /// The count of a slice that several rows name is not kept.
    NoShare,
    /// Only the first two effects of some transactions are applied.
    LosesEffect,
    /// Some transactions are acknowledged, but not applied.
    LosesCommit,
    /// The stream omits some changes without an error.
    SilentStream,
    /// A renewal creates the record of a session that was removed.
    RenewalCreates,
    /// A session is removed whatever its heartbeat is.
    AnyHeartbeat,
    /// The cache is used four times as long as permitted.
    LongLease,
    /// The lease on the cache starts at the answer of the stream, not at the poll.
    LeaseFromAnswer,
    /// The lease is measured with a clock that does not count suspends.
    StoppedClock,
    /// The cache is not invalidated when the stream is cut.
    KeepsMemory,
    /// The collector reads the sessions before the counter of slices.
    GcReadsSessionsFirst,
    /// The collector removes any slice without a row, however new it is.
    GcWithoutGrace,
    /// A write in doubt is retried under a new id.
    NewIdAfterDoubt,
    /// A notification is not repeated after the replies that it overtook.
    NotRepeated,
    /// The heartbeat waits for a flush to an object store that stalls.
    HeartbeatBehindFlush,
}

impl Mutant {
    pub const ALL: [Mutant; 24] = [
        Mutant::NoSession,
        Mutant::ForgetsIds,
        Mutant::NoAccess,
        Mutant::NoDirentAbsent,
        Mutant::NoDirentIs,
        Mutant::NoEmpty,
        Mutant::NoLinks,
        Mutant::NoSize,
        Mutant::NoLocks,
        Mutant::NoCounter,
        Mutant::Twice,
        Mutant::NoShare,
        Mutant::LosesEffect,
        Mutant::LosesCommit,
        Mutant::SilentStream,
        Mutant::RenewalCreates,
        Mutant::AnyHeartbeat,
        Mutant::LongLease,
        Mutant::LeaseFromAnswer,
        Mutant::StoppedClock,
        Mutant::KeepsMemory,
        Mutant::GcReadsSessionsFirst,
        Mutant::GcWithoutGrace,
        Mutant::NewIdAfterDoubt,
    ];

    /// The mutants of whole mounts.
    pub const OF_MOUNTS: [Mutant; 3] = [Mutant::NotRepeated, Mutant::HeartbeatBehindFlush, Mutant::NoSession];

    /// Changes a transaction before the engine gets it; `count` is the number of earlier transactions.
    pub(crate) fn spoil(self, txn: &mut Txn, count: usize) {
        let renews = matches!(txn.effects[..], [Effect::PutSession(_)]);
        txn.guards.retain(|guard| {
            let is_left_out = matches!(
                (self, guard),
                (Mutant::NoSession, Guard::Session { heartbeat: None, .. } | Guard::Term { .. })
                    | (Mutant::NoAccess, Guard::Access { .. })
                    | (Mutant::NoDirentAbsent, Guard::DirentAbsent { .. })
                    | (Mutant::NoDirentIs, Guard::DirentIs { .. })
                    | (Mutant::NoEmpty, Guard::Empty { .. })
                    | (Mutant::NoLinks, Guard::Links { .. })
                    | (Mutant::NoSize, Guard::Size { .. })
                    | (Mutant::NoLocks, Guard::Locks { .. })
                    | (Mutant::NoCounter, Guard::Counter { .. })
            );
            let is_of_renewal = renews && matches!(guard, Guard::Session { .. } | Guard::Term { .. });
            !(is_left_out || self == Mutant::RenewalCreates && is_of_renewal)
        });
        match self {
            Mutant::ForgetsIds => txn.op_id = OpId(u128::MAX - count as u128),
            Mutant::NoShare => txn.effects.retain(|effect| !matches!(effect, Effect::Share { .. })),
            Mutant::LosesEffect if count % 8 == 7 && txn.effects.len() > 2 => txn.effects.truncate(2),
            Mutant::AnyHeartbeat => {
                for guard in &mut txn.guards {
                    if let Guard::Session { heartbeat, .. } = guard {
                        *heartbeat = None;
                    }
                }
            }
            _ => {}
        }
    }
}
