//! The actions of clients: the scheduler draws acts, and a client runs an act as one or more steps.

use std::sync::Arc;

use meta::{LockOwner, MemEngine, Record, Scan};
use ops::{RenameFlags, UnlinkOutcome, XattrMode};
use types::{CHUNK_BYTES, Errno, FileType, Ino, SessionId, Slice, SliceSource, XattrName};

use crate::quotas::{self, Limits};
use crate::rng::Rng;
use crate::scan::scan_all;
use crate::xattrs::{self, Value, Values};

/// The next act of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) act: Act,
    /// Whether a client whose session was removed begins a new session before the act.
    pub(crate) rejoin: bool,
    /// Whether failed requests are retried until they succeed, or not at all.
    pub(crate) patient: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The process starts: it opens the volume and begins a session.
    Start,
    Make {
        dir: Ino,
        name: &'static str,
        is_dir: bool,
        mode: u32,
    },
    Write {
        ino: Ino,
        offset: u64,
        len: u32,
        inline: bool,
    },
    Append {
        ino: Ino,
        len: u32,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: &'static str,
    },
    Compact {
        ino: Ino,
    },
    /// Sets so many xattrs of an inode that few more fit.
    FillXattrs {
        ino: Ino,
    },
    Lock {
        ino: Ino,
        number: u64,
        flock: bool,
        exclusive: bool,
    },
    Unlock {
        ino: Ino,
        number: u64,
        flock: bool,
    },
    /// A step that needs no state of the client.
    Step(Step),
    /// Retries a write in doubt.
    GoOn,
    Renew,
    /// Reads the sessions of other clients and, after a pause, removes those whose heartbeat has not changed.
    RemoveOthers,
    /// Removes the locks and unlinked inodes of sessions without a record.
    Clean,
    ReapOwn,
    /// Applies the changes from the stream.
    ApplyRemote,
    CutStream,
    /// Removes garbage from the object store.
    Collect,
    /// Removes objects that nothing refers to, as `limen gc` does.
    Gc,
}

/// An operation with all its arguments, as the model replays it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Make {
        dir: Ino,
        name: &'static str,
        ino: Ino,
        is_dir: bool,
        mode: u32,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: &'static str,
        orphan_of: Option<SessionId>,
    },
    Unlink {
        dir: Ino,
        name: &'static str,
        open: Option<Ino>,
    },
    Rmdir {
        dir: Ino,
        name: &'static str,
    },
    Rename {
        dir: Ino,
        name: &'static str,
        to: Ino,
        new_name: &'static str,
        flags: RenameFlags,
    },
    Chmod {
        ino: Ino,
        mode: u32,
    },
    Truncate {
        ino: Ino,
        size: u64,
    },
    Write {
        ino: Ino,
        offset: u64,
        len: u32,
        source: SliceSource,
    },
    Append {
        ino: Ino,
        len: u32,
        source: SliceSource,
    },
    Copy {
        from: Ino,
        offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    },
    Compact {
        ino: Ino,
        old: Arc<[Slice]>,
        new: Arc<[Slice]>,
    },
    Lock {
        ino: Ino,
        owner: LockOwner,
        exclusive: bool,
    },
    Unlock {
        ino: Ino,
        owner: LockOwner,
    },
    DropLocks {
        ino: Ino,
        session: SessionId,
    },
    Reap {
        session: SessionId,
        ino: Ino,
    },
    SetXattr {
        ino: Ino,
        name: XattrName,
        value: Value,
        mode: XattrMode,
    },
    RemoveXattr {
        ino: Ino,
        name: XattrName,
    },
    /// Sets the limits of a quota, by its position in [`quotas::LIMITED`].
    SetLimits {
        quota: usize,
        limits: Limits,
    },
    Lookup {
        dir: Ino,
        name: &'static str,
    },
    Stat {
        ino: Ino,
    },
    ListXattrs {
        ino: Ino,
    },
    /// Not an operation on the tree.
    Other(#[expect(dead_code, reason = "the history shows it")] NonTreeAction),
    /// Removes a session if it still has this heartbeat.
    Remove {
        session: SessionId,
        heartbeat: i64,
    },
}

impl Step {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Step::Lookup { .. } | Step::Stat { .. } | Step::ListXattrs { .. })
    }
}

/// The actions of a client that are not operations on the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonTreeAction {
    Start,
    Rejoin,
    Renew,
    LeaseSlices,
    ReadRows,
    Collect,
    Gc,
    ApplyRemote,
    CutStream,
}

/// The reply of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nothing,
    Ino(Ino),
    Unlinked(Ino, UnlinkOutcome),
    Moved {
        moved: Ino,
        exchanged: Option<Ino>,
        replaced: Option<(Ino, UnlinkOutcome)>,
    },
    Number(u64),
    /// The inode that a name refers to, with its attributes.
    Found(Option<(Ino, Seen)>),
    Xattrs(Values),
}

/// The attributes of an inode that are in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) is_dir: bool,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
}

/// The result of a step for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Done(Reply),
    /// The operation failed with this errno.
    Error(Errno),
    /// Indeterminate: it may have happened, or may still happen.
    InDoubt,
    /// It did not happen and never will.
    Failed,
    /// The session was lost; it did not happen and never will.
    Fenced,
}

pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Draws an act on the inodes that exist now.
pub(crate) fn draw(rng: &mut Rng, engine: &MemEngine) -> Act {
    if !quotas::all(engine).is_empty() && rng.one_in(25) {
        return Act::Step(Step::SetLimits { quota: rng.below(2), limits: Limits::draw(rng) });
    }
    let mut dirs = Vec::new();
    let mut files = Vec::new();
    scan_all(
        engine,
        |after| Scan::Inodes { after, limit: 1000 },
        Ino(0),
        |record| {
            if let Record::Inode(ino, Some(inode)) = record {
                if inode.kind == FileType::Directory {
                    dirs.push(*ino)
                } else {
                    files.push(*ino)
                }
                return Some(*ino);
            }
            None
        },
    );
    let dir = rng.pick(&dirs);
    let to = if rng.one_in(2) { dir } else { rng.pick(&dirs) };
    let (name, new_name) = (rng.pick(&NAMES), rng.pick(&NAMES));
    let mode = rng.pick(&[0o644, 0o755, 0o600, 0o700]);
    let number = rng.below(2) as u64;
    let flock = rng.one_in(2);
    let flags = match rng.below(10) {
        0..6 => RenameFlags { no_replace: false, exchange: false },
        6..8 => RenameFlags { no_replace: true, exchange: false },
        _ => RenameFlags { no_replace: false, exchange: true },
    };
    let offset = rng.pick(&[0, 4, 8, CHUNK_BYTES - 8, CHUNK_BYTES]);
    let to_offset = rng.pick(&[0, 4, 16, CHUNK_BYTES - 4]);
    let len = rng.pick(&[4, 8]);
    let inline = rng.one_in(3);
    let exclusive = !rng.one_in(3);
    let value = Value::draw(rng);
    let xattr_mode = rng.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
    let xattr = xattrs::name(rng.below(4) as u8);
    let roll = rng.below(187);
    match roll {
        100..104 => return Act::Renew,
        104..107 => return Act::RemoveOthers,
        107..110 => return Act::Clean,
        110..112 => return Act::ReapOwn,
        112..121 => return Act::ApplyRemote,
        121 => return Act::CutStream,
        122..125 => return Act::Collect,
        125..130 => return Act::GoOn,
        130..145 => return Act::ApplyRemote,
        145..155 => return Act::Step(Step::Lookup { dir, name }),
        155..158 => return Act::Step(Step::Stat { ino: dir }),
        0..10 => return Act::Make { dir, name, is_dir: true, mode },
        10..20 => return Act::Make { dir, name, is_dir: false, mode },
        20..28 => return Act::Step(Step::Rmdir { dir, name }),
        28..42 => return Act::Step(Step::Rename { dir, name, to, new_name, flags }),
        42..50 => return Act::Step(Step::Lookup { dir, name }),
        _ if files.is_empty() => return Act::Make { dir, name, is_dir: false, mode },
        _ => {}
    }
    let (ino, from) = (rng.pick(&files), rng.pick(&files));
    match roll {
        50..54 => Act::Link { ino, dir, name },
        54..60 => Act::Step(Step::Unlink { dir, name, open: None }),
        60..63 => Act::Step(Step::Unlink { dir, name, open: Some(ino) }),
        63..66 => Act::Step(Step::Chmod { ino: rng.pick(&[dir, ino]), mode }),
        66..69 => Act::Step(Step::Truncate { ino, size: rng.pick(&[0, 3, 8, CHUNK_BYTES - 2]) }),
        69..79 => Act::Write { ino, offset, len, inline },
        79..83 => Act::Append { ino, len },
        83..89 => Act::Step(Step::Copy { from, offset, to: ino, to_offset, len: 16 }),
        89..91 => Act::Compact { ino },
        91..95 | 160..170 => Act::Lock { ino, number, flock, exclusive },
        95..97 => Act::Unlock { ino, number, flock },
        170 => Act::FillXattrs { ino },
        171..179 => Act::Step(Step::SetXattr { ino, name: xattr, value, mode: xattr_mode }),
        179..183 => Act::Step(Step::RemoveXattr { ino, name: xattr }),
        183..187 => Act::Step(Step::ListXattrs { ino: rng.pick(&[dir, ino]) }),
        _ => Act::Step(Step::Stat { ino }),
    }
}
