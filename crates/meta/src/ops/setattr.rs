//! chmod, chown, truncate, utimensat: all that SETATTR carries, in one transaction.

use acl::nfs4::Mask;
use acl::posix::Perm;
use types::{AclId, Caps, Errno, FileType, Ino, Mode, Time};

use crate::driver::{Ctx, Op, Plan};
use crate::ops::write::{kill_priv, make_room};
use crate::record::{Node, Want};
use crate::txn::{Access, Effect};
use crate::view::{Stop, View};
use crate::volume::AclKind;

/// Changes attributes. Twin of `notify_change`.
///
/// A chmod also moves the access ACL (`posix_acl_chmod`). A chown takes SUID, SGID and file capabilities from what is
/// no directory; SGID stays where it does not mean "run as the group" and `keep_sgid`: the caller is in the group or
/// has `CAP_FSETID` (`setattr_should_drop_sgid`). The times are set as given; ctime moves with every change.
///
/// On a volume of NFSv4 ACLs, chmod takes `WRITE_ACL` and does to the ACL what the volume's policy says; chown takes
/// `WRITE_OWNER`, and then only to oneself and one's own groups (`zfs_setattr`), or to be the owner and in the new group;
/// truncation takes `WRITE_DATA`, times `WRITE_ATTRIBUTES`, and the present time `WRITE_DATA` will do for (RFC 8881
/// section 6.2.1.3.1).
///
/// # Errors
/// ESTALE where the inode is gone, or the kernel decided by what no longer holds; EPERM unless owner, where the mode, an
/// owner or a given time is set, and for a new owner or a group that the caller is not in without `CAP_CHOWN`; EACCES without
/// write permission for a size that is not set through an open file, and for times of now unless owner; EISDIR, EINVAL for
/// the size of what is no regular file; ENOSPC where it would grow beyond the volume's limit, which counts holes.
#[derive(Debug, Default)]
pub struct SetAttr {
    pub ino: Ino,
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The times are the present one, `UTIME_NOW`.
    pub is_touch: bool,
    /// The truncation goes through a file that was opened for writing.
    pub is_open: bool,
    pub keep_sgid: bool,
    /// The truncating caller lacks `CAP_FSETID`: SUID, SGID and file capabilities go.
    pub kill_suidgid: bool,
}

impl Op for SetAttr {
    type Reply = ();
    const NAME: &'static str = "setattr";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        self.admit(view, ctx, &node)?;
        let mut effects = Vec::with_capacity(6);
        let mut access = Access::from(&node);
        if self.uid.is_some() || self.gid.is_some() {
            access.uid = self.uid.unwrap_or(node.uid);
            access.gid = self.gid.unwrap_or(node.gid);
            if !node.kind.is_dir() {
                access.mode = kill_priv(node.mode, ctx.keeps_sgid(node.gid, self.keep_sgid)?);
                effects.push(super::write::drop_capabilities(self.ino));
            }
        }
        if let Some(size) = self.size {
            match node.kind {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            make_room(view, ctx, &node, size)?;
            super::range::truncate(self.ino, size, &mut effects);
            if self.kill_suidgid || ctx.is_without_fsetid()? {
                access.mode = kill_priv(access.mode, true);
                effects.push(super::write::drop_capabilities(self.ino));
            }
        }
        if let Some(mode) = self.mode {
            // The kernel does so itself where it checks (`setattr_prepare`).
            let mode = if ctx.keeps_sgid(access.gid, true)? { mode } else { mode.without(Mode::SGID) };
            (access.mode, access.access_acl) = chmod(view, ctx, &node, mode, &mut effects)?;
        }
        if access != Access::from(&node) {
            effects.push(Effect::SetAccess { ino: self.ino, access });
        }
        effects.push(Effect::Touch {
            ino: self.ino,
            atime: self.atime,
            mtime: self.mtime.or(self.size.map(|_| ctx.now)),
            ctime: Some(ctx.now),
        });
        Ok(Plan { reply: (), effects })
    }
}

/// Mode and ACL after a chmod.
fn chmod(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    node: &Node,
    mode: Mode,
    effects: &mut Vec<Effect>,
) -> Result<(Mode, AclId), Stop> {
    if ctx.volume.acl == AclKind::Nfs4 {
        return super::nfs4::chmod(view, ctx, node, mode, effects);
    }
    let acl = view.acl(node.access_acl)?;
    Ok((mode, acl.map_or(AclId::NONE, |acl| super::acl::put(view, &acl.chmod(mode), effects))))
}

impl SetAttr {
    /// Twin of `setattr_prepare`, for callers that the kernel has not checked.
    fn admit(&self, view: &mut View<'_>, ctx: &Ctx<'_>, node: &Node) -> Result<(), Stop> {
        if ctx.asks_nfs4() {
            return self.admit_nfs4(view, ctx, node);
        }
        let is_changed = self.mode.is_some() || self.uid.is_some() || self.gid.is_some();
        let sets_time = self.atime.is_some() || self.mtime.is_some();
        if self.is_open && !is_changed && !sets_time {
            // It was checked when the file was opened.
            return Ok(());
        }
        let Some(cred) = ctx.cred_about(node)? else { return Ok(()) };
        let new_owner = self.uid.is_some_and(|uid| uid != node.uid);
        let foreign_group = self.gid.is_some_and(|gid| gid != node.gid && !cred.in_group(gid));
        if (new_owner || foreign_group) && !cred.caps.has(Caps::CHOWN) {
            return Err(Errno::EPERM.into());
        }
        if is_changed || sets_time && !self.is_touch {
            ctx.admit_owner(node)?;
        } else if sets_time && self.size.is_none() && ctx.admit_owner(node).is_err() {
            ctx.admit(view, node, Perm::WRITE)?;
        }
        // What a directory or a device says to that comes after the permission (`vfs_truncate`).
        if self.size.is_some() && !self.is_open { ctx.admit(view, node, Perm::WRITE) } else { Ok(()) }
    }

    fn admit_nfs4(&self, view: &mut View<'_>, ctx: &Ctx<'_>, node: &Node) -> Result<(), Stop> {
        if self.uid.is_some() || self.gid.is_some() {
            let Some(cred) = ctx.cred()? else { return Ok(()) };
            let is_member = self.gid.is_none_or(|gid| gid == node.gid || cred.in_group(gid));
            let keeps_owner = self.uid.is_none_or(|uid| uid == node.uid);
            let takes = self.uid.is_none_or(|uid| uid == cred.uid);
            let by_ownership = cred.uid == node.uid && keeps_owner && is_member;
            if !by_ownership && !cred.caps.has(Caps::CHOWN) {
                if !(takes && self.gid.is_none_or(|gid| cred.in_group(gid))) {
                    return Err(Errno::EPERM.into());
                }
                ctx.admit_mask(view, node, Mask::WRITE_OWNER, Errno::EPERM)?;
            }
        }
        if self.mode.is_some() {
            ctx.admit_mask(view, node, Mask::WRITE_ACL, Errno::EPERM)?;
        }
        if self.size.is_some() {
            if !self.is_open {
                ctx.admit_mask(view, node, Mask::WRITE_DATA, Errno::EACCES)?;
            }
        } else if self.atime.is_some() || self.mtime.is_some() {
            let by_data =
                self.is_touch && ctx.admit_mask(view, node, Mask::WRITE_DATA, Errno::EACCES) == Ok(());
            if !by_data {
                let refusal = if self.is_touch { Errno::EACCES } else { Errno::EPERM };
                ctx.admit_mask(view, node, Mask::WRITE_ATTRIBUTES, refusal)?;
            }
        }
        Ok(())
    }
}
