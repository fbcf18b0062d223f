//! Dispatches requests: one match arm per operation converts its arguments, calls the VFS and builds the
//! reply.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use fuse_proto::{
    Body, CopyRange, DirBuffer, Entry, Fh, InitConfig, InitOut, LockRequest, NodeId, OpenFlags, Operation,
    Read, Request,
};
use fuse_transport::Reply;
use rustix::fs::OFlags;
use types::{Errno, Ino, Mode};
use vfs::{
    AclKind, Caller, DirEntry, DirHandle, DirPosition, Lifetimes, Locked, MakeKind, MakeRequest, Perm,
    RenameFlags, ReplyGuard, Vfs, XattrMode,
};

use crate::callers::Callers;
use crate::counts::RequestMeter;
use crate::init;
use crate::kernel;
use crate::root;
use crate::translate::{self, F_UNLCK, O_ACCMODE, O_APPEND, O_RDONLY, O_WRONLY, attr, entry};
use crate::waiters::Waiters;

/// The handler of requests.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) callers: Callers,
    pub(crate) next_handle: Arc<AtomicU64>,
    /// The directory of the volume that is mounted.
    pub(crate) root: Ino,
    /// Whether the FUSE root is that directory, not its parent.
    pub(crate) direct: bool,
    /// The result of INIT.
    pub(crate) negotiated: Arc<OnceLock<InitOut>>,
}

/// Flags of `open(2)`.
const O_EXCL: u32 = 0o200;
const O_DIRECT: u32 = OFlags::DIRECT.bits();
const O_NOATIME: u32 = 0o1000000;

/// Flags of `setxattr(2)`.
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// Marks the handle of a file whose opener may only append. Programs can clear `O_APPEND` of their
/// descriptor, but not this mark.
///
/// The file is opened with direct I/O, because a shared mapping could write at any offset.
const APPEND_ONLY: u64 = 1 << 63;

/// The body of a reply: of fixed size, or any number of bytes. The difference in size of the variants does
/// not matter, because a value is on the stack for a short time, never in a collection.
enum ReplyBody {
    Body(Body),
    Bytes(Bytes),
    Listing(DirBuffer),
}

impl From<Body> for ReplyBody {
    fn from(body: Body) -> Self {
        ReplyBody::Body(body)
    }
}

impl Dispatch {
    /// Handles a request. If it must wait until another mount gives back a directory, and `may_wait` is not
    /// set, returns the reply instead.
    pub(crate) fn handle(
        &self,
        request: &Request<'_>,
        meter: &RequestMeter,
        reply: Reply,
        may_wait: bool,
    ) -> Option<Reply> {
        let vfs = &*self.vfs;
        match request.operation {
            Operation::Forget { lookups } => {
                vfs.attributes.forget(self.ino(request.header.nodeid), lookups);
                reply.none();
            }
            Operation::BatchForget(nodes) => {
                nodes.iter().for_each(|(node, lookups)| vfs.attributes.forget(self.ino(node), lookups));
                reply.none();
            }
            Operation::Interrupt { unique } => {
                self.waiters.interrupt(&self.vfs, unique);
                reply.none();
            }
            Operation::SetLk { request: requested, wait } if requested.lock.kind != F_UNLCK => {
                let ino = self.ino(request.header.nodeid);
                self.take_lock(request.header.uid, ino, &requested, wait, reply);
            }
            Operation::Init(offered) => match offered.negotiate(&self.init_config()) {
                Ok(negotiated) => {
                    tracing::debug!(?negotiated, "INIT");
                    let _ = self.negotiated.set(negotiated);
                    reply.ok(Body::init(&negotiated).as_bytes());
                }
                Err(error) => {
                    tracing::error!(%error, "cannot negotiate the FUSE protocol with the kernel");
                    reply.error(Errno::EPROTO);
                }
            },
            ref operation if request.header.nodeid == NodeId::ROOT && !self.direct => {
                if let Operation::StatFs | Operation::Destroy = operation {
                    return self.send(request, meter, reply, may_wait);
                }
                root::answer(vfs, self.root, operation, reply);
            }
            _ => return self.send(request, meter, reply, may_wait),
        }
        None
    }

    fn send(
        &self,
        request: &Request<'_>,
        meter: &RequestMeter,
        reply: Reply,
        may_wait: bool,
    ) -> Option<Reply> {
        // The guard is dropped after the reply is sent.
        let guard = is_reply_cached(&request.operation).then(|| self.vfs.caches.begin_reply());
        let answer = if may_wait {
            self.answer(request, guard.as_ref())
        } else {
            let (answer, would_recall) = vfs::without_recalls(|| self.answer(request, guard.as_ref()));
            if would_recall && answer.is_err() {
                return Some(reply);
            }
            answer
        };
        if let Ok(answer) = &answer
            && let Some(bytes) = transferred(&request.operation, answer)
        {
            meter.bytes.record(bytes as u64);
        }
        match answer {
            Ok(ReplyBody::Body(body)) => reply.ok(body.as_bytes()),
            Ok(ReplyBody::Bytes(bytes)) => reply.ok(&bytes),
            Ok(ReplyBody::Listing(dir)) => reply.ok(dir.as_bytes()),
            Err(errno) => reply.error(errno),
        }
        None
    }

    fn answer(&self, request: &Request<'_>, guard: Option<&ReplyGuard<'_>>) -> Result<ReplyBody, Errno> {
        let vfs = &*self.vfs;
        let Vfs { access, attributes, names, files, listings, xattrs, locks, .. } = vfs;
        let ino = self.ino(request.header.nodeid);
        let header = &request.header;
        let caller = &Caller::new(&access.ids, header.uid, header.gid, header.pid, &self.callers);
        let make_request =
            |name, kind, mode, umask| MakeRequest { parent: ino, name, kind, mode: Mode::new(mode), umask };
        let make = |name, kind, mode, umask| {
            self.entry_body(
                &names.make(caller, make_request(name, kind, mode, umask))?,
                Some((ino, name)),
                guard,
            )
        };
        match request.operation {
            // For `.` and `..`, the kernel keeps no name (`fuse_get_dentry`, `fuse_get_parent`).
            Operation::Lookup { name: b"." } => {
                self.entry_body(&names.lookup_by_handle(caller, ino)?, None, guard)
            }
            // Directories above the mounted directory cannot be reached through this mount.
            Operation::Lookup { name: b".." } if ino == self.root => Err(Errno::ESTALE),
            Operation::Lookup { name: b".." } => {
                self.entry_body(&names.lookup_parent(caller, ino)?, None, guard)
            }
            Operation::Lookup { name } => match &names.lookup(caller, ino, name)? {
                Some(attr) => self.entry_body(attr, Some((ino, name)), guard),
                None if names.may_be_trashed(ino, name) => {
                    Ok(Body::entry(&Entry::negative(Duration::ZERO)).into())
                }
                None => {
                    let lifetime = vfs.caches.name_sent(ino, name, lifetimes(guard).name);
                    Ok(Body::entry(&Entry::negative(lifetime)).into())
                }
            },
            Operation::GetAttr { by_handle } => {
                self.attr_body(&attributes.getattr_for(caller, ino, by_handle)?, guard)
            }
            Operation::SetAttr(change) => {
                if change.size_bytes.is_some() {
                    refuse_append_only(change.fh)?;
                }
                self.attr_body(&vfs.setattr(caller, ino, translate::change(&change))?, guard)
            }
            Operation::ReadLink => {
                let target = names.readlink(ino)?;
                attributes.note_atime(ino);
                Ok(ReplyBody::Bytes(target.to_vec().into()))
            }
            Operation::Symlink { name, target } => make(name, MakeKind::Symlink(target.into()), 0o777, 0),
            Operation::MkNod { name, mode, rdev, umask } => {
                make(name, translate::make_kind(mode, rdev)?, mode, umask)
            }
            Operation::MkDir { name, mode, umask } => make(name, MakeKind::Directory, mode, umask),
            Operation::Unlink { name } => done(names.unlink(caller, ino, name)),
            Operation::RmDir { name } => done(names.rmdir(caller, ino, name)),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let requested = |flag| flags.contains(flag);
                let whiteout = requested(fuse_proto::RenameFlags::WHITEOUT);
                let flags = RenameFlags {
                    no_replace: requested(fuse_proto::RenameFlags::NOREPLACE),
                    exchange: requested(fuse_proto::RenameFlags::EXCHANGE),
                };
                let (from, to) = ((ino, name), (self.ino(new_parent), new_name));
                done(names.rename(caller, from, to, flags, whiteout))
            }
            Operation::Link { node, name } => {
                self.entry_body(&names.link(caller, self.ino(node), ino, name)?, Some((ino, name)), guard)
            }
            Operation::Open { flags } => {
                let append_only = files.open(caller, ino, translate::open_access(flags))?;
                let Fh(handle) = self.new_handle();
                let (handle, flags) = match append_only {
                    true => (Fh(handle | APPEND_ONLY), OpenFlags::DIRECT_IO),
                    false => (Fh(handle), self.open_flags(ino, flags)),
                };
                Ok(Body::open(handle, flags).into())
            }
            Operation::Create(create) => {
                let request = make_request(create.name, MakeKind::Regular, create.mode, create.umask);
                let made = match names.create(caller, request) {
                    // Another client created the name first. ESTALE makes the kernel look it up again and
                    // open it.
                    Err(Errno::EEXIST) if create.flags & O_EXCL == 0 => return Err(Errno::ESTALE),
                    made => made?,
                };
                let flags = self.open_flags(made.ino, create.flags);
                let entry = self.entry(&made, Some((ino, create.name)), guard);
                Ok(Body::create(&entry, self.new_handle(), flags).into())
            }
            Operation::Read(read) => {
                let bytes = match read.flags & O_DIRECT {
                    0 => files.read_to_cache(ino, read.offset, read.size_bytes)?,
                    _ => files.read(ino, read.offset, read.size_bytes)?,
                };
                self.note_atime(ino, read.flags);
                Ok(ReplyBody::Bytes(bytes))
            }
            Operation::Write(write) => {
                let appends = write.flags & O_APPEND != 0 && !write.from_cache;
                // For writeback, the kernel uses any handle of the file.
                let append_only = is_append_only(write.fh) && !write.from_cache;
                if append_only && !appends {
                    return Err(Errno::EPERM);
                }
                files.kill_priv_of_writer(ino, write.kill_suidgid)?;
                let offset = if appends && (append_only || !vfs.is_exclusive()) {
                    files.append(ino, write.data)?
                } else {
                    files.write(ino, write.offset, write.data)?;
                    write.offset
                };
                if write.flags & O_DIRECT != 0 {
                    files.invalidate_overwritten(ino, offset, write.data.len() as u64);
                }
                Ok(Body::written(write.data.len() as u32).into())
            }
            Operation::Flush { lock_owner } => {
                // Flush before unlocking: the next holder of the lock must see the data written under it.
                let flushed = files.flush(ino);
                let unlocked = locks.unlock_process(ino, lock_owner.0);
                self.waiters.wake();
                done(flushed.and(unlocked))
            }
            Operation::Release(release) => {
                let flock = release.flock_unlock.then_some(release.lock_owner.0);
                let closed = files.close(ino);
                let unlocked = locks.unlock_handle(ino, release.fh.0, flock);
                self.waiters.wake();
                done(closed.and(unlocked))
            }
            Operation::GetLk(requested) => {
                let found = locks.find_lock(ino, translate::lock(&requested)?)?;
                Ok(Body::lock(&translate::found_lock(&requested.lock, found)).into())
            }
            Operation::SetLk { request: requested, .. } => {
                locks.unlock(ino, translate::lock(&requested)?)?;
                self.waiters.wake();
                Ok(Body::empty().into())
            }
            Operation::Fsync => done(files.fsync(ino)),
            Operation::StatFs => Ok(Body::statfs(&translate::statfs(&vfs.statfs(ino)?)).into()),
            Operation::SetXattr(set) => {
                const BOTH: u32 = XATTR_CREATE | XATTR_REPLACE;
                let mode = match set.flags {
                    0 => XattrMode::Set,
                    XATTR_CREATE => XattrMode::Create,
                    XATTR_REPLACE => XattrMode::Replace,
                    // At most one of the two conditions holds. Like ext4, return the error of the one that
                    // does not.
                    BOTH => {
                        return Err(xattrs
                            .getxattr(caller, ino, set.name)
                            .map_or_else(|errno| errno, |_| Errno::EEXIST));
                    }
                    _ => return Err(Errno::EINVAL),
                };
                done(xattrs.setxattr(caller, ino, set.name, set.value, mode, set.acl_kill_sgid))
            }
            Operation::GetXattr { name, size } => sized(&xattrs.getxattr(caller, ino, name)?, size),
            Operation::ListXattr { size } => sized(&xattrs.listxattr(caller, ino)?, size),
            Operation::RemoveXattr { name } => done(xattrs.removexattr(caller, ino, name)),
            Operation::OpenDir { flags } => {
                let DirHandle(fh) = listings.opendir(caller, ino)?;
                // The kernel must not cache a listing that depends on the caller, or a listing of the trash,
                // to which removals in other directories add entries.
                let is_cached = vfs.is_exclusive() && !listings.hides_unreadable() && !access.is_squashing();
                let flags = match is_cached && !names.is_in_trash(ino) {
                    true => OpenFlags::CACHE_DIR | self.keep_cache(ino, flags),
                    false => OpenFlags::empty(),
                };
                Ok(Body::open(Fh(fh), flags).into())
            }
            Operation::ReadDir(read) => self.list(ino, read, false, guard),
            Operation::ReadDirPlus(read) => self.list(ino, read, true, guard),
            Operation::ReleaseDir(release) => done(listings.closedir(DirHandle(release.fh.0))),
            Operation::FsyncDir => done(vfs.commits.make_durable()),
            // The kernel does not send this today (`fuse_sync_fs`). With ENOSYS, syncfs(2) would do nothing
            // and succeed.
            Operation::SyncFs => done(vfs.lifecycle.sync()),
            Operation::Destroy => Ok(Body::empty().into()),
            Operation::TmpFile(create) => {
                let made = names.tmpfile(caller, ino, Mode::new(create.mode), create.umask)?;
                let flags = self.open_flags(made.ino, create.flags);
                Ok(Body::create(&self.entry(&made, None, guard), self.new_handle(), flags).into())
            }
            Operation::Fallocate { fh, offset, len, mode } => {
                refuse_append_only(Some(fh))?;
                done(files.allocate(caller, ino, offset, len, translate::allocate_mode(mode)?))
            }
            Operation::Lseek { offset, whence } => {
                Ok(Body::lseek(files.seek(ino, offset, translate::seek(whence)?)?).into())
            }
            Operation::CopyFileRange(copy) => Ok(Body::written(self.copy(caller, ino, &copy)? as u32).into()),
            Operation::CopyFileRange64(copy) => Ok(Body::copied_64(self.copy(caller, ino, &copy)?).into()),
            Operation::Access { mask } if access.is_squashing_all() => {
                done(attributes.access(caller, ino, Perm::new(mask)))
            }
            // After ENOSYS, the kernel does without the operation, and for most operations never sends it
            // again.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn take_lock(&self, uid: u32, ino: Ino, requested: &LockRequest, wait: bool, reply: Reply) {
        let wanted = match translate::lock(requested) {
            Ok(wanted) => wanted,
            Err(errno) => return reply.error(errno),
        };
        let locks = &self.vfs.locks;
        match locks.take_lock(ino, requested.fh.0, wanted, wait) {
            Ok(Locked::Granted) => locks.when_current(ino, || reply.ok(&[])),
            Ok(Locked::Waiting) => self.waiters.add(&self.vfs, reply, uid, ino, wanted),
            Err(errno) => reply.error(errno),
        }
    }

    /// Limits the length, so that the count fits in both reply formats (32 and 64 bits).
    fn copy(&self, caller: &Caller<'_>, from: Ino, copy: &CopyRange) -> Result<u64, Errno> {
        refuse_append_only(Some(copy.fh_out))?;
        let to = (self.ino(copy.node_out), copy.offset_out);
        self.vfs.files.copy_range(caller, (from, copy.offset_in), to, copy.len.min(i32::MAX as u64))
    }

    /// Lists a directory. With `plus`, entries have the attributes of their inodes.
    fn list(
        &self,
        ino: Ino,
        read: Read,
        plus: bool,
        guard: Option<&ReplyGuard<'_>>,
    ) -> Result<ReplyBody, Errno> {
        let mut dir = DirBuffer::new(read.size_bytes as usize);
        let at_first = lifetimes(guard);
        let mut take = |found: DirEntry<'_>| {
            if !plus {
                return dir.push(found.ino.0, found.next.0, found.kind.to_dtype(), found.name).is_ok();
            }
            let entry = match &found.attr {
                Some(attr) => {
                    let name = self.vfs.caches.name_sent(ino, found.name, at_first.name);
                    entry(attr, Lifetimes { name, ..at_first })
                }
                None => bare_entry(&found),
            };
            let fits = dir.push_plus(&entry, found.next.0, found.name).is_ok();
            if let (Some(attr), true) = (&found.attr, fits) {
                self.vfs.caches.looked_up(attr);
            }
            fits
        };
        let (handle, position) = (DirHandle(read.fh.0), DirPosition(read.offset));
        let listed = self.vfs.listings.readdir(handle, position, plus, &mut take);
        // The entries so far were recorded as looked up, so the kernel must get them. The next request gets
        // the error.
        if dir.is_empty() {
            listed?;
        }
        if plus && lifetimes(guard) != at_first {
            // The listing has taken too long for the kernel to cache it.
            dir.clear_lifetimes();
        }
        self.note_atime(ino, read.flags);
        Ok(ReplyBody::Listing(dir))
    }

    fn attr_body(&self, of: &vfs::Attr, guard: Option<&ReplyGuard<'_>>) -> Result<ReplyBody, Errno> {
        Ok(Body::attr(&attr(of), translate::attr_ttl(of, lifetimes(guard))).into())
    }

    fn entry_body(
        &self,
        of: &vfs::Attr,
        name: Option<(Ino, &[u8])>,
        guard: Option<&ReplyGuard<'_>>,
    ) -> Result<ReplyBody, Errno> {
        Ok(Body::entry(&self.entry(of, name, guard)).into())
    }

    /// The entry of an inode. The reply gives the kernel one more reference to it, and the name, if there is
    /// one.
    fn entry(&self, of: &vfs::Attr, name: Option<(Ino, &[u8])>, guard: Option<&ReplyGuard<'_>>) -> Entry {
        let caches = &self.vfs.caches;
        caches.looked_up(of);
        let mut lifetimes = lifetimes(guard);
        if let Some((dir, name)) = name {
            lifetimes.name = caches.name_sent(dir, name, lifetimes.name);
        }
        Entry { nodeid: self.node(of.ino), ..entry(of, lifetimes) }
    }

    /// The flags of the reply to OPEN and CREATE. A file opened read-only has no data to flush; FLUSH would
    /// only release its locks, and on an exclusive mount the kernel keeps those. If other clients can append,
    /// the kernel does not know the offset of an appending write, so it must not cache the data.
    fn open_flags(&self, ino: Ino, flags: u32) -> OpenFlags {
        match (self.vfs.is_exclusive(), flags & O_ACCMODE == O_RDONLY) {
            (true, true) => OpenFlags::NOFLUSH | self.keep_cache(ino, flags),
            (true, false) => self.keep_cache(ino, flags),
            (false, _) if flags & O_APPEND != 0 => OpenFlags::DIRECT_IO,
            (false, _) => OpenFlags::empty(),
        }
    }

    /// Lets the kernel keep its cached data, unless limenfs must see each read to update the atime.
    fn keep_cache(&self, ino: Ino, flags: u32) -> OpenFlags {
        let unseen = flags & O_ACCMODE == O_WRONLY || flags & O_NOATIME != 0;
        if unseen || !self.vfs.attributes.is_atime_due(ino) {
            OpenFlags::KEEP_CACHE
        } else {
            OpenFlags::empty()
        }
    }

    fn note_atime(&self, ino: Ino, flags: u32) {
        if flags & O_NOATIME == 0 {
            self.vfs.attributes.note_atime(ino);
        }
    }

    pub(crate) fn init_config(&self) -> InitConfig {
        // If all callers are squashed, the kernel must not get the ACLs, because it would check callers by
        // their own ids.
        let acl =
            if self.vfs.access.is_squashing_all() { AclKind::Off } else { self.vfs.meta().volume().acl };
        init::config(acl, self.vfs.is_exclusive(), self.vfs.atime_mode())
    }

    /// A new handle, by which the locks of open files are told apart. If this mount is exclusive, the kernel
    /// keeps the locks, so this returns 0.
    fn new_handle(&self) -> Fh {
        if self.vfs.is_exclusive() { Fh(0) } else { Fh(self.next_handle.fetch_add(1, Ordering::Relaxed)) }
    }

    pub(crate) fn ino(&self, node: NodeId) -> Ino {
        kernel::ino(self.root, self.direct, node)
    }

    fn node(&self, ino: Ino) -> NodeId {
        kernel::node(self.root, self.direct, ino)
    }
}

/// The number of bytes of data, of a listing, of a link target or of an extended attribute that a request has
/// read or written; `None` for other requests.
fn transferred(operation: &Operation<'_>, answer: &ReplyBody) -> Option<usize> {
    match (operation, answer) {
        (_, ReplyBody::Bytes(bytes)) => Some(bytes.len()),
        (_, ReplyBody::Listing(dir)) => Some(dir.as_bytes().len()),
        (Operation::Write(write), _) => Some(write.data.len()),
        (Operation::SetXattr(set), _) => Some(set.value.len()),
        _ => None,
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

/// How long the kernel may cache a reply. Without a guard it is [`Lifetimes::NONE`], because no invalidation
/// is repeated after such a reply.
fn lifetimes(guard: Option<&ReplyGuard<'_>>) -> Lifetimes {
    guard.map_or(Lifetimes::NONE, ReplyGuard::lifetimes)
}

fn is_append_only(handle: Fh) -> bool {
    handle.0 & APPEND_ONLY != 0
}

/// Checks that a handle permits changes other than appends.
///
/// # Errors
/// EPERM if the handle is append-only.
fn refuse_append_only(handle: Option<Fh>) -> Result<(), Errno> {
    if handle.is_some_and(is_append_only) { Err(Errno::EPERM) } else { Ok(()) }
}

fn done(result: Result<(), Errno>) -> Result<ReplyBody, Errno> {
    result.map(|()| Body::empty().into())
}

/// The reply to GETXATTR and LISTXATTR: the length of the value if `size` is 0; ERANGE if the value is longer
/// than `size`.
fn sized(value: &[u8], size: u32) -> Result<ReplyBody, Errno> {
    let len = u32::try_from(value.len()).map_err(|_| Errno::E2BIG)?;
    match size {
        0 => Ok(Body::xattr_size(len).into()),
        _ if len > size => Err(Errno::ERANGE),
        _ => Ok(ReplyBody::Bytes(value.to_vec().into())),
    }
}

/// An entry without attributes ([`DirEntry::attr`]). It does not count as a lookup.
fn bare_entry(found: &DirEntry<'_>) -> Entry {
    let attr =
        fuse_proto::Attr { ino: found.ino.0, mode: found.kind.to_ifmt(), ..fuse_proto::Attr::default() };
    Entry { attr, ..Entry::default() }
}
