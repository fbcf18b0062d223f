//! An entry of a queue of the kernel: the memory for one request and its reply, and who may access it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse_proto::{NodeId, Unique, reply_header};
use rustix::event::EventfdFlags;
use serde::{Deserialize, Serialize};

use crate::area::{Area, COMMIT_ID, HEADER_BYTES, NODE_ID, PAYLOAD};

/// The entries of one ring whose replies were given by other threads.
pub(crate) struct Deferred {
    replies: Mutex<Vec<Arc<Entry>>>,
    /// An eventfd that wakes the thread of the ring.
    wake: OwnedFd,
}

impl Deferred {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Deferred { replies: Mutex::default(), wake }))
    }

    pub(crate) fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Wakes the thread of the ring.
    fn wake(&self) {
        // This waits only if the counter is at its maximum, 2^64 - 2, which it never reaches.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes the entries whose replies were given since the last call. Waits until the thread is woken.
    pub(crate) fn take(&self) -> io::Result<Vec<Arc<Entry>>> {
        let mut count = [0; 8];
        // Reset the eventfd first: a reply that is given from now on signals it again.
        rustix::io::retry_on_intr(|| rustix::io::read(&self.wake, &mut count))?;
        Ok(std::mem::take(&mut *lock(&self.replies)))
    }
}

/// The entries of all rings of a mount.
pub(crate) type Entries = Arc<Mutex<Vec<Arc<Entry>>>>;

/// The memory for one request and its reply.
pub(crate) struct Entry {
    area: Area,
    pub(crate) queue: u16,
    /// The number of the entry in its ring.
    pub(crate) index: u64,
    state: Mutex<State>,
    deferred: Arc<Deferred>,
}

/// An entry that holds a request or a reply, as one process describes it to the next.
#[derive(Debug, Serialize, Deserialize)]
pub struct HeldEntry {
    pub(crate) queue: u16,
    /// The address of the area, which must be the same in both processes.
    address: u64,
    payload_bytes: u64,
    pub(crate) stage: Stage,
    /// The id of the request.
    unique: u64,
    header: Vec<u8>,
    /// The part of the payload that is used.
    payload: Vec<u8>,
}

/// What the next process must do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Handle its request.
    Received,
    /// Reply later ([`crate::WorkerControl::reply_to`]): the request waits for a lock.
    Waiting,
    /// Commit its reply.
    Answered,
}

impl HeldEntry {
    /// Whether the request waits for a reply from another thread.
    pub(crate) fn waits(&self) -> bool {
        self.stage == Stage::Waiting
    }
}

/// The longest payload of an entry that is taken over.
const MAX_PAYLOAD_BYTES: u64 = 64 << 20;

/// A request that is being handled cannot be described.
#[derive(Debug)]
pub(crate) struct BeingHandled;

/// The owner of an entry's area.
enum State {
    /// The ring's thread owns the area; the kernel does not know it yet.
    New,
    /// The kernel owns the area; between a completion and [`Entry::open`], the ring's thread owns it.
    Kernel,
    /// The ring's thread owns the area, which has a request that is not handled yet.
    Received,
    /// The handler owns the area. If the request was `copied`, the reply can be written to the payload;
    /// otherwise the handler still reads the request there. If the entry was `left`, the ring's thread does
    /// not wait for the reply, and must be woken when the reply is given.
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
    /// Called once for each request. The entry is not returned to the kernel while the slice is in use: the
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

    /// An entry that the kernel does not know yet.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(
        queue: u16,
        index: u64,
        payload_bytes: usize,
        deferred: &Arc<Deferred>,
    ) -> io::Result<Self> {
        let (area, deferred) = (Area::new(payload_bytes)?, Arc::clone(deferred));
        Ok(Entry { area, queue, index, state: Mutex::new(State::New), deferred })
    }

    /// An entry that another process has described.
    ///
    /// # Errors
    /// The address of the entry is in use in this process, or the description is invalid.
    pub(crate) fn restore(described: &HeldEntry, index: u64, deferred: &Arc<Deferred>) -> io::Result<Self> {
        let HeldEntry { queue, address, payload_bytes, stage, unique, header, payload } = described;
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let header: &[u8; HEADER_BYTES] = header[..].try_into().map_err(|_| invalid())?;
        if *payload_bytes > MAX_PAYLOAD_BYTES || payload.len() as u64 > *payload_bytes {
            return Err(invalid());
        }
        let address = usize::try_from(*address).map_err(|_| invalid())?;
        let area = Area::restore(address, *payload_bytes as usize, header, payload)?;
        let unique = Unique(*unique);
        let state = match stage {
            Stage::Received => State::Received,
            // No handler of this process reads the request, so the reply can be written to the payload.
            Stage::Waiting => State::Open { unique, copied: true, left: true },
            Stage::Answered => State::Answered { unique, aside: Vec::new() },
        };
        Ok(Entry { area, queue: *queue, index, state: Mutex::new(state), deferred: Arc::clone(deferred) })
    }

    /// Whether the kernel does not know the entry yet.
    pub(crate) fn is_new(&self) -> bool {
        matches!(*lock(&self.state), State::New)
    }

    /// Records that the entry is being lent to the kernel for the first time.
    pub(crate) fn lend(&self) {
        *lock(&self.state) = State::Kernel;
    }

    /// Records that the entry has a request, which is not to be handled now.
    pub(crate) fn hold(&self) {
        *lock(&self.state) = State::Received;
    }

    /// Whether the entry waits for a request in the kernel's queue.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*lock(&self.state), State::Kernel)
    }

    /// Whether the thread of the ring waits for the reply.
    pub(crate) fn is_left(&self) -> bool {
        matches!(*lock(&self.state), State::Open { left: true, .. })
    }

    /// Wakes the thread of the ring.
    pub(crate) fn wake_thread(&self) {
        self.deferred.wake();
    }

    /// Whether the entry has the request with this id, which is not answered yet.
    pub(crate) fn is_open(&self, unique: Unique) -> bool {
        matches!(*lock(&self.state), State::Open { unique: own, .. } if own == unique)
    }

    /// Describes the entry for another process; `None` if it holds neither a request nor a reply.
    ///
    /// # Errors
    /// Its request is being handled.
    pub(crate) fn describe(&self) -> Result<Option<HeldEntry>, BeingHandled> {
        let mut state = lock(&self.state);
        let (stage, unique) = match &mut *state {
            State::New | State::Kernel => return Ok(None),
            State::Received => (Stage::Received, Unique(u64::from_ne_bytes(self.area.read(COMMIT_ID)))),
            State::Open { unique, left: true, .. } => (Stage::Waiting, *unique),
            State::Open { left: false, .. } => return Err(BeingHandled),
            State::Answered { unique, aside } => {
                if !aside.is_empty() {
                    self.area.write_body(&std::mem::take(aside));
                }
                (Stage::Answered, *unique)
            }
        };
        let header = self.area.read::<HEADER_BYTES>(0).to_vec();
        // If the request waits, its payload is not read any more.
        let payload = if stage == Stage::Waiting { Vec::new() } else { self.area.payload().to_vec() };
        let (address, payload_bytes) = (self.area.at(0).expose_provenance(), self.area.payload_bytes);
        Ok(Some(HeldEntry {
            queue: self.queue,
            address: address as u64,
            payload_bytes: payload_bytes as u64,
            stage,
            unique: unique.0,
            header,
            payload,
        }))
    }

    /// The inode of the request. No reply overwrites this field, so it is valid until the entry is returned.
    pub(crate) fn node(&self) -> NodeId {
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
            self.deferred.wake();
        }
    }

    /// Leaves the entry to the thread that holds the reply. Returns false if the reply was already given;
    /// otherwise, [`Deferred::take`] returns the entry when the reply is given.
    pub(crate) fn leave(&self) -> bool {
        match &mut *lock(&self.state) {
            State::Open { left, .. } => {
                *left = true;
                true
            }
            _ => false,
        }
    }

    /// The last access before the kernel owns the entry; returns the id of the request.
    pub(crate) fn hand_back(&self) -> Unique {
        match std::mem::replace(&mut *lock(&self.state), State::Kernel) {
            State::Answered { unique, aside } => {
                if !aside.is_empty() {
                    self.area.write_body(&aside);
                }
                unique
            }
            // No reply, or already returned: the kernel will report an unknown request.
            State::New | State::Kernel | State::Received | State::Open { .. } => Unique(0),
        }
    }

    /// The areas for REGISTER, header and payload, each as a `struct iovec`: address and length.
    pub(crate) fn areas(&self) -> [[usize; 2]; 2] {
        let at = |offset| self.area.at(offset).expose_provenance();
        [[at(0), HEADER_BYTES], [at(PAYLOAD), self.area.payload_bytes]]
    }
}

/// Ignores poisoning: no code between taking the lock and the assignment of the state can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIQUE: Unique = Unique(42);

    fn held(entry: &Entry) -> HeldEntry {
        entry.describe().unwrap().expect("the entry holds something")
    }

    #[test]
    fn an_entry_is_taken_over_at_its_address_with_its_content() {
        let deferred = Deferred::new().unwrap();
        let entry = Entry::new(3, 0, 1 << 17, &deferred).unwrap();
        assert!(entry.is_new() && entry.describe().unwrap().is_none());
        entry.lend();
        assert!(entry.is_waiting() && entry.describe().unwrap().is_none());
        entry.area.write_header(&reply_header(UNIQUE, Ok(7)), 7);
        entry.area.write_body(b"payload");
        entry.hold();
        let described = held(&entry);
        assert_eq!((described.stage, &described.payload[..]), (Stage::Received, &b"payload"[..]));
        let in_use = Entry::restore(&described, 0, &deferred).map(drop).unwrap_err();
        assert_eq!(in_use.kind(), io::ErrorKind::AlreadyExists);
        drop(entry);
        let restored = Entry::restore(&described, 0, &deferred).unwrap();
        let again = held(&restored);
        assert!(again.address == described.address && again.header == described.header);
        assert_eq!(again.payload, described.payload);
    }

    #[test]
    fn an_entry_whose_request_is_being_handled_is_not_described() {
        let deferred = Deferred::new().unwrap();
        let entry = Arc::new(Entry::new(0, 0, 1 << 17, &deferred).unwrap());
        let (unique, _) = entry.open(&mut Scratch::new());
        assert!(entry.describe().is_err());
        assert!(entry.leave());
        assert_eq!(held(&entry).stage, Stage::Waiting);
        entry.answer(unique, Ok(b"reply"));
        let described = held(&entry);
        assert_eq!((described.stage, &described.payload[..]), (Stage::Answered, &b"reply"[..]));
        drop((deferred.take().unwrap(), entry));
        assert_eq!(held(&Entry::restore(&described, 0, &deferred).unwrap()).stage, Stage::Answered);
    }

    #[test]
    fn invalid_descriptions_are_rejected() {
        let deferred = Deferred::new().unwrap();
        let description = |payload_bytes, header| HeldEntry {
            queue: 0,
            address: 1 << 44,
            payload_bytes,
            stage: Stage::Received,
            unique: 2,
            header: vec![0; header],
            payload: vec![0; 5],
        };
        for (payload_bytes, header) in [(4, HEADER_BYTES), (4096, HEADER_BYTES - 1), (u64::MAX, HEADER_BYTES)]
        {
            assert!(Entry::restore(&description(payload_bytes, header), 0, &deferred).is_err());
        }
    }
}
