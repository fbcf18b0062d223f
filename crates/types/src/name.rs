//! Names of directory entries and xattrs, validated once when they are parsed.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Errno;

/// The name of a directory entry: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`
/// (`path_resolution(7)`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(#[serde(with = "crate::bytes")] Arc<[u8]>);

/// Why a byte string is not a valid [`Name`] or [`XattrName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error("the name is longer than 255 bytes")]
    TooLong,
    #[error("the name is '.', '..' or contains '/' or NUL")]
    Reserved,
}

impl From<NameError> for Errno {
    fn from(error: NameError) -> Errno {
        match error {
            NameError::Empty => Errno::ENOENT,
            NameError::TooLong => Errno::ENAMETOOLONG,
            NameError::Reserved => Errno::EINVAL,
        }
    }
}

impl Name {
    /// The longest name in bytes (`NAME_MAX`).
    pub const MAX_BYTES: usize = 255;

    /// # Errors
    /// [`NameError::Empty`], then [`NameError::TooLong`], then [`NameError::Reserved`].
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            _ if bytes.len() > Self::MAX_BYTES => Err(NameError::TooLong),
            b"." | b".." => Err(NameError::Reserved),
            _ if bytes.iter().any(|&b| b == b'/' || b == 0) => Err(NameError::Reserved),
            _ => Ok(Name(bytes.into())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for XattrName {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

/// The full name of an extended attribute, for example `user.mime_type`: 1 to 255 bytes without NUL
/// (`xattr(7)`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct XattrName(#[serde(with = "crate::bytes")] Arc<[u8]>);

impl XattrName {
    /// # Errors
    /// [`NameError::Empty`], then [`NameError::TooLong`], then [`NameError::Reserved`].
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            _ if bytes.len() > Name::MAX_BYTES => Err(NameError::TooLong),
            _ if bytes.contains(&0) => Err(NameError::Reserved),
            _ => Ok(XattrName(bytes.into())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated_when_parsed() {
        assert_eq!(Name::new(b""), Err(NameError::Empty));
        assert_eq!(Name::new(&[b'a'; 256]), Err(NameError::TooLong));
        for reserved in [&b"."[..], b"..", b"a/b", b"a\0"] {
            assert_eq!(Name::new(reserved), Err(NameError::Reserved));
        }
        for fine in [&[b'a'; 255][..], b"...", b"\xff\n", b" "] {
            assert_eq!(Name::new(fine).unwrap().as_bytes(), fine);
        }
    }
}
