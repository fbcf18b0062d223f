//! Rename, with `RENAME_NOREPLACE`, `RENAME_EXCHANGE` and `RENAME_WHITEOUT`.

use meta::{Effect, Inode, RecordKey};
use types::{Errno, FileType, Ino, Mode, Name, Time};

use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::quota::move_between;
use crate::remove::{UnlinkOutcome, Unlinked, Unlinks, drop_inode, drop_link};
use crate::room::require_room;
use crate::trash_names::is_in_trash;
use crate::view::{PlanStop, View};

/// Moves a name. Equivalent to `vfs_rename` and the checks of `do_renameat2`.
///
/// If the new name exists, its inode loses that name in the same commit, as by unlink or rmdir. If the old
/// and new name refer to the same inode, nothing is changed. A directory cannot be moved into itself.
///
/// # Errors
/// - EINVAL: EXCHANGE is combined with NOREPLACE or WHITEOUT.
/// - ENOENT: one of the two parents does not exist.
/// - ENOTDIR: one of the two parents is not a directory.
/// - EPERM: the new parent is in the trash; under EXCHANGE or WHITEOUT, also if the old parent is in the
///   trash.
/// - ENOENT: the old name does not exist.
/// - EIO: a name refers to a missing inode.
/// - EEXIST: under NOREPLACE, the new name exists.
/// - ENOENT: under EXCHANGE, the new name does not exist.
/// - EBUSY: a name is that of the root of the trash.
/// - EIO: the ancestors of a parent form a cycle, because the volume is damaged.
/// - EINVAL: the old name is the new parent or an ancestor of it.
/// - ENOTEMPTY (with EXCHANGE: EINVAL): the new name is the old parent or an ancestor of it.
/// - ESTALE: the kernel checked with outdated attributes.
/// - EACCES: the caller may not remove the old name, add the new name, or move the directory.
/// - EPERM: a parent is sticky, and the caller owns neither it nor the inode.
/// - ENOTDIR: the old name is a directory, but the new one is not.
/// - EISDIR: the new name is a directory, but the old one is not.
/// - ENOTEMPTY: the new name is a directory with entries.
/// - ENOSPC: under WHITEOUT, the volume is full.
/// - EXDEV: the inode would come into another directory quota, and is a directory or has several names
///   ([`move_between`]). Under EXCHANGE this is checked first for the inode of the new name.
#[derive(Debug)]
pub struct Rename {
    pub parent: Ino,
    pub name: Name,
    pub new_parent: Ino,
    pub new_name: Name,
    pub flags: RenameFlags,
    /// Under WHITEOUT, the inode to leave at the old name: a character device 0:0, which overlayfs treats as
    /// a deleted entry.
    pub whiteout: Option<Whiteout>,
    /// An inode that a program on this client has open. It matters only if the new name refers to this inode.
    pub open: Option<Ino>,
}

/// A whiteout to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whiteout {
    /// A number that no inode ever had.
    pub ino: Ino,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    pub no_replace: bool,
    pub exchange: bool,
}

/// The inodes that a rename has moved or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The inode that was moved.
    pub moved: Inode,
    /// Under EXCHANGE, the inode that was moved from the new name to the old one.
    pub exchanged: Option<Inode>,
    /// The inode that lost the new name, because it was replaced.
    pub replaced: Option<Unlinked>,
}

impl Unlinks for Renamed {
    fn unlinked(&self) -> Option<&Unlinked> {
        self.replaced.as_ref()
    }
}

impl Op for Rename {
    type Reply = Renamed;
    const NAME: &'static str = "rename";

    fn bound_by(&self) -> BoundBy {
        BoundBy::caller(self.whiteout.is_some_and(|whiteout| whiteout.uid == 0))
    }

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Renamed>, PlanStop> {
        if self.flags.exchange && (self.flags.no_replace || self.whiteout.is_some()) {
            return Err(Errno::EINVAL.into());
        }
        view.expect([
            RecordKey::Inode(self.parent),
            RecordKey::Inode(self.new_parent),
            RecordKey::Dirent(self.parent, self.name.clone()),
            RecordKey::Dirent(self.new_parent, self.new_name.clone()),
        ]);
        let old_dir = view.dir(self.parent)?;
        let new_dir = view.dir(self.new_parent)?;
        // Only a removal moves an inode into the trash.
        let leaves_another = self.flags.exchange || self.whiteout.is_some();
        if is_in_trash(&new_dir) || is_in_trash(&old_dir) && leaves_another {
            return Err(Errno::EPERM.into());
        }
        let source = self.find(view, self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let target = self.find(view, self.new_parent, &self.new_name)?;
        match &target {
            Some(_) if self.flags.no_replace => return Err(Errno::EEXIST.into()),
            None if self.flags.exchange => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        if [Some(&source), target.as_ref()].into_iter().flatten().any(|inode| inode.ino == Ino::TRASH) {
            return Err(Errno::EBUSY.into());
        }
        self.refuse_cycles(view, &source, target.as_ref())?;
        let mut renamed = Renamed { moved: source, exchanged: None, replaced: None };
        if target.as_ref().is_some_and(|target| target.ino == source.ino) {
            return Ok(Plan::answer(renamed));
        }
        self.check_access(view, ctx, [&old_dir, &new_dir], &source, target.as_ref())?;

        // This is enough for most renames. A longer vector needs the slow path of the allocator.
        let mut effects = Vec::with_capacity(5);
        match target {
            Some(target) if self.flags.exchange => {
                renamed.exchanged = Some(target);
                self.place(&target, self.parent, &self.name, self.new_parent, &mut effects);
                move_between(view, &target, [&new_dir, &old_dir], &mut effects)?;
                effects.push(super::set_ctime(target.ino, ctx.now));
            }
            Some(target) => {
                let replaced = self.replace(view, ctx, &source, (&new_dir, &target), &mut effects)?;
                renamed.replaced = Some(replaced);
                if replaced.outcome == UnlinkOutcome::NoTrash {
                    return Ok(Plan::answer(renamed));
                }
                self.vacate_old_name(ctx, &old_dir, &mut effects);
            }
            None => self.vacate_old_name(ctx, &old_dir, &mut effects),
        }
        if self.whiteout.is_some() {
            require_room(view, ctx)?;
        }
        self.place(&source, self.new_parent, &self.new_name, self.parent, &mut effects);
        move_between(view, &source, [&old_dir, &new_dir], &mut effects)?;
        effects.push(super::set_ctime(source.ino, ctx.now));
        effects.push(super::set_dir_times(self.parent, ctx.now));
        if self.new_parent != self.parent {
            effects.push(super::set_dir_times(self.new_parent, ctx.now));
        }
        Ok(Plan { reply: renamed, effects })
    }
}

impl Rename {
    fn find(&self, view: &mut View<'_>, parent: Ino, name: &Name) -> Result<Option<Inode>, PlanStop> {
        match view.dirent(parent, name)? {
            Some(dirent) => Ok(Some(view.find_inode(dirent.ino)?.ok_or(Errno::EIO)?)),
            None => Ok(None),
        }
    }

    /// Fails if the old name is a directory that is the new parent or an ancestor of it. Also fails if the
    /// new name is a directory that is the old parent or an ancestor of it. Every step up to the root is
    /// guarded, so a concurrent rename cannot close a cycle. Equivalent to the ancestor search of
    /// `lock_rename`.
    fn refuse_cycles(
        &self,
        view: &mut View<'_>,
        source: &Inode,
        target: Option<&Inode>,
    ) -> Result<(), PlanStop> {
        if self.parent == self.new_parent {
            return Ok(());
        }
        if source.kind.is_dir() && is_ancestor(view, source.ino, self.new_parent)? {
            return Err(Errno::EINVAL.into());
        }
        match target {
            Some(target) if target.kind.is_dir() && is_ancestor(view, target.ino, self.parent)? => {
                Err(if self.flags.exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into())
            }
            _ => Ok(()),
        }
    }

    /// Equivalent to `may_delete` and `may_create`, and to the additional check of `vfs_rename`: if a
    /// directory changes its parent, its `..` changes too, so the caller must have write permission on it.
    fn check_access(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        [old_dir, new_dir]: [&Inode; 2],
        source: &Inode,
        target: Option<&Inode>,
    ) -> Result<(), PlanStop> {
        ctx.check_removal(view, old_dir, source)?;
        match target {
            Some(target) => ctx.check_removal(view, new_dir, target)?,
            None => ctx.check_new(view, new_dir, source.kind)?,
        }
        if ctx.checks_nfs4() {
            // Replacing a name means removing one and adding one.
            if target.is_some() {
                ctx.check_new(view, new_dir, source.kind)?;
            }
            if let Some(target) = target.filter(|_| self.flags.exchange) {
                ctx.check_new(view, old_dir, target.kind)?;
            }
        }
        if self.parent != self.new_parent {
            let exchanged = target.filter(|_| self.flags.exchange);
            for moved in [Some(source), exchanged].into_iter().flatten().filter(|n| n.kind.is_dir()) {
                ctx.check_move(view, moved)?;
            }
        }
        Ok(())
    }

    /// Removes the target as unlink and rmdir do, but leaves its directory entry, because [`Rename::place`]
    /// overwrites it. If the outcome is [`UnlinkOutcome::NoTrash`], the effects must not be used.
    fn replace(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        source: &Inode,
        (new_dir, target): (&Inode, &Inode),
        effects: &mut Vec<Effect>,
    ) -> Result<Unlinked, PlanStop> {
        let named = (new_dir, &self.new_name);
        match (source.kind.is_dir(), target.kind.is_dir()) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (false, false) => drop_link(view, ctx, named, target, self.open, effects),
            (true, true) => {
                if !view.is_empty(target.ino) {
                    return Err(Errno::ENOTEMPTY.into());
                }
                let outcome = drop_inode(view, ctx, named, target, effects)?;
                effects.push(Effect::AddLinks { ino: self.new_parent, delta: -1 });
                Ok(Unlinked { inode: *target, outcome })
            }
        }
    }

    /// Removes the old name, or puts a whiteout there.
    fn vacate_old_name(&self, ctx: &Ctx<'_>, old_dir: &Inode, effects: &mut Vec<Effect>) {
        let (parent, name) = (self.parent, self.name.clone());
        match self.whiteout {
            None => effects.push(Effect::DropDirent { parent, name }),
            Some(whiteout) => {
                let inode = whiteout.inode(old_dir, ctx.now);
                effects.push(Effect::PutInode(inode));
                effects.push(Effect::PutDirent { parent, name, ino: inode.ino, kind: inode.kind });
            }
        }
    }

    /// Puts an inode under its new name. If a directory changes its parent, the link of its `..` moves with
    /// it.
    fn place(&self, inode: &Inode, parent: Ino, name: &Name, from: Ino, effects: &mut Vec<Effect>) {
        effects.push(Effect::PutDirent { parent, name: name.clone(), ino: inode.ino, kind: inode.kind });
        if inode.kind.is_dir() && parent != from {
            effects.push(Effect::SetParent { ino: inode.ino, parent });
            effects.push(Effect::AddLinks { ino: from, delta: -1 });
            effects.push(Effect::AddLinks { ino: parent, delta: 1 });
        }
    }
}

impl Whiteout {
    fn inode(&self, dir: &Inode, now: Time) -> Inode {
        Inode {
            uid: self.uid,
            gid: if dir.mode.has(Mode::SGID) { dir.gid } else { self.gid },
            quota: dir.quota,
            ..Inode::new(self.ino, FileType::CharDevice, Mode::default(), now)
        }
    }
}

/// Whether `ino` is `dir` or an ancestor of it.
///
/// Cached parents may be from different moments and then form a cycle. Brent's algorithm (BIT 20, 1980)
/// detects it: a mark moves up after 1, 2, 4, 8, ... steps, and the search has met a cycle when it reaches
/// the mark. If only cached records form the cycle, the guards fail, and the conflict returns the current
/// records. If the guards hold, the volume is damaged. See the test
/// `stale_parents_that_form_a_cycle_are_read_again`.
///
/// # Errors
/// EIO if the parents form a cycle.
fn is_ancestor(view: &mut View<'_>, ino: Ino, dir: Ino) -> Result<bool, PlanStop> {
    let (mut at, mut mark, mut steps) = (dir, dir, 0_u64);
    while at != ino {
        if at == Ino::ROOT {
            return Ok(false);
        }
        at = view.parent_of(at)?;
        if at == mark {
            return Err(Errno::EIO.into());
        }
        steps += 1;
        if steps.is_power_of_two() {
            mark = at;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use meta::Dirent;

    use super::*;
    use crate::known::{Key, OwnReads, Value};
    use crate::testing::Direct;
    use crate::view::STEPS;

    const BESIDE: Ino = Ino(1 << 40);

    fn name() -> Name {
        Name::new(b"moved").unwrap()
    }

    fn dir(ino: Ino, parent: Ino) -> Inode {
        Inode { parent, ..Inode::new(ino, FileType::Directory, Mode::new(0o755), Time::MIN) }
    }

    /// The records of a chain of directories of this depth, and of another directory in the root.
    fn chain(depth: u64) -> OwnReads {
        let dirs = (3..depth + 3).map(|ino| dir(Ino(ino), Ino(ino - 1)));
        let dirs = dirs.chain([dir(Ino::ROOT, Ino::ROOT), dir(Ino(2), Ino::ROOT), dir(BESIDE, Ino::ROOT)]);
        let mut records: OwnReads = dirs.map(|dir| (Key::Inode(dir.ino), Value::Inode(Some(dir)))).collect();
        let dirent = Dirent { ino: BESIDE, kind: FileType::Directory };
        records.insert(Key::Dirent(Ino::ROOT, name()), Value::Dirent(Some(dirent)));
        records.insert(Key::Dirent(Ino(depth + 2), name()), Value::Dirent(None));
        records
    }

    /// How many records and guards a plan examines to move the other directory into the deepest one: first
    /// if a cache has all records, then if the operation has read them itself.
    fn cost(depth: u64) -> [u64; 2] {
        let direct = Direct::new();
        let (records, nothing) = (chain(depth), OwnReads::default());
        let op = Rename {
            parent: Ino::ROOT,
            name: name(),
            new_parent: Ino(depth + 2),
            new_name: name(),
            flags: RenameFlags::default(),
            whiteout: None,
            open: None,
        };
        [(&records, &nothing), (&nothing, &records)].map(|(known, fresh)| {
            STEPS.set(0);
            let plan = op.plan(&mut View::new(known, None, fresh), &direct.ctx()).unwrap();
            assert!(!plan.effects.is_empty());
            STEPS.get()
        })
    }

    #[test]
    fn the_cost_of_a_rename_is_linear_in_the_depth_of_its_new_parent() {
        for (few, many) in cost(100).into_iter().zip(cost(400)) {
            assert!(few >= 100 && many <= 5 * few, "{few} steps, and {many} at four times the depth");
        }
    }
}
