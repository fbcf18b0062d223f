//! Whether a caller may, where the kernel is not the one to say so.
//!
//! Decisions are remembered ([`acl::cache`]), so that one that was met before costs one look, however many groups the
//! caller is in and however long the ACL. What a request says of its caller is asked first: groups and capabilities are
//! found out only where that leaves the question open.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use acl::cache::{self, DecisionCache};
use acl::posix::{self, Compiled, Perm};
use meta::Node;
use meta::ops::GetAcl;
use types::{AclId, Errno};

use crate::caller::{Caller, Identity};
use crate::vfs::{BY_KERNEL, Vfs};

/// Decisions remembered, of 64 bytes each: 8 MiB.
const DECISIONS: usize = 1 << 17;
/// ACLs held that are prepared for deciding. A decision that is remembered needs none.
const MAX_COMPILED: usize = 4096;

#[derive(Debug)]
pub(crate) struct Gate {
    decisions: DecisionCache,
    compiled: RwLock<HashMap<AclId, Arc<Compiled>>>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { decisions: DecisionCache::new(DECISIONS), compiled: RwLock::default() }
    }
}

impl Vfs {
    /// Whether the caller may do all of `want` to an inode, by mode, ACL and capabilities: what `generic_permission`
    /// in the kernel would say.
    ///
    /// # Errors
    /// EACCES where it is not known who he is; EIO for an ACL that is missing or damaged; those of the database.
    pub fn permits(&self, caller: &Caller<'_>, node: &Node, want: Perm) -> Result<bool, Errno> {
        if is_plainly_granted(caller, node, want) {
            return Ok(true);
        }
        self.permits_identity(caller.identity()?, node, want)
    }

    /// As [`Vfs::permits`], of somebody of whom everything is known.
    pub(crate) fn permits_identity(
        &self,
        identity: &Identity,
        node: &Node,
        want: Perm,
    ) -> Result<bool, Errno> {
        let load = || self.compiled(node.access_acl);
        let decision = self.gate.decisions.posix(&identity.credential, &as_decided(node), load)?;
        let of = posix::Node {
            uid: node.uid,
            gid: node.gid,
            mode: node.mode,
            is_dir: node.kind.is_dir(),
            acl: None,
        };
        Ok(decision.allows(want) || posix::overrides(identity.caps, want, &of))
    }

    /// # Errors
    /// EIO for an ACL that is missing or damaged.
    fn compiled(&self, id: AclId) -> Result<Arc<Compiled>, Errno> {
        let known = self.gate.compiled.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = known.get(&id) {
            return Ok(Arc::clone(compiled));
        }
        drop(known);
        let acl = self.meta.run(&GetAcl(id), &BY_KERNEL)?.ok_or(Errno::EIO)?;
        let compiled = Arc::new(Compiled::new((*acl).clone()));
        let mut known = self.gate.compiled.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_COMPILED {
            known.clear();
        }
        known.insert(id, Arc::clone(&compiled));
        Ok(compiled)
    }
}

/// Whether user and primary group are enough to grant it. An ACL leaves all but the owner to be found out.
fn is_plainly_granted(caller: &Caller<'_>, node: &Node, want: Perm) -> bool {
    let rwx = node.mode.rwx();
    let by_mode = |shift: u32| Perm::new(rwx >> shift).has(want);
    if caller.uid == node.uid {
        return by_mode(6);
    }
    // With clear group bits the ACL is not consulted.
    if !node.access_acl.is_none() && rwx & 0o070 != 0 {
        return false;
    }
    by_mode(3) && (caller.gid == node.gid || by_mode(0))
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
    use acl::posix::PosixAcl;
    use meta::ops::{AclType, AtimeMode, SetAcl};
    use types::{Caps, Cred, Ino, Mode};

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
            let caller = Caller::new(uid, gid, 1, &register);
            let first = vfs.permits(&caller, &node, want).unwrap();
            assert_eq!(vfs.permits(&caller, &node, want), Ok(first));
            (first, register.asked())
        };
        assert_eq!(may(5, 1, Perm::READ | Perm::WRITE), (true, 0), "the owner");
        assert_eq!(may(6, 50, Perm::READ), (true, 0), "by the primary group");
        assert_eq!(may(6, 1, Perm::READ), (true, 1), "by another one, asked for once a request");
        assert_eq!(may(6, 1, Perm::WRITE), (false, 1));
        let open = vfs.node(file_of_all(&vfs)).unwrap();
        assert_eq!(vfs.permits(&Caller::new(9, 9, 0, &register), &open, Perm::READ), Ok(true));
        assert_eq!(register.asked(), 0, "anybody may");
        let nobody = Caller::new(6, 1, 0, &register);
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
            let may = vfs.permits(&Caller::new(uid, 1, 1, &register), &node, want);
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
