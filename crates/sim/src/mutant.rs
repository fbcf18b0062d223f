//! Mutants of the engine and the clients that break one rule each. The simulator has to find every one that
//! is in a list.

use meta::{Effect, Guard, Inode, Txn};
use types::{OpId, SessionId};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Changes of a removed session are applied.
    NoSession,
    /// A retry is not recognised by its operation id.
    ForgetsIds,
    /// Guards of the kind in the name are not checked; the same for the next mutants, up to `NoXattrBlocks`.
    NoAccess,
    NoDirentAbsent,
    NoDirentIs,
    NoEmpty,
    NoLinks,
    NoSize,
    NoLocks,
    NoCounter,
    NoXattr,
    NoXattrBlocks,
    /// The blocks of an extended attribute still count after its removal or replacement by a shorter one.
    KeepsXattrBlocks,
    /// A quota is charged although it is full.
    NoQuota,
    /// A file removed from a quota still counts in it.
    KeepsCharges,
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
    /// The lease is measured with the wall clock.
    WallClock,
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
    /// A program writes to a file whose lock was lost with its mount's session, as if it were still held.
    KeepsLocks,
    /// The stream continues after changes that the log has lost.
    UnnoticedTrim,
    /// The collector removes unlinked inodes that a mount has open.
    GcRemovesOpen,
    /// A client uses directories that another one holds.
    IgnoresHolder,
    /// A client takes a directory that is held, and its holder is not notified.
    TakesHeld,
    /// A mount that is notified of a take keeps the names that it and its kernel have cached. The simulator
    /// does not find this mutant yet, so it is in no list.
    KeepsNames,
    /// The take of a directory does not increment the access revision.
    TakesSilently,
    /// The journals of killed mounts are replayed as if they were empty.
    NotReplayed,
    /// Journals do not record how transactions that may have been sent were merged.
    ForgetsSent,
}

impl Mutant {
    pub const ALL: [Mutant; 30] = [
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
        Mutant::NoXattr,
        Mutant::NoXattrBlocks,
        Mutant::KeepsXattrBlocks,
        Mutant::NoQuota,
        Mutant::KeepsCharges,
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
        Mutant::WallClock,
        Mutant::KeepsMemory,
        Mutant::GcReadsSessionsFirst,
        Mutant::GcWithoutGrace,
        Mutant::NewIdAfterDoubt,
    ];

    /// The mutants of whole mounts.
    pub const OF_MOUNTS: [Mutant; 13] = [
        Mutant::NotRepeated,
        Mutant::HeartbeatBehindFlush,
        Mutant::NoSession,
        Mutant::KeepsXattrBlocks,
        Mutant::KeepsLocks,
        Mutant::UnnoticedTrim,
        Mutant::GcRemovesOpen,
        Mutant::GcWithoutGrace,
        Mutant::IgnoresHolder,
        Mutant::TakesHeld,
        Mutant::TakesSilently,
        Mutant::NotReplayed,
        Mutant::ForgetsSent,
    ];

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
                    | (Mutant::NoXattr, Guard::Xattr { .. })
                    | (Mutant::NoXattrBlocks, Guard::XattrBlocks { .. })
                    | (Mutant::NoQuota, Guard::Quota { .. })
            );
            let is_of_renewal = renews && matches!(guard, Guard::Session { .. } | Guard::Term { .. });
            !(is_left_out || self == Mutant::RenewalCreates && is_of_renewal)
        });
        match self {
            Mutant::ForgetsIds => txn.op_id = OpId(u128::MAX - count as u128),
            Mutant::NoShare => txn.effects.retain(|effect| !matches!(effect, Effect::Share { .. })),
            Mutant::KeepsXattrBlocks => {
                let frees = |effect: &Effect| matches!(effect, Effect::AddXattrBlocks { delta: ..0, .. });
                txn.effects.retain(|effect| !frees(effect));
            }
            Mutant::KeepsCharges => {
                let frees = |effect: &Effect| {
                    matches!(effect, Effect::Charge { inodes: ..0, .. } | Effect::Charge { blocks: ..0, .. })
                };
                txn.effects.retain(|effect| !frees(effect));
            }
            Mutant::LosesEffect if count % 8 == 7 && txn.effects.len() > 2 => txn.effects.truncate(2),
            Mutant::TakesSilently if is_take(&txn.effects) => {
                txn.effects.retain(|effect| !matches!(effect, Effect::SetAccess { .. }));
            }
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

/// Whether the effects make a session the holder of a directory that exists.
fn is_take(effects: &[Effect]) -> bool {
    let first = Inode::held_size(SessionId(1));
    effects.iter().any(|effect| matches!(effect, Effect::SetSize { size, .. } if Some(*size) >= first))
}
