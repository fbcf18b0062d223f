//! Which effects of one transaction may be applied together, kind by kind, and which have to wait for a layer of their own.

use std::collections::HashSet;

use meta::{Effect, LockKind, Node};
use types::Ino;

/// A part of the volume that an effect touches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(pub(crate) Part, pub(crate) u64, pub(crate) Vec<u8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// Anything of an inode.
    Inode,
    /// The entries of a directory.
    Entries,
    Rows,
    Sharing,
    UsageCorrected,
    /// One record, that the last effect on it says all about.
    Own,
}

pub(crate) fn keys(effect: &Effect) -> Vec<Key> {
    let inode = |ino: Ino| Key(Part::Inode, ino.0, Vec::new());
    // A record's own key: a letter for its kind, then its name.
    let own = |kind: &[u8], number: u64, name: &[u8]| Key(Part::Own, number, [kind, name].concat());
    match effect {
        Effect::PutNode(node) => vec![inode(node.ino)],
        Effect::DropNode { ino } => vec![inode(*ino)],
        Effect::PutEdge { parent, name, .. } | Effect::DropEdge { parent, name } => {
            vec![Key(Part::Entries, parent.0, Vec::new()), own(b"e", parent.0, name.as_bytes())]
        }
        Effect::AppendSlice { ino, .. }
        | Effect::DropSlices { ino, .. }
        | Effect::ReplaceRows { ino, .. } => {
            vec![inode(*ino), Key(Part::Rows, ino.0, Vec::new())]
        }
        Effect::Share { .. } | Effect::DropGarbage { .. } => vec![Key(Part::Sharing, 0, Vec::new())],
        Effect::PutXattr { ino, name, .. } | Effect::DropXattr { ino, name } => {
            vec![inode(*ino), own(b"x", ino.0, name.as_bytes())]
        }
        Effect::PutSymlink { ino, .. } => vec![inode(*ino), own(b"s", ino.0, b"")],
        Effect::PutLocks { ino, .. } => vec![inode(*ino), own(b"l", ino.0, b"")],
        Effect::PutAcl { .. } => Vec::new(),
        Effect::PutOrphan { session, ino } | Effect::DropOrphan { session, ino } => {
            vec![own(b"o", session.0, &ino.0.to_be_bytes())]
        }
        Effect::PutSession(session) => vec![own(b"S", session.id.0, b"")],
        Effect::DropSession { session } => vec![own(b"S", session.0, b"")],
        Effect::PutWait(wait) => vec![wait_key(&wait.lock.owner)],
        Effect::DropWait { owner } => vec![wait_key(owner)],
        Effect::PutSetting { name, .. } => vec![own(b"v", 0, name.as_bytes())],
        Effect::SetCounter { counter, .. } => vec![own(b"c", 0, counter.name().as_bytes())],
        Effect::AddUsage { .. } => vec![Key(Part::UsageCorrected, 0, Vec::new())],
        changed => changed.changed_node().map(inode).into_iter().collect(),
    }
}

fn wait_key(owner: &meta::LockOwner) -> Key {
    let kind = if owner.kind == LockKind::Posix { b'w' } else { b'W' };
    Key(Part::Own, owner.session.0, [&[kind][..], &owner.owner.to_be_bytes()].concat())
}

/// Whether the effect has to come after what the layer holds already, though the server would not have it so.
pub(crate) fn needs_layer(seen: &HashSet<Key>, effect: &Effect, keys: &[Key]) -> bool {
    let has = |part: Part, number: u64| seen.contains(&Key(part, number, Vec::new()));
    if has(Part::UsageCorrected, 0) {
        return true;
    }
    match effect {
        Effect::PutNode(Node { ino, .. }) | Effect::DropNode { ino } => {
            has(Part::Inode, ino.0) || has(Part::Sharing, 0)
        }
        Effect::DropSlices { ino, .. } | Effect::ReplaceRows { ino, .. } => {
            has(Part::Rows, ino.0) || has(Part::Sharing, 0)
        }
        _ => keys.iter().any(|key| key.0 == Part::Own && seen.contains(key)),
    }
}
