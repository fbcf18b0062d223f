//! Setting and removing ACLs.

use acl::idmap::Ids;
use acl::posix::{self, PosixAcl};
use meta::{Access, AclKind, Effect};
use types::{AclId, Errno, Ino};

use crate::known::Acl;
use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Selects one of an inode's two ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    Access,
    Default,
}

/// Sets an ACL, or removes it (`None`). Removing an ACL that does not exist succeeds. Equivalent to
/// `set_posix_acl`.
///
/// An access ACL sets the mode, and is stored only if it is not equivalent to the mode. `kill_sgid` is the
/// kernel's answer whether the SGID bit must be removed, because the caller is not in the owning group and
/// lacks `CAP_FSETID`.
///
/// # Errors
/// - EOPNOTSUPP: the volume does not have POSIX ACLs.
/// - ESTALE: the inode does not exist.
/// - EOPNOTSUPP: the inode is a symbolic link.
/// - EACCES: a default ACL is set on an inode that is not a directory (removing one there succeeds).
/// - ESTALE: the kernel checked with outdated attributes.
/// - EPERM: the caller does not own the inode.
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
        effects.push(super::set_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

/// Runs an operation that replaces or removes an inode's ACL only if each id in this ACL has a mapping on this machine.
/// The caller was not shown the other entries, so those users and groups would lose their permissions unnoticed.
///
/// # Errors
/// Those of the operation; EIO if a POSIX ACL is not stored or corrupt; EOVERFLOW if an id has no mapping here.
#[derive(Debug)]
pub struct KeepsUnmapped<'a, O> {
    pub ino: Ino,
    pub which: AclType,
    pub ids: &'a Ids,
    /// How many entries of an ACL have no mapping here.
    pub unmapped: fn(&Ids, &Acl) -> Result<usize, Errno>,
    pub op: &'a O,
}

impl<O: Op> Op for KeepsUnmapped<'_, O> {
    type Reply = O::Reply;
    const NAME: &'static str = O::NAME;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<O::Reply>, PlanStop> {
        let plan = self.op.plan(view, ctx)?;
        if !self.ids.is_mapping() {
            return Ok(plan);
        }
        let inode = view.inode(self.ino)?;
        let old = match self.which {
            AclType::Access => inode.access_acl,
            AclType::Default => inode.default_acl,
        };
        let old = match view.any_acl(old) {
            // A damaged NFSv4 ACL has nothing to keep.
            Err(PlanStop::Refused(Errno::EIO)) if ctx.volume.acl == AclKind::Nfs4 => None,
            old => old?,
        };
        match old.map_or(Ok(0), |old| (self.unmapped)(self.ids, &old))? {
            0 => Ok(plan),
            _ => Err(Errno::EOVERFLOW.into()),
        }
    }

    fn bound_by(&self) -> BoundBy {
        self.op.bound_by()
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
