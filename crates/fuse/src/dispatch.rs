//! Dispatches requests: one match arm per operation converts its arguments, calls the VFS and builds the
//! reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fuse_proto::{
    Body, CopyRange, DirBuffer, Entry, Fh, InitConfig, LockRequest, NodeId, OpenFlags, Operation, ReadDir,
    Request,
};
use fuse_transport::Reply;
use rustix::fs::OFlags;
use types::{Errno, Ino, Mode};
use vfs::{
    AclKind, Caller, DirEntry, DirHandle, DirPosition, Lifetimes, Locked, MakeRequest, Perm, RenameFlags,
    ReplyGuard, Special, Vfs, XattrMode,
};

use crate::callers::Callers;
use crate::init;
use crate::kernel::Epochs;
use crate::root;
use crate::translate::{self, F_UNLCK, O_ACCMODE, O_APPEND, O_RDONLY, O_WRONLY, attr, entry};
use crate::waiters::Waiters;

/// The handler of requests.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) callers: Callers,
    pub(crate) next_handle: AtomicU64,
    /// Whether the FUSE root is the volume's root, not its parent.
    pub(crate) direct: bool,
    pub(crate) epochs: Epochs,
}

/// `open(2)`.
const O_EXCL: u32 = 0o200;
const O_DIRECT: u32 = OFlags::DIRECT.bits();
const O_NOATIME: u32 = 0o1000000;

/// `setxattr(2)`.
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// Marks the handle of a file whose opener may only append. Programs can clear `O_APPEND` of their
/// descriptor, but not this.
///
/// The file is opened with direct I/O, because a shared mapping could write at any offset.
const APPEND_ONLY: u64 = 1 << 63;

/// The body of a reply: of fixed size, or any number of bytes. It is on the stack for a short time, never in
/// a collection.
#[expect(clippy::large_enum_variant, reason = "a box would cost more than the bytes it saves")]
enum Answer {
    Body(Body),
    Bytes(Bytes),
    Listing(DirBuffer),
}

impl From<Body> for Answer {
    fn from(body: Body) -> Self {
        Answer::Body(body)
    }
}

impl Dispatch {
    pub(crate) fn handle(&self, request: &Request<'_>, reply: Reply) {
        let vfs = &*self.vfs;
        match request.operation {
            Operation::Forget { lookups } => {
                vfs.forget(self.ino(request.header.nodeid), lookups);
                reply.none();
            }
            Operation::BatchForget(nodes) => {
                nodes.iter().for_each(|(node, lookups)| vfs.forget(self.ino(node), lookups));
                reply.none();
            }
            Operation::Interrupt { unique } => {
                self.waiters.interrupt(unique);
                reply.none();
            }
            Operation::SetLk { request: requested, wait: true } if requested.lock.kind != F_UNLCK => {
                self.wait_for_lock(request.header.uid, self.ino(request.header.nodeid), &requested, reply);
            }
            Operation::Init(offered) => match offered.negotiate(&self.init_config()) {
                Ok(agreed) => {
                    tracing::debug!(?agreed, "INIT");
                    self.epochs.agreed(agreed.minor);
                    reply.ok(Body::init(&agreed).as_bytes());
                }
                Err(error) => {
                    tracing::error!(%error, "cannot negotiate the FUSE protocol with the kernel");
                    reply.error(Errno::EPROTO);
                }
            },
            ref operation if request.header.nodeid == NodeId::ROOT && !self.direct => {
                if let Operation::StatFs | Operation::Destroy = operation {
                    self.send(request, reply);
                } else {
                    root::answer(vfs, operation, reply);
                }
            }
            _ => self.send(request, reply),
        }
    }

    fn send(&self, request: &Request<'_>, reply: Reply) {
        // Dropped after the reply is sent.
        let guard = is_reply_cached(&request.operation).then(|| self.vfs.begin_reply());
        match self.answer(request, guard.as_ref()) {
            Ok(Answer::Body(body)) => reply.ok(body.as_bytes()),
            Ok(Answer::Bytes(bytes)) => reply.ok(&bytes),
            Ok(Answer::Listing(dir)) => reply.ok(dir.as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn answer(&self, request: &Request<'_>, guard: Option<&ReplyGuard<'_>>) -> Result<Answer, Errno> {
        let vfs = &*self.vfs;
        let ino = self.ino(request.header.nodeid);
        let header = &request.header;
        let caller = &Caller::new(vfs.ids(), header.uid, header.gid, header.pid, &self.callers);
        match request.operation {
            Operation::Lookup { name: b"." } => self.entry_body(&vfs.lookup_by_handle(caller, ino)?, guard),
            Operation::Lookup { name: b".." } => self.entry_body(&vfs.lookup_parent(caller, ino)?, guard),
            Operation::Lookup { name } => {
                let found = vfs.lookup(caller, ino, name)?;
                match &found.attr {
                    Some(attr) => self.entry_body(attr, guard),
                    None => Ok(Body::entry(&Entry::negative(lifetimes(guard).name)).into()),
                }
            }
            Operation::GetAttr { .. } => self.attr_body(&vfs.getattr_for(caller, ino)?, guard),
            Operation::SetAttr(change) => {
                if change.size_bytes.is_some() {
                    refuse_append_only(change.fh)?;
                }
                self.attr_body(&vfs.setattr(caller, ino, translate::change(&change))?, guard)
            }
            Operation::ReadLink => {
                let target = vfs.readlink(ino)?;
                vfs.accessed(ino);
                Ok(Answer::Bytes(target.to_vec().into()))
            }
            Operation::Symlink { name, target } => {
                self.entry_body(&vfs.symlink(caller, ino, name, target)?, guard)
            }
            Operation::MkNod { name, mode, rdev, umask } => {
                let what = Special::from_mknod(mode, rdev)?;
                let request = MakeRequest { parent: ino, name, what, mode: Mode::new(mode), umask };
                self.entry_body(&vfs.make(caller, request)?, guard)
            }
            Operation::MkDir { name, mode, umask } => {
                let (what, mode) = (Special::Directory, Mode::new(mode));
                let request = MakeRequest { parent: ino, name, what, mode, umask };
                self.entry_body(&vfs.make(caller, request)?, guard)
            }
            Operation::Unlink { name } => done(vfs.unlink(caller, ino, name)),
            Operation::RmDir { name } => done(vfs.rmdir(caller, ino, name)),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let requested = |flag| flags.contains(flag);
                let whiteout = requested(fuse_proto::RenameFlags::WHITEOUT);
                let flags = RenameFlags {
                    no_replace: requested(fuse_proto::RenameFlags::NOREPLACE),
                    exchange: requested(fuse_proto::RenameFlags::EXCHANGE),
                };
                let (from, to) = ((ino, name), (self.ino(new_parent), new_name));
                done(vfs.rename(caller, from, to, flags, whiteout))
            }
            Operation::Link { node, name } => {
                self.entry_body(&vfs.link(caller, self.ino(node), ino, name)?, guard)
            }
            Operation::Open { flags, .. } => {
                let append_only = vfs.open(caller, ino, translate::open_for(flags))?;
                let Fh(handle) = self.new_handle();
                let (handle, flags) = match append_only {
                    // Without a page cache, and so without shared mappings, through which other processes
                    // could write anywhere.
                    true => (Fh(handle | APPEND_ONLY), OpenFlags::DIRECT_IO),
                    false => (Fh(handle), self.open_flags(ino, flags)),
                };
                Ok(Body::open(handle, flags).into())
            }
            Operation::Create(create) => {
                let (what, mode) = (Special::Regular, Mode::new(create.mode));
                let request = MakeRequest { parent: ino, name: create.name, what, mode, umask: create.umask };
                let made = match vfs.create(caller, request) {
                    // Another client created the name first. ESTALE makes the kernel look it up again and
                    // open it.
                    Err(Errno::EEXIST) if create.flags & O_EXCL == 0 => return Err(Errno::ESTALE),
                    made => made?,
                };
                let flags = self.open_flags(made.ino, create.flags);
                Ok(Body::create(&self.entry(&made, guard), self.new_handle(), flags).into())
            }
            Operation::Read(read) => {
                let bytes = match read.flags & O_DIRECT {
                    0 => vfs.read_to_cache(ino, read.offset, read.size_bytes)?,
                    _ => vfs.read(ino, read.offset, read.size_bytes)?,
                };
                self.accessed(ino, read.flags);
                Ok(Answer::Bytes(bytes))
            }
            Operation::Write(write) => {
                let appends = write.flags & O_APPEND != 0 && !write.from_cache;
                // For writeback, the kernel uses any handle of the file.
                let append_only = is_append_only(write.fh) && !write.from_cache;
                if append_only && !appends {
                    return Err(Errno::EPERM);
                }
                vfs.kill_priv_of_writer(ino, write.kill_suidgid)?;
                let offset = if appends && (append_only || !vfs.is_exclusive()) {
                    vfs.append(ino, write.data)?
                } else {
                    vfs.write(ino, write.offset, write.data)?;
                    write.offset
                };
                if write.flags & O_DIRECT != 0 {
                    vfs.forget_overwritten(ino, offset, write.data.len() as u64);
                }
                Ok(Body::written(write.data.len() as u32).into())
            }
            Operation::Flush { lock_owner, .. } => {
                // Flush before unlocking: the next holder of the lock must see the data written under it.
                let flushed = vfs.flush(ino);
                let unlocked = vfs.unlock_process(ino, lock_owner.0);
                self.waiters.wake();
                done(flushed.and(unlocked))
            }
            Operation::Release(release) => {
                let flock = release.flock_unlock.then_some(release.lock_owner.0);
                let closed = vfs.close(ino);
                let unlocked = vfs.unlock_handle(ino, release.fh.0, flock);
                self.waiters.wake();
                done(closed.and(unlocked))
            }
            Operation::GetLk(requested) => {
                let found = vfs.find_lock(ino, translate::lock(&requested)?)?;
                Ok(Body::lock(&translate::found_lock(&requested.lock, found)).into())
            }
            Operation::SetLk { request: requested, .. } => {
                let wanted = translate::lock(&requested)?;
                if requested.lock.kind == F_UNLCK {
                    vfs.unlock(ino, wanted)?;
                    self.waiters.wake();
                } else {
                    vfs.take_lock(ino, requested.fh.0, wanted, false)?;
                }
                Ok(Body::empty().into())
            }
            Operation::Fsync { .. } => done(vfs.fsync(ino)),
            Operation::StatFs => Ok(Body::statfs(&translate::statfs(&vfs.statfs()?)).into()),
            Operation::SetXattr(set) => {
                const BOTH: u32 = XATTR_CREATE | XATTR_REPLACE;
                let mode = match set.flags {
                    0 => XattrMode::Set,
                    XATTR_CREATE => XattrMode::Create,
                    XATTR_REPLACE => XattrMode::Replace,
                    // Both conditions cannot be met; like ext4, return the error of the one that is not.
                    BOTH => {
                        return Err(vfs
                            .getxattr(caller, ino, set.name)
                            .map_or_else(|errno| errno, |_| Errno::EEXIST));
                    }
                    _ => return Err(Errno::EINVAL),
                };
                done(vfs.setxattr(caller, ino, set.name, set.value, mode, set.acl_kill_sgid))
            }
            Operation::GetXattr { name, size } => sized(&vfs.getxattr(caller, ino, name)?, size),
            Operation::ListXattr { size } => sized(&vfs.listxattr(caller, ino)?, size),
            Operation::RemoveXattr { name } => done(vfs.removexattr(caller, ino, name)),
            Operation::OpenDir { flags } => {
                let DirHandle(fh) = vfs.opendir(caller, ino)?;
                // The kernel must not cache a listing that depends on the caller.
                let flags = match vfs.is_exclusive() && !vfs.hides_unreadable() && !vfs.is_squashing() {
                    true => OpenFlags::CACHE_DIR | self.keep_cache(ino, flags),
                    false => OpenFlags::NONE,
                };
                Ok(Body::open(Fh(fh), flags).into())
            }
            Operation::ReadDir(read) => self.list(ino, read, None),
            Operation::ReadDirPlus(read) => self.list(ino, read, Some(lifetimes(guard))),
            Operation::ReleaseDir(release) => done(vfs.closedir(DirHandle(release.fh.0))),
            Operation::FsyncDir { .. } => done(vfs.make_durable()),
            // The kernel does not send this today (`fuse_sync_fs`). With ENOSYS, syncfs(2) would do nothing
            // and succeed.
            Operation::SyncFs => done(vfs.sync()),
            Operation::Destroy => Ok(Body::empty().into()),
            Operation::TmpFile(create) => {
                let made = vfs.tmpfile(caller, ino, Mode::new(create.mode), create.umask)?;
                let flags = self.open_flags(made.ino, create.flags);
                Ok(Body::create(&self.entry(&made, guard), self.new_handle(), flags).into())
            }
            Operation::Fallocate { fh, offset, len, mode } => {
                refuse_append_only(Some(fh))?;
                done(vfs.allocate(caller, ino, offset, len, translate::allocate_mode(mode)?))
            }
            Operation::Lseek { offset, whence, .. } => {
                Ok(Body::lseek(vfs.seek(ino, offset, translate::seek(whence)?)?).into())
            }
            Operation::CopyFileRange(copy) => Ok(Body::written(self.copy(caller, ino, &copy)? as u32).into()),
            Operation::CopyFileRange64(copy) => Ok(Body::copied_64(self.copy(caller, ino, &copy)?).into()),
            Operation::Access { mask } if vfs.decides_alone() => {
                done(vfs.access(caller, ino, Perm::new(mask)))
            }
            // After ENOSYS, the kernel does without the operation, and for most operations never sends it
            // again.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn wait_for_lock(&self, uid: u32, ino: Ino, requested: &LockRequest, reply: Reply) {
        let wanted = match translate::lock(requested) {
            Ok(wanted) => wanted,
            Err(errno) => return reply.error(errno),
        };
        match self.vfs.take_lock(ino, requested.fh.0, wanted, true) {
            Ok(Locked::Granted) => reply.ok(&[]),
            Ok(Locked::Waiting) => self.waiters.add(&self.vfs, reply, uid, ino, wanted),
            Err(errno) => reply.error(errno),
        }
    }

    /// The length is limited to what the smaller of the two reply formats can hold.
    fn copy(&self, caller: &Caller<'_>, from: Ino, copy: &CopyRange) -> Result<u64, Errno> {
        refuse_append_only(Some(copy.fh_out))?;
        let to = (self.ino(copy.node_out), copy.offset_out);
        self.vfs.copy_range(caller, (from, copy.offset_in), to, copy.len.min(i32::MAX as u64))
    }

    /// With `plus`, each entry has the attributes of its inode, with these lifetimes.
    fn list(&self, ino: Ino, read: ReadDir, plus: Option<Lifetimes>) -> Result<Answer, Errno> {
        let mut dir = DirBuffer::new(read.size_bytes as usize);
        let mut take = |found: DirEntry<'_>| {
            let Some(lifetimes) = plus else {
                return dir.push(found.ino.0, found.next.0, found.kind.to_dtype(), found.name).is_ok();
            };
            let entry = match &found.attr {
                Some(attr) => entry(attr, lifetimes),
                None => bare_entry(&found),
            };
            let fits = dir.push_plus(&entry, found.next.0, found.name).is_ok();
            if let (Some(attr), true) = (&found.attr, fits) {
                self.vfs.looked_up(attr);
            }
            fits
        };
        self.vfs.readdir(DirHandle(read.fh.0), DirPosition(read.offset), plus.is_some(), &mut take)?;
        self.accessed(ino, read.flags);
        Ok(Answer::Listing(dir))
    }

    fn attr_body(&self, of: &vfs::Attr, guard: Option<&ReplyGuard<'_>>) -> Result<Answer, Errno> {
        Ok(Body::attr(&attr(of), translate::attr_ttl(of, lifetimes(guard))).into())
    }

    fn entry_body(&self, of: &vfs::Attr, guard: Option<&ReplyGuard<'_>>) -> Result<Answer, Errno> {
        Ok(Body::entry(&self.entry(of, guard)).into())
    }

    /// The entry of an inode. The reply gives the kernel one more reference to it.
    fn entry(&self, of: &vfs::Attr, guard: Option<&ReplyGuard<'_>>) -> Entry {
        self.vfs.looked_up(of);
        Entry { nodeid: self.node(of.ino), ..entry(of, lifetimes(guard)) }
    }

    /// A file opened read-only has nothing to flush, except to release locks. If other clients can append,
    /// the file offset of an appending write is not known to the kernel, so it must not cache the data.
    fn open_flags(&self, ino: Ino, flags: u32) -> OpenFlags {
        match (self.vfs.is_exclusive(), flags & O_ACCMODE == O_RDONLY) {
            (true, true) => OpenFlags::NOFLUSH | self.keep_cache(ino, flags),
            (true, false) => self.keep_cache(ino, flags),
            (false, _) if flags & O_APPEND != 0 => OpenFlags::DIRECT_IO,
            (false, _) => OpenFlags::NONE,
        }
    }

    /// The kernel keeps its cached data, unless reads must be seen for the atime.
    fn keep_cache(&self, ino: Ino, flags: u32) -> OpenFlags {
        let unseen = flags & O_ACCMODE == O_WRONLY || flags & O_NOATIME != 0;
        if unseen || !self.vfs.is_access_due(ino) { OpenFlags::KEEP_CACHE } else { OpenFlags::NONE }
    }

    fn accessed(&self, ino: Ino, flags: u32) {
        if flags & O_NOATIME == 0 {
            self.vfs.accessed(ino);
        }
    }

    fn init_config(&self) -> InitConfig {
        // If the kernel had the ACLs, it would check callers with them.
        let acl = if self.vfs.decides_alone() { AclKind::Off } else { self.vfs.meta().volume().acl };
        init::config(acl, self.vfs.is_exclusive(), self.vfs.atime_mode())
    }

    /// Handles distinguish open files for their locks. If this client is alone, the kernel keeps the locks.
    fn new_handle(&self) -> Fh {
        if self.vfs.is_exclusive() { Fh(0) } else { Fh(self.next_handle.fetch_add(1, Ordering::Relaxed)) }
    }

    fn ino(&self, node: NodeId) -> Ino {
        if node == NodeId::ROOT && self.direct { Ino::ROOT } else { Ino(node.0) }
    }

    fn node(&self, ino: Ino) -> NodeId {
        if ino == Ino::ROOT && self.direct { NodeId::ROOT } else { NodeId(ino.0) }
    }
}

/// Whether the kernel caches the name, attributes or ACL in the reply.
fn is_reply_cached(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Lookup { .. }
            | Operation::GetAttr { .. }
            | Operation::SetAttr(_)
            | Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Link { .. }
            | Operation::Create(_)
            | Operation::TmpFile(_)
            | Operation::ReadDirPlus(_)
            | Operation::GetXattr { .. }
    )
}

/// [`Lifetimes::NONE`] if the request was not counted: the kernel must not cache the reply then.
fn lifetimes(guard: Option<&ReplyGuard<'_>>) -> Lifetimes {
    guard.map_or(Lifetimes::NONE, ReplyGuard::lifetimes)
}

fn is_append_only(handle: Fh) -> bool {
    handle.0 & APPEND_ONLY != 0
}

/// Denies a change that is not an append through an append-only handle.
///
/// # Errors
/// EPERM if the handle is append-only.
fn refuse_append_only(handle: Option<Fh>) -> Result<(), Errno> {
    if handle.is_some_and(is_append_only) { Err(Errno::EPERM) } else { Ok(()) }
}

fn done(result: Result<(), Errno>) -> Result<Answer, Errno> {
    result.map(|()| Body::empty().into())
}

/// The reply to GETXATTR and LISTXATTR: the length if the size is 0, ERANGE if it is too small.
fn sized(value: &[u8], size: u32) -> Result<Answer, Errno> {
    let len = u32::try_from(value.len()).map_err(|_| Errno::E2BIG)?;
    match size {
        0 => Ok(Body::xattr_size(len).into()),
        _ if len > size => Err(Errno::ERANGE),
        _ => Ok(Answer::Bytes(value.to_vec().into())),
    }
}

/// An entry for `.` and `..`, which does not count as a lookup.
fn bare_entry(found: &DirEntry<'_>) -> Entry {
    let attr =
        fuse_proto::Attr { ino: found.ino.0, mode: found.kind.to_ifmt(), ..fuse_proto::Attr::default() };
    Entry { attr, ..Entry::default() }
}
