//! What writing leaves in the metadata.

use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Mode, Slice, SliceSource, Time, XattrName};

use crate::driver::{Ctx, Op, Plan};
use crate::ops::range::part;
use crate::record::{Node, Want, blocks_of};
use crate::txn::{Access, Effect};
use crate::view::{Stop, View};

/// Appends slices whose blocks are stored, and lets the file reach to their end.
///
/// # Errors
/// ESTALE where the inode is gone; ENOSPC at the volume's limit.
#[derive(Debug)]
pub struct Write {
    pub ino: Ino,
    pub slices: Vec<(ChunkIndex, Slice)>,
    /// The end of the furthest byte written.
    pub end: u64,
    /// When the last byte was written.
    pub mtime: Time,
}

impl Op for Write {
    type Reply = ();
    const NAME: &'static str = "write";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        make_room(view, ctx, &node, self.end)?;
        let append = |(chunk, slice): &(ChunkIndex, Slice)| Effect::AppendSlice {
            ino: self.ino,
            chunk: *chunk,
            slice: slice.clone(),
        };
        let mut effects: Vec<Effect> = self.slices.iter().map(append).collect();
        effects.push(Effect::Extend { ino: self.ino, size: self.end });
        let time = Some(self.mtime);
        effects.push(Effect::Touch { ino: self.ino, atime: None, mtime: time, ctime: time });
        Ok(Plan { reply: (), effects })
    }
}

/// Writes to where the file ends at that moment, `O_APPEND`, whoever else does so. Replies with that offset.
///
/// # Errors
/// ESTALE where the inode is gone; EFBIG beyond 2^63 - 1 bytes; ENOSPC at the volume's limit.
#[derive(Debug)]
pub struct Append {
    pub ino: Ino,
    /// `len` bytes, at most one chunk of them.
    pub source: SliceSource,
    pub len: u32,
}

impl Op for Append {
    type Reply = u64;
    const NAME: &'static str = "append";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<u64>, Stop> {
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        let offset = view.size(self.ino)?;
        let end = offset.checked_add(self.len.into()).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        make_room(view, ctx, &node, end)?;
        let mut effects = Vec::with_capacity(5);
        let mut done = 0;
        while done < self.len {
            let (chunk, pos) = ChunkIndex::of(offset + u64::from(done));
            let len = (self.len - done).min(CHUNK_BYTES as u32 - pos);
            let source = part(&self.source, done, len);
            if let (SliceSource::Blocks { id, .. }, 1..) = (&source, done) {
                effects.push(Effect::Share { slice: *id });
            }
            effects.push(Effect::AppendSlice { ino: self.ino, chunk, slice: Slice { pos, len, source } });
            done += len;
        }
        effects.push(Effect::Extend { ino: self.ino, size: end });
        let now = Some(ctx.now);
        effects.push(Effect::Touch { ino: self.ino, atime: None, mtime: now, ctime: now });
        Ok(Plan { reply: offset, effects })
    }
}

/// Requires the volume to have room for all that a file grows by when it reaches to `end`, not just for a first block:
/// a flush brings as much as the write buffers hold.
pub(super) fn make_room(view: &mut View<'_>, ctx: &Ctx<'_>, node: &Node, end: u64) -> Result<(), Stop> {
    let grown = blocks_of(end).saturating_sub(node.blocks());
    match ctx.volume.limits() {
        // So many may be in use that the new ones fit: one less than what would be too much.
        Some((_, max_blocks))
            if grown > 0 && !view.has_room(u64::MAX, max_blocks.saturating_sub(grown - 1)) =>
        {
            Err(Errno::ENOSPC.into())
        }
        _ => Ok(()),
    }
}

/// Takes SUID, SGID (if the group may execute) and file capabilities from a file that someone without `CAP_FSETID` writes to.
/// Twin of `file_remove_privs`; FUSE_HANDLE_KILLPRIV_V2. Replies whether the mode changed.
///
/// # Errors
/// ESTALE where the inode is gone.
#[derive(Debug)]
pub struct KillPriv(pub Ino);

impl Op for KillPriv {
    type Reply = bool;
    const NAME: &'static str = "killpriv";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<bool>, Stop> {
        let ino = self.0;
        view.prefetch([Want::Node(ino), Want::Xattrs(ino)])?;
        let node = view.inode(ino)?;
        let capability = capability();
        let capable = view.xattrs(ino)?.contains_key(&capability);
        // What was in memory may be out of date: the guard sees to it that no capability stays behind.
        view.require_xattr(ino, &capability, capable);
        let mode = kill_priv(node.mode, true);
        let mut effects = Vec::new();
        if mode != node.mode {
            effects.push(Effect::SetAccess { ino, access: Access { mode, ..Access::from(&node) } });
            effects.push(super::touch_ctime(ino, ctx.now));
        }
        if capable {
            effects.push(Effect::DropXattr { ino, name: capability });
        }
        // An earlier attempt of this operation that was in doubt has set this ctime, and the mode with it.
        let changed = mode != node.mode || node.ctime == ctx.now;
        Ok(Plan { reply: changed, effects })
    }
}

/// The xattr in which Linux keeps a file's capabilities, `capabilities(7)`.
const CAPABILITY: &[u8] = b"security.capability";

pub(super) fn drop_capabilities(ino: Ino) -> Effect {
    Effect::DropXattr { ino, name: capability() }
}

fn capability() -> XattrName {
    #[expect(clippy::expect_used, reason = "a constant that is a valid name")]
    XattrName::new(CAPABILITY).expect("a valid name")
}

/// The mode without SUID, and without SGID where the group may execute; where it may not, SGID stays if `keep_sgid`.
pub(super) fn kill_priv(mode: Mode, keep_sgid: bool) -> Mode {
    let runs_as_group = mode.has(Mode::SGID | 0o010);
    let mode = mode.without(Mode::SUID);
    if runs_as_group || !keep_sgid { mode.without(Mode::SGID) } else { mode }
}
