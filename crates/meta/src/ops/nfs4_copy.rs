//! POSIX ACLs that programs set on a volume of NFSv4 ACLs, as `cp -p`, `rsync -A` and `tar --acls` do.

use acl::nfs4::{self, Compiled, Mask, Nfs4Acl, Reference};
use acl::posix::PosixAcl;
use types::{AclId, Errno, Ino, Mode};

use super::nfs4::{is_foreign, node_with_acl, put};
use crate::driver::{Ctx, Op, Plan};
use crate::record::Want;
use crate::txn::{Access, Effect};
use crate::view::{Stop, View};

/// Where the permissions come from.
#[derive(Debug)]
pub enum CopiedAcl {
    /// From a file of this volume, whose NFSv4 ACL the copy gets.
    File(Reference),
    /// From another file system.
    Foreign(PosixAcl),
}

/// Gives an inode the permissions that a POSIX ACL stands for ([`nfs4::classify`]): the NFSv4 ACL of the file that it was read
/// from, entry by entry, or one that grants what it grants. In the second case what a directory has for new files alone stays.
/// SGID as with [`SetNfs4Acl`](super::SetNfs4Acl).
///
/// # Errors
/// EOPNOTSUPP on a volume of other ACLs; ESTALE where the inode is gone; EOPNOTSUPP for a symbolic link; EPERM without
/// `WRITE_ACL`; EOPNOTSUPP where the file that the ACL was read from is gone or has another ACL now, or where the caller lacks
/// `READ_ACL` on it; EIO for an ACL that is missing or damaged; E2BIG.
#[derive(Debug)]
pub struct CopyAcl {
    pub ino: Ino,
    pub from: CopiedAcl,
    /// The caller is neither in the owning group nor has `CAP_FSETID`.
    pub kill_sgid: bool,
}

impl Op for CopyAcl {
    type Reply = ();
    const NAME: &'static str = "copyacl";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        let node = node_with_acl(view, ctx, self.ino)?;
        if ctx.asks_nfs4() {
            ctx.admit_mask(view, &node, Mask::WRITE_ACL, Errno::EPERM)?;
        }
        let kill_sgid = node.mode.has(Mode::SGID) && (self.kill_sgid || is_foreign(ctx, &node)?);
        let is_dir = node.kind.is_dir();
        let (mode, stored) = match &self.from {
            CopiedAcl::File(reference) => match source(view, ctx, reference)? {
                Ok(acl) => nfs4::set(node.mode, is_dir, &acl, kill_sgid),
                Err(mode) => {
                    let own = if kill_sgid { node.mode.without(Mode::SGID) } else { node.mode };
                    (own.without(0o777).with(mode.rwx()), None)
                }
            },
            CopiedAcl::Foreign(posix) => {
                let old = view.nfs4_acl(node.access_acl)?;
                let acl = nfs4::from_posix(posix, is_dir);
                let acl = match old.as_deref().map(Compiled::acl) {
                    Some(old) if is_dir => acl.with_heirs_of(old).map_err(Errno::from)?,
                    _ => acl,
                };
                nfs4::set(node.mode, is_dir, &acl, kill_sgid)
            }
        };
        let mut effects = Vec::with_capacity(3);
        let mut access = Access::from(&node);
        access.mode = mode;
        access.access_acl = stored.map_or(AclId::NONE, |acl| put(view, &acl, &mut effects));
        effects.push(Effect::SetAccess { ino: self.ino, access });
        effects.push(super::touch_ctime(self.ino, ctx.now));
        Ok(Plan { reply: (), effects })
    }
}

/// The ACL of the file that the reference names, or its mode where it has none.
fn source(view: &mut View<'_>, ctx: &Ctx<'_>, reference: &Reference) -> Result<Result<Nfs4Acl, Mode>, Stop> {
    view.prefetch([Want::Node(reference.ino)])?;
    let node = match view.inode(reference.ino) {
        Err(Stop::Refused(Errno::ESTALE)) => return Err(Errno::EOPNOTSUPP.into()),
        found => found?,
    };
    if !reference.is_of(&ctx.volume.uuid, node.access_acl) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if ctx.asks_nfs4() {
        // What a copy has, its owner may see.
        ctx.admit_mask(view, &node, Mask::READ_ACL, Errno::EOPNOTSUPP)?;
    }
    let acl = view.nfs4_acl(node.access_acl)?;
    Ok(acl.as_deref().map(Compiled::acl).cloned().ok_or(node.mode))
}
