//! The metadata of writes: slices, size and times; and the removal of SUID, SGID and file capabilities.

use meta::{Access, Effect, Guard, Inode};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Mode, Slice, SliceSource, Time, XattrName};

use crate::op::{Ctx, Op, Plan};
use crate::range::share;
use crate::room::make_room_to;
use crate::view::{PlanStop, View};

/// Appends rows of new slices, whose blocks are stored, and extends the file to their end. Several rows may
/// refer to one slice.
///
/// # Errors
/// ESTALE if the inode does not exist; ENOSPC if the file would grow beyond the volume's limit.
#[derive(Debug)]
pub struct Write {
    pub ino: Ino,
    pub slices: Vec<(ChunkIndex, Slice)>,
    /// The end of the last byte written.
    pub end: u64,
    /// The time of the last write.
    pub mtime: Time,
}

impl Op for Write {
    type Reply = ();
    const NAME: &'static str = "write";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let inode = view.inode(self.ino)?;
        make_room_to(view, ctx, &inode, self.end)?;
        let append = |(chunk, slice): &(ChunkIndex, Slice)| Effect::AppendSlice {
            ino: self.ino,
            chunk: *chunk,
            slice: slice.clone(),
        };
        let mut effects: Vec<Effect> = self.slices.iter().map(append).collect();
        effects.extend(share(self.slices.iter().map(|(_, row)| row), true));
        effects.push(Effect::Extend { ino: self.ino, size: self.end });
        let time = Some(self.mtime);
        effects.push(Effect::SetTimes { ino: self.ino, atime: None, mtime: time, ctime: time });
        Ok(Plan { reply: (), effects })
    }
}

/// Writes at the end of the file (`O_APPEND`). The end is the one at the time of the commit, so concurrent
/// appends do not overwrite each other. Replies with the offset.
///
/// # Errors
/// ESTALE if the inode does not exist; EFBIG if the file would have more than 2^63 - 1 bytes; ENOSPC if it
/// would grow beyond the volume's limit.
#[derive(Debug)]
pub struct Append {
    pub ino: Ino,
    /// The source of `len` bytes, which are at most one chunk.
    pub source: SliceSource,
    pub len: u32,
}

impl Op for Append {
    type Reply = u64;
    const NAME: &'static str = "append";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<u64>, PlanStop> {
        let inode = view.inode(self.ino)?;
        let offset = view.size(self.ino)?;
        let end = offset.checked_add(self.len.into()).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        make_room_to(view, ctx, &inode, end)?;
        let mut rows = Vec::with_capacity(2);
        let mut done = 0;
        while done < self.len {
            let (chunk, pos) = ChunkIndex::of(offset + u64::from(done));
            let len = (self.len - done).min(CHUNK_BYTES as u32 - pos);
            rows.push((chunk, Slice { pos, len, source: self.source.part(done, len) }));
            done += len;
        }
        let mut effects = share(rows.iter().map(|(_, row)| row), true);
        effects.extend(rows.into_iter().map(|(chunk, slice)| Effect::AppendSlice {
            ino: self.ino,
            chunk,
            slice,
        }));
        effects.push(Effect::Extend { ino: self.ino, size: end });
        let now = Some(ctx.now);
        effects.push(Effect::SetTimes { ino: self.ino, atime: None, mtime: now, ctime: now });
        Ok(Plan { reply: offset, effects })
    }
}

/// Removes SUID, SGID (if the group may execute) and file capabilities from a file that a caller without
/// `CAP_FSETID` writes to. Equivalent to `file_remove_privs`; see FUSE_HANDLE_KILLPRIV_V2. Replies whether
/// the mode changed.
///
/// # Errors
/// ESTALE if the inode does not exist.
#[derive(Debug)]
pub struct KillPriv(pub Ino);

impl Op for KillPriv {
    type Reply = bool;
    const NAME: &'static str = "killpriv";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<bool>, PlanStop> {
        let ino = self.0;
        let inode = view.inode(ino)?;
        let mode = kill_priv(inode.mode, true);
        let mut effects = drop_capabilities(view, &inode);
        if mode != inode.mode {
            effects.push(Effect::SetAccess { ino, access: Access { mode, ..Access::from(&inode) } });
            effects.push(super::set_ctime(ino, ctx.now));
        }
        // If the answer to an earlier attempt of this operation was lost, that attempt may have changed the
        // mode. It then also set the ctime to `ctx.now`.
        let changed = mode != inode.mode || inode.ctime == ctx.now;
        Ok(Plan { reply: changed, effects })
    }
}

/// The xattr in which Linux stores a file's capabilities; see `capabilities(7)`.
const CAPABILITY: &[u8] = b"security.capability";

/// The effects that remove the file's capabilities, if it has any.
pub(super) fn drop_capabilities(view: &mut View<'_>, inode: &Inode) -> Vec<Effect> {
    if inode.xattr_blocks == 0 {
        view.guard(Guard::XattrBlocks { ino: inode.ino, least: 0, most: 0 });
        return Vec::new();
    }
    #[expect(clippy::expect_used, reason = "a constant that is a valid name")]
    let name = XattrName::new(CAPABILITY).expect("a valid name");
    super::xattr::remove(view, inode, &name, 0)
}

/// Returns the mode without SUID and SGID. SGID remains if `keep_sgid` is set and the group may not execute
/// the file.
pub(super) fn kill_priv(mode: Mode, keep_sgid: bool) -> Mode {
    let runs_as_group = mode.has(Mode::SGID | 0o010);
    let mode = mode.without(Mode::SUID);
    if runs_as_group || !keep_sgid { mode.without(Mode::SGID) } else { mode }
}
