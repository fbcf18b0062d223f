//! One thread's io_uring, and the memory that it shares with the kernel for requests and replies.
//!
//! A queue of the kernel holds *entries*: a header and a payload area of ours, lent to the kernel by REGISTER. The kernel
//! fills one with a request and gives it back by a completion; COMMIT_AND_FETCH hands it over again with the reply in it
//! (`fs/fuse/dev_uring.c`). So an entry's memory has one owner at any time, and [`State`] says who that is.
//!
//! The kernel has one payload area for both directions. A short request is copied out of it first, so that the reply can be
//! written straight in; a long one (a WRITE) is used where it lies, and its short reply waits aside until it is done with.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse_proto::{NodeId, Notification, REPLY_HEADER_BYTES, Unique, reply_header};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::device::Device;

/// The most entries of one thread: one, and one more for each reply that was taken to another thread at the same time. What
/// lies beyond waits in the kernel for one of those.
const MAX_ENTRIES: usize = 1024;

/// How much is submitted at once; more completions than twice as many wait in the kernel.
const RING_ENTRIES: u32 = 16;

/// What the request of our own is numbered; the kernel counts upwards from 2.
pub(crate) const NUDGE: Unique = Unique(1 << 62);

/// The completion that says that a late reply is there. Entries are numbered from 0.
const LATE: u64 = u64::MAX;

/// One thread's ring. It serves one of the kernel's queues, from its first [`Ring::lend`] on.
pub(crate) struct Ring {
    io: IoUring<squeue::Entry128>,
    device: Arc<Device>,
    queue: u16,
    payload_bytes: usize,
    entries: Vec<Arc<Entry>>,
    /// How many entries the kernel has.
    lent: usize,
    late: Arc<Late>,
    listening: bool,
}

/// What a wait brought.
pub(crate) enum Event {
    /// A request in this entry.
    Request(Arc<Entry>),
    /// Replies from other threads may be there.
    Late,
    /// The kernel gave an entry back without a request: the file system is gone, or REGISTER was refused.
    Returned(Errno),
}

impl Ring {
    /// # Errors
    /// io_uring is not there, not allowed, or without memory.
    pub(crate) fn new(device: Arc<Device>, queue: u16, payload_bytes: usize) -> io::Result<Self> {
        let io = IoUring::builder().build(RING_ENTRIES)?;
        let late = Arc::new(Late {
            replies: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let mut ring =
            Ring { io, device, queue, payload_bytes, entries: Vec::new(), lent: 0, late, listening: false };
        ring.add()?;
        Ok(ring)
    }

    /// Lends the newest entry to the kernel for the first time. Not before INIT is answered: the kernel could not say no.
    pub(crate) fn lend(&mut self) -> io::Result<()> {
        let Some(entry) = self.entries.last().cloned() else { return Ok(()) };
        let areas = entry.areas();
        let mut sqe = self.command(CMD_REGISTER, &entry, 0, Some(areas.as_ptr() as u64));
        // SAFETY: an Entry128 is the kernel's `struct io_uring_sqe` of 128 bytes, `repr(C)`, of which `len` is the u32 at 24;
        // the library knows no commands that set it.
        unsafe { (&raw mut sqe).cast::<u8>().add(24).cast::<u32>().write(areas.len() as u32) };
        self.push(&sqe)?;
        self.lent += 1;
        // The kernel reads `areas` while it takes the command, and not later.
        self.io.submit().map(drop)
    }

    /// Hands an entry with its reply back, for the next request.
    pub(crate) fn commit(&mut self, entry: &Arc<Entry>) -> io::Result<()> {
        let unique = entry.hand_back();
        let sqe = self.command(CMD_COMMIT_AND_FETCH, entry, unique.0, None);
        self.push(&sqe)?;
        self.lent += 1;
        Ok(())
    }

    /// Leaves an entry to whoever holds its reply, and lends another to the kernel in its place. False if the reply is there.
    ///
    /// A request that came while the queue had no entry waits for the next commit; a new entry alone is not given to it
    /// (`fuse_uring_do_register`). So a request of our own is sent, on this CPU's queue, whose commit fetches what waits. The
    /// kernel does so only for regular files, which are what programs wait for locks on; else the next commit has to come
    /// by itself.
    pub(crate) fn leave(&mut self, entry: &Arc<Entry>) -> io::Result<bool> {
        if !entry.leave() {
            return Ok(false);
        }
        self.listen()?;
        if self.entries.len() < MAX_ENTRIES {
            self.add()?;
            self.lend()?;
            if let Err(error) =
                self.device.write(&[IoSlice::new(Notification::retrieve(NUDGE, entry.node(), 0).as_bytes())])
            {
                tracing::debug!(%error, "the kernel takes no nudge");
            }
        }
        Ok(true)
    }

    /// The entries whose replies came from other threads since the last look.
    pub(crate) fn late_replies(&mut self) -> io::Result<Vec<Arc<Entry>>> {
        let mut count = [0; 8];
        // Read first: what is answered from now on wakes again.
        rustix::io::retry_on_intr(|| rustix::io::read(&self.late.wake, &mut count))?;
        let entries = std::mem::take(&mut *lock(&self.late.replies));
        self.listening = false;
        self.listen()?;
        Ok(entries)
    }

    /// Whether the kernel has no entry.
    pub(crate) fn is_home(&self) -> bool {
        self.lent == 0
    }

    /// Submits what there is, and waits. `None` when the kernel has no entry any more and nothing else can come.
    pub(crate) fn next(&mut self) -> io::Result<Option<Event>> {
        loop {
            let done = self.io.completion().next();
            if let Some(done) = done {
                if !self.io.submission().is_empty() {
                    // A reply does not wait until another request is answered too.
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
        if user_data == LATE {
            return Event::Late;
        }
        self.lent -= 1;
        match self.entries.get(user_data as usize) {
            Some(entry) if result >= 0 => Event::Request(Arc::clone(entry)),
            _ => Event::Returned(Errno::from_raw_os_error(-result)),
        }
    }

    fn add(&mut self) -> io::Result<()> {
        let area = Area::new(self.payload_bytes)?;
        let late = Arc::clone(&self.late);
        let index = self.entries.len() as u64;
        self.entries.push(Arc::new(Entry { area, index, state: Mutex::new(State::Kernel), late }));
        Ok(())
    }

    fn listen(&mut self) -> io::Result<()> {
        if self.listening {
            return Ok(());
        }
        const POLLIN: u32 = 1;
        let sqe = opcode::PollAdd::new(types::Fd(self.late.wake.as_raw_fd()), POLLIN).build();
        self.push(&squeue::Entry128::from(sqe).user_data(LATE))?;
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
        // SAFETY: what a command points to is an entry's area, which lives until the kernel has given it back (`Drop`), an
        // eventfd that lives as long as the ring, or the list of areas, which is read by the submission that follows.
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
            // The kernel may still write to them.
            self.entries.drain(..).for_each(std::mem::forget);
        }
    }
}

const CMD_REGISTER: u32 = 1;
const CMD_COMMIT_AND_FETCH: u32 = 2;

/// Replies that were given by other threads.
struct Late {
    replies: Mutex<Vec<Arc<Entry>>>,
    wake: OwnedFd,
}

/// One place for a request and its reply.
pub(crate) struct Entry {
    area: Area,
    index: u64,
    state: Mutex<State>,
    late: Arc<Late>,
}

/// Who may touch an entry's area.
enum State {
    /// The kernel; between a completion and [`Entry::open`] the ring's thread.
    Kernel,
    /// The handler reads the request, if that is not `copied`; the reply may be written: to the payload, if it is.
    Open { unique: Unique, copied: bool, left: bool },
    /// The ring's thread; a body that waits aside is still to go to the payload.
    Answered { unique: Unique, aside: Vec<u8> },
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Longer requests stay where they are.
const MAX_COPIED_BYTES: usize = 4096;

/// Room to copy short requests to.
pub(crate) struct Scratch(Box<[u8; MAX_COPIED_BYTES]>);

impl Scratch {
    pub(crate) fn new() -> Self {
        Scratch(Box::new([0; MAX_COPIED_BYTES]))
    }
}

impl Entry {
    /// The bytes of the request that the kernel put here, as `/dev/fuse` would give them, and its number. Bytes are missing if
    /// its lengths contradict one another, which the parser then finds.
    ///
    /// Called once for a completion. The entry is not handed back before the slice is done with: `hand_back` comes from the
    /// thread that uses it.
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

    /// The inode that the request is about. It stands where no reply is written, until the entry is handed back.
    fn node(&self) -> NodeId {
        NodeId(u64::from_ne_bytes(self.area.read(NODE_ID)))
    }

    /// Takes the reply; only the first for a request counts.
    pub(crate) fn answer(self: &Arc<Self>, unique: Unique, outcome: Result<&[&[u8]], ::types::Errno>) {
        let mut state = lock(&self.state);
        let State::Open { unique: open, copied, left } = *state else { return };
        if open != unique {
            return;
        }
        let parts = outcome.unwrap_or_default();
        let body_bytes = parts.iter().map(|part| part.len()).sum();
        let fits = body_bytes <= self.area.payload_bytes;
        if !fits {
            tracing::error!(%unique, body_bytes, "a reply is longer than any request allows");
        }
        let outcome = outcome.and(if fits { Ok(body_bytes) } else { Err(::types::Errno::EIO) });
        let mut aside = Vec::new();
        if outcome.is_ok() {
            match copied {
                true => self.area.write_body(parts),
                false => aside = parts.concat(),
            }
        }
        self.area.write_header(&reply_header(unique, outcome), outcome.unwrap_or(0));
        *state = State::Answered { unique, aside };
        drop(state);
        if left {
            lock(&self.late.replies).push(Arc::clone(self));
            // It fails only if the count is full, and then the thread is being woken already.
            let _ = rustix::io::write(&self.late.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether the reply is still to come; it will then go to [`Ring::late_replies`].
    fn leave(&self) -> bool {
        match &mut *lock(&self.state) {
            State::Open { left, .. } => {
                *left = true;
                true
            }
            _ => false,
        }
    }

    /// The last touch before the kernel has the entry; gives the number of the request answered.
    fn hand_back(&self) -> Unique {
        match std::mem::replace(&mut *lock(&self.state), State::Kernel) {
            State::Answered { unique, aside } => {
                if !aside.is_empty() {
                    self.area.write_body(&[&aside]);
                }
                unique
            }
            // Not answered or already back: the kernel will say that it knows no such request.
            State::Open { .. } | State::Kernel => Unique(0),
        }
    }

    /// The areas for REGISTER, header and payload, each a `struct iovec`: address and length.
    fn areas(&self) -> [[usize; 2]; 2] {
        let at = |offset| self.area.at(offset).expose_provenance();
        [[at(0), HEADER_BYTES], [at(PAYLOAD), self.area.payload_bytes]]
    }
}

// `struct fuse_uring_req_header`: 128 bytes for the request's or the reply's header, 128 for the arguments of fixed size,
// then `struct fuse_uring_ent_in_out`: flags, commit_id, payload_sz, padding, reserved.
const NODE_ID: usize = 16;
const OP_IN: usize = 128;
const OP_IN_BYTES: usize = 128;
const COMMIT_ID: usize = 264;
const PAYLOAD_SIZE: usize = 272;
const HEADER_BYTES: usize = 288;

/// `struct fuse_in_header`.
const IN_HEADER_BYTES: usize = 40;

/// The payload begins at a page; the page before it ends with room for what precedes it in a whole request.
const PAYLOAD: usize = 4096;

/// An entry's memory: mapped, so that pages which no request ever fills cost nothing.
struct Area {
    base: NonNull<c_void>,
    payload_bytes: usize,
}

// SAFETY: the memory is the area's own and not tied to a thread; who may touch it when is ruled by `State`.
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
        // SAFETY: within the mapping, and only called while the kernel does not have the entry.
        unsafe { self.at(offset).cast::<[u8; N]>().read() }
    }

    /// Puts header and arguments in front of the payload, so that all lie in a row.
    fn assemble(&self) -> &[u8] {
        let len = u32::from_ne_bytes(self.read(0)) as usize;
        let payload = (u32::from_ne_bytes(self.read(PAYLOAD_SIZE)) as usize).min(self.payload_bytes);
        let args = len.saturating_sub(IN_HEADER_BYTES + payload).min(OP_IN_BYTES);
        let start = PAYLOAD - args - IN_HEADER_BYTES;
        // SAFETY: source and destination lie in the first page, and apart: the one ends at 256, the other begins at 4096 - 168
        // or later. The slice ends where the payload does, or before. It is only called by `open`, while the entry is the
        // thread's; until it is handed back only `answer` writes, to the first 288 bytes and, if the slice was copied, to
        // the payload.
        unsafe {
            ptr::copy_nonoverlapping(self.at(0), self.at(start), IN_HEADER_BYTES);
            ptr::copy_nonoverlapping(self.at(OP_IN), self.at(start + IN_HEADER_BYTES), args);
            std::slice::from_raw_parts(self.at(start), IN_HEADER_BYTES + args + payload)
        }
    }

    /// The parts one after the other, as far as there is room.
    fn write_body(&self, parts: &[&[u8]]) {
        let mut at = 0;
        for part in parts {
            let len = part.len().min(self.payload_bytes - at);
            // SAFETY: `at + len` is at most the payload's length. The caller has the lock of `State` and found there that
            // nobody else reads or writes the payload.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.at(PAYLOAD + at), len) };
            at += len;
        }
    }

    fn write_header(&self, header: &[u8; REPLY_HEADER_BYTES], body_bytes: usize) {
        let size = (body_bytes as u32).to_ne_bytes();
        // SAFETY: both lie in the header, which nobody else touches: the caller has the lock of `State` and found it open.
        unsafe {
            self.at(0).cast::<[u8; REPLY_HEADER_BYTES]>().write(*header);
            self.at(PAYLOAD_SIZE).cast::<[u8; 4]>().write(size);
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is whole, and an entry is dropped only when the kernel does not have it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), PAYLOAD + self.payload_bytes) };
    }
}

/// A panic while the lock is held leaves a state that is as good as before: nothing between lock and assignment can fail.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
