//! Divides effects into stages: effects of one stage may be applied together, kind by kind.

use std::collections::BTreeMap;
use std::mem::take;

use host::{HashMap, HashSet};
use meta::{Access, Effect, Footprint, Inode, Part};
use types::{Ino, Time};

/// A stage: effects that can be applied kind by kind with the same result as one by one. The kinds, in their
/// order:
///
/// 1. `drops`: inodes are dropped
/// 2. `puts`: inodes are put; none of them is in `drops` or `changes`
/// 3. `changes` of rows of inodes
/// 4. `others`: these are applied either one by one, or kind by kind in this order: rows of chunks that are
///    dropped or replaced; rows that are appended; slices that are shared; garbage that is dropped;
///    everything else. A stage either puts the rule of a quota, or drops the quota, or charges it; likewise
///    it either puts an ACL, or condemns it, or drops it.
#[derive(Debug, Default)]
pub struct Stage<'e> {
    pub drops: Vec<Ino>,
    /// The new inodes, after all changes that this stage makes to them.
    pub puts: Vec<Inode>,
    pub changes: BTreeMap<Ino, InodeChange>,
    pub others: Vec<&'e Effect>,
}

/// The combined change of several effects to the row of an inode, independent of the row's current values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeChange {
    /// The change of the link count. The count stays at or below `u32::MAX`.
    pub links: Sum,
    /// The change of the number of xattr blocks. The number stays at or below `u16::MAX`.
    pub xattr_blocks: Sum,
    pub size: Size,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The new ctime, if it is later than the stored one.
    pub ctime: Option<Time>,
    pub parent: Option<Ino>,
    pub access: Option<Access>,
    /// Added to the access revision.
    pub access_revs: u64,
}

/// The change of a count by several effects, each of which stops at 0: the result is the count plus `added`,
/// but at least `least`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub added: i64,
    pub least: i64,
}

impl Sum {
    fn of(added: i32) -> Self {
        let added = added.into();
        Sum { added, least: added.max(0) }
    }

    /// Becomes the combination of itself and then `next`.
    fn follow(&mut self, next: Sum) {
        self.least = (self.least + next.added).max(next.least);
        self.added += next.added;
    }
}

/// The change of a size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    #[default]
    Kept,
    AtLeast(u64),
    Set(u64),
}

impl Size {
    /// The minimum and the maximum of the size afterwards.
    pub fn bounds(self) -> (u64, u64) {
        match self {
            Size::Kept => (0, u64::MAX),
            Size::AtLeast(least) => (least, u64::MAX),
            Size::Set(size) => (size, size),
        }
    }
}

/// Divides the effects of one transaction, or of a conflict-free group of transactions
/// ([`meta::conflict_free_groups`]), into stages. Effects stay in their order; a stage takes as many as
/// possible.
pub fn stages<'e>(effects: impl IntoIterator<Item = &'e Effect>) -> Vec<Stage<'e>> {
    let mut stages = Vec::new();
    let mut stage = Stage::default();
    let mut seen = Seen::default();
    for effect in effects {
        if seen.holds_back(effect) {
            stages.push(take(&mut stage));
            seen = Seen::default();
        }
        seen.add(effect);
        stage.add(effect);
    }
    stages.push(stage);
    stages
}

impl<'e> Stage<'e> {
    fn add(&mut self, effect: &'e Effect) {
        match effect {
            Effect::PutInode(inode) => self.puts.push(*inode),
            Effect::DropInode { ino } => self.drops.push(*ino),
            _ => {
                let Some(ino) = effect.changed_inode() else { return self.others.push(effect) };
                match self.puts.iter_mut().find(|inode| inode.ino == ino) {
                    Some(inode) => drop(effect.apply_to(inode)),
                    None => self.changes.entry(ino).or_default().add(effect),
                }
            }
        }
    }
}

impl InodeChange {
    /// Like [`Effect::apply_to`], for a row whose values are not known.
    fn add(&mut self, effect: &Effect) {
        let next = match *effect {
            Effect::AddLinks { delta, .. } => InodeChange { links: Sum::of(delta), ..InodeChange::default() },
            Effect::AddXattrBlocks { delta, .. } => {
                InodeChange { xattr_blocks: Sum::of(delta), ..InodeChange::default() }
            }
            Effect::SetSize { size, .. } => InodeChange { size: Size::Set(size), ..InodeChange::default() },
            Effect::Extend { size, .. } => {
                InodeChange { size: Size::AtLeast(size), ..InodeChange::default() }
            }
            Effect::SetTimes { atime, mtime, ctime, .. } => {
                InodeChange { atime, mtime, ctime, ..InodeChange::default() }
            }
            Effect::SetParent { parent, .. } => {
                InodeChange { parent: Some(parent), ..InodeChange::default() }
            }
            Effect::SetAccess { access, .. } => {
                InodeChange { access: Some(access), access_revs: 1, ..InodeChange::default() }
            }
            _ => return,
        };
        self.follow(&next);
    }

    /// Whether the change may change the volume's usage.
    pub fn moves_usage(&self) -> bool {
        self.size != Size::Kept || self.xattr_blocks != Sum::default()
    }

    /// Becomes the combination of itself and then `next`.
    pub fn follow(&mut self, next: &InodeChange) {
        self.links.follow(next.links);
        self.xattr_blocks.follow(next.xattr_blocks);
        self.size = match (self.size, next.size) {
            (size, Size::Kept) => size,
            (Size::AtLeast(size), Size::AtLeast(least)) => Size::AtLeast(size.max(least)),
            (Size::Set(size), Size::AtLeast(least)) => Size::Set(size.max(least)),
            (Size::Kept, size) | (_, size @ Size::Set(_)) => size,
        };
        self.atime = next.atime.or(self.atime);
        self.mtime = next.mtime.or(self.mtime);
        self.ctime = next.ctime.max(self.ctime);
        self.parent = next.parent.or(self.parent);
        self.access = next.access.or(self.access);
        self.access_revs += next.access_revs;
    }
}

/// The parts that the effects of a stage change.
#[derive(Debug, Default)]
struct Seen<'e> {
    /// Inodes of which any part other than a dirent changes.
    inodes: HashSet<Ino>,
    /// Inodes whose rows of chunks change.
    rows: HashSet<Ino>,
    /// Records whose state depends only on the last effect on them ([`Part::is_replaced_whole`]).
    records: HashSet<Part<'e>>,
    /// Whether an effect changes the number of references to a slice, or changes garbage.
    sharing: bool,
    /// Each quota and ACL that changes, and whether its changes commute: a quota is only charged, an ACL only
    /// put.
    commuting: HashMap<Part<'e>, bool>,
    /// Whether an effect corrects the usage, which must be the last effect of its stage.
    usage_corrected: bool,
}

impl<'e> Seen<'e> {
    /// Whether the effect must be in a later stage than the effects seen so far.
    fn holds_back(&self, effect: &'e Effect) -> bool {
        let Footprint { part, releases_slices, commutes, .. } = effect.footprint();
        if self.usage_corrected || self.sharing && releases_slices {
            return true;
        }
        match part {
            Part::Existence(ino) => self.inodes.contains(&ino),
            Part::Rows(ino) => releases_slices && self.rows.contains(&ino),
            Part::Quota(_) | Part::Acl(_) => {
                self.commuting.get(&part).is_some_and(|others| !(*others && commutes))
            }
            _ => self.records.contains(&part),
        }
    }

    fn add(&mut self, effect: &'e Effect) {
        let Footprint { part, commutes, .. } = effect.footprint();
        if part.is_replaced_whole() {
            self.records.insert(part);
        }
        match part {
            Part::Dirent(..) => return,
            Part::Rows(ino) => drop(self.rows.insert(ino)),
            Part::Slice(_) => self.sharing = true,
            Part::Usage => self.usage_corrected = true,
            Part::Quota(_) | Part::Acl(_) => drop(self.commuting.insert(part, commutes)),
            _ => {}
        }
        self.inodes.extend(part.inode());
    }
}

#[cfg(test)]
mod tests {
    use meta::{QuotaKey, QuotaRule};
    use types::{ChunkIndex, FileType, Mode, Name, SliceId};

    use super::*;

    fn inode(ino: u64) -> Inode {
        let time = Time::from_nanos(5);
        Inode {
            size: 100,
            parent: Ino(2),
            access_rev: 3,
            ..Inode::new(Ino(ino), FileType::Regular, Mode::new(0o644), time)
        }
    }

    fn links(ino: u64, delta: i32) -> Effect {
        Effect::AddLinks { ino: Ino(ino), delta }
    }

    fn put_dirent(ino: u64) -> Effect {
        let name = Name::new(b"a").unwrap();
        Effect::PutDirent { parent: Ino(2), name, ino: Ino(ino), kind: FileType::Regular }
    }

    fn drop_dirent() -> Effect {
        Effect::DropDirent { parent: Ino(2), name: Name::new(b"a").unwrap() }
    }

    fn count(effects: &[Effect]) -> usize {
        stages(effects).len()
    }

    #[test]
    fn a_create_is_one_stage_and_changes_apply_to_the_new_inode() {
        let effects = [Effect::PutInode(inode(7)), put_dirent(7), links(2, 1), links(7, 4), links(2, 1)];
        let stages = stages(&effects);
        let [stage] = &stages[..] else { panic!("{stages:?}") };
        assert_eq!(stage.puts, [Inode { nlink: 5, ..inode(7) }]);
        assert_eq!(
            stage.changes.iter().map(|(ino, change)| (ino.0, change.links.added)).collect::<Vec<_>>(),
            [(2, 2)]
        );
        assert_eq!(stage.others, [&effects[1]]);
    }

    #[test]
    fn inodes_are_dropped_and_put_before_their_changes() {
        let (put, dropped) = (|| Effect::PutInode(inode(7)), || Effect::DropInode { ino: Ino(7) });
        assert_eq!(count(&[]), 1);
        assert_eq!(count(&[dropped(), links(7, 1)]), 1);
        assert_eq!(count(&[links(7, 1), dropped()]), 2);
        assert_eq!(count(&[links(8, 1), dropped()]), 1);
        assert_eq!(count(&[put(), dropped(), put(), put()]), 4);
        let effects = [put(), dropped(), links(7, 1)];
        let stages = stages(&effects);
        let inos = |stage: &Stage<'_>| (stage.puts.len(), stage.drops.len(), stage.changes.len());
        assert_eq!(stages.iter().map(inos).collect::<Vec<_>>(), [(1, 0, 0), (0, 1, 1)]);
    }

    #[test]
    fn effects_on_one_name_keep_their_order() {
        assert_eq!(count(&[put_dirent(7), drop_dirent()]), 2);
        assert_eq!(count(&[drop_dirent(), put_dirent(7), put_dirent(8)]), 3);
        // Dropping a name in a directory that is dropped next does not affect the inode of the directory.
        assert_eq!(count(&[drop_dirent(), Effect::DropInode { ino: Ino(2) }]), 1);
    }

    #[test]
    fn rows_and_references_to_slices_keep_their_order() {
        let cut = |ino| Effect::DropSlices { ino: Ino(ino), from: ChunkIndex(0), to: ChunkIndex(9) };
        let share = || Effect::Share { slice: SliceId(1), rows: 1 };
        assert_eq!(count(&[cut(7), share(), share()]), 1);
        assert_eq!(count(&[share(), cut(7)]), 2, "one of the references may be dropped");
        assert_eq!(count(&[share(), Effect::DropInode { ino: Ino(7) }]), 2);
        assert_eq!(count(&[cut(7), cut(8)]), 1);
        assert_eq!(count(&[cut(7), cut(7)]), 2);
        assert_eq!(count(&[Effect::AddUsage { inodes: 1, blocks: 0 }, links(7, 1)]), 2);
    }

    #[test]
    fn charges_share_a_stage_with_each_other_and_with_no_rule() {
        let (key, other) = (QuotaKey::User(7), QuotaKey::Group(7));
        let charge = |key| Effect::Charge { key, inodes: 1, blocks: 0 };
        let (put, dropped) =
            (Effect::PutQuota { key, rule: QuotaRule::default() }, Effect::DropQuota { key });
        assert_eq!(count(&[charge(key), charge(other), charge(key)]), 1);
        assert_eq!(count(&[charge(other), put.clone()]), 1);
        assert_eq!(count(&[charge(key), put.clone(), charge(key)]), 3);
        assert_eq!(count(&[dropped, charge(key), put]), 3);
    }

    #[test]
    fn a_change_equals_its_effects_one_by_one() {
        let ino = Ino(7);
        let time = |nanos| Some(Time::from_nanos(nanos));
        let quota = meta::QuotaTag::from_number(5);
        let access = Access { mode: Mode::new(0o600), uid: 7, quota, ..Access::from(&inode(7)) };
        let effects = [
            links(7, -3),
            Effect::AddXattrBlocks { ino, delta: 3 },
            Effect::AddXattrBlocks { ino, delta: -4 },
            Effect::Extend { ino, size: 150 },
            Effect::SetTimes { ino, atime: time(9), mtime: None, ctime: time(8) },
            links(7, 2),
            Effect::SetAccess { ino, access },
            Effect::SetSize { ino, size: 10 },
            Effect::AddXattrBlocks { ino, delta: 2 },
            Effect::SetTimes { ino, atime: None, mtime: time(1), ctime: time(2) },
            Effect::SetParent { ino, parent: Ino(9) },
            Effect::Extend { ino, size: 20 },
            Effect::SetAccess { ino, access: Access { mode: Mode::new(0o640), ..access } },
            links(7, 1),
        ];
        for end in 0..=effects.len() {
            let mut one_by_one = inode(7);
            effects[..end].iter().for_each(|effect| assert!(effect.apply_to(&mut one_by_one)));
            let stages = stages(&effects[..end]);
            let change = stages[0].changes.get(&ino).copied().unwrap_or_default();
            assert_eq!((stages.len(), changed(change, inode(7))), (1, one_by_one), "{end}");
        }
    }

    fn changed(change: InodeChange, inode: Inode) -> Inode {
        let access = change.access.unwrap_or(Access::from(&inode));
        Inode {
            nlink: (i64::from(inode.nlink) + change.links.added).max(change.links.least) as u32,
            xattr_blocks: (i64::from(inode.xattr_blocks) + change.xattr_blocks.added)
                .max(change.xattr_blocks.least) as u16,
            size: match change.size {
                Size::Kept => inode.size,
                Size::AtLeast(least) => inode.size.max(least),
                Size::Set(size) => size,
            },
            atime: change.atime.unwrap_or(inode.atime),
            mtime: change.mtime.unwrap_or(inode.mtime),
            ctime: change.ctime.unwrap_or(inode.ctime).max(inode.ctime),
            parent: change.parent.unwrap_or(inode.parent),
            mode: access.mode,
            quota: access.quota,
            uid: access.uid,
            gid: access.gid,
            access_acl: access.access_acl,
            default_acl: access.default_acl,
            access_rev: inode.access_rev + change.access_revs,
            ..inode
        }
    }
}
