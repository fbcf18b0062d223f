//! Operation codes (`enum fuse_opcode`).

use std::fmt;

/// The operation code of a request; unknown codes are values too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u32);

macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        impl Opcode {
            $(pub const $name: Opcode = Opcode($value);)*

            /// The kernel's name without `FUSE_`; `None` for a number that ABI 7.45 does not have.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Opcode::$name => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    GETLK = 31,
    SETLK = 32,
    SETLKW = 33,
    ACCESS = 34,
    CREATE = 35,
    INTERRUPT = 36,
    BMAP = 37,
    DESTROY = 38,
    IOCTL = 39,
    POLL = 40,
    NOTIFY_REPLY = 41,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SETUPMAPPING = 48,
    REMOVEMAPPING = 49,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
    COPY_FILE_RANGE_64 = 53,
}

impl Opcode {
    /// Whether the kernel waits for a reply. It does not wait for a reply to FORGET, BATCH_FORGET and
    /// NOTIFY_REPLY. A reply to INTERRUPT is optional: EAGAIN makes the kernel send it again, and ENOSYS
    /// makes the kernel send no more of them (`fuse_dev_do_write`). limenfs needs neither.
    pub fn expects_reply(self) -> bool {
        !matches!(self, Opcode::FORGET | Opcode::BATCH_FORGET | Opcode::NOTIFY_REPLY | Opcode::INTERRUPT)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
