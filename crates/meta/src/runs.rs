//! Which transactions of a batch may be checked together and then applied together.

use std::collections::HashMap;

use types::{Ino, Name, SessionId, XattrName};

use crate::lock::LockOwner;
use crate::record::{Counter, Usage, blocks_of};
use crate::txn::{Effect, Guard, Txn};

/// Splits a batch into runs. Within a run no transaction looks at what an earlier one changes, and none changes what an
/// earlier one changed, unless the two changes commute or come to the same as the later one: so all guards of a run may
/// be checked first and all effects applied after, by kind, with what the last one says where several say it. (An
/// engine adds up [`Effect::AddLinks`], takes the largest of [`Effect::Extend`], and keeps rows in the order of the batch.)
///
/// Only [`Guard::Room`] may follow what moves the usage that it looks at, or else nothing could ever be made together with
/// something else where there is a limit. Its limits are to be met beside all that [`ahead_of_room`] says. Then it holds,
/// whatever becomes of the transactions before it; where it does not, they are to be tried in smaller runs.
pub fn runs(txns: &[Txn]) -> Vec<&[Txn]> {
    let mut runs = Vec::new();
    let mut run = Run::default();
    let mut start = 0;
    for (index, txn) in txns.iter().enumerate() {
        if !run.admit(txn) {
            runs.push(&txns[start..index]);
            start = index;
            run = Run::default();
            run.admit(txn);
        }
    }
    if start < txns.len() {
        runs.push(&txns[start..]);
    }
    runs
}

/// What the transactions of a run add to the usage at most, before the last one that asks for room.
pub fn ahead_of_room(run: &[Txn]) -> Usage {
    let asks = |txn: &Txn| txn.guards.iter().any(|guard| matches!(guard, Guard::Room { .. }));
    let last = run.iter().rposition(asks).unwrap_or(0);
    most_added(run.get(..last).unwrap_or_default())
}

/// What transactions add to the usage at most.
pub fn most_added(txns: &[Txn]) -> Usage {
    let mut most = Usage::default();
    for effect in txns.iter().flat_map(|txn| &txn.effects) {
        let (inodes, blocks) = match *effect {
            Effect::PutNode(ref node) => (1, node.blocks()),
            // How large it is already is not known here.
            Effect::SetSize { size, .. } | Effect::Extend { size, .. } => (0, blocks_of(size)),
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

/// What the transactions of a run change so far, and whether all of them commute in it.
#[derive(Debug, Default)]
pub(crate) struct Run {
    changed: HashMap<Aspect, bool>,
}

impl Run {
    /// Takes in one more transaction, if it may be in this run; the first one always may.
    pub(crate) fn admit(&mut self, txn: &Txn) -> bool {
        let mut changes: Vec<(Aspect, bool)> = txn.effects.iter().flat_map(changes_of).collect();
        changes.push((Aspect::Op(txn.op_id.0), false));
        let changed = &mut self.changed;
        let mut looks = txn.guards.iter().flat_map(looked_at);
        let meets = looks.any(|aspect| {
            changed.get(&aspect).is_some_and(|all_commute| !(*all_commute && aspect == Aspect::Usage))
        }) || changes
            .iter()
            .any(|(aspect, commutes)| changed.get(aspect).is_some_and(|all| !(all & commutes)));
        if !meets {
            for (aspect, commutes) in changes {
                changed.entry(aspect).and_modify(|all| *all &= commutes).or_insert(commutes);
            }
        }
        !meets
    }
}

/// What a guard looks at and an effect changes, no finer than needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Aspect {
    Op(u128),
    /// Whether the inode is there.
    Life(Ino),
    /// Anything that goes with the inode.
    Body(Ino),
    Access(Ino),
    Links(Ino),
    Parent(Ino),
    Size(Ino),
    Times(Ino),
    Rows(Ino),
    Locks(Ino),
    Xattr(Ino, XattrName),
    Edge(Ino, Name),
    Entries(Ino),
    Setting(&'static str),
    Counter(Counter),
    Usage,
    /// How many rows refer to slices.
    Sharing,
    Session(SessionId),
    Orphan(SessionId, Ino),
    Wait(LockOwner),
}

fn looked_at(guard: &Guard) -> Vec<Aspect> {
    match guard {
        Guard::EdgeIs { parent, name, .. } | Guard::EdgeAbsent { parent, name } => {
            vec![Aspect::Edge(*parent, name.clone())]
        }
        Guard::Access { ino, .. } => vec![Aspect::Life(*ino), Aspect::Access(*ino)],
        Guard::NodeAbsent { ino } => vec![Aspect::Life(*ino)],
        Guard::Links { ino, .. } => vec![Aspect::Life(*ino), Aspect::Links(*ino)],
        Guard::ParentIs { ino, .. } => vec![Aspect::Life(*ino), Aspect::Parent(*ino)],
        Guard::Size { ino, .. } => vec![Aspect::Life(*ino), Aspect::Size(*ino)],
        Guard::Locks { ino, .. } => vec![Aspect::Life(*ino), Aspect::Locks(*ino)],
        Guard::Rows { ino, .. } => vec![Aspect::Life(*ino), Aspect::Rows(*ino)],
        Guard::Xattr { ino, name, .. } => vec![Aspect::Life(*ino), Aspect::Xattr(*ino, name.clone())],
        Guard::Empty { ino } => vec![Aspect::Entries(*ino)],
        Guard::Setting { name, .. } => vec![Aspect::Setting(name)],
        Guard::Counter { counter, .. } => vec![Aspect::Counter(*counter)],
        Guard::Room { .. } => vec![Aspect::Usage],
        Guard::Session { session, .. } | Guard::Term { session, .. } => vec![Aspect::Session(*session)],
    }
}

/// Each with whether it commutes with others of its aspect, or the last of them may stand for all.
fn changes_of(effect: &Effect) -> Vec<(Aspect, bool)> {
    const COMMUTES: bool = true;
    const ORDERED: bool = false;
    let of = |ino: &Ino, aspect, commutes| vec![(aspect, commutes), (Aspect::Body(*ino), COMMUTES)];
    let life =
        |ino| vec![(Aspect::Life(ino), ORDERED), (Aspect::Body(ino), ORDERED), (Aspect::Usage, COMMUTES)];
    let and = |mut all: Vec<_>, aspect, commutes| {
        all.push((aspect, commutes));
        all
    };
    match effect {
        // One that is replaced lets go of its slices.
        Effect::PutNode(node) => and(life(node.ino), Aspect::Sharing, COMMUTES),
        Effect::DropNode { ino } => and(life(*ino), Aspect::Sharing, COMMUTES),
        Effect::PutEdge { parent, name, .. } | Effect::DropEdge { parent, name } => {
            vec![(Aspect::Edge(*parent, name.clone()), ORDERED), (Aspect::Entries(*parent), COMMUTES)]
        }
        Effect::SetAccess { ino, .. } => of(ino, Aspect::Access(*ino), ORDERED),
        Effect::SetParent { ino, .. } => of(ino, Aspect::Parent(*ino), ORDERED),
        Effect::AddLinks { ino, .. } => of(ino, Aspect::Links(*ino), COMMUTES),
        Effect::Touch { ino, .. } => of(ino, Aspect::Times(*ino), COMMUTES),
        Effect::SetSize { ino, .. } => and(of(ino, Aspect::Size(*ino), ORDERED), Aspect::Usage, COMMUTES),
        Effect::Extend { ino, .. } => and(of(ino, Aspect::Size(*ino), COMMUTES), Aspect::Usage, COMMUTES),
        Effect::AppendSlice { ino, .. } => of(ino, Aspect::Rows(*ino), COMMUTES),
        Effect::DropSlices { ino, .. } | Effect::ReplaceRows { ino, .. } => {
            and(of(ino, Aspect::Rows(*ino), ORDERED), Aspect::Sharing, COMMUTES)
        }
        Effect::PutXattr { ino, name, .. } | Effect::DropXattr { ino, name } => {
            of(ino, Aspect::Xattr(*ino, name.clone()), ORDERED)
        }
        Effect::PutLocks { ino, .. } => of(ino, Aspect::Locks(*ino), ORDERED),
        Effect::PutSymlink { ino, .. } => vec![(Aspect::Body(*ino), ORDERED)],
        Effect::PutAcl { .. } => Vec::new(),
        Effect::Share { .. } | Effect::DropGarbage { .. } => vec![(Aspect::Sharing, ORDERED)],
        Effect::PutOrphan { session, ino } | Effect::DropOrphan { session, ino } => {
            vec![(Aspect::Orphan(*session, *ino), ORDERED)]
        }
        Effect::PutSession(session) => vec![(Aspect::Session(session.id), ORDERED)],
        Effect::DropSession { session } | Effect::BeginTerm { session, .. } => {
            vec![(Aspect::Session(*session), ORDERED)]
        }
        Effect::PutWait(wait) => vec![(Aspect::Wait(wait.lock.owner), ORDERED)],
        Effect::DropWait { owner } => vec![(Aspect::Wait(*owner), ORDERED)],
        Effect::PutSetting { name, .. } => vec![(Aspect::Setting(name), ORDERED)],
        Effect::SetCounter { counter, .. } => vec![(Aspect::Counter(*counter), ORDERED)],
        Effect::AddUsage { .. } => vec![(Aspect::Usage, ORDERED)],
    }
}

#[cfg(test)]
mod tests {
    use types::{AclId, FileType, Mode, OpId, Time};

    use super::*;
    use crate::record::Node;

    fn name(name: &str) -> Name {
        Name::new(name.as_bytes()).unwrap()
    }

    /// A create as `meta::ops` plans it, as far as it matters here.
    fn create(id: u128, ino: u64, entry: &str) -> Txn {
        let parent = Ino(2);
        let guards =
            vec![Guard::Access { ino: parent, rev: 1 }, Guard::EdgeAbsent { parent, name: name(entry) }];
        let edge = Effect::PutEdge { parent, name: name(entry), ino: Ino(ino), kind: FileType::Regular };
        let now = Some(Time::from_nanos(1));
        let touch = Effect::Touch { ino: parent, atime: None, mtime: now, ctime: now };
        Txn { op_id: OpId(id), guards, effects: vec![edge, touch] }
    }

    fn lengths(txns: &[Txn]) -> Vec<usize> {
        runs(txns).iter().map(|run| run.len()).collect()
    }

    #[test]
    fn creates_in_one_directory_are_one_run_and_of_one_name_are_two() {
        assert_eq!(lengths(&[]), []);
        assert_eq!(lengths(&[create(1, 10, "a"), create(2, 11, "b"), create(3, 12, "c")]), [3]);
        assert_eq!(lengths(&[create(1, 10, "a"), create(2, 11, "a"), create(3, 12, "c")]), [1, 2]);
    }

    #[test]
    fn what_ends_what_another_looks_at_begins_a_run() {
        let rmdir = Txn {
            op_id: OpId(9),
            guards: vec![Guard::Empty { ino: Ino(2) }],
            effects: vec![Effect::DropNode { ino: Ino(2) }],
        };
        assert_eq!(lengths(&[create(1, 10, "a"), rmdir.clone()]), [1, 1]);
        assert_eq!(lengths(&[rmdir, create(1, 10, "a")]), [1, 1]);
    }

    #[test]
    fn creates_with_a_limit_are_one_run_that_reckons_with_what_they_add() {
        let now = Time::from_nanos(1);
        let file = |ino| Node {
            ino: Ino(ino),
            kind: FileType::Regular,
            mode: Mode::new(0o644),
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: 1,
            size: 5000,
            atime: now,
            mtime: now,
            ctime: now,
            access_acl: AclId::NONE,
            default_acl: AclId::NONE,
            parent: Ino(0),
            access_rev: 1,
        };
        let limited = |id, ino, entry| {
            let mut txn = create(id, ino, entry);
            txn.guards.push(Guard::Room { max_inodes: 9, max_blocks: 9 });
            txn.effects.push(Effect::PutNode(file(ino)));
            txn
        };
        let mut txns = vec![limited(1, 10, "a"), limited(2, 11, "b"), limited(3, 12, "c")];
        txns.push(Txn {
            op_id: OpId(4),
            guards: Vec::new(),
            effects: vec![Effect::Extend { ino: Ino(10), size: 1 << 20 }],
        });
        // The inode is made in the same run.
        assert_eq!(lengths(&txns), [3, 1]);
        assert_eq!(ahead_of_room(&txns[..3]), Usage { inodes: 2, blocks: 4 });
        assert_eq!(ahead_of_room(&txns[..1]), Usage::default());
        assert_eq!(most_added(&txns), Usage { inodes: 3, blocks: 6 + 256 });
        // What the usage is corrected to is not known before.
        txns[1].effects.push(Effect::AddUsage { inodes: 1, blocks: 0 });
        assert_eq!(lengths(&txns[..3]), [1, 1, 1]);
    }

    #[test]
    fn a_repetition_is_not_in_the_run_of_what_it_repeats() {
        assert_eq!(lengths(&[create(1, 10, "a"), create(1, 10, "b")]), [1, 1]);
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
