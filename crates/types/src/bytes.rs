//! Serializes `Arc<[u8]>` as a byte string. Without this module, serde would serialize it as a sequence of
//! numbers.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// For `#[serde(with)]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(bytes: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// For `#[serde(with)]`.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = Arc<[u8]>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a byte string")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            Ok(bytes.into())
        }
    }
    deserializer.deserialize_bytes(Bytes)
}
