//! Conflict-free groups: transactions of a batch whose guards may be checked together and whose effects may
//! then be applied together.

use host::HashMap;
use types::{Ino, OpId};

use crate::footprint::{Footprint, Part};
use crate::quota::QuotaKey;
use crate::record::{Usage, blocks_of};
use crate::txn::{Effect, Guard, Txn};

/// Splits a batch into conflict-free groups of consecutive transactions. A transaction joins a group only if
/// no earlier transaction of the group changes a part that it guards or changes. Several changes of the same
/// part are allowed if [`Footprint::commutes`] is set for all of them. So an engine may check all guards of a
/// group first, and then apply all its effects by kind: it adds up [`Effect::AddLinks`],
/// [`Effect::AddXattrBlocks`] and [`Effect::Charge`], takes the maximum of [`Effect::Extend`], takes the last
/// atime and mtime and the latest ctime of [`Effect::SetTimes`], and keeps rows in the order of the batch.
///
/// The only exceptions are [`Guard::Room`] and [`Guard::Quota`]: they may follow changes of the usage that
/// they check (for a quota, only [`Effect::Charge`]), because otherwise no two creates could share a group on
/// a volume with limits. An engine checks the limits against the current usage plus
/// [`max_added_before_room_guard`] or [`max_charged_before_quota_guard`]. If the guard holds with this sum,
/// it holds whatever the outcomes of the earlier transactions are. If it does not, the engine must split the
/// group and retry.
pub fn conflict_free_groups(txns: &[Txn]) -> Vec<&[Txn]> {
    let mut groups = Vec::new();
    let mut group = ConflictGroup::default();
    let mut start = 0;
    for (index, txn) in txns.iter().enumerate() {
        if !group.admit(txn) {
            groups.push(&txns[start..index]);
            start = index;
            group = ConflictGroup::default();
            group.admit(txn);
        }
    }
    if start < txns.len() {
        groups.push(&txns[start..]);
    }
    groups
}

/// The most that a group can add to the usage before its last transaction with a [`Guard::Room`].
pub fn max_added_before_room_guard(group: &[Txn]) -> Usage {
    let checks_room = |txn: &Txn| txn.guards.iter().any(|guard| matches!(guard, Guard::Room { .. }));
    let last = group.iter().rposition(checks_room).unwrap_or(0);
    max_added(group.get(..last).unwrap_or_default())
}

/// The most that the transactions of a group charge to a quota, in inodes and blocks, before the last one
/// with a [`Guard::Quota`] on it.
pub fn max_charged_before_quota_guard(group: &[Txn], quota: QuotaKey) -> (u64, u64) {
    let checks =
        |txn: &Txn| txn.guards.iter().any(|guard| matches!(guard, Guard::Quota { key, .. } if *key == quota));
    let last = group.iter().rposition(checks).unwrap_or(0);
    let (mut inodes, mut blocks) = (0_u64, 0_u64);
    for effect in group.iter().take(last).flat_map(|txn| &txn.effects) {
        if let Effect::Charge { key, inodes: more, blocks: larger } = *effect
            && key == quota
        {
            inodes = inodes.saturating_add(more.max(0).unsigned_abs());
            blocks = blocks.saturating_add(larger.max(0).unsigned_abs());
        }
    }
    (inodes, blocks)
}

/// As [`max_charged_before_quota_guard`]; `None` if a transaction of the group frees inodes or blocks of the
/// quota. If there is no such transaction, an addition that does not fit now does not fit later in the group
/// either.
pub fn certain_charged_before_quota_guard(group: &[Txn], quota: QuotaKey) -> Option<[u64; 2]> {
    let frees = |effect: &Effect| matches!(effect, Effect::Charge { key, inodes, blocks } if *key == quota && *inodes.min(blocks) < 0);
    let is_certain = !group.iter().flat_map(|txn| &txn.effects).any(frees);
    is_certain.then(|| max_charged_before_quota_guard(group, quota).into())
}

/// The most that transactions add to the usage.
pub fn max_added(txns: &[Txn]) -> Usage {
    let mut most = Usage::default();
    for effect in txns.iter().flat_map(|txn| &txn.effects) {
        let (inodes, blocks) = match *effect {
            Effect::PutInode(ref inode) => (1, inode.blocks()),
            // The present size is not known here, so the whole new size counts.
            Effect::SetSize { size, .. } | Effect::Extend { size, .. } => (0, blocks_of(size)),
            Effect::AddXattrBlocks { delta, .. } => (0, delta.max(0).unsigned_abs().into()),
            Effect::AddUsage { inodes, blocks } => {
                (inodes.max(0).unsigned_abs(), blocks.max(0).unsigned_abs())
            }
            _ => (0, 0),
        };
        most.inodes = most.inodes.saturating_add(inodes);
        most.blocks = most.blocks.saturating_add(blocks);
    }
    most
}

/// The conflict keys that the transactions of a group have changed so far, each with whether all its changes
/// commute.
#[derive(Debug, Default)]
pub(crate) struct ConflictGroup<'t> {
    changed: HashMap<ConflictKey<'t>, bool>,
}

impl<'t> ConflictGroup<'t> {
    /// Adds a transaction if it fits in this group. The first one always does.
    pub(crate) fn admit(&mut self, txn: &'t Txn) -> bool {
        let mut changes: Vec<(ConflictKey<'_>, bool)> = txn.effects.iter().flat_map(changes_of).collect();
        changes.push((ConflictKey::Op(txn.op_id), false));
        let changed = &mut self.changed;
        let mut checked = txn.guards.iter().flat_map(keys_checked);
        let may_follow =
            |key: &ConflictKey<'_>| matches!(key, ConflictKey::Part(Part::Usage | Part::Quota(_)));
        let conflicts = checked
            .any(|key| changed.get(&key).is_some_and(|all_commute| !(*all_commute && may_follow(&key))))
            || changes.iter().any(|(key, commutes)| changed.get(key).is_some_and(|all| !(all & commutes)));
        if !conflicts {
            for (key, commutes) in changes {
                changed.entry(key).and_modify(|all| *all &= commutes).or_insert(commutes);
            }
        }
        !conflicts
    }
}

/// A conflict key: a part of the volume, at the coarsest granularity that suffices to detect conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ConflictKey<'t> {
    Op(OpId),
    /// Anything that is stored with the inode.
    Body(Ino),
    /// The numbers of rows that refer to slices, one key for all slices.
    Sharing,
    Part(Part<'t>),
}

impl<'t> ConflictKey<'t> {
    /// The conflict key of a part. Parts that no guard checks separately share one key.
    fn of(part: Part<'t>) -> Self {
        match part {
            Part::Symlink(ino) => ConflictKey::Body(ino),
            Part::Slice(_) => ConflictKey::Sharing,
            part => ConflictKey::Part(part),
        }
    }
}

fn keys_checked(guard: &Guard) -> impl Iterator<Item = ConflictKey<'_>> {
    let part = guard.part();
    let existence = match part {
        Part::Dirent(..) | Part::Entries(_) => None,
        _ => part.inode().map(|ino| ConflictKey::Part(Part::Existence(ino))),
    };
    existence.into_iter().chain([ConflictKey::of(part)])
}

/// The conflict keys that an effect changes, each with whether such changes commute (or the last one
/// overrides the others).
fn changes_of(effect: &Effect) -> impl Iterator<Item = (ConflictKey<'_>, bool)> {
    const COMMUTES: bool = true;
    const ORDERED: bool = false;
    let Footprint { part, commutes, releases_slices, changes_usage } = effect.footprint();
    let whole = match part {
        Part::Dirent(parent, _) => Some((ConflictKey::Part(Part::Entries(parent)), COMMUTES)),
        Part::Existence(ino) => Some((ConflictKey::Body(ino), ORDERED)),
        _ => part.inode().map(|ino| (ConflictKey::Body(ino), COMMUTES)),
    };
    let of_part = Some((ConflictKey::of(part), commutes));
    let usage = changes_usage.then_some((ConflictKey::Part(Part::Usage), COMMUTES));
    let sharing = releases_slices.then_some((ConflictKey::Sharing, COMMUTES));
    [of_part, whole, usage, sharing].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use types::{FileType, Mode, Name, Time};

    use super::*;
    use crate::record::Inode;

    fn name(name: &str) -> Name {
        Name::new(name.as_bytes()).unwrap()
    }

    /// A create like the one that the crate `ops` plans, with the guards and effects that matter here.
    fn create(id: u128, ino: u64, entry: &str) -> Txn {
        let parent = Ino(2);
        let guards =
            vec![Guard::Access { ino: parent, rev: 1 }, Guard::DirentAbsent { parent, name: name(entry) }];
        let dirent = Effect::PutDirent { parent, name: name(entry), ino: Ino(ino), kind: FileType::Regular };
        let now = Some(Time::from_nanos(1));
        let set_times = Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now };
        Txn { op_id: OpId(id), guards, effects: vec![dirent, set_times] }
    }

    fn lengths(txns: &[Txn]) -> Vec<usize> {
        conflict_free_groups(txns).iter().map(|group| group.len()).collect()
    }

    #[test]
    fn creates_of_different_names_share_a_group_and_of_one_name_do_not() {
        assert_eq!(lengths(&[]), []);
        assert_eq!(lengths(&[create(1, 10, "a"), create(2, 11, "b"), create(3, 12, "c")]), [3]);
        assert_eq!(lengths(&[create(1, 10, "a"), create(2, 11, "a"), create(3, 12, "c")]), [1, 2]);
    }

    #[test]
    fn removing_a_record_that_another_transaction_guards_starts_a_new_group() {
        let rmdir = Txn {
            op_id: OpId(9),
            guards: vec![Guard::Empty { ino: Ino(2) }],
            effects: vec![Effect::DropInode { ino: Ino(2) }],
        };
        assert_eq!(lengths(&[create(1, 10, "a"), rmdir.clone()]), [1, 1]);
        assert_eq!(lengths(&[rmdir, create(1, 10, "a")]), [1, 1]);
    }

    #[test]
    fn creates_below_a_limit_share_a_group_and_their_additions_are_counted() {
        let now = Time::from_nanos(1);
        let file =
            |ino| Inode { size: 5000, ..Inode::new(Ino(ino), FileType::Regular, Mode::new(0o644), now) };
        let limited = |id, ino, entry| {
            let mut txn = create(id, ino, entry);
            txn.guards.push(Guard::Room { max_inodes: 9, max_blocks: 9 });
            txn.effects.push(Effect::PutInode(file(ino)));
            txn
        };
        let mut txns = vec![limited(1, 10, "a"), limited(2, 11, "b"), limited(3, 12, "c")];
        txns.push(Txn {
            op_id: OpId(4),
            guards: Vec::new(),
            effects: vec![Effect::Extend { ino: Ino(10), size: 1 << 20 }],
        });
        // The fourth transaction changes an inode that this group creates.
        assert_eq!(lengths(&txns), [3, 1]);
        assert_eq!(max_added_before_room_guard(&txns[..3]), Usage { inodes: 2, blocks: 4 });
        assert_eq!(max_added_before_room_guard(&txns[..1]), Usage::default());
        assert_eq!(max_added(&txns), Usage { inodes: 3, blocks: 6 + 256 });
        // The effect of a correction on the usage is not known beforehand.
        txns[1].effects.push(Effect::AddUsage { inodes: 1, blocks: 0 });
        assert_eq!(lengths(&txns[..3]), [1, 1, 1]);
    }

    #[test]
    fn creates_below_a_quota_share_a_group_and_their_charges_are_counted() {
        let key = QuotaKey::User(7);
        let limited = |id, ino, entry| {
            let mut txn = create(id, ino, entry);
            txn.guards.push(Guard::Quota { key, outer: None, inodes: 1, blocks: 2 });
            txn.effects.push(Effect::Charge { key, inodes: 1, blocks: 2 });
            txn.effects.push(Effect::Charge { key: QuotaKey::Group(7), inodes: 5, blocks: 5 });
            txn
        };
        let remove = Txn {
            guards: Vec::new(),
            effects: vec![Effect::Charge { key, inodes: -9, blocks: -9 }],
            op_id: OpId(4),
        };
        let mut txns = vec![limited(1, 10, "a"), remove, limited(2, 11, "b"), limited(3, 12, "c")];
        assert_eq!(lengths(&txns), [4]);
        assert_eq!(max_charged_before_quota_guard(&txns, key), (2, 4));
        assert_eq!(max_charged_before_quota_guard(&txns[..1], key), (0, 0));
        assert_eq!(max_charged_before_quota_guard(&txns, QuotaKey::Group(7)), (0, 0), "nobody checks it");
        // A removal of the quota separates the transactions before it from those after it.
        txns[1].effects = vec![Effect::DropQuota { key }];
        assert_eq!(lengths(&txns), [1, 1, 2]);
    }

    #[test]
    fn a_retry_is_not_in_the_group_of_its_first_attempt() {
        assert_eq!(lengths(&[create(1, 10, "a"), create(1, 10, "b")]), [1, 1]);
    }

    #[test]
    fn stored_acls_commute_and_a_condemned_one_conflicts_with_its_users() {
        let id = types::AclId(7);
        let txn = |op, guards: &[Guard], effect: Option<Effect>| Txn {
            op_id: OpId(op),
            guards: guards.to_vec(),
            effects: effect.into_iter().collect(),
        };
        let put = |op| txn(op, &[], Some(Effect::PutAcl { id, text: "text".into() }));
        let uses = |op| txn(op, &[Guard::Acl { id }], None);
        let condemn = |op| txn(op, &[], Some(Effect::CondemnAcl { id }));
        assert_eq!(lengths(&[put(1), put(2)]), [2]);
        assert_eq!(lengths(&[uses(1), uses(2), put(3)]), [3]);
        assert_eq!(lengths(&[put(1), uses(2)]), [1, 1]);
        assert_eq!(lengths(&[condemn(1), uses(2)]), [1, 1]);
        assert_eq!(lengths(&[put(1), condemn(2), put(3)]), [1, 1, 1]);
    }

    #[test]
    fn sizes_commute_unless_one_is_set() {
        let extend = |id, size| Txn {
            op_id: OpId(id),
            guards: Vec::new(),
            effects: vec![Effect::Extend { ino: Ino(5), size }],
        };
        let set = Txn { effects: vec![Effect::SetSize { ino: Ino(5), size: 1 }], ..extend(3, 0) };
        assert_eq!(lengths(&[extend(1, 10), extend(2, 20), set, extend(4, 30)]), [2, 1, 1]);
    }
}
