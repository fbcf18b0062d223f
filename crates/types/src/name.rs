//! Names of directory entries and xattrs, validated once when they are parsed.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Errno;

/// The name of a directory entry: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`
/// (`path_resolution(7)`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(
    #[serde(serialize_with = "crate::bytes::serialize", deserialize_with = "Name::valid_bytes")] Arc<[u8]>,
);

/// Why a byte string is not a valid [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error("the name is longer than 255 bytes")]
    TooLong,
    #[error("the name is '.', '..' or contains '/' or NUL")]
    Reserved,
}

/// Why a byte string is not a valid [`XattrName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrNameError {
    #[error("the attribute name is empty")]
    Empty,
    #[error("the attribute name is longer than 255 bytes")]
    TooLong,
    #[error("the attribute name contains NUL")]
    Nul,
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
        Self::check(bytes)?;
        Ok(Name(bytes.into()))
    }

    fn check(bytes: &[u8]) -> Result<(), NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            _ if bytes.len() > Self::MAX_BYTES => Err(NameError::TooLong),
            b"." | b".." => Err(NameError::Reserved),
            _ if bytes.iter().any(|&b| b == b'/' || b == 0) => Err(NameError::Reserved),
            _ => Ok(()),
        }
    }

    fn valid_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        let bytes = crate::bytes::deserialize(deserializer)?;
        Self::check(&bytes).map_err(D::Error::custom)?;
        Ok(bytes)
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
#[serde(transparent)]
pub struct XattrName(
    #[serde(serialize_with = "crate::bytes::serialize", deserialize_with = "XattrName::valid_bytes")]
    Arc<[u8]>,
);

impl XattrName {
    /// # Errors
    /// [`XattrNameError::Empty`], then [`XattrNameError::TooLong`], then [`XattrNameError::Nul`].
    pub fn new(bytes: &[u8]) -> Result<Self, XattrNameError> {
        Self::check(bytes)?;
        Ok(XattrName(bytes.into()))
    }

    fn check(bytes: &[u8]) -> Result<(), XattrNameError> {
        match bytes {
            [] => Err(XattrNameError::Empty),
            _ if bytes.len() > Name::MAX_BYTES => Err(XattrNameError::TooLong),
            _ if bytes.contains(&0) => Err(XattrNameError::Nul),
            _ => Ok(()),
        }
    }

    fn valid_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        let bytes = crate::bytes::deserialize(deserializer)?;
        Self::check(&bytes).map_err(D::Error::custom)?;
        Ok(bytes)
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
    use serde::de::value::{BytesDeserializer, Error};

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
    #[test]
    fn names_are_validated_when_deserialized() {
        let stored = BytesDeserializer::<Error>::new;
        assert_eq!(Name::deserialize(stored(b"a")), Ok(Name::new(b"a").unwrap()));
        for wrong in [&b""[..], &[b'a'; 256], b"..", b"a/b", b"a\0"] {
            let error = Name::new(wrong).unwrap_err().to_string();
            assert_eq!(Name::deserialize(stored(wrong)).unwrap_err().to_string(), error);
        }
        assert_eq!(XattrName::deserialize(stored(b"a/b")), Ok(XattrName::new(b"a/b").unwrap()));
        for wrong in [&b""[..], &[b'a'; 256], b"a\0"] {
            let error = XattrName::new(wrong).unwrap_err().to_string();
            assert!(error.starts_with("the attribute name "), "{error}");
            assert_eq!(XattrName::deserialize(stored(wrong)).unwrap_err().to_string(), error);
        }
    }
}
