//! What guards and effects have to do with.

use std::collections::{BTreeSet, HashMap};

use meta::{Effect, Guard, Node, Txn, Want};
use types::{Ino, Name};

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
        Want::Acl(_) | Want::Settings | Want::Counter(_) | Want::Usage | Want::Waits => None,
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

/// What transactions lock before they look at anything.
#[derive(Debug, Default)]
pub struct Locks {
    /// Inodes that they look at or change, or of which they change what these have.
    pub inos: BTreeSet<Ino>,
    /// Inodes that they make: nobody else knows these yet.
    pub made: BTreeSet<Ino>,
    /// Whatever they look at or change that belongs to no inode.
    pub volume: bool,
}

impl Locks {
    pub fn add(&mut self, txn: &Txn) {
        for guard in &txn.guards {
            let ino = inode(&guard.want());
            self.inos.extend(ino);
            self.volume |= ino.is_none() && !matches!(guard, Guard::Room { .. });
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
