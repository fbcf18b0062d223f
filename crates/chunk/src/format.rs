//! The constants that both formats of blocks share (see `block.rs` and `packed.rs`), and the faults that an
//! object can have.

use std::fmt;

use types::SliceId;

use crate::cipher::Cipher;

/// The unit of verification, in bytes: 64 KiB.
pub const PAGE_BYTES: u32 = 64 << 10;

/// The newest version of the object layout that this code reads and writes; it reads all earlier ones.
pub const BLOCK_FORMAT: u32 = PACKED_FORMAT;

/// The version of the packed format.
pub(crate) const PACKED_FORMAT: u32 = 2;

/// The first bytes of a header, and of the footer that ends a trailer.
pub(crate) const MAGIC: [u8; 4] = *b"LMBK";

/// Why the bytes of an object are not the expected block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFault {
    /// The trailer is missing, or does not match its own checksum.
    Trailer,
    /// The trailer or the header is intact, but of another format version.
    Format(u32),
    /// The trailer belongs to a block of another length in bytes.
    Length(u32),
    /// The page that begins at this offset in bytes does not match its checksum, or cannot be decompressed.
    Page(u32),
    /// The header is missing, or does not match its own checksum.
    Header,
    /// The object holds another block: the block of this slice with this index.
    Other(SliceId, u32),
    /// The object is packed with a compression and a cipher of these numbers, and at least one of them is
    /// unknown.
    Codec(u8, u8),
    /// The object's cipher is not the volume's cipher.
    Cipher { found: Option<Cipher>, wanted: Option<Cipher> },
    /// The page that begins at this offset in bytes matches its checksum, but fails authentication: it was
    /// not encrypted for this position with the volume's key.
    Authentication(u32),
    /// There is no memory to decompress the object. It may be intact, so [`crate::ChunkError::Corrupt`] never
    /// has this fault.
    NoMemory,
}

impl fmt::Display for BlockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockFault::Trailer => f.write_str("its trailer is damaged"),
            BlockFault::Format(version) => {
                write!(f, "its format version {version} is unknown, the newest supported is {BLOCK_FORMAT}")
            }
            BlockFault::Length(len) => write!(f, "its trailer states a length of {len} bytes"),
            BlockFault::NoMemory => f.write_str("there is no memory to decompress it"),
            BlockFault::Page(at) => write!(f, "the page at offset {at} does not match its checksum"),
            BlockFault::Header => f.write_str("its header is damaged"),
            BlockFault::Other(id, block) => write!(f, "it is block {block} of slice {id}"),
            BlockFault::Codec(compression, cipher) => {
                write!(f, "its compression {compression} or its cipher {cipher} is unknown")
            }
            BlockFault::Cipher { found, wanted } => {
                let name = |cipher: &Option<Cipher>| cipher.map_or("none", Cipher::name);
                write!(f, "its encryption is {}, the volume's is {}", name(found), name(wanted))
            }
            BlockFault::Authentication(at) => {
                write!(f, "the page at offset {at} was not encrypted for this position with the volume's key")
            }
        }
    }
}
