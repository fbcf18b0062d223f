//! What guards and effects have to do with.

use meta::{Effect, Guard, Want};
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
