//! Names: lookup, and all that makes, moves or removes one.

use meta::ops::{
    Fate, GetByHandle, GetParent, Link, Lookup, Make, MakeKind, MakeOrphan, ReadLink, Rename, RenameFlags,
    Renamed, Rmdir, Unlink, Unlinked, Whiteout,
};
use types::{Caps, Errno, FileType, Ino, Mode};

use crate::attr::{Attr, Entry};
use crate::caller::Caller;
use crate::open::Seal;
use crate::vfs::{BY_KERNEL, Vfs, name};

/// The longest target of a symbolic link in bytes (`PATH_MAX` with its NUL).
const MAX_TARGET_BYTES: usize = 4095;

/// What mknod(2) and mkdir(2) make.
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
    /// EPERM for types that mknod does not make.
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

/// A new inode that is no symbolic link.
#[derive(Clone, Copy, Debug)]
pub struct MakeRequest<'a> {
    pub parent: Ino,
    pub name: &'a [u8],
    pub what: Special,
    pub mode: Mode,
    pub umask: u32,
}

impl Vfs {
    /// # Errors
    /// Those of [`Lookup`]; ENAMETOOLONG.
    pub fn lookup(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<Entry, Errno> {
        let node = self.look_up(caller, &Lookup { parent, name: name(bytes)? })?;
        Ok(Entry { attr: node.map(|node| self.attr_of(&node)) })
    }

    /// The inode of a file handle that the kernel does not hold any more, LOOKUP of `.` (`fuse_get_dentry`).
    ///
    /// # Errors
    /// Those of [`GetByHandle`]; EACCES as [`Vfs::admit_handle`].
    pub fn lookup_by_handle(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.admit_handle(caller)?;
        Ok(self.attr_of(&self.meta.run(&GetByHandle(ino), &BY_KERNEL)?))
    }

    /// The directory that holds a directory, LOOKUP of `..` (`fuse_get_parent`). Paths never need it: the kernel knows what
    /// it came through.
    ///
    /// # Errors
    /// Those of [`GetParent`]; EACCES as [`Vfs::admit_handle`].
    pub fn lookup_parent(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.admit_handle(caller)?;
        Ok(self.attr_of(&self.meta.run(&GetParent(ino), &BY_KERNEL)?))
    }

    /// Refuses a caller that must not reach inodes without a path: no search permission is checked on the way to them. The kernel
    /// checks `CAP_DAC_READ_SEARCH`, but it does not know squashed callers, and it has only a projection of NFSv4 ACLs.
    ///
    /// # Errors
    /// EACCES.
    fn admit_handle(&self, caller: &Caller<'_>) -> Result<(), Errno> {
        let by_kernel = !self.is_squashing() && !self.has_nfs4_acls();
        if by_kernel || caller.identity()?.caps.has(Caps::DAC_READ_SEARCH) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// # Errors
    /// EPERM for devices without `CAP_MKNOD`; those of [`Make`]; ENAMETOOLONG; EOVERFLOW for a caller whom the volume does
    /// not know.
    pub fn make(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        let kind = match request.what {
            Special::Regular => MakeKind::Regular,
            Special::Directory => MakeKind::Directory,
            Special::Fifo => MakeKind::Fifo,
            Special::Socket => MakeKind::Socket,
            Special::CharDevice(rdev) => MakeKind::CharDevice(rdev),
            Special::BlockDevice(rdev) => MakeKind::BlockDevice(rdev),
        };
        // The kernel asks for `CAP_MKNOD`, but of whom it takes the caller for.
        if matches!(kind, MakeKind::CharDevice(_) | MakeKind::BlockDevice(_))
            && self.is_squashing()
            && !caller.identity()?.caps.has(Caps::MKNOD)
        {
            return Err(Errno::EPERM);
        }
        self.make_kind(caller, request.parent, request.name, kind, request.mode, request.umask)
    }

    /// # Errors
    /// Those of [`Make`]; ENAMETOOLONG also for the target, ENOENT for an empty one.
    pub fn symlink(
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

    /// # Errors
    /// Those of [`ReadLink`].
    pub fn readlink(&self, ino: Ino) -> Result<std::sync::Arc<[u8]>, Errno> {
        Ok(self.meta.run(&ReadLink(ino), &BY_KERNEL)?)
    }

    /// # Errors
    /// Those of [`Link`]; ENAMETOOLONG.
    pub fn link(&self, caller: &Caller<'_>, ino: Ino, parent: Ino, bytes: &[u8]) -> Result<Attr, Errno> {
        let held = self.held_by_kernel();
        // Before the file is looked at: what a session's loss takes away is marked before there is another session.
        let session = self.meta.session();
        let file = self.files.get(ino);
        let is_orphan = file.as_ref().is_some_and(|file| file.is_orphan() && !file.is_fenced());
        let orphan_of = is_orphan.then_some(session);
        self.change_inodes(caller, held, &Link { ino, parent, name: name(bytes)?, orphan_of }, [parent])?;
        if let Some(file) = file {
            file.set_orphan(false);
        }
        Ok(self.attr_of(&self.node(ino)?))
    }

    /// # Errors
    /// Those of [`Unlink`]; ENAMETOOLONG.
    pub fn unlink(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        let held = self.held_by_kernel();
        let name = name(bytes)?;
        let seal = self.seal(parent, &name)?;
        let open = seal.as_ref().and_then(|seal| seal.file.as_ref()).map(|file| file.ino);
        let unlinked = self.change_inodes(caller, held, &Unlink { parent, name, open }, [parent]);
        self.let_go(seal, unlinked.as_ref().ok())?;
        unlinked.map(drop)
    }

    /// # Errors
    /// Those of [`Rmdir`]; ENAMETOOLONG.
    pub fn rmdir(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        let held = self.held_by_kernel();
        let node = self.change_inodes(caller, held, &Rmdir { parent, name: name(bytes)? }, [parent])?;
        self.bury(&node);
        Ok(())
    }

    /// # Errors
    /// Those of [`Rename`]; ENAMETOOLONG.
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        (parent, old): (Ino, &[u8]),
        (new_parent, new): (Ino, &[u8]),
        flags: RenameFlags,
        whiteout: bool,
    ) -> Result<(), Errno> {
        let held = self.held_by_kernel();
        let (name, new_name) = (name(old)?, name(new)?);
        let whiteout = match whiteout {
            true => {
                let (uid, gid) = caller.owner()?;
                Some(Whiteout { ino: Ino(self.inos.take()?), uid, gid })
            }
            false => None,
        };
        let seal = if flags.exchange { None } else { self.seal(new_parent, &new_name)? };
        let open = seal.as_ref().and_then(|seal| seal.file.as_ref()).map(|file| file.ino);
        let rename = Rename { parent, name, new_parent, new_name, flags, whiteout, open };
        let renamed = self.change_inodes(caller, held, &rename, [parent, new_parent]);
        let replaced = renamed.as_ref().ok().and_then(|Renamed { replaced, .. }| replaced.as_ref());
        self.let_go(seal, replaced)?;
        renamed.map(drop)
    }

    /// Makes a regular file without a name and opens it, `O_TMPFILE`.
    ///
    /// # Errors
    /// Those of [`MakeOrphan`].
    pub fn tmpfile(&self, caller: &Caller<'_>, parent: Ino, mode: Mode, umask: u32) -> Result<Attr, Errno> {
        let held = self.held_by_kernel();
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
        let node = self.change_inodes(caller, held, &MakeOrphan(make), [parent])?;
        self.files.open(node.ino, || self.new_buffer()).set_orphan(true);
        self.tell(&node);
        Ok(self.shown(&node))
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
        let held = self.held_by_kernel();
        let name = name(bytes)?;
        let (uid, gid) = caller.owner()?;
        let ino = Ino(self.inos.take()?);
        let make = Make { parent, name, ino, kind, mode, umask, uid, gid };
        let node = self.change_inodes(caller, held, &make, [parent])?;
        self.tell(&node);
        Ok(self.shown(&node))
    }

    /// Keeps the file that is about to lose a name from being opened meanwhile, so that "is it open" has one answer.
    fn seal(&self, parent: Ino, name: &types::Name) -> Result<Option<Seal<'_>>, Errno> {
        let node = self.meta.run(&Lookup { parent, name: name.clone() }, &BY_KERNEL)?;
        Ok(node.filter(|node| node.kind == FileType::Regular).map(|node| self.files.seal(node.ino)))
    }

    /// Draws the consequences of a lost name.
    fn let_go(&self, seal: Option<Seal<'_>>, unlinked: Option<&Unlinked>) -> Result<(), Errno> {
        let file = seal.as_ref().and_then(|seal| seal.file.clone());
        match (unlinked, &file) {
            (Some(Unlinked { fate: Fate::Orphan, .. }), Some(file)) => file.set_orphan(true),
            (Some(Unlinked { fate: Fate::Gone, node }), _) => self.bury(node),
            _ => {}
        }
        drop(seal);
        match file {
            Some(file) => self.close(file.ino),
            None => Ok(()),
        }
    }
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
    fn a_handle_opens_what_has_a_name_to_those_who_may() {
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
            // The kernel checks, but not if it takes the caller for somebody else.
            let by_user = if squash.is_some() { Err(Errno::EACCES) } else { Ok(file) };
            assert_eq!(vfs.lookup_by_handle(&user(7), file).map(|attr| attr.ino), by_user);
            assert_eq!(vfs.lookup_parent(&backup, Ino::ROOT), Err(Errno::ESTALE));
            assert_eq!(vfs.lookup_parent(&backup, file), Err(Errno::ENOTDIR));
            // It is open still, but only programs that have it open need it.
            vfs.unlink(&root(), Ino::ROOT, b"f").unwrap();
            assert_eq!(vfs.lookup_by_handle(&backup, file), Err(Errno::ESTALE));
            vfs.rmdir(&root(), Ino::ROOT, b"d").unwrap();
            assert_eq!(vfs.lookup_by_handle(&backup, dir), Err(Errno::ESTALE));
            assert_eq!(vfs.lookup_parent(&backup, dir), Err(Errno::ENOENT));
        }
    }
}
