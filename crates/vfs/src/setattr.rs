//! Changes of attributes, truncation included.
//!
//! Holds nothing of its own. Depends on [`Attributes`], [`CallerChanges`], [`Flusher`] (earlier writes come first) and
//! [`Accesses`]. Lock order: that of [`Accesses`] before an open file's data.

use std::sync::Arc;

use acl::idmap::UNMAPPED;
use client::Meta;
use ops::SetAttr;
use types::{Errno, Ino, Mode, Time};

use crate::access_check::AccessCheck;
use crate::atime::Accesses;
use crate::attr::Attr;
use crate::attributes::Attributes;
use crate::caller::Caller;
use crate::changes::CallerChanges;
use crate::coherence::Caches;
use crate::fencing::{Fencing, Within};
use crate::flush::Flusher;
use crate::open::OpenTable;

/// The changes of a SETATTR; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttrChange {
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The times are the current time, not chosen by the caller.
    pub is_set_times: bool,
    /// The truncation is by a descriptor that is open for writing.
    pub is_open: bool,
    /// The truncating caller lacks `CAP_FSETID`.
    pub kill_suidgid: bool,
}

#[derive(Debug)]
pub(crate) struct AttributeChanges {
    pub(crate) meta: Arc<Meta>,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) changes: Arc<CallerChanges>,
    pub(crate) accesses: Arc<Accesses>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) fencing: Arc<Fencing>,
}

impl AttributeChanges {
    /// Changes attributes, also the size (truncation); returns the new attributes.
    ///
    /// # Errors
    /// EFBIG beyond 2^63 - 1 bytes; EOVERFLOW if the owner or group has no id in the volume; those of
    /// [`SetAttr`] and of a flush.
    pub(crate) fn setattr(&self, caller: &Caller<'_>, ino: Ino, change: AttrChange) -> Result<Attr, Errno> {
        let held_by_kernel = self.caches.held_by_kernel();
        let truncates = change.size_bytes.is_some();
        if change.size_bytes.is_some_and(|size| size > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        let known = |id| if id == UNMAPPED { Err(Errno::EOVERFLOW) } else { Ok(id) };
        let op = SetAttr {
            ino,
            mode: change.mode,
            uid: change.uid.map(|uid| known(self.access.ids.user_in_volume(uid))).transpose()?,
            gid: change.gid.map(|gid| known(self.access.ids.group_in_volume(gid))).transpose()?,
            size: change.size_bytes,
            atime: change.atime,
            mtime: change.mtime,
            is_set_times: change.is_set_times,
            is_open: change.is_open,
            // The caller's groups are not known here; unless it is certainly in the file's group, the bit is
            // cleared.
            keep_sgid: caller.is_superuser || caller.gid == self.attributes.inode(ino)?.gid,
            kill_suidgid: change.kill_suidgid,
        };
        // An earlier read must not overwrite the new atime.
        let held = change.atime.map(|_| self.accesses.hold());
        match self.open.get(ino) {
            // Earlier writes must be committed first: otherwise they would extend the file again, or set
            // their own mtime.
            Some(file) if truncates || change.mtime.is_some() => {
                let mut data = file.lock();
                // While the operation may still be denied, no written data is dropped for it: the kernel may
                // have let the caller pass by outdated attributes, unless the call is on an open descriptor.
                if let Some(size) = change.size_bytes
                    && self.access.kernel_check_suffices()
                    && (self.meta.is_exclusive() || change.is_open)
                {
                    data.truncate(size);
                }
                match self.flusher.flush_locked(&file, &mut data) {
                    // A truncation works on a full disk. What cannot be stored now is stored by a later flush, which reports
                    // the error if there is still no room. A flush in doubt may store it at any moment, so that one comes first.
                    Err(Errno::ENOSPC | Errno::EDQUOT) if truncates && data.in_doubt.is_none() => {}
                    flushed => flushed?,
                }
                let session = self.fencing.session_of(&file, &mut data)?;
                data.rows.clear();
                let within = Within(session, &op);
                self.changes.change_inodes(caller, held_by_kernel, &within, [ino])?;
                if let Some(size) = change.size_bytes
                    && data.buffer.is_dirty()
                {
                    data.truncate(size);
                    file.set_truncated(data.buffer.end(), self.attributes.inode(ino)?.mtime);
                }
            }
            _ => self.changes.change_inodes(caller, held_by_kernel, &op, [ino])?,
        }
        if held.is_some() {
            self.accesses.forget(ino);
        }
        drop(held);
        let attr = self.attributes.getattr(ino)?;
        self.caches.note_given_for_sure(&attr);
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use acl::credential::Credentials;
    use acl::idmap::{Ids, Squash};
    use chunk::{Fault, StoreCall};
    use types::{Caps, Cred};

    use super::*;
    use crate::fixture::{NO_WAIT, Shared, make, root, volume_with};
    use crate::{Identity, VfsOptions};

    #[test]
    fn denied_truncation_drops_no_written_data() {
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
    #[test]
    fn a_truncation_works_while_the_store_is_full() {
        let shared = Shared::new();
        let [vfs, other] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let ino = make(&vfs, "f");
        let full = || shared.faults.add(StoreCall::Put, Fault::Refuse(Errno::ENOSPC), 1000);
        let truncate = |size| {
            let cut = AttrChange { size_bytes: Some(size), ..AttrChange::default() };
            let attr = vfs.setattr(&root(), ino, cut).unwrap();
            assert_eq!(attr.size_bytes, size);
            assert_eq!(other.getattr(ino).unwrap().size_bytes, size);
            attr
        };
        vfs.write(ino, 0, &[1; 50_000]).unwrap();
        vfs.flush(ino).unwrap();
        full();
        vfs.write(ino, 40_000, &[2; 50_000]).unwrap();
        assert_eq!(vfs.flush(ino), Err(Errno::ENOSPC));
        truncate(45_000);
        let mut bytes = vec![1; 45_000];
        bytes[40_000..].fill(2);
        assert!(vfs.read(ino, 0, 100_000).unwrap() == bytes);
        assert_eq!(vfs.flush(ino), Err(Errno::ENOSPC), "the rest is not stored yet");
        let mtime = truncate(60_000).mtime;
        bytes.resize(60_000, 0);
        shared.faults.clear();
        vfs.flush(ino).unwrap();
        assert!(vfs.read(ino, 0, 100_000).unwrap() == bytes);
        assert_eq!(
            vfs.getattr(ino).unwrap().mtime,
            mtime,
            "a flush does not take back the time of a truncation"
        );
        // Nothing of what is cut off has to be stored, and its errors are of no interest.
        full();
        vfs.write(ino, 0, &vec![3; 9 << 20]).unwrap();
        assert_eq!(vfs.flush(ino), Err(Errno::ENOSPC));
        truncate(0);
        vfs.flush(ino).unwrap();
        vfs.close(ino).unwrap();
    }
}
