//! Engines that break one rule each. The simulator has to find every one of them.

use meta::{Effect, Guard, Txn};
use types::OpId;

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Changes of a session that was removed are made.
    NoSession,
    /// A repetition is not known as one.
    ForgetsIds,
    NoAccess,
    NoEdgeAbsent,
    NoEdgeIs,
    NoEmpty,
    NoLinks,
    NoSize,
    NoLocks,
    NoCounter,
    /// Every transaction is applied twice.
    Twice,
    /// A slice that several rows name is not counted.
    NoShare,
    /// All but the first two effects of some transactions are lost.
    LosesEffect,
    /// Some transactions are acknowledged, and not applied.
    LosesCommit,
    /// The stream leaves out changes, and goes on.
    SilentStream,
    /// A renewal puts a session on record that was removed.
    RenewalCreates,
    /// A session is removed whatever its heartbeat is.
    AnyHeartbeat,
    /// Memory serves four times as long as it may.
    LongLease,
    /// The lease on memory counts from the answer of the stream, not from the question.
    LeaseFromAnswer,
    /// The lease is measured by a clock that stands still during a suspend.
    StoppedClock,
    /// Nothing is forgotten when the stream is cut.
    KeepsMemory,
    /// The collector reads the sessions before the counter of slices.
    GcReadsSessionsFirst,
    /// The collector takes any slice that no row names, however new it is: a grace of zero.
    GcWithoutGrace,
    /// A write in doubt is tried under a new id.
    NewIdAfterDoubt,
    /// A notification is not repeated after the replies that it overtook.
    NotRepeated,
    /// The heartbeat waits for a flush to a store that stalls.
    HeartbeatBehindFlush,
}

impl Mutant {
    pub const ALL: [Mutant; 24] = [
        Mutant::NoSession,
        Mutant::ForgetsIds,
        Mutant::NoAccess,
        Mutant::NoEdgeAbsent,
        Mutant::NoEdgeIs,
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

    /// Those of whole mounts.
    pub const OF_MOUNTS: [Mutant; 3] = [Mutant::NotRepeated, Mutant::HeartbeatBehindFlush, Mutant::NoSession];

    /// Changes a transaction on its way to the engine; `count` is how many there were before.
    pub(crate) fn spoil(self, txn: &mut Txn, count: usize) {
        let renews = matches!(txn.effects[..], [Effect::PutSession(_)]);
        txn.guards.retain(|guard| {
            let is_left_out = matches!(
                (self, guard),
                (Mutant::NoSession, Guard::Session { heartbeat: None, .. } | Guard::Term { .. })
                    | (Mutant::NoAccess, Guard::Access { .. })
                    | (Mutant::NoEdgeAbsent, Guard::EdgeAbsent { .. })
                    | (Mutant::NoEdgeIs, Guard::EdgeIs { .. })
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
