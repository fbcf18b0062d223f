//! Removal of names (unlink and rmdir), and of inodes that have no name after their last close.

use meta::{Effect, Inode, RecordKey};
use types::{Errno, FileType, Ino, Name, SessionId};

use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::trash::{Kept, keep};
use crate::view::{PlanStop, View};

/// Removes a name that does not refer to a directory. Equivalent to `vfs_unlink`.
///
/// If the inode has no other name, it is removed too, or gets a name in the trash ([`UnlinkOutcome`]). But if
/// it is open (`open`), it becomes an orphan of this session until [`Reap`] removes it.
///
/// # Errors
/// - ENOENT: `parent` does not exist.
/// - ENOTDIR: `parent` is not a directory.
/// - ENOENT: the name does not exist.
/// - EIO: the name refers to a missing inode.
/// - ESTALE: the kernel checked with outdated attributes.
/// - EACCES: the caller may not remove names from the directory.
/// - EPERM: the directory is sticky, and the caller owns neither it nor the inode.
/// - EISDIR: the name refers to a directory.
#[derive(Debug)]
pub struct Unlink {
    pub parent: Ino,
    pub name: Name,
    /// An inode that a program on this client has open. It matters only if the name refers to this inode.
    pub open: Option<Ino>,
}

/// The inode that lost a name, and whether it still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlinked {
    /// The inode before the operation.
    pub inode: Inode,
    pub outcome: UnlinkOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlinkOutcome {
    /// The inode still has other names.
    Linked,
    /// The inode has no name, but is open.
    Orphan,
    /// The inode was removed.
    Removed,
    /// The inode got a name in the trash, in the directory `hour`.
    Trashed { hour: Ino },
    /// Nothing was changed: the directory of the trash for the inode is not known. See [`crate::MakeTrash`].
    NoTrash,
}

impl Op for Unlink {
    type Reply = Unlinked;
    const NAME: &'static str = "unlink";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Unlinked>, PlanStop> {
        view.expect([RecordKey::Inode(self.parent), RecordKey::Dirent(self.parent, self.name.clone())]);
        let dir = view.dir(self.parent)?;
        let dirent = view.dirent(self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let inode = view.find_inode(dirent.ino)?.ok_or(Errno::EIO)?;
        ctx.check_removal(view, &dir, &inode)?;
        if inode.kind.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        let mut effects = Vec::with_capacity(4);
        effects.push(Effect::DropDirent { parent: self.parent, name: self.name.clone() });
        let unlinked = drop_link(view, ctx, (&dir, &self.name), &inode, self.open, &mut effects)?;
        if unlinked.outcome == UnlinkOutcome::NoTrash {
            return Ok(Plan::answer(unlinked));
        }
        effects.push(super::set_dir_times(self.parent, ctx.now));
        Ok(Plan { reply: unlinked, effects })
    }
}

/// Removes one link of an inode that is not a directory: the name `named`, given with its directory. If the
/// outcome is [`UnlinkOutcome::NoTrash`], the effects must not be used.
pub(super) fn drop_link(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    named: (&Inode, &Name),
    inode: &Inode,
    open: Option<Ino>,
    effects: &mut Vec<Effect>,
) -> Result<Unlinked, PlanStop> {
    let ino = inode.ino;
    let outcome = match (view.links(ino)?, open) {
        (2.., _) => UnlinkOutcome::Linked,
        (_, Some(open)) if open == ino => UnlinkOutcome::Orphan,
        _ => drop_inode(view, ctx, named, inode, effects)?,
    };
    match outcome {
        UnlinkOutcome::Removed | UnlinkOutcome::Trashed { .. } | UnlinkOutcome::NoTrash => {}
        UnlinkOutcome::Linked | UnlinkOutcome::Orphan => {
            effects.push(Effect::AddLinks { ino, delta: -1 });
            effects.push(super::set_ctime(ino, ctx.now));
        }
    }
    if outcome == UnlinkOutcome::Orphan {
        effects.push(Effect::PutOrphan { session: ctx.session, ino });
    }
    Ok(Unlinked { inode: *inode, outcome })
}

/// Moves an inode that loses its last name into the trash, or deletes it.
pub(super) fn drop_inode(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    named: (&Inode, &Name),
    inode: &Inode,
    effects: &mut Vec<Effect>,
) -> Result<UnlinkOutcome, PlanStop> {
    Ok(match keep(view, ctx, named, inode, effects)? {
        Some(Kept::In { hour }) => UnlinkOutcome::Trashed { hour },
        Some(Kept::NoDirectory) => UnlinkOutcome::NoTrash,
        None => {
            effects.push(Effect::DropInode { ino: inode.ino });
            UnlinkOutcome::Removed
        }
    })
}

/// The reply of an operation that may remove a name.
pub trait Unlinks {
    /// The inode that lost a name; `None` if none did, or if it got another name instead.
    fn unlinked(&self) -> Option<&Unlinked>;
}

impl Unlinks for Unlinked {
    fn unlinked(&self) -> Option<&Unlinked> {
        Some(self)
    }
}

/// Runs an [`Unlink`] or [`Rename`](crate::Rename) only if it deletes no regular file except `file`, and
/// moves no other one into the trash. The caller has checked whether this file is open, but another client
/// may give the name to another file at any time.
///
/// # Errors
/// Those of the operation; EAGAIN if it would delete another regular file or move it into the trash. The
/// caller then looks up the name again.
#[derive(Debug)]
pub struct DeleteOnlyFile<'a, O> {
    pub file: Option<Ino>,
    pub op: &'a O,
}

impl<O: Op<Reply: Unlinks>> Op for DeleteOnlyFile<'_, O> {
    type Reply = O::Reply;
    const NAME: &'static str = O::NAME;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<O::Reply>, PlanStop> {
        let plan = self.op.plan(view, ctx)?;
        match plan.reply.unlinked() {
            Some(Unlinked { inode, outcome: UnlinkOutcome::Removed | UnlinkOutcome::Trashed { .. } })
                if inode.kind == FileType::Regular && Some(inode.ino) != self.file =>
            {
                Err(Errno::EAGAIN.into())
            }
            _ => Ok(plan),
        }
    }

    fn bound_by(&self) -> BoundBy {
        self.op.bound_by()
    }
}

/// Removes an empty directory. Equivalent to `vfs_rmdir`.
///
/// # Errors
/// - ENOENT, ENOTDIR, ENOENT, EIO, ESTALE, EACCES, EPERM: as [`Unlink`].
/// - ENOTDIR: the name does not refer to a directory.
/// - EBUSY: the directory is the root of the trash.
/// - ENOTEMPTY: the directory has entries.
#[derive(Debug)]
pub struct Rmdir {
    pub parent: Ino,
    pub name: Name,
}

impl Op for Rmdir {
    type Reply = Unlinked;
    const NAME: &'static str = "rmdir";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Unlinked>, PlanStop> {
        view.expect([RecordKey::Inode(self.parent), RecordKey::Dirent(self.parent, self.name.clone())]);
        let dir = view.dir(self.parent)?;
        let dirent = view.dirent(self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let inode = view.find_inode(dirent.ino)?.ok_or(Errno::EIO)?;
        ctx.check_removal(view, &dir, &inode)?;
        if !inode.kind.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if inode.ino == Ino::TRASH {
            return Err(Errno::EBUSY.into());
        }
        if !view.is_empty(inode.ino) {
            return Err(Errno::ENOTEMPTY.into());
        }
        let mut effects = Vec::with_capacity(4);
        effects.push(Effect::DropDirent { parent: self.parent, name: self.name.clone() });
        let outcome = drop_inode(view, ctx, (&dir, &self.name), &inode, &mut effects)?;
        let unlinked = Unlinked { inode, outcome };
        if outcome == UnlinkOutcome::NoTrash {
            return Ok(Plan::answer(unlinked));
        }
        effects.push(Effect::AddLinks { ino: self.parent, delta: -1 });
        effects.push(super::set_dir_times(self.parent, ctx.now));
        Ok(Plan { reply: unlinked, effects })
    }
}

/// Removes an orphan, which is an inode without a name that `session` had open. If the inode has a name
/// again, only the record of the orphan is removed.
///
/// # Errors
/// ENOTEMPTY if the inode is a directory with entries: the root of an unfinished copy
/// ([`BeginClone`](crate::BeginClone)). [`Prune`](crate::Prune) removes the entries.
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
        effects.push(Effect::DropOrphan { session: self.session, ino: self.ino });
        if let Some(inode) = view.find_inode(self.ino)?
            && view.links(self.ino)? == 0
        {
            if inode.kind.is_dir() && !view.is_empty(self.ino) {
                return Err(Errno::ENOTEMPTY.into());
            }
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
