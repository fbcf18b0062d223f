//! One request: who asks, and for what.

use types::Errno;

use crate::operation::Operation;
use crate::{NodeId, Opcode, Unique};

/// One request, borrowed from the bytes it was read into.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub header: Header,
    pub operation: Operation<'a>,
    /// The one group of the caller that is the parent's, where the kernel sent it (`CREATE_SUPP_GROUP`).
    pub supp_groups: SuppGroups<'a>,
}

/// Who asks, and of which inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub unique: Unique,
    pub opcode: Opcode,
    /// The inode asked of; the parent directory where the operation takes a name.
    pub nodeid: NodeId,
    /// The caller's file-system uid and gid. On requests of the kernel's own (RELEASE, write-back) they mean nothing.
    pub uid: u32,
    pub gid: u32,
    /// The caller's thread id; 0 where it is in another PID namespace or the request is the kernel's own.
    pub pid: u32,
}

/// Supplementary groups that came with a creating request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuppGroups<'a>(pub(crate) &'a [u8]);

impl<'a> SuppGroups<'a> {
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        self.0.as_chunks().0.iter().map(|gid| u32::from_ne_bytes(*gid))
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed request ({}): {why}", opcode.map_or("no header", |o| o.name().unwrap_or("unknown opcode")))]
pub struct ParseError {
    /// Who waits for an answer, where the header could be read.
    pub unique: Option<Unique>,
    pub opcode: Option<Opcode>,
    pub why: Malformed,
}

/// What was wrong first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it is shorter than its header or its arguments")]
    Short,
    #[error("its length is not the length in its header")]
    Length,
    #[error("bytes are left over after its arguments")]
    LeftOver,
    #[error("a string has no terminator")]
    Unterminated,
    #[error("a name is empty or contains '/'")]
    Name,
    #[error("a count or a size does not match the data")]
    Count,
    #[error("a time has more than 999,999,999 nanoseconds")]
    Time,
    #[error("an extension does not fit")]
    Extension,
}

impl ParseError {
    /// What to answer: EIO, for the kernel never sends such a thing.
    pub fn errno(&self) -> Errno {
        Errno::EIO
    }
}
