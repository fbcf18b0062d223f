//! The cache of decisions.
//!
//! A decision depends on the ACL, on the rules that map its SIDs, on the caller, on the file's owning group
//! and mode, on whether the file is a directory, and on whether the caller owns it. All of that is in the
//! key: the ACL as its content hash, the rules as their version, and the caller as a number that is never
//! reused. So an entry is valid forever, and nothing is ever invalidated. Capabilities and the sticky bit are
//! not in the key, because other code checks them.
//!
//! The key contains the owning group itself, not whether the caller is in it, because the cost of finding
//! that out grows with the number of the caller's groups. So a cached decision costs one lookup, however long
//! the ACL and the list of groups are. Decisions without supplementary groups are an exception: their key
//! says whether the primary group is the owning group.

mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use types::{AclId, Mode};

use crate::credential::Credential;
use crate::evaluate::Class;
use crate::{nfs4, posix};

use table::Table;

/// The attributes of a file that its permissions depend on.
#[derive(Clone, Copy, Debug)]
pub struct FileAttrs {
    pub uid: u32,
    pub gid: u32,
    pub mode: Mode,
    pub is_dir: bool,
    /// The id of the access ACL; [`AclId::NONE`] if the mode alone decides.
    pub acl: AclId,
    /// The version of the rules by which SIDs in the ACL are mapped
    /// ([`SidRules::version`](crate::sid_rules::SidRules::version)).
    pub sid_rules: u64,
}

/// A cache of recent decisions with a fixed size. Threads share it, and none blocks in it.
#[derive(Debug)]
pub struct DecisionCache {
    table: Table,
    misses: AtomicU64,
}

impl DecisionCache {
    /// A cache for `entries` decisions, rounded up to a power of two; each takes 64 bytes.
    pub fn new(entries: usize) -> Self {
        DecisionCache { table: Table::new(entries), misses: AtomicU64::new(0) }
    }

    /// The number of lookups that did not find a decision and computed it.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Like [`posix::decide`]. `load` returns the ACL. It is called only if the file has an ACL, the ACL
    /// matters for this caller, and the decision is not cached. If `load` fails, its error is returned, and
    /// nothing is cached.
    #[inline]
    pub fn posix<E>(
        &self,
        caller: &Credential,
        file: &FileAttrs,
        load: impl FnOnce() -> Result<Arc<posix::Compiled>, E>,
    ) -> Result<posix::Decision, E> {
        let key = key(Family::Posix, caller, file);
        match self.table.get(&key) {
            Some(known) => Ok(posix::Decision(known as u8)),
            None => {
                let decision = decide_posix(caller, file, load)?;
                self.remember(&key, decision.0.into());
                Ok(decision)
            }
        }
    }

    /// Like [`nfs4::decide`], with `load` as in [`Self::posix`].
    #[inline]
    pub fn nfs4<E>(
        &self,
        caller: &Credential,
        file: &FileAttrs,
        load: impl FnOnce() -> Result<Arc<nfs4::Compiled>, E>,
    ) -> Result<nfs4::Decision, E> {
        let key = key(Family::Nfs4, caller, file);
        match self.table.get(&key) {
            Some(known) => Ok(unpacked(known)),
            None => {
                let decision = decide_nfs4(caller, file, load)?;
                self.remember(&key, packed(decision));
                Ok(decision)
            }
        }
    }

    /// The decision as far as it is certain without the caller's supplementary groups, so that they need not
    /// be read: see [`nfs4::Compiled::certain`] and [`nfs4::decide_without_groups`]. `None` if the file has
    /// no ACL and the decision of the mode depends on these groups. `load` is as in [`Self::posix`].
    #[inline]
    pub fn nfs4_certain<E>(
        &self,
        (uid, gid): (u32, u32),
        file: &FileAttrs,
        load: impl FnOnce() -> Result<Arc<nfs4::Compiled>, E>,
    ) -> Result<Option<nfs4::Decision>, E> {
        let (is_owner, in_group) = (uid == file.uid, gid == file.gid);
        if file.acl.is_none() {
            return Ok(nfs4::decide_without_groups(file.mode, file.is_dir, is_owner, in_group));
        }
        let key = key_of_user((uid, gid), is_owner, in_group, file);
        if let Some(known) = self.table.get(&key) {
            return Ok(Some(unpacked(known)));
        }
        let decision = load()?.certain(uid, gid, is_owner, in_group);
        self.remember(&key, packed(decision));
        Ok(Some(decision))
    }

    #[cold]
    fn remember(&self, key: &table::Key, value: u64) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.table.put(key, value);
    }
}

/// Like [`posix::decide`], with a compiled ACL and without the cache, for callers that evaluate each pair of
/// caller and file once.
pub fn decide_posix<E>(
    caller: &Credential,
    file: &FileAttrs,
    load: impl FnOnce() -> Result<Arc<posix::Compiled>, E>,
) -> Result<posix::Decision, E> {
    let cred = caller.cred();
    let in_owning_group = || cred.in_group(file.gid);
    match posix::class(cred.uid == file.uid, in_owning_group, file.mode, !file.acl.is_none()) {
        Some(class) => Ok(posix::Decision::of_class(class, file.mode)),
        None => Ok(load()?.decide(caller, in_owning_group())),
    }
}

/// Like [`nfs4::decide`], with a compiled ACL and without the cache.
pub fn decide_nfs4<E>(
    caller: &Credential,
    file: &FileAttrs,
    load: impl FnOnce() -> Result<Arc<nfs4::Compiled>, E>,
) -> Result<nfs4::Decision, E> {
    let is_owner = caller.cred().uid == file.uid;
    let in_owning_group = caller.cred().in_group(file.gid);
    if file.acl.is_none() {
        return Ok(nfs4::decide_by_mode(file.mode, file.is_dir, Class::of(is_owner, || in_owning_group)));
    }
    Ok(load()?.decide(caller, is_owner, in_owning_group))
}

fn packed(decision: nfs4::Decision) -> u64 {
    u64::from(decision.granted.pack()) << 16 | u64::from(decision.denied.pack())
}

fn unpacked(value: u64) -> nfs4::Decision {
    nfs4::Decision {
        granted: nfs4::Mask::unpack((value >> 16) as u16),
        denied: nfs4::Mask::unpack(value as u16),
    }
}

#[derive(Clone, Copy)]
enum Family {
    Posix,
    Nfs4,
    /// Decisions for callers whose supplementary groups are not known.
    Certain,
}

#[inline]
fn key_of_user((uid, gid): (u32, u32), is_owner: bool, in_group: bool, file: &FileAttrs) -> table::Key {
    let flags = u64::from(in_group) | u64::from(is_owner) << 9 | (Family::Certain as u64) << 11;
    [acl_key(file), file.acl.0 as u64, u64::from(uid) << 32 | u64::from(gid), flags]
}

/// Half of the ACL's hash, combined with the version of the rules, which is also a hash, or 0 if there are no
/// rules.
#[inline]
fn acl_key(file: &FileAttrs) -> u64 {
    (file.acl.0 >> 64) as u64 ^ file.sid_rules
}

#[inline]
fn key(family: Family, caller: &Credential, file: &FileAttrs) -> table::Key {
    let is_owner = caller.cred().uid == file.uid;
    let flags = u64::from(file.mode.rwx())
        | u64::from(is_owner) << 9
        | u64::from(file.is_dir) << 10
        | (family as u64) << 11;
    [acl_key(file), file.acl.0 as u64, caller.id().0, u64::from(file.gid) << 32 | flags]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use types::{Caps, Cred, Errno};

    use crate::credential::Credentials;
    use crate::posix::Perm;

    use super::*;

    fn file(acl: AclId) -> FileAttrs {
        FileAttrs { uid: 1, gid: 10, mode: Mode::new(0o750), is_dir: false, acl, sid_rules: 0 }
    }

    #[test]
    fn cached_decision_is_not_computed_again() {
        let acl = nfs4::Nfs4Acl::from_storage("A::2:r,D::EVERYONE@:w").unwrap();
        let compiled = Arc::new(nfs4::Compiled::new(acl));
        let caller = Credentials::new(1000).intern(&Cred::new(2, 2, &[], Caps::NONE), &[]);
        let cache = DecisionCache::new(100);
        let file = file(compiled.id());
        let failed = cache.nfs4(&caller, &file, || Err(Errno::EIO));
        assert_eq!(failed, Err(Errno::EIO), "a failed load gives no decision");
        let first = cache.nfs4(&caller, &file, || Ok::<_, Infallible>(compiled.clone()));
        assert_eq!(cache.misses(), 1);
        let again = cache.nfs4(&caller, &file, || Err(Errno::EIO)).unwrap();
        assert_eq!(first, Ok(again));
        assert_eq!((again.granted, again.denied), (nfs4::Mask::READ_DATA, nfs4::Mask::WRITE_DATA));
        assert_eq!(cache.misses(), 1);
    }

    #[test]
    fn key_contains_all_inputs_of_the_decision() {
        let caller = Credentials::new(1000).intern(&Cred::new(2, 10, &[], Caps::NONE), &[]);
        let base = file(AclId(5 << 64 | 6));
        let key_of = |file: &FileAttrs| key(Family::Posix, &caller, file);
        let others = [
            FileAttrs { acl: AclId(5 << 64 | 7), ..base },
            FileAttrs { acl: AclId(4 << 64 | 6), ..base },
            FileAttrs { gid: 11, ..base },
            FileAttrs { uid: 2, ..base },
            FileAttrs { is_dir: true, ..base },
            FileAttrs { mode: Mode::new(0o740), ..base },
            FileAttrs { sid_rules: 1, ..base },
        ];
        for other in others {
            assert_ne!(key_of(&base), key_of(&other), "{other:?}");
        }
        assert_ne!(key_of(&base), key(Family::Nfs4, &caller, &base));
        // The key contains whether the caller is the owner, not the owner itself, and only the rwx bits of
        // the mode.
        assert_eq!(key_of(&base), key_of(&FileAttrs { uid: 3, mode: Mode::new(0o7750), ..base }));
    }

    #[test]
    fn acl_that_does_not_matter_is_not_loaded() {
        let caller = Credentials::new(1000).intern(&Cred::new(2, 10, &[], Caps::NONE), &[]);
        let cache = DecisionCache::new(0);
        let ask =
            |file: &FileAttrs| cache.posix(&caller, file, || Err(Errno::EIO)).map(|decision| decision.each());
        let base = file(AclId(1));
        assert_eq!(ask(&FileAttrs { uid: 2, ..base }), Ok(Perm::ALL));
        assert_eq!(ask(&FileAttrs { mode: Mode::new(0o704), gid: 11, ..base }), Ok(Perm::READ));
        assert_eq!(ask(&FileAttrs { acl: AclId::NONE, ..base }), Ok(Perm::READ | Perm::EXECUTE));
        assert_eq!(ask(&base), Err(Errno::EIO));
    }
}
