//! The memory of an entry (see `entry.rs`), which this process and the kernel use in turn.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuse_proto::REPLY_HEADER_BYTES;
use rustix::mm::{MapFlags, ProtFlags};

// `struct fuse_uring_req_header`: 128 bytes for the header of the request or reply, 128 for the arguments of
// fixed size, then `struct fuse_uring_ent_in_out`: flags, commit_id, payload_sz, padding, reserved.
pub(crate) const NODE_ID: usize = 16;
const OP_IN: usize = 128;
const OP_IN_BYTES: usize = 128;
pub(crate) const COMMIT_ID: usize = 264;
const PAYLOAD_SIZE: usize = 272;
pub(crate) const HEADER_BYTES: usize = 288;

/// `struct fuse_in_header`.
const IN_HEADER_BYTES: usize = 40;

/// The payload is page-aligned. The end of the page before it has room for the header and arguments of a
/// contiguous request.
pub(crate) const PAYLOAD: usize = 4096;

/// An entry's memory. It is mapped, so that pages that no request ever uses cost nothing.
pub(crate) struct Area {
    base: NonNull<c_void>,
    pub(crate) payload_bytes: usize,
}

// SAFETY: the area owns the memory, which is not tied to a thread; the state of its entry determines which thread
// may access it.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

/// The next address that is proposed for an area. The first one is random, in a range in which the kernel
/// places no other memory. So a process that takes a mount over can almost certainly map the areas at the
/// addresses that they had in the previous process.
static NEXT_ADDRESS: LazyLock<AtomicUsize> = LazyLock::new(|| {
    const FIRST: u64 = 1 << 44;
    let random = RandomState::new().build_hasher().finish() >> 20 & !0xFFFF;
    AtomicUsize::new(usize::try_from(FIRST + random).unwrap_or(0))
});

impl Area {
    pub(crate) fn new(payload_bytes: usize) -> io::Result<Self> {
        let bytes = (PAYLOAD + payload_bytes).next_multiple_of(PAYLOAD);
        let proposed = NEXT_ADDRESS.fetch_add(bytes, Ordering::Relaxed);
        Area::map(proposed, payload_bytes, MapFlags::PRIVATE)
    }

    /// New memory at the address that the memory of an entry had in another process, with this header and payload.
    ///
    /// # Errors
    /// The address is in use in this process.
    pub(crate) fn restore(
        address: usize,
        payload_bytes: usize,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
    ) -> io::Result<Self> {
        let area = Area::map(address, payload_bytes, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE)?;
        // A kernel that does not know the flag takes the address as a proposal.
        if area.at(0).addr() != address {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // SAFETY: the header is at the beginning of new memory, which nothing else accesses.
        unsafe { area.at(0).cast::<[u8; HEADER_BYTES]>().write(*header) };
        area.write_body(payload);
        Ok(area)
    }

    fn map(address: usize, payload_bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let address = ptr::without_provenance_mut(address);
        // SAFETY: this maps new memory. The address is a proposal, or the mapping fails if anything is there.
        let base = unsafe { rustix::mm::mmap_anonymous(address, PAYLOAD + payload_bytes, prot, flags) }?;
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { base, payload_bytes })
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    /// Bytes of the header, from `offset` on.
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= HEADER_BYTES);
        // SAFETY: within the mapping, and only called while the kernel does not own the entry.
        unsafe { self.at(offset).cast::<[u8; N]>().read() }
    }

    /// The part of the payload that the header says is used.
    pub(crate) fn payload(&self) -> &[u8] {
        let len = (u32::from_ne_bytes(self.read(PAYLOAD_SIZE)) as usize).min(self.payload_bytes);
        // SAFETY: within the mapping. The caller holds the lock of the entry's state, and in this state no
        // thread writes to the payload.
        unsafe { std::slice::from_raw_parts(self.at(PAYLOAD), len) }
    }

    /// Copies header and arguments in front of the payload, so that the request is contiguous.
    pub(crate) fn assemble(&self) -> &[u8] {
        let len = u32::from_ne_bytes(self.read(0)) as usize;
        let payload = (u32::from_ne_bytes(self.read(PAYLOAD_SIZE)) as usize).min(self.payload_bytes);
        let args = len.saturating_sub(IN_HEADER_BYTES + payload).min(OP_IN_BYTES);
        let start = PAYLOAD - args - IN_HEADER_BYTES;
        // SAFETY: source and destination are in the first page and do not overlap: the source ends at 256,
        // the destination begins at 3928 (4096-168) or later. The slice ends at the end of the payload or
        // before. This is only called by `open`, while the thread owns the entry. Until the entry is
        // returned, only `answer` writes, to the first 288 bytes and, if the slice was copied, to the
        // payload.
        unsafe {
            ptr::copy_nonoverlapping(self.at(0), self.at(start), IN_HEADER_BYTES);
            ptr::copy_nonoverlapping(self.at(OP_IN), self.at(start + IN_HEADER_BYTES), args);
            std::slice::from_raw_parts(self.at(start), IN_HEADER_BYTES + args + payload)
        }
    }

    /// Writes the body, as far as it fits.
    pub(crate) fn write_body(&self, body: &[u8]) {
        let len = body.len().min(self.payload_bytes);
        // SAFETY: `len` is at most the payload's length. The memory is new (`restore`), or the caller holds
        // the lock of the entry's state, in a state in which no other thread accesses the payload.
        unsafe { ptr::copy_nonoverlapping(body.as_ptr(), self.at(PAYLOAD), len) };
    }

    pub(crate) fn write_header(&self, header: &[u8; REPLY_HEADER_BYTES], body_bytes: usize) {
        let size = (body_bytes as u32).to_ne_bytes();
        // SAFETY: both writes are to bytes of the header that no other thread accesses: the caller holds the
        // lock of the entry's state, which is `State::Open`, and `Entry::node` reads other bytes.
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
