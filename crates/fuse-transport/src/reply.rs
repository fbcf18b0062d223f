//! The reply to one request.

use std::sync::Arc;

use fuse_proto::{Header, Opcode, Unique};
use types::Errno;

use crate::device::Device;
use crate::entry::Entry;

/// The obligation to reply to one request, at once or later, from any thread. If dropped without a reply, it
/// sends EIO.
///
/// For a request without a reply (FORGET, BATCH_FORGET, INTERRUPT), nothing is sent, whatever method is
/// called.
#[derive(Debug)]
#[must_use = "a reply that is dropped sends EIO"]
pub struct Reply {
    target: Target,
    unique: Unique,
    opcode: Opcode,
    wanted: bool,
}

/// The destination of the reply: the source of the request.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Device(Arc<Device>),
    Ring(Arc<Entry>),
}

impl Target {
    pub(crate) fn answer(&self, unique: Unique, outcome: Result<&[u8], Errno>) {
        match self {
            Target::Device(device) => device.answer(unique, outcome),
            Target::Ring(entry) => entry.answer(unique, outcome),
        }
    }

    /// Whether a request with this opcode gets a reply. On a ring all do, because the reply also returns the
    /// entry.
    pub(crate) fn wants(&self, opcode: Opcode) -> bool {
        match self {
            Target::Device(_) => opcode.expects_reply(),
            Target::Ring(_) => true,
        }
    }
}

impl Reply {
    pub(crate) fn new(target: Target, header: &Header) -> Self {
        let wanted = target.wants(header.opcode);
        Reply { target, unique: header.unique, opcode: header.opcode, wanted }
    }

    /// The reply to a request that another process has received.
    pub(crate) fn to(target: Target, unique: Unique, opcode: Opcode) -> Self {
        let wanted = target.wants(opcode);
        Reply { target, unique, opcode, wanted }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Sends success, with the bytes of a [`fuse_proto::Body`] or a [`fuse_proto::DirBuffer`], or plain
    /// bytes.
    pub fn ok(mut self, body: &[u8]) {
        self.send(Ok(body));
    }

    pub fn error(mut self, errno: Errno) {
        self.send(Err(errno));
    }

    /// Sends no reply, for a request that needs none.
    pub fn none(mut self) {
        if self.wanted {
            tracing::error!(opcode = %self.opcode, "no reply was given to a request that needs one; sending EIO");
            self.send(Err(Errno::EIO));
        }
    }

    pub fn unique(&self) -> Unique {
        self.unique
    }

    pub(crate) fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn send(&mut self, outcome: Result<&[u8], Errno>) {
        if std::mem::take(&mut self.wanted) {
            self.target.answer(self.unique, outcome);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.wanted {
            tracing::warn!(opcode = %self.opcode, "a request was dropped without a reply; sending EIO");
            self.send(Err(Errno::EIO));
        }
    }
}
