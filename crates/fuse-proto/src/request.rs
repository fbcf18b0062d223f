//! Requests and parse errors.

use types::Errno;

use crate::operation::Operation;
use crate::{NodeId, Opcode, Unique};

/// One request, borrowed from the bytes it was read into.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What was parsed.
    pub bytes: &'a [u8],
    pub header: Header,
    pub operation: Operation<'a>,
    /// The caller's supplementary group that equals the parent's group, if the kernel sent it
    /// (`CREATE_SUPP_GROUP`).
    pub supp_groups: SuppGroups<'a>,
}

/// The header of a request: the caller and the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub unique: Unique,
    pub opcode: Opcode,
    /// The inode of the operation; the parent directory if the operation takes a name.
    pub nodeid: NodeId,
    /// The caller's file-system uid. Meaningless, like `gid`, on requests of the kernel itself (RELEASE,
    /// writeback).
    pub uid: u32,
    pub gid: u32,
    /// The caller's thread id; 0 if the PID namespace of the process that mounted does not contain the
    /// caller, or if the request is the kernel's own.
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

/// Bytes that are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed request ({}): {why}", opcode.map_or("no header", |o| o.name().unwrap_or("unknown opcode")))]
pub struct ParseError {
    /// The request that waits for a reply, if the header could be read.
    pub unique: Option<Unique>,
    pub opcode: Option<Opcode>,
    pub why: Malformed,
}

/// The first error that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("shorter than its header or its arguments")]
    Short,
    #[error("its length differs from the length in its header")]
    Length,
    #[error("extra bytes after its arguments")]
    LeftOver,
    #[error("a string has no terminator")]
    Unterminated,
    #[error("a name is empty or contains '/'")]
    Name,
    #[error("a count or a size does not match the data")]
    Count,
    #[error("a time has more than 999,999,999 nanoseconds")]
    Time,
    #[error("an extension has an invalid length")]
    Extension,
}

impl ParseError {
    /// The errno of the reply: EIO, because the kernel never sends such a request.
    pub fn errno(&self) -> Errno {
        Errno::EIO
    }
}
