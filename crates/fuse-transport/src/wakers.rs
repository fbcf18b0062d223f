//! Threads that send requests from given CPUs to the file system that this process serves, to wake the
//! threads of its rings (see `gate.rs`).
//!
//! Such a request may wait until another process answers it, and not even SIGKILL ends that wait
//! (`request_wait_answer` in `fs/fuse/dev.c`). A thread that waits keeps the descriptors open that it shares
//! with the process. If devices were among them, a file system whose server is killed would never end, and
//! all programs that use it would hang. So these threads have a table of descriptors of their own, with only
//! a descriptor of the file system. They must not log, because the log file is not open in that table.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::cpus::pin;

const MAX_WAITING: usize = 1024;

/// Starts the threads. After this is dropped, they end as soon as their requests are answered.
#[derive(Debug)]
pub(crate) struct Wakers {
    cpus: SyncSender<usize>,
}

impl Wakers {
    /// Starts the thread that starts the others. `root` is a descriptor of the file system.
    pub(crate) fn start(root: OwnedFd) -> io::Result<Self> {
        let (cpus, wanted) = sync_channel(MAX_WAITING);
        let (send_ready, ready) = sync_channel(1);
        let number = root.as_raw_fd();
        let work = move || {
            let left = leave_descriptors(number);
            let is_ready = left.is_ok();
            if send_ready.send(left).is_ok() && is_ready {
                start_requests(number, &wanted);
            }
        };
        thread::Builder::new().name("limen-wake".into()).spawn(work)?;
        // The thread needs `root` in the shared table until it has its own.
        let left = ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        drop(root);
        left.map(|()| Wakers { cpus })
    }

    /// Sends a request from a CPU. Returns false if too many threads wait to be started.
    pub(crate) fn wake(&self, cpu: usize) -> bool {
        self.cpus.try_send(cpu).is_ok()
    }
}

/// Gives the calling thread a table of descriptors of its own, with one descriptor.
fn leave_descriptors(kept: RawFd) -> io::Result<()> {
    // SAFETY: the thread was just started, and uses only the descriptor `kept`, which stays open in its table.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let open: Vec<RawFd> = fs::read_dir("/proc/thread-self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in open.into_iter().filter(|number| *number != kept) {
        // SAFETY: no code of this thread or of a thread that it starts uses any other descriptor than `kept`.
        // The owners of the descriptors in other threads have them in another table. The directory that was
        // listed is closed already.
        let _ = unsafe { rustix::io::try_close(number) };
    }
    Ok(())
}

fn start_requests(root: RawFd, cpus: &Receiver<usize>) {
    while let Ok(cpu) = cpus.recv() {
        let request = move || {
            // SAFETY: the descriptor is open in the table of this thread, in which nothing is opened or closed.
            let root = unsafe { BorrowedFd::borrow_raw(root) };
            if pin(cpu).is_ok() {
                let _ = rustix::fs::fstatfs(root);
            }
        };
        // If no thread can be started, the workers do not pause in time.
        let _ = thread::Builder::new().name("limen-wake".into()).spawn(request);
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
        let wakers = Wakers::start(File::open("/").unwrap().into()).unwrap();
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
