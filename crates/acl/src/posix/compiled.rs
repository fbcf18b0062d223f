//! An ACL prepared for fast decisions.

use types::AclId;

use crate::credential::Credential;
use crate::keys::{Key, Keys};

use super::{Decision, Perm, PosixAcl, Tag};

/// An ACL with everything that a decision needs; compiled once and shared.
#[derive(Clone, Debug)]
pub struct Compiled {
    id: AclId,
    acl: PosixAcl,
    /// The principals that entries name.
    named: Keys,
    /// The permissions of each named principal after the mask, in the order of `named`.
    perms: Box<[Perm]>,
}

impl Compiled {
    pub fn new(acl: PosixAcl) -> Self {
        let mask = acl.mask.unwrap_or(Perm::ALL);
        let named: Vec<(Key, Perm)> = acl
            .entries()
            .filter_map(|entry| match entry.tag {
                Tag::User(uid) => Some((Key::user(uid), entry.perm & mask)),
                Tag::Group(gid) => Some((Key::group(gid), entry.perm & mask)),
                _ => None,
            })
            .collect();
        // Both are in the order of the entries: users before groups, each sorted.
        let perms = named.iter().map(|(_, perm)| *perm).collect();
        let named = Keys::new(named.into_iter().map(|(key, _)| key).collect());
        Compiled { id: acl.id(), acl, named, perms }
    }

    pub fn id(&self) -> AclId {
        self.id
    }

    pub fn acl(&self) -> &PosixAcl {
        &self.acl
    }

    /// Heap memory in bytes, including that of the ACL.
    pub fn heap_bytes(&self) -> usize {
        self.acl.heap_bytes() + self.named.heap_bytes() + size_of_val(&*self.perms)
    }

    /// Like [`PosixAcl::decide`], for a caller with a known credential.
    pub fn decide(&self, caller: &Credential, in_owning_group: bool) -> Decision {
        let mask = self.acl.mask.unwrap_or(Perm::ALL);
        let of_group = Decision::of(self.acl.group_obj & mask);
        let mut granted = if in_owning_group { of_group } else { Decision::NOTHING };
        for (at, key) in self.named.common(caller.keys()) {
            let perm = Decision::of(self.perms.get(at).copied().unwrap_or(Perm::NONE));
            // Users come first. The entry of a named user decides alone.
            if !key.is_group() {
                return perm;
            }
            granted = granted.or(perm);
        }
        if granted == Decision::NOTHING { Decision::of(self.acl.other) } else { granted }
    }
}
