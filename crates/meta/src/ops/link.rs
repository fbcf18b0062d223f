//! Hard links.

use types::{Errno, FileType, Ino, Name, SessionId};

use crate::driver::{Ctx, Op, Plan, Vouch};
use crate::record::Want;
use crate::txn::Effect;
use crate::view::{Stop, View};

/// Hard links an inode may have.
const MAX_LINKS: u32 = i32::MAX as u32;

/// Gives an inode one more name. Twin of `vfs_link`.
///
/// An orphan of this session may get its first one, if the kernel vouches: it lets only `O_TMPFILE` files pass that were
/// opened without `O_EXCL` (`I_LINKABLE`). Another session's may not, although a kernel that has yet to hear of the unlink
/// lets it pass: that session is about to remove it.
///
/// # Errors
/// ENOENT where the directory is gone; ENOTDIR; ESTALE; EACCES; EEXIST; ENOENT where the inode is gone or has no name
/// left; EPERM for a directory; EMLINK.
#[derive(Debug)]
pub struct Link {
    pub ino: Ino,
    pub parent: Ino,
    pub name: Name,
    /// The session that keeps the inode without a name, if the caller has it open as such a one.
    pub orphan_of: Option<SessionId>,
}

impl Op for Link {
    type Reply = ();
    const NAME: &'static str = "link";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.parent), Want::Node(self.ino)])?;
        let dir = view.dir(self.parent)?;
        ctx.admit_new(view, &dir, FileType::Regular)?;
        if view.edge_unlikely(self.parent, &self.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let node = view.node(self.ino)?.ok_or(Errno::ENOENT)?;
        if node.kind.is_dir() {
            return Err(Errno::EPERM.into());
        }
        let mut effects = Vec::with_capacity(5);
        match view.links(self.ino)? {
            0 if matches!(ctx.vouch, Vouch::Daemon(_) | Vouch::Anyone)
                || self.orphan_of != Some(ctx.session) =>
            {
                return Err(Errno::ENOENT.into());
            }
            0 => effects.push(Effect::DropOrphan { session: ctx.session, ino: self.ino }),
            MAX_LINKS.. => return Err(Errno::EMLINK.into()),
            _ => {}
        }
        effects.extend([
            Effect::PutEdge { parent: self.parent, name: self.name.clone(), ino: self.ino, kind: node.kind },
            Effect::AddLinks { ino: self.ino, delta: 1 },
            super::touch_ctime(self.ino, ctx.now),
            super::touch_dir(self.parent, ctx.now),
        ]);
        Ok(Plan { reply: (), effects })
    }
}
