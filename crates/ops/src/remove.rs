//! Removal of names (unlink, rmdir), and of inodes without a name after the last close.

use meta::{Effect, Inode, RecordKey};
use types::{Errno, Ino, Name, SessionId};

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Removes a name that does not refer to a directory. Equivalent to `vfs_unlink`.
///
/// If it was the last name, the inode is removed too, unless it is `open`: then it becomes an orphan of this
/// session until [`Reap`] removes it.
///
/// # Errors
/// ENOENT if the directory does not exist; ENOTDIR; ENOENT; ESTALE; EACCES; EPERM by the sticky bit; EISDIR.
#[derive(Debug)]
pub struct Unlink {
    pub parent: Ino,
    pub name: Name,
    /// The inode that the caller has open, if that is the one which loses its name.
    pub open: Option<Ino>,
}

/// What happened to the inode that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlinked {
    /// The inode before the operation.
    pub inode: Inode,
    pub fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The inode has other names.
    Linked,
    /// The inode has no name, but is open.
    Orphan,
    Gone,
}

impl Op for Unlink {
    type Reply = Unlinked;
    const NAME: &'static str = "unlink";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Unlinked>, PlanStop> {
        view.prefetch([RecordKey::Inode(self.parent), RecordKey::Entry(self.parent, self.name.clone())])?;
        let dir = view.dir(self.parent)?;
        let dirent = view.dirent(self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let inode = view.find_inode(dirent.ino)?.ok_or(Errno::EIO)?;
        ctx.admit_removal(view, &dir, &inode)?;
        if inode.kind.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        let mut effects = vec![Effect::DropDirent { parent: self.parent, name: self.name.clone() }];
        let unlinked = drop_link(view, ctx, &inode, self.open, &mut effects)?;
        effects.push(super::touch_dir(self.parent, ctx.now));
        Ok(Plan { reply: unlinked, effects })
    }
}

/// Removes one link of an inode that is not a directory.
pub(super) fn drop_link(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    inode: &Inode,
    open: Option<Ino>,
    effects: &mut Vec<Effect>,
) -> Result<Unlinked, PlanStop> {
    let ino = inode.ino;
    let fate = match (view.links(ino)?, open) {
        (2.., _) => Fate::Linked,
        (_, Some(open)) if open == ino => Fate::Orphan,
        _ => Fate::Gone,
    };
    match fate {
        Fate::Gone => effects.push(Effect::DropInode { ino }),
        Fate::Linked | Fate::Orphan => {
            effects.push(Effect::AddLinks { ino, delta: -1 });
            effects.push(super::touch_ctime(ino, ctx.now));
        }
    }
    if fate == Fate::Orphan {
        effects.push(Effect::PutOrphan { session: ctx.session, ino });
    }
    Ok(Unlinked { inode: *inode, fate })
}

/// Removes an empty directory. Equivalent to `vfs_rmdir`.
///
/// # Errors
/// ENOENT if the parent does not exist; ENOTDIR; ENOENT; ESTALE; EACCES; EPERM by the sticky bit; ENOTDIR if
/// the name does not refer to a directory; ENOTEMPTY.
#[derive(Debug)]
pub struct Rmdir {
    pub parent: Ino,
    pub name: Name,
}

impl Op for Rmdir {
    /// The directory before the operation.
    type Reply = Inode;
    const NAME: &'static str = "rmdir";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        view.prefetch([RecordKey::Inode(self.parent), RecordKey::Entry(self.parent, self.name.clone())])?;
        let dir = view.dir(self.parent)?;
        let dirent = view.dirent(self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let inode = view.find_inode(dirent.ino)?.ok_or(Errno::EIO)?;
        ctx.admit_removal(view, &dir, &inode)?;
        if !inode.kind.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if !view.is_empty(inode.ino) {
            return Err(Errno::ENOTEMPTY.into());
        }
        let effects = vec![
            Effect::DropDirent { parent: self.parent, name: self.name.clone() },
            Effect::DropInode { ino: inode.ino },
            Effect::AddLinks { ino: self.parent, delta: -1 },
            super::touch_dir(self.parent, ctx.now),
        ];
        Ok(Plan { reply: inode, effects })
    }
}

/// Removes an orphan: an inode without a name that `session` had open.
#[derive(Debug)]
pub struct Reap {
    pub session: SessionId,
    pub ino: Ino,
}

impl Op for Reap {
    type Reply = ();
    const NAME: &'static str = "reap";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let mut effects = Vec::with_capacity(2);
        self.reap(view, &mut effects)?;
        Ok(Plan { reply: (), effects })
    }
}

impl Reap {
    fn reap(&self, view: &mut View<'_>, effects: &mut Vec<Effect>) -> Result<(), PlanStop> {
        view.prefetch([RecordKey::Inode(self.ino)])?;
        effects.push(Effect::DropOrphan { session: self.session, ino: self.ino });
        if view.find_inode(self.ino)?.is_some() && view.links(self.ino)? == 0 {
            effects.push(Effect::DropInode { ino: self.ino });
        }
        Ok(())
    }
}

/// As [`Reap`], for several orphans in one commit.
#[derive(Debug)]
pub struct ReapAll<'a>(pub &'a [Reap]);

impl Op for ReapAll<'_> {
    type Reply = ();
    const NAME: &'static str = "reap all";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        view.prefetch(self.0.iter().map(|reap| RecordKey::Inode(reap.ino)))?;
        let mut effects = Vec::with_capacity(2 * self.0.len());
        self.0.iter().try_for_each(|reap| reap.reap(view, &mut effects))?;
        Ok(Plan { reply: (), effects })
    }
}
