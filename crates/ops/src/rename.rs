//! Rename, with `RENAME_NOREPLACE`, `RENAME_EXCHANGE` and `RENAME_WHITEOUT`.

use meta::{Effect, Inode, RecordKey};
use types::{Errno, FileType, Ino, Mode, Name, Time};

use crate::op::{Ctx, Op, Plan};
use crate::remove::{Unlinked, drop_link};
use crate::room::require_room;
use crate::view::{PlanStop, View};

/// Moves a name. Equivalent to `vfs_rename` and the checks of `do_renameat2`.
///
/// In the same commit, an inode that had the new name loses it, as by unlink or rmdir. If the old and new
/// name refer to the same inode, nothing is changed. A directory cannot be moved into itself.
///
/// # Errors
/// EINVAL for EXCHANGE with NOREPLACE or WHITEOUT; ENOENT if a directory does not exist; ENOTDIR; ENOENT if
/// the old name does not exist (with EXCHANGE: either name); ESTALE; EEXIST under NOREPLACE; EINVAL if the
/// old name is an ancestor of the new parent; ENOTEMPTY if the new name is an ancestor of the old parent
/// (with EXCHANGE: EINVAL); EACCES; EPERM by a sticky bit; ENOTDIR for a directory onto a non-directory;
/// EISDIR for the reverse; ENOTEMPTY onto a directory with entries. Under WHITEOUT, ENOSPC at the volume's
/// limit.
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
    /// The inode that the caller has open, if that is the one which is replaced.
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

/// What a rename did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The inode that was moved.
    pub moved: Inode,
    /// The inode that was moved the other way, under EXCHANGE.
    pub exchanged: Option<Inode>,
    /// The inode that lost the new name.
    pub replaced: Option<Unlinked>,
}

impl Op for Rename {
    type Reply = Renamed;
    const NAME: &'static str = "rename";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Renamed>, PlanStop> {
        if self.flags.exchange && (self.flags.no_replace || self.whiteout.is_some()) {
            return Err(Errno::EINVAL.into());
        }
        view.prefetch([
            RecordKey::Inode(self.parent),
            RecordKey::Inode(self.new_parent),
            RecordKey::Entry(self.parent, self.name.clone()),
            RecordKey::Entry(self.new_parent, self.new_name.clone()),
        ])?;
        let old_dir = view.dir(self.parent)?;
        let new_dir = view.dir(self.new_parent)?;
        let source = self.find(view, self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        let target = self.find(view, self.new_parent, &self.new_name)?;
        match &target {
            Some(_) if self.flags.no_replace => return Err(Errno::EEXIST.into()),
            None if self.flags.exchange => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        self.refuse_cycles(view, &source, target.as_ref())?;
        let mut renamed = Renamed { moved: source, exchanged: None, replaced: None };
        if target.as_ref().is_some_and(|target| target.ino == source.ino) {
            return Ok(Plan::answer(renamed));
        }
        self.admit(view, ctx, [&old_dir, &new_dir], &source, target.as_ref())?;

        let mut effects = Vec::with_capacity(12);
        match target {
            Some(target) if self.flags.exchange => {
                renamed.exchanged = Some(target);
                self.place(&target, self.parent, &self.name, self.new_parent, &mut effects);
                effects.push(super::touch_ctime(target.ino, ctx.now));
            }
            Some(target) => {
                renamed.replaced = Some(self.replace(view, ctx, &source, &target, &mut effects)?);
                self.vacate_old_name(ctx, &old_dir, &mut effects);
            }
            None => self.vacate_old_name(ctx, &old_dir, &mut effects),
        }
        if self.whiteout.is_some() {
            require_room(view, ctx)?;
        }
        self.place(&source, self.new_parent, &self.new_name, self.parent, &mut effects);
        effects.push(super::touch_ctime(source.ino, ctx.now));
        effects.push(super::touch_dir(self.parent, ctx.now));
        if self.new_parent != self.parent {
            effects.push(super::touch_dir(self.new_parent, ctx.now));
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

    /// Fails if the old name is a directory that is an ancestor of the new parent, or the new name one that
    /// is an ancestor of the old parent. Every step up to the root is guarded, so no concurrent rename can
    /// close a cycle. Equivalent to the ancestor search of `lock_rename`.
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

    /// Equivalent to `may_delete` and `may_create`, and to the additional check of `vfs_rename`: a directory
    /// that changes its parent, and so its `..`, must be writable.
    fn admit(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        [old_dir, new_dir]: [&Inode; 2],
        source: &Inode,
        target: Option<&Inode>,
    ) -> Result<(), PlanStop> {
        ctx.admit_removal(view, old_dir, source)?;
        match target {
            Some(target) => ctx.admit_removal(view, new_dir, target)?,
            None => ctx.admit_new(view, new_dir, source.kind)?,
        }
        if ctx.checks_nfs4() {
            // Replacing a name means removing one and adding one.
            if target.is_some() {
                ctx.admit_new(view, new_dir, source.kind)?;
            }
            if let Some(target) = target.filter(|_| self.flags.exchange) {
                ctx.admit_new(view, old_dir, target.kind)?;
            }
        }
        if self.parent != self.new_parent {
            let exchanged = target.filter(|_| self.flags.exchange);
            for moved in [Some(source), exchanged].into_iter().flatten().filter(|n| n.kind.is_dir()) {
                ctx.admit_move(view, moved)?;
            }
        }
        Ok(())
    }

    /// Removes the inode that has the new name, or its link.
    fn replace(
        &self,
        view: &mut View<'_>,
        ctx: &Ctx<'_>,
        source: &Inode,
        target: &Inode,
        effects: &mut Vec<Effect>,
    ) -> Result<Unlinked, PlanStop> {
        match (source.kind.is_dir(), target.kind.is_dir()) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (false, false) => drop_link(view, ctx, target, self.open, effects),
            (true, true) => {
                if !view.is_empty(target.ino) {
                    return Err(Errno::ENOTEMPTY.into());
                }
                effects.push(Effect::DropInode { ino: target.ino });
                effects.push(Effect::AddLinks { ino: self.new_parent, delta: -1 });
                Ok(Unlinked { inode: *target, fate: super::remove::Fate::Gone })
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

    /// Puts an inode under its new name. A directory's `..` link moves with it.
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
            ..Inode::new(self.ino, FileType::CharDevice, Mode::default(), now)
        }
    }
}

/// Whether `ino` is `dir` or an ancestor of it.
///
/// Cached parents may be from different moments and then form a cycle. Brent's algorithm detects it (BIT 20,
/// 1980): a mark that moves up after 1, 2, 4, 8, ... steps. Then the recorded guards fail, and the conflict
/// returns the current records; if they do not fail, the volume is damaged. See the test
/// `stale_parents_that_form_a_cycle_are_read_again`.
///
/// # Errors
/// EIO for a cycle.
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

    /// The lookups of a plan that moves the other directory into the deepest one: if a cache has all records, and
    /// if the operation has read them itself.
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
            assert!(few >= 100 && many <= 5 * few, "{many} lookups at four times the depth of {few}");
        }
    }
}
