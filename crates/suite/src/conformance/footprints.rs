//! Checks [`meta::Footprint`] against the records that random effects change in [`MemEngine`]. Locks,
//! conflict-free groups, stages and invalidations are derived from footprints, so a footprint must cover
//! every change.

use std::collections::BTreeSet;

use meta::{Effect, Footprint, Invalidation, MemEngine, Part, Record};

use super::fixture::*;
use super::random::{CHUNKS, INOS, KINDS_OF_EFFECTS, add_effect};
use super::rng::Rng;

const ROUNDS: usize = 4_000;

/// The number of kinds that [`kind`] names.
const KINDS: usize = 36;

/// The name of an effect's kind. The test requires that the random effects have every kind, so a new effect
/// needs a name here, a larger [`KINDS`], and a case in [`add_effect`].
fn kind(effect: &Effect) -> &'static str {
    match effect {
        Effect::PutInode(_) => "PutInode",
        Effect::DropInode { .. } => "DropInode",
        Effect::PutDirent { .. } => "PutDirent",
        Effect::DropDirent { .. } => "DropDirent",
        Effect::SetAccess { .. } => "SetAccess",
        Effect::SetParent { .. } => "SetParent",
        Effect::AddLinks { .. } => "AddLinks",
        Effect::SetTimes { .. } => "SetTimes",
        Effect::SetSize { .. } => "SetSize",
        Effect::Extend { .. } => "Extend",
        Effect::AppendSlice { .. } => "AppendSlice",
        Effect::DropSlices { .. } => "DropSlices",
        Effect::ReplaceRows { .. } => "ReplaceRows",
        Effect::Share { .. } => "Share",
        Effect::PutXattr { .. } => "PutXattr",
        Effect::DropXattr { .. } => "DropXattr",
        Effect::AddXattrBlocks { .. } => "AddXattrBlocks",
        Effect::PutAcl { .. } => "PutAcl",
        Effect::CondemnAcl { .. } => "CondemnAcl",
        Effect::DropAcl { .. } => "DropAcl",
        Effect::PutSymlink { .. } => "PutSymlink",
        Effect::PutOrphan { .. } => "PutOrphan",
        Effect::DropOrphan { .. } => "DropOrphan",
        Effect::PutSession(_) => "PutSession",
        Effect::DropSession { .. } => "DropSession",
        Effect::BeginTerm { .. } => "BeginTerm",
        Effect::PutLocks { .. } => "PutLocks",
        Effect::PutWait(_) => "PutWait",
        Effect::DropWait { .. } => "DropWait",
        Effect::DropGarbage { .. } => "DropGarbage",
        Effect::PutSetting { .. } => "PutSetting",
        Effect::SetCounter { .. } => "SetCounter",
        Effect::AddUsage { .. } => "AddUsage",
        Effect::PutQuota { .. } => "PutQuota",
        Effect::DropQuota { .. } => "DropQuota",
        Effect::Charge { .. } => "Charge",
    }
}

/// Whether an effect with this footprint may change the record.
fn covers(footprint: &Footprint<'_>, record: &Record) -> bool {
    let part = footprint.part;
    match record {
        Record::Inode(ino, _) => part.field_of() == Some(*ino) || part == Part::Existence(*ino),
        Record::Dirent(parent, name, _) => part == Part::Dirent(*parent, name),
        Record::Empty(ino, _) => matches!(part, Part::Dirent(..)) && part.inode() == Some(*ino),
        Record::Xattrs(ino, _) => {
            matches!(part, Part::Xattr(of, _) | Part::Existence(of) if of == *ino)
        }
        Record::Symlink(ino, _) => [Part::Symlink(*ino), Part::Existence(*ino)].contains(&part),
        Record::Slices(ino, ..) => [Part::Rows(*ino), Part::Existence(*ino)].contains(&part),
        Record::Locks(ino, _) => [Part::Locks(*ino), Part::Existence(*ino)].contains(&part),
        // The ACLs of an inode are read with the inode.
        Record::Acl(..) => matches!(part, Part::Acl(_) | Part::Access(_) | Part::Existence(_)),
        Record::Settings(_) => matches!(part, Part::Setting(_)),
        Record::Counter(counter, _) => part == Part::Counter(*counter),
        Record::Usage(_) => footprint.changes_usage || part == Part::Usage,
        Record::Session(session, _) => part == Part::Session(*session),
        Record::Orphan(session, ino) => part == Part::Orphan(*session, *ino),
        Record::Waits(_) => matches!(part, Part::Wait(_)),
        Record::Garbage(garbage) => footprint.releases_slices || part == Part::Slice(garbage.slice),
        Record::Quota(key, _) => part == Part::Quota(*key),
        Record::Shared(slice, _) => footprint.releases_slices || part == Part::Slice(*slice),
    }
}

/// The invalidation that other clients need if the record changes and they may have cached it. If an inode is
/// removed, the invalidation of its record covers its other records.
fn needed(record: &Record) -> Option<Invalidation> {
    match record {
        Record::Inode(ino, _) => Some(Invalidation::Inode(*ino)),
        Record::Dirent(parent, name, _) => Some(Invalidation::Dirent(*parent, name.clone())),
        Record::Xattrs(ino, _) => Some(Invalidation::Xattrs(*ino)),
        Record::Slices(ino, ..) => Some(Invalidation::Data(*ino)),
        Record::Locks(ino, _) => Some(Invalidation::Locks(*ino)),
        _ => None,
    }
}

#[test]
fn footprints_and_invalidations_cover_all_that_effects_change() {
    let (mut rng, engine, mut kinds) = (Rng::new(7), MemEngine::default(), BTreeSet::new());
    for _ in 0..ROUNDS {
        let mut effects = Vec::new();
        let number = rng.below(KINDS_OF_EFFECTS);
        add_effect(&mut rng, number, &mut effects);
        let txn = txn(Vec::new(), effects);
        let before = dump(&engine, INOS, CHUNKS);
        commit(&engine, txn.clone());
        let after = dump(&engine, INOS, CHUNKS);
        let [effect] = &txn.effects[..] else { panic!("{txn:?}") };
        kinds.insert(kind(effect));
        let (footprint, invalidations) = (effect.footprint(), txn.invalidations());
        let changed = before.iter().filter(|record| !after.contains(record));
        for record in changed.chain(after.iter().filter(|record| !before.contains(record))) {
            assert!(covers(&footprint, record), "{effect:?} changes {record:?}");
            // No other client knows a new inode. The invalidation of a removed one is checked below.
            if !matches!(footprint.part, Part::Existence(_)) {
                let is_notified = needed(record).is_none_or(|needed| invalidations.contains(&needed));
                assert!(is_notified, "{effect:?} changes {record:?}");
            }
        }
        if let Effect::DropInode { ino } = effect {
            assert_eq!(invalidations, [Invalidation::Inode(*ino)]);
        }
    }
    assert_eq!(kinds.len(), KINDS, "{kinds:?}");
}
