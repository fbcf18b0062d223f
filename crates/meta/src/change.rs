//! The notification of other clients about a committed transaction: the list of cached records that the
//! transaction invalidates.

use host::HashSet;
use types::{Ino, Name, SessionId};

use crate::footprint::Part;
use crate::record::{Seq, is_held_size};
use crate::txn::{Effect, Guard, Txn};

/// A committed transaction, as the change stream delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Reads that begin after the delivery of this change are labelled with this [`Seq`] or a later one.
    pub seq: Seq,
    /// The session that committed the transaction: the upper half of the operation id.
    pub by: SessionId,
    pub invalidations: Vec<Invalidation>,
}

/// An invalidation: a part of the volume that has changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invalidation {
    /// The inode's record (access fields, link count, times, size) changed, or the inode was removed.
    Inode(Ino),
    /// A name in a directory was added, was removed, or refers to another inode.
    Dirent(Ino, Name),
    /// The content of a file changed.
    Data(Ino),
    /// A session has taken the directory ([`Inode::holder`](crate::Inode::holder)). From now on, changes of
    /// names in it can be answered before they are committed. The number is the new access revision of the
    /// directory: the previous one plus 1. No field that access depends on has changed.
    Names(Ino, u64),
    Xattrs(Ino),
    /// The locks on an inode changed.
    Locks(Ino),
}

impl Txn {
    /// The invalidations for other clients, each once. A new inode is left out, because no other client knows
    /// its number yet.
    pub fn invalidations(&self) -> Vec<Invalidation> {
        let mut invalidations: Vec<Invalidation> = Vec::new();
        let mut seen: HashSet<Invalidation> = HashSet::default();
        let mut add = |new: Invalidation| {
            if seen.insert(new.clone()) {
                invalidations.push(new);
            }
        };
        for effect in &self.effects {
            match effect.footprint().part {
                Part::Existence(_) if matches!(effect, Effect::PutInode(_)) => {}
                Part::Existence(ino)
                | Part::Access(ino)
                | Part::Parent(ino)
                | Part::Links(ino)
                | Part::Times(ino)
                | Part::XattrBlocks(ino) => add(Invalidation::Inode(ino)),
                Part::Size(ino) => {
                    add(Invalidation::Inode(ino));
                    add(Invalidation::Data(ino));
                    if let Some(rev) = self.take_of(ino) {
                        add(Invalidation::Names(ino, rev));
                    }
                }
                Part::Rows(ino) => add(Invalidation::Data(ino)),
                Part::Dirent(parent, name) => add(Invalidation::Dirent(parent, name.clone())),
                Part::Xattr(ino, _) => add(Invalidation::Xattrs(ino)),
                Part::Locks(ino) => add(Invalidation::Locks(ino)),
                // No client caches these records, except symlink targets and ACLs, and those never change.
                Part::Symlink(_) | Part::Acl(_) | Part::Slice(_) | Part::Orphan(..) | Part::Session(_) => {}
                Part::Wait(_) | Part::Setting(_) | Part::Counter(_) | Part::Usage | Part::Entries(_) => {}
                // A cached quota needs no invalidation, because a plan guards what it assumes about a quota.
                Part::Quota(_) => {}
            }
        }
        invalidations
    }

    /// The new access revision of the directory, if this transaction takes it: it sets the holder, and sets the
    /// access fields as they are. A truncation to a size that is as large changes the times too.
    fn take_of(&self, dir: Ino) -> Option<u64> {
        let mut sets_access = false;
        for effect in &self.effects {
            match effect {
                Effect::SetAccess { ino, .. } if *ino == dir => sets_access = true,
                Effect::SetSize { ino, size } if *ino == dir && is_held_size(*size) => {}
                Effect::PutAcl { .. } => {}
                _ => return None,
            }
        }
        let before = self.guards.iter().find_map(|guard| match guard {
            Guard::Access { ino, rev } if *ino == dir => Some(*rev),
            _ => None,
        });
        before.filter(|_| sets_access).map(|rev| rev.saturating_add(1))
    }
}

impl Invalidation {
    /// The stored form of a list. Each item is one letter, then the inode number in eight bytes (big-endian).
    /// [`Invalidation::Dirent`] adds the length of the name in one byte, then the name;
    /// [`Invalidation::Names`] adds the revision in eight bytes.
    pub fn encode(invalidations: &[Invalidation]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(invalidations.len() * 16);
        for one in invalidations {
            let (letter, ino) = match one {
                Invalidation::Inode(ino) => (b'n', ino),
                Invalidation::Dirent(parent, _) => (b'e', parent),
                Invalidation::Data(ino) => (b'd', ino),
                Invalidation::Names(ino, _) => (b'h', ino),
                Invalidation::Xattrs(ino) => (b'x', ino),
                Invalidation::Locks(ino) => (b'l', ino),
            };
            bytes.push(letter);
            bytes.extend_from_slice(&ino.0.to_be_bytes());
            if let Invalidation::Names(_, rev) = one {
                bytes.extend_from_slice(&rev.to_be_bytes());
            }
            if let Invalidation::Dirent(_, name) = one {
                let name = name.as_bytes();
                // A name has at most 255 bytes.
                bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                bytes.extend_from_slice(name);
            }
        }
        bytes
    }

    /// Decodes the bytes that [`Invalidation::encode`] returns. `None` if they are damaged, or a later version
    /// of limen wrote an item that this version does not know; the caller then treats the change as missed.
    pub fn decode(mut bytes: &[u8]) -> Option<Vec<Invalidation>> {
        let mut invalidations = Vec::new();
        while let Some((letter, rest)) = bytes.split_first() {
            let (ino, rest) = rest.split_first_chunk()?;
            let ino = Ino(u64::from_be_bytes(*ino));
            bytes = rest;
            invalidations.push(match letter {
                b'n' => Invalidation::Inode(ino),
                b'd' => Invalidation::Data(ino),
                b'h' => {
                    let (rev, rest) = rest.split_first_chunk()?;
                    bytes = rest;
                    Invalidation::Names(ino, u64::from_be_bytes(*rev))
                }
                b'x' => Invalidation::Xattrs(ino),
                b'l' => Invalidation::Locks(ino),
                b'e' => {
                    let (length, rest) = rest.split_first()?;
                    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
                    bytes = rest;
                    Invalidation::Dirent(ino, Name::new(name).ok()?)
                }
                _ => return None,
            });
        }
        Some(invalidations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_read_back_and_damage_is_seen() {
        let name = Name::new(&[b'x'; 255]).unwrap();
        let all = vec![
            Invalidation::Inode(Ino(u64::MAX)),
            Invalidation::Dirent(Ino(2), name),
            Invalidation::Dirent(Ino(2), Name::new(b"a").unwrap()),
            Invalidation::Data(Ino(3)),
            Invalidation::Names(Ino(6), u64::MAX - 1),
            Invalidation::Xattrs(Ino(4)),
            Invalidation::Locks(Ino(5)),
        ];
        let bytes = Invalidation::encode(&all);
        assert_eq!(Invalidation::decode(&bytes), Some(all));
        assert_eq!(Invalidation::decode(&[]), Some(Vec::new()));
        for damaged in [&bytes[1..], &bytes[..5], b"z12345678", b"e12345678", b"e12345678\x01/"] {
            assert_eq!(Invalidation::decode(damaged), None, "{damaged:?}");
        }
    }

    /// A take is the only change of a size after which others must drop names, and may treat attributes of the
    /// previous revision as current.
    #[test]
    fn only_a_take_is_announced_with_the_names_of_the_directory() {
        let dir = Ino(2);
        let held = crate::Inode::held_size(SessionId(7)).unwrap();
        let access = crate::Access {
            mode: types::Mode::new(0o700),
            uid: 0,
            gid: 0,
            access_acl: types::AclId::NONE,
            default_acl: types::AclId::NONE,
            quota: crate::QuotaTag::NONE,
        };
        let announced = |effects: &[Effect]| {
            let guards = vec![Guard::Access { ino: dir, rev: 5 }];
            let txn = Txn { op_id: types::OpId(1), guards, effects: effects.to_vec() };
            txn.invalidations().contains(&Invalidation::Names(dir, 6))
        };
        let set = Effect::SetAccess { ino: dir, access };
        let size = |size| Effect::SetSize { ino: dir, size };
        assert!(announced(&[set.clone(), size(held)]));
        assert!(!announced(&[set.clone(), size(crate::DIR_BYTES)]) && !announced(&[size(held)]));
        let times = Effect::SetTimes { ino: dir, atime: None, mtime: None, ctime: None };
        assert!(!announced(&[set, size(held), times]), "a truncation of a file that clears a SUID bit");
    }
}
