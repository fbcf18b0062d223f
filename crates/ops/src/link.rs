//! Hard links.

use meta::{Effect, RecordKey};
use types::{Errno, FileType, Ino, Name, SessionId};

use crate::op::{Authority, Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// The largest link count.
const MAX_LINKS: u32 = i32::MAX as u32;

/// Creates a hard link. Equivalent to `vfs_link`.
///
/// An orphan of this session may get its first link if the kernel is an authority: it allows this only for
/// `O_TMPFILE` files that were opened without `O_EXCL` (`I_LINKABLE`). An orphan of another session must not
/// get one, although a kernel that does not know of the unlink yet allows it: that session is about to remove
/// the inode.
///
/// # Errors
/// ENOENT if the directory does not exist; ENOTDIR; ESTALE; EACCES; EEXIST; ENOENT if the inode does not
/// exist or has no links left; EPERM for a directory; EMLINK.
#[derive(Debug)]
pub struct Link {
    pub ino: Ino,
    pub parent: Ino,
    pub name: Name,
    /// The session whose orphan the inode is, if the caller has it open without a name.
    pub orphan_of: Option<SessionId>,
}

impl Op for Link {
    type Reply = ();
    const NAME: &'static str = "link";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        view.prefetch([RecordKey::Inode(self.parent), RecordKey::Inode(self.ino)])?;
        let dir = view.dir(self.parent)?;
        ctx.admit_new(view, &dir, FileType::Regular)?;
        if view.dirent_unlikely(self.parent, &self.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let inode = view.find_inode(self.ino)?.ok_or(Errno::ENOENT)?;
        if inode.kind.is_dir() {
            return Err(Errno::EPERM.into());
        }
        let mut effects = Vec::with_capacity(5);
        match view.links(self.ino)? {
            0 if matches!(ctx.authority, Authority::Daemon(_) | Authority::Anyone)
                || self.orphan_of != Some(ctx.session) =>
            {
                return Err(Errno::ENOENT.into());
            }
            0 => effects.push(Effect::DropOrphan { session: ctx.session, ino: self.ino }),
            MAX_LINKS.. => return Err(Errno::EMLINK.into()),
            _ => {}
        }
        effects.extend([
            Effect::PutDirent {
                parent: self.parent,
                name: self.name.clone(),
                ino: self.ino,
                kind: inode.kind,
            },
            Effect::AddLinks { ino: self.ino, delta: 1 },
            super::touch_ctime(self.ino, ctx.now),
            super::touch_dir(self.parent, ctx.now),
        ]);
        Ok(Plan { reply: (), effects })
    }
}
