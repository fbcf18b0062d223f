//! The size and usage of the volume.

use meta::{Quota, Usage};
use ops::{GetQuotasOf, GetUsage};
use types::{Errno, Ino};

use crate::caller::BY_KERNEL;
use crate::vfs::Vfs;

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

impl Vfs {
    /// The size and usage that programs see at an inode, `statfs(2)`: those of the inode's quotas, or of the
    /// volume if there are none.
    ///
    /// # Errors
    /// Those of the database.
    pub fn statfs(&self, ino: Ino) -> Result<StatFs, Errno> {
        if self.base.meta.is_exclusive() {
            // `GetUsage` counts only committed changes. If they cannot be committed now, the usage is out of
            // date.
            let _ = self.base.meta.settle_held();
        }
        let Usage { inodes, blocks } = self.base.meta.run(&GetUsage, &BY_KERNEL)?;
        let volume = self.base.meta.volume();
        let or = |limit: u64, unlimited: u64| if limit == 0 { unlimited } else { limit };
        let within_capacity = match volume.capacity_bytes {
            0 => None,
            capacity => Some(capacity.div_ceil(Usage::BLOCK_BYTES).saturating_sub(blocks)),
        };
        // An object store in a local directory has no more room than the disk of that directory.
        let on_disk = self.base.store.free_bytes().map(|bytes| bytes / Usage::BLOCK_BYTES);
        let unlimited = || (UNLIMITED_BYTES / Usage::BLOCK_BYTES).saturating_sub(blocks);
        let free_blocks = [within_capacity, on_disk].into_iter().flatten().min().unwrap_or_else(unlimited);
        let all_blocks = match within_capacity {
            Some(free) => blocks + free,
            None => blocks + free_blocks,
        };
        let all_inodes = or(volume.max_inodes, UNLIMITED_INODES).max(inodes);
        let volume = StatFs {
            block_bytes: Usage::BLOCK_BYTES,
            blocks: all_blocks,
            free_blocks,
            inodes: all_inodes,
            free_inodes: all_inodes - inodes,
        };
        Ok(volume.within(&self.base.meta.run(&GetQuotasOf(ino), &BY_KERNEL)?))
    }
}

impl StatFs {
    /// The usage of the nearest quota, which is the first in `quotas`, and the room that the volume and all
    /// quotas leave. With a single quota, the size is its hard limit, unless the volume has less room. XFS
    /// shows the soft limit if there is one (`xfs_qm_statvfs`).
    fn within(self, quotas: &[Quota]) -> StatFs {
        let Some(nearest) = quotas.first() else { return self };
        let used = |count: i64| count.max(0).unsigned_abs();
        let left = |count: i64, limit: u64| limit.saturating_sub(used(count));
        let blocks = quotas.iter().map(|quota| left(quota.blocks, quota.rule.max_blocks));
        let inodes = quotas.iter().map(|quota| left(quota.inodes, quota.rule.max_inodes));
        let (free_blocks, free_inodes) =
            (blocks.fold(self.free_blocks, u64::min), inodes.fold(self.free_inodes, u64::min));
        StatFs {
            blocks: used(nearest.blocks) + free_blocks,
            free_blocks,
            inodes: used(nearest.inodes) + free_inodes,
            free_inodes,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use meta::QuotaRule;

    use super::*;

    #[test]
    fn a_directory_shows_its_quota_and_the_room_in_all_quotas_around_it() {
        let all = StatFs { block_bytes: 4096, blocks: 1000, free_blocks: 600, inodes: 100, free_inodes: 60 };
        let quota = |inodes, max_inodes, blocks, max_blocks| Quota {
            inodes,
            blocks,
            rule: QuotaRule { max_inodes, max_blocks, ..QuotaRule::default() },
        };
        let shown = |quotas: &[Quota]| {
            let StatFs { blocks, free_blocks, inodes, free_inodes, .. } = all.within(quotas);
            (blocks, free_blocks, inodes, free_inodes)
        };
        assert_eq!(shown(&[]), (1000, 600, 100, 60));
        assert_eq!(shown(&[quota(3, 10, 40, 50)]), (50, 10, 10, 7));
        // Without a limit, the room is that of the volume.
        const NONE: u64 = QuotaRule::NO_LIMIT;
        assert_eq!(shown(&[quota(3, NONE, 40, 50)]), (50, 10, 63, 60));
        // The outer quota leaves less room.
        assert_eq!(shown(&[quota(3, 10, 40, 50), quota(9, 11, 98, 99)]), (41, 1, 5, 2));
        // The usage is above the limits.
        assert_eq!(shown(&[quota(30, 10, 40, 7)]), (40, 0, 30, 0));
    }
}
