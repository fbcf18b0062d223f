//! NFSv4 ACLs of files, in the form of their extended attributes.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;

use acl::identity::{DomainTable, Id};
use acl::nfs4::{AclFlags, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Scope, Who};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::harness::Random;

pub(crate) const NFS4_ACL: &str = "system.nfs4_acl";
pub(crate) const NFS4_DACL: &str = "system.nfs4_dacl";

/// Parses the short text, e.g. `A::1000:rx,A::EVERYONE@:r`.
pub(crate) fn acl(text: &str) -> Nfs4Acl {
    Nfs4Acl::from_storage(text).unwrap()
}

pub(crate) fn blob(acl: &Nfs4Acl, scope: Scope) -> Vec<u8> {
    acl.to_xattr(scope, &DomainTable::default()).unwrap()
}

pub(crate) fn set(path: &Path, text: &str) -> Result<(), Errno> {
    set_acl(path, &acl(text))
}

pub(crate) fn set_acl(path: &Path, acl: &Nfs4Acl) -> Result<(), Errno> {
    setxattr(path, NFS4_ACL, &blob(acl, Scope::Entries), XattrFlags::empty())
}

/// As `set`, for an ACL that names Windows identities of these domains (separated by spaces), e.g.
/// `A::1-1105:r`.
pub(crate) fn set_of(path: &Path, text: &str, domains: &str) -> Result<(), Errno> {
    let table = DomainTable::from_storage(domains).unwrap();
    let value = acl(text).to_xattr(Scope::Entries, &table).unwrap();
    setxattr(path, NFS4_ACL, &value, XattrFlags::empty())
}

/// The value of an extended attribute.
pub(crate) fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// The ACL as short text.
pub(crate) fn get(path: &Path) -> Result<String, Errno> {
    let acl = Nfs4Acl::from_xattr(&value(path, NFS4_ACL)?, Scope::Entries, &DomainTable::default());
    Ok(acl.unwrap().to_storage())
}

/// An ACL of `entries` random entries; `id` chooses the users and groups that it names.
pub(crate) fn random_acl(random: &mut Random, entries: u64, id: fn(&mut Random) -> u32) -> Nfs4Acl {
    let entries: Vec<Entry> = (0..entries).map(|_| random_entry(random, id)).collect();
    Nfs4Acl::new(AclFlags::NONE, entries).unwrap()
}

fn random_entry(random: &mut Random, id: fn(&mut Random) -> u32) -> Entry {
    let number = Id::system(id(random)).unwrap();
    let who = match random.below(8) {
        0 => Who::Owner,
        1 => Who::Group,
        2 | 3 => Who::Everyone,
        4 | 5 => Who::User(number),
        _ => Who::NamedGroup(number),
    };
    let common = Mask::READ_DATA | Mask::WRITE_DATA | Mask::APPEND_DATA | Mask::EXECUTE;
    let common = common | Mask::DELETE | Mask::DELETE_CHILD;
    let bits = random.below(1 << 21) as u32;
    let mask = Mask::from_bits(bits & Mask::ALL.bits()).unwrap();
    let mask = if random.below(2) == 0 { mask & common } else { mask | Mask::EXECUTE };
    let flags = if random.below(8) == 0 {
        EntryFlags::INHERIT_ONLY | EntryFlags::DIRECTORY_INHERIT
    } else {
        EntryFlags::NONE
    };
    let kind = if random.below(3) == 0 { Kind::Deny } else { Kind::Allow };
    Entry { kind, flags, who, mask }
}
