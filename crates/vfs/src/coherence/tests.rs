use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};

use acl::idmap::Ids;
use meta::{Change, Engine, EngineError, LockKind, MemEngine, RecordKey, Snapshot};
use ops::{AclType, AtimeMode, XattrMode};
use types::{Errno, Mode};

use super::*;
use crate::access_check::Perm;
use crate::caller::{Caller, Identity, IdentitySource};
use crate::fixture::{NO_WAIT, format, make, mount, mount_with, root, user};
use crate::in_flight::REPLY_TRUSTED;
use crate::recent_grants;
use crate::{
    AttrChange, DirPosition, LockRequest, Locked, MakeKind, MakeRequest, OpenAccess, Vfs, VfsOptions,
};

/// Longer than any step takes, unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Records the notifications to the kernel, in order.
#[derive(Debug)]
struct Recorder {
    events: Mutex<Vec<Event>>,
    more: Condvar,
    /// The result of [`Kernel::can_expire_names`].
    expires_names: bool,
    /// The result of [`Kernel::sends_forget`].
    sends_forget: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Attributes(Ino),
    Content(Ino),
    Range(Ino, u64, u64),
    Name(Ino, Vec<u8>),
    Directory(Ino),
    All,
    /// The reply to the test's own request.
    Reply,
}

impl Recorder {
    fn new(expires_names: bool) -> Arc<Self> {
        Arc::new(Recorder {
            events: Mutex::default(),
            more: Condvar::new(),
            expires_names,
            sends_forget: true,
        })
    }

    fn record(&self, event: Event) {
        self.events.lock().unwrap().push(event);
        self.more.notify_all();
    }

    /// Waits until `event` was recorded at position `from` or later. Returns the position after it.
    #[track_caller]
    fn expect(&self, event: &Event, from: usize) -> usize {
        let events = self.events.lock().unwrap();
        let position = |events: &Vec<Event>| events.iter().skip(from).position(|one| one == event);
        let lacks = |events: &mut Vec<Event>| position(events).is_none();
        let (events, _) = self.more.wait_timeout_while(events, TIMEOUT, lacks).unwrap();
        let found = position(&events);
        from + found.unwrap_or_else(|| panic!("no {event:?} from {from} on in {events:?}")) + 1
    }

    fn count(&self, event: &Event) -> usize {
        self.events.lock().unwrap().iter().filter(|one| *one == event).count()
    }
}

impl Kernel for Recorder {
    fn invalidate_attributes(&self, ino: Ino) {
        self.record(Event::Attributes(ino));
    }

    fn invalidate_content(&self, ino: Ino) {
        self.record(Event::Content(ino));
    }

    fn invalidate_content_then(&self, ino: Ino, then: Box<dyn FnOnce() + Send>) {
        self.invalidate_content(ino);
        then();
    }

    fn invalidate_range(&self, ino: Ino, offset: u64, len: u64) {
        self.record(Event::Range(ino, offset, len));
    }

    fn expire_name(&self, parent: Ino, name: &[u8]) {
        self.record(Event::Name(parent, name.to_vec()));
    }

    fn expire_directory(&self, dir: Ino) {
        self.record(Event::Directory(dir));
    }

    fn expire_all(&self) {
        self.record(Event::All);
    }

    fn can_expire_names(&self) -> bool {
        self.expires_names
    }

    fn sends_forget(&self) -> bool {
        self.sends_forget
    }
}

/// An engine whose next read can be stalled after it has run, and whose stream of changes can be broken.
#[derive(Debug)]
struct Slow {
    inner: Arc<MemEngine>,
    stall: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    is_broken: Arc<AtomicBool>,
}

impl Slow {
    fn new(inner: &Arc<MemEngine>) -> Arc<Self> {
        Arc::new(Slow { inner: Arc::clone(inner), stall: Mutex::default(), is_broken: Arc::default() })
    }

    /// The next read sends a message when it has run, and returns when it receives one.
    fn stall(&self) -> (Receiver<()>, Sender<()>) {
        let ((done, is_done), (go, released)) = (channel(), channel());
        *self.stall.lock().unwrap() = Some((done, released));
        (is_done, go)
    }
}

impl Engine for Slow {
    meta::pass_on! { (.inner) commit scan sync wipe }

    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let snapshot = self.inner.read(keys);
        let stall = self.stall.lock().unwrap().take();
        if let Some((done, released)) = stall {
            done.send(()).unwrap();
            released.recv().unwrap();
        }
        snapshot
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        let (stream, is_broken) = (self.inner.watch()?, Arc::clone(&self.is_broken));
        Ok(stream.map(|stream| Box::new(Breakable { stream, is_broken }) as Box<dyn Changes>))
    }
}

#[derive(Debug)]
struct Breakable {
    stream: Box<dyn Changes>,
    is_broken: Arc<AtomicBool>,
}

impl Changes for Breakable {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        let changes = self.stream.next(wait)?;
        match self.is_broken.load(Ordering::Acquire) {
            true => Err(EngineError::transient("injected: the stream broke")),
            false => Ok(changes),
        }
    }
}

/// Two mounts of a volume; the second one receives changes.
struct Pair {
    a: Arc<Vfs>,
    b: Arc<Vfs>,
    slow: Arc<Slow>,
    kernel: Arc<Recorder>,
    watching: Vec<JoinHandle<()>>,
}

impl Pair {
    fn new(expires_names: bool) -> Self {
        let inner = Arc::new(MemEngine::default());
        format(&*inner);
        let slow = Slow::new(&inner);
        let (a, b) = (mount(inner), mount(Arc::clone(&slow) as Arc<dyn Engine>));
        let kernel = Recorder::new(expires_names);
        Pair { a, b, slow, kernel, watching: Vec::new() }
    }

    fn watch(&mut self) {
        self.watching = self.b.caches.start_watching(Arc::clone(&self.kernel) as Arc<dyn Kernel>).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while self.b.caches.coherence() != Coherence::Notified {
            assert!(Instant::now() < deadline, "the mount receives no changes");
            std::thread::yield_now();
        }
    }

    fn watched() -> Self {
        let mut pair = Pair::new(true);
        pair.watch();
        pair
    }

    fn chmod(&self, ino: Ino, mode: u32) {
        let change = AttrChange { mode: Some(Mode::new(mode)), ..AttrChange::default() };
        self.a.setattr(&root(), ino, change).unwrap();
    }

    /// The second mount reads for a lookup, and `meanwhile` runs before the reply. Returns what was found,
    /// and the position after the reply in the recorded notifications.
    fn look_up_overtaken(&self, name: &str, meanwhile: impl FnOnce()) -> (Option<crate::Attr>, usize) {
        let (is_read, go) = self.slow.stall();
        let reply = || {
            let began = Instant::now();
            let guard = self.b.caches.begin_reply();
            let found = self.b.names.lookup(&root(), Ino::ROOT, name.as_bytes()).unwrap();
            // The kernel would cache the reply for a long time, unless this machine is slow.
            let name = guard.lifetimes().name;
            assert!(name == NOTIFIED_LIFETIME || began.elapsed() > REPLY_TRUSTED, "{name:?}");
            found.iter().for_each(|attr| self.b.caches.looked_up(attr));
            self.kernel.record(Event::Reply);
            found
        };
        // If this thread panics, `go` is dropped, and the stalled read ends.
        std::thread::scope(move |scope| {
            let replying = scope.spawn(reply);
            is_read.recv().unwrap();
            meanwhile();
            go.send(()).unwrap();
            let found = replying.join().unwrap();
            (found, self.kernel.expect(&Event::Reply, 0))
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.b.base.stop.set();
        for thread in self.watching.drain(..) {
            let _ = thread.join();
        }
    }
}

fn make_dir(vfs: &Vfs, name: &str) -> Ino {
    let (kind, mode) = (MakeKind::Directory, Mode::new(0o755));
    let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), kind, mode, umask: 0 };
    vfs.names.make(&root(), request).unwrap().ino
}

fn give(vfs: &Vfs, ino: Ino, uid: u32) {
    let change = AttrChange { uid: Some(uid), gid: Some(uid), ..AttrChange::default() };
    vfs.setattr(&root(), ino, change).unwrap();
}

#[test]
fn reply_overtaken_by_a_chmod_is_invalidated() {
    let pair = Pair::watched();
    let dir = make_dir(&pair.a, "d");
    let invalidated = Event::Attributes(dir);
    let (found, after_reply) = pair.look_up_overtaken("d", || {
        pair.chmod(dir, 0o700);
        pair.kernel.expect(&invalidated, 0);
    });
    assert_eq!(found.unwrap().mode, Mode::new(0o755), "the reply was overtaken");
    pair.kernel.expect(&invalidated, after_reply);
}

#[test]
fn reply_overtaken_by_a_new_name_is_invalidated() {
    let pair = Pair::watched();
    let expired = Event::Name(Ino::ROOT, b"d".to_vec());
    let (found, after_reply) = pair.look_up_overtaken("d", || {
        make_dir(&pair.a, "d");
        pair.kernel.expect(&expired, 0);
    });
    assert_eq!(found, None, "the reply was overtaken");
    pair.kernel.expect(&expired, after_reply);
}

#[test]
fn reply_overtaken_by_the_end_of_the_stream_is_invalidated() {
    let pair = Pair::watched();
    let dir = make_dir(&pair.a, "d");
    let (found, after_reply) = pair.look_up_overtaken("d", || {
        let from = pair.kernel.events.lock().unwrap().len();
        pair.slow.is_broken.store(true, Ordering::Release);
        pair.kernel.expect(&Event::All, from);
        pair.chmod(dir, 0o700);
    });
    assert_eq!(found.unwrap().mode, Mode::new(0o755), "the reply was overtaken");
    let after = pair.kernel.expect(&Event::All, after_reply);
    pair.kernel.expect(&Event::Attributes(dir), after);
}

#[test]
fn lifetime_is_fixed_at_the_start_of_a_request() {
    let mut pair = Pair::new(true);
    let before = pair.b.caches.begin_reply();
    let short = pair.b.meta().lifetime();
    assert_eq!(before.lifetimes(), Lifetimes { name: short, attributes: short });
    drop(before);
    pair.watch();
    let long = Lifetimes { name: NOTIFIED_LIFETIME, attributes: NOTIFIED_LIFETIME };
    in_the_end(long, || pair.b.caches.begin_reply().lifetimes());
    // The invalidation is repeated after the reply.
    in_the_end(long, || {
        let in_flight = pair.b.caches.begin_reply();
        pair.b.meta().set_outdated();
        in_flight.lifetimes()
    });
}

/// Asserts that the lifetimes of a reply are these. A slow machine may need several attempts, because the
/// lease can expire, and a slow reply gets no lifetime.
#[track_caller]
fn in_the_end(expected: Lifetimes, reply: impl Fn() -> Lifetimes) {
    let deadline = Instant::now() + TIMEOUT;
    while reply() != expected {
        assert!(Instant::now() < deadline, "no reply has the lifetimes {expected:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_name_outlives_the_lease_if_the_kernel_cannot_expire_names() {
    let mut pair = Pair::new(false);
    pair.watch();
    let bounded = Lifetimes { name: LEASE, attributes: NOTIFIED_LIFETIME };
    in_the_end(bounded, || pair.b.caches.begin_reply().lifetimes());
}

#[test]
fn former_owner_changes_nothing_by_the_kernels_outdated_attributes() {
    let pair = Pair::new(true);
    pair.b.caches.set_kernel(Arc::clone(&pair.kernel) as Arc<dyn Kernel>);
    let file = make(&pair.a, "f");
    give(&pair.a, file, 5);
    let look = || {
        let attr = pair.b.names.lookup(&root(), Ino::ROOT, b"f").unwrap().unwrap();
        pair.b.caches.looked_up(&attr);
        attr.uid
    };
    let by = |uid| move |vfs: &Vfs, change| vfs.setattr(&user(uid), file, change).map(drop);
    let chmod = AttrChange { mode: Some(Mode::new(0o666)), ..AttrChange::default() };
    let now = Some(types::Time::now());
    let touch = AttrChange { atime: now, mtime: now, ..AttrChange::default() };
    let cut = AttrChange { size_bytes: Some(0), ..AttrChange::default() };
    let acl = acl::posix::PosixAcl::from_storage("u::rw-,u:5:rw-,g::---,m::rw-,o::---").unwrap().to_xattr();
    let set_xattr = |caller: &Caller<'_>, name: &[u8], value: &[u8]| {
        pair.b.xattrs.setxattr(caller, file, name, value, XattrMode::Set, false)
    };
    let (access, own) = (&b"system.posix_acl_access"[..], &b"user.own"[..]);
    assert_eq!(look(), 5);
    by(5)(&pair.b, chmod).unwrap();
    set_xattr(&user(5), own, b"1").unwrap();
    assert_eq!(pair.kernel.count(&Event::Attributes(file)), 0, "no attributes were outdated so far");

    give(&pair.a, file, 6);
    pair.chmod(file, 0o600);
    assert_eq!(by(5)(&pair.b, chmod), Err(Errno::EPERM));
    assert!(pair.kernel.count(&Event::Attributes(file)) > 0, "the kernel must read the attributes again");
    assert_eq!(by(5)(&pair.b, touch), Err(Errno::EPERM));
    assert_eq!(by(5)(&pair.b, cut), Err(Errno::EACCES));
    assert_eq!(set_xattr(&user(5), access, &acl), Err(Errno::EPERM));
    assert_eq!(pair.b.xattrs.removexattr(&user(5), file, access), Err(Errno::EPERM));
    assert_eq!(set_xattr(&user(5), own, b"2"), Err(Errno::EACCES));
    assert_eq!(pair.b.xattrs.removexattr(&user(5), file, own), Err(Errno::EACCES));
    let found = pair.a.attributes.getattr(file).unwrap();
    assert_eq!((found.uid, found.mode), (6, Mode::new(0o600)));

    // A caller with the permission succeeds at the first attempt, although the kernel's attributes are
    // outdated.
    by(6)(&pair.b, AttrChange { mode: Some(Mode::new(0o640)), ..AttrChange::default() }).unwrap();
    give(&pair.a, file, 7);
    set_xattr(&user(7), access, &acl).unwrap();
    assert!(pair.b.xattrs.acl(file, AclType::Access).unwrap().is_some());
}

/// The kernel gets no attributes in the replies to READ and OPEN, nor for an entry that does not fit into the
/// reply to READDIRPLUS.
#[test]
fn attributes_that_the_kernel_does_not_get_do_not_let_a_former_owner_pass() {
    let inner = Arc::new(MemEngine::default());
    format(&*inner);
    let options = VfsOptions { atime: AtimeMode::Relative, times: NO_WAIT, ..VfsOptions::default() };
    let (a, b) = (mount(inner.clone()), mount_with(inner, options));
    b.meta().set_lifetime(Duration::ZERO);
    type Uses = fn(&Vfs, Ino);
    let uses: [(&str, Uses); 3] = [
        ("read", |vfs, ino| vfs.attributes.note_atime(ino)),
        ("open", |vfs, ino| assert!(vfs.attributes.is_atime_due(ino))),
        ("listing", |vfs, _| {
            let dir = vfs.listings.opendir(&root(), Ino::ROOT).unwrap();
            vfs.listings.readdir(dir, DirPosition(2), true, &mut |entry| entry.attr.is_none()).unwrap();
            vfs.listings.closedir(dir).unwrap();
        }),
    ];
    for (name, uses) in uses {
        let file = make(&a, name);
        give(&a, file, 5);
        let attr = b.names.lookup(&root(), Ino::ROOT, name.as_bytes()).unwrap().unwrap();
        b.caches.looked_up(&attr);
        // After this pause, a new revision counts as soon as it is recorded.
        host::sleep(crate::kernel_cache::SETTLE_TIME + Duration::from_millis(100));
        give(&a, file, 6);
        uses(&b, file);
        assert_eq!(b.caches.cache.revision(file), Some(attr.access_rev), "{name}");
        let chmod = AttrChange { mode: Some(Mode::new(0o666)), ..AttrChange::default() };
        assert_eq!(b.setattr(&user(5), file, chmod).map(drop), Err(Errno::EPERM), "{name}");
        let read = OpenAccess { read: true, write: false, execute: false, append: false };
        assert_eq!(b.files.open(&user(5), file, read), Err(Errno::EACCES), "{name}");
        a.names.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
    }
}

#[test]
fn attributes_that_the_kernel_gets_after_its_check_do_not_let_a_former_owner_open() {
    let pair = Pair::new(true);
    let file = make(&pair.a, "f");
    give(&pair.a, file, 5);
    let look = || {
        let attr = pair.b.names.lookup(&root(), Ino::ROOT, b"f").unwrap().unwrap();
        pair.b.caches.looked_up(&attr);
        attr.uid
    };
    pair.b.meta().set_lifetime(Duration::ZERO);
    assert_eq!(look(), 5);
    host::sleep(crate::kernel_cache::SETTLE_TIME + Duration::from_millis(100));
    // The request arrives, and waits for the database.
    let held = pair.b.caches.held_by_kernel();
    give(&pair.a, file, 6);
    assert_eq!(look(), 6);
    let inode = pair.b.attributes.inode(file).unwrap();
    let check = |uid, held| pair.b.base.check_by_kernel(&user(uid), held, &inode, Perm::READ);
    let now = pair.b.caches.held_by_kernel();
    assert_eq!(check(5, now), Ok(()), "the kernel has checked by the current attributes");
    assert_eq!(check(5, held), Err(Errno::EACCES));
    assert_eq!(check(6, held), Ok(()));
}

#[test]
fn nothing_is_kept_for_inodes_that_the_kernel_does_not_forget() {
    for sends_forget in [true, false] {
        let vfs = &Pair::new(true).b;
        let kernel =
            Recorder { events: Mutex::default(), more: Condvar::new(), expires_names: true, sends_forget };
        vfs.caches.set_kernel(Arc::new(kernel));
        let before = vfs.caches.kernel_inodes();
        for name in ["f", "g"] {
            let (kind, mode) = (MakeKind::Regular, Mode::new(0o600));
            let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), kind, mode, umask: 0 };
            let ino = vfs.names.create(&root(), request).unwrap().ino;
            vfs.files.close(ino).unwrap();
            vfs.names.lookup(&root(), Ino::ROOT, name.as_bytes()).unwrap();
            vfs.names.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
        }
        assert_eq!(vfs.caches.kernel_inodes(), before);
        assert_eq!(vfs.attributes.describe().0.len(), if sends_forget { 2 } else { 0 });
    }
}

/// Resolves no caller.
#[derive(Debug)]
struct Nobody;

impl IdentitySource for Nobody {
    fn identify(&self, _: u32, _: u32, _: u32) -> Result<Identity, Errno> {
        Err(Errno::EACCES)
    }
}

#[test]
fn kernel_checks_again_if_the_caller_cannot_be_identified() {
    let pair = Pair::new(true);
    pair.b.caches.set_kernel(Arc::clone(&pair.kernel) as Arc<dyn Kernel>);
    let file = make(&pair.a, "f");
    give(&pair.a, file, 5);
    pair.b.names.lookup(&root(), Ino::ROOT, b"f").unwrap();
    give(&pair.a, file, 6);
    let stranger = Caller::new(&Ids::default(), 5, 5, 0, &Nobody);
    let chmod = AttrChange { mode: Some(Mode::new(0o666)), ..AttrChange::default() };
    assert_eq!(pair.b.setattr(&stranger, file, chmod), Err(Errno::ESTALE));
    assert_eq!(pair.kernel.count(&Event::Attributes(file)), 1);
    assert_eq!(pair.a.attributes.getattr(file).unwrap().mode, Mode::new(0o600));
}

/// The kernel may ask for the attributes and the ACL before it ends the call that created the file.
#[test]
fn created_file_that_another_mount_deleted_has_attributes_until_it_is_used() {
    let pair = Pair::watched();
    let file = make(&pair.b, "f");
    pair.a.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
    pair.kernel.expect(&Event::Name(Ino::ROOT, b"f".to_vec()), 0);
    let attributes = &pair.b.attributes;
    let acl = || pair.b.xattrs.getxattr(&root(), file, b"system.posix_acl_access");
    assert_eq!(attributes.getattr_for(&root(), file, false).unwrap().nlink, 0);
    assert_eq!(acl(), Err(Errno::ENODATA));
    // The kernel requests the attributes for a read through the open file. With size 0, the read would end
    // there instead of failing.
    assert_eq!(attributes.getattr_for(&root(), file, true), Err(Errno::ESTALE));
    assert_eq!(pair.b.files.read(file, 0, 10), Err(Errno::ESTALE));
    assert_eq!(attributes.getattr_for(&root(), file, false), Err(Errno::ESTALE));
    assert_eq!(acl(), Err(Errno::ESTALE));
}

#[test]
fn truncation_denied_to_a_former_owner_drops_no_written_data() {
    let pair = Pair::new(true);
    pair.b.caches.set_kernel(Arc::clone(&pair.kernel) as Arc<dyn Kernel>);
    let file = make(&pair.b, "f");
    give(&pair.b, file, 5);
    pair.b.files.write(file, 0, b"text").unwrap();
    give(&pair.a, file, 6);
    let cut = AttrChange { size_bytes: Some(0), ..AttrChange::default() };
    assert_eq!(pair.b.setattr(&user(5), file, cut), Err(Errno::EACCES));
    assert_eq!(pair.b.files.read(file, 0, 10).unwrap(), &b"text"[..]);
    // A program that has the file open for writing can still truncate it.
    pair.b.setattr(&user(5), file, AttrChange { is_open: true, ..cut }).unwrap();
    assert_eq!(pair.b.files.read(file, 0, 10).unwrap(), &b""[..]);
}

#[test]
fn direct_write_drops_pages_that_were_read_through_the_cache() {
    let pair = Pair::new(true);
    pair.b.caches.set_kernel(Arc::clone(&pair.kernel) as Arc<dyn Kernel>);
    let file = make(&pair.b, "f");
    pair.b.files.write(file, 0, &[1; 9000]).unwrap();
    let ranges = || pair.kernel.count(&Event::Range(file, 4096, 100));
    // Without reads through the cache, a write sends no notification.
    pair.b.files.read(file, 0, 9000).unwrap();
    pair.b.files.invalidate_overwritten(file, 4096, 100);
    assert_eq!((ranges(), pair.kernel.count(&Event::Attributes(file))), (0, 0));
    pair.b.files.read_to_cache(file, 0, 1).unwrap();
    pair.b.files.invalidate_overwritten(file, 4096, 100);
    assert_eq!((ranges(), pair.kernel.count(&Event::Attributes(file))), (1, 1));
}

#[test]
fn pages_are_dropped_before_a_lock_is_granted_if_the_data_has_changed() {
    let pair = Pair::new(true);
    // The second mount receives no changes, so only the lock request can detect that the data has changed.
    pair.b.caches.set_kernel(Arc::clone(&pair.kernel) as Arc<dyn Kernel>);
    let ino = make(&pair.a, "f");
    let any = OpenAccess { read: true, write: true, execute: false, append: false };
    for vfs in [&pair.a, &pair.b] {
        vfs.files.open(&root(), ino, any).unwrap();
    }
    let wanted =
        LockRequest { kind: LockKind::Flock, owner: 1, exclusive: true, start: 0, end: u64::MAX, pid: 1 };
    let events = |vfs: &Vfs| {
        pair.kernel.events.lock().unwrap().clear();
        assert_eq!(vfs.locks.take_lock(ino, 1, wanted, false), Ok(Locked::Granted));
        let kernel = Arc::clone(&pair.kernel);
        vfs.locks.when_current(ino, move || kernel.record(Event::Reply));
        vfs.locks.unlock(ino, wanted).unwrap();
        pair.kernel.events.lock().unwrap().clone()
    };
    let write = |byte| {
        pair.a.files.write(ino, 0, &[byte]).unwrap();
        pair.a.files.flush(ino).unwrap();
    };
    write(b'1');
    assert_eq!(events(&pair.b), [Event::Content(ino), Event::Reply]);
    assert_eq!(&pair.b.files.read_to_cache(ino, 0, 9).unwrap()[..], b"1");
    assert_eq!(events(&pair.b), [Event::Reply], "nothing has changed");
    write(b'2');
    assert_eq!(events(&pair.b), [Event::Content(ino), Event::Reply]);
    assert_eq!(&pair.b.files.read_to_cache(ino, 0, 9).unwrap()[..], b"2");
    assert_eq!(events(&pair.b), [Event::Reply]);
    // The first mount locks, writes and unlocks between the read and the commit of the second mount's lock
    // request.
    let (is_read, go) = pair.slow.stall();
    let events = std::thread::scope(|scope| {
        let locking = scope.spawn(|| events(&pair.b));
        is_read.recv().unwrap();
        assert_eq!(pair.a.locks.take_lock(ino, 1, wanted, false), Ok(Locked::Granted));
        write(b'3');
        pair.a.locks.unlock(ino, wanted).unwrap();
        go.send(()).unwrap();
        locking.join().unwrap()
    });
    assert_eq!(events, [Event::Content(ino), Event::Reply]);
}

#[test]
fn notifications_about_a_file_wait_until_its_lock_is_used() {
    let pair = Pair::watched();
    let (file, other) = (make(&pair.a, "f"), make(&pair.a, "g"));
    let grants = &pair.b.caches.grants;
    assert!(!grants.begin(file));
    let granted = Instant::now();
    [file, other].map(Invalidation::Data).iter().for_each(|part| pair.b.caches.invalidate(part, true));
    pair.b.caches.invalidate(&Invalidation::Inode(file), true);
    pair.kernel.expect(&Event::Content(other), 0);
    pair.kernel.expect(&Event::Content(file), 0);
    assert!(granted.elapsed() >= recent_grants::GRANT_SETTLES);
    assert!(!grants.begin(file));
    pair.b.caches.invalidate(&Invalidation::Inode(file), true);
    assert!(grants.begin(file), "the next grant notifies the kernel");
    assert!(!grants.begin(file));
}

/// The first mount takes the directory, as a mount that holds directories does.
fn take(pair: &Pair, dir: Ino) {
    pair.a.meta().run(&ops::TakeDirectory(dir), &crate::caller::BY_KERNEL).unwrap();
}

#[test]
fn names_are_expired_after_a_take() {
    let pair = Pair::watched();
    let dir = make_dir(&pair.a, "d");
    let request =
        MakeRequest { parent: dir, name: b"f", kind: MakeKind::Regular, mode: Mode::new(0o600), umask: 0 };
    pair.a.names.make(&root(), request).unwrap();
    let attr = pair.b.names.lookup(&root(), Ino::ROOT, b"d").unwrap().unwrap();
    pair.b.caches.looked_up(&attr);
    for (name, exists) in [(&b"f"[..], true), (b"absent", false)] {
        assert_eq!(pair.b.names.lookup(&root(), dir, name).unwrap().is_some(), exists);
        assert_eq!(pair.b.caches.name_sent(dir, name, NOTIFIED_LIFETIME), NOTIFIED_LIFETIME);
    }
    let from = pair.kernel.events.lock().unwrap().len();
    take(&pair, dir);
    // A reply in flight may bring back a name, so the notification is repeated.
    let mut from = from;
    for _ in 0..3 {
        from = pair.kernel.expect(&Event::Directory(dir), from);
    }
    assert_eq!(pair.b.caches.kernel_names().of(dir).len(), 2);
}
