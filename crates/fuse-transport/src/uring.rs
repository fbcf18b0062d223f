//! The io_uring of one thread, and the memory that it shares with the kernel for requests and replies.
//!
//! A queue of the kernel holds *entries*: a header and a payload buffer of this process, lent to the kernel
//! by REGISTER. The kernel fills an entry with a request and returns it by a completion; COMMIT_AND_FETCH
//! lends it again, with the reply in it (`fs/fuse/dev_uring.c`). So an entry's memory has one owner at any
//! time, which is recorded in [`State`].
//!
//! The kernel uses one payload buffer for both directions. A short request is copied out of it first, so that
//! the reply can be written directly into it. A long one (a WRITE) is used in place, and its short reply is
//! kept aside until the handler is done with the request.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse_proto::{NodeId, Notification, REPLY_HEADER_BYTES, Unique, reply_header};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::device::Device;

/// The limit of entries of one thread: one, plus one for each reply that another thread holds at the same
/// time. Beyond it, requests wait in the kernel.
const MAX_ENTRIES: usize = 1024;

/// The size of the submission queue. If there are more completions than twice this number, they wait in the
/// kernel.
const RING_ENTRIES: u32 = 16;

/// The bit of the ids of requests that this process causes itself; the kernel's own ids count upwards from 2.
const WAKE_UP: u64 = 1 << 62;

/// An id for a request that this process causes. Each is used once: the kernel finds the entry of a reply by the id
/// (`fuse_uring_commit_fetch`). If two requests on one queue had the same, it would confuse their entries, and the next
/// request would be written into memory that nobody reads.
fn next_wake_up() -> Unique {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Odd ids are those of interrupts.
    Unique(WAKE_UP | (2 * NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Whether this process caused a request.
pub(crate) fn is_wake_up(unique: Unique) -> bool {
    unique.0 & WAKE_UP != 0
}

/// The user data of the completion for deferred replies. Entries are numbered from 0.
const DEFERRED: u64 = u64::MAX;

/// The ring of one thread. It serves one of the kernel's queues, from its first [`Ring::lend`] on.
pub(crate) struct Ring {
    io: IoUring<squeue::Entry128>,
    device: Arc<Device>,
    queue: u16,
    payload_bytes: usize,
    entries: Vec<Arc<Entry>>,
    /// The number of entries that the kernel holds.
    lent: usize,
    deferred: Arc<Deferred>,
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

impl Ring {
    /// Creates a ring for one queue of the kernel, with one entry.
    ///
    /// # Errors
    /// Fails if io_uring is missing, not allowed, or out of memory.
    pub(crate) fn new(device: Arc<Device>, queue: u16, payload_bytes: usize) -> io::Result<Self> {
        let io = IoUring::builder().build(RING_ENTRIES)?;
        let deferred = Arc::new(Deferred {
            replies: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let mut ring = Ring {
            io,
            device,
            queue,
            payload_bytes,
            entries: Vec::new(),
            lent: 0,
            deferred,
            listening: false,
        };
        ring.add()?;
        Ok(ring)
    }

    /// Lends the newest entry to the kernel for the first time. Must not be called before the reply to INIT,
    /// because the kernel rejects every entry until then (`fuse_uring_cmd`).
    pub(crate) fn lend(&mut self) -> io::Result<()> {
        let Some(entry) = self.entries.last().cloned() else { return Ok(()) };
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

    /// Leaves an entry to the thread that holds its reply, and lends another entry to the kernel in its
    /// place, unless the kernel holds another one. Returns false if the reply was already given.
    ///
    /// Without an entry the kernel could not send requests to this thread while the reply is
    /// outstanding, because each request needs an entry. The number of requests that wait for a lock is not
    /// bounded by the number of threads.
    ///
    /// A request that arrived while the queue had no entry waits for the next commit; the kernel does not
    /// give it to a newly registered entry (`fuse_uring_do_register`). So a RETRIEVE notification makes the
    /// kernel send a request on this CPU's queue, and the commit of that request fetches the waiting one. The
    /// kernel does this only for regular files, on which programs usually lock; for other files, the next
    /// commit fetches the waiting request.
    pub(crate) fn leave(&mut self, entry: &Arc<Entry>) -> io::Result<bool> {
        if !entry.leave() {
            return Ok(false);
        }
        self.listen()?;
        if self.lent == 0 && self.entries.len() < MAX_ENTRIES {
            self.add()?;
            self.lend()?;
            if let Err(error) = self
                .device
                .write(&[IoSlice::new(Notification::retrieve(next_wake_up(), entry.node(), 0).as_bytes())])
            {
                tracing::debug!(%error, "the kernel rejected the RETRIEVE that fetches waiting requests");
            }
        }
        Ok(true)
    }

    /// The entries whose replies other threads have given since the last call.
    pub(crate) fn deferred_replies(&mut self) -> io::Result<Vec<Arc<Entry>>> {
        let mut count = [0; 8];
        // Reset the eventfd first: a reply that is given from now on signals it again.
        rustix::io::retry_on_intr(|| rustix::io::read(&self.deferred.wake, &mut count))?;
        let entries = std::mem::take(&mut *lock(&self.deferred.replies));
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

    fn add(&mut self) -> io::Result<()> {
        let area = Area::new(self.payload_bytes)?;
        let deferred = Arc::clone(&self.deferred);
        let index = self.entries.len() as u64;
        self.entries.push(Arc::new(Entry { area, index, state: Mutex::new(State::Kernel), deferred }));
        Ok(())
    }

    fn listen(&mut self) -> io::Result<()> {
        if self.listening {
            return Ok(());
        }
        const POLLIN: u32 = 1;
        let sqe = opcode::PollAdd::new(types::Fd(self.deferred.wake.as_raw_fd()), POLLIN).build();
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
        if self.lent > 0 {
            // Leak the entries: the kernel may still write to them.
            self.entries.drain(..).for_each(std::mem::forget);
        }
    }
}

const CMD_REGISTER: u32 = 1;
const CMD_COMMIT_AND_FETCH: u32 = 2;

/// The entries whose replies were given by other threads.
struct Deferred {
    replies: Mutex<Vec<Arc<Entry>>>,
    wake: OwnedFd,
}

/// The memory for one request and its reply.
pub(crate) struct Entry {
    area: Area,
    index: u64,
    state: Mutex<State>,
    deferred: Arc<Deferred>,
}

/// The owner of an entry's area.
enum State {
    /// The kernel owns the area; between a completion and [`Entry::open`], the ring's thread owns it.
    Kernel,
    /// The handler owns the area. If the request was `copied`, the reply can be written to the payload;
    /// otherwise the handler still reads the request there.
    Open { unique: Unique, copied: bool, left: bool },
    /// The ring's thread owns the area. If `aside` is not empty, its bytes must still be written to the
    /// payload.
    Answered { unique: Unique, aside: Vec<u8> },
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Requests of up to this length are copied; longer requests are used in place.
const MAX_COPIED_BYTES: usize = 4096;

/// The buffer for copies of short requests.
pub(crate) struct Scratch(Box<[u8; MAX_COPIED_BYTES]>);

impl Scratch {
    pub(crate) fn new() -> Self {
        Scratch(Box::new([0; MAX_COPIED_BYTES]))
    }
}

impl Entry {
    /// The bytes of the request in this entry, in the format of `/dev/fuse`, and its id. If the lengths in
    /// the entry are inconsistent, bytes are missing, which the parser detects.
    ///
    /// Called once per completion. The entry is not returned to the kernel while the slice is in use: the
    /// thread that uses the slice calls `hand_back`.
    pub(crate) fn open<'a>(&'a self, scratch: &'a mut Scratch) -> (Unique, &'a [u8]) {
        let unique = Unique(u64::from_ne_bytes(self.area.read(COMMIT_ID)));
        let request = self.area.assemble();
        let copied = scratch.0.get_mut(..request.len());
        *lock(&self.state) = State::Open { unique, copied: copied.is_some(), left: false };
        match copied {
            Some(copy) => {
                copy.copy_from_slice(request);
                (unique, copy)
            }
            None => (unique, request),
        }
    }

    /// The inode of the request. No reply overwrites this field, so it is valid until the entry is returned.
    fn node(&self) -> NodeId {
        NodeId(u64::from_ne_bytes(self.area.read(NODE_ID)))
    }

    /// Writes the reply; only the first one for a request counts.
    pub(crate) fn answer(self: &Arc<Self>, unique: Unique, outcome: Result<&[u8], ::types::Errno>) {
        let mut state = lock(&self.state);
        let State::Open { unique: open, copied, left } = *state else { return };
        if open != unique {
            return;
        }
        let outcome = outcome.and_then(|body| match body.len() <= self.area.payload_bytes {
            true => Ok(body),
            false => {
                let body_bytes = body.len();
                tracing::error!(%unique, body_bytes, "a reply is longer than the payload buffer; sending EIO");
                Err(::types::Errno::EIO)
            }
        });
        let body = outcome.unwrap_or_default();
        let mut aside = Vec::new();
        match copied {
            true => self.area.write_body(body),
            false => aside = body.to_vec(),
        }
        self.area.write_header(&reply_header(unique, outcome.map(<[u8]>::len)), body.len());
        *state = State::Answered { unique, aside };
        drop(state);
        if left {
            lock(&self.deferred.replies).push(Arc::clone(self));
            // This fails only if the counter is at its maximum, and then the thread is already being woken.
            let _ = rustix::io::write(&self.deferred.wake, &1u64.to_ne_bytes());
        }
    }

    /// Returns true if the reply was not given yet. When it is given, [`Ring::deferred_replies`] returns the
    /// entry.
    fn leave(&self) -> bool {
        match &mut *lock(&self.state) {
            State::Open { left, .. } => {
                *left = true;
                true
            }
            _ => false,
        }
    }

    /// The last access before the kernel owns the entry; returns the id of the request.
    fn hand_back(&self) -> Unique {
        match std::mem::replace(&mut *lock(&self.state), State::Kernel) {
            State::Answered { unique, aside } => {
                if !aside.is_empty() {
                    self.area.write_body(&aside);
                }
                unique
            }
            // No reply, or already returned: the kernel will report an unknown request.
            State::Open { .. } | State::Kernel => Unique(0),
        }
    }

    /// The areas for REGISTER, header and payload, each as a `struct iovec`: address and length.
    fn areas(&self) -> [[usize; 2]; 2] {
        let at = |offset| self.area.at(offset).expose_provenance();
        [[at(0), HEADER_BYTES], [at(PAYLOAD), self.area.payload_bytes]]
    }
}

// `struct fuse_uring_req_header`: 128 bytes for the header of the request or reply, 128 for the arguments of
// fixed size, then `struct fuse_uring_ent_in_out`: flags, commit_id, payload_sz, padding, reserved.
const NODE_ID: usize = 16;
const OP_IN: usize = 128;
const OP_IN_BYTES: usize = 128;
const COMMIT_ID: usize = 264;
const PAYLOAD_SIZE: usize = 272;
const HEADER_BYTES: usize = 288;

/// `struct fuse_in_header`.
const IN_HEADER_BYTES: usize = 40;

/// The payload is page-aligned. The end of the page before it has room for the header and arguments of a
/// contiguous request.
const PAYLOAD: usize = 4096;

/// An entry's memory. It is mapped, so that pages that no request ever uses cost nothing.
struct Area {
    base: NonNull<c_void>,
    payload_bytes: usize,
}

// SAFETY: the area owns the memory, which is not tied to a thread; `State` determines which thread may access
// it.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    fn new(payload_bytes: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, at an address that the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAYLOAD + payload_bytes, prot, flags) }?;
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { base, payload_bytes })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    /// Bytes of the header; `offset` is one of the constants above.
    fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= HEADER_BYTES);
        // SAFETY: within the mapping, and only called while the kernel does not own the entry.
        unsafe { self.at(offset).cast::<[u8; N]>().read() }
    }

    /// Copies header and arguments in front of the payload, so that the request is contiguous.
    fn assemble(&self) -> &[u8] {
        let len = u32::from_ne_bytes(self.read(0)) as usize;
        let payload = (u32::from_ne_bytes(self.read(PAYLOAD_SIZE)) as usize).min(self.payload_bytes);
        let args = len.saturating_sub(IN_HEADER_BYTES + payload).min(OP_IN_BYTES);
        let start = PAYLOAD - args - IN_HEADER_BYTES;
        // SAFETY: source and destination are in the first page and do not overlap: the source ends at 256,
        // the destination begins at 3928 (4096-168) or later. The slice ends at the end of the payload or
        // before. This is only called by `open`, while the thread owns the entry; until it is returned, only
        // `answer` writes, to the first 288 bytes and, if the slice was copied, to the payload.
        unsafe {
            ptr::copy_nonoverlapping(self.at(0), self.at(start), IN_HEADER_BYTES);
            ptr::copy_nonoverlapping(self.at(OP_IN), self.at(start + IN_HEADER_BYTES), args);
            std::slice::from_raw_parts(self.at(start), IN_HEADER_BYTES + args + payload)
        }
    }

    /// Writes the body, as far as it fits.
    fn write_body(&self, body: &[u8]) {
        let len = body.len().min(self.payload_bytes);
        // SAFETY: `len` is at most the payload's length. The caller holds the lock of `State`, in a state in
        // which no other thread accesses the payload.
        unsafe { ptr::copy_nonoverlapping(body.as_ptr(), self.at(PAYLOAD), len) };
    }

    fn write_header(&self, header: &[u8; REPLY_HEADER_BYTES], body_bytes: usize) {
        let size = (body_bytes as u32).to_ne_bytes();
        // SAFETY: both are in the header, which no other thread accesses: the caller holds the lock of
        // `State`, which is open.
        unsafe {
            self.at(0).cast::<[u8; REPLY_HEADER_BYTES]>().write(*header);
            self.at(PAYLOAD_SIZE).cast::<[u8; 4]>().write(size);
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this unmaps the whole mapping, and an entry is dropped only when the kernel does not own
        // it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), PAYLOAD + self.payload_bytes) };
    }
}

/// Ignores poisoning: no code between taking the lock and the assignment of the state can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
