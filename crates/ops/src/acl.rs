//! Setting and removing ACLs.

use acl::posix::{self, PosixAcl};
use meta::{Access, AclKind, Effect, RecordKey};
use types::{AclId, Errno, Ino};

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Which of an inode's two ACLs is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    Access,
    Default,
}

/// Sets an ACL, or removes it (`None`). Removing an ACL that does not exist succeeds. Equivalent to
/// `set_posix_acl`.
///
/// An access ACL sets the mode, and is stored only if it is not equivalent to the mode. `kill_sgid`: the
/// caller is not in the owning group and lacks `CAP_FSETID`.
///
/// # Errors
/// EOPNOTSUPP on a volume without POSIX ACLs and for symbolic links; ESTALE if the inode does not exist;
/// EACCES for a default ACL on anything but a directory (removing it succeeds); EPERM unless the caller owns
/// the inode.
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

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if ctx.volume.acl != AclKind::Posix {
            return Err(Errno::EOPNOTSUPP.into());
        }
        view.prefetch([RecordKey::Inode(self.ino)])?;
        let inode = view.inode(self.ino)?;
        if inode.kind == types::FileType::Symlink {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if self.which == AclType::Default && !inode.kind.is_dir() {
            return match self.acl {
                Some(_) => Err(Errno::EACCES.into()),
                None => Ok(Plan::answer(())),
            };
        }
        ctx.admit_owner(&inode)?;

        let mut effects = Vec::with_capacity(3);
        let mut access = Access::from(&inode);
        match self.which {
            AclType::Access => {
                let kill_sgid = !ctx.keeps_sgid(inode.gid, !self.kill_sgid)?;
                let (mode, stored) = posix::set_access(inode.mode, self.acl.clone(), kill_sgid);
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

/// Adds the effect that stores an ACL, unless this client knows that it is stored, and returns the ACL's id.
pub(super) fn put(view: &View<'_>, acl: &PosixAcl, effects: &mut Vec<Effect>) -> AclId {
    let id = acl.id();
    if !view.is_stored(id) {
        effects.push(Effect::PutAcl { id, text: acl.to_storage().into() });
    }
    id
}
