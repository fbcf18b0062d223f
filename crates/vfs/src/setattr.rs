//! Changes of attributes, truncation included.
//!
//! Lock order: that of [`PendingAtimes`](crate::atime::PendingAtimes) before an open file's data.

use acl::idmap::UNMAPPED;
use ops::SetAttr;
use types::{Errno, Ino, Mode, Time};

use crate::attr::Attr;
use crate::caller::Caller;
use crate::fencing::InSession;
use crate::vfs::Vfs;

/// The changes of a SETATTR; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttrChange {
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The times are set to the current time (`UTIME_NOW`), not to a time that the caller chose.
    pub sets_times_to_now: bool,
    /// The truncation is by a descriptor that is open for writing.
    pub is_open: bool,
    /// The truncating caller lacks `CAP_FSETID`.
    pub kill_suidgid: bool,
}

impl Vfs {
    /// Changes attributes, including the size (truncation); returns the new attributes.
    ///
    /// # Errors
    /// EFBIG if the size is beyond 2^63 - 1 bytes; EOVERFLOW if the owner or group has no id in the volume;
    /// those of a flush and of [`SetAttr`].
    pub fn setattr(&self, caller: &Caller<'_>, ino: Ino, change: AttrChange) -> Result<Attr, Errno> {
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
            sets_times_to_now: change.sets_times_to_now,
            is_open: change.is_open,
            // For a change of owner or group. The caller's supplementary groups are not known here, so if its
            // primary group is not the file's group, SGID is cleared.
            keep_sgid: caller.is_superuser || caller.gid == self.attributes.inode(ino)?.gid,
            kill_suidgid: change.kill_suidgid,
            is_superuser: caller.is_superuser,
        };
        // An earlier read must not overwrite the new atime.
        let held = change.atime.map(|_| self.base.pending_atimes.hold());
        let changed = match self.base.open.used(ino) {
            // Earlier writes must be committed first: otherwise they would extend the file again, or set
            // their own mtime.
            Ok(file) if truncates || change.mtime.is_some() => {
                let mut data = file.lock();
                // If the truncation cuts off all written data, none of this data need be stored. It is
                // dropped after the commit, because the truncation may still fail or be denied.
                let cuts_all = change.size_bytes.is_some_and(|size| data.is_cut_off(size));
                let prepared = match cuts_all {
                    true => self.base.abandoned.settle(Some(ino)),
                    false => self.base.flush_locked(&file, &mut data),
                };
                match prepared {
                    // A truncation works on a full disk. Data that cannot be stored now is stored by a later
                    // flush, which reports the error if there is still no room. A flush in doubt must be
                    // settled first, because it may still be committed after the truncation.
                    Err(Errno::ENOSPC | Errno::EDQUOT) if truncates && data.in_doubt.is_none() => {}
                    prepared => prepared?,
                }
                let session = self.base.fencing.session_of(&file, &mut data)?;
                data.rows.clear();
                let in_session = InSession(session, &op);
                let changed = self.base.change_inodes(caller, held_by_kernel, &in_session, [ino])?;
                if let Some(size) = change.size_bytes
                    && data.buffer.is_dirty()
                {
                    data.buffer.truncate(size);
                    if !data.buffer.is_dirty() {
                        data.allocation_guard = None;
                    }
                    file.set_truncated(data.buffer.end(), changed.mtime);
                }
                changed
            }
            _ => {
                if truncates || change.mtime.is_some() {
                    self.base.abandoned.settle(Some(ino))?;
                }
                self.base.change_inodes(caller, held_by_kernel, &op, [ino])?
            }
        };
        if held.is_some() {
            self.base.pending_atimes.forget(ino);
        }
        drop(held);
        let attr = self.attributes.after_change(&changed)?;
        self.caches.note_applied(&attr);
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use acl::credential::Credentials;
    use acl::idmap::{Ids, Squash};
    use chunk::{Fault, StoreCall};
    use meta::{Engine, Record, RecordKey};
    use suite::Fault as FaultOf;
    use types::{Caps, Cred};

    use super::*;
    use crate::fixture::{NO_WAIT, Shared, make, root, unreliable_volume, volume_with};
    use crate::{Identity, VfsOptions};

    #[test]
    fn denied_truncation_drops_no_written_data() {
        let ids = Ids { squash: Some(Squash::Root), ..Ids::default() };
        let (vfs, _) = volume_with(VfsOptions { ids, ..VfsOptions::default() });
        let ino = make(&vfs, "f");
        vfs.files.write(ino, 0, b"text").unwrap();
        let credential = Credentials::new(100).intern(&Cred::new(7, 7, &[], Caps::NONE), &[]);
        let stranger = Caller::known(Identity { credential, caps: Caps::NONE });
        let cut = AttrChange { size_bytes: Some(0), ..AttrChange::default() };
        assert_eq!(vfs.setattr(&stranger, ino, cut), Err(Errno::EACCES));
        assert_eq!(vfs.files.read(ino, 0, 10).unwrap(), &b"text"[..]);
        assert_eq!(vfs.setattr(&root(), ino, cut).unwrap().size_bytes, 0);
        assert_eq!(vfs.files.read(ino, 0, 10).unwrap(), &b""[..]);
    }

    #[test]
    fn failed_truncation_drops_no_written_data() {
        let (vfs, engine) = unreliable_volume(VfsOptions::default());
        vfs.meta().set_retry_timeout(Duration::ZERO);
        let ino = make(&vfs, "f");
        vfs.files.write(ino, 0, b"old").unwrap();
        vfs.files.flush(ino).unwrap();
        vfs.files.write(ino, 3, b" and new").unwrap();
        let cut = |size| AttrChange { size_bytes: Some(size), is_open: true, ..AttrChange::default() };
        // The truncation cuts off all written bytes, or only some of them. In the second case they are stored
        // first.
        for (size, script) in [(3, vec![FaultOf::Before]), (5, vec![FaultOf::None, FaultOf::Before])] {
            engine.script(script);
            assert_eq!(vfs.setattr(&root(), ino, cut(size)), Err(Errno::EIO), "{size}");
            engine.script([]);
            assert_eq!(vfs.files.read(ino, 0, 20).unwrap(), &b"old and new"[..]);
        }
        vfs.files.flush(ino).unwrap();
        assert_eq!(vfs.files.read(ino, 0, 20).unwrap(), &b"old and new"[..]);
    }

    #[test]
    fn a_change_that_failed_in_doubt_never_undoes_a_later_one() {
        let (vfs, engine) = unreliable_volume(VfsOptions::default());
        vfs.meta().set_retry_timeout(Duration::ZERO);
        let ino = make(&vfs, "f");
        let fail_in_doubt = |change: AttrChange| {
            engine.script([FaultOf::Late]);
            assert_eq!(vfs.setattr(&root(), ino, change), Err(Errno::EIO));
            engine.script([]);
        };
        fail_in_doubt(AttrChange { size_bytes: Some(0), is_open: true, ..AttrChange::default() });
        vfs.files.write(ino, 0, b"newer").unwrap();
        vfs.files.flush(ino).unwrap();
        engine.deliver().unwrap();
        let stored = || match &engine.read(&[RecordKey::Inode(ino)]).unwrap().records[..] {
            [Record::Inode(_, Some(inode)), ..] => *inode,
            other => panic!("{other:?}"),
        };
        assert_eq!(stored().size, 5);

        let of_mode = |bits| AttrChange { mode: Some(Mode::new(bits)), ..AttrChange::default() };
        vfs.setattr(&root(), ino, of_mode(0o640)).unwrap();
        fail_in_doubt(of_mode(0o666));
        vfs.setattr(&root(), ino, of_mode(0o640)).unwrap();
        engine.deliver().unwrap();
        assert_eq!(stored().mode, Mode::new(0o640));
    }

    #[test]
    fn bytes_that_a_truncation_cuts_off_are_not_stored() {
        let (vfs, _) = volume_with(VfsOptions::default());
        let ino = make(&vfs, "f");
        vfs.files.write(ino, 0, &[1; 20_000]).unwrap();
        vfs.files.flush(ino).unwrap();
        let before = vfs.base.store.requests().puts;
        vfs.files.write(ino, 20_000, &[2; 20_000]).unwrap();
        let cut = AttrChange { size_bytes: Some(20_000), is_open: true, ..AttrChange::default() };
        assert_eq!(vfs.setattr(&root(), ino, cut).unwrap().size_bytes, 20_000);
        assert_eq!(vfs.base.store.requests().puts, before);
        vfs.files.close(ino).unwrap();
        assert_eq!(
            (vfs.base.store.requests().puts, vfs.attributes.getattr(ino).unwrap().size_bytes),
            (before, 20_000)
        );
    }

    #[test]
    fn a_truncation_works_while_the_store_is_full() {
        let shared = Shared::new();
        let [vfs, other] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let ino = make(&vfs, "f");
        let full = || shared.faults.add(StoreCall::Put, Fault::Fail(Errno::ENOSPC), 1000);
        let truncate = |size| {
            let cut = AttrChange { size_bytes: Some(size), ..AttrChange::default() };
            let attr = vfs.setattr(&root(), ino, cut).unwrap();
            assert_eq!(attr.size_bytes, size);
            assert_eq!(other.attributes.getattr(ino).unwrap().size_bytes, size);
            attr
        };
        vfs.files.write(ino, 0, &[1; 50_000]).unwrap();
        vfs.files.flush(ino).unwrap();
        full();
        vfs.files.write(ino, 40_000, &[2; 50_000]).unwrap();
        assert_eq!(vfs.files.flush(ino), Err(Errno::ENOSPC));
        truncate(45_000);
        let mut bytes = vec![1; 45_000];
        bytes[40_000..].fill(2);
        assert!(vfs.files.read(ino, 0, 100_000).unwrap() == bytes);
        assert_eq!(vfs.files.flush(ino), Err(Errno::ENOSPC), "the rest is not stored yet");
        let mtime = truncate(60_000).mtime;
        bytes.resize(60_000, 0);
        shared.faults.clear();
        vfs.files.flush(ino).unwrap();
        assert!(vfs.files.read(ino, 0, 100_000).unwrap() == bytes);
        assert_eq!(
            vfs.attributes.getattr(ino).unwrap().mtime,
            mtime,
            "a flush does not take back the time of a truncation"
        );
        // The bytes that are cut off need not be stored, so a failure to store them is no error.
        full();
        vfs.files.write(ino, 0, &vec![3; 9 << 20]).unwrap();
        assert_eq!(vfs.files.flush(ino), Err(Errno::ENOSPC));
        truncate(0);
        vfs.files.flush(ino).unwrap();
        vfs.files.close(ino).unwrap();
    }
}
