//! Whether a caller may, where the kernel is not the one to say so.
//!
//! Decisions are remembered ([`acl::cache`]), so that one that was met before costs one look, however many groups the
//! caller is in and however long the ACL. What a request says of its caller is asked first: groups and capabilities are
//! found out only where that leaves the question open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use acl::cache::{self, DecisionCache};
use acl::idmap::Squash;
use acl::nfs4::{self, Mask};
pub use acl::posix::Perm;
use acl::posix::{self, Compiled};
use meta::ops::{GetAcl, GetCompiled, Lookup};
use meta::{Failure, Node, Vouch};
use types::{AclId, Errno, Ino};

use crate::caller::{Caller, Identity};
use crate::vfs::{BY_KERNEL, Vfs};

/// Decisions remembered, of 64 bytes each: 8 MiB.
const DECISIONS: usize = 1 << 17;
/// Memory for ACLs that are prepared for deciding. A decision that is remembered needs none.
const MAX_COMPILED_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(crate) struct Gate {
    decisions: DecisionCache,
    compiled: RwLock<Prepared>,
    skipped: AtomicU64,
    checked: AtomicU64,
}

/// ACLs prepared for deciding.
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

/// What became of the check whether a caller may search a directory, where it is this client's to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchCounts {
    /// Lookups in directories that anybody may search: nobody was asked for.
    pub skipped: u64,
    /// Lookups that depended on who the caller is.
    pub checked: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Gate {
            decisions: DecisionCache::new(DECISIONS),
            compiled: RwLock::default(),
            skipped: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        }
    }
}

impl Gate {
    /// Decisions that had to be worked out.
    #[cfg(test)]
    pub(crate) fn decisions_missed(&self) -> u64 {
        self.decisions.misses()
    }
}

impl Vfs {
    /// Whether callers are taken for others than they are to the kernel, which so lets some pass whom it should not: each
    /// operation then checks its caller by itself.
    pub fn is_squashing(&self) -> bool {
        self.ids.squash.is_some()
    }

    /// Whether the kernel does not check anybody, because it takes nobody for whom he is.
    pub fn decides_alone(&self) -> bool {
        self.ids.squash == Some(Squash::All)
    }

    /// What access(2) and chdir(2) ask for, where the kernel does not know.
    ///
    /// # Errors
    /// EACCES; those of [`Vfs::permits`].
    pub fn access(&self, caller: &Caller<'_>, ino: Ino, want: Perm) -> Result<(), Errno> {
        if !self.has_nfs4_acls() {
            return self.admit_posix(caller, &self.node(ino)?, want);
        }
        let masks =
            [(Perm::READ, Mask::READ_DATA), (Perm::WRITE, Mask::WRITE_DATA), (Perm::EXECUTE, Mask::EXECUTE)];
        let wanted = masks.into_iter().filter(|(perm, _)| want.has(*perm));
        self.admit(caller, ino, wanted.fold(Mask::NONE, |all, (_, mask)| all | mask))
    }

    /// Lookups so far by who had to be asked for.
    pub fn search_counts(&self) -> SearchCounts {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        SearchCounts { skipped: count(&self.gate.skipped), checked: count(&self.gate.checked) }
    }

    /// Looks a name up for somebody. Where anybody may search the directory, it is not asked who he is.
    pub(crate) fn look_up(&self, caller: &Caller<'_>, op: &Lookup) -> Result<Option<Node>, Errno> {
        if !self.is_squashing() {
            return Ok(self.meta.run(op, &BY_KERNEL)?);
        }
        if let Ok(found) = self.meta.run(op, &Vouch::Anyone) {
            self.gate.skipped.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        self.gate.checked.fetch_add(1, Ordering::Relaxed);
        Ok(self.meta.run(op, &self.vouch(caller))?)
    }

    /// Refuses what the caller may not do to an inode, where he is taken for somebody else. By the rules of POSIX: on volumes
    /// of NFSv4 ACLs everybody is checked, by [`Vfs::admit`].
    ///
    /// # Errors
    /// EACCES; those of [`Vfs::permits`].
    pub(crate) fn admit_posix(&self, caller: &Caller<'_>, node: &Node, want: Perm) -> Result<(), Errno> {
        if self.has_nfs4_acls() || !self.is_squashing() || self.permits(caller, node, want)? {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Whether the caller may do all of `want` to an inode, by mode, ACL and capabilities: what `generic_permission`
    /// in the kernel would say.
    ///
    /// # Errors
    /// EACCES where it is not known who he is; EIO for an ACL that is missing or damaged; those of the database.
    pub fn permits(&self, caller: &Caller<'_>, node: &Node, want: Perm) -> Result<bool, Errno> {
        let (of, has_acl) = ((node.uid, node.gid, node.mode), !node.access_acl.is_none());
        if posix::is_certain(caller.uid, caller.gid, want, of, has_acl) {
            return Ok(true);
        }
        Ok(self.permits_identity(caller.identity()?, node, want)?)
    }

    /// As [`Vfs::permits`], of somebody of whom everything is known.
    ///
    /// # Errors
    /// [`Failure::Refused`] with EIO for an ACL that is missing or damaged; [`Failure::Engine`].
    pub(crate) fn permits_identity(
        &self,
        identity: &Identity,
        node: &Node,
        want: Perm,
    ) -> Result<bool, Failure> {
        let load = || self.compiled(node.access_acl);
        let decision = self.gate.decisions.posix(&identity.credential, &as_decided(node), load)?;
        Ok(posix::check(decision, identity.caps, want, node.mode, node.kind.is_dir()).is_ok())
    }

    /// Whether somebody may read what the inode holds: its bytes, or its names.
    ///
    /// # Errors
    /// Those of [`Vfs::permits_identity`].
    pub(crate) fn may_read(&self, identity: &Identity, node: &Node) -> Result<bool, Failure> {
        if !self.has_nfs4_acls() {
            return self.permits_identity(identity, node, Perm::READ);
        }
        let load = || self.meta.run(&GetCompiled(node.access_acl), &BY_KERNEL);
        let decision = self.gate.decisions.nfs4(&identity.credential, &as_decided(node), load)?;
        // Reading takes no right to execute.
        let any_execute = false;
        let (caps, is_dir) = (identity.caps, node.kind.is_dir());
        Ok(nfs4::check(decision.granted, caps, Mask::READ_DATA, is_dir, any_execute).is_ok())
    }

    fn compiled(&self, id: AclId) -> Result<Arc<Compiled>, Failure> {
        let known = self.gate.compiled.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = known.acls.get(&id) {
            return Ok(Arc::clone(compiled));
        }
        drop(known);
        let acl = self.meta.run(&GetAcl(id), &BY_KERNEL)?.ok_or(Errno::EIO)?;
        let compiled = Arc::new(Compiled::new((*acl).clone()));
        self.gate.compiled.write().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(&compiled));
        Ok(compiled)
    }
}

fn as_decided(node: &Node) -> cache::Node {
    cache::Node {
        uid: node.uid,
        gid: node.gid,
        mode: node.mode,
        is_dir: node.kind.is_dir(),
        acl: node.access_acl,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use acl::credential::Credentials;
    use acl::idmap::Ids;
    use acl::posix::PosixAcl;
    use meta::ops::{AclType, AtimeMode, SetAcl};
    use types::{Caps, Cred, Mode};

    use super::*;
    use crate::caller::Identify;
    use crate::fixture::{make, root, volume};
    use crate::{AttrChange, Vfs};

    /// Knows one user, and counts how often somebody asks.
    #[derive(Debug)]
    struct Register {
        credentials: &'static Credentials,
        groups: Vec<u32>,
        caps: Caps,
        asked: AtomicU64,
    }

    impl Register {
        fn of(groups: &[u32], caps: Caps) -> Self {
            // Numbers of credentials are unique only among those of one register.
            static CREDENTIALS: OnceLock<Credentials> = OnceLock::new();
            let credentials = CREDENTIALS.get_or_init(|| Credentials::new(100_000));
            Register { credentials, groups: groups.to_vec(), caps, asked: AtomicU64::new(0) }
        }

        fn asked(&self) -> u64 {
            self.asked.swap(0, Ordering::Relaxed)
        }
    }

    impl Identify for Register {
        fn identify(&self, uid: u32, gid: u32, pid: u32) -> Result<Identity, Errno> {
            self.asked.fetch_add(1, Ordering::Relaxed);
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
    fn groups_are_asked_for_only_where_they_matter() {
        let (vfs, _) = volume(AtimeMode::Never);
        let ino = file(&vfs, 0o640);
        let node = vfs.node(ino).unwrap();
        let register = Register::of(&[50], Caps::NONE);
        let may = |uid, gid, want| {
            let caller = Caller::new(&Ids::default(), uid, gid, 1, &register);
            let first = vfs.permits(&caller, &node, want).unwrap();
            assert_eq!(vfs.permits(&caller, &node, want), Ok(first));
            (first, register.asked())
        };
        assert_eq!(may(5, 1, Perm::READ | Perm::WRITE), (true, 0), "the owner");
        assert_eq!(may(6, 50, Perm::READ), (true, 0), "by the primary group");
        assert_eq!(may(6, 1, Perm::READ), (true, 1), "by another one, asked for once a request");
        assert_eq!(may(6, 1, Perm::WRITE), (false, 1));
        let open = vfs.node(file_of_all(&vfs)).unwrap();
        assert_eq!(
            vfs.permits(&Caller::new(&Ids::default(), 9, 9, 0, &register), &open, Perm::READ),
            Ok(true)
        );
        assert_eq!(register.asked(), 0, "anybody may");
        let nobody = Caller::new(&Ids::default(), 6, 1, 0, &register);
        assert_eq!(vfs.permits(&nobody, &node, Perm::READ), Err(Errno::EACCES), "in doubt, refuse");
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
        vfs.change(&set).unwrap();
        let node = vfs.node(ino).unwrap();
        let may = |uid, groups: &[u32], caps, want| {
            let register = Register::of(groups, caps);
            let may = vfs.permits(&Caller::new(&Ids::default(), uid, 1, 1, &register), &node, want);
            (may.unwrap(), register.asked())
        };
        assert_eq!(may(7, &[], Caps::NONE, Perm::READ | Perm::WRITE), (true, 1));
        assert_eq!(may(8, &[70], Caps::NONE, Perm::WRITE), (true, 1));
        assert_eq!(may(8, &[70], Caps::NONE, Perm::READ), (false, 1));
        assert_eq!(may(8, &[50, 70], Caps::NONE, Perm::READ | Perm::WRITE), (false, 1), "one must grant all");
        assert_eq!(may(8, &[], Caps::DAC_READ_SEARCH, Perm::READ), (true, 1));
        assert_eq!(may(8, &[], Caps::DAC_READ_SEARCH, Perm::WRITE), (false, 1));
        let before = engine.counts();
        assert_eq!(may(7, &[], Caps::NONE, Perm::READ), (true, 1));
        assert_eq!((engine.counts() - before).round_trips(), 0);
    }
}
