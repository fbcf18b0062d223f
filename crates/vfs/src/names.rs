//! Names: lookup, and the operations that create, rename or remove a name.
//!
//! Holds the new inode numbers. Depends on [`Files`], because a name of an open file is removed differently, on
//! [`Attributes`] and on [`CallerChanges`]. Lock order: an unlink guard of the table of open files, then no other lock.

use std::sync::Arc;

use client::Meta;
use ops::{
    Fate, GetByHandle, GetParent, Link, Lookup, Make, MakeKind, MakeOrphan, ReadLink, Rename, RenameFlags,
    Renamed, Rmdir, Unlink, Unlinked, Whiteout,
};
use types::{Caps, Errno, FileType, Ino, Mode, Name};

use crate::access_check::AccessCheck;
use crate::attr::{Attr, Entry};
use crate::attributes::Attributes;
use crate::caller::{BY_KERNEL, Caller};
use crate::changes::CallerChanges;
use crate::coherence::Caches;
use crate::files::Files;
use crate::numbers::Numbers;
use crate::open::{OpenTable, UnlinkGuard};

/// The longest target of a symbolic link in bytes (`PATH_MAX` with its NUL).
const MAX_TARGET_BYTES: usize = 4095;

/// The types of inode that mknod(2) and mkdir(2) create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Regular,
    Directory,
    Fifo,
    Socket,
    CharDevice(u32),
    BlockDevice(u32),
}

impl Special {
    /// From mknod(2)'s mode and device.
    ///
    /// # Errors
    /// EPERM for types that mknod does not create.
    pub fn from_mknod(st_mode: u32, rdev: u32) -> Result<Self, Errno> {
        // A mode without a type means a regular file, mknod(2).
        if st_mode & 0o170000 == 0 {
            return Ok(Special::Regular);
        }
        match FileType::from_ifmt(st_mode) {
            Some(FileType::Regular) => Ok(Special::Regular),
            Some(FileType::Fifo) => Ok(Special::Fifo),
            Some(FileType::Socket) => Ok(Special::Socket),
            Some(FileType::CharDevice) => Ok(Special::CharDevice(rdev)),
            Some(FileType::BlockDevice) => Ok(Special::BlockDevice(rdev)),
            _ => Err(Errno::EPERM),
        }
    }
}

/// A request to create an inode that is not a symbolic link.
#[derive(Clone, Copy, Debug)]
pub struct MakeRequest<'a> {
    pub parent: Ino,
    pub name: &'a [u8],
    pub what: Special,
    pub mode: Mode,
    pub umask: u32,
}

#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) meta: Arc<Meta>,
    pub(crate) inos: Numbers,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) changes: Arc<CallerChanges>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) files: Arc<Files>,
}

impl Names {
    /// Looks up a name in a directory.
    ///
    /// # Errors
    /// Those of [`Lookup`]; ENAMETOOLONG.
    pub(crate) fn lookup(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<Entry, Errno> {
        let inode = self.access.look_up(caller, &Lookup { parent, name: name(bytes)? })?;
        Ok(Entry { attr: inode.map(|inode| self.attributes.attr_of(&inode)) })
    }

    /// Resolves a file handle whose inode the kernel no longer holds, LOOKUP of `.` (`fuse_get_dentry`).
    ///
    /// # Errors
    /// Those of [`GetByHandle`]; EACCES as [`Self::admit_handle`].
    pub(crate) fn lookup_by_handle(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.admit_handle(caller)?;
        Ok(self.attributes.attr_of(&self.meta.run(&GetByHandle(ino), &BY_KERNEL)?))
    }

    /// The parent of a directory, LOOKUP of `..` (`fuse_get_parent`). Only file handles need it: on a path,
    /// the kernel knows the parents.
    ///
    /// # Errors
    /// Those of [`GetParent`]; EACCES as [`Self::admit_handle`].
    pub(crate) fn lookup_parent(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.admit_handle(caller)?;
        Ok(self.attributes.attr_of(&self.meta.run(&GetParent(ino), &BY_KERNEL)?))
    }

    /// Denies opening an inode without a path, because no search permission is checked on the way to it. The
    /// kernel checks `CAP_DAC_READ_SEARCH`, but it does not know which callers are squashed, and has only a
    /// projection of NFSv4 ACLs.
    ///
    /// # Errors
    /// EACCES.
    fn admit_handle(&self, caller: &Caller<'_>) -> Result<(), Errno> {
        let by_kernel = !self.access.is_squashing() && !self.access.has_nfs4_acls();
        if by_kernel || caller.identity()?.caps.has(Caps::DAC_READ_SEARCH) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Creates an inode other than a symbolic link, with a name.
    ///
    /// # Errors
    /// EPERM for devices without `CAP_MKNOD`; those of [`Make`]; ENAMETOOLONG; EOVERFLOW if the caller has no
    /// id in the volume.
    pub(crate) fn make(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        let kind = match request.what {
            Special::Regular => MakeKind::Regular,
            Special::Directory => MakeKind::Directory,
            Special::Fifo => MakeKind::Fifo,
            Special::Socket => MakeKind::Socket,
            Special::CharDevice(rdev) => MakeKind::CharDevice(rdev),
            Special::BlockDevice(rdev) => MakeKind::BlockDevice(rdev),
        };
        // The kernel checks `CAP_MKNOD`, but not of the identity that the caller is squashed to.
        if matches!(kind, MakeKind::CharDevice(_) | MakeKind::BlockDevice(_))
            && self.access.is_squashing()
            && !caller.identity()?.caps.has(Caps::MKNOD)
        {
            return Err(Errno::EPERM);
        }
        self.make_kind(caller, request.parent, request.name, kind, request.mode, request.umask)
    }

    /// Creates a regular file and opens it.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub(crate) fn create(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        let attr = self.make(caller, request)?;
        self.files.add_handle(attr.ino);
        Ok(attr)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// Those of [`Make`]; ENAMETOOLONG, also for the target; ENOENT for an empty target.
    pub(crate) fn symlink(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        bytes: &[u8],
        target: &[u8],
    ) -> Result<Attr, Errno> {
        match target.len() {
            0 => return Err(Errno::ENOENT),
            1..=MAX_TARGET_BYTES => {}
            _ => return Err(Errno::ENAMETOOLONG),
        }
        self.make_kind(caller, parent, bytes, MakeKind::Symlink(target.into()), Mode::new(0o777), 0)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of [`ReadLink`].
    pub(crate) fn readlink(&self, ino: Ino) -> Result<Arc<[u8]>, Errno> {
        Ok(self.meta.run(&ReadLink(ino), &BY_KERNEL)?)
    }

    /// Creates a hard link; a file opened with `O_TMPFILE` gets its first name.
    ///
    /// # Errors
    /// Those of [`Link`]; ENAMETOOLONG.
    pub(crate) fn link(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        parent: Ino,
        bytes: &[u8],
    ) -> Result<Attr, Errno> {
        let held = self.caches.held_by_kernel();
        // Read the session before the file: files are marked as lost before there is a new session.
        let session = self.meta.session();
        let file = self.open.get(ino);
        let is_orphan = file.as_ref().is_some_and(|file| file.is_orphan() && !file.is_fenced());
        let orphan_of = is_orphan.then_some(session);
        self.changes.change_inodes(
            caller,
            held,
            &Link { ino, parent, name: name(bytes)?, orphan_of },
            [parent],
        )?;
        if let Some(file) = file {
            file.set_orphan(false);
        }
        Ok(self.attributes.attr_of(&self.attributes.inode(ino)?))
    }

    /// Removes a name of an inode that is not a directory. An inode without further names is deleted now, or
    /// at its last close.
    ///
    /// # Errors
    /// Those of [`Unlink`]; ENAMETOOLONG.
    pub(crate) fn unlink(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        let held = self.caches.held_by_kernel();
        let name = name(bytes)?;
        let unlink_guard = self.unlink_guard(parent, &name)?;
        let open =
            unlink_guard.as_ref().and_then(|unlink_guard| unlink_guard.file.as_ref()).map(|file| file.ino);
        let unlinked = self.changes.change_inodes(caller, held, &Unlink { parent, name, open }, [parent]);
        self.finish_unlink(unlink_guard, unlinked.as_ref().ok())?;
        unlinked.map(drop)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of [`Rmdir`]; ENAMETOOLONG.
    pub(crate) fn rmdir(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        let held = self.caches.held_by_kernel();
        let inode =
            self.changes.change_inodes(caller, held, &Rmdir { parent, name: name(bytes)? }, [parent])?;
        self.attributes.keep_deleted(&inode);
        Ok(())
    }

    /// Renames or exchanges, `renameat2(2)`. With `whiteout`, a whiteout replaces the old name.
    ///
    /// # Errors
    /// Those of [`Rename`]; ENAMETOOLONG.
    pub(crate) fn rename(
        &self,
        caller: &Caller<'_>,
        (parent, old): (Ino, &[u8]),
        (new_parent, new): (Ino, &[u8]),
        flags: RenameFlags,
        whiteout: bool,
    ) -> Result<(), Errno> {
        let held = self.caches.held_by_kernel();
        let (name, new_name) = (name(old)?, name(new)?);
        let whiteout = match whiteout {
            true => {
                let (uid, gid) = caller.owner()?;
                Some(Whiteout { ino: Ino(self.inos.take()?), uid, gid })
            }
            false => None,
        };
        let unlink_guard = if flags.exchange { None } else { self.unlink_guard(new_parent, &new_name)? };
        let open =
            unlink_guard.as_ref().and_then(|unlink_guard| unlink_guard.file.as_ref()).map(|file| file.ino);
        let rename = Rename { parent, name, new_parent, new_name, flags, whiteout, open };
        let renamed = self.changes.change_inodes(caller, held, &rename, [parent, new_parent]);
        let replaced = renamed.as_ref().ok().and_then(|Renamed { replaced, .. }| replaced.as_ref());
        self.finish_unlink(unlink_guard, replaced)?;
        renamed.map(drop)
    }

    /// Creates a regular file without a name and opens it, `O_TMPFILE`.
    ///
    /// # Errors
    /// Those of [`MakeOrphan`].
    pub(crate) fn tmpfile(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        mode: Mode,
        umask: u32,
    ) -> Result<Attr, Errno> {
        let held = self.caches.held_by_kernel();
        let (uid, gid) = caller.owner()?;
        let make = Make {
            parent,
            name: name(b"-")?,
            ino: Ino(self.inos.take()?),
            kind: MakeKind::Regular,
            mode,
            umask,
            uid,
            gid,
        };
        let inode = self.changes.change_inodes(caller, held, &MakeOrphan(make), [parent])?;
        self.files.add_handle(inode.ino).set_orphan(true);
        Ok(self.attributes.of_new(&inode))
    }

    fn make_kind(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        bytes: &[u8],
        kind: MakeKind,
        mode: Mode,
        umask: u32,
    ) -> Result<Attr, Errno> {
        let held = self.caches.held_by_kernel();
        let name = name(bytes)?;
        let (uid, gid) = caller.owner()?;
        let ino = Ino(self.inos.take()?);
        let make = Make { parent, name, ino, kind, mode, umask, uid, gid };
        let inode = self.changes.change_inodes(caller, held, &make, [parent])?;
        Ok(self.attributes.of_new(&inode))
    }

    /// Keeps a file whose name is being removed from being opened meanwhile, so that it is known whether it
    /// is open.
    fn unlink_guard(&self, parent: Ino, name: &Name) -> Result<Option<UnlinkGuard<'_>>, Errno> {
        let inode = self.meta.run(&Lookup { parent, name: name.clone() }, &BY_KERNEL)?;
        Ok(inode
            .filter(|inode| inode.kind == FileType::Regular)
            .map(|inode| self.open.unlink_guard(inode.ino)))
    }

    /// Updates the open file after its name was removed, and releases the guard.
    fn finish_unlink(
        &self,
        unlink_guard: Option<UnlinkGuard<'_>>,
        unlinked: Option<&Unlinked>,
    ) -> Result<(), Errno> {
        let file = unlink_guard.as_ref().and_then(|unlink_guard| unlink_guard.file.clone());
        match (unlinked, &file) {
            (Some(Unlinked { fate: Fate::Orphan, .. }), Some(file)) => file.set_orphan(true),
            (Some(Unlinked { fate: Fate::Gone, inode }), _) => self.attributes.keep_deleted(inode),
            _ => {}
        }
        drop(unlink_guard);
        match file {
            Some(file) => self.files.close(file.ino),
            None => Ok(()),
        }
    }
}

/// Parses a name from a request.
fn name(bytes: &[u8]) -> Result<Name, Errno> {
    Ok(Name::new(bytes)?)
}

#[cfg(test)]
mod tests {
    use acl::credential::Credentials;
    use acl::idmap::{Ids, Squash};
    use types::Cred;

    use super::*;
    use crate::fixture::{make, root, user, volume_with};
    use crate::{Identity, VfsOptions};

    #[test]
    fn file_handle_resolves_named_inodes_for_permitted_callers() {
        for squash in [None, Some(Squash::Root)] {
            let ids = Ids { squash, ..Ids::default() };
            let (vfs, _) = volume_with(VfsOptions { ids, ..VfsOptions::default() });
            let request = MakeRequest {
                parent: Ino::ROOT,
                name: b"d",
                what: Special::Directory,
                mode: Mode::new(0o700),
                umask: 0,
            };
            let dir = vfs.make(&root(), request).unwrap().ino;
            let file = make(&vfs, "f");
            let credential = Credentials::new(100).intern(&Cred::new(7, 7, &[], Caps::NONE), &[]);
            let backup = Caller::known(Identity { credential, caps: Caps::DAC_READ_SEARCH });
            assert_eq!(vfs.lookup_by_handle(&backup, file).map(|attr| attr.ino), Ok(file));
            assert_eq!(vfs.lookup_parent(&backup, dir).map(|attr| attr.ino), Ok(Ino::ROOT));
            // The kernel checks the capability, except for squashed callers.
            let by_user = if squash.is_some() { Err(Errno::EACCES) } else { Ok(file) };
            assert_eq!(vfs.lookup_by_handle(&user(7), file).map(|attr| attr.ino), by_user);
            assert_eq!(vfs.lookup_parent(&backup, Ino::ROOT), Err(Errno::ESTALE));
            assert_eq!(vfs.lookup_parent(&backup, file), Err(Errno::ENOTDIR));
            // The file is still open, but only programs that have it open can use it.
            vfs.unlink(&root(), Ino::ROOT, b"f").unwrap();
            assert_eq!(vfs.lookup_by_handle(&backup, file), Err(Errno::ESTALE));
            vfs.rmdir(&root(), Ino::ROOT, b"d").unwrap();
            assert_eq!(vfs.lookup_by_handle(&backup, dir), Err(Errno::ESTALE));
            assert_eq!(vfs.lookup_parent(&backup, dir), Err(Errno::ENOENT));
        }
    }
}
