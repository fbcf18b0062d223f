//! Decisions, remembered.
//!
//! A decision depends on the ACL, which its content hash names; on the caller, whom a number names that is never used
//! again; and of the file, on its owning group, its mode, and whether the caller owns it. All of that is the key, so an
//! entry is true for ever and nothing is ever invalidated. Not in it, because they are no matter of ACLs: capabilities,
//! sticky bit, read-only volumes, immutable files.
//!
//! The key has the owning group itself rather than whether the caller is in it, for to find that out takes longer the
//! more groups he has. So a remembered decision costs one look, whether it is by mode or by ACL, however long the ACL,
//! however many the groups.

mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use types::{AclId, Mode};

use crate::credential::Credential;
use crate::evaluate::Class;
use crate::{nfs4, posix};

use table::Table;

/// What a permission depends on, of the file it is for.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub uid: u32,
    pub gid: u32,
    pub mode: Mode,
    pub is_dir: bool,
    /// Of the access ACL; [`AclId::NONE`] where the mode says it all.
    pub acl: AclId,
}

/// The decisions met lately, of fixed size; safe to share between threads, which never wait for one another in it.
#[derive(Debug)]
pub struct DecisionCache {
    table: Table,
    misses: AtomicU64,
}

impl DecisionCache {
    /// With room for so many decisions, rounded up to a power of two; each takes 64 bytes.
    pub fn new(entries: usize) -> Self {
        DecisionCache { table: Table::new(entries), misses: AtomicU64::new(0) }
    }

    /// How many decisions fit.
    pub fn capacity(&self) -> usize {
        self.table.len()
    }

    /// How many decisions were not found and had to be worked out.
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// As [`posix::decide`]. `load` gets the ACL, and is called only where there is one that matters and the decision
    /// is not known; its error is passed on, and nothing is remembered of it.
    #[inline]
    pub fn posix<E>(
        &self,
        caller: &Credential,
        node: &Node,
        load: impl FnOnce() -> Result<Arc<posix::Compiled>, E>,
    ) -> Result<posix::Decision, E> {
        let key = key(Family::Posix, caller, node);
        match self.table.get(&key) {
            Some(known) => Ok(posix::Decision(known as u8)),
            None => {
                let decision = decide_posix(caller, node, load)?;
                self.remember(&key, decision.0.into());
                Ok(decision)
            }
        }
    }

    /// As [`nfs4::decide`], under the same conditions as [`Self::posix`].
    #[inline]
    pub fn nfs4<E>(
        &self,
        caller: &Credential,
        node: &Node,
        load: impl FnOnce() -> Result<Arc<nfs4::Compiled>, E>,
    ) -> Result<nfs4::Decision, E> {
        let key = key(Family::Nfs4, caller, node);
        match self.table.get(&key) {
            Some(known) => Ok(unpacked(known)),
            None => {
                let decision = decide_nfs4(caller, node, load)?;
                self.remember(&key, packed(decision));
                Ok(decision)
            }
        }
    }

    /// What holds of a user whatever groups he is in beside the primary one, as [`nfs4::Compiled::certain`] and
    /// [`nfs4::decide_without_groups`] say it: so it need not be found out which groups those are. `None` where nothing
    /// can be said. The conditions are those of [`Self::posix`].
    #[inline]
    pub fn nfs4_certain<E>(
        &self,
        (uid, gid): (u32, u32),
        node: &Node,
        load: impl FnOnce() -> Result<Arc<nfs4::Compiled>, E>,
    ) -> Result<Option<nfs4::Decision>, E> {
        let (is_owner, in_group) = (uid == node.uid, gid == node.gid);
        if node.acl.is_none() {
            return Ok(nfs4::decide_without_groups(node.mode, node.is_dir, is_owner, in_group));
        }
        let key = key_of_user((uid, gid), is_owner, in_group, node.acl);
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

/// As [`posix::decide`], by compiled ACL and without a cache, which is the way for those who ask each thing once.
pub fn decide_posix<E>(
    caller: &Credential,
    node: &Node,
    load: impl FnOnce() -> Result<Arc<posix::Compiled>, E>,
) -> Result<posix::Decision, E> {
    let cred = caller.cred();
    let in_owning_group = || cred.in_group(node.gid);
    match posix::class(cred.uid == node.uid, in_owning_group, node.mode, !node.acl.is_none()) {
        Some(class) => Ok(posix::Decision::of_class(class, node.mode)),
        None => Ok(load()?.decide(caller, in_owning_group())),
    }
}

/// As [`nfs4::decide`], by compiled ACL and without a cache.
pub fn decide_nfs4<E>(
    caller: &Credential,
    node: &Node,
    load: impl FnOnce() -> Result<Arc<nfs4::Compiled>, E>,
) -> Result<nfs4::Decision, E> {
    let is_owner = caller.cred().uid == node.uid;
    let in_owning_group = caller.cred().in_group(node.gid);
    if node.acl.is_none() {
        return Ok(nfs4::decide_by_mode(node.mode, node.is_dir, Class::of(is_owner, || in_owning_group)));
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
    /// What is certain of a user of whom not all groups are known.
    Certain,
}

#[inline]
fn key_of_user((uid, gid): (u32, u32), is_owner: bool, in_group: bool, acl: AclId) -> table::Key {
    let flags = u64::from(in_group) | u64::from(is_owner) << 9 | (Family::Certain as u64) << 11;
    [(acl.0 >> 64) as u64, acl.0 as u64, u64::from(uid) << 32 | u64::from(gid), flags]
}

#[inline]
fn key(family: Family, caller: &Credential, node: &Node) -> table::Key {
    let is_owner = caller.cred().uid == node.uid;
    let flags = u64::from(node.mode.rwx())
        | u64::from(is_owner) << 9
        | u64::from(node.is_dir) << 10
        | (family as u64) << 11;
    let acl = node.acl.0;
    [(acl >> 64) as u64, acl as u64, caller.id().0, u64::from(node.gid) << 32 | flags]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use types::{Caps, Cred, Errno};

    use crate::credential::Credentials;
    use crate::posix::Perm;

    use super::*;

    fn node(acl: AclId) -> Node {
        Node { uid: 1, gid: 10, mode: Mode::new(0o750), is_dir: false, acl }
    }

    #[test]
    fn what_is_known_is_not_worked_out_again() {
        let acl = nfs4::Nfs4Acl::from_storage("A::2:r,D::EVERYONE@:w").unwrap();
        let compiled = Arc::new(nfs4::Compiled::new(acl));
        let caller = Credentials::new(1000).intern(&Cred::new(2, 2, &[], Caps::NONE), &[]);
        let cache = DecisionCache::new(100);
        assert_eq!(cache.capacity(), 128);
        let node = node(compiled.id());
        let failed = cache.nfs4(&caller, &node, || Err(Errno::EIO));
        assert_eq!(failed, Err(Errno::EIO), "in doubt there is no decision");
        let first = cache.nfs4(&caller, &node, || Ok::<_, Infallible>(compiled.clone()));
        assert_eq!(cache.misses(), 1);
        let again = cache.nfs4(&caller, &node, || Err(Errno::EIO)).unwrap();
        assert_eq!(first, Ok(again));
        assert_eq!((again.granted, again.denied), (nfs4::Mask::READ_DATA, nfs4::Mask::WRITE_DATA));
        assert_eq!(cache.misses(), 1);
    }

    #[test]
    fn everything_that_matters_is_in_the_key() {
        let caller = Credentials::new(1000).intern(&Cred::new(2, 10, &[], Caps::NONE), &[]);
        let base = node(AclId(5 << 64 | 6));
        let key_of = |node: &Node| key(Family::Posix, &caller, node);
        let others = [
            Node { acl: AclId(5 << 64 | 7), ..base },
            Node { acl: AclId(4 << 64 | 6), ..base },
            Node { gid: 11, ..base },
            Node { uid: 2, ..base },
            Node { is_dir: true, ..base },
            Node { mode: Mode::new(0o740), ..base },
        ];
        for other in others {
            assert_ne!(key_of(&base), key_of(&other), "{other:?}");
        }
        assert_ne!(key_of(&base), key(Family::Nfs4, &caller, &base));
        // Of the owner only that it is not the caller, of the mode only rwx.
        assert_eq!(key_of(&base), key_of(&Node { uid: 3, mode: Mode::new(0o7750), ..base }));
    }

    #[test]
    fn an_acl_that_does_not_matter_is_not_loaded() {
        let caller = Credentials::new(1000).intern(&Cred::new(2, 10, &[], Caps::NONE), &[]);
        let cache = DecisionCache::new(0);
        let ask =
            |node: &Node| cache.posix(&caller, node, || Err(Errno::EIO)).map(|decision| decision.each());
        let base = node(AclId(1));
        assert_eq!(ask(&Node { uid: 2, ..base }), Ok(Perm::ALL));
        assert_eq!(ask(&Node { mode: Mode::new(0o704), gid: 11, ..base }), Ok(Perm::READ));
        assert_eq!(ask(&Node { acl: AclId::NONE, ..base }), Ok(Perm::READ | Perm::EXECUTE));
        assert_eq!(ask(&base), Err(Errno::EIO));
    }
}
