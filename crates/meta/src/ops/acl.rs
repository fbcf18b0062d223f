//! Setting and removing ACLs.

use acl::posix::{self, PosixAcl};
use types::{AclId, Errno, Ino};

use crate::driver::{Ctx, Op, Plan};
use crate::record::Want;
use crate::txn::{Access, Effect};
use crate::view::{Stop, View};
use crate::volume::AclKind;

/// Which of an inode's two ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    Access,
    Default,
}

/// Sets an ACL, or with `None` removes it; to remove one that is not there succeeds. Twin of `set_posix_acl`.
///
/// An access ACL sets the mode, and is stored only if it says more than that. `kill_sgid`: the caller is neither in
/// the owning group nor has `CAP_FSETID`.
///
/// # Errors
/// EOPNOTSUPP on a volume without POSIX ACLs and for symbolic links; ESTALE where the inode is gone; EACCES for a default
/// ACL on what is no directory (removing it succeeds); EPERM unless owner.
#[derive(Debug)]
pub struct SetAcl {
    pub ino: Ino,
    pub which: AclType,
    pub acl: Option<PosixAcl>,
    pub kill_sgid: bool,
}

impl Op for SetAcl {
    type Reply = ();
    const NAME: &'static str = "setacl";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        if ctx.volume.acl != AclKind::Posix {
            return Err(Errno::EOPNOTSUPP.into());
        }
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        if node.kind == types::FileType::Symlink {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if self.which == AclType::Default && !node.kind.is_dir() {
            return match self.acl {
                Some(_) => Err(Errno::EACCES.into()),
                None => Ok(Plan::answer(())),
            };
        }
        ctx.admit_owner(&node)?;

        let mut effects = Vec::with_capacity(3);
        let mut access = Access::from(&node);
        match self.which {
            AclType::Access => {
                let kill_sgid = !ctx.keeps_sgid(node.gid, !self.kill_sgid)?;
                let (mode, stored) = posix::set_access(node.mode, self.acl.clone(), kill_sgid);
                access.mode = mode;
                access.access_acl = put_or_none(view, stored.as_ref(), &mut effects);
            }
            AclType::Default => {
                access.default_acl = put_or_none(view, self.acl.as_ref(), &mut effects);
            }
        }
        effects.push(Effect::SetAccess { ino: self.ino, access });
        effects.push(super::touch_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

fn put_or_none(view: &View<'_>, acl: Option<&PosixAcl>, effects: &mut Vec<Effect>) -> AclId {
    acl.map_or(AclId::NONE, |acl| put(view, acl, effects))
}

/// Sees to it that an ACL is stored, and gives its id. One that this client knows to be stored is not sent again.
pub(super) fn put(view: &View<'_>, acl: &PosixAcl, effects: &mut Vec<Effect>) -> AclId {
    let id = acl.id();
    if !view.is_stored(id) {
        effects.push(Effect::PutAcl { id, text: acl.to_storage().into() });
    }
    id
}
