//! Attributes: getattr and setattr.

use acl::idmap::UNMAPPED;
use meta::ops::SetAttr;
use types::{Errno, Ino, Mode, Time};

use crate::attr::Attr;
use crate::caller::Caller;
use crate::vfs::Vfs;

/// What SETATTR asks for; `None` leaves as is.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttrChange {
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The times are the present one, and were not chosen by the caller.
    pub is_touch: bool,
    /// The truncation goes through a file that is open for writing.
    pub is_open: bool,
    /// The truncating caller lacks `CAP_FSETID`.
    pub kill_suidgid: bool,
}

impl Vfs {
    /// # Errors
    /// ESTALE where the inode is gone and nobody holds it; EIO where it is open and was lost with the session. A program
    /// that has a file open takes ESTALE for "open it again by its name", and the name may lead to another file by now.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        match self.node(ino) {
            Err(Errno::ESTALE) if self.files.get(ino).is_some_and(|file| file.is_fenced()) => Err(Errno::EIO),
            node => Ok(self.attr_of(&node?)),
        }
    }

    /// # Errors
    /// EFBIG beyond 2^63 - 1 bytes; EOVERFLOW for an owner or group whom the volume does not know; those of [`SetAttr`] and of
    /// a flush.
    pub fn setattr(&self, caller: &Caller<'_>, ino: Ino, change: AttrChange) -> Result<Attr, Errno> {
        let held_by_kernel = self.held_by_kernel();
        if change.size_bytes.is_some_and(|size| size > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        let known = |id| if id == UNMAPPED { Err(Errno::EOVERFLOW) } else { Ok(id) };
        let op = SetAttr {
            ino,
            mode: change.mode,
            uid: change.uid.map(|uid| known(self.ids.user_in_volume(uid))).transpose()?,
            gid: change.gid.map(|gid| known(self.ids.group_in_volume(gid))).transpose()?,
            size: change.size_bytes,
            atime: change.atime,
            mtime: change.mtime,
            is_touch: change.is_touch,
            is_open: change.is_open,
            // The groups of the caller are not known here; whoever is not surely in the group loses the bit.
            keep_sgid: caller.is_superuser || caller.gid == self.node(ino)?.gid,
            kill_suidgid: change.kill_suidgid,
        };
        // What was read before must not overtake it.
        let held = change.atime.map(|_| self.accesses.hold());
        match self.files.get(ino) {
            // What was written before must be in the records before: it would else grow the file back, or bring its
            // own time along.
            Some(file) if change.size_bytes.is_some() || change.mtime.is_some() => {
                let mut data = file.lock();
                // If the operation may yet be refused, nothing that was written is given up for it: the kernel may have let
                // the caller pass by attributes that no longer hold, unless it was by the open file.
                if let Some(size) = change.size_bytes
                    && self.kernel_vouches()
                    && (self.is_alone() || change.is_open)
                {
                    data.truncate(size);
                }
                self.flush_locked(&file, &mut data)?;
                let session = self.session_of(&file, &mut data)?;
                data.rows.clear();
                let within = crate::fencing::Within(session, &op);
                self.change_inodes(caller, held_by_kernel, &within, [ino])?;
            }
            _ => self.change_inodes(caller, held_by_kernel, &op, [ino])?,
        }
        if held.is_some() {
            self.accesses.forget(ino);
        }
        drop(held);
        let attr = self.getattr(ino)?;
        self.tell_for_sure(&attr);
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use acl::credential::Credentials;
    use acl::idmap::{Ids, Squash};
    use types::{Caps, Cred};

    use super::*;
    use crate::fixture::{make, root, volume_with};
    use crate::{Identity, VfsOptions};

    #[test]
    fn a_truncation_that_is_refused_gives_up_nothing_that_was_written() {
        let ids = Ids { squash: Some(Squash::Root), ..Ids::default() };
        let (vfs, _) = volume_with(VfsOptions { ids, ..VfsOptions::default() });
        let ino = make(&vfs, "f");
        vfs.write(ino, 0, b"text").unwrap();
        let credential = Credentials::new(100).intern(&Cred::new(7, 7, &[], Caps::NONE), &[]);
        let stranger = Caller::known(Identity { credential, caps: Caps::NONE });
        let cut = AttrChange { size_bytes: Some(0), ..AttrChange::default() };
        assert_eq!(vfs.setattr(&stranger, ino, cut), Err(Errno::EACCES));
        assert_eq!(vfs.read(ino, 0, 10).unwrap(), &b"text"[..]);
        assert_eq!(vfs.setattr(&root(), ino, cut).unwrap().size_bytes, 0);
        assert_eq!(vfs.read(ino, 0, 10).unwrap(), &b""[..]);
    }
}
