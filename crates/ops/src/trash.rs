//! The trash: removed files are kept for a while.
//!
//! If the volume has a trash ([`Volume::trash_days`](meta::Volume::trash_days)), an inode that would be
//! deleted with its last name gets a name in the trash instead, in the same transaction ([`keep`]). The names
//! are `/.trash/UID/YYYY-MM-DD-HH/PARENT-INO-NAME`: the uid of the inode, the hour of the removal in UTC, the
//! numbers of its directory and of itself, and its name. `/.trash` is [`Ino::TRASH`]. The root has no stored
//! entry for it, so [`View::dirent`] resolves the name. The directories of a uid and of its hours belong to
//! that user and have the mode 0700. So ordinary mode bits protect the trash, and users work there with the
//! ordinary operations.
//!
//! Everything in the trash counts in one directory quota, [`QuotaId::TRASH`], which has no limits. So the tag
//! of an inode says whether it is in the trash. A file that is removed there is deleted.
//!
//! A plan must know the directory of the hour without a search. The client keeps a few in
//! [`TrashDirs`](crate::TrashDirs). If the directory is not known or does not exist, the operation does
//! nothing and replies [`UnlinkOutcome::NoTrash`](crate::UnlinkOutcome::NoTrash). The caller then creates the
//! directory ([`MakeTrash`]), and runs the operation again.

use meta::{DIR_BYTES, Effect, Inode, Quota, QuotaTag};
use types::{Errno, FileType, Ino, Mode, Name, QuotaId};

use crate::clone::Prune;
use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::quota::move_between;
use crate::trash_names::{TRASH_NAME, TrashHour, TrashName, is_in_trash};
use crate::view::{PlanStop, View};

/// Whether an inode that is to be kept can be moved into the trash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Into this directory of an hour.
    In { hour: Ino },
    /// The directory of the hour is not known or does not exist. The caller must drop its effects.
    NoDirectory,
}

/// Moves an inode, whose only name is `name` in `dir`, into the trash. The caller removes or replaces this
/// name, and if the inode is a directory, has checked that it is empty. Returns `None` if the inode is to be
/// deleted. That is so if the volume has no trash; if the inode is in the trash already; if it is neither a
/// regular file nor a symbolic link nor a directory; if it is the directory of a quota, which could not get
/// its tag back; or if the name for it in the trash is taken.
pub(crate) fn keep(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    (dir, name): (&Inode, &Name),
    inode: &Inode,
    effects: &mut Vec<Effect>,
) -> Result<Option<Kept>, PlanStop> {
    let Some(known) = ctx.trash.filter(|_| ctx.volume.trash_days > 0) else { return Ok(None) };
    let ino = inode.ino;
    let is_kept = matches!(inode.kind, FileType::Regular | FileType::Symlink | FileType::Directory);
    if !is_kept || is_in_trash(dir) || is_in_trash(inode) || is_of_quota(view, inode)? {
        return Ok(None);
    }
    let Some(hour) = known.get(inode.uid, TrashHour::of(ctx.now)) else { return Ok(Some(Kept::NoDirectory)) };
    let Some(hour_dir) = view.find_inode(hour)?.filter(|dir| dir.kind.is_dir() && is_in_trash(dir)) else {
        return Ok(Some(Kept::NoDirectory));
    };
    let name = TrashName::encode(dir.ino, ino, name)?;
    // The name is taken only if the owner of the inode has given it to another file: then the inode is
    // deleted.
    if view.dirent_unlikely(hour, &name)?.is_some() {
        return Ok(None);
    }
    effects.push(Effect::PutDirent { parent: hour, name, ino, kind: inode.kind });
    if inode.kind.is_dir() {
        effects.push(Effect::SetParent { ino, parent: hour });
        effects.push(Effect::AddLinks { ino: hour, delta: 1 });
    }
    move_between(view, inode, [dir, &hour_dir], effects)?;
    effects.push(super::set_ctime(ino, ctx.now));
    effects.push(super::set_dir_times(hour, ctx.now));
    Ok(Some(Kept::In { hour }))
}

/// Whether the inode is the directory of a quota.
fn is_of_quota(view: &mut View<'_>, inode: &Inode) -> Result<bool, PlanStop> {
    let id = inode.quota.directory();
    if !inode.kind.is_dir() || id == QuotaId(0) {
        return Ok(false);
    }
    Ok(view.directory_quota(id)?.is_some_and(|rule| rule.root == inode.ino))
}

/// Finds or creates the directory of a uid in the trash, and in it the directory of an hour. Replies with the
/// numbers of both, in this order.
///
/// # Errors
/// ENOENT if the volume has no trash; EIO if one of the names refers to a missing inode; ENOTDIR if one does
/// not refer to a directory in the trash.
#[derive(Debug)]
pub struct MakeTrash {
    pub uid: u32,
    pub hour: TrashHour,
    /// Numbers that no inode ever had, for those of the two directories that do not exist.
    pub inos: [Ino; 2],
}

impl Op for MakeTrash {
    type Reply = [Ino; 2];
    const NAME: &'static str = "make trash";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<[Ino; 2]>, PlanStop> {
        let root = view.dir(Ino::TRASH)?;
        let mut effects = Vec::new();
        let names = [self.uid.to_string(), self.hour.name()];
        let (mut parent, mut is_new, mut found) = (root.ino, false, self.inos);
        for (name, ino) in names.iter().zip(&mut found) {
            let name = Name::new(name.as_bytes()).map_err(Errno::from)?;
            let there = if is_new { None } else { view.dirent(parent, &name)? };
            if let Some(dirent) = there {
                let dir = view.find_inode(dirent.ino)?.ok_or(Errno::EIO)?;
                if !dir.kind.is_dir() || !is_in_trash(&dir) {
                    return Err(Errno::ENOTDIR.into());
                }
                *ino = dirent.ino;
            } else {
                let quota = QuotaTag::new(QuotaId::TRASH, root.quota.owners());
                let dir = Inode {
                    uid: self.uid,
                    size: DIR_BYTES,
                    parent,
                    quota,
                    // A directory of a uid that is created here gets a directory of an hour as its first
                    // entry.
                    nlink: if parent == root.ino { 3 } else { 2 },
                    ..Inode::new(*ino, FileType::Directory, Mode::new(0o700), ctx.now)
                };
                effects.push(Effect::PutInode(dir));
                effects.push(Effect::PutDirent { parent, name, ino: *ino, kind: dir.kind });
                if !is_new {
                    effects.push(Effect::AddLinks { ino: parent, delta: 1 });
                    effects.push(super::set_dir_times(parent, ctx.now));
                }
                is_new = true;
            }
            parent = *ino;
        }
        Ok(Plan { reply: found, effects })
    }

    /// A removal must not fail because a quota is full.
    fn bound_by(&self) -> BoundBy {
        BoundBy::NoQuota
    }
}

/// Runs an operation that may remove a name, with or without the trash.
#[derive(Debug)]
pub struct WithTrash<'a, O> {
    pub op: &'a O,
    /// If false, files that the operation removes are deleted.
    pub is_on: bool,
}

impl<O: Op> Op for WithTrash<'_, O> {
    type Reply = O::Reply;
    const NAME: &'static str = O::NAME;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<O::Reply>, PlanStop> {
        match self.is_on {
            true => self.op.plan(view, ctx),
            false => self.op.plan(view, &Ctx { trash: None, ..*ctx }),
        }
    }

    fn bound_by(&self) -> BoundBy {
        self.op.bound_by()
    }
}

/// Deletes entries of a directory in the trash, and their inodes. A directory among them must be empty.
///
/// # Errors
/// EPERM if the directory is not in the trash; ENOTEMPTY if a directory among the entries is not empty.
#[derive(Debug)]
pub struct EmptyTrash<'a>(pub Prune<'a>);

impl Op for EmptyTrash<'_> {
    type Reply = ();
    const NAME: &'static str = "empty trash";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let Some(dir) = view.find_inode(self.0.dir)? else { return Ok(Plan::answer(())) };
        if !is_in_trash(&dir) {
            return Err(Errno::EPERM.into());
        }
        self.0.plan(view, ctx)
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::NoQuota
    }
}

/// Adds the effects that give the volume a trash, unless it has one.
///
/// # Errors
/// EEXIST if the root directory has an entry with the name of the trash.
pub(crate) fn found(view: &mut View<'_>, ctx: &Ctx<'_>, effects: &mut Vec<Effect>) -> Result<(), PlanStop> {
    let name = Name::new(TRASH_NAME).map_err(Errno::from)?;
    match view.dirent(Ino::ROOT, &name)? {
        Some(dirent) if dirent.ino == Ino::TRASH => return Ok(()),
        Some(_) => return Err(Errno::EEXIST.into()),
        None => {}
    }
    let owners = view.setting(Quota::OWNERS_SETTING)?.is_some();
    effects.extend(meta::Volume::trash_root(ctx.now, owners));
    // There is no such entry. But clients and their kernels may have cached that the name does not exist, and
    // this effect invalidates that.
    effects.push(Effect::DropDirent { parent: Ino::ROOT, name });
    effects.push(super::set_dir_times(Ino::ROOT, ctx.now));
    Ok(())
}
