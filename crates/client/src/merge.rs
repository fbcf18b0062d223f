//! Merges queued transactions that follow each other into one.
//!
//! A program that makes a file changes it several times. The transactions of these changes depend on each
//! other, so most servers would commit them one after another, with a sync for each. The merged transaction
//! creates the inode in its last state. It is committed completely or not at all, so no change is visible
//! without the changes before it.
//!
//! An earlier transaction may change the record that a guard of a later one checks. Such a guard was checked
//! in memory, and is left out. A transaction that cannot be merged begins the next merged transaction.

use meta::{Effect, Guard, Inode, Part, Txn};
use types::Ino;

/// The maximum number of effects and of guards of a merged transaction. Some servers limit both (etcd:
/// `--max-txn-ops`).
const MAX: usize = 48;

/// Both transactions as one, under the id of the first; `None` if they cannot be merged.
pub(crate) fn join(first: &Txn, second: &Txn) -> Option<Txn> {
    let mut both = first.clone();
    for guard in &second.guards {
        if !is_changed(&first.effects, guard) && !both.guards.contains(guard) {
            both.guards.push(guard.clone());
        }
    }
    for effect in &second.effects {
        add(&mut both.effects, effect)?;
    }
    (both.effects.len() <= MAX && both.guards.len() <= MAX).then_some(both)
}

/// Whether effects have changed what a guard checks.
fn is_changed(effects: &[Effect], guard: &Guard) -> bool {
    let part = guard.part();
    effects.iter().any(|effect| {
        let changed = effect.footprint().part;
        match (part, changed) {
            _ if part == changed => true,
            // The creation or removal of an inode changes everything that is stored with it.
            (_, Part::Existence(ino)) => part.inode() == Some(ino),
            (Part::Entries(dir), Part::Dirent(parent, _)) => dir == parent,
            _ => false,
        }
    })
}

/// The new inode with this number, if these effects create it.
fn made(effects: &mut [Effect], ino: Ino) -> Option<&mut Inode> {
    effects.iter_mut().find_map(|effect| match effect {
        Effect::PutInode(inode) if inode.ino == ino => Some(inode),
        _ => None,
    })
}

/// Adds an effect to those of one transaction. `None` if one transaction cannot have all of them.
fn add(effects: &mut Vec<Effect>, effect: &Effect) -> Option<()> {
    let part = effect.footprint().part;
    if let Some(ino) = part.field_of()
        && let Some(inode) = made(effects, ino)
    {
        effect.apply_to(inode);
        return Some(());
    }
    let made: Vec<Ino> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::PutInode(inode) => Some(inode.ino),
            _ => None,
        })
        .collect();
    let is_new = |ino: &Ino| made.contains(ino);
    let is_same = |other: &Effect| other.footprint().part == part;
    let concerns = |other: &Effect, ino: Ino| other.footprint().part.inode() == Some(ino);
    let found = effects.iter().position(is_same);
    match (effect, found.map(|at| &mut effects[at])) {
        // The later effect replaces the earlier one.
        (Effect::PutDirent { .. } | Effect::DropDirent { .. }, Some(other))
        | (Effect::PutXattr { .. } | Effect::DropXattr { .. }, Some(other)) => *other = effect.clone(),
        (
            Effect::SetTimes { atime, mtime, ctime, .. },
            Some(Effect::SetTimes { atime: a, mtime: m, ctime: c, .. }),
        ) => {
            *a = atime.or(*a);
            *m = mtime.or(*m);
            *c = (*ctime).max(*c);
        }
        (Effect::AddLinks { delta, .. }, Some(Effect::AddLinks { delta: sum, .. }))
        | (Effect::AddXattrBlocks { delta, .. }, Some(Effect::AddXattrBlocks { delta: sum, .. })) => {
            *sum = sum.checked_add(*delta)?;
        }
        (Effect::Extend { size, .. }, Some(Effect::Extend { size: other, .. })) => {
            *other = (*other).max(*size)
        }
        (Effect::PutAcl { .. }, Some(Effect::PutAcl { .. })) => {}
        (Effect::Share { rows, .. }, Some(Effect::Share { rows: sum, .. })) => {
            *sum = sum.checked_add(*rows)?
        }
        // Rows are kept in their order.
        (Effect::AppendSlice { .. }, Some(Effect::AppendSlice { ino, .. })) => {
            let ino = *ino;
            let is_append = |other: &Effect| matches!(other, Effect::AppendSlice { .. });
            if !effects.iter().filter(|other| other.footprint().part == Part::Rows(ino)).all(is_append) {
                return None;
            }
            effects.push(effect.clone());
        }
        (_, Some(_)) => return None,
        (Effect::PutInode(inode), None) => {
            if effects.iter().any(|other| concerns(other, inode.ino)) {
                return None;
            }
            effects.push(effect.clone());
        }
        (Effect::DropInode { ino }, None) => {
            let names = |other: &Effect| {
                matches!(other, Effect::PutDirent { ino: named, .. } | Effect::PutOrphan { ino: named, .. }
                    | Effect::DropOrphan { ino: named, .. } if named == ino)
            };
            // A removed inode needs no times and no link count. The same transaction may remove the entries
            // of a directory before the directory.
            effects.retain(|other| {
                let is_field = matches!(other, Effect::SetTimes { .. } | Effect::AddLinks { .. });
                !(is_field && concerns(other, *ino))
            });
            let keeps = |other: &Effect| concerns(other, *ino) && !matches!(other, Effect::DropDirent { .. });
            if effects.iter().any(|other| keeps(other) || names(other)) {
                return None;
            }
            effects.push(effect.clone());
        }
        // A new file has no rows that could be removed.
        (Effect::DropSlices { ino, .. }, None) if is_new(ino) => {}
        (_, None) => {
            // Records that belong to an inode must not be added after its removal.
            let is_removal =
                |other: &Effect| matches!(other, Effect::DropInode { ino } if part.inode() == Some(*ino));
            if effects.iter().any(is_removal) {
                return None;
            }
            effects.push(effect.clone());
        }
    }
    Some(())
}
