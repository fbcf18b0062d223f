//! Requires room below the limits of the volume.

use meta::{Guard, Inode, blocks_of};
use types::Errno;

use crate::op::Ctx;
use crate::view::{PlanStop, View};

/// Requires that the volume has room for one more inode and one more block.
///
/// # Errors
/// ENOSPC if the volume is full: it has reached one of its limits.
pub(super) fn require_room(view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<(), PlanStop> {
    match ctx.volume.limits() {
        Some((max_inodes, max_blocks)) if !view.has_room(max_inodes, max_blocks) => Err(Errno::ENOSPC.into()),
        _ => Ok(()),
    }
}

/// Requires that the volume has room for this many more inodes and blocks.
///
/// # Errors
/// ENOSPC if they would exceed a limit of the volume.
pub(super) fn require_room_for(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    inodes: u64,
    blocks: u64,
) -> Result<(), PlanStop> {
    match ctx.volume.limits() {
        // The guard requires usage < limit, which is room for one inode and one block. So the limits are
        // reduced by the number of the other inodes and blocks.
        Some((max_inodes, max_blocks))
            if inodes > 0
                && !view.has_room(
                    max_inodes.saturating_sub(inodes - 1),
                    max_blocks.saturating_sub(blocks.saturating_sub(1)),
                ) =>
        {
            Err(Errno::ENOSPC.into())
        }
        _ => Ok(()),
    }
}

/// Requires that the volume has room for all blocks by which a file grows if it is extended to `end` bytes. A
/// check for one block is not enough, because one flush can write as much as the write buffers hold.
///
/// # Errors
/// ENOSPC if the blocks would exceed the volume's limit.
pub(super) fn make_room_to(
    view: &mut View<'_>,
    ctx: &Ctx<'_>,
    inode: &Inode,
    end: u64,
) -> Result<(), PlanStop> {
    if ctx.volume.limits().is_some_and(|(_, max_blocks)| max_blocks != u64::MAX) {
        // The file grows by more blocks if another client has truncated it since its size was read.
        view.guard(Guard::Size { ino: inode.ino, size: inode.size });
    }
    make_room(view, ctx, blocks_of(end).saturating_sub(inode.data_blocks()))
}

/// Requires that the volume has room for `grown` more blocks.
///
/// # Errors
/// ENOSPC if the blocks would exceed the volume's limit.
pub(super) fn make_room(view: &mut View<'_>, ctx: &Ctx<'_>, grown: u64) -> Result<(), PlanStop> {
    match ctx.volume.limits() {
        // The guard requires usage < limit, which is room for one block. So the limit is reduced by the
        // number of the other blocks.
        Some((_, max_blocks))
            if grown > 0 && !view.has_room(u64::MAX, max_blocks.saturating_sub(grown - 1)) =>
        {
            Err(Errno::ENOSPC.into())
        }
        _ => Ok(()),
    }
}
