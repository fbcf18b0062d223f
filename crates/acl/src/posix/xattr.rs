//! POSIX ACLs as values of extended attributes, as in Linux's `posix_acl_xattr.h`: a header of 4 bytes with
//! the version, which is 2 (`struct posix_acl_xattr_header`), then 8 bytes for each entry: 2 for the tag, 2
//! for the permissions, 4 for the id (`struct posix_acl_xattr_entry`). All numbers are little endian.

use super::{AclError, Entry, Perm, PosixAcl, Tag};

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

// The values ascend in canonical order. `from_xattr` depends on that: it compares values to check the order.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The id field of entries for the owner, the owning group, the mask and others (`ACL_UNDEFINED_ID`).
const UNDEFINED_ID: u32 = u32::MAX;

impl PosixAcl {
    /// Parses the value of `system.posix_acl_access` or `system.posix_acl_default`. An empty value and a
    /// header without entries mean "no ACL"; setting them removes the existing ACL (`do_set_acl`).
    ///
    /// Equivalent to `posix_acl_from_xattr` and `posix_acl_valid`, except for the limit on entries and the
    /// stricter rule of [`PosixAcl::from_entries`]. Tags must be in canonical order. Entries for named users,
    /// and those for named groups, may be in any order; they are sorted by id. The id field of a tag without
    /// an id is ignored.
    ///
    /// # Errors
    /// In this order: `Size` if the header is incomplete, `Version`, `Size` if the last entry is incomplete,
    /// `TooLong`, `Order`, `Tag` or `Perm` for the first invalid entry, then those of
    /// [`PosixAcl::from_entries`].
    pub fn from_xattr(value: &[u8]) -> Result<Option<Self>, AclError> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, body) = value.split_first_chunk::<HEADER_BYTES>().ok_or(AclError::Size)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(AclError::Version);
        }
        let (entries, rest) = body.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(AclError::Size);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        if entries.len() > Self::MAX_ENTRIES {
            return Err(AclError::TooLong);
        }
        if !entries.iter().map(wire_tag).is_sorted() {
            return Err(AclError::Order);
        }
        let entries = entries.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
        Self::from_entries(entries).map(Some)
    }

    /// The value of the extended attribute. Equivalent to `posix_acl_to_xattr`.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entry_count());
        value.extend(VERSION.to_le_bytes());
        for Entry { tag, perm } in self.entries() {
            let (tag, id) = match tag {
                Tag::UserObj => (USER_OBJ, UNDEFINED_ID),
                Tag::User(id) => (USER, id),
                Tag::GroupObj => (GROUP_OBJ, UNDEFINED_ID),
                Tag::Group(id) => (GROUP, id),
                Tag::Mask => (MASK, UNDEFINED_ID),
                Tag::Other => (OTHER, UNDEFINED_ID),
            };
            let entry = u64::from(tag) | u64::from(perm.bits()) << 16 | u64::from(id) << 32;
            value.extend_from_slice(&entry.to_le_bytes());
        }
        value
    }
}

fn wire_tag(entry: &[u8; ENTRY_BYTES]) -> u16 {
    u16::from_le_bytes([entry[0], entry[1]])
}

fn decode(entry: &[u8; ENTRY_BYTES]) -> Result<Entry, AclError> {
    let [_, _, perm_low, perm_high, id @ ..] = *entry;
    let id = u32::from_le_bytes(id);
    let tag = match wire_tag(entry) {
        USER_OBJ => Tag::UserObj,
        USER => Tag::User(id),
        GROUP_OBJ => Tag::GroupObj,
        GROUP => Tag::Group(id),
        MASK => Tag::Mask,
        OTHER => Tag::Other,
        _ => return Err(AclError::Tag),
    };
    let bits = u32::from(u16::from_le_bytes([perm_low, perm_high]));
    if bits > Perm::ALL.bits() {
        return Err(AclError::Perm);
    }
    Ok(Entry { tag, perm: Perm::new(bits) })
}

#[cfg(test)]
mod tests {
    use types::Errno;

    use super::*;

    fn xattr(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn parse(entries: &[(u16, u16, u32)]) -> Result<String, AclError> {
        PosixAcl::from_xattr(&xattr(entries)).map(|acl| acl.expect("there are entries").to_storage())
    }

    #[test]
    fn ids_are_sorted_and_unused_ids_ignored() {
        let text = parse(&[
            (USER_OBJ, 7, 5),
            (USER, 4, 1001),
            (USER, 5, 1000),
            (GROUP_OBJ, 5, 0),
            (GROUP, 1, 9),
            (GROUP, 2, 8),
            (MASK, 7, 1),
            (OTHER, 0, 2),
        ]);
        assert_eq!(text.unwrap(), "u::rwx,u:1000:r-x,u:1001:r--,g::r-x,g:8:-w-,g:9:--x,m::rwx,o::---");
    }

    #[test]
    fn value_without_entries_means_no_acl() {
        assert_eq!(PosixAcl::from_xattr(&[]), Ok(None));
        assert_eq!(PosixAcl::from_xattr(&xattr(&[])), Ok(None));
    }

    #[test]
    fn malformed_values_are_rejected() {
        let good = xattr(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)]);
        assert!(PosixAcl::from_xattr(&good).is_ok());
        for length in (1..4).chain(5..12) {
            assert_eq!(PosixAcl::from_xattr(&good[..length]), Err(AclError::Size));
        }
        assert_eq!(PosixAcl::from_xattr(&[1, 0, 0, 0]).map_err(Errno::from), Err(Errno::EOPNOTSUPP));
        assert_eq!(PosixAcl::from_xattr(&[2, 0, 0, 1, 9]), Err(AclError::Version));
        assert_eq!(PosixAcl::from_xattr(&vec![0; 65536]), Err(AclError::Version));
        let long = PosixAcl::from_xattr(&xattr(&[(USER, 7, 0); 512]));
        assert_eq!(long.map_err(Errno::from), Err(Errno::E2BIG));

        assert_eq!(parse(&[(GROUP_OBJ, 5, 0), (USER_OBJ, 7, 0), (OTHER, 0, 0)]), Err(AclError::Order));
        assert_eq!(
            parse(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0), (MASK, 0, 0)]),
            Err(AclError::Order)
        );
        assert_eq!(parse(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 8, 0)]), Err(AclError::Perm));
        assert_eq!(parse(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0x100, 0)]), Err(AclError::Perm));
        assert_eq!(
            parse(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0), (0x40, 0, 0)]),
            Err(AclError::Tag)
        );
        assert_eq!(parse(&[(0, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)]), Err(AclError::Tag));
    }
}
