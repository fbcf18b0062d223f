//! How much a check has in memory, and what it has found.

use meta::Usage;
use types::{Ino, SessionId, SliceId};

/// The largest number of inodes or slices in memory, at 50 to 100 bytes each.
pub const WINDOW: usize = 1 << 20;

/// How much a check has processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub inodes: u64,
    pub entries: u64,
    pub rows: u64,
}

/// The largest numbers found, and the usage that follows from the inodes.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) checked: Checked,
    pub(crate) usage: Usage,
    pub(crate) last_ino: Ino,
    pub(crate) last_slice: SliceId,
    pub(crate) last_session: SessionId,
}
