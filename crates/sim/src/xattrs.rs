//! The extended attributes of simulated files. Sizes are around the limits of a value and of a block.

use std::collections::BTreeMap;
use std::sync::Arc;

use meta::Xattrs;
use types::XattrName;

use crate::rng::Rng;

/// The longest value in bytes.
pub(crate) const MAX_BYTES: u32 = 65_536;
/// The maximum number of blocks that the values of an inode take.
pub(crate) const MAX_BLOCKS: u64 = 256;
const BLOCK_BYTES: u32 = 4096;

/// The lengths that are drawn; the last one is too long.
const LENGTHS: [u32; 8] =
    [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, MAX_BYTES - 1, MAX_BYTES, MAX_BYTES + 1];

/// A value: `len` times the same byte, which is 0 if the value is empty. `byte` is `None` for any other
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) len: u32,
    byte: Option<u8>,
}

/// The attributes of an inode.
pub(crate) type Values = BTreeMap<XattrName, Value>;

impl Value {
    pub(crate) fn new(len: u32, byte: u8) -> Self {
        Value { len, byte: Some(if len == 0 { 0 } else { byte }) }
    }

    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Value::new(rng.pick(&LENGTHS), rng.below(200) as u8)
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let byte = bytes.first().copied().unwrap_or_default();
        let is_same = bytes.iter().all(|other| *other == byte);
        Value { len: bytes.len() as u32, byte: is_same.then_some(byte) }
    }

    pub(crate) fn bytes(self) -> Arc<[u8]> {
        vec![self.byte.unwrap_or_default(); self.len as usize].into()
    }

    pub(crate) fn blocks(self) -> u64 {
        u64::from(self.len.div_ceil(BLOCK_BYTES).max(1))
    }
}

pub(crate) fn values(xattrs: &Xattrs) -> Values {
    xattrs.iter().map(|(name, value)| (name.clone(), Value::of(value))).collect()
}

/// The blocks that the values of an inode take.
pub(crate) fn blocks(values: &Values) -> u64 {
    values.values().map(|value| value.blocks()).sum()
}

#[expect(clippy::expect_used, reason = "the names of a simulation are valid")]
pub(crate) fn name(number: u8) -> XattrName {
    XattrName::new(format!("user.{number}").as_bytes()).expect("a valid name")
}
