//! Hard links.

use meta::{Access, Effect, Inode, RecordKey};
use types::{Errno, FileType, Ino, Name, SessionId};

use crate::op::{Authority, Ctx, Op, Plan};
use crate::quota::tag_in;
use crate::view::{PlanStop, View};

/// The largest link count.
const MAX_LINKS: u32 = i32::MAX as u32;

/// Creates a hard link. Equivalent to `vfs_link`. Returns the inode with the link.
///
/// An inode without a name is an orphan of the session that has it open. An orphan of this session may get
/// its first link if the kernel has checked the caller: the kernel allows this only for `O_TMPFILE` files
/// that were opened without `O_EXCL` (`I_LINKABLE`). An orphan of another session must not get a link,
/// because that session is about to remove the inode. A kernel that does not know of the unlink yet would
/// allow it.
///
/// The kernel's check of the inode itself (`may_linkat`, `fs.protected_hardlinks`) is not repeated, although
/// the kernel's attributes may be out of date: the caller could have made the link just before they changed.
///
/// # Errors
/// - ENOENT: the directory does not exist.
/// - ENOTDIR: `parent` is not a directory.
/// - ENOENT: the directory is in the trash.
/// - ESTALE: the kernel checked with outdated attributes.
/// - EACCES: the caller may not add names to the directory.
/// - EEXIST: the name exists.
/// - ENOENT: the inode does not exist.
/// - EPERM: the inode is a directory.
/// - ENOENT: the inode has no links left, and the exception for orphans does not apply.
/// - EMLINK: the inode has the largest number of links.
/// - EXDEV: the directory is in another directory quota than the inode (as `xfs_link` does for project
///   quotas).
#[derive(Debug)]
pub struct Link {
    pub ino: Ino,
    pub parent: Ino,
    pub name: Name,
    /// If the caller has the inode open without a name, the session whose orphan it is.
    pub orphan_of: Option<SessionId>,
}

impl Op for Link {
    type Reply = Inode;
    const NAME: &'static str = "link";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        view.prefetch([RecordKey::Inode(self.parent), RecordKey::Inode(self.ino)])?;
        let dir = view.dir(self.parent)?;
        ctx.check_new(view, &dir, FileType::Regular)?;
        if view.dirent_unlikely(self.parent, &self.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let inode = view.find_inode(self.ino)?.ok_or(Errno::ENOENT)?;
        if inode.kind.is_dir() {
            return Err(Errno::EPERM.into());
        }
        let mut effects = Vec::with_capacity(5);
        let links = view.links(self.ino)?;
        match links {
            0 if matches!(ctx.authority, Authority::Daemon(_) | Authority::Anyone)
                || self.orphan_of != Some(ctx.session) =>
            {
                return Err(Errno::ENOENT.into());
            }
            0 => effects.push(Effect::DropOrphan { session: ctx.session, ino: self.ino }),
            MAX_LINKS.. => return Err(Errno::EMLINK.into()),
            _ => {}
        }
        let quota = tag_in(&dir, &inode);
        if quota.directory() != inode.quota.directory() {
            return Err(Errno::EXDEV.into());
        }
        if quota != inode.quota {
            let access = Access { quota, ..Access::from(&inode) };
            effects.push(Effect::SetAccess { ino: self.ino, access });
        }
        effects.extend([
            Effect::PutDirent {
                parent: self.parent,
                name: self.name.clone(),
                ino: self.ino,
                kind: inode.kind,
            },
            Effect::AddLinks { ino: self.ino, delta: 1 },
            super::set_ctime(self.ino, ctx.now),
            super::set_dir_times(self.parent, ctx.now),
        ]);
        Ok(Plan { reply: Inode { nlink: links + 1, quota, ctime: ctx.now, ..inode }, effects })
    }
}
