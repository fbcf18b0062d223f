//! The wire forms of the Linux NFS client: the XDR (RFC 4506) of the attributes `acl` and `dacl`, which
//! `system.nfs4_acl` and `system.nfs4_dacl` carry unchanged. nfs4-acl-tools, and Samba's `vfs_nfs4acl_xattr`
//! with `encoding = nfs`, read and write them.
//!
//! | attribute | XDR | holds |
//! |---|---|---|
//! | `system.nfs4_acl` | `nfsace4<>` (RFC 7530) | every entry |
//! | `system.nfs4_dacl` | `aclflag4`, `nfsace4<>` (RFC 8881, 6.2.2) | list flags; allow and deny entries |
//!
//! All numbers are 32 bits, big endian. An entry has a type, flags, permissions and a principal. The
//! principal is a length in bytes and a string padded with zeros to a multiple of four.

use crate::identity::{DomainTable, Id};

use super::{AclError, AclFlags, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Scope, Who};

/// The maximum size of an xattr value, `XATTR_SIZE_MAX`.
pub const XATTR_BYTES_MAX: usize = 65_536;

const IDENTIFIER_GROUP: u32 = 0x40;
/// Type, flags, permissions and the length of an empty string.
const ENTRY_BYTES_MIN: usize = 16;

/// The names of principals on the wire. The special principals and decimal numbers are handled without this
/// trait.
pub trait Principals {
    /// The principal of this name, e.g. `ann@example.org` or `S-1-5-21-1-2-3-1105`; None if it does not
    /// exist.
    fn id_of(&self, name: &str, is_group: bool) -> Option<Id>;

    /// The name to show; None to show the number.
    fn name_of(&self, id: Id, is_group: bool) -> Option<String>;
}

/// The name of an identity of a domain is its SID. Users and groups have no names here, so they are shown as
/// decimal numbers, which nfs4-acl-tools and Samba can be configured to use.
impl Principals for DomainTable {
    fn id_of(&self, name: &str, _is_group: bool) -> Option<Id> {
        DomainTable::id_of(self, &name.parse().ok()?)
    }

    fn name_of(&self, id: Id, _is_group: bool) -> Option<String> {
        self.sid_of(id).map(|sid| sid.to_string())
    }
}

impl Nfs4Acl {
    /// Parses the value of `system.nfs4_acl` ([`Scope::Entries`]) or `system.nfs4_dacl` ([`Scope::Access`]).
    ///
    /// The flag `ACE4_IDENTIFIER_GROUP` distinguishes groups from users. It is ignored on the three special
    /// principals, because not all servers and clients set it there. The content of the padding is ignored.
    ///
    /// # Errors
    /// In this order: [`AclError::TooLong`] for more than 64 KiB, [`AclError::Size`] or [`AclError::Flags`]
    /// for the words before the entries, [`AclError::TooLong`] for too many entries, [`AclError::Size`] if
    /// the value is too short for them, the errors of the entries in stored order, [`AclError::Size`] for
    /// bytes after the last entry.
    pub fn from_xattr(value: &[u8], scope: Scope, principals: &dyn Principals) -> Result<Self, AclError> {
        if value.len() > XATTR_BYTES_MAX {
            return Err(AclError::TooLong);
        }
        let mut reader = Reader(value);
        let flags = match scope {
            Scope::Entries => AclFlags::NONE,
            Scope::Access => AclFlags::from_bits(reader.number()?).ok_or(AclError::Flags)?,
        };
        let count = reader.number()? as usize;
        if count > Self::MAX_ENTRIES {
            return Err(AclError::TooLong);
        }
        // Check this before memory is reserved, so that a small value cannot reserve much.
        if reader.0.len() < count * ENTRY_BYTES_MIN {
            return Err(AclError::Size);
        }
        let entries = (0..count).map(|_| reader.entry(scope, principals)).collect::<Result<Vec<_>, _>>()?;
        if !reader.0.is_empty() {
            return Err(AclError::Size);
        }
        Self::new(flags, entries)
    }

    /// The value of the attribute. `GROUP@` has `ACE4_IDENTIFIER_GROUP` set, as from a Linux server.
    ///
    /// # Errors
    /// [`AclError::TooLong`] if it is larger than 64 KiB, the maximum of an xattr.
    pub fn to_xattr(&self, scope: Scope, principals: &dyn Principals) -> Result<Vec<u8>, AclError> {
        let mut value = Vec::new();
        if scope == Scope::Access {
            value.extend(self.flags().bits().to_be_bytes());
        }
        let shown = || self.entries().iter().filter(|entry| is_in(scope, entry.kind));
        value.extend(u32::try_from(shown().count()).map_err(|_| AclError::TooLong)?.to_be_bytes());
        for entry in shown() {
            put_entry(&mut value, entry, principals)?;
            if value.len() > XATTR_BYTES_MAX {
                return Err(AclError::TooLong);
            }
        }
        Ok(value)
    }
}

fn is_in(scope: Scope, kind: Kind) -> bool {
    scope == Scope::Entries || matches!(kind, Kind::Allow | Kind::Deny)
}

fn put_entry(value: &mut Vec<u8>, entry: &Entry, principals: &dyn Principals) -> Result<(), AclError> {
    let is_group = matches!(entry.who, Who::Group | Who::NamedGroup(_));
    let flags = entry.flags.bits() | if is_group { IDENTIFIER_GROUP } else { 0 };
    // Special principals, and ids without a name, are shown in the stored form.
    let name = entry.who.id().and_then(|id| principals.name_of(id, is_group));
    let who = name.unwrap_or_else(|| entry.who.to_string());
    let length = u32::try_from(who.len()).map_err(|_| AclError::TooLong)?;
    for number in [entry.kind as u32, flags, entry.mask.bits(), length] {
        value.extend(number.to_be_bytes());
    }
    value.extend(who.as_bytes());
    value.resize(value.len().next_multiple_of(4), 0);
    Ok(())
}

/// The bytes not yet read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Result<u32, AclError> {
        let (number, rest) = self.0.split_first_chunk::<4>().ok_or(AclError::Size)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*number))
    }

    /// A string and its padding.
    fn string(&mut self) -> Result<&'a str, AclError> {
        let length = self.number()? as usize;
        let padded = length.checked_next_multiple_of(4).ok_or(AclError::Size)?;
        let (bytes, rest) = self.0.split_at_checked(padded).ok_or(AclError::Size)?;
        self.0 = rest;
        let bytes = bytes.get(..length).ok_or(AclError::Size)?;
        std::str::from_utf8(bytes).map_err(|_| AclError::Who)
    }

    fn entry(&mut self, scope: Scope, principals: &dyn Principals) -> Result<Entry, AclError> {
        let (kind, _) = *Kind::ALL.get(self.number()? as usize).ok_or(AclError::Kind)?;
        if !is_in(scope, kind) {
            return Err(AclError::Kind);
        }
        let flags = self.number()?;
        let is_group = flags & IDENTIFIER_GROUP != 0;
        let flags = EntryFlags::from_bits(flags & !IDENTIFIER_GROUP).ok_or(AclError::Flags)?;
        let mask = Mask::from_bits(self.number()?).ok_or(AclError::Mask)?;
        let id_of = |name: &str| {
            let number = name.parse::<Id>().ok().filter(|id| id.to_system().is_some());
            number.or_else(|| principals.id_of(name, is_group))
        };
        let who = Who::of(self.string()?, is_group, id_of).ok_or(AclError::Who)?;
        Ok(Entry { kind, flags, who, mask })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names;

    impl Principals for Names {
        fn id_of(&self, name: &str, is_group: bool) -> Option<Id> {
            match (name, is_group) {
                ("ann@example.org", false) => Id::system(1000),
                ("staff@example.org", true) => Id::system(50),
                _ => None,
            }
        }

        fn name_of(&self, id: Id, is_group: bool) -> Option<String> {
            match (id.to_system(), is_group) {
                (Some(1000), false) => Some("ann@example.org".into()),
                (Some(50), true) => Some("staff@example.org".into()),
                _ => None,
            }
        }
    }

    fn table() -> DomainTable {
        DomainTable::from_domains(["S-1-5-21-1-2-3".parse().unwrap()]).unwrap()
    }

    fn blob(words: &[u32], who: &[u8]) -> Vec<u8> {
        let mut blob: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        blob.extend((who.len() as u32).to_be_bytes());
        blob.extend(who);
        blob.resize(blob.len().next_multiple_of(4), 0);
        blob
    }

    fn parse(value: &[u8]) -> Result<String, AclError> {
        Nfs4Acl::from_xattr(value, Scope::Entries, &table()).map(|acl| acl.to_storage())
    }

    /// The exact bytes that a Linux client shows for a server's `0644`: three entries, `GROUP@` with its
    /// flag.
    #[test]
    fn layout_matches_the_linux_client() {
        let acl = Nfs4Acl::from_text("A::OWNER@:rwatTcCy,A:g:GROUP@:rtcy,A::EVERYONE@:rtcy").unwrap();
        let mut expected = 3u32.to_be_bytes().to_vec();
        expected.extend(blob(&[0, 0, 0x0016_0187], b"OWNER@"));
        expected.extend(blob(&[0, 0x40, 0x0012_0081], b"GROUP@"));
        expected.extend(blob(&[0, 0, 0x0012_0081], b"EVERYONE@"));
        assert_eq!(acl.to_xattr(Scope::Entries, &table()).unwrap(), expected);
        assert_eq!(Nfs4Acl::from_xattr(&expected, Scope::Entries, &table()), Ok(acl.clone()));

        let acl = acl.with_flags(AclFlags::AUTO_INHERIT);
        let dacl = [&1u32.to_be_bytes(), &expected[..]].concat();
        assert_eq!(acl.to_xattr(Scope::Access, &table()).unwrap(), dacl);
        assert_eq!(Nfs4Acl::from_xattr(&dacl, Scope::Access, &table()), Ok(acl));
    }

    #[test]
    fn principals_have_the_names_of_the_view() {
        let acl = Nfs4Acl::from_storage("A::1000:r,A:g:50:r,A::7:r,A:g:1-1105:r").unwrap();
        let numeric = acl.to_xattr(Scope::Entries, &table()).unwrap();
        let named = acl.to_xattr(Scope::Entries, &Names).unwrap();
        let shows = |value: &[u8], who: &str| value.windows(who.len()).any(|window| window == who.as_bytes());
        assert!(shows(&numeric, "1000") && shows(&numeric, "S-1-5-21-1-2-3-1105"));
        assert!(shows(&named, "ann@example.org") && shows(&named, "staff@example.org"));
        assert_eq!(Nfs4Acl::from_xattr(&numeric, Scope::Entries, &table()), Ok(acl.clone()));
        assert_eq!(Nfs4Acl::from_xattr(&named, Scope::Entries, &table()), Err(AclError::Who));
        // With another table the SID is unknown; the name of a user is not that of a group.
        assert_eq!(
            Nfs4Acl::from_xattr(&numeric, Scope::Entries, &DomainTable::default()),
            Err(AclError::Who)
        );
        let group = [&1u32.to_be_bytes()[..], &blob(&[0, 0x40, 1], b"ann@example.org")].concat();
        assert_eq!(Nfs4Acl::from_xattr(&group, Scope::Entries, &Names), Err(AclError::Who));
    }

    #[test]
    fn dacl_has_allow_and_deny_entries_only() {
        let acl = Nfs4Acl::from_storage("A::5:r,U:S:6:w").unwrap();
        let dacl = acl.to_xattr(Scope::Access, &table()).unwrap();
        let read = Nfs4Acl::from_xattr(&dacl, Scope::Access, &table()).unwrap();
        assert_eq!(read.to_storage(), "A::5:r");
        assert_eq!(acl.replaced_by(read, Scope::Access), Ok(acl));
        let audit = [&[0; 4], &1u32.to_be_bytes()[..], &blob(&[2, 0, 1], b"5")].concat();
        assert_eq!(Nfs4Acl::from_xattr(&audit, Scope::Access, &table()), Err(AclError::Kind));
        assert_eq!(parse(&audit[4..]).unwrap(), "U::5:r");
    }

    #[test]
    fn malformed_values_are_rejected() {
        let one = |words: &[u32], who: &[u8]| parse(&[&1u32.to_be_bytes(), &blob(words, who)[..]].concat());
        assert_eq!(one(&[0, 0, 1], b"5").unwrap(), "A::5:r");
        assert_eq!(one(&[0, 0x42, 1], b"5").unwrap(), "A:dg:5:r");
        assert_eq!(one(&[4, 0, 1], b"5"), Err(AclError::Kind));
        assert_eq!(one(&[0, 0x100, 1], b"5"), Err(AclError::Flags));
        assert_eq!(one(&[0, 0, 0x0020_0000], b"5"), Err(AclError::Mask));
        let unknown: [&[u8]; 10] = [
            b"",
            b"root",
            b"OWNER",
            b"INTERACTIVE@",
            b"-1",
            b"4294967295",
            b"1-5",
            b"\xff",
            b"5\0",
            b"S-1-5-7-1",
        ];
        for who in unknown {
            assert_eq!(one(&[0, 0, 1], who), Err(AclError::Who), "{who:?}");
        }

        let good =
            [&2u32.to_be_bytes()[..], &blob(&[0, 0, 1], b"5"), &blob(&[1, 0, 1], b"EVERYONE@")].concat();
        assert!(parse(&good).is_ok());
        for length in 0..good.len() {
            assert_eq!(parse(&good[..length]), Err(AclError::Size), "{length}");
        }
        assert_eq!(parse(&[&good[..], &[0]].concat()), Err(AclError::Size));
        assert_eq!(parse(&0u32.to_be_bytes()).unwrap(), "A::EVERYONE@:");
        assert_eq!(parse(&8001u32.to_be_bytes()), Err(AclError::TooLong));
        assert_eq!(parse(&8000u32.to_be_bytes()), Err(AclError::Size));
        assert_eq!(parse(&[0; XATTR_BYTES_MAX + 1]), Err(AclError::TooLong));
        // A string whose length field says nearly 4 GiB.
        let huge = [&good[..16], &u32::MAX.to_be_bytes(), &good[20..]].concat();
        assert_eq!(parse(&huge), Err(AclError::Size));
    }

    #[test]
    fn acl_larger_than_an_xattr_is_too_long() {
        let entry = Nfs4Acl::from_storage("A::1000:r").unwrap().entries()[0];
        let of = |count: usize| Nfs4Acl::new(AclFlags::NONE, vec![entry; count]).unwrap();
        assert_eq!(of(3276).to_xattr(Scope::Entries, &table()).unwrap().len(), 65_524);
        assert_eq!(of(3277).to_xattr(Scope::Entries, &table()), Err(AclError::TooLong));
    }
}
