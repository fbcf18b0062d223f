//! The io_uring of one thread.
//!
//! A queue of the kernel holds *entries*: a header and a payload buffer of this process, lent to the kernel
//! by REGISTER. The kernel fills an entry with a request and returns it by a completion; COMMIT_AND_FETCH
//! lends it again, with the reply in it (`fs/fuse/dev_uring.c`). So an entry's memory has one owner at any
//! time, which [`Entry`] records.
//!
//! The kernel uses one payload buffer for both directions. A short request is copied out of it first, so that
//! the reply can be written directly into it. A long one (a WRITE) is used in place, and its short reply is
//! kept aside until the handler is done with the request.
//!
//! # Hand-over to another process
//! The kernel knows an entry by the address of its memory, and reads and writes there in the address space of
//! the process that submits the command. So another process can commit an entry that holds a request: it maps
//! memory at the same address, copies the request there, and replies ([`HeldEntry`], [`Ring::adopt`]). A
//! process cannot take an entry back from the kernel while the entry waits for a request. Therefore the
//! process that hands over first lets each entry receive a request ([`crate::WorkerControl::pause`]).

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuse_proto::{NodeId, Notification, Unique};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use crate::device::Device;
use crate::entry::{Deferred, Entries, Entry, HeldEntry, Stage, lock};

/// If no more threads can be started, the last one lends further entries to the kernel, at most this many. At
/// the maximum, requests wait in the kernel.
const MAX_ENTRIES: usize = 1024;
/// No further thread is started if its queue has this many entries. Each thread uses two file descriptors.
pub(crate) const MAX_THREADS: usize = 32;

/// The size of the submission queue. The completion queue has room for twice as many; further completions
/// wait in the kernel.
const RING_ENTRIES: u32 = 16;

/// The bit that marks the ids of the requests that this process causes by RETRIEVE notifications
/// ([`Ring::fetch_waiting`]). The ids of all other requests are from the kernel, which counts upwards from 2.
const WAKE_UP: u64 = 1 << 62;

/// An id for the request of a RETRIEVE notification. Each is used once: the kernel finds the entry of a reply
/// by the id (`fuse_uring_commit_fetch`). If two requests on one queue had the same id, the kernel would
/// confuse their entries, and would write the next request into memory that no thread reads. The process that
/// served the mount before may have caused requests that are still unanswered, so the process id is part of
/// the id.
fn next_wake_up() -> Unique {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX);
    // Odd ids are those of interrupts.
    Unique(WAKE_UP | u64::from(std::process::id()) << 33 | number << 1)
}

/// Whether a RETRIEVE notification of this process, or of the one that served the mount before, caused a
/// request.
pub(crate) fn is_wake_up(unique: Unique) -> bool {
    unique.0 & WAKE_UP != 0
}

/// The user data of the completion for deferred replies. That of other completions is the number of the entry
/// in its ring.
const DEFERRED: u64 = u64::MAX;

/// The ring of one thread. It serves one of the kernel's queues, from [`Ring::begin`] on.
pub(crate) struct Ring {
    io: IoUring<squeue::Entry128>,
    device: Arc<Device>,
    queue: u16,
    payload_bytes: usize,
    entries: Vec<Arc<Entry>>,
    /// The entries of all rings of the mount.
    all: Entries,
    /// The number of entries that the kernel holds.
    lent: usize,
    /// The entries with requests that are not handled yet, because the mount is paused, or was taken over.
    held: Vec<Arc<Entry>>,
    /// The entries that were taken over with their replies.
    answered: Vec<Arc<Entry>>,
    deferred: Arc<Deferred>,
    /// Whether a poll of the eventfd of `deferred` is queued or submitted.
    listening: bool,
}

/// The result of a wait.
pub(crate) enum Event {
    /// A request in this entry.
    Request(Arc<Entry>),
    /// Other threads may have given replies.
    Deferred,
    /// The kernel returned an entry without a request: the file system has ended, or REGISTER was rejected.
    Returned(Errno),
}

/// The result of [`Ring::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The reply was already given. The entry must be committed.
    Answered,
    /// The request waits for its reply.
    Waits,
    /// As [`Left::Waits`]; and too few threads of the queue do not wait.
    TooManyWait,
}

impl Ring {
    /// Creates a ring for one queue of the kernel, without an entry.
    ///
    /// # Errors
    /// io_uring is missing or not allowed, or there is no memory.
    pub(crate) fn new(
        device: Arc<Device>,
        queue: u16,
        payload_bytes: usize,
        all: &Entries,
    ) -> io::Result<Self> {
        let io = IoUring::builder().build(RING_ENTRIES)?;
        Ok(Ring {
            io,
            device,
            queue,
            payload_bytes,
            entries: Vec::new(),
            all: Arc::clone(all),
            lent: 0,
            held: Vec::new(),
            answered: Vec::new(),
            deferred: Deferred::new()?,
            listening: false,
        })
    }

    pub(crate) fn queue(&self) -> u16 {
        self.queue
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the ring has entries that were taken over.
    pub(crate) fn has_adopted(&self) -> bool {
        self.entries.iter().any(|entry| !entry.is_new())
    }

    /// Takes over an entry that another process has described. If it has a reply, [`Ring::begin`] commits it.
    /// If its request is not handled yet, [`Ring::next_held`] returns it. If its request waits for a lock,
    /// [`Ring::deferred_replies`] returns it after the reply was given.
    ///
    /// # Errors
    /// The address of the entry is in use in this process, or the description is invalid.
    pub(crate) fn adopt(&mut self, described: &HeldEntry) -> io::Result<()> {
        let entry = self.push_entry(Entry::restore(described, self.entries.len() as u64, &self.deferred)?);
        match described.stage {
            Stage::Received => self.held.push(entry),
            // Another thread may answer it before the ring is used.
            Stage::Waiting => self.listen()?,
            Stage::Answered => self.answered.push(entry),
        }
        Ok(())
    }

    /// Begins to serve: commits the entries that were taken over with their replies. If there are none, and
    /// the ring holds no request, lends a new entry to the kernel. Must not be called before the reply to INIT,
    /// because the kernel rejects every entry until then (`fuse_uring_cmd`).
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        for entry in std::mem::take(&mut self.answered) {
            self.commit(&entry)?;
        }
        let waits = self.entries.iter().any(|entry| entry.is_left());
        if self.lent == 0 && self.held.is_empty() && !waits {
            if !self.entries.iter().any(|entry| entry.is_new()) {
                self.add()?;
            }
            self.lend()?;
        }
        Ok(())
    }

    /// Keeps a request, which is not to be handled now.
    pub(crate) fn hold(&mut self, entry: Arc<Entry>) -> io::Result<()> {
        entry.hold();
        self.held.push(entry);
        // The eventfd wakes the thread when it may handle the request.
        self.listen()
    }

    /// A request that was kept.
    pub(crate) fn next_held(&mut self) -> io::Result<Option<Arc<Entry>>> {
        if !self.held.is_empty() && !self.io.submission().is_empty() {
            // Send replies before the next request is handled.
            self.io.submit()?;
        }
        Ok(self.held.pop())
    }

    /// Lends a new entry to the kernel.
    fn lend(&mut self) -> io::Result<()> {
        let Some(entry) = self.entries.iter().find(|entry| entry.is_new()).cloned() else { return Ok(()) };
        entry.lend();
        let areas = entry.areas();
        let mut sqe = self.command(CMD_REGISTER, &entry, 0, Some(areas.as_ptr() as u64));
        // SAFETY: an Entry128 is the kernel's `struct io_uring_sqe` of 128 bytes, `repr(C)`, with `len` as
        // the u32 at offset 24; the library has no command that sets it.
        unsafe { (&raw mut sqe).cast::<u8>().add(24).cast::<u32>().write(areas.len() as u32) };
        self.push(&sqe)?;
        self.lent += 1;
        // The kernel reads `areas` during the submission, and not later.
        self.io.submit().map(drop)
    }

    /// Returns an entry with its reply to the kernel, for the next request.
    pub(crate) fn commit(&mut self, entry: &Arc<Entry>) -> io::Result<()> {
        let unique = entry.hand_back();
        let sqe = self.command(CMD_COMMIT_AND_FETCH, entry, unique.0, None);
        self.push(&sqe)?;
        self.lent += 1;
        Ok(())
    }

    /// Leaves an entry to the thread that holds its reply. `threads` is how many threads of this queue must not
    /// wait for replies.
    pub(crate) fn leave(&mut self, entry: &Entry, threads: usize) -> io::Result<Left> {
        if !entry.leave() {
            return Ok(Left::Answered);
        }
        self.listen()?;
        // If another thread leaves its entry at the same time, the later one counts both.
        let waits = |entry: &&Arc<Entry>| entry.queue != self.queue || entry.is_left();
        let others = lock(&self.all).iter().filter(|entry| !waits(entry)).count();
        Ok(if self.lent > 0 || others >= threads { Left::Waits } else { Left::TooManyWait })
    }

    /// A ring for the same queue, with a new entry.
    ///
    /// # Errors
    /// There is no memory, there are too many open files, or the queue has [`MAX_THREADS`] entries.
    pub(crate) fn another(&self) -> io::Result<Self> {
        if lock(&self.all).iter().filter(|entry| entry.queue == self.queue).count() >= MAX_THREADS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let mut ring = Ring::new(Arc::clone(&self.device), self.queue, self.payload_bytes, &self.all)?;
        ring.add()?;
        Ok(ring)
    }

    /// Lends one more entry to the kernel, up to [`MAX_ENTRIES`].
    pub(crate) fn lend_another(&mut self) -> io::Result<()> {
        if self.entries.len() < MAX_ENTRIES {
            self.add()?;
            self.lend()?;
        }
        Ok(())
    }

    /// Makes the kernel fetch the requests that arrived while the queue had no entry. Returns false if the
    /// kernel cannot do that for `node`.
    ///
    /// Such a request waits for the next commit; the kernel does not give it to a newly registered entry
    /// (`fuse_uring_do_register`). A RETRIEVE notification makes the kernel send a request on this CPU's
    /// queue, and the commit of that request fetches the waiting one. The kernel does this only for regular
    /// files, on which programs usually lock.
    pub(crate) fn fetch_waiting(&self, node: NodeId) -> bool {
        let retrieve = Notification::retrieve(next_wake_up(), node, 0);
        self.device.write(&[IoSlice::new(retrieve.as_bytes())]).is_ok()
    }

    /// The entries whose replies other threads have given since the last call.
    pub(crate) fn deferred_replies(&mut self) -> io::Result<Vec<Arc<Entry>>> {
        let entries = self.deferred.take()?;
        self.listening = false;
        self.listen()?;
        Ok(entries)
    }

    /// Whether the kernel holds no entry.
    pub(crate) fn are_all_returned(&self) -> bool {
        self.lent == 0
    }

    /// Submits the queued commands, and waits. `None` if the kernel holds no entry and no other event can
    /// come.
    pub(crate) fn next(&mut self) -> io::Result<Option<Event>> {
        loop {
            let done = self.io.completion().next();
            if let Some(done) = done {
                if !self.io.submission().is_empty() {
                    // Send replies before the next request is handled.
                    self.io.submit()?;
                }
                return Ok(Some(self.event(done.user_data(), done.result())));
            }
            if self.lent == 0 && !self.listening {
                return Ok(None);
            }
            match self.io.submit_and_wait(1) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
        }
    }

    fn event(&mut self, user_data: u64, result: i32) -> Event {
        if user_data == DEFERRED {
            return Event::Deferred;
        }
        self.lent -= 1;
        match self.entries.get(user_data as usize) {
            Some(entry) if result >= 0 => Event::Request(Arc::clone(entry)),
            _ => Event::Returned(Errno::from_raw_os_error(-result)),
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn add(&mut self) -> io::Result<()> {
        let index = self.entries.len() as u64;
        self.push_entry(Entry::new(self.queue, index, self.payload_bytes, &self.deferred)?);
        Ok(())
    }

    fn push_entry(&mut self, entry: Entry) -> Arc<Entry> {
        let entry = Arc::new(entry);
        self.entries.push(Arc::clone(&entry));
        lock(&self.all).push(Arc::clone(&entry));
        entry
    }

    fn listen(&mut self) -> io::Result<()> {
        if self.listening {
            return Ok(());
        }
        const POLLIN: u32 = 1;
        let sqe = opcode::PollAdd::new(types::Fd(self.deferred.wake_fd()), POLLIN).build();
        self.push(&squeue::Entry128::from(sqe).user_data(DEFERRED))?;
        self.listening = true;
        Ok(())
    }

    fn command(&self, op: u32, entry: &Entry, commit_id: u64, addr: Option<u64>) -> squeue::Entry128 {
        // `struct fuse_uring_cmd_req`: flags, commit_id, qid.
        let mut cmd = [0; 80];
        cmd[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        cmd[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let fd = types::Fd(self.device.as_fd().as_raw_fd());
        opcode::UringCmd80::new(fd, op).cmd(cmd).addr(addr).build().user_data(entry.index)
    }

    fn push(&mut self, sqe: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: a command points to an entry's area, which lives until the kernel has returned it (`Drop`),
        // to an eventfd that lives as long as the ring, or to the list of areas, which is read by the
        // submission that follows.
        if unsafe { self.io.submission().push(sqe) }.is_err() {
            self.io.submit()?;
            // SAFETY: as above.
            unsafe { self.io.submission().push(sqe) }.map_err(|_| io::ErrorKind::QuotaExceeded)?;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The queue has one thread less.
        let is_own = |entry: &Arc<Entry>| self.entries.iter().any(|own| Arc::ptr_eq(own, entry));
        lock(&self.all).retain(|entry| !is_own(entry));
        if self.lent > 0 {
            // Leak the entries: the kernel may still write to them.
            self.entries.drain(..).for_each(std::mem::forget);
        }
    }
}

const CMD_REGISTER: u32 = 1;
const CMD_COMMIT_AND_FETCH: u32 = 2;
