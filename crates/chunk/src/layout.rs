//! Which of the formats an object is in, and how to get at its pages.

use bytes::Bytes;

use crate::block::{BlockFault, MAGIC, PAGE_BYTES, Trailer, trailer_len};
use crate::codec::Codec;
use crate::packed::{BlockName, Header, header_len, max_object_len};

/// How the pages of one stored block are found and verified.
#[derive(Debug)]
pub(crate) enum Layout {
    /// Format 1: the data as it is, and a trailer.
    Plain(u32, Trailer),
    /// Format 2: a header, and the data packed.
    Packed(Header),
}

/// What is wrong with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It ends before this many bytes.
    Short(usize),
    Fault(BlockFault),
}

/// The length in bytes that the object of a block of `len` bytes has at most.
pub(crate) fn object_len_bound(len: u32) -> usize {
    max_object_len(len).max(len as usize + trailer_len(len))
}

/// The data of block `name`, all of it verified, whose whole object is `object`.
pub(crate) fn decode(object: &Bytes, name: BlockName, codec: &Codec) -> Result<Bytes, Damage> {
    let layout = Layout::recognise(object, name, codec)?;
    let (offset, count) = layout.range(0, name.len.div_ceil(PAGE_BYTES));
    let stored = object.slice(offset as usize..offset as usize + count);
    layout.unpack(codec, 0, stored).map_err(Damage::Fault)
}

impl Layout {
    /// Recognises the whole object of block `name`. Where the volume is encrypted, only an encrypted one is taken:
    /// whoever can write to the store could otherwise put data of his own in a block's place.
    ///
    /// The data of a plain block may begin like a header, if somebody stored an object as a file. Slice numbers are not
    /// used twice, so that the header is then another block's.
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

    /// Where pages `first..end` are stored: the offset in the object, and how many bytes.
    pub(crate) fn range(&self, first: u32, end: u32) -> (u32, usize) {
        match self {
            Layout::Plain(len, _) => {
                let at = |page: u32| page.saturating_mul(PAGE_BYTES).min(*len);
                (at(first), (at(end) - at(first)) as usize)
            }
            Layout::Packed(header) => header.range(first, end),
        }
    }

    /// The data of the pages from `first` on, which `stored` holds.
    ///
    /// # Errors
    /// The first page that is not what was stored.
    pub(crate) fn unpack(&self, codec: &Codec, first: u32, stored: Bytes) -> Result<Bytes, BlockFault> {
        match self {
            Layout::Plain(_, trailer) => trailer.verify(first, &stored).map(|()| stored),
            Layout::Packed(header) => header.unpack(codec, first, &stored).map(Bytes::from),
        }
    }
}
