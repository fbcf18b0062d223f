//! Tests a trivial file system with the real kernel. Needs root and `/dev/fuse`.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::iter;
use std::num::NonZeroUsize;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuse_proto::{
    Attr, Body, DirBuffer, Entry, Fh, InitConfig, InitFlags, NodeId, Notification, OpenFlags, Operation,
    Request, StatFs,
};
use fuse_transport::{
    DevFuse, Error, Mount, MountOptions, Notifications, Notifier, Reply, Ring, RootPlacement, Transport,
    UnmountMode, Workers, clean_stale, ring_is_enabled, unmount,
};
use types::Errno;

const VOLUME: NodeId = NodeId(2);
const FILE: NodeId = NodeId(3);
const CONTENT: &[u8] = b"written in three pieces";
const TTL: Duration = Duration::from_secs(600);
/// Longer than any step takes, unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Serves `/volume/hello`; a lookup of `boom` panics, and one of `lost` drops its reply.
#[derive(Debug, Default)]
struct Tiny {
    lookups: AtomicUsize,
    longest_write: AtomicUsize,
    /// Requests that came through io_uring.
    over_ring: AtomicUsize,
    /// The requests that wait for a lock.
    waiting: Mutex<Vec<Reply>>,
    /// The lookups of `late...`.
    late: Mutex<Vec<Reply>>,
    /// Whether a lookup of `slow` has begun, and whether it may end.
    slow_begun: AtomicBool,
    slow_may_end: AtomicBool,
}

impl Tiny {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let node = request.header.nodeid;
        if thread::current().name().is_some_and(|name| name.starts_with("limen-ring")) {
            self.over_ring.fetch_add(1, Ordering::Relaxed);
        }
        match request.operation {
            Operation::Init(init) => match init.negotiate(&CONFIG) {
                Ok(out) => reply.ok(Body::init(&out).as_bytes()),
                Err(_) => reply.error(Errno::EPROTO),
            },
            Operation::Lookup { name } => {
                self.lookups.fetch_add(1, Ordering::Relaxed);
                let found = match (node, name) {
                    (NodeId::ROOT, b"volume") => VOLUME,
                    (VOLUME, b"hello") => FILE,
                    (_, b"boom") => panic!("requested by the test"),
                    (_, b"lost") => return drop(reply),
                    (_, name) if name.starts_with(b"late") => return self.late.lock().unwrap().push(reply),
                    (_, b"slow") => {
                        self.slow_begun.store(true, Ordering::SeqCst);
                        // The wait is bounded, so that the test fails rather than hangs.
                        let deadline = Instant::now() + TIMEOUT;
                        while !self.slow_may_end.load(Ordering::SeqCst) && Instant::now() < deadline {
                            thread::sleep(Duration::from_millis(1));
                        }
                        FILE
                    }
                    _ => return reply.error(Errno::ENOENT),
                };
                let entry =
                    Entry { nodeid: found, generation: 0, attr: attr(found), entry_ttl: TTL, attr_ttl: TTL };
                reply.ok(Body::entry(&entry).as_bytes());
            }
            Operation::SetLk { request, wait: true } => {
                assert_eq!(request.fh, Fh(7));
                self.waiting.lock().unwrap().push(reply);
            }
            Operation::GetAttr { .. } => reply.ok(Body::attr(&attr(node), TTL).as_bytes()),
            Operation::Open { .. } | Operation::OpenDir { .. } => {
                reply.ok(Body::open(Fh(7), OpenFlags::empty()).as_bytes());
            }
            Operation::Read(read) => {
                assert_eq!(read.fh, Fh(7));
                let rest = &CONTENT[CONTENT.len().min(read.offset as usize)..];
                reply.ok(rest);
            }
            Operation::Write(write) => {
                self.longest_write.fetch_max(write.data.len(), Ordering::Relaxed);
                reply.ok(Body::written(write.data.len() as u32).as_bytes());
            }
            Operation::ReadDir(read) => {
                let mut dir = DirBuffer::new(read.size_bytes as usize);
                if read.offset == 0 {
                    dir.push(FILE.0, 1, 8, b"hello").unwrap();
                }
                reply.ok(dir.as_bytes());
            }
            Operation::StatFs => reply.ok(Body::statfs(&StatFs::default()).as_bytes()),
            Operation::Release(_)
            | Operation::ReleaseDir(_)
            | Operation::Flush { .. }
            | Operation::Destroy => {
                reply.ok(&[]);
            }
            Operation::Interrupt { unique } => {
                let mut waiting = self.waiting.lock().unwrap();
                if let Some(at) = waiting.iter().position(|waiter| waiter.unique() == unique) {
                    waiting.swap_remove(at).error(Errno::EINTR);
                }
                reply.none();
            }
            Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
            _ => reply.error(Errno::ENOSYS),
        }
    }
}

const CONFIG: InitConfig = InitConfig {
    wanted: InitFlags::MAX_PAGES
        .union(InitFlags::BIG_WRITES)
        .union(InitFlags::PARALLEL_DIROPS)
        .union(InitFlags::FLOCK_LOCKS)
        .union(InitFlags::OVER_IO_URING),
    max_readahead_bytes: 1 << 17,
    max_write_bytes: 1 << 20,
    max_background: 16,
    congestion_threshold: 12,
    time_gran_ns: 1,
};

fn attr(node: NodeId) -> Attr {
    let (mode, nlink, size_bytes) = match node {
        FILE => (0o100644, 1, CONTENT.len() as u64),
        _ => (0o040755, 2, 0),
    };
    Attr { ino: node.0, mode, nlink, size_bytes, blksize_bytes: 4096, ..Attr::default() }
}

fn workers() -> Workers {
    Workers { threads: NonZeroUsize::new(3).unwrap(), max_write_bytes: 1 << 20, idle_class: true }
}

/// The transports that this machine supports.
fn transports() -> Vec<Over> {
    if !can_mount() {
        return Vec::new();
    }
    if !ring_is_enabled() {
        skip::unsupported_in_part(
            "FUSE over io_uring: Linux 6.14 and Y in /sys/module/fuse/parameters/enable_uring",
        );
        return vec![Over::Device];
    }
    vec![Over::Device, Over::Ring]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Device,
    Ring,
}

/// Serves in the background; unmounts when dropped.
struct Served {
    mount: Mount,
    tiny: Arc<Tiny>,
    over: Over,
    server: Option<JoinHandle<Result<(), Error>>>,
}

impl Served {
    fn start(over: Over, mountpoint: &Path, child: Option<&str>) -> (Self, Notifier) {
        let options = MountOptions { child: child.map(Into::into), nosuid: true, nodev: true, ..options() };
        Served::with(over, mountpoint, &options)
    }

    fn with(over: Over, mountpoint: &Path, options: &MountOptions) -> (Self, Notifier) {
        let (mount, device) = Mount::prepare(mountpoint, options).unwrap();
        // A test locks the first directory, in which there are more names than threads that expire names.
        let list = |_| {
            let expire = |(dir, name, count): (NodeId, &[u8], usize)| {
                Box::new(iter::repeat_n(Notification::expire_entry(dir, name), count)) as Notifications
            };
            let names = [(VOLUME, &b"hello"[..], 100), (NodeId::ROOT, b"volume", 1)];
            Box::new(names.into_iter().map(expire)) as Box<dyn Iterator<Item = Notifications> + Send>
        };
        let notifier = device.notifier(NonZeroUsize::new(1024).unwrap(), Box::new(list)).unwrap();
        device.control().set_mountpoint(mountpoint);
        let tiny = Arc::new(Tiny::default());
        let fs = Arc::clone(&tiny);
        let server = thread::spawn(move || match over {
            Over::Device => device.serve(&workers(), &|request, reply| fs.handle(request, reply)),
            Over::Ring => Ring::from(device).serve(&workers(), &|request, reply| fs.handle(request, reply)),
        });
        let mut served = Served { mount, tiny, over, server: Some(server) };
        served.mount.attach().unwrap();
        (served, notifier)
    }

    /// Begins a lookup that takes until the test ends it. The kernel locks the directory for that time.
    fn begin_slow_lookup(&self, dir: &Path) -> JoinHandle<std::io::Result<fs::Metadata>> {
        let slow = dir.join("slow");
        let slow = thread::spawn(move || fs::metadata(slow));
        let deadline = Instant::now() + TIMEOUT;
        while !self.tiny.slow_begun.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "{:?}: the slow request does not arrive", self.over);
            thread::sleep(Duration::from_millis(1));
        }
        slow
    }

    fn waiters_become(&self, count: usize) {
        let deadline = Instant::now() + TIMEOUT;
        while self.tiny.waiting.lock().unwrap().len() != count {
            let waiting = self.tiny.waiting.lock().unwrap().len();
            assert!(Instant::now() < deadline, "{:?}: {waiting} wait, not {count}", self.over);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Unmounts, and repeats this while the mount is in use: between fork and exec, a child that another test
    /// starts holds all files that are open here.
    fn unmount(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.mount.unmount(UnmountMode::Clean) {
                Err(Error::Busy(_)) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                done => return done.unwrap(),
            }
        }
    }

    fn ends(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.server.as_ref().unwrap().is_finished() {
            assert!(Instant::now() < deadline, "the server continues after the unmount");
            thread::sleep(Duration::from_millis(5));
        }
        self.server.take().unwrap().join().unwrap().unwrap();
        let over_ring = self.tiny.over_ring.load(Ordering::Relaxed);
        assert_eq!(over_ring > 0, self.over == Over::Ring, "{over_ring} requests came through io_uring");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // After a failure, requests that still wait get an error.
        let _ = self.mount.unmount(UnmountMode::Force);
        let _ = self.mount.unmount(UnmountMode::Lazy);
    }
}

fn options() -> MountOptions {
    MountOptions { allow_other: true, ..MountOptions::new("my volume") }
}

/// The type, source and mount options of the mount at `path`, from mountinfo.
fn mountinfo(path: &Path) -> Option<(String, String, String)> {
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = all.lines().rfind(|line| line.split(' ').nth(4) == path.to_str())?;
    let (left, right) = line.split_once(" - ").unwrap();
    let mut right = right.split(' ');
    Some((right.next()?.into(), right.next()?.into(), left.split(' ').nth(5)?.into()))
}

fn can_mount() -> bool {
    if !skip::is_root() {
        return false;
    }
    let can = Path::new("/dev/fuse").exists();
    if !can {
        skip::missing("/dev/fuse");
    }
    can
}

#[test]
fn child_is_mounted_read_and_unmounted() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, notifier) = Served::start(over, dir.path(), Some("volume"));
        drop(notifier);
        assert_eq!(*served.mount.placement(), RootPlacement::Child("volume".into()));

        assert_eq!(fs::metadata(dir.path()).unwrap().ino(), VOLUME.0);
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["hello"]);
        let mut file = File::open(dir.path().join("hello")).unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        assert_eq!(content, CONTENT);

        let (fs_type, source, flags) = mountinfo(dir.path()).unwrap();
        assert_eq!((fs_type.as_str(), source.as_str()), ("fuse.limen", r"my\040volume"));
        assert!(flags.contains("nosuid") && flags.contains("nodev"));

        assert!(matches!(Mount::prepare(dir.path(), &options()), Err(Error::AlreadyMounted(_))));
        assert!(!clean_stale(dir.path()).unwrap());
        assert!(matches!(unmount(dir.path(), UnmountMode::Clean), Err(Error::Busy(_))));
        drop(file);
        unmount(dir.path(), UnmountMode::Clean).unwrap();
        served.ends();
        assert_eq!(mountinfo(dir.path()), None);
        assert!(matches!(unmount(dir.path(), UnmountMode::Clean), Err(Error::NotMounted(_))));
    }
}

#[test]
fn panic_and_dropped_reply_are_eio_and_the_mount_continues() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        for _ in 0..10 {
            for name in ["boom", "lost"] {
                let error = fs::metadata(dir.path().join(name)).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(Errno::EIO.raw()));
            }
        }
        assert_eq!(fs::read(dir.path().join("hello")).unwrap(), CONTENT);
        served.unmount();
        served.ends();
    }
}

#[test]
fn notifications_make_the_kernel_revalidate() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, notifier) = Served::start(over, dir.path(), Some("volume"));
        let hello = dir.path().join("hello");
        let lookups = |served: &Served| served.tiny.lookups.load(Ordering::Relaxed);
        fs::metadata(&hello).unwrap();
        let mut known = lookups(&served);
        fs::metadata(&hello).unwrap();
        assert_eq!(lookups(&served), known);
        for notification in [
            Some(Notification::inval_entry(VOLUME, b"hello")),
            Some(Notification::expire_entry(VOLUME, b"hello")),
            None,
        ] {
            notifier.send(Notification::inval_inode(NodeId(4711), 0, 0)).unwrap();
            match notification.clone() {
                Some(notification) => notifier.send(notification).unwrap(),
                None => drop(notifier.expire_all()),
            }
            let deadline = Instant::now() + TIMEOUT;
            while lookups(&served) == known {
                assert!(Instant::now() < deadline, "{notification:?} changed nothing");
                fs::metadata(&hello).unwrap();
            }
            known = lookups(&served);
        }
        drop(notifier);
        served.unmount();
        served.ends();
    }
}

/// Each call waits for a moment, and returns whether [`TIMEOUT`] has not passed since this was called.
fn until_timeout() -> impl Fn() -> bool {
    let deadline = Instant::now() + TIMEOUT;
    move || {
        thread::sleep(Duration::from_millis(1));
        Instant::now() < deadline
    }
}

#[test]
fn request_that_hangs_does_not_delay_the_expiry_of_names_in_other_directories() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, notifier) = Served::start(over, dir.path(), None);
        let volume = dir.path().join("volume");
        fs::metadata(volume.join("hello")).unwrap();
        let slow = served.begin_slow_lookup(&volume);
        let is_early = until_timeout();
        let lookups = || served.tiny.lookups.load(Ordering::Relaxed);
        let known = lookups();
        fs::metadata(&volume).unwrap();
        assert_eq!(lookups(), known);
        notifier.expire_all();
        while lookups() == known {
            assert!(is_early(), "the name of the directory is not looked up again");
            fs::metadata(&volume).unwrap();
        }
        assert!(!slow.is_finished());
        served.tiny.slow_may_end.store(true, Ordering::SeqCst);
        slow.join().unwrap().unwrap();
        drop(notifier);
        served.unmount();
        served.ends();
    }
}

#[test]
fn request_that_hangs_does_not_delay_notifications_about_other_directories() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, notifier) = Served::start(over, dir.path(), None);
        let volume = dir.path().join("volume");
        fs::metadata(volume.join("hello")).unwrap();
        let slow = served.begin_slow_lookup(&volume);
        let is_early = until_timeout();
        // More than there are threads.
        for _ in 0..200 {
            notifier.send(Notification::expire_entry(VOLUME, b"hello")).unwrap();
        }
        let (call, called) = std::sync::mpsc::channel();
        notifier.send_and_call(Notification::inval_inode(VOLUME, 0, 0), move || call.send(()).unwrap());
        let lookups = || served.tiny.lookups.load(Ordering::Relaxed);
        let mut known = lookups();
        fs::metadata(&volume).unwrap();
        assert_eq!(lookups(), known);
        for _ in 0..3 {
            notifier.send(Notification::expire_entry(NodeId::ROOT, b"volume")).unwrap();
            while lookups() == known {
                assert!(is_early(), "{over:?}: the name of the directory is not looked up again");
                fs::metadata(&volume).unwrap();
            }
            known = lookups();
        }
        assert!(!slow.is_finished());
        assert!(!notifier.flush(Duration::from_millis(100)), "some notifications are not written");
        called.try_recv().unwrap_err();
        served.tiny.slow_may_end.store(true, Ordering::SeqCst);
        slow.join().unwrap().unwrap();
        assert!(notifier.flush(TIMEOUT));
        called.recv_timeout(TIMEOUT).unwrap();
        let known = lookups();
        fs::metadata(volume.join("hello")).unwrap();
        assert_eq!(lookups(), known + 1, "its name has expired");
        drop(notifier);
        served.unmount();
        served.ends();
    }
}

#[test]
fn longest_negotiated_write_arrives_whole() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        let mut file = OpenOptions::new().write(true).open(dir.path().join("hello")).unwrap();
        file.write_all(&vec![1; 4 << 20]).unwrap();
        drop(file);
        assert_eq!(served.tiny.longest_write.load(Ordering::Relaxed), 1 << 20);
        served.unmount();
        served.ends();
    }
}

#[test]
fn fuse_root_itself_can_be_mounted() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), None);
        assert_eq!(*served.mount.placement(), RootPlacement::Direct);
        assert_eq!(fs::read(dir.path().join("volume/hello")).unwrap(), CONTENT);
        served.mount.unmount(UnmountMode::Force).unwrap();
        served.ends();
    }
}

#[test]
fn dead_mount_is_detected_and_cleaned_up() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (mut mount, device) = Mount::prepare(dir.path(), &options()).unwrap();
        mount.attach().unwrap();
        drop::<DevFuse>(device);
        // Simulate a killed server: nothing is unmounted.
        std::mem::forget(mount);
        assert!(matches!(Mount::prepare(dir.path(), &options()), Err(Error::Dead(_))));
        assert!(clean_stale(dir.path()).unwrap());
        assert!(!clean_stale(dir.path()).unwrap());
    }
    assert_eq!(mountinfo(dir.path()), None);
}

#[test]
fn mount_dropped_before_attach_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions { child: Some("volume".into()), ..options() };
    let (mount, device) = Mount::prepare(dir.path(), &options).unwrap();
    assert_eq!(mountinfo(dir.path()), None);
    drop(mount);
    device.serve(&workers(), &|_, reply| reply.error(Errno::ENOSYS)).unwrap();
}

/// Runs one test of this program as an unprivileged user that may open `/dev/fuse`, in its own mount
/// namespace.
fn run_as_nobody(test: &str) {
    // The build directory may not be searchable by this user, so the program is copied. `cp` does it: if this
    // process wrote the copy, a child that another test starts might inherit the descriptor, and the copy
    // could then not be executed (ETXTBSY).
    const SCRIPT: &str = r#"
        set -e
        mount -t tmpfs -o mode=1777 tmpfs "$2"
        cp "$1" "$2/tests"
        mknod -m 666 "$2/fuse" c 10 229
        mount --bind "$2/fuse" /dev/fuse
        cd /
        TMPDIR=$2 exec setpriv --reuid=65534 --regid=65534 --clear-groups "$2/tests" --exact "$3""#;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", SCRIPT, "sh"]);
    command.arg(std::env::current_exe().unwrap()).arg(dir.path()).arg(test);
    let output = command.output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Needs a set-uid fusermount3 in the path.
#[test]
fn unprivileged_user_mounts_through_fusermount3() {
    if rustix::process::geteuid().is_root() {
        return run_as_nobody("unprivileged_user_mounts_through_fusermount3");
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        return skip::missing("fusermount3");
    }
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions { child: Some("volume".into()), ..MountOptions::new("mine, all mine") };
    let (mut served, notifier) = Served::with(Over::Device, dir.path(), &options);
    drop(notifier);
    assert_eq!(*served.mount.placement(), RootPlacement::Direct);
    let (fs_type, source, _) = mountinfo(dir.path()).unwrap();
    assert_eq!((fs_type.as_str(), source.as_str()), ("fuse.limen", r"mine,\040all\040mine"));
    let mut file = File::open(dir.path().join("volume/hello")).unwrap();
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content, CONTENT);
    assert!(matches!(unmount(dir.path(), UnmountMode::Clean), Err(Error::Busy(_))));
    drop(file);
    served.unmount();
    served.ends();

    let (mount, device) = Mount::prepare(dir.path(), &options).unwrap();
    drop(device);
    std::mem::forget(mount);
    assert!(matches!(Mount::prepare(dir.path(), &options), Err(Error::Dead(_))));
    assert!(clean_stale(dir.path()).unwrap());
    assert_eq!(mountinfo(dir.path()), None);
    let for_others = Mount::prepare(dir.path(), &MountOptions { allow_other: true, ..options });
    let settings = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if settings.lines().any(|line| line.trim() == "user_allow_other") {
        drop(for_others.unwrap());
    } else {
        assert!(matches!(
            for_others,
            Err(Error::Fusermount(message)) if message.contains("user_allow_other")
        ));
    }
}

#[test]
fn slow_request_delays_no_other() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        thread::scope(|scope| {
            // Only one lookup is slow: all lookups may run on one CPU, which needs another thread for the
            // others.
            let slow = scope.spawn(|| fs::metadata(dir.path().join("slow")).unwrap());
            let deadline = Instant::now() + TIMEOUT;
            while !served.tiny.slow_begun.load(Ordering::SeqCst) {
                assert!(Instant::now() < deadline, "{over:?}: the slow request does not arrive");
                thread::sleep(Duration::from_millis(1));
            }
            for i in 0..100 {
                fs::metadata(dir.path().join(format!("no-{i}"))).unwrap_err();
            }
            assert!(!slow.is_finished(), "{over:?}: the others waited for it");
            served.tiny.slow_may_end.store(true, Ordering::SeqCst);
        });
        served.unmount();
        served.ends();
    }
}

/// More waiters than threads, so that a transport that blocks a thread for each could serve no other request.
#[test]
fn replies_can_come_late_from_other_threads_or_after_an_interrupt() {
    const WAITERS: usize = 40;
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        let hello = dir.path().join("hello");
        for _ in 0..3 {
            let waiter = || Command::new("flock").arg(&hello).arg("true").spawn().unwrap();
            let mut waiters: Vec<_> = (0..WAITERS).map(|_| waiter()).collect();
            served.waiters_become(WAITERS);
            assert_eq!(fs::read(&hello).unwrap(), CONTENT);
            let (killed, answered) = waiters.split_at_mut(WAITERS / 2);
            for waiter in killed {
                waiter.kill().unwrap();
                waiter.wait().unwrap();
            }
            served.waiters_become(WAITERS / 2);
            let late: Vec<_> = std::mem::take(&mut *served.tiny.waiting.lock().unwrap());
            late.into_iter().for_each(|reply| reply.ok(&[]));
            for waiter in answered {
                assert!(waiter.wait().unwrap().success());
            }
            assert_eq!(fs::read(&hello).unwrap(), CONTENT);
        }
        served.unmount();
        served.ends();
    }
}

/// A request that waits in a queue of the kernel must be fetched although no other request is answered.
#[test]
fn lookups_arrive_while_others_wait_for_late_replies() {
    const WAITERS: usize = 40;
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        let tiny = Arc::clone(&served.tiny);
        let late = || tiny.late.lock().unwrap();
        let others_are_answered = || {
            let slow = dir.path().join("slow");
            let slow = thread::spawn(move || fs::metadata(slow));
            let deadline = Instant::now() + TIMEOUT;
            while !tiny.slow_begun.load(Ordering::SeqCst) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            let are_answered = (0..10).all(|at| is_missing(&dir.path().join(format!("no-{at}"))));
            tiny.slow_may_end.store(true, Ordering::SeqCst);
            are_answered && slow.join().unwrap().is_ok()
        };
        for round in 0..20 {
            let mount = &mut served.mount;
            thread::scope(|scope| {
                for waiter in 0..WAITERS {
                    let path = dir.path().join(format!("late-{round}-{waiter}"));
                    scope.spawn(move || assert!(is_missing(&path)));
                }
                let deadline = Instant::now() + TIMEOUT;
                while late().len() < WAITERS && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(1));
                }
                let arrived = late().len();
                let are_answered = arrived == WAITERS && (round > 0 || others_are_answered());
                std::mem::take(&mut *late()).into_iter().for_each(|reply| reply.error(Errno::ENOENT));
                if !are_answered {
                    // The threads that hang get an error.
                    let _ = mount.unmount(UnmountMode::Force);
                }
                assert!(are_answered, "{over:?}: {arrived} of {WAITERS} have arrived");
            });
        }
        served.unmount();
        served.ends();
    }
}

#[test]
fn serving_ends_although_requests_wait_for_late_replies() {
    const WAITERS: usize = 20;
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        let tiny = Arc::clone(&served.tiny);
        let mut waiters = Vec::new();
        for waiter in 0..WAITERS {
            let path = dir.path().join(format!("late-{waiter}"));
            waiters.push(thread::spawn(move || fs::metadata(path).map(drop).unwrap_err()));
        }
        let deadline = Instant::now() + TIMEOUT;
        while tiny.late.lock().unwrap().len() < WAITERS {
            assert!(Instant::now() < deadline, "{over:?}");
            thread::sleep(Duration::from_millis(1));
        }
        let _ = served.mount.unmount(UnmountMode::Force);
        let _ = served.mount.unmount(UnmountMode::Lazy);
        waiters.into_iter().for_each(|waiter| _ = waiter.join().unwrap());
        served.ends();
        assert_eq!(tiny.late.lock().unwrap().len(), WAITERS, "they were not answered");
    }
}

fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(Errno::ENOENT.raw()))
}

/// If replies come late, the ring causes requests of its own, several at a time on one queue. No other
/// request may be lost, or get the reply to another request.
#[test]
fn many_late_replies_lose_no_other_request() {
    const WAITS: usize = 400;
    // Waiting requests are fetched in different ways for files and directories.
    let with_each = |over| [(over, "locks of a file"), (over, "lookups in a directory")];
    for (over, waits) in transports().into_iter().flat_map(with_each) {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        let hello = dir.path().join("hello");
        let (ended, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let waiters = 6;
        thread::scope(|scope| {
            for waiter in 0..waiters {
                let (hello, ended) = (&hello, &ended);
                scope.spawn(move || {
                    for at in 0..WAITS {
                        let is_answered = match waits {
                            "locks of a file" => File::open(hello).unwrap().lock().is_ok(),
                            _ => is_missing(&hello.with_file_name(format!("late-{waiter}-{at}"))),
                        };
                        if !is_answered {
                            return;
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            for thread in 0..2 {
                let (hello, is_over) = (&hello, &is_over);
                scope.spawn(move || {
                    for at in 0_u64.. {
                        if is_over.load(Ordering::SeqCst) {
                            break;
                        }
                        if !is_missing(&hello.with_file_name(format!("no-{thread}-{at}"))) {
                            break;
                        }
                    }
                });
            }
            let deadline = Instant::now() + TIMEOUT;
            while ended.load(Ordering::SeqCst) < waiters && Instant::now() < deadline {
                let late = |waiting: &Mutex<Vec<Reply>>| std::mem::take(&mut *waiting.lock().unwrap());
                late(&served.tiny.waiting).into_iter().for_each(|reply| reply.ok(&[]));
                late(&served.tiny.late).into_iter().for_each(|reply| reply.error(Errno::ENOENT));
                thread::sleep(Duration::from_micros(200));
            }
            is_over.store(true, Ordering::SeqCst);
            if ended.load(Ordering::SeqCst) < waiters {
                // The threads that hang get an error.
                let _ = served.mount.unmount(UnmountMode::Force);
            }
        });
        assert_eq!(ended.into_inner(), waiters, "{over:?}, {waits}: requests were lost");
        served.unmount();
        served.ends();
    }
}

#[test]
fn concurrent_requests_end_with_a_forced_unmount() {
    for over in transports() {
        let dir = tempfile::tempdir().unwrap();
        let (mut served, _notifier) = Served::start(over, dir.path(), Some("volume"));
        let hello = dir.path().join("hello");
        thread::scope(|scope| {
            for thread in 0..8 {
                let hello = &hello;
                scope.spawn(move || {
                    // The loop ends with an error after the unmount.
                    (0..1_000_000).try_for_each(|i| -> std::io::Result<()> {
                        match (thread + i) % 4 {
                            0 => OpenOptions::new().write(true).open(hello)?.write_all(&vec![1; 1 << 20])?,
                            1 => drop(fs::read(hello)?),
                            2 => {
                                let missing =
                                    fs::metadata(hello.with_file_name(format!("no-{i}"))).unwrap_err();
                                if missing.raw_os_error() != Some(Errno::ENOENT.raw()) {
                                    return Err(missing);
                                }
                            }
                            _ => drop(fs::read_dir(hello.parent().unwrap())?.count()),
                        }
                        Ok(())
                    })
                });
            }
            thread::sleep(Duration::from_millis(700));
            // A busy machine needs more time.
            let deadline = Instant::now() + TIMEOUT;
            let is_busy = || {
                served.tiny.lookups.load(Ordering::Relaxed) > 100
                    && served.tiny.longest_write.load(Ordering::Relaxed) == 1 << 20
            };
            while !is_busy() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
            // Requests in flight fail; the mount is then busy, because its users hold it.
            let _ = served.mount.unmount(UnmountMode::Force);
            let _ = served.mount.unmount(UnmountMode::Lazy);
        });
        assert!(served.tiny.lookups.load(Ordering::Relaxed) > 100);
        assert_eq!(served.tiny.longest_write.load(Ordering::Relaxed), 1 << 20);
        served.ends();
    }
}
