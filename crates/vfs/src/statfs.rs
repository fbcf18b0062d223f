//! The size and usage of the volume.

use client::Meta;
use meta::Usage;
use ops::GetUsage;
use types::Errno;

use crate::caller::BY_KERNEL;

/// The state of the volume, `statfs(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    pub block_bytes: u64,
    pub blocks: u64,
    pub free_blocks: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

/// The size that statfs reports for a volume without limits.
const UNLIMITED_BYTES: u64 = 1 << 50;
const UNLIMITED_INODES: u64 = 1 << 40;

impl StatFs {
    /// The size and usage of the volume, `statfs(2)`.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn read(meta: &Meta) -> Result<StatFs, Errno> {
        let Usage { inodes, blocks } = meta.run(&GetUsage, &BY_KERNEL)?;
        let volume = meta.volume();
        let or = |limit: u64, unlimited: u64| if limit == 0 { unlimited } else { limit };
        let all_blocks = or(volume.capacity_bytes, UNLIMITED_BYTES).div_ceil(Usage::BLOCK_BYTES).max(blocks);
        let all_inodes = or(volume.max_inodes, UNLIMITED_INODES).max(inodes);
        Ok(StatFs {
            block_bytes: Usage::BLOCK_BYTES,
            blocks: all_blocks,
            free_blocks: all_blocks - blocks,
            inodes: all_inodes,
            free_inodes: all_inodes - inodes,
        })
    }
}
