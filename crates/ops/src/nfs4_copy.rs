//! POSIX ACLs that programs such as `cp -p`, `rsync -A` and `tar --acls` set on a volume with NFSv4 ACLs.

use acl::nfs4::{self, Compiled, Mask, Nfs4Acl, Reference};
use acl::posix::PosixAcl;
use meta::{Access, Effect};
use types::{AclId, Errno, Ino, Mode};

use super::nfs4::{inode_with_acl, must_drop_sgid, put};
use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// The origin of the permissions.
#[derive(Debug)]
pub enum CopiedAcl {
    /// A file of this volume; the copy gets its NFSv4 ACL.
    File(Reference),
    /// A file on another file system.
    Foreign(PosixAcl),
}

/// Gives an inode the permissions that a POSIX ACL represents ([`nfs4::classify`]). If the POSIX ACL was read
/// from a file of this volume, the inode gets a copy of that file's NFSv4 ACL. Otherwise it gets an NFSv4 ACL
/// that grants the same as the POSIX ACL; a directory then keeps the entries that only new files inherit.
/// SGID is treated as by [`SetNfs4Acl`](super::SetNfs4Acl).
///
/// # Errors
/// - EOPNOTSUPP: the volume does not have NFSv4 ACLs.
/// - ESTALE: the inode does not exist.
/// - EOPNOTSUPP: the inode is a symbolic link.
/// - EPERM: the caller lacks `WRITE_ACL`.
/// - EOPNOTSUPP: the file from which the ACL was read does not exist, or has another ACL now, or the caller
///   lacks `READ_ACL` on it.
/// - EIO: an ACL is missing or damaged.
/// - E2BIG: the ACL has too many entries, together with those that a directory keeps.
#[derive(Debug)]
pub struct CopyAcl {
    pub ino: Ino,
    pub from: CopiedAcl,
    /// The caller is not in the owning group and lacks `CAP_FSETID`.
    pub kill_sgid: bool,
}

impl Op for CopyAcl {
    type Reply = ();
    const NAME: &'static str = "copyacl";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let inode = inode_with_acl(view, ctx, self.ino)?;
        if ctx.checks_nfs4() {
            ctx.check_mask(view, &inode, Mask::WRITE_ACL, Errno::EPERM)?;
        }
        let kill_sgid = inode.mode.has(Mode::SGID) && (self.kill_sgid || must_drop_sgid(ctx, &inode)?);
        let is_dir = inode.kind.is_dir();
        let (mode, stored) = match &self.from {
            CopiedAcl::File(reference) => match source(view, ctx, reference)? {
                Ok(acl) => nfs4::set(inode.mode, is_dir, &acl, kill_sgid),
                Err(mode) => {
                    let own = if kill_sgid { inode.mode.without(Mode::SGID) } else { inode.mode };
                    (own.without(0o777).with(mode.rwx()), None)
                }
            },
            CopiedAcl::Foreign(posix) => {
                let old = view.nfs4_acl(inode.access_acl)?;
                let acl = nfs4::from_posix(posix, is_dir);
                let acl = match old.as_deref().map(Compiled::acl) {
                    Some(old) if is_dir => acl.with_heirs_of(old).map_err(Errno::from)?,
                    _ => acl,
                };
                nfs4::set(inode.mode, is_dir, &acl, kill_sgid)
            }
        };
        let mut effects = Vec::with_capacity(3);
        let mut access = Access::from(&inode);
        access.mode = mode;
        access.access_acl = stored.map_or(AclId::NONE, |acl| put(view, &acl, &mut effects));
        effects.push(Effect::SetAccess { ino: self.ino, access });
        effects.push(super::set_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

/// The ACL of the file that the reference names. If the file has no ACL, its mode (`Err`).
fn source(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    reference: &Reference,
) -> Result<Result<Nfs4Acl, Mode>, PlanStop> {
    let inode = match view.inode(reference.ino) {
        Err(PlanStop::Failed(Errno::ESTALE)) => return Err(Errno::EOPNOTSUPP.into()),
        found => found?,
    };
    if !reference.is_of(&ctx.volume.uuid, inode.access_acl) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if ctx.checks_nfs4() {
        // The owner of the copy can read the copied ACL, so the caller must be allowed to read the original.
        ctx.check_mask(view, &inode, Mask::READ_ACL, Errno::EOPNOTSUPP)?;
    }
    let acl = view.nfs4_acl(inode.access_acl)?;
    Ok(acl.as_deref().map(Compiled::acl).cloned().ok_or(inode.mode))
}
