//! The mounted volume: a facade over its parts.
//!
//! Each part is a struct in a file of its own, with its own fields and locks ([`crate::parts`]). The methods here do nothing
//! but call a part; their errors are listed there, at the method of the same name.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use acl::idmap::Ids;
use bytes::Bytes;
use chunk::BlockStore;
use client::Meta;
use meta::{Inode, Lock};
use ops::{AllocateMode, AtimeMode, Locked, OpenFor, RenameFlags, XattrMode};
use types::{Errno, Ino, Mode};

use crate::access_check::{Perm, SearchCounts};
use crate::attr::{Attr, Entry};
use crate::caller::Caller;
use crate::coherence::{Coherence, Kernel};
use crate::fencing::SessionLoss;
use crate::in_flight::ReplyGuard;
use crate::listings::{DirEntry, DirHandle, DirPosition};
use crate::locks::LockRequest;
use crate::names::MakeRequest;
use crate::parts::{Parts, VfsOptions};
use crate::ranges::Seek;
use crate::session::SessionInfo;
use crate::setattr::AttrChange;
use crate::statfs::StatFs;

/// A mounted volume. Protocol requests are calls of its methods, which can be called from many threads.
#[derive(Debug)]
pub struct Vfs {
    pub(crate) parts: Parts,
}

impl Vfs {
    pub fn new(meta: Arc<Meta>, store: Arc<BlockStore>, options: VfsOptions) -> Vfs {
        Vfs { parts: Parts::new(meta, store, options) }
    }

    pub fn meta(&self) -> &Arc<Meta> {
        &self.parts.meta
    }

    /// Whether no other client can change the volume, so that the kernel may cache data and listings.
    pub fn is_exclusive(&self) -> bool {
        self.parts.meta.is_exclusive()
    }

    /// The size and usage of the volume, `statfs(2)`.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        StatFs::read(&self.parts.meta)
    }

    /// Bytes that programs wrote and that are neither in the object store nor in the metadata yet.
    pub fn unstored_bytes(&self) -> u64 {
        self.parts.writes.budget.used_bytes()
    }

    /// The mapping of ids between this machine and the volume.
    pub fn ids(&self) -> &Ids {
        &self.parts.access.ids
    }

    pub fn atime_mode(&self) -> AtimeMode {
        self.parts.accesses.mode()
    }

    // Names: `names`.

    /// Looks up a name in a directory.
    pub fn lookup(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<Entry, Errno> {
        self.parts.names.lookup(caller, parent, bytes)
    }

    /// Resolves a file handle whose inode the kernel no longer holds, LOOKUP of `.` (`fuse_get_dentry`).
    pub fn lookup_by_handle(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.parts.names.lookup_by_handle(caller, ino)
    }

    /// The parent of a directory, LOOKUP of `..` (`fuse_get_parent`).
    pub fn lookup_parent(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.parts.names.lookup_parent(caller, ino)
    }

    /// Creates an inode other than a symbolic link, with a name.
    pub fn make(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        self.parts.names.make(caller, request)
    }

    /// Creates a regular file and opens it.
    pub fn create(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        self.parts.names.create(caller, request)
    }

    /// Creates a symbolic link.
    pub fn symlink(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        bytes: &[u8],
        target: &[u8],
    ) -> Result<Attr, Errno> {
        self.parts.names.symlink(caller, parent, bytes, target)
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Arc<[u8]>, Errno> {
        self.parts.names.readlink(ino)
    }

    /// Creates a hard link; a file opened with `O_TMPFILE` gets its first name.
    pub fn link(&self, caller: &Caller<'_>, ino: Ino, parent: Ino, bytes: &[u8]) -> Result<Attr, Errno> {
        self.parts.names.link(caller, ino, parent, bytes)
    }

    /// Removes a name of an inode that is not a directory.
    pub fn unlink(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        self.parts.names.unlink(caller, parent, bytes)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, caller: &Caller<'_>, parent: Ino, bytes: &[u8]) -> Result<(), Errno> {
        self.parts.names.rmdir(caller, parent, bytes)
    }

    /// Renames or exchanges, `renameat2(2)`.
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        old: (Ino, &[u8]),
        new: (Ino, &[u8]),
        flags: RenameFlags,
        whiteout: bool,
    ) -> Result<(), Errno> {
        self.parts.names.rename(caller, old, new, flags, whiteout)
    }

    /// Creates a regular file without a name and opens it, `O_TMPFILE`.
    pub fn tmpfile(&self, caller: &Caller<'_>, parent: Ino, mode: Mode, umask: u32) -> Result<Attr, Errno> {
        self.parts.names.tmpfile(caller, parent, mode, umask)
    }

    // Attributes: `attributes` and `setattr`.

    /// The attributes of an inode, including unflushed writes.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.parts.attributes.getattr(ino)
    }

    /// The attributes for a caller. If they are per caller, the kernel requests them before it grants search.
    pub fn getattr_for(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        self.parts.attributes.getattr_for(caller, ino)
    }

    /// The check of access(2) and chdir(2), if the kernel cannot make it.
    pub fn access(&self, caller: &Caller<'_>, ino: Ino, want: Perm) -> Result<(), Errno> {
        self.parts.attributes.access(caller, ino, want)
    }

    /// Records that an inode was read: its data, its names, or the target of a symbolic link.
    pub fn accessed(&self, ino: Ino) {
        self.parts.attributes.accessed(ino)
    }

    /// Whether a read of the inode changes its atime, so that the kernel must not answer it from its cache.
    pub fn is_access_due(&self, ino: Ino) -> bool {
        self.parts.attributes.is_access_due(ino)
    }

    /// The kernel gives back references to an inode, as many as `lookups` replies gave it.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        self.parts.attributes.forget(ino, lookups)
    }

    /// Changes attributes, also the size (truncation); returns the new attributes.
    pub fn setattr(&self, caller: &Caller<'_>, ino: Ino, change: AttrChange) -> Result<Attr, Errno> {
        self.parts.setattr.setattr(caller, ino, change)
    }

    // Open files: `files` and `ranges`.

    /// Opens a regular file; a file that is already open gets one more handle. `O_TRUNC` is not handled here:
    /// the kernel sends it as a separate truncation. Returns whether the caller may only append.
    pub fn open(&self, caller: &Caller<'_>, ino: Ino, what_for: OpenFor) -> Result<bool, Errno> {
        self.parts.files.open(caller, ino, what_for)
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        self.parts.files.read(ino, offset, len)
    }

    /// As [`Vfs::read`], for the kernel's cache.
    pub fn read_to_cache(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        self.parts.files.read_to_cache(ino, offset, len)
    }

    /// Writes `bytes` at `offset`. Call [`Vfs::kill_priv_of_writer`] first.
    pub fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.parts.files.write(ino, offset, bytes)
    }

    /// Writes `bytes` at the end of the file as of the commit, also if other clients append; returns the
    /// offset.
    pub fn append(&self, ino: Ino, bytes: &[u8]) -> Result<u64, Errno> {
        self.parts.files.append(ino, bytes)
    }

    /// Stores and commits the written data: other clients see it from now on (close-to-open consistency).
    pub fn flush(&self, ino: Ino) -> Result<(), Errno> {
        self.parts.files.flush(ino)
    }

    /// As [`Vfs::flush`], and makes the data durable.
    pub fn fsync(&self, ino: Ino) -> Result<(), Errno> {
        self.parts.files.fsync(ino)
    }

    /// Closes one handle of a file.
    pub fn close(&self, ino: Ino) -> Result<(), Errno> {
        self.parts.files.close(ino)
    }

    /// Drops pages that the kernel may have read during an `O_DIRECT` write. Called before the reply.
    pub fn forget_overwritten(&self, ino: Ino, offset: u64, len: u64) {
        self.parts.files.forget_overwritten(ino, offset, len)
    }

    /// Allocates, punches or zeroes a range of an open file, `fallocate(2)`.
    pub fn allocate(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    ) -> Result<(), Errno> {
        self.parts.ranges.allocate(caller, ino, offset, len, mode)
    }

    /// The first offset from `offset` on that has data, or is in a hole.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.parts.ranges.seek(ino, offset, what)
    }

    /// Copies up to `len` bytes between open files by sharing their slices; returns the number of bytes.
    pub fn copy_range(
        &self,
        caller: &Caller<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        self.parts.ranges.copy_range(caller, from, to, len)
    }

    /// Clears SUID, SGID and file capabilities before a write. `kill_suidgid`: the caller lacks `CAP_FSETID`.
    pub fn kill_priv_of_writer(&self, ino: Ino, kill_suidgid: bool) -> Result<(), Errno> {
        self.parts.ranges.kill_priv_of_writer(ino, kill_suidgid)
    }

    // Open directories: `listings`.

    /// Opens a directory for listing.
    pub fn opendir(&self, caller: &Caller<'_>, ino: Ino) -> Result<DirHandle, Errno> {
        self.parts.listings.opendir(caller, ino)
    }

    /// Passes entries to `take` from `position` on, until `take` returns `false` or the directory ends.
    pub fn readdir(
        &self,
        handle: DirHandle,
        position: DirPosition,
        attrs: bool,
        take: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        self.parts.listings.readdir(handle, position, attrs, take)
    }

    /// Closes an open directory.
    pub fn closedir(&self, handle: DirHandle) -> Result<(), Errno> {
        self.parts.listings.closedir(handle)
    }

    /// Whether listings depend on the caller, so that they must not be shared between callers.
    pub fn hides_unreadable(&self) -> bool {
        self.parts.listings.hides_unreadable()
    }

    // Extended attributes and ACLs: `xattrs`.

    /// The value of an xattr.
    pub fn getxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>, Errno> {
        self.parts.xattrs.getxattr(caller, ino, name)
    }

    /// The names of the xattrs, each followed by NUL, `listxattr(2)`.
    pub fn listxattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.parts.xattrs.listxattr(caller, ino)
    }

    /// Sets an xattr or an ACL. `acl_kill_sgid`: setting an access ACL clears the SGID bit (`FUSE_SETXATTR_ACL_KILL_SGID`).
    pub fn setxattr(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        acl_kill_sgid: bool,
    ) -> Result<(), Errno> {
        self.parts.xattrs.setxattr(caller, ino, name, value, mode, acl_kill_sgid)
    }

    /// Removes an xattr or an ACL.
    pub fn removexattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        self.parts.xattrs.removexattr(caller, ino, name)
    }

    /// Writes and accepts users and groups as `name@domain` in ACLs; otherwise they are numbers.
    pub fn set_nfs4_domain(&self, domain: String) {
        self.parts.xattrs.nfs4.set_nfs4_domain(domain)
    }

    // Access checks: `access_check`.

    /// Whether mode, ACL and capabilities grant the caller all of `want` on an inode, like `generic_permission`
    /// in the kernel.
    pub fn permits(&self, caller: &Caller<'_>, inode: &Inode, want: Perm) -> Result<bool, Errno> {
        self.parts.access.permits(caller, inode, want)
    }

    /// Whether callers are squashed, that is, have other ids here than in the kernel.
    pub fn is_squashing(&self) -> bool {
        self.parts.access.is_squashing()
    }

    /// Whether the kernel checks no caller, because all of them are squashed.
    pub fn decides_alone(&self) -> bool {
        self.parts.access.decides_alone()
    }

    /// Lookups so far, by whether the caller was checked.
    pub fn search_counts(&self) -> SearchCounts {
        self.parts.access.search_counts()
    }

    // Locks: `locks`.

    /// Takes a lock through a handle.
    pub fn take_lock(
        &self,
        ino: Ino,
        handle: u64,
        request: LockRequest,
        wait: bool,
    ) -> Result<Locked, Errno> {
        self.parts.locks.take_lock(ino, handle, request, wait)
    }

    /// Retries a request for which [`Vfs::take_lock`] returned [`Locked::Waiting`].
    pub fn ask_again(&self, ino: Ino, request: LockRequest) -> Result<Locked, Errno> {
        self.parts.locks.ask_again(ino, request)
    }

    /// Cancels a request for which [`Vfs::take_lock`] returned [`Locked::Waiting`].
    pub fn stop_waiting(&self, request: LockRequest) {
        self.parts.locks.stop_waiting(request)
    }

    /// Unlocks a range, after it has committed the data that was written under the lock, so that other clients
    /// see it.
    pub fn unlock(&self, ino: Ino, request: LockRequest) -> Result<(), Errno> {
        self.parts.locks.unlock(ino, request)
    }

    /// Releases all locks of a process on a file when it closes a descriptor of it.
    pub fn unlock_process(&self, ino: Ino, owner: u64) -> Result<(), Errno> {
        self.parts.locks.unlock_process(ino, owner)
    }

    /// Releases all locks of an open file description that was closed.
    pub fn unlock_handle(&self, ino: Ino, handle: u64, flock: Option<u64>) -> Result<(), Errno> {
        self.parts.locks.unlock_handle(ino, handle, flock)
    }

    /// Finds a lock that conflicts with this one.
    pub fn find_lock(&self, ino: Ino, request: LockRequest) -> Result<Option<Lock>, Errno> {
        self.parts.locks.find_lock(ino, request)
    }

    // Coherence: `coherence`.

    /// How this client stays coherent with others.
    pub fn coherence(&self) -> Coherence {
        self.parts.caches.coherence()
    }

    /// Sets the kernel whose caches are to be invalidated.
    pub fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        self.parts.caches.set_kernel(kernel)
    }

    /// Starts the threads that receive changes by other clients, unless this client is alone or the engine has
    /// no stream of changes.
    pub fn start_watching(&self, kernel: Arc<dyn Kernel>) -> io::Result<Vec<JoinHandle<()>>> {
        self.parts.caches.start_watching(kernel)
    }

    /// Counts a request until the guard is dropped. Must be called before the request reads any record.
    pub fn begin_reply(&self) -> ReplyGuard<'_> {
        self.parts.caches.begin_reply()
    }

    /// Records that a reply gives the kernel a reference to the inode in addition to its attributes. Called
    /// before the reply is written.
    pub fn looked_up(&self, attr: &Attr) {
        self.parts.caches.looked_up(attr)
    }

    // The session: `lifecycle` and `housekeeping`.

    /// Begins the session, after removing sessions whose processes have ended.
    pub fn begin(&self, info: &SessionInfo) -> Result<(), Errno> {
        self.parts.lifecycle.begin(info)
    }

    /// Starts the background threads. They end with [`Vfs::end`].
    pub fn start_housekeeping(&self, info: SessionInfo) -> io::Result<()> {
        self.parts.session.set_info(&info);
        self.parts.housekeeping.start()
    }

    /// Ends the threads, then the session. All written data is stored and durable, and the session's locks and open
    /// files are removed.
    pub fn end(&self) -> Result<(), Errno> {
        self.parts.housekeeping.stop();
        self.parts.lifecycle.end()
    }

    /// Stores and commits all written data, and makes it durable, `syncfs(2)`.
    pub fn sync(&self) -> Result<(), Errno> {
        self.parts.lifecycle.sync()
    }

    /// The last loss of this mount's session, if there was one.
    pub fn session_loss(&self) -> Option<SessionLoss> {
        self.parts.fencing.session_loss()
    }

    /// Makes everything committed so far durable, metadata and data.
    pub fn make_durable(&self) -> Result<(), Errno> {
        self.parts.commits.make_durable()
    }
}
