//! Setting and removing ACLs.

use acl::idmap::Ids;
use acl::posix::{self, PosixAcl};
use meta::{Access, AclKind, Effect, Guard};
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
/// An access ACL sets the mode, and is stored only if it is not equivalent to the mode. The kernel sets
/// `kill_sgid` if the SGID bit must be removed because the caller is not in the owning group and lacks
/// `CAP_FSETID`.
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
        ctx.check_owner(&inode)?;

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

/// Runs an operation that replaces or removes an inode's ACL, but only if each id in the present ACL has a
/// mapping on this machine. The caller was not shown the entries without a mapping, so their users and groups
/// would lose their permissions unnoticed.
///
/// # Errors
/// Those of the operation; EIO if a POSIX ACL is missing or corrupt; EOVERFLOW if an id has no mapping
/// here.
#[derive(Debug)]
pub struct RequireMappedAcl<'a, O> {
    pub ino: Ino,
    pub which: AclType,
    pub ids: &'a Ids,
    /// How many entries of an ACL have no mapping here.
    pub unmapped: fn(&Ids, &Acl) -> Result<usize, Errno>,
    pub op: &'a O,
}

impl<O: Op> Op for RequireMappedAcl<'_, O> {
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
            // The entries of a damaged NFSv4 ACL cannot be read, so it may be replaced.
            Err(PlanStop::Failed(Errno::EIO)) if ctx.volume.acl == AclKind::Nfs4 => None,
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

/// Ensures that every ACL to which a plan makes an inode refer is stored when the transaction commits, and
/// stays stored as long as the inode refers to it. `limen gc` removes ACLs that it has condemned and that no
/// inode refers to. So a plan either guards that the ACL is stored and not condemned, or stores it again. It
/// stores the ACL again if this operation has read the ACL from the engine, because the engine may have
/// returned it when such a guard failed.
///
/// An ACL that the inode has already needs neither: the guard of the inode's access revision covers it. An
/// ACL that only another inode has, such as the parent, needs one of the two: the other inode may lose the
/// ACL before `limen gc` finds the reference of this inode.
pub(crate) fn keep(view: &mut View<'_>, effects: &mut Vec<Effect>) -> Result<(), PlanStop> {
    let mut ids: Vec<AclId> = Vec::new();
    for (at, effect) in effects.iter().enumerate() {
        let (inode, acls) = match effect {
            Effect::PutInode(inode) => (None, [inode.access_acl, inode.default_acl]),
            Effect::SetAccess { ino, access } => (Some(*ino), [access.access_acl, access.default_acl]),
            _ => continue,
        };
        let is_new = |id: &AclId| !id.is_none() && !ids.contains(id);
        let new: Vec<AclId> = acls.into_iter().filter(is_new).collect();
        if new.is_empty() {
            continue;
        }
        let is_made = |other: &Effect| matches!(other, Effect::PutInode(made) if Some(made.ino) == inode);
        let before = match inode {
            Some(ino) if !effects[..at].iter().any(is_made) => view.find_inode(ino)?,
            _ => None,
        };
        ids.extend(
            new.into_iter().filter(|id| before.is_none_or(|before| before.acls().all(|had| had != *id))),
        );
    }
    for id in ids {
        if effects.iter().any(|effect| matches!(effect, Effect::PutAcl { id: put, .. } if *put == id)) {
            continue;
        }
        if view.is_stored(id) {
            view.guard(Guard::Acl { id });
        } else if let Some(acl) = view.any_acl(id)? {
            effects.push(Effect::PutAcl { id, text: text_of(&acl).into() });
        }
    }
    Ok(())
}

/// The storage form of an ACL.
pub(crate) fn text_of(acl: &Acl) -> String {
    match acl {
        Acl::Posix(acl) => acl.to_storage(),
        Acl::Nfs4(acl) => acl.acl().to_storage(),
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
