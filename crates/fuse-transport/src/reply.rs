//! The right and the duty to answer one request.

use std::sync::Arc;

use fuse_proto::{Header, Opcode, Unique};
use types::Errno;

use crate::device::Device;
use crate::uring::Entry;

/// Answers one request, at once or later, from any thread; dropped without an answer it answers EIO.
///
/// To a request that wants no answer (FORGET, BATCH_FORGET, INTERRUPT) nothing is sent, whatever is called.
#[derive(Debug)]
#[must_use = "a reply that is dropped answers EIO"]
pub struct Reply {
    target: Target,
    unique: Unique,
    opcode: Opcode,
    wanted: bool,
}

/// Where the answer goes: to where the request came from.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Device(Arc<Device>),
    Ring(Arc<Entry>),
}

impl Target {
    pub(crate) fn answer(&self, unique: Unique, outcome: Result<&[&[u8]], Errno>) {
        match self {
            Target::Device(device) => device.answer(unique, outcome),
            Target::Ring(entry) => entry.answer(unique, outcome),
        }
    }

    /// Whether this request is to be answered. On a ring all are, for the answer is also what returns the entry.
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

    /// Success, with the body of a [`fuse_proto::Body`], a [`fuse_proto::DirBuffer`], or plain bytes.
    pub fn ok(self, body: &[u8]) {
        self.parts(&[body]);
    }

    /// Success, with a body in pieces that are sent without being copied together.
    pub fn parts(mut self, parts: &[&[u8]]) {
        self.send(Ok(parts));
    }

    pub fn error(mut self, errno: Errno) {
        self.send(Err(errno));
    }

    /// No answer is wanted, and none is sent.
    pub fn none(mut self) {
        if self.wanted {
            tracing::error!(opcode = %self.opcode, "a request that wants an answer was to get none");
            self.send(Err(Errno::EIO));
        }
    }

    pub fn unique(&self) -> Unique {
        self.unique
    }

    fn send(&mut self, outcome: Result<&[&[u8]], Errno>) {
        if std::mem::take(&mut self.wanted) {
            self.target.answer(self.unique, outcome);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.wanted {
            tracing::warn!(opcode = %self.opcode, "a request was given up without an answer");
            self.send(Err(Errno::EIO));
        }
    }
}
