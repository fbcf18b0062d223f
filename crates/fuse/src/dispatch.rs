//! One arm a request: its arguments to the VFS, the answer back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fuse_proto::{
    Body, CopyRange, DirBuffer, Entry, Fh, InitConfig, LockRequest, NodeId, OpenFlags, Operation, ReadDir,
    Request,
};
use fuse_transport::Reply;
use types::{Errno, Ino, Mode};
use vfs::{
    AclKind, Caller, DirEntry, DirHandle, DirPosition, Lifetimes, Locked, MakeRequest, Perm, RenameFlags,
    ReplyGuard, Special, Vfs, XattrMode,
};

use crate::callers::Callers;
use crate::init;
use crate::kernel::Epochs;
use crate::root;
use crate::translate::{self, attr, entry};
use crate::waiters::Waiters;

/// Where requests go: the volume, and which node of the protocol is its root.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) callers: Callers,
    pub(crate) next_handle: AtomicU64,
    /// The FUSE root is the volume's root, not its parent.
    pub(crate) direct: bool,
    pub(crate) epochs: Epochs,
}

/// `open(2)`.
pub(crate) const O_ACCMODE: u32 = 0o3;
pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_WRONLY: u32 = 1;
const O_EXCL: u32 = 0o200;
pub(crate) const O_APPEND: u32 = 0o2000;
const O_NOATIME: u32 = 0o1000000;

/// `fcntl(2)`.
pub(crate) const F_UNLCK: u32 = 2;

/// `setxattr(2)`.
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// Stands in the handle of a file whose opener may write nowhere but at its end. Programs can take `O_APPEND` from their
/// descriptor, but not this.
const APPEND_ONLY: u64 = 1 << 63;

/// What is sent: a body of fixed size, or bytes of any number. It lives on the stack for a moment, never in a list.
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
            Operation::SetLk { request: asked, wait: true } if asked.lock.kind != F_UNLCK => {
                self.wait_for_lock(request.header.uid, self.ino(request.header.nodeid), &asked, reply);
            }
            Operation::Init(offered) => match offered.negotiate(&self.init_config()) {
                Ok(agreed) => {
                    tracing::debug!(?agreed, "INIT");
                    self.epochs.agreed(agreed.minor);
                    reply.ok(Body::init(&agreed).as_bytes());
                }
                Err(error) => {
                    tracing::error!(%error, "the kernel cannot be served");
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
        // It ends after the reply.
        let guard = tells_of_inodes(&request.operation).then(|| self.vfs.begin_reply());
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
                let asked = |flag| flags.contains(flag);
                let whiteout = asked(fuse_proto::RenameFlags::WHITEOUT);
                let flags = RenameFlags {
                    no_replace: asked(fuse_proto::RenameFlags::NOREPLACE),
                    exchange: asked(fuse_proto::RenameFlags::EXCHANGE),
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
                    // Without a page cache, and so without mappings, that others' writes may go through.
                    true => (Fh(handle | APPEND_ONLY), OpenFlags::DIRECT_IO),
                    false => (Fh(handle), self.open_flags(ino, flags)),
                };
                Ok(Body::open(handle, flags).into())
            }
            Operation::Create(create) => {
                let (what, mode) = (Special::Regular, Mode::new(create.mode));
                let request = MakeRequest { parent: ino, name: create.name, what, mode, umask: create.umask };
                let made = match vfs.create(caller, request) {
                    // Somebody else was faster. The kernel is to look again, and to open what is there.
                    Err(Errno::EEXIST) if create.flags & O_EXCL == 0 => return Err(Errno::ESTALE),
                    made => made?,
                };
                let flags = self.open_flags(made.ino, create.flags);
                Ok(Body::create(&self.entry(&made, guard), self.new_handle(), flags).into())
            }
            Operation::Read(read) => {
                let bytes = vfs.read(ino, read.offset, read.size_bytes)?;
                self.accessed(ino, read.flags);
                Ok(Answer::Bytes(bytes))
            }
            Operation::Write(write) => {
                let appends = write.flags & O_APPEND != 0 && !write.from_cache;
                // What is written back goes by whatever handle the kernel finds.
                let append_only = is_append_only(write.fh) && !write.from_cache;
                if append_only && !appends {
                    return Err(Errno::EPERM);
                }
                vfs.kill_priv_of_writer(ino, write.kill_suidgid)?;
                if appends && (append_only || !vfs.is_alone()) {
                    vfs.append(ino, write.data)?;
                } else {
                    vfs.write(ino, write.offset, write.data)?;
                }
                Ok(Body::written(write.data.len() as u32).into())
            }
            Operation::Flush { lock_owner, .. } => {
                // In this order: who has the lock next is to find what was written under it.
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
            Operation::GetLk(asked) => {
                let found = vfs.find_lock(ino, translate::lock(&asked)?)?;
                Ok(Body::lock(&translate::found_lock(&asked.lock, found)).into())
            }
            Operation::SetLk { request: asked, .. } => {
                let wanted = translate::lock(&asked)?;
                if asked.lock.kind == F_UNLCK {
                    vfs.unlock(ino, wanted)?;
                    self.waiters.wake();
                } else {
                    vfs.take_lock(ino, asked.fh.0, wanted, false)?;
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
                    // Never possible; ext4 says of the two conditions which one is not met.
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
                // A listing that is not the same for everybody is nothing for the kernel to keep.
                let flags = match vfs.is_alone() && !vfs.hides_unreadable() && !vfs.is_squashing() {
                    true => OpenFlags::CACHE_DIR | self.keep_cache(ino, flags),
                    false => OpenFlags::NONE,
                };
                Ok(Body::open(Fh(fh), flags).into())
            }
            Operation::ReadDir(read) => self.list(ino, read, None),
            Operation::ReadDirPlus(read) => self.list(ino, read, Some(lifetimes(guard))),
            Operation::ReleaseDir(release) => done(vfs.closedir(DirHandle(release.fh.0))),
            Operation::FsyncDir { .. } => done(vfs.make_durable()),
            // The kernel does not send it today (`fuse_sync_fs`); were it refused, syncfs(2) would do nothing and succeed.
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
            // The kernel takes ENOSYS for "not here", does without, and mostly asks no more.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn wait_for_lock(&self, uid: u32, ino: Ino, asked: &LockRequest, reply: Reply) {
        let wanted = match translate::lock(asked) {
            Ok(wanted) => wanted,
            Err(errno) => return reply.error(errno),
        };
        match self.vfs.take_lock(ino, asked.fh.0, wanted, true) {
            Ok(Locked::Granted) => reply.ok(&[]),
            Ok(Locked::Waiting) => self.waiters.add(&self.vfs, reply, uid, ino, wanted),
            Err(errno) => reply.error(errno),
        }
    }

    /// Never more than the shorter of the two replies can say.
    fn copy(&self, caller: &Caller<'_>, from: Ino, copy: &CopyRange) -> Result<u64, Errno> {
        refuse_append_only(Some(copy.fh_out))?;
        let to = (self.ino(copy.node_out), copy.offset_out);
        self.vfs.copy_range(caller, (from, copy.offset_in), to, copy.len.min(i32::MAX as u64))
    }

    /// With `plus`, each entry comes with its inode, and lifetimes for both.
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

    /// An inode that the kernel holds one reference more to, once it has the reply.
    fn entry(&self, of: &vfs::Attr, guard: Option<&ReplyGuard<'_>>) -> Entry {
        self.vfs.looked_up(of);
        Entry { nodeid: self.node(of.ino), ..entry(of, lifetimes(guard)) }
    }

    /// A file opened only to read has nothing to flush, but for the locks that go with it. What is appended beside others
    /// does not go where the kernel believes, so it must not keep it.
    fn open_flags(&self, ino: Ino, flags: u32) -> OpenFlags {
        match (self.vfs.is_alone(), flags & O_ACCMODE == O_RDONLY) {
            (true, true) => OpenFlags::NOFLUSH | self.keep_cache(ino, flags),
            (true, false) => self.keep_cache(ino, flags),
            (false, _) if flags & O_APPEND != 0 => OpenFlags::DIRECT_IO,
            (false, _) => OpenFlags::NONE,
        }
    }

    /// The kernel keeps what it has in memory, unless reads of it are to be seen.
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
        // With ACLs of its own the kernel would check everybody by them.
        let acl = if self.vfs.decides_alone() { AclKind::Off } else { self.vfs.meta().volume().acl };
        init::config(acl, self.vfs.is_alone(), self.vfs.atime_mode())
    }

    /// Tells open files apart for the sake of their locks, which the kernel keeps where this client is alone.
    fn new_handle(&self) -> Fh {
        if self.vfs.is_alone() { Fh(0) } else { Fh(self.next_handle.fetch_add(1, Ordering::Relaxed)) }
    }

    fn ino(&self, node: NodeId) -> Ino {
        if node == NodeId::ROOT && self.direct { Ino::ROOT } else { Ino(node.0) }
    }

    fn node(&self, ino: Ino) -> NodeId {
        if ino == Ino::ROOT && self.direct { NodeId::ROOT } else { NodeId(ino.0) }
    }
}

/// Whether the kernel keeps what the reply says of an inode, its name, attributes or ACL.
fn tells_of_inodes(operation: &Operation<'_>) -> bool {
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

/// None where the request was not counted: the kernel must not keep what it is told then.
fn lifetimes(guard: Option<&ReplyGuard<'_>>) -> Lifetimes {
    guard.map_or(Lifetimes::NONE, ReplyGuard::lifetimes)
}

fn is_append_only(handle: Fh) -> bool {
    handle.0 & APPEND_ONLY != 0
}

/// # Errors
/// EPERM, for what changes a file anywhere but at its end.
fn refuse_append_only(handle: Option<Fh>) -> Result<(), Errno> {
    if handle.is_some_and(is_append_only) { Err(Errno::EPERM) } else { Ok(()) }
}

fn done(result: Result<(), Errno>) -> Result<Answer, Errno> {
    result.map(|()| Body::empty().into())
}

/// The answer to GETXATTR and LISTXATTR: the length where no room was offered, ERANGE where too little.
fn sized(value: &[u8], size: u32) -> Result<Answer, Errno> {
    let len = u32::try_from(value.len()).map_err(|_| Errno::E2BIG)?;
    match size {
        0 => Ok(Body::xattr_size(len).into()),
        _ if len > size => Err(Errno::ERANGE),
        _ => Ok(Answer::Bytes(value.to_vec().into())),
    }
}

/// An entry that does not count as looked up: `.` and `..`.
fn bare_entry(found: &DirEntry<'_>) -> Entry {
    let attr =
        fuse_proto::Attr { ino: found.ino.0, mode: found.kind.to_ifmt(), ..fuse_proto::Attr::default() };
    Entry { attr, ..Entry::default() }
}
