//! Empties the trash. Only the mount that cleans up for all mounts does that.
//!
//! The trash has one directory for each hour of each user. The directories of hours that are older than
//! `trash_days` of the volume are deleted. If the volume has limits and is nearly full, those of the oldest
//! hours are deleted early, because removed files must not keep programs from writing.

use client::Emptying;
use meta::Usage;
use ops::{GetUsage, TrashHour};
use types::{Errno, Time};

use crate::caller::BY_KERNEL;
use crate::cleanup::Cleanup;

/// The maximum number of entries that one call tries to delete. Between two calls, the thread pauses.
const ENTRIES_AT_ONCE: u64 = 4096;
/// The oldest directories are deleted early while the volume uses at least this percentage of one of its
/// limits.
const NEARLY_FULL_PERCENT: u128 = 95;

impl Cleanup {
    /// Deletes some of the files that the volume no longer keeps in its trash. Returns whether more are left
    /// to delete.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn empty_trash(&self, now: Time) -> Result<bool, Errno> {
        if !self.base.meta.has_trash()? {
            return Ok(false);
        }
        let days = self.base.meta.volume().trash_days;
        if days == 0 {
            return self.empty_before(TrashHour(i64::MAX), &|| false);
        }
        let kept = i64::try_from(days).unwrap_or(i64::MAX).saturating_mul(24);
        self.empty_before(TrashHour(TrashHour::of(now).0.saturating_sub(kept)), &|| false)
    }

    /// Deletes the directories of the oldest hours while the volume is nearly full. Returns whether a further
    /// call may delete more.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn empty_trash_if_nearly_full(&self) -> Result<bool, Errno> {
        if self.base.meta.volume().trash_days == 0
            || !self.is_nearly_full()?
            || !self.base.meta.has_trash()?
        {
            return Ok(false);
        }
        // If the database does not answer, stop; the next call continues.
        let has_room = || !self.is_nearly_full().unwrap_or(false);
        let before = self.trash_deleted.count();
        let has_more = self.empty_before(TrashHour(i64::MAX), &has_room)?;
        let files = self.trash_deleted.count() - before;
        if files > 0 {
            tracing::info!(
                files,
                "the volume is nearly full: the oldest removed files were deleted before their time"
            );
        }
        Ok(has_more)
    }

    fn empty_before(&self, before: TrashHour, is_enough: &dyn Fn() -> bool) -> Result<bool, Errno> {
        let emptied = self.base.meta.empty_trash(&Emptying {
            before,
            user: None,
            most: ENTRIES_AT_ONCE,
            keeps: &|ino| self.base.open.get(ino).is_some(),
            stop: &|| self.base.stop.ends_housekeeping() || is_enough(),
            deleted: &|_, _| self.base.commits.note_change(),
        })?;
        self.trash_deleted.add(usize::try_from(emptied.entries).unwrap_or(usize::MAX));
        Ok(!emptied.is_done && emptied.entries > 0)
    }

    fn is_nearly_full(&self) -> Result<bool, Errno> {
        let Some((max_inodes, max_blocks)) = self.base.meta.volume().limits() else { return Ok(false) };
        let Usage { inodes, blocks, .. } = self.base.meta.run(&GetUsage, &BY_KERNEL)?;
        let is_near = |used: u64, max: u64| u128::from(used) * 100 >= u128::from(max) * NEARLY_FULL_PERCENT;
        Ok(is_near(inodes, max_inodes) || is_near(blocks, max_blocks))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meta::{Counting, MemEngine, Volume};
    use ops::{Configure, TrashName};
    use types::{Ino, Mode, Name};

    use super::*;
    use crate::fixture::{make, mount, root};
    use crate::{MakeKind, MakeRequest, RenameFlags, Vfs};

    const DAY: i64 = 86_400;

    fn volume(volume: &Volume) -> (Arc<Vfs>, Arc<Counting<MemEngine>>) {
        let engine = Arc::new(Counting::new(MemEngine::default()));
        volume.format(&*engine).unwrap();
        (mount(engine.clone()), engine)
    }

    fn with_trash() -> (Arc<Vfs>, Arc<Counting<MemEngine>>) {
        let (vfs, engine) = volume(&Volume { trash_days: 1, ..Volume::in_memory("v") });
        vfs.meta().set_exclusive(true);
        (vfs, engine)
    }

    fn lookup(vfs: &Vfs, dir: Ino, name: &str) -> Option<Ino> {
        vfs.names.lookup(&root(), dir, name.as_bytes()).unwrap().map(|attr| attr.ino)
    }

    /// The inode with this name in the trash of this hour or of the previous one.
    fn trashed(vfs: &Vfs, uid: u32, ino: Ino, name: &str) -> Option<Ino> {
        let trash = lookup(vfs, Ino::ROOT, ".trash")?;
        let user = lookup(vfs, trash, &uid.to_string())?;
        let hours = [Time::now(), Time::new(Time::now().sec() - 3600, 0)].map(TrashHour::of);
        let name = TrashName::encode(Ino::ROOT, ino, &Name::new(name.as_bytes()).unwrap()).unwrap();
        hours.iter().find_map(|hour| {
            let hour = lookup(vfs, user, &hour.name())?;
            lookup(vfs, hour, std::str::from_utf8(name.as_bytes()).unwrap())
        })
    }

    fn closed(vfs: &Vfs, name: &str) -> Ino {
        let ino = make(vfs, name);
        vfs.files.write(ino, 0, b"text").unwrap();
        vfs.files.close(ino).unwrap();
        ino
    }

    fn open(vfs: &Vfs, ino: Ino) {
        let read = crate::OpenAccess { read: true, write: false, append: false, execute: false };
        vfs.files.open(&root(), ino, read).unwrap();
    }

    fn later(days: i64) -> Time {
        Time::new(Time::now().sec() + days * DAY + 3600, 0)
    }

    #[test]
    fn a_removed_file_is_kept_for_a_day() {
        let (vfs, _) = with_trash();
        let ino = closed(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(lookup(&vfs, Ino::ROOT, "f"), None);
        assert_eq!(trashed(&vfs, 0, ino, "f"), Some(ino));
        let cleanup = &vfs.lifecycle.cleanup;
        assert!(!cleanup.empty_trash(Time::now()).unwrap());
        assert_eq!(trashed(&vfs, 0, ino, "f"), Some(ino));
        open(&vfs, ino);
        assert_eq!(vfs.files.read(ino, 0, 9).unwrap(), &b"text"[..]);
        vfs.files.close(ino).unwrap();
        assert!(!cleanup.empty_trash(later(1)).unwrap());
        assert_eq!(trashed(&vfs, 0, ino, "f"), None);
        assert!(vfs.attributes.getattr(ino).is_err());
        // The directories of the hour and the user are deleted too, and come back with the next removal.
        assert_eq!(lookup(&vfs, Ino::TRASH, "0"), None);
        let next = closed(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(trashed(&vfs, 0, next, "f"), Some(next));
    }

    #[test]
    fn a_file_that_is_open_is_deleted_at_its_last_close() {
        let (vfs, _) = with_trash();
        let ino = make(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(vfs.attributes.getattr(ino).unwrap().nlink, 0);
        assert_eq!(trashed(&vfs, 0, ino, "f"), None);
        vfs.files.close(ino).unwrap();
        assert!(vfs.meta().run(&ops::GetInode(ino), &BY_KERNEL).is_err());
    }

    #[test]
    fn a_removal_takes_one_commit_and_no_read() {
        let (vfs, engine) = with_trash();
        for name in ["a", "b", "c"] {
            closed(&vfs, name);
        }
        vfs.names.unlink(&root(), Ino::ROOT, b"a").unwrap();
        let cost = |run: &dyn Fn()| {
            let before = engine.counts();
            run();
            let after = engine.counts();
            (after.reads - before.reads, after.commits - before.commits)
        };
        assert_eq!(cost(&|| vfs.names.unlink(&root(), Ino::ROOT, b"b").unwrap()), (0, 1));
        let rename = || {
            let made = closed(&vfs, "new");
            let cost = cost(&|| {
                let (from, to) = ((Ino::ROOT, &b"new"[..]), (Ino::ROOT, &b"c"[..]));
                vfs.names.rename(&root(), from, to, RenameFlags::default(), false).unwrap();
            });
            assert_eq!(lookup(&vfs, Ino::ROOT, "c"), Some(made));
            cost
        };
        assert_eq!(rename(), (0, 1));
    }

    #[test]
    fn the_trash_goes_early_if_the_volume_is_nearly_full() {
        let limited = Volume { trash_days: 1, max_inodes: 30, ..Volume::in_memory("v") };
        let (vfs, _) = volume(&limited);
        for n in 0..20 {
            closed(&vfs, &n.to_string());
            vfs.names.unlink(&root(), Ino::ROOT, n.to_string().as_bytes()).unwrap();
        }
        let inodes = || vfs.meta().run(&GetUsage, &BY_KERNEL).unwrap().inodes;
        assert_eq!(inodes(), 2 + 2 + 20);
        let cleanup = &vfs.lifecycle.cleanup;
        assert!(!cleanup.empty_trash_if_nearly_full().unwrap());
        assert_eq!(inodes(), 2 + 2 + 20, "it is not nearly full");
        for n in 0..6 {
            closed(&vfs, &format!("more {n}"));
        }
        assert_eq!(inodes(), 30);
        while cleanup.empty_trash_if_nearly_full().unwrap() {}
        assert!(inodes() < 29, "{}", inodes());
        // A full volume does not keep a user from emptying the trash, or from removing files.
        vfs.names.unlink(&root(), Ino::ROOT, b"more 1").unwrap();
    }

    #[test]
    fn turning_the_trash_off_empties_it() {
        let (vfs, _) = with_trash();
        let ino = closed(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        vfs.meta().run(&Configure { trash_days: Some(0), ..Configure::default() }, &BY_KERNEL).unwrap();
        vfs.meta().refresh_settings().unwrap();
        closed(&vfs, "g");
        vfs.names.unlink(&root(), Ino::ROOT, b"g").unwrap();
        assert_eq!(trashed(&vfs, 0, ino, "f"), Some(ino));
        while vfs.lifecycle.cleanup.empty_trash(Time::now()).unwrap() {}
        assert_eq!(trashed(&vfs, 0, ino, "f"), None);
    }

    #[test]
    fn an_open_file_in_the_trash_is_deleted_only_after_its_close() {
        let (vfs, _) = with_trash();
        let ino = closed(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        open(&vfs, ino);
        let cleanup = &vfs.lifecycle.cleanup;
        assert!(!cleanup.empty_trash(later(2)).unwrap());
        assert_eq!(trashed(&vfs, 0, ino, "f"), Some(ino));
        vfs.files.close(ino).unwrap();
        assert!(!cleanup.empty_trash(later(2)).unwrap());
        assert_eq!(trashed(&vfs, 0, ino, "f"), None);
    }

    #[test]
    fn names_cannot_be_created_in_the_trash() {
        let (vfs, _) = with_trash();
        closed(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        let user = lookup(&vfs, Ino::TRASH, "0").unwrap();
        for parent in [Ino::TRASH, user] {
            let (kind, mode) = (MakeKind::Directory, Mode::new(0o755));
            let request = MakeRequest { parent, name: b"d", kind, mode, umask: 0 };
            assert_eq!(vfs.names.create(&root(), request).unwrap_err(), Errno::ENOENT);
        }
    }

    #[test]
    fn users_see_only_their_own_trash() {
        let (vfs, _) = with_trash();
        closed(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        let dir = lookup(&vfs, Ino::TRASH, "0").unwrap();
        let attr = vfs.attributes.getattr(dir).unwrap();
        assert_eq!((attr.uid, attr.mode, attr.is_in_trash), (0, Mode::new(0o700), true));
        assert_eq!(vfs.attributes.getattr(Ino::TRASH).unwrap().mode, Mode::new(0o711));
    }
}
