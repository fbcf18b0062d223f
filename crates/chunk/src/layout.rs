//! Detects the format of an object, and locates its pages.

use bytes::Bytes;

use crate::block::{BlockName, Trailer, trailer_len};
use crate::codec::Codec;
use crate::format::{BlockFault, MAGIC, PAGE_BYTES};
use crate::packed::{Header, header_len, max_object_len};

/// The location and checksums of the pages of one stored block.
#[derive(Debug)]
pub(crate) enum Layout {
    /// Format 1: plain data of this length, and a trailer.
    Plain(u32, Trailer),
    /// Format 2: a header, and the packed data.
    Packed(Header),
}

/// Why an object cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The object is shorter than this many bytes.
    Short(usize),
    Fault(BlockFault),
}

/// The maximum length in bytes of the object of a block of `len` bytes.
pub(crate) fn object_len_bound(len: u32) -> usize {
    max_object_len(len).max(len as usize + trailer_len(len))
}

/// Returns the data of block `name` from its whole object, verified.
pub(crate) fn decode(object: &Bytes, name: BlockName, codec: &Codec) -> Result<Bytes, Damage> {
    let layout = Layout::recognise(object, name, codec)?;
    let (offset, count) = layout.range(0, name.len.div_ceil(PAGE_BYTES));
    let stored = object.slice(offset as usize..offset as usize + count);
    layout.unpack(codec, 0, stored).map_err(Damage::Fault)
}

impl Layout {
    /// Detects the format of the whole object of block `name`. An encrypted volume accepts only encrypted
    /// objects: otherwise, anyone who can write to the store could replace a block with data of their own.
    ///
    /// The data of a plain block may begin with a valid header, if a user copied an object of the store into
    /// a file. Slice numbers are never reused, so that header names another block, and [`Header::parse`]
    /// rejects it.
    pub(crate) fn recognise(object: &[u8], name: BlockName, codec: &Codec) -> Result<Self, Damage> {
        let fault = match Header::parse(object, name) {
            Ok(header) if object.len() < header.object_len() => {
                return Err(Damage::Short(header.object_len()));
            }
            Ok(header) => return Ok(Layout::Packed(header)),
            Err(fault) => fault,
        };
        let end = name.len as usize + trailer_len(name.len);
        let plain = match object.get(name.len as usize..end) {
            Some(trailer) => Trailer::parse(trailer, name.len).map_err(Damage::Fault),
            None => Err(Damage::Short(end)),
        };
        match plain {
            Ok(_) if codec.encryption.is_some() => {
                Err(Damage::Fault(BlockFault::Cipher { found: None, wanted: codec.cipher() }))
            }
            Ok(trailer) => Ok(Layout::Plain(name.len, trailer)),
            Err(damage) if codec.is_plain() && !object.starts_with(&MAGIC) => Err(damage),
            Err(_) if object.len() < header_len(name.len) => Err(Damage::Short(header_len(name.len))),
            Err(_) => Err(Damage::Fault(fault)),
        }
    }

    /// The location of pages `first..end`: the offset in the object, and the number of bytes.
    pub(crate) fn range(&self, first: u32, end: u32) -> (u32, usize) {
        match self {
            Layout::Plain(len, _) => {
                let at = |page: u32| page.saturating_mul(PAGE_BYTES).min(*len);
                (at(first), (at(end) - at(first)) as usize)
            }
            Layout::Packed(header) => header.range(first, end),
        }
    }

    /// Returns the data of the pages that `stored` holds, of which the first is page `first`.
    ///
    /// # Errors
    /// The fault of the first page that fails verification.
    pub(crate) fn unpack(&self, codec: &Codec, first: u32, stored: Bytes) -> Result<Bytes, BlockFault> {
        match self {
            Layout::Plain(_, trailer) => trailer.verify(first, &stored).map(|()| stored),
            Layout::Packed(header) => header.unpack(codec, first, &stored).map(Bytes::from),
        }
    }
}
