//! File types and permission bits; see `inode(7)`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of an inode; the `S_IFMT` part of `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileType {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

impl FileType {
    /// The bits of `S_IFMT`.
    pub fn to_ifmt(self) -> u32 {
        match self {
            FileType::Fifo => 0o010000,
            FileType::CharDevice => 0o020000,
            FileType::Directory => 0o040000,
            FileType::BlockDevice => 0o060000,
            FileType::Regular => 0o100000,
            FileType::Symlink => 0o120000,
            FileType::Socket => 0o140000,
        }
    }

    /// The type in a whole `st_mode`; `None` if the type bits are invalid.
    pub fn from_ifmt(st_mode: u32) -> Option<Self> {
        Some(match st_mode & 0o170000 {
            0o010000 => FileType::Fifo,
            0o020000 => FileType::CharDevice,
            0o040000 => FileType::Directory,
            0o060000 => FileType::BlockDevice,
            0o100000 => FileType::Regular,
            0o120000 => FileType::Symlink,
            0o140000 => FileType::Socket,
            _ => return None,
        })
    }

    /// The `d_type` of `readdir(3)`.
    pub fn to_dtype(self) -> u32 {
        self.to_ifmt() >> 12
    }

    pub fn is_dir(self) -> bool {
        self == FileType::Directory
    }
}

/// The twelve permission bits of `st_mode`: SUID, SGID, sticky and three times rwx.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mode(u16);

impl Mode {
    pub const SUID: u32 = 0o4000;
    pub const SGID: u32 = 0o2000;
    pub const STICKY: u32 = 0o1000;

    /// Keeps the low twelve bits; a file type in `bits` is dropped.
    pub const fn new(bits: u32) -> Self {
        Mode((bits & 0o7777) as u16)
    }

    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    pub const fn has(self, bits: u32) -> bool {
        self.bits() & bits == bits
    }

    #[must_use]
    pub const fn without(self, bits: u32) -> Self {
        Mode::new(self.bits() & !bits)
    }

    #[must_use]
    pub const fn with(self, bits: u32) -> Self {
        Mode::new(self.bits() | bits)
    }

    /// The nine rwx bits.
    pub const fn rwx(self) -> u32 {
        self.bits() & 0o777
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06o}", self.0)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}
