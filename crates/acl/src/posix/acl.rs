//! The ACL value, validated and sorted when it is built.

use std::sync::Arc;

use types::AclId;

use super::entry::MAX_ENTRIES;
use super::{AclError, Entry, Perm, Tag};

/// A valid POSIX ACL in canonical form, so that ACLs with the same entries compare equal; cheap to clone.
///
/// It always has exactly one entry each for the owner, the owning group and others. Named users and named
/// groups are sorted by id, each at most once. If there are any, there is a mask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PosixAcl {
    pub(super) user_obj: Perm,
    pub(super) users: Arc<[Named]>,
    pub(super) group_obj: Perm,
    pub(super) groups: Arc<[Named]>,
    pub(super) mask: Option<Perm>,
    pub(super) other: Perm,
}

/// The entry of a named user or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Named {
    pub(super) id: u32,
    pub(super) perm: Perm,
}

impl PosixAcl {
    /// The number of entries that fits in one page of 4096 bytes, because `fuse_get_acl` and `fuse_set_acl`
    /// use a buffer of one page. The limit is the same on machines with larger pages, because clients with
    /// smaller pages could not read longer ACLs.
    pub const MAX_ENTRIES: usize = MAX_ENTRIES;

    /// Validates and sorts entries given in any order. Equivalent to `posix_acl_valid`, with one stricter
    /// rule: two entries for one user or group are [`AclError::Duplicate`], because such an ACL has no
    /// canonical form. The kernel accepts them, although `acl(5)` forbids them and libacl rejects them.
    pub fn from_entries(entries: impl IntoIterator<Item = Entry>) -> Result<Self, AclError> {
        let (mut user_obj, mut group_obj, mut mask, mut other) = (None, None, None, None);
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for (index, Entry { tag, perm }) in entries.into_iter().enumerate() {
            if index == Self::MAX_ENTRIES {
                return Err(AclError::TooLong);
            }
            match tag {
                Tag::UserObj => set_once(&mut user_obj, perm)?,
                Tag::User(id) => users.push(Named { id, perm }),
                Tag::GroupObj => set_once(&mut group_obj, perm)?,
                Tag::Group(id) => groups.push(Named { id, perm }),
                Tag::Mask => set_once(&mut mask, perm)?,
                Tag::Other => set_once(&mut other, perm)?,
            }
        }
        let (Some(user_obj), Some(group_obj), Some(other)) = (user_obj, group_obj, other) else {
            return Err(AclError::Missing);
        };
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(AclError::NoMask);
        }
        Ok(PosixAcl { user_obj, users: sorted(users)?, group_obj, groups: sorted(groups)?, mask, other })
    }

    /// The entries in canonical order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let one = |tag, perm| std::iter::once(Entry { tag, perm });
        one(Tag::UserObj, self.user_obj)
            .chain(self.users.iter().map(|named| Entry { tag: Tag::User(named.id), perm: named.perm }))
            .chain(one(Tag::GroupObj, self.group_obj))
            .chain(self.groups.iter().map(|named| Entry { tag: Tag::Group(named.id), perm: named.perm }))
            .chain(self.mask.map(|perm| Entry { tag: Tag::Mask, perm }))
            .chain(one(Tag::Other, self.other))
    }

    /// The ACL with users and groups mapped by `user` and `group`, which must be one-to-one. Named entries
    /// whose principal has no mapping are removed; the second result is their number.
    ///
    /// # Errors
    /// [`AclError::Duplicate`] if two principals get the same number; [`AclError::Id`] if one gets -1.
    pub fn renumbered(
        &self,
        user: impl Fn(u32) -> Option<u32>,
        group: impl Fn(u32) -> Option<u32>,
    ) -> Result<(Self, usize), AclError> {
        let entries = self.entries().filter_map(|Entry { tag, perm }| {
            let tag = match tag {
                Tag::User(uid) => Tag::User(user(uid)?),
                Tag::Group(gid) => Tag::Group(group(gid)?),
                other => other,
            };
            Some(Entry { tag, perm })
        });
        let renumbered = Self::from_entries(entries)?;
        let left_out = self.entry_count() - renumbered.entry_count();
        Ok((renumbered, left_out))
    }

    /// The number of entries: 3 to [`Self::MAX_ENTRIES`].
    pub fn entry_count(&self) -> usize {
        3 + self.users.len() + self.groups.len() + usize::from(self.mask.is_some())
    }

    /// Heap memory in bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.users) + size_of_val(&*self.groups)
    }

    /// The content hash under which the ACL is stored. It is never [`AclId::NONE`].
    pub fn id(&self) -> AclId {
        crate::content_id(b"limenfs posix acl 1\0", &self.to_storage())
    }
}

fn set_once(slot: &mut Option<Perm>, perm: Perm) -> Result<(), AclError> {
    match slot.replace(perm) {
        None => Ok(()),
        Some(_) => Err(AclError::Duplicate),
    }
}

fn sorted(mut named: Vec<Named>) -> Result<Arc<[Named]>, AclError> {
    named.sort_unstable_by_key(|named| named.id);
    if named.last().is_some_and(|last| last.id == u32::MAX) {
        return Err(AclError::Id);
    }
    if named.windows(2).any(|pair| pair[0].id == pair[1].id) {
        return Err(AclError::Duplicate);
    }
    Ok(named.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: Tag, bits: u32) -> Entry {
        Entry { tag, perm: Perm::new(bits) }
    }

    #[test]
    fn entries_are_sorted() {
        let shuffled = [
            entry(Tag::Other, 0),
            entry(Tag::Group(9), 1),
            entry(Tag::User(7), 4),
            entry(Tag::Mask, 7),
            entry(Tag::Group(3), 2),
            entry(Tag::GroupObj, 5),
            entry(Tag::User(5), 6),
            entry(Tag::UserObj, 7),
        ];
        let acl = PosixAcl::from_entries(shuffled).unwrap();
        let tags: Vec<Tag> = acl.entries().map(|entry| entry.tag).collect();
        assert!(tags.is_sorted());
        assert_eq!(acl.entry_count(), shuffled.len());
        assert_eq!(PosixAcl::from_entries(acl.entries()), Ok(acl));
    }

    #[test]
    fn invalid_lists_are_rejected() {
        let minimal = [entry(Tag::UserObj, 7), entry(Tag::GroupObj, 5), entry(Tag::Other, 0)];
        let with = |more: &[Entry]| PosixAcl::from_entries(minimal.iter().chain(more).copied());
        assert!(with(&[]).is_ok());
        assert!(with(&[entry(Tag::Mask, 4)]).is_ok());
        for missing in 0..3 {
            let mut two = minimal.to_vec();
            two.remove(missing);
            assert_eq!(PosixAcl::from_entries(two), Err(AclError::Missing));
        }
        for twice in minimal {
            assert_eq!(with(&[twice]), Err(AclError::Duplicate));
        }
        assert_eq!(with(&[entry(Tag::User(1), 4)]), Err(AclError::NoMask));
        assert_eq!(with(&[entry(Tag::Group(1), 4)]), Err(AclError::NoMask));
        for tag in [Tag::User(1), Tag::Group(1)] {
            assert_eq!(with(&[entry(Tag::Mask, 7), entry(tag, 4), entry(tag, 5)]), Err(AclError::Duplicate));
        }
        for tag in [Tag::User(u32::MAX), Tag::Group(u32::MAX)] {
            assert_eq!(with(&[entry(Tag::Mask, 7), entry(tag, 4)]), Err(AclError::Id));
        }
    }

    #[test]
    fn longest_acl_fits_in_a_page() {
        let base = [(Tag::UserObj, 7), (Tag::GroupObj, 7), (Tag::Mask, 7), (Tag::Other, 7)];
        let of_length = |length: u32| {
            let named = (4..length).map(|id| (Tag::User(id), 4));
            PosixAcl::from_entries(base.into_iter().chain(named).map(|(tag, bits)| entry(tag, bits)))
        };
        assert_eq!(of_length(511).unwrap().to_xattr().len(), 4092);
        assert_eq!(of_length(512), Err(AclError::TooLong));
    }

    #[test]
    fn users_and_groups_are_renumbered_separately() {
        let acl = PosixAcl::from_storage("u::rwx,u:5:r--,u:6:rw-,g::r-x,g:5:--x,m::rwx,o::---").unwrap();
        let shifted = acl.renumbered(|uid| (uid != 6).then_some(uid + 10), |gid| Some(gid + 20)).unwrap();
        assert_eq!(shifted.0.to_storage(), "u::rwx,u:15:r--,g::r-x,g:25:--x,m::rwx,o::---");
        assert_eq!(shifted.1, 1);
        let (nobody, left_out) = acl.renumbered(|_| None, |_| None).unwrap();
        assert_eq!((nobody.to_storage().as_str(), left_out), ("u::rwx,g::r-x,m::rwx,o::---", 3));
        assert_eq!(acl.renumbered(|_| Some(1), Some), Err(AclError::Duplicate));
    }

    #[test]
    fn stored_ids_do_not_change() {
        let acl = PosixAcl::from_storage("u::rwx,u:1000:r-x,g::r-x,m::rwx,o::---").unwrap();
        assert_eq!(acl.id().to_string(), "4a2f2a8326cd9552993b17f0c7e966d1");
        assert_ne!(acl.id(), PosixAcl::from_storage("u::rwx,u:1000:r--,g::r-x,m::rwx,o::---").unwrap().id());
    }
}
