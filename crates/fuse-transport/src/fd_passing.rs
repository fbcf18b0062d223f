//! File descriptors in messages of Unix sockets (`SCM_RIGHTS`, unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// The maximum number of descriptors of one message (`SCM_MAX_FD`).
const MAX_FDS: usize = 253;
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// Sends descriptors over a stream socket. [`receive_fds`] on the other end takes exactly these.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_fds(socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    for group in fds.chunks(MAX_FDS) {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(group)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let byte = [IoSlice::new(&[0])];
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&socket, &byte, &mut control, SendFlags::NOSIGNAL)
        })?;
    }
    Ok(())
}

/// Receives `count` descriptors that the peer sent by [`send_fds`]. They are closed on exec.
///
/// # Errors
/// Those of recvmsg(2); `UnexpectedEof` if the stream ends or has something else.
pub fn receive_fds(socket: impl AsFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        rustix::io::retry_on_intr(|| {
            let mut slices = [IoSliceMut::new(&mut byte)];
            rustix::net::recvmsg(&socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let before = all.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                all.extend(fds);
            }
        }
        if all.len() == before || all.len() > count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_of_several_messages_arrive_in_their_order() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let files: Vec<File> = (0..MAX_FDS + 2)
            .map(|n| {
                let mut file = tempfile::tempfile().unwrap();
                file.set_len(n as u64).unwrap();
                file.flush().unwrap();
                file
            })
            .collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send_fds(&ours, &fds).unwrap();
        ours.write_all(b"x").unwrap();
        let received = receive_fds(&theirs, fds.len()).unwrap();
        for (n, fd) in received.into_iter().enumerate() {
            assert_eq!(File::from(fd).metadata().unwrap().len(), n as u64);
        }
        assert_eq!(theirs.read(&mut [0; 9]).unwrap(), 1, "nothing else is taken");
        drop(ours);
        assert!(receive_fds(&theirs, 1).is_err());
    }
}
