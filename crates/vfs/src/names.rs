//! Names: lookup, and the operations that create, rename or remove a name.
//!
//! [`Names`] holds the numbers for new inodes. It depends on [`Files`], because an open file that loses its
//! last name is deleted only at its last close. Lock order: an unlink guard of the table of open files is
//! taken first, and no second one while it is held.

use std::sync::Arc;

use meta::{Counter, Inode};
use ops::{
    DeleteOnlyFile, GetByHandle, GetInode, GetParent, Link, Lookup, Make, MakeKind, MakeOrphan, MakeTrash,
    ReadLink, Rename, RenameFlags, Rmdir, TRASH_NAME, TrashHour, Unlink, UnlinkOutcome, Unlinked, Unlinks,
    Whiteout, WithTrash,
};
use types::{Caps, Errno, FileType, Ino, Mode, Name, Time};

use crate::attr::Attr;
use crate::base::Base;
use crate::caller::{BY_KERNEL, Caller};
use crate::files::Files;
use crate::numbers::NumberAllocator;
use crate::open::UnlinkGuard;

/// The longest target of a symbolic link in bytes: `PATH_MAX` without the NUL.
const MAX_TARGET_BYTES: usize = 4095;
/// How often a removal of a name is tried. It begins again if another mount has given the name to another
/// file, or if the directory of the trash did not exist.
const MAX_ROUNDS: usize = 64;

/// A request to create an inode.
#[derive(Clone, Debug)]
pub struct MakeRequest<'a> {
    pub parent: Ino,
    pub name: &'a [u8],
    pub kind: MakeKind,
    pub mode: Mode,
    pub umask: u32,
}

/// The names of a volume.
#[derive(Debug)]
pub struct Names {
    base: Arc<Base>,
    files: Arc<Files>,
    /// The numbers of new inodes.
    inos: NumberAllocator,
}

impl Names {
    pub(crate) fn new(base: &Arc<Base>, files: &Arc<Files>) -> Self {
        let inos = NumberAllocator::new(&base.meta, Counter::Ino);
        Names { base: Arc::clone(base), files: Arc::clone(files), inos }
    }

    /// Looks up a name in a directory; `None` if it is free.
    ///
    /// # Errors
    /// ENAMETOOLONG if the name is too long; those of [`Lookup`].
    pub fn lookup(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<Option<Attr>, Errno> {
        let inode = self.base.access.look_up(caller, &Lookup { parent, name: Name::new(bytes)? })?;
        Ok(inode.map(|inode| self.base.attributes.attr_of(&inode)))
    }

    /// The directory with this path from the root of the volume. No access is checked, and symbolic links are
    /// not followed.
    ///
    /// # Errors
    /// ENOENT if a name does not exist; ENOTDIR if it is not a directory; ENAMETOOLONG or EINVAL if it is not
    /// a valid name; EIO if the database fails.
    pub fn directory(&self, path: &[u8]) -> Result<Ino, Errno> {
        let mut dir = Ino::ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let lookup = Lookup { parent: dir, name: Name::new(name)? };
            let inode = self.base.meta.run(&lookup, &BY_KERNEL)?.ok_or(Errno::ENOENT)?;
            if !inode.kind.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            dir = inode.ino;
        }
        Ok(dir)
    }

    /// Resolves a file handle whose inode the kernel no longer holds, LOOKUP of `.` (`fuse_get_dentry`).
    ///
    /// # Errors
    /// Those of [`Self::check_handle`] and [`GetByHandle`].
    pub fn lookup_by_handle(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.check_handle(caller)?;
        Ok(self.base.attributes.attr_of(&self.base.meta.run(&GetByHandle(ino), &BY_KERNEL)?))
    }

    /// The parent of a directory, LOOKUP of `..` (`fuse_get_parent`). Only file handles need it: on a path,
    /// the kernel knows the parents.
    ///
    /// # Errors
    /// Those of [`Self::check_handle`] and [`GetParent`].
    pub fn lookup_parent(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.check_handle(caller)?;
        Ok(self.base.attributes.attr_of(&self.base.meta.run(&GetParent(ino), &BY_KERNEL)?))
    }

    /// Checks that the caller may look up an inode by its file handle. A handle has no path on which search
    /// permissions are checked, so the caller needs `CAP_DAC_READ_SEARCH`. The kernel checks the capability
    /// too, but it does not know which callers are squashed, and has only a projection of NFSv4 ACLs.
    ///
    /// # Errors
    /// EACCES if the caller lacks the capability, or if its credential cannot be read.
    fn check_handle(&self, caller: &Caller<'_>) -> Result<(), Errno> {
        if self.base.access.kernel_check_suffices() || caller.identity()?.caps.has(Caps::DAC_READ_SEARCH) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Creates an inode with a name.
    ///
    /// # Errors
    /// EPERM for a device if a squashed caller lacks `CAP_MKNOD`; ENOENT if the target of a symbolic link is
    /// empty; ENAMETOOLONG if the target or the name is too long; EOVERFLOW if the caller has no id in the
    /// volume; those of [`Make`].
    pub fn make(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        Ok(self.base.attributes.shown(&self.make_inode(caller, request)?))
    }

    fn make_inode(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Inode, Errno> {
        match &request.kind {
            // The kernel checks `CAP_MKNOD`, but not of the identity that the caller is squashed to.
            MakeKind::CharDevice(_) | MakeKind::BlockDevice(_)
                if self.base.access.is_squashing() && !caller.identity()?.caps.has(Caps::MKNOD) =>
            {
                return Err(Errno::EPERM);
            }
            MakeKind::Symlink(target) if target.is_empty() => return Err(Errno::ENOENT),
            MakeKind::Symlink(target) if target.len() > MAX_TARGET_BYTES => return Err(Errno::ENAMETOOLONG),
            _ => {}
        }
        let held = self.base.caches.held_by_kernel();
        let parent = request.parent;
        let make = self.new_inode(caller, request)?;
        self.base.change_inodes(caller, held, &make, [parent])
    }

    /// Creates a regular file and opens it.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn create(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        let inode = self.make_inode(caller, request)?;
        let file = self.files.add_handle(inode.ino);
        if !self.base.meta.is_exclusive() {
            file.set_created(&inode);
        }
        Ok(self.base.attributes.shown(&inode))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of [`ReadLink`].
    pub fn readlink(&self, ino: Ino) -> Result<Arc<[u8]>, Errno> {
        Ok(self.base.meta.run(&ReadLink(ino), &BY_KERNEL)?)
    }

    /// Creates a hard link; a file opened with `O_TMPFILE` gets its first name.
    ///
    /// # Errors
    /// ENAMETOOLONG if the name is too long; those of [`Link`].
    pub fn link(&self, caller: &Caller<'_>, ino: Ino, parent: Ino, bytes: &[u8]) -> Result<Attr, Errno> {
        let held = self.base.caches.held_by_kernel();
        // Read the session before the file: files are marked as lost before there is a new session.
        let session = self.base.meta.session();
        let file = self.base.open.get(ino);
        let is_orphan = file.as_ref().is_some_and(|file| file.is_orphan() && !file.is_fenced());
        let orphan_of = is_orphan.then_some(session);
        let link = Link { ino, parent, name: Name::new(bytes)?, orphan_of };
        let linked = self.base.change_inodes(caller, held, &link, [parent])?;
        if let Some(file) = file {
            file.set_orphan(false);
        }
        self.base.attributes.after_change(&linked)
    }

    /// Removes a name of an inode that is not a directory. An inode without further names moves into the
    /// trash if the volume has one and the file is not open on this mount. Otherwise it is deleted now, or at
    /// its last close.
    ///
    /// # Errors
    /// ENAMETOOLONG if the name is too long; those of [`Unlink`].
    pub fn unlink(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        let held = self.base.caches.held_by_kernel();
        let name = Name::new(bytes)?;
        let unlink = |file, open| {
            let op = Unlink { parent, name: name.clone(), open };
            let op = DeleteOnlyFile { file, op: &op };
            self.trashing(|is_on| {
                self.base.change_inodes(caller, held, &WithTrash { op: &op, is_on }, [parent])
            })
        };
        self.remove_name(|| self.unlink_guard(parent, &name), unlink)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENAMETOOLONG if the name is too long; those of [`Rmdir`].
    pub fn rmdir(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        let held = self.base.caches.held_by_kernel();
        let op = Rmdir { parent, name: Name::new(bytes)? };
        let done = self.trashing(|is_on| {
            self.base.change_inodes(caller, held, &WithTrash { op: &op, is_on }, [parent])
        })?;
        if done.outcome == UnlinkOutcome::Removed {
            self.base.attributes.keep_deleted(&done.inode);
        }
        Ok(())
    }

    /// Renames or exchanges, `renameat2(2)`. With `whiteout`, a whiteout replaces the old name.
    ///
    /// # Errors
    /// ENAMETOOLONG if a name is too long; EOVERFLOW if a whiteout is requested and the caller has no id in
    /// the volume; those of [`Rename`].
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        (parent, old): (Ino, &[u8]),
        (new_parent, new): (Ino, &[u8]),
        flags: RenameFlags,
        whiteout: bool,
    ) -> Result<(), Errno> {
        let held = self.base.caches.held_by_kernel();
        let (name, new_name) = (Name::new(old)?, Name::new(new)?);
        let whiteout = if whiteout {
            let (uid, gid) = caller.owner()?;
            Some(Whiteout { ino: Ino(self.inos.take()?), uid, gid })
        } else {
            None
        };
        let guard = || if flags.exchange { Ok(None) } else { self.unlink_guard(new_parent, &new_name) };
        let rename = |file, open| {
            let (name, new_name) = (name.clone(), new_name.clone());
            let op = Rename { parent, name, new_parent, new_name, flags, whiteout, open };
            let op = DeleteOnlyFile { file, op: &op };
            self.trashing(|is_on| {
                let op = WithTrash { op: &op, is_on };
                self.base.change_inodes(caller, held, &op, [parent, new_parent])
            })
        };
        self.remove_name(guard, rename)?;
        self.base.caches.name_moved((parent, &name), (new_parent, &new_name), flags.exchange);
        Ok(())
    }

    /// Creates a regular file without a name and opens it, `O_TMPFILE`.
    ///
    /// # Errors
    /// EOVERFLOW if the caller has no id in the volume; those of [`MakeOrphan`].
    pub fn tmpfile(&self, caller: &Caller<'_>, parent: Ino, mode: Mode, umask: u32) -> Result<Attr, Errno> {
        let held = self.base.caches.held_by_kernel();
        let request = MakeRequest { parent, name: b"-", kind: MakeKind::Regular, mode, umask };
        let make = self.new_inode(caller, request)?;
        let inode = self.base.change_inodes(caller, held, &MakeOrphan(make), [parent])?;
        self.files.add_handle(inode.ino).set_orphan(true);
        Ok(self.base.attributes.shown(&inode))
    }

    /// The operation that creates an inode owned by the caller.
    fn new_inode(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Make, Errno> {
        let MakeRequest { parent, kind, mode, umask, .. } = request;
        let name = Name::new(request.name)?;
        let (uid, gid) = caller.owner()?;
        Ok(Make { parent, name, ino: Ino(self.inos.take()?), kind, mode, umask, uid, gid })
    }

    /// Whether an inode is in the trash, or may be, because it cannot be read.
    pub fn is_in_trash(&self, ino: Ino) -> bool {
        self.base.meta.run(&GetInode(ino), &BY_KERNEL).map_or(true, |inode| ops::is_in_trash(&inode))
    }

    /// Whether an absent name can appear without a request of the kernel that names it: the name of the trash
    /// directory, and names in the trash.
    pub fn may_be_trashed(&self, parent: Ino, name: &[u8]) -> bool {
        parent == Ino::ROOT && name == TRASH_NAME
            || self.base.meta.volume().trash_days > 0 && self.is_in_trash(parent)
    }

    /// Runs an operation that may move an inode into the trash. The argument of `run` says whether it may do
    /// so. If the directory of the trash does not exist, creates it and runs the operation again.
    ///
    /// The removed inode is deleted at once if there is no room for a name in the trash, or if the directory
    /// cannot be created because a file has its name. Otherwise users could not free space.
    fn trashing<T: Unlinks>(&self, run: impl Fn(bool) -> Result<T, Errno>) -> Result<T, Errno> {
        if self.base.meta.volume().trash_days == 0 {
            return run(false);
        }
        for _ in 0..MAX_ROUNDS {
            let done = run(true);
            let unlinked = match &done {
                Ok(done) => done.unlinked(),
                // If the removal may still happen, another one must not follow: the name may refer to another
                // inode by then.
                Err(Errno::ENOSPC) if !self.base.commits.in_doubt.exist() => return run(false),
                Err(_) => None,
            };
            let Some(Unlinked { outcome: UnlinkOutcome::NoTrash, inode }) = unlinked else { return done };
            match self.make_trash(inode.uid) {
                Ok(()) => {}
                Err(errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::ENOTDIR | Errno::ENOENT)) => {
                    tracing::warn!(%errno, uid = inode.uid, "cannot create a directory in the trash; the file is deleted at once");
                    return run(false);
                }
                // The caller can try the removal again, but a file that was deleted at once could not be
                // restored.
                Err(errno) => return Err(errno),
            }
        }
        run(false)
    }

    /// Creates the directory of a user's trash for the present hour if necessary, and remembers its inode
    /// number.
    fn make_trash(&self, uid: u32) -> Result<(), Errno> {
        let hour = TrashHour::of(Time::now());
        let inos = [Ino(self.inos.take()?), Ino(self.inos.take()?)];
        let [_, dir] = self.base.commits.change(&MakeTrash { uid, hour, inos })?;
        self.base.meta.trash().put(uid, hour, dir);
        Ok(())
    }

    /// Keeps other threads from opening the file that has this name. Whether it is open then stays the same
    /// until the name is removed.
    fn unlink_guard(&self, parent: Ino, name: &Name) -> Result<Option<UnlinkGuard<'_>>, Errno> {
        let inode = self.base.meta.run(&Lookup { parent, name: name.clone() }, &BY_KERNEL)?;
        Ok(inode
            .filter(|inode| inode.kind == FileType::Regular)
            .map(|inode| self.base.open.unlink_guard(inode.ino)))
    }

    /// Runs an operation that may remove the name of the file that `guard` keeps from being opened. If the
    /// name refers to another file by then, which may be open, the operation fails with EAGAIN
    /// ([`DeleteOnlyFile`]), and that file is guarded in the next round.
    ///
    /// # Errors
    /// Those of `guard` and `run`; EIO if other mounts gave the name to another file in each round.
    fn remove_name<'a, T: Unlinks>(
        &'a self,
        guard: impl Fn() -> Result<Option<UnlinkGuard<'a>>, Errno>,
        run: impl Fn(Option<Ino>, Option<Ino>) -> Result<T, Errno>,
    ) -> Result<(), Errno> {
        for _ in 0..MAX_ROUNDS {
            match self.unlink_guarded(guard()?, &run) {
                Err(Errno::EAGAIN) => {}
                done => return done,
            }
        }
        tracing::error!(
            "cannot remove or replace a name: other mounts gave it to another file {MAX_ROUNDS} times; \
             the call fails with EIO"
        );
        Err(Errno::EIO)
    }

    /// Runs an operation that may remove a name of the guarded file, and updates that file if it is open.
    /// `run` gets the inode number of the guarded file, and the same number as its second argument if the
    /// file is open.
    fn unlink_guarded<T: Unlinks>(
        &self,
        guard: Option<UnlinkGuard<'_>>,
        run: impl FnOnce(Option<Ino>, Option<Ino>) -> Result<T, Errno>,
    ) -> Result<(), Errno> {
        let file = guard.as_ref().and_then(|guard| guard.file.clone());
        let done = run(guard.as_ref().map(|guard| guard.ino), file.as_ref().map(|file| file.ino));
        match (done.as_ref().ok().and_then(Unlinks::unlinked), &file) {
            (Some(Unlinked { outcome: UnlinkOutcome::Orphan, .. }), Some(file)) => file.set_orphan(true),
            (Some(Unlinked { outcome: UnlinkOutcome::Removed, inode }), _) => {
                self.base.attributes.keep_deleted(inode)
            }
            _ => {}
        }
        drop(guard);
        // An error of this close does not change the outcome of the operation. Data that cannot be stored now
        // is kept for the handles that are still open, and their flush reports the error.
        if let Some(file) = file
            && let Err(errno) = self.files.close(file.ino)
        {
            tracing::debug!(ino = %file.ino, %errno, "cannot store a file while one of its names is changed");
        }
        done.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use acl::credential::Credentials;
    use acl::idmap::{Ids, Squash};
    use meta::{Engine, MemEngine};
    use suite::{Fault, FaultRates, Faulty};
    use types::Cred;

    use super::*;
    use crate::fixture::{NO_WAIT, Shared, format, make, mount, root, user, volume_with};
    use crate::{Identity, Vfs, VfsOptions};

    #[test]
    fn a_file_that_gets_the_name_before_the_commit_stays_open() {
        // The name is removed or replaced. Before that it refers to a file that is not open, or to none.
        for (removes, exists) in [(true, true), (false, true), (false, false)] {
            let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
            format(&*engine);
            let faulty = Arc::new(Faulty::new(Arc::clone(&engine), 1, FaultRates::default()));
            let (vfs, other) = (mount(faulty.clone()), mount(engine));
            if exists {
                vfs.files.close(make(&vfs, "f")).unwrap();
            }
            vfs.files.close(make(&vfs, "new")).unwrap();
            let open = make(&vfs, "g");
            vfs.files.write(open, 0, b"text").unwrap();

            let rename = |vfs: &Vfs, old: &[u8]| {
                let (from, to) = ((Ino::ROOT, old), (Ino::ROOT, &b"f"[..]));
                vfs.names.rename(&root(), from, to, RenameFlags::default(), false)
            };
            let mut waits = true;
            faulty.set_rival(move |_| {
                if std::mem::take(&mut waits) {
                    rename(&other, b"g").unwrap();
                }
            });
            faulty.script([Fault::Rival; 6]);
            faulty.arm(true);
            let done =
                if removes { vfs.names.unlink(&root(), Ino::ROOT, b"f") } else { rename(&vfs, b"new") };
            faulty.arm(false);
            done.unwrap();

            vfs.meta().set_lifetime(Duration::ZERO);
            let gone = |name| vfs.names.lookup(&root(), Ino::ROOT, name).unwrap().is_none();
            assert!(gone(b"g") && gone(if removes { b"f" } else { b"new" }));
            vfs.files.flush(open).unwrap();
            assert_eq!(vfs.files.read(open, 0, 10).unwrap(), &b"text"[..]);
            assert_eq!(vfs.attributes.getattr(open).unwrap().nlink, 0);
            vfs.files.close(open).unwrap();
            assert_eq!(
                vfs.attributes.getattr(open).map(drop),
                Err(Errno::ESTALE),
                "the last close deletes it"
            );
        }
    }

    fn orphans(engine: &dyn Engine) -> usize {
        let scan = meta::Scan::Orphans { after: (types::SessionId(0), Ino(0)), limit: 10 };
        engine.scan(&scan).unwrap().snapshot.records.len()
    }

    #[test]
    fn what_a_failed_call_has_left_without_a_name_is_deleted() {
        type Orphaning = fn(&Vfs) -> Result<(), Errno>;
        let unlink: Orphaning = |vfs| vfs.names.unlink(&root(), Ino::ROOT, b"f");
        let rename: Orphaning = |vfs| {
            let (from, to) = ((Ino::ROOT, &b"g"[..]), (Ino::ROOT, &b"f"[..]));
            vfs.names.rename(&root(), from, to, RenameFlags::default(), false)
        };
        let tmpfile: Orphaning = |vfs| vfs.names.tmpfile(&root(), Ino::ROOT, Mode::new(0o600), 0).map(drop);
        for (number, orphaning) in [unlink, rename, tmpfile].into_iter().enumerate() {
            for (arrives, stays_open) in [(true, true), (true, false), (false, true)] {
                let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
                format(&*engine);
                let faulty = Arc::new(Faulty::new(Arc::clone(&engine), 1, FaultRates::default()));
                let vfs = mount(faulty.clone());
                vfs.files.close(make(&vfs, "g")).unwrap();
                let open = make(&vfs, "f");
                let inodes = || vfs.meta().run(&ops::GetUsage, &BY_KERNEL).unwrap().inodes;
                let before = inodes();
                vfs.meta().set_retry_timeout(Duration::ZERO);
                faulty.script([Fault::Late]);
                faulty.arm(true);
                assert_eq!(orphaning(&vfs), Err(Errno::EIO));
                faulty.arm(false);
                if arrives {
                    faulty.deliver().unwrap();
                }
                if !stays_open {
                    vfs.files.close(open).unwrap();
                }
                vfs.base.flush_all().and(vfs.base.reap_orphans()).unwrap();
                faulty.deliver().unwrap();
                if stays_open {
                    vfs.files.write(open, 0, b"text").unwrap();
                    vfs.files.flush(open).unwrap();
                    assert_eq!(vfs.files.read(open, 0, 10).unwrap(), &b"text"[..]);
                    vfs.files.close(open).unwrap();
                }
                assert_eq!(orphans(&*engine), 0);
                let removed = u64::from(arrives && number < 2);
                assert_eq!(inodes(), before - removed, "case {number}, {arrives}, {stays_open}");
            }
        }
    }

    #[test]
    fn an_unlinked_file_that_cannot_be_deleted_at_its_last_close_is_deleted_later() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        format(&*engine);
        let faulty = Arc::new(Faulty::new(Arc::clone(&engine), 1, FaultRates::default()));
        let vfs = mount(faulty.clone());
        let ino = make(&vfs, "f");
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        vfs.meta().set_retry_timeout(Duration::ZERO);
        faulty.script([Fault::Before; 2]);
        faulty.arm(true);
        assert_eq!(vfs.files.close(ino), Err(Errno::EIO));
        assert_eq!(vfs.base.reap_orphans(), Err(Errno::EIO), "the database still fails");
        faulty.arm(false);
        assert_eq!(orphans(&*engine), 1);
        vfs.base.reap_orphans().unwrap();
        assert_eq!(orphans(&*engine), 0);
        vfs.meta().set_lifetime(Duration::ZERO);
        assert_eq!(vfs.attributes.inode(ino).map(drop), Err(Errno::ESTALE));
    }

    #[test]
    fn while_the_database_is_away_only_one_unlinked_file_is_tried() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        format(&*engine);
        let faulty = Arc::new(Faulty::new(Arc::clone(&engine), 1, FaultRates::default()));
        let vfs = mount(faulty.clone());
        let inos = ["f", "g", "h"].map(|name| make(&vfs, name));
        for name in ["f", "g", "h"] {
            vfs.names.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
        }
        vfs.meta().set_retry_timeout(Duration::ZERO);
        faulty.script([Fault::Before; 20]);
        faulty.arm(true);
        inos.into_iter().for_each(|ino| assert_eq!(vfs.files.close(ino), Err(Errno::EIO)));
        let before = faulty.injected();
        assert_eq!(vfs.base.reap_orphans(), Err(Errno::EIO));
        assert_eq!(faulty.injected() - before, 1);
        faulty.arm(false);
        assert_eq!(orphans(&*engine), 3);
        vfs.base.reap_orphans().unwrap();
        assert_eq!(orphans(&*engine), 0);
    }

    #[test]
    fn a_name_of_a_file_that_cannot_be_stored_is_removed() {
        let shared = Shared::new();
        let vfs = shared.mount(NO_WAIT);
        let ino = make(&vfs, "f");
        vfs.names.link(&root(), ino, Ino::ROOT, b"g").unwrap();
        vfs.files.write(ino, 0, &[1; 50_000]).unwrap();
        shared.faults.add(chunk::StoreCall::Put, chunk::Fault::Fail(Errno::ENOSPC), 1000);
        vfs.names.unlink(&root(), Ino::ROOT, b"g").unwrap();
        assert!(vfs.names.lookup(&root(), Ino::ROOT, b"g").unwrap().is_none());
        assert_eq!(vfs.files.flush(ino), Err(Errno::ENOSPC), "the file's own handle gets the error");
        shared.faults.clear();
        vfs.files.flush(ino).unwrap();
        assert_eq!(vfs.files.read(ino, 49_999, 10).unwrap(), &[1][..]);
        vfs.files.close(ino).unwrap();
    }

    #[test]
    fn file_handle_resolves_named_inodes_for_permitted_callers() {
        for squash in [None, Some(Squash::Root)] {
            let ids = Ids { squash, ..Ids::default() };
            let (vfs, _) = volume_with(VfsOptions { ids, ..VfsOptions::default() });
            let request = MakeRequest {
                parent: Ino::ROOT,
                name: b"d",
                kind: MakeKind::Directory,
                mode: Mode::new(0o700),
                umask: 0,
            };
            let dir = vfs.names.make(&root(), request).unwrap().ino;
            let file = make(&vfs, "f");
            let credential = Credentials::new(100).intern(&Cred::new(7, 7, &[], Caps::NONE), &[]);
            let backup = Caller::known(Identity { credential, caps: Caps::DAC_READ_SEARCH });
            assert_eq!(vfs.names.lookup_by_handle(&backup, file).map(|attr| attr.ino), Ok(file));
            assert_eq!(vfs.names.lookup_parent(&backup, dir).map(|attr| attr.ino), Ok(Ino::ROOT));
            // The kernel checks the capability, except for squashed callers.
            let by_user = if squash.is_some() { Err(Errno::EACCES) } else { Ok(file) };
            assert_eq!(vfs.names.lookup_by_handle(&user(7), file).map(|attr| attr.ino), by_user);
            assert_eq!(vfs.names.lookup_parent(&backup, Ino::ROOT), Err(Errno::ESTALE));
            assert_eq!(vfs.names.lookup_parent(&backup, file), Err(Errno::ENOTDIR));
            // The file is still open, but only programs that have it open can use it.
            vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
            assert_eq!(vfs.names.lookup_by_handle(&backup, file), Err(Errno::ESTALE));
            vfs.names.rmdir(&root(), Ino::ROOT, b"d").unwrap();
            assert_eq!(vfs.names.lookup_by_handle(&backup, dir), Err(Errno::ESTALE));
            assert_eq!(vfs.names.lookup_parent(&backup, dir), Err(Errno::ENOENT));
        }
    }
}
