//! The ciphers of blocks.

use std::fmt;

/// How blocks are encrypted. Both ciphers authenticate the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256 in Galois/Counter Mode (NIST SP 800-38D): faster on processors with AES instructions.
    Aes256Gcm = 1,
    /// ChaCha20 and Poly1305 (RFC 8439) with the extended nonce: faster on other processors.
    XChaCha20Poly1305 = 2,
}

impl Cipher {
    pub(crate) const ALL: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::XChaCha20Poly1305];

    pub fn name(self) -> &'static str {
        match self {
            Cipher::Aes256Gcm => "aes-256-gcm",
            Cipher::XChaCha20Poly1305 => "xchacha20-poly1305",
        }
    }

    /// The number in a block's header. There, 0 means no encryption.
    pub(crate) fn id(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.id() == id)
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
