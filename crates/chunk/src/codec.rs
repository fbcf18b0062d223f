//! The encoding of blocks: first compression, then encryption.

use std::fmt;
use std::str::FromStr;

use zstd::zstd_safe::{CCtx, CParameter, DCtx};

use crate::ChunkError;
use crate::cipher::Cipher;
use crate::secret::Encryption;

/// The compression level of Zstandard, which is the library's default. Measured on source code and programs,
/// in pages of 64 KiB: level 1 is 20 % faster and 5 % larger; level 6 is 8 % smaller at a third of the speed.
const ZSTD_LEVEL: i32 = 3;

/// A page is stored compressed only if that saves at least 1/16 of it; otherwise, decompression would cost
/// more than it saves.
const WORTHWHILE: usize = 16;

/// How blocks are compressed. A change of this setting applies to new blocks; stored blocks stay readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    #[default]
    None = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Compression {
    /// The kinds of compression in the order of their numbers.
    const NAMES: [(Compression, &str); 3] =
        [(Compression::None, "none"), (Compression::Lz4, "lz4"), (Compression::Zstd, "zstd")];

    pub fn name(self) -> &'static str {
        Self::NAMES[usize::from(self.id())].1
    }

    /// The number in a block's header.
    pub(crate) fn id(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_id(id: u8) -> Option<Self> {
        Self::NAMES.get(usize::from(id)).map(|(compression, _)| *compression)
    }
}

impl FromStr for Compression {
    type Err = ChunkError;

    /// # Errors
    /// [`ChunkError::Config`] for a name that is none of `none`, `lz4`, `zstd`.
    fn from_str(name: &str) -> Result<Self, ChunkError> {
        let known = Self::NAMES.iter().find(|(_, known)| *known == name);
        known.map(|(compression, _)| *compression).ok_or_else(|| {
            ChunkError::Config(format!("unknown compression {name:?} (use none, lz4 or zstd)"))
        })
    }
}

impl FromStr for Cipher {
    type Err = ChunkError;

    /// # Errors
    /// [`ChunkError::Config`] for a name that is neither `aes-256-gcm` nor `xchacha20-poly1305`.
    fn from_str(name: &str) -> Result<Self, ChunkError> {
        Self::ALL.into_iter().find(|cipher| cipher.name() == name).ok_or_else(|| {
            ChunkError::Config(format!("unknown encryption {name:?} (use aes-256-gcm or xchacha20-poly1305)"))
        })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a store encodes blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Codec {
    pub(crate) compression: Compression,
    pub(crate) encryption: Option<Encryption>,
}

impl Codec {
    /// Whether blocks are stored without compression and encryption.
    pub(crate) fn is_plain(&self) -> bool {
        self.compression == Compression::None && self.encryption.is_none()
    }

    pub(crate) fn cipher(&self) -> Option<Cipher> {
        self.encryption.as_ref().map(Encryption::cipher)
    }
}

/// Compresses pages, and reuses its working memory.
pub(crate) enum Packer {
    None,
    Lz4,
    Zstd(CCtx<'static>),
}

impl Packer {
    pub(crate) fn new(compression: Compression) -> Self {
        match compression {
            Compression::None => Packer::None,
            Compression::Lz4 => Packer::Lz4,
            // If there is no memory for the compressor, pages are stored uncompressed, which is always valid.
            Compression::Zstd => compressor().map_or(Packer::None, Packer::Zstd),
        }
    }

    /// Compresses `page` into the front of `out`, which is at least as long, and returns the compressed
    /// length. `None` if it would save too little; `out` then holds no valid data.
    pub(crate) fn pack(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..page.len() - page.len().div_ceil(WORTHWHILE))?;
        match self {
            Packer::None => None,
            // `lz4` compresses into another buffer, because lz4_flex needs room for the worst case.
            Packer::Lz4 => lz4(page, out),
            Packer::Zstd(compressor) => compressor.compress2(out, page).ok(),
        }
    }
}

/// A compressor; `None` if there is no memory for it. `zstd::bulk` would panic instead.
fn compressor() -> Option<CCtx<'static>> {
    let mut compressor = CCtx::try_create()?;
    compressor.set_parameter(CParameter::CompressionLevel(ZSTD_LEVEL)).ok()?;
    Some(compressor)
}

fn lz4(page: &[u8], out: &mut [u8]) -> Option<usize> {
    let packed = lz4_flex::block::compress(page);
    out.get_mut(..packed.len())?.copy_from_slice(&packed);
    Some(packed.len())
}

/// Decompresses pages that [`Packer`] compressed.
pub(crate) enum Unpacker {
    None,
    Lz4,
    Zstd(DCtx<'static>),
}

impl Unpacker {
    /// `None` if there is no memory for the decompressor. It needs no more memory later.
    pub(crate) fn new(compression: Compression) -> Option<Self> {
        Some(match compression {
            Compression::None => Unpacker::None,
            Compression::Lz4 => Unpacker::Lz4,
            Compression::Zstd => Unpacker::Zstd(DCtx::try_create()?),
        })
    }

    /// Decompresses `packed` into `out`; `None` unless the result has exactly the length of `out`.
    pub(crate) fn unpack(&mut self, packed: &[u8], out: &mut [u8]) -> Option<()> {
        let wanted = out.len();
        let found = match self {
            Unpacker::None => None,
            Unpacker::Lz4 => lz4_flex::block::decompress_into(packed, out).ok(),
            Unpacker::Zstd(decompressor) => decompressor.decompress(out, packed).ok(),
        };
        (found? == wanted).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_format_numbers_are_stable() {
        for (number, name) in ["none", "lz4", "zstd"].into_iter().enumerate() {
            let compression: Compression = name.parse().unwrap();
            assert_eq!((compression.name(), usize::from(compression.id())), (name, number));
            assert_eq!(Compression::from_id(compression.id()), Some(compression));
        }
        for (number, name) in ["aes-256-gcm", "xchacha20-poly1305"].into_iter().enumerate() {
            let cipher: Cipher = name.parse().unwrap();
            assert_eq!((cipher.name(), usize::from(cipher.id())), (name, number + 1));
            assert_eq!(Cipher::from_id(cipher.id()), Some(cipher));
        }
        assert_eq!((Compression::from_id(3), Cipher::from_id(0)), (None, None));
        assert!("gzip".parse::<Compression>().is_err() && "rot13".parse::<Cipher>().is_err());
    }

    #[test]
    fn a_page_is_compressed_only_if_it_saves_enough() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let (text, mut packed) = (b"limen ".repeat(5000), vec![0; 30_000]);
            let len = Packer::new(compression).pack(&text, &mut packed);
            assert_eq!(len.is_some(), compression != Compression::None);
            if let Some(len) = len {
                let (mut unpacker, mut out) = (Unpacker::new(compression).unwrap(), vec![0; text.len()]);
                assert!(len < 3000);
                unpacker.unpack(&packed[..len], &mut out).unwrap();
                assert_eq!(out, text);
                assert_eq!(unpacker.unpack(&packed[..len], &mut out[1..]), None);
                assert_eq!(unpacker.unpack(&packed[..len], &mut vec![0; text.len() + 1]), None);
            }
            let noise: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(30_000);
            assert_eq!(Packer::new(compression).pack(&noise, &mut packed), None);
            assert_eq!(Packer::new(compression).pack(&[], &mut []), None);
        }
    }

    trait TakeBytes {
        fn take_bytes(self, len: usize) -> Vec<u8>;
    }

    impl TakeBytes for blake3::OutputReader {
        fn take_bytes(mut self, len: usize) -> Vec<u8> {
            let mut bytes = vec![0; len];
            self.fill(&mut bytes);
            bytes
        }
    }
}
