//! Effects in layers: which may be applied together, kind by kind, and which have to come after.

use std::collections::{BTreeMap, HashSet};
use std::mem::take;

use meta::{Access, Counter, Effect, LockOwner, Node};
use types::{Ino, Name, SessionId, Time, XattrName};

use crate::part::holder;

/// Effects that come to the same kind by kind as one by one. The kinds come in this order:
///
/// 1. `drops`: inodes go
/// 2. `puts`: inodes come; none of them is among `drops` or `changes`
/// 3. `changes` of rows of inodes
/// 4. `others`, which either are applied one by one, or kind by kind in this order: rows of chunks that go or are
///    replaced; those that are appended; slices that are shared; garbage that is swept; all else
#[derive(Debug, Default)]
pub struct Layer<'e> {
    pub drops: Vec<Ino>,
    /// As the changes in this layer leave them.
    pub puts: Vec<Node>,
    pub changes: BTreeMap<Ino, Change>,
    pub others: Vec<&'e Effect>,
}

/// What becomes of the row of an inode, whatever stands in it: all that several effects do to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Links that are added; there are `least_links` in the end, if there would be fewer, and no more than `u32::MAX`.
    pub links: i64,
    pub least_links: i64,
    pub size: Size,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// It never goes back.
    pub ctime: Option<Time>,
    pub parent: Option<Ino>,
    pub access: Option<Access>,
    /// How far the access revision moves.
    pub access_revs: u64,
}

/// What becomes of a size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    #[default]
    Kept,
    AtLeast(u64),
    Set(u64),
}

impl Size {
    /// The least that it is then, and the most.
    pub fn bounds(self) -> (u64, u64) {
        match self {
            Size::Kept => (0, u64::MAX),
            Size::AtLeast(least) => (least, u64::MAX),
            Size::Set(size) => (size, size),
        }
    }
}

/// Splits effects, of one transaction or of a run of them ([`meta::runs`]), into as few layers as their order allows.
pub fn layers<'e>(effects: impl IntoIterator<Item = &'e Effect>) -> Vec<Layer<'e>> {
    let mut layers = Vec::new();
    let mut layer = Layer::default();
    let mut seen = Seen::default();
    for effect in effects {
        if seen.holds_back(effect) {
            layers.push(take(&mut layer));
            seen = Seen::default();
        }
        seen.add(effect);
        layer.add(effect);
    }
    layers.push(layer);
    layers
}

impl<'e> Layer<'e> {
    fn add(&mut self, effect: &'e Effect) {
        match effect {
            Effect::PutNode(node) => self.puts.push(*node),
            Effect::DropNode { ino } => self.drops.push(*ino),
            _ => {
                let Some(ino) = effect.changed_node() else { return self.others.push(effect) };
                match self.puts.iter_mut().find(|node| node.ino == ino) {
                    Some(node) => drop(effect.apply_to(node)),
                    None => self.changes.entry(ino).or_default().add(effect),
                }
            }
        }
    }
}

impl Change {
    /// What [`Effect::apply_to`] does, for a row that is not known.
    fn add(&mut self, effect: &Effect) {
        let next = match *effect {
            Effect::AddLinks { delta, .. } => {
                let links = i64::from(delta);
                Change { links, least_links: links.max(0), ..Change::default() }
            }
            Effect::SetSize { size, .. } => Change { size: Size::Set(size), ..Change::default() },
            Effect::Extend { size, .. } => Change { size: Size::AtLeast(size), ..Change::default() },
            Effect::Touch { atime, mtime, ctime, .. } => Change { atime, mtime, ctime, ..Change::default() },
            Effect::SetParent { parent, .. } => Change { parent: Some(parent), ..Change::default() },
            Effect::SetAccess { access, .. } => {
                Change { access: Some(access), access_revs: 1, ..Change::default() }
            }
            _ => return,
        };
        self.follow(&next);
    }

    /// Becomes itself and then `next`.
    pub fn follow(&mut self, next: &Change) {
        self.least_links = (self.least_links + next.links).max(next.least_links);
        self.links += next.links;
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

/// What the effects of a layer have to do with so far.
#[derive(Debug, Default)]
struct Seen<'e> {
    /// Inodes to which, or to what they have, anything is done; entries are not counted.
    inodes: HashSet<Ino>,
    /// Inodes whose rows of chunks change.
    rows: HashSet<Ino>,
    records: HashSet<Record<'e>>,
    /// How many rows refer to a slice, or garbage.
    sharing: bool,
    usage_corrected: bool,
}

/// A record about which the last effect on it says all.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Record<'e> {
    Entry(Ino, &'e Name),
    Xattr(Ino, &'e XattrName),
    Symlink(Ino),
    Locks(Ino),
    Orphan(SessionId, Ino),
    Session(SessionId),
    Wait(LockOwner),
    Setting(&'static str),
    Counter(Counter),
}

impl<'e> Seen<'e> {
    /// Whether the effect would come too early among these.
    fn holds_back(&self, effect: &'e Effect) -> bool {
        if self.usage_corrected {
            return true;
        }
        match effect {
            Effect::PutNode(Node { ino, .. }) | Effect::DropNode { ino } => {
                self.inodes.contains(ino) || self.sharing
            }
            Effect::DropSlices { ino, .. } | Effect::ReplaceRows { ino, .. } => {
                self.rows.contains(ino) || self.sharing
            }
            _ => record(effect).is_some_and(|record| self.records.contains(&record)),
        }
    }

    fn add(&mut self, effect: &'e Effect) {
        self.records.extend(record(effect));
        match effect {
            Effect::PutEdge { .. } | Effect::DropEdge { .. } => return,
            Effect::AppendSlice { ino, .. }
            | Effect::DropSlices { ino, .. }
            | Effect::ReplaceRows { ino, .. } => drop(self.rows.insert(*ino)),
            Effect::Share { .. } | Effect::DropGarbage { .. } => self.sharing = true,
            Effect::AddUsage { .. } => self.usage_corrected = true,
            _ => {}
        }
        self.inodes.extend(holder(effect));
    }
}

fn record(effect: &Effect) -> Option<Record<'_>> {
    Some(match effect {
        Effect::PutEdge { parent, name, .. } | Effect::DropEdge { parent, name } => {
            Record::Entry(*parent, name)
        }
        Effect::PutXattr { ino, name, .. } | Effect::DropXattr { ino, name } => Record::Xattr(*ino, name),
        Effect::PutSymlink { ino, .. } => Record::Symlink(*ino),
        Effect::PutLocks { ino, .. } => Record::Locks(*ino),
        Effect::PutOrphan { session, ino } | Effect::DropOrphan { session, ino } => {
            Record::Orphan(*session, *ino)
        }
        Effect::PutSession(session) => Record::Session(session.id),
        Effect::DropSession { session } | Effect::BeginTerm { session, .. } => Record::Session(*session),
        Effect::PutWait(wait) => Record::Wait(wait.lock.owner),
        Effect::DropWait { owner } => Record::Wait(*owner),
        Effect::PutSetting { name, .. } => Record::Setting(name),
        Effect::SetCounter { counter, .. } => Record::Counter(*counter),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use types::{AclId, ChunkIndex, FileType, Mode, SliceId};

    use super::*;

    fn node(ino: u64) -> Node {
        let time = Time::from_nanos(5);
        Node {
            ino: Ino(ino),
            kind: FileType::Regular,
            mode: Mode::new(0o644),
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: 1,
            size: 100,
            atime: time,
            mtime: time,
            ctime: time,
            access_acl: AclId::NONE,
            default_acl: AclId::NONE,
            parent: Ino(2),
            access_rev: 3,
        }
    }

    fn links(ino: u64, delta: i32) -> Effect {
        Effect::AddLinks { ino: Ino(ino), delta }
    }

    fn put_edge(ino: u64) -> Effect {
        let name = Name::new(b"a").unwrap();
        Effect::PutEdge { parent: Ino(2), name, ino: Ino(ino), kind: FileType::Regular }
    }

    fn drop_edge() -> Effect {
        Effect::DropEdge { parent: Ino(2), name: Name::new(b"a").unwrap() }
    }

    fn count(effects: &[Effect]) -> usize {
        layers(effects).len()
    }

    #[test]
    fn a_create_is_one_layer_and_a_new_inode_comes_as_it_is_left() {
        let effects = [Effect::PutNode(node(7)), put_edge(7), links(2, 1), links(7, 4), links(2, 1)];
        let layers = layers(&effects);
        let [layer] = &layers[..] else { panic!("{layers:?}") };
        assert_eq!(layer.puts, [Node { nlink: 5, ..node(7) }]);
        assert_eq!(
            layer.changes.iter().map(|(ino, change)| (ino.0, change.links)).collect::<Vec<_>>(),
            [(2, 2)]
        );
        assert_eq!(layer.others, [&effects[1]]);
    }

    #[test]
    fn inodes_go_and_come_before_all_that_is_done_to_them() {
        let (put, gone) = (|| Effect::PutNode(node(7)), || Effect::DropNode { ino: Ino(7) });
        assert_eq!(count(&[]), 1);
        assert_eq!(count(&[gone(), links(7, 1)]), 1);
        assert_eq!(count(&[links(7, 1), gone()]), 2);
        assert_eq!(count(&[links(8, 1), gone()]), 1);
        assert_eq!(count(&[put(), gone(), put(), put()]), 4);
        let effects = [put(), gone(), links(7, 1)];
        let layers = layers(&effects);
        let inos = |layer: &Layer<'_>| (layer.puts.len(), layer.drops.len(), layer.changes.len());
        assert_eq!(layers.iter().map(inos).collect::<Vec<_>>(), [(1, 0, 0), (0, 1, 1)]);
    }

    #[test]
    fn a_name_is_there_or_gone_as_the_last_effect_has_it() {
        assert_eq!(count(&[put_edge(7), drop_edge()]), 2);
        assert_eq!(count(&[drop_edge(), put_edge(7), put_edge(8)]), 3);
        // That of a directory which then goes says nothing of that inode.
        assert_eq!(count(&[drop_edge(), Effect::DropNode { ino: Ino(2) }]), 1);
    }

    #[test]
    fn rows_and_references_to_slices_keep_their_order() {
        let cut = |ino| Effect::DropSlices { ino: Ino(ino), from: ChunkIndex(0), to: ChunkIndex(9) };
        let share = || Effect::Share { slice: SliceId(1) };
        assert_eq!(count(&[cut(7), share(), share()]), 1);
        assert_eq!(count(&[share(), cut(7)]), 2, "one of the references may go");
        assert_eq!(count(&[share(), Effect::DropNode { ino: Ino(7) }]), 2);
        assert_eq!(count(&[cut(7), cut(8)]), 1);
        assert_eq!(count(&[cut(7), cut(7)]), 2);
        assert_eq!(count(&[Effect::AddUsage { inodes: 1, blocks: 0 }, links(7, 1)]), 2);
    }

    #[test]
    fn a_change_does_what_its_effects_do_one_after_the_other() {
        let ino = Ino(7);
        let time = |nanos| Some(Time::from_nanos(nanos));
        let access = Access { mode: Mode::new(0o600), uid: 7, ..Access::from(&node(7)) };
        let effects = [
            links(7, -3),
            Effect::Extend { ino, size: 150 },
            Effect::Touch { ino, atime: time(9), mtime: None, ctime: time(8) },
            links(7, 2),
            Effect::SetAccess { ino, access },
            Effect::SetSize { ino, size: 10 },
            Effect::Touch { ino, atime: None, mtime: time(1), ctime: time(2) },
            Effect::SetParent { ino, parent: Ino(9) },
            Effect::Extend { ino, size: 20 },
            Effect::SetAccess { ino, access: Access { mode: Mode::new(0o640), ..access } },
            links(7, 1),
        ];
        for end in 0..=effects.len() {
            let mut one_by_one = node(7);
            effects[..end].iter().for_each(|effect| assert!(effect.apply_to(&mut one_by_one)));
            let layers = layers(&effects[..end]);
            let change = layers[0].changes.get(&ino).copied().unwrap_or_default();
            assert_eq!((layers.len(), changed(change, node(7))), (1, one_by_one), "{end}");
        }
    }

    fn changed(change: Change, node: Node) -> Node {
        let access = change.access.unwrap_or(Access::from(&node));
        Node {
            nlink: (i64::from(node.nlink) + change.links).max(change.least_links) as u32,
            size: match change.size {
                Size::Kept => node.size,
                Size::AtLeast(least) => node.size.max(least),
                Size::Set(size) => size,
            },
            atime: change.atime.unwrap_or(node.atime),
            mtime: change.mtime.unwrap_or(node.mtime),
            ctime: change.ctime.unwrap_or(node.ctime).max(node.ctime),
            parent: change.parent.unwrap_or(node.parent),
            mode: access.mode,
            uid: access.uid,
            gid: access.gid,
            access_acl: access.access_acl,
            default_acl: access.default_acl,
            access_rev: node.access_rev + change.access_revs,
            ..node
        }
    }
}
