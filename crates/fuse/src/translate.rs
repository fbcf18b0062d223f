//! Between the protocol's values and the VFS's.

use std::time::Duration;

use fuse_proto::{Entry, Header, NodeId, SetAttr, SetTime, StatFs};
use types::{Mode, Time};
use vfs::{Attr, AttrChange, Caller};

/// The unit in which files are best read (`st_blksize`).
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn attr(attr: &Attr) -> fuse_proto::Attr {
    fuse_proto::Attr {
        ino: attr.ino.0,
        size_bytes: attr.size_bytes,
        blocks: attr.blocks(),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        mode: attr.kind.to_ifmt() | attr.mode.bits(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize_bytes: BLOCK_BYTES,
    }
}

/// Inode numbers are never used again, so they serve as node ids, and generations are all the same.
pub(crate) fn entry(of: &Attr, ttl: Duration) -> Entry {
    Entry { nodeid: NodeId(of.ino.0), generation: 0, attr: attr(of), entry_ttl: ttl, attr_ttl: ttl }
}

pub(crate) fn caller(header: &Header) -> Caller {
    Caller { uid: header.uid, gid: header.gid, pid: header.pid }
}

pub(crate) fn change(asked: &SetAttr) -> AttrChange {
    let time = |time: SetTime| match time {
        SetTime::Now => Time::now(),
        SetTime::At(time) => time,
    };
    AttrChange {
        mode: asked.mode.map(Mode::new),
        uid: asked.uid,
        gid: asked.gid,
        size_bytes: asked.size_bytes,
        atime: asked.atime.map(time),
        mtime: asked.mtime.map(time),
        kill_suidgid: asked.kill_suidgid,
    }
}

pub(crate) fn statfs(st: &vfs::StatFs) -> StatFs {
    StatFs {
        blocks: st.blocks,
        bfree: st.free_blocks,
        bavail: st.free_blocks,
        files: st.inodes,
        ffree: st.free_inodes,
        bsize_bytes: st.block_bytes as u32,
        frsize_bytes: st.block_bytes as u32,
        namelen_bytes: types::Name::MAX_BYTES as u32,
    }
}
