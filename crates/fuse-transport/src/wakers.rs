//! Threads that send requests from given CPUs to the file system that this process serves. Such a request
//! wakes a thread of a ring (see `gate.rs`), or makes the kernel fetch a request that waits in the queue of
//! the CPU (see [`Ring::fetch_waiting`](crate::uring::Ring::fetch_waiting)).
//!
//! Such a request may wait until another process answers it, and not even SIGKILL ends that wait
//! (`request_wait_answer` in `fs/fuse/dev.c`). A thread that waits keeps the descriptors open that it shares
//! with the process. If devices were among them, a file system whose server is killed would never end, and
//! all programs that use it would hang. So these threads have a table of descriptors of their own, with at
//! most a descriptor of the file system. They must not log, because the log file is not open in that table.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use fuse_proto::{Opcode, Request};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::cpus::pin;
use crate::entry::lock;

const MAX_WAITING: usize = 1024;

/// Where the requests are sent.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A descriptor of the file system. It keeps the file system mounted.
    Descriptor(OwnedFd),
    /// Where the file system is mounted. If it is not mounted there any more, it gets no request.
    Path(PathBuf),
}

/// Starts the threads. After this is dropped, they end as soon as their requests are answered.
#[derive(Debug)]
pub(crate) struct Wakers {
    cpus: SyncSender<usize>,
    senders: Senders,
}

/// The ids of the threads that send a request now.
type Senders = Arc<Mutex<Vec<u32>>>;

impl Wakers {
    /// Starts the thread that starts the others.
    pub(crate) fn start(destination: Destination) -> io::Result<Self> {
        let (cpus, wanted) = sync_channel(MAX_WAITING);
        let (send_ready, ready) = sync_channel(1);
        let senders = Senders::default();
        let (destination, descriptor) = match destination {
            Destination::Descriptor(root) => (OpenDestination::Descriptor(root.as_raw_fd()), Some(root)),
            Destination::Path(path) => (OpenDestination::Path(Arc::new(path)), None),
        };
        let starter = Starter { destination, senders: Arc::clone(&senders) };
        let work = move || {
            let left = leave_descriptors(starter.destination.descriptor());
            let is_ready = left.is_ok();
            if send_ready.send(left).is_ok() && is_ready {
                starter.start_requests(&wanted);
            }
        };
        thread::Builder::new().name("limen-wake".into()).spawn(work)?;
        // The thread needs the descriptor in the shared table until it has its own.
        let left = ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        drop(descriptor);
        left.map(|()| Wakers { cpus, senders })
    }

    /// Sends a request from a CPU. Returns false if too many threads wait to be started.
    pub(crate) fn wake(&self, cpu: usize) -> bool {
        self.cpus.try_send(cpu).is_ok()
    }

    /// Whether one of the threads sent this request.
    pub(crate) fn have_sent(&self, request: &[u8]) -> bool {
        let is_statfs = request.get(4..8) == Some(&Opcode::STATFS.0.to_ne_bytes());
        // 0 stands for every caller in another PID namespace.
        let is_sender = |pid| pid != 0 && lock(&self.senders).contains(&pid);
        is_statfs && Request::parse(request).is_ok_and(|request| is_sender(request.header.pid))
    }
}

/// A [`Destination`] as the threads know it.
#[derive(Clone, Debug)]
enum OpenDestination {
    /// The number of a descriptor in the table of the threads.
    Descriptor(RawFd),
    Path(Arc<PathBuf>),
}

impl OpenDestination {
    fn descriptor(&self) -> Option<RawFd> {
        match self {
            OpenDestination::Descriptor(number) => Some(*number),
            OpenDestination::Path(_) => None,
        }
    }

    /// Sends a STATFS request, and waits for its answer.
    fn send(&self) {
        // The answer does not matter.
        let _ = match self {
            OpenDestination::Descriptor(number) => {
                // SAFETY: the descriptor is open in the table of this thread, in which no descriptor is opened or closed.
                rustix::fs::fstatfs(unsafe { BorrowedFd::borrow_raw(*number) })
            }
            OpenDestination::Path(path) => rustix::fs::statfs(&**path),
        };
    }
}

/// Gives the calling thread a table of descriptors of its own, with at most one descriptor.
fn leave_descriptors(kept: Option<RawFd>) -> io::Result<()> {
    // SAFETY: the thread was just started, and uses only the descriptor `kept`, which stays open in its table.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let open: Vec<RawFd> = fs::read_dir("/proc/thread-self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in open.into_iter().filter(|number| Some(*number) != kept) {
        // SAFETY: no code of this thread or of a thread that it starts uses any other descriptor than `kept`.
        // The owners of the descriptors in other threads have them in another table. The directory that was
        // listed is closed already.
        let _ = unsafe { rustix::io::try_close(number) };
    }
    Ok(())
}

/// The state of the thread that starts the others.
struct Starter {
    destination: OpenDestination,
    senders: Senders,
}

impl Starter {
    fn start_requests(&self, cpus: &Receiver<usize>) {
        while let Ok(cpu) = cpus.recv() {
            let (destination, senders) = (self.destination.clone(), Arc::clone(&self.senders));
            let request = move || {
                if pin(cpu).is_err() {
                    return;
                }
                let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
                lock(&senders).push(own);
                destination.send();
                lock(&senders).retain(|sender| *sender != own);
            };
            // If no thread can be started, or it may not run on the CPU, no request is sent: workers do not
            // pause in time, or waiting requests are not fetched before the next commit.
            let _ = thread::Builder::new().name("limen-wake".into()).spawn(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, pipe};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn threads_keep_no_other_descriptor_open() {
        let (mut reader, writer) = pipe().unwrap();
        let wakers = Wakers::start(Destination::Descriptor(File::open("/").unwrap().into())).unwrap();
        drop(writer);
        // This would wait forever if a thread had a copy of the writer.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..1024).find(|cpu| cpus.is_set(*cpu)).unwrap();
        assert!(wakers.wake(cpu));
        drop(wakers);
        let deadline = Instant::now() + Duration::from_secs(60);
        let is_waker = |entry: io::Result<fs::DirEntry>| {
            let comm = entry.and_then(|entry| fs::read_to_string(entry.path().join("comm")));
            comm.is_ok_and(|comm| comm == "limen-wake\n")
        };
        while fs::read_dir("/proc/self/task").unwrap().any(is_waker) {
            assert!(Instant::now() < deadline, "the threads end");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
