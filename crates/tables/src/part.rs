//! What guards and effects have to do with.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use meta::{Effect, Guard, Node, Txn, Want};
use types::{Ino, Name, SessionId};

/// The inode that a want is of: what it asks for changes only under the lock on that inode's row.
pub fn inode(want: &Want) -> Option<Ino> {
    match want {
        Want::Node(ino)
        | Want::Entry(ino, _)
        | Want::Empty(ino)
        | Want::Xattrs(ino)
        | Want::Symlink(ino)
        | Want::Slices(ino, _)
        | Want::Locks(ino) => Some(*ino),
        Want::Acl(_) | Want::Settings | Want::Counter(_) | Want::Usage | Want::Waits | Want::Session(_) => {
            None
        }
    }
}

/// The name that has to be free for the guard to hold.
pub fn free(guard: &Guard) -> Option<(Ino, &Name)> {
    match guard {
        Guard::EdgeAbsent { parent, name } => Some((*parent, name)),
        _ => None,
    }
}

/// The name that an effect puts.
pub fn named(effect: &Effect) -> Option<(Ino, &Name)> {
    match effect {
        Effect::PutEdge { parent, name, .. } => Some((*parent, name)),
        _ => None,
    }
}

/// Whether each name that `txn` puts has to be free.
pub fn puts_free_names(txn: &Txn) -> bool {
    let is_free = |name| txn.guards.iter().filter_map(free).any(|free| free == name);
    txn.effects.iter().filter_map(named).all(is_free)
}

/// The inode that an effect makes.
pub fn made(effect: &Effect) -> Option<Ino> {
    match effect {
        Effect::PutNode(node) => Some(node.ino),
        _ => None,
    }
}

/// The inode that an effect is on: it, what it has, or its entries change only under the lock on its row.
pub fn holder(effect: &Effect) -> Option<Ino> {
    match effect {
        Effect::PutNode(node) => Some(node.ino),
        Effect::DropNode { ino }
        | Effect::PutEdge { parent: ino, .. }
        | Effect::DropEdge { parent: ino, .. }
        | Effect::AppendSlice { ino, .. }
        | Effect::DropSlices { ino, .. }
        | Effect::ReplaceRows { ino, .. }
        | Effect::PutXattr { ino, .. }
        | Effect::DropXattr { ino, .. }
        | Effect::PutSymlink { ino, .. }
        | Effect::PutLocks { ino, .. } => Some(*ino),
        changed => changed.changed_node(),
    }
}

/// What transactions lock before they look at anything. Those that change nothing lock none but sessions.
#[derive(Debug, Default)]
pub struct Locks {
    /// Sessions that they look at or change, and whether nobody else may look at one meanwhile: it is removed, or no renewal
    /// may come between the look at its heartbeat and the effects. They have locks of their own, because every commit of a
    /// mount is guarded by its session.
    pub sessions: BTreeMap<SessionId, bool>,
    /// Inodes that they look at or change, or of which they change what these have.
    pub inos: BTreeSet<Ino>,
    /// Inodes that they make: nobody else knows these yet.
    pub made: BTreeSet<Ino>,
    /// Whatever they look at or change that belongs to no inode.
    pub volume: bool,
}

impl Locks {
    pub fn add(&mut self, txn: &Txn) {
        let guards = txn.guards.iter().filter_map(guarding_session);
        for (session, is_exclusive) in guards.chain(txn.effects.iter().filter_map(changed_session)) {
            *self.sessions.entry(session).or_default() |= is_exclusive;
        }
        if txn.effects.is_empty() {
            return;
        }
        for guard in &txn.guards {
            let ino = inode(&guard.want());
            self.inos.extend(ino);
            self.volume |= ino.is_none()
                && !matches!(guard, Guard::Room { .. } | Guard::Session { .. } | Guard::Term { .. });
        }
        for effect in &txn.effects {
            self.volume |= matches!(
                effect,
                Effect::PutSetting { .. } | Effect::SetCounter { .. } | Effect::AddUsage { .. }
            );
            match made(effect) {
                Some(ino) if !self.inos.contains(&ino) => drop(self.made.insert(ino)),
                _ => self.inos.extend(holder(effect).filter(|ino| !self.made.contains(ino))),
            }
        }
    }
}

/// The session that a guard looks at, and whether it is locked exclusively.
fn guarding_session(guard: &Guard) -> Option<(SessionId, bool)> {
    match guard {
        Guard::Session { session, heartbeat } => Some((*session, heartbeat.is_some())),
        Guard::Term { session, .. } => Some((*session, false)),
        _ => None,
    }
}

/// The session that an effect changes, and whether it is locked exclusively. A renewal shares the lock with the commits of
/// its client, so that they do not wait for each other.
fn changed_session(effect: &Effect) -> Option<(SessionId, bool)> {
    match effect {
        Effect::PutSession(session) => Some((session.id, false)),
        Effect::DropSession { session } => Some((*session, true)),
        Effect::BeginTerm { session, .. } => Some((*session, false)),
        _ => None,
    }
}

/// Makes of these inodes what `txn` makes of them; one that goes is `None`. Gives those of them that it changed.
pub fn follow(nodes: &mut HashMap<Ino, Option<Node>>, txn: &Txn) -> Vec<Node> {
    for effect in &txn.effects {
        match effect {
            Effect::PutNode(node) => drop(nodes.insert(node.ino, Some(*node))),
            Effect::DropNode { ino } => drop(nodes.insert(*ino, None)),
            _ => {
                let node = effect.changed_node().and_then(|ino| nodes.get_mut(&ino)?.as_mut());
                node.map(|node| effect.apply_to(node));
            }
        }
    }
    txn.changed_nodes().iter().filter_map(|ino| nodes.get(ino).copied().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use meta::Counter;
    use types::{OpId, Time};

    use super::*;

    #[test]
    fn a_session_is_locked_exclusively_if_any_transaction_needs_that() {
        let (one, other) = (SessionId(1), SessionId(u64::MAX));
        let guard = |session, heartbeat| Guard::Session { session, heartbeat };
        let add = |locks: &mut Locks, guards, effects| locks.add(&Txn { op_id: OpId(1), guards, effects });
        let mut locks = Locks::default();
        let counted = Effect::SetCounter { counter: Counter::Ino, value: 1 };
        add(&mut locks, vec![guard(one, None), guard(other, None)], vec![counted]);
        assert_eq!(locks.sessions, [(one, false), (other, false)].into());
        add(&mut locks, vec![guard(one, Some(Time::from_nanos(1)))], Vec::new());
        add(&mut locks, vec![guard(one, None)], vec![Effect::DropSession { session: other }]);
        assert_eq!(locks.sessions, [(one, true), (other, true)].into());
    }

    #[test]
    fn what_changes_nothing_locks_only_its_session() {
        let guards = vec![
            Guard::Session { session: SessionId(1), heartbeat: None },
            Guard::Access { ino: Ino(7), rev: 0 },
            Guard::Counter { counter: Counter::Ino, value: 1 },
        ];
        let mut locks = Locks::default();
        let mut txn = Txn { op_id: OpId(1), guards, effects: Vec::new() };
        locks.add(&txn);
        assert_eq!((locks.sessions.len(), locks.inos.len(), locks.volume), (1, 0, false));
        txn.effects.push(Effect::DropNode { ino: Ino(8) });
        locks.add(&txn);
        assert_eq!((locks.sessions.len(), locks.inos.len(), locks.volume), (1, 2, true));
    }
}
