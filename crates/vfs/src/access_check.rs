//! Access checks that the kernel cannot make.
//!
//! [`AccessCheck`] holds cached decisions and compiled ACLs, and the mapping of ids between this machine and
//! the volume, which says whether callers are squashed. It depends on [`Meta`] only. No lock is held while
//! records are read.
//!
//! Decisions are cached ([`acl::cache`]), so a repeated decision costs one lookup, however many groups the
//! caller has and however long the ACL is. The check first uses what the request itself says about the
//! caller: groups and capabilities are read only if that does not decide.
//!
//! Most accesses are granted whatever groups the caller is in. This order of the checks then saves a read of
//! `/proc`, which has the groups and capabilities. For a caller that has user id 0 or a capability, they are
//! not cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use acl::cache::DecisionCache;
use acl::idmap::{Ids, Squash};
use acl::nfs4::{self, Mask};
pub use acl::posix::Perm;
use acl::posix::{self, Compiled};
use client::{Failure, Meta};
use host::HashMap;
use meta::{AclKind, Inode};
use ops::{Authority, CheckAccess, CountedLookup, GetAcl, GetDeciding, Lookup};
use types::{AclId, Errno, Ino};

use crate::caller::{BY_KERNEL, Caller, Identity};

/// Cached decisions, of 64 bytes each: 8 MiB.
const DECISIONS: usize = 1 << 17;
/// The limit of memory for compiled ACLs. A cached decision needs no compiled ACL.
const MAX_COMPILED_BYTES: usize = 16 << 20;

/// Access checks.
#[derive(Debug)]
pub struct AccessCheck {
    meta: Arc<Meta>,
    /// The mapping of ids between this machine and the volume.
    pub ids: Ids,
    decisions: DecisionCache,
    compiled: RwLock<Prepared>,
    skipped: AtomicU64,
    checked: AtomicU64,
}

/// Compiled ACLs.
#[derive(Debug, Default)]
struct Prepared {
    acls: HashMap<AclId, Arc<Compiled>>,
    bytes: usize,
}

impl Prepared {
    fn insert(&mut self, compiled: Arc<Compiled>) {
        let bytes = size_of_val(&*compiled) + compiled.heap_bytes();
        if self.bytes + bytes > MAX_COMPILED_BYTES {
            *self = Prepared::default();
        }
        if self.acls.insert(compiled.id(), compiled).is_none() {
            self.bytes += bytes;
        }
    }
}

/// Counts of lookups on volumes with NFSv4 ACLs, and on mounts that squash callers. On other mounts only the
/// kernel checks search permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchCounts {
    /// Lookups in directories that everyone may search: no credential matters.
    pub skipped: u64,
    /// Lookups in other directories. The caller's credential decides; the kernel evaluates it if it can.
    pub checked: u64,
}

impl AccessCheck {
    pub(crate) fn new(meta: &Arc<Meta>, ids: Ids) -> Self {
        AccessCheck {
            meta: Arc::clone(meta),
            ids,
            decisions: DecisionCache::new(DECISIONS),
            compiled: RwLock::default(),
            skipped: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        }
    }

    /// Decisions that were not cached.
    #[cfg(test)]
    pub(crate) fn decisions_missed(&self) -> u64 {
        self.decisions.misses()
    }

    pub(crate) fn has_nfs4_acls(&self) -> bool {
        self.meta.volume().acl == AclKind::Nfs4
    }

    /// Whether the kernel's check of a caller is sufficient.
    pub(crate) fn kernel_check_suffices(&self) -> bool {
        !self.has_nfs4_acls() && !self.is_squashing()
    }

    /// The authority for a caller that the kernel has checked with current attributes.
    pub(crate) fn authority<'a>(&self, caller: &'a Caller<'_>) -> Authority<'a> {
        if self.kernel_check_suffices() { BY_KERNEL } else { Authority::Both(caller) }
    }

    /// Fails if the NFSv4 ACL of an inode does not grant the caller `want`. Does nothing on volumes without
    /// NFSv4 ACLs.
    ///
    /// # Errors
    /// Those of [`CheckAccess`].
    pub(crate) fn check_nfs4(&self, caller: &Caller<'_>, ino: Ino, want: Mask) -> Result<(), Errno> {
        if self.has_nfs4_acls() {
            Ok(self.meta.run(&CheckAccess { ino, want }, &self.authority(caller))?)
        } else {
            Ok(())
        }
    }

    /// Whether callers are squashed, that is, act with other ids than those by which the kernel knows them.
    /// The kernel may then grant access that it should not, so each operation checks its caller itself.
    pub fn is_squashing(&self) -> bool {
        self.ids.squash.is_some()
    }

    /// Whether all callers are squashed, so that the kernel checks none of them.
    pub fn is_squashing_all(&self) -> bool {
        self.ids.squash == Some(Squash::All)
    }

    /// How many lookups needed the caller's credential so far, and how many did not.
    pub fn search_counts(&self) -> SearchCounts {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        SearchCounts { skipped: count(&self.skipped), checked: count(&self.checked) }
    }

    /// Looks up a name for a caller. If everyone may search the directory, the caller's credential is not
    /// read.
    pub(crate) fn look_up(&self, caller: &Caller<'_>, op: &Lookup) -> Result<Option<Inode>, Errno> {
        if self.kernel_check_suffices() {
            return Ok(self.meta.run(op, &BY_KERNEL)?);
        }
        if !self.is_squashing() {
            let (found, passes) = self.meta.run(&CountedLookup(op), &BY_KERNEL)?;
            let count = if passes { &self.skipped } else { &self.checked };
            count.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        if let Ok(found) = self.meta.run(op, &Authority::Anyone) {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        self.checked.fetch_add(1, Ordering::Relaxed);
        Ok(self.meta.run(op, &self.authority(caller))?)
    }

    /// Checks the access of a squashed caller by the rules of POSIX. On volumes with NFSv4 ACLs,
    /// [`Self::check_nfs4`] checks all callers instead.
    ///
    /// # Errors
    /// Those of [`Self::permits`]; EACCES if the caller lacks a permission in `want`.
    pub(crate) fn check_posix(&self, caller: &Caller<'_>, inode: &Inode, want: Perm) -> Result<(), Errno> {
        if self.has_nfs4_acls() || !self.is_squashing() || self.permits(caller, inode, want)? {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Whether mode, ACL and capabilities grant the caller all of `want` on an inode, like
    /// `generic_permission` in the kernel.
    ///
    /// # Errors
    /// EACCES if the caller's credential cannot be read; EIO if the ACL is missing or damaged; those of the
    /// database.
    pub(crate) fn permits(&self, caller: &Caller<'_>, inode: &Inode, want: Perm) -> Result<bool, Errno> {
        let (of, has_acl) = ((inode.uid, inode.gid, inode.mode), !inode.access_acl.is_none());
        if posix::is_certain(caller.uid, caller.gid, want, of, has_acl) {
            return Ok(true);
        }
        Ok(self.permits_identity(caller.identity()?, inode, want)?)
    }

    /// As [`Self::permits`], for a caller whose credential is known.
    ///
    /// # Errors
    /// [`Failure::Operation`] with EIO if the ACL is missing or damaged; [`Failure::Engine`] if the database
    /// fails.
    pub(crate) fn permits_identity(
        &self,
        identity: &Identity,
        inode: &Inode,
        want: Perm,
    ) -> Result<bool, Failure> {
        self.meta.read_acl_of(inode, |inode| {
            let load = || self.compiled(inode.access_acl);
            let decision = self.decisions.posix(&identity.credential, &inode.as_decided(0), load)?;
            Ok(posix::check(decision, identity.caps, want, inode.mode, inode.kind.is_dir()).is_ok())
        })
    }

    /// Whether a caller may read the inode's content: its data, or its names.
    ///
    /// # Errors
    /// Those of [`Self::permits_identity`].
    pub(crate) fn may_read(&self, identity: &Identity, inode: &Inode) -> Result<bool, Failure> {
        if !self.has_nfs4_acls() {
            return self.permits_identity(identity, inode, Perm::READ);
        }
        let sid_rules = &self.meta.volume().sid_rules;
        self.meta.read_acl_of(inode, |inode| {
            let load = || self.meta.run(&GetDeciding { acl: inode.access_acl, sid_rules }, &BY_KERNEL);
            let of = inode.as_decided(sid_rules.version());
            let decision = self.decisions.nfs4(&identity.credential, &of, load)?;
            // This flag matters only for execute permission, which reading does not need.
            let any_execute = false;
            let (caps, is_dir) = (identity.caps, inode.kind.is_dir());
            Ok(nfs4::check(decision.granted, caps, Mask::READ_DATA, is_dir, any_execute).is_ok())
        })
    }

    fn compiled(&self, id: AclId) -> Result<Arc<Compiled>, Failure> {
        let known = host::read(&self.compiled);
        if let Some(compiled) = known.acls.get(&id) {
            return Ok(Arc::clone(compiled));
        }
        drop(known);
        let acl = self.meta.run(&GetAcl(id), &BY_KERNEL)?.ok_or(Errno::EIO)?;
        let compiled = Arc::new(Compiled::new((*acl).clone()));
        host::write(&self.compiled).insert(Arc::clone(&compiled));
        Ok(compiled)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use acl::credential::Credentials;
    use acl::idmap::Ids;
    use acl::posix::PosixAcl;
    use ops::{AclType, AtimeMode, SetAcl};
    use types::{Caps, Cred, Mode};

    use super::*;
    use crate::caller::IdentitySource;
    use crate::fixture::{make, root, volume};
    use crate::{AttrChange, Vfs};

    /// Resolves each caller to the same groups, and counts its calls.
    #[derive(Debug)]
    struct CountingSource {
        credentials: &'static Credentials,
        groups: Vec<u32>,
        caps: Caps,
        reads: AtomicU64,
    }

    impl CountingSource {
        fn of(groups: &[u32], caps: Caps) -> Self {
            // All sources share one [`Credentials`], so equal callers have the same credential id.
            static CREDENTIALS: OnceLock<Credentials> = OnceLock::new();
            let credentials = CREDENTIALS.get_or_init(|| Credentials::new(100_000));
            CountingSource { credentials, groups: groups.to_vec(), caps, reads: AtomicU64::new(0) }
        }

        fn reads(&self) -> u64 {
            self.reads.swap(0, Ordering::Relaxed)
        }
    }

    impl IdentitySource for CountingSource {
        fn identify(&self, uid: u32, gid: u32, pid: u32) -> Result<Identity, Errno> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if pid == 0 {
                return Err(Errno::EACCES);
            }
            let cred = Cred::new(uid, gid, &self.groups, self.caps);
            Ok(Identity { credential: self.credentials.intern(&cred, &[]), caps: self.caps })
        }
    }

    fn file(vfs: &Vfs, mode: u32) -> Ino {
        let ino = make(vfs, "f");
        let change =
            AttrChange { mode: Some(Mode::new(mode)), uid: Some(5), gid: Some(50), ..Default::default() };
        vfs.setattr(&root(), ino, change).unwrap();
        ino
    }

    #[test]
    fn groups_are_read_only_if_they_matter() {
        let (vfs, _) = volume(AtimeMode::Never);
        let ino = file(&vfs, 0o640);
        let inode = vfs.attributes.inode(ino).unwrap();
        let source = CountingSource::of(&[50], Caps::NONE);
        let may = |uid, gid, want| {
            let caller = Caller::new(&Ids::default(), uid, gid, 1, &source);
            let first = vfs.access.permits(&caller, &inode, want).unwrap();
            assert_eq!(vfs.access.permits(&caller, &inode, want), Ok(first));
            (first, source.reads())
        };
        assert_eq!(may(5, 1, Perm::READ | Perm::WRITE), (true, 0), "the owner");
        assert_eq!(may(6, 50, Perm::READ), (true, 0), "by the primary group");
        assert_eq!(may(6, 1, Perm::READ), (true, 1), "by another group, which is read once per request");
        assert_eq!(may(6, 1, Perm::WRITE), (false, 1));
        let open = vfs.attributes.inode(file_of_all(&vfs)).unwrap();
        assert_eq!(
            vfs.access.permits(&Caller::new(&Ids::default(), 9, 9, 0, &source), &open, Perm::READ),
            Ok(true)
        );
        assert_eq!(source.reads(), 0, "everyone may read");
        let nobody = Caller::new(&Ids::default(), 6, 1, 0, &source);
        assert_eq!(
            vfs.access.permits(&nobody, &inode, Perm::READ),
            Err(Errno::EACCES),
            "denied if the groups are unknown"
        );
    }

    fn file_of_all(vfs: &Vfs) -> Ino {
        let ino = make(vfs, "g");
        let mode = Some(Mode::new(0o644));
        vfs.setattr(&root(), ino, AttrChange { mode, ..Default::default() }).unwrap();
        ino
    }

    #[test]
    fn acls_and_capabilities_are_considered() {
        let (vfs, engine) = volume(AtimeMode::Never);
        let ino = file(&vfs, 0o640);
        let acl = PosixAcl::from_storage("u::rw-,u:7:rw-,g::r--,g:70:-w-,m::rw-,o::---").unwrap();
        let set = SetAcl { ino, which: AclType::Access, acl: Some(acl), kill_sgid: false };
        vfs.commits.change(&set).unwrap();
        let inode = vfs.attributes.inode(ino).unwrap();
        let may = |uid, groups: &[u32], caps, want| {
            let source = CountingSource::of(groups, caps);
            let may = vfs.access.permits(&Caller::new(&Ids::default(), uid, 1, 1, &source), &inode, want);
            (may.unwrap(), source.reads())
        };
        assert_eq!(may(7, &[], Caps::NONE, Perm::READ | Perm::WRITE), (true, 1));
        assert_eq!(may(8, &[70], Caps::NONE, Perm::WRITE), (true, 1));
        assert_eq!(may(8, &[70], Caps::NONE, Perm::READ), (false, 1));
        assert_eq!(
            may(8, &[50, 70], Caps::NONE, Perm::READ | Perm::WRITE),
            (false, 1),
            "one entry must grant everything"
        );
        assert_eq!(may(8, &[], Caps::DAC_READ_SEARCH, Perm::READ), (true, 1));
        assert_eq!(may(8, &[], Caps::DAC_READ_SEARCH, Perm::WRITE), (false, 1));
        let before = engine.counts();
        assert_eq!(may(7, &[], Caps::NONE, Perm::READ), (true, 1));
        assert_eq!((engine.counts() - before).round_trips(), 0);
    }
}
