//! The attributes of inodes, as they are stored, and as callers and the kernel see them.
//!
//! [`Attributes`] holds the inodes that this mount deleted and the kernel still uses. It depends on [`Meta`],
//! the table of open files (unflushed writes), [`PendingAtimes`] (access times that are not committed),
//! [`AccessCheck`] (ids, checks) and [`Caches`], which records the attributes that the kernel is given.
//! [`Attributes::getattr`] and [`Attributes::getattr_for`] record them, because their result is the reply to
//! GETATTR. All other methods only compute attributes: if a reply gives them to the kernel, its sender
//! records that ([`Caches::looked_up`], [`Caches::note_applied`]). Recording attributes that the kernel does
//! not get would let it check callers by outdated ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use acl::nfs4::Mask;
use client::{Failure, Meta};
use meta::{AclKind, Inode};
use ops::{GetInode, GetProjection};
use types::{Errno, Ino, Time};

use crate::access_check::{AccessCheck, Perm};
use crate::atime::PendingAtimes;
use crate::attr::Attr;
use crate::caller::{BY_KERNEL, Caller};
use crate::coherence::Caches;
use crate::open::OpenTable;

/// Attributes of inodes.
#[derive(Debug)]
pub struct Attributes {
    meta: Arc<Meta>,
    open: Arc<OpenTable>,
    pending_atimes: Arc<PendingAtimes>,
    access: Arc<AccessCheck>,
    caches: Arc<Caches>,
    /// Inodes that this mount deleted together with their last name, and that the kernel still holds, for
    /// example as a working directory or through an `O_PATH` descriptor, with their last attributes. An entry
    /// is removed when the kernel forgets the inode.
    unlinked: Mutex<HashMap<Ino, Inode>>,
    /// Whether the kernel knows of no ACLs, because the volume had none when it was mounted.
    is_kernel_without_acls: AtomicBool,
}

impl Attributes {
    pub(crate) fn new(
        meta: &Arc<Meta>,
        open: &Arc<OpenTable>,
        pending_atimes: &Arc<PendingAtimes>,
        access: &Arc<AccessCheck>,
        caches: &Arc<Caches>,
    ) -> Self {
        Attributes {
            meta: Arc::clone(meta),
            open: Arc::clone(open),
            pending_atimes: Arc::clone(pending_atimes),
            access: Arc::clone(access),
            caches: Arc::clone(caches),
            unlinked: Mutex::default(),
            is_kernel_without_acls: AtomicBool::new(meta.volume().acl == AclKind::Off),
        }
    }

    /// An inode as it is stored, or its last attributes if it is in `unlinked`. Fails with ESTALE if it does
    /// not exist, also if another mount has deleted it and the kernel still holds it.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode, Errno> {
        match self.meta.run(&GetInode(ino), &BY_KERNEL) {
            Ok(inode) => Ok(inode),
            Err(Failure::Operation(Errno::ESTALE)) => {
                host::lock(&self.unlinked).get(&ino).copied().ok_or(Errno::ESTALE)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Keeps the attributes of a deleted inode for stat(2).
    pub(crate) fn keep_deleted(&self, inode: &Inode) {
        if !self.caches.sends_forget() {
            return;
        }
        host::lock(&self.unlinked).insert(inode.ino, Inode { nlink: 0, ctime: Time::now(), ..*inode });
    }

    /// The attributes of an inode, including unflushed writes, for the reply to GETATTR.
    ///
    /// # Errors
    /// Those of [`Self::current`].
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.current(ino).inspect(|attr| self.caches.note_sent(attr))
    }

    /// The attributes of an inode, including unflushed writes.
    ///
    /// # Errors
    /// ESTALE if the inode was deleted and is not in `unlinked`; EIO in place of ESTALE if the file is open
    /// and was lost with the session. After ESTALE, programs would open the file again by its name, and the
    /// name may now lead to another file.
    fn current(&self, ino: Ino) -> Result<Attr, Errno> {
        match self.inode(ino) {
            Err(Errno::ESTALE) if self.open.get(ino).is_some_and(|file| file.is_fenced()) => Err(Errno::EIO),
            inode => Ok(self.attr_of(&inode?)),
        }
    }

    /// As [`Self::getattr`], for a caller. `by_handle` says whether the request names an open file. If a
    /// directory's attributes are per caller, the kernel requests them before it grants search.
    ///
    /// The kernel may also request the attributes of a new file before the open(2) that created it returns
    /// (`may_open`), and that request names no open file. If another mount has deleted the file by then,
    /// ESTALE would make the kernel repeat the call, and create the file again. So a new file that no program
    /// has used yet has the attributes with which it was created.
    ///
    /// # Errors
    /// As [`Self::getattr`]; EACCES for a directory that the caller may not search, if the kernel cannot
    /// decide that.
    pub fn getattr_for(&self, caller: &Caller<'_>, ino: Ino, by_handle: bool) -> Result<Attr, Errno> {
        let attr = match self.current(ino) {
            Err(Errno::ESTALE) if !by_handle => {
                let created = self.created(ino).ok_or(Errno::ESTALE)?;
                self.of_deleted(&Inode { nlink: 0, ..created })
            }
            attr => attr?,
        };
        if attr.per_caller && attr.kind.is_dir() {
            self.access.check_nfs4(caller, ino, Mask::SEARCH)?;
        }
        self.caches.note_sent(&attr);
        Ok(attr)
    }

    /// The inode as a call on this mount created it, while that call may still be in progress.
    pub(crate) fn created(&self, ino: Ino) -> Option<Inode> {
        self.open.get(ino)?.created().copied()
    }

    /// The attributes of an inode, for the reply to a change; `changed` is the inode as that change left it.
    /// Another mount may have deleted the inode since then, but ESTALE would make the kernel repeat the
    /// change, perhaps on another inode that has the name now.
    ///
    /// # Errors
    /// Those of [`Self::current`] except ESTALE.
    pub(crate) fn after_change(&self, changed: &Inode) -> Result<Attr, Errno> {
        match self.current(changed.ino) {
            Err(Errno::ESTALE) => Ok(self.of_deleted(changed)),
            attr => attr,
        }
    }

    /// The attributes of a deleted inode. The kernel must not cache them: otherwise a read would end at the
    /// cached size instead of failing.
    fn of_deleted(&self, inode: &Inode) -> Attr {
        Attr { per_caller: true, ..self.attr_of(inode) }
    }

    /// The attributes of an inode. For an open file, the unflushed writes are read first, and then the record
    /// is read again: writes that are flushed between the two reads are then in both results. In the other
    /// order they could be in neither.
    pub(crate) fn attr_of(&self, inode: &Inode) -> Attr {
        let Some(file) = self.open.get(inode.ino) else {
            return self.pending_atimes.overlay(self.shown(inode));
        };
        let unflushed = file.unflushed();
        let inode = self.inode(inode.ino).unwrap_or(*inode);
        let mut attr = self.shown(&inode);
        if let Some(unflushed) = unflushed {
            unflushed.overlay(&mut attr);
        }
        self.pending_atimes.overlay(attr)
    }

    /// Whether the kernel checks permissions, but was told at mount time that the volume has no ACLs.
    pub(crate) fn kernel_lacks_acls(&self) -> bool {
        self.is_kernel_without_acls.load(Ordering::Relaxed) && !self.access.is_squashing_all()
    }

    /// The attributes that the kernel gets.
    pub(crate) fn shown(&self, inode: &Inode) -> Attr {
        let attr = |inode: &Inode| {
            let (uid, gid) = (self.access.ids.local_user(inode.uid), self.access.ids.local_group(inode.gid));
            Attr { uid, gid, ..Attr::from(inode) }
        };
        // Traversers are users and groups that may search every directory, even one without an ACL.
        let has_traversers = inode.kind.is_dir() && !self.meta.traversers().is_empty();
        if !inode.access_acl.is_none() && self.kernel_lacks_acls() {
            // If an inode has an ACL, the group bits of its mode are the ACL's mask. A kernel that knows no
            // ACLs would grant them to the group, so it gets only the owner's bits, until the volume is
            // mounted again.
            return Attr { mode: inode.mode.without(0o077), ..attr(inode) };
        }
        if !self.access.has_nfs4_acls() || inode.access_acl.is_none() && !has_traversers {
            return attr(inode);
        }
        let project = |inode: &Inode| Ok((*inode, self.meta.run(&GetProjection(inode), &BY_KERNEL)?));
        match self.meta.read_acl_of(inode, project) {
            Ok((inode, None)) => attr(&inode),
            Ok((inode, Some(projection))) => Attr {
                mode: inode.mode.without(0o777).with(projection.rwx),
                per_caller: inode.kind.is_dir() && !projection.search_is_exact,
                ..attr(&inode)
            },
            // An ACL that cannot be read grants nothing. The error may be transient, so the kernel must not
            // cache this.
            Err(error) => {
                tracing::error!(ino = %inode.ino, %error, "cannot read an ACL; access to the inode is denied");
                Attr { mode: inode.mode.without(0o777), per_caller: true, ..attr(inode) }
            }
        }
    }

    /// Checks the caller for access(2) and chdir(2), if the kernel cannot.
    ///
    /// # Errors
    /// On volumes with NFSv4 ACLs, those of [`ops::CheckAccess`]. On others, those of
    /// [`AccessCheck::permits`], and EACCES if a squashed caller lacks a permission in `want`.
    pub fn access(&self, caller: &Caller<'_>, ino: Ino, want: Perm) -> Result<(), Errno> {
        if !self.access.has_nfs4_acls() {
            return self.access.check_posix(caller, &self.inode(ino)?, want);
        }
        let masks =
            [(Perm::READ, Mask::READ_DATA), (Perm::WRITE, Mask::WRITE_DATA), (Perm::EXECUTE, Mask::EXECUTE)];
        let wanted = masks.into_iter().filter(|(perm, _)| want.has(*perm));
        self.access.check_nfs4(caller, ino, wanted.fold(Mask::NONE, |all, (_, mask)| all | mask))
    }

    /// Records that an inode was read: its data, its names, or the target of a symbolic link.
    pub fn note_atime(&self, ino: Ino) {
        if self.is_atime_due(ino) {
            self.pending_atimes.note(ino);
        }
    }

    /// Whether a read of the inode changes its atime. If so, the kernel must not answer the read from its
    /// cache.
    pub fn is_atime_due(&self, ino: Ino) -> bool {
        self.pending_atimes.is_due(|| self.current(ino))
    }

    /// The deleted inodes that the kernel holds, and whether it knows of no ACLs, for another process.
    pub(crate) fn describe(&self) -> (Vec<Inode>, bool) {
        let unlinked = host::lock(&self.unlinked).values().copied().collect();
        (unlinked, self.is_kernel_without_acls.load(Ordering::Relaxed))
    }

    /// Takes over the state that another process has described by [`Self::describe`].
    pub(crate) fn restore(&self, unlinked: Vec<Inode>, is_kernel_without_acls: bool) {
        host::lock(&self.unlinked).extend(unlinked.into_iter().map(|inode| (inode.ino, inode)));
        self.is_kernel_without_acls.store(is_kernel_without_acls, Ordering::Relaxed);
    }

    /// The kernel gives back `lookups` of the references to an inode that it got from replies.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        if self.caches.forget_lookups(ino, lookups) {
            host::lock(&self.unlinked).remove(&ino);
        }
    }
}
