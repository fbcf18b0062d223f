//! An open file of `/dev/fuse`.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use fuse_proto::{Unique, reply_header};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, opcode};

/// A reply must be written to the device that its request was read from; the kernel does not find the request
/// elsewhere.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// The result of a read.
#[derive(Debug)]
pub(crate) enum Event {
    /// One request, of this many bytes.
    Request(usize),
    /// The file system is unmounted or aborted.
    End,
    /// There is no request, but the other descriptor is readable.
    Woken,
}

impl Device {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Device(OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into()))
    }

    /// Whether a descriptor is a FUSE device.
    pub(crate) fn is_device(fd: &OwnedFd) -> bool {
        /// `MISC_MAJOR` and `FUSE_MINOR`.
        const FUSE: (u32, u32) = (10, 229);
        rustix::fs::fstat(fd).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
                && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == FUSE
        })
    }

    /// Opens another device of the same file system, so that two threads need not share one.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let clone = Device::open()?;
        clone_ioctl(clone.0.as_fd(), self.0.as_fd())?;
        Ok(clone)
    }

    /// Waits for the next request.
    ///
    /// EINTR, and ENOENT for a request that was aborted before it could be read, are retried.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Event> {
        loop {
            return match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => Ok(Event::Request(len)),
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) => {
                    self.wait()?;
                    continue;
                }
                Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Event::End),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Makes reads fail with EAGAIN instead of waiting, as [`Device::read_unless`] requires. This applies to
    /// all processes that share the open file description.
    pub(crate) fn set_nonblocking(&self) -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        rustix::fs::fcntl_setfl(&self.0, flags | rustix::fs::OFlags::NONBLOCK)
    }

    /// Waits for the next request, like [`Device::read`], or until `wake` is readable.
    pub(crate) fn read_unless(&self, wake: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Event> {
        loop {
            let mut fds =
                [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(wake, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            if fds[1].revents().contains(PollFlags::IN) {
                return Ok(Event::Woken);
            }
            return match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => Ok(Event::Request(len)),
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
                Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Event::End),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Sends a reply. Does nothing if the request or the file system no longer exists.
    pub(crate) fn answer(&self, unique: Unique, outcome: Result<&[u8], types::Errno>) {
        let body_bytes = outcome.map_or(0, <[u8]>::len);
        let header = reply_header(unique, outcome.map(<[u8]>::len));
        match self.write(&[IoSlice::new(&header), IoSlice::new(outcome.unwrap_or_default())]) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::error!(%unique, body_bytes, %error, "the kernel rejected a reply");
                // Without any reply, the caller would wait forever.
                let header = reply_header(unique, Err(types::Errno::EIO));
                let _ = self.write(&[IoSlice::new(&header)]);
            }
        }
    }

    /// Writes one message. The kernel accepts it completely or not at all.
    pub(crate) fn write(&self, message: &[IoSlice<'_>]) -> Result<(), Errno> {
        loop {
            match rustix::io::writev(&self.0, message) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e),
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        match rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Device(fd)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `FUSE_DEV_IOC_CLONE`: makes `to`, which was just opened, another device of the file system of `from`.
#[allow(unsafe_code)]
fn clone_ioctl(to: BorrowedFd<'_>, from: BorrowedFd<'_>) -> Result<(), Errno> {
    const CLONE: Opcode = opcode::read::<u32>(229, 0);
    let from = from.as_raw_fd() as u32;
    // SAFETY: the kernel reads one u32, a file descriptor, through the pointer and writes nothing
    // (`fuse_dev_ioctl_clone`).
    unsafe { rustix::ioctl::ioctl(to, Setter::<CLONE, u32>::new(from)) }
}
