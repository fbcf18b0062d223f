//! chmod, chown, truncate, utimensat: all that SETATTR carries, in one transaction.

use types::{Caps, Errno, FileType, Ino, Mode, Time};

use crate::driver::{Ctx, Op, Plan, Vouch};
use crate::ops::write::{kill_priv, make_room};
use crate::record::{Node, Want};
use crate::txn::{Access, Effect};
use crate::view::{Stop, View};

/// Changes attributes. Twin of `notify_change`.
///
/// A chmod also moves the access ACL (`posix_acl_chmod`). A chown takes SUID, SGID and file capabilities from what is
/// no directory; SGID stays where it does not mean "run as the group" and `keep_sgid`: the caller is in the group or
/// has `CAP_FSETID` (`setattr_should_drop_sgid`). The times are set as given; ctime moves with every change.
///
/// # Errors
/// ESTALE where the inode is gone; EISDIR, EINVAL for the size of what is no regular file; ENOSPC where it would grow
/// beyond the volume's limit, which counts holes; EPERM unless owner.
#[derive(Debug, Default)]
pub struct SetAttr {
    pub ino: Ino,
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
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
        self.admit(ctx, &node)?;
        let mut effects = Vec::with_capacity(6);
        let mut access = Access::from(&node);
        if self.uid.is_some() || self.gid.is_some() {
            access.uid = self.uid.unwrap_or(node.uid);
            access.gid = self.gid.unwrap_or(node.gid);
            if !node.kind.is_dir() {
                access.mode = kill_priv(node.mode, self.keep_sgid);
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
            if self.kill_suidgid {
                access.mode = kill_priv(access.mode, true);
                effects.push(super::write::drop_capabilities(self.ino));
            }
        }
        if let Some(mode) = self.mode {
            access.mode = mode;
            if let Some(acl) = view.acl(node.access_acl)? {
                access.access_acl = super::acl::put(view, &acl.chmod(mode), &mut effects);
            }
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

impl SetAttr {
    /// Twin of `setattr_prepare`, for callers that the kernel has not checked.
    fn admit(&self, ctx: &Ctx<'_>, node: &Node) -> Result<(), Stop> {
        let Vouch::Daemon(cred) = ctx.vouch else { return Ok(()) };
        let new_owner = self.uid.is_some_and(|uid| uid != node.uid);
        let foreign_group = self.gid.is_some_and(|gid| gid != node.gid && !cred.in_group(gid));
        if (new_owner || foreign_group) && !cred.caps.has(Caps::CHOWN) {
            return Err(Errno::EPERM.into());
        }
        ctx.admit_owner(node)
    }
}
