//! What clients do: acts as the scheduler draws them, and steps as a client carries them out.

use std::sync::Arc;

use meta::ops::{Fate, RenameFlags};
use meta::{LockOwner, MemEngine, Record, Scan};
use types::{CHUNK_BYTES, Errno, FileType, Ino, SessionId, Slice, SliceSource};

use crate::dice::Dice;
use crate::world::scan_all;

/// What a thread is told to do.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) act: Act,
    /// A client that was found to be fenced begins a new session first.
    pub(crate) rejoin: bool,
    /// How long a failed request is repeated: not at all, or until it succeeds.
    pub(crate) patient: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The process starts: opens the volume and begins a session.
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
    /// A step that needs nothing of the client.
    Step(Step),
    /// A write in doubt is repeated.
    GoOn,
    Renew,
    /// The sessions of others are looked at, and later removed with the heartbeats that were seen.
    RemoveOthers,
    /// What sessions left that are not on record is removed.
    Clean,
    ReapOwn,
    /// What the stream of changes brought is taken in.
    Hear,
    CutStream,
    /// Garbage is removed from the object store.
    Collect,
    /// Objects that nothing refers to are removed, as by `limen gc`.
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
    Lookup {
        dir: Ino,
        name: &'static str,
    },
    Stat {
        ino: Ino,
    },
    /// Not an operation on the tree.
    Other(#[expect(dead_code, reason = "the history shows it")] Beside),
    /// A session is to be removed if this is its heartbeat.
    Remove {
        session: SessionId,
        heartbeat: i64,
    },
}

/// What a client does beside operations on the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Start,
    Rejoin,
    Renew,
    LeaseSlices,
    ReadRows,
    Collect,
    Gc,
    Hear,
    CutStream,
}

/// What a step replied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nothing,
    Ino(Ino),
    Unlinked(Ino, Fate),
    Moved {
        moved: Ino,
        exchanged: Option<Ino>,
        replaced: Option<(Ino, Fate)>,
    },
    Number(u64),
    /// What a name refers to, with the inode's attributes.
    Found(Option<(Ino, Seen)>),
}

/// The attributes of an inode that the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) is_dir: bool,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
}

/// How a step ended for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Done(Reply),
    Refused(Errno),
    /// It may have happened, or may happen.
    Doubt,
    /// It has not happened and never will.
    Failed,
    /// The session was gone; it has not happened and never will.
    Fenced,
}

pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// An act against what is there at this moment.
pub(crate) fn draw(dice: &mut Dice, engine: &MemEngine) -> Act {
    let mut dirs = Vec::new();
    let mut files = Vec::new();
    scan_all(
        engine,
        |after| Scan::Nodes { after, limit: 1000 },
        Ino(0),
        |record| {
            if let Record::Node(ino, Some(node)) = record {
                if node.kind == FileType::Directory {
                    dirs.push(*ino)
                } else {
                    files.push(*ino)
                }
                return Some(*ino);
            }
            None
        },
    );
    let dir = dice.pick(&dirs);
    let to = if dice.one_in(2) { dir } else { dice.pick(&dirs) };
    let (name, new_name) = (dice.pick(&NAMES), dice.pick(&NAMES));
    let mode = dice.pick(&[0o644, 0o755, 0o600, 0o700]);
    let number = dice.below(2) as u64;
    let flock = dice.one_in(2);
    let flags = match dice.below(10) {
        0..6 => RenameFlags { no_replace: false, exchange: false },
        6..8 => RenameFlags { no_replace: true, exchange: false },
        _ => RenameFlags { no_replace: false, exchange: true },
    };
    let offset = dice.pick(&[0, 4, 8, CHUNK_BYTES - 8, CHUNK_BYTES]);
    let to_offset = dice.pick(&[0, 4, 16, CHUNK_BYTES - 4]);
    let len = dice.pick(&[4, 8]);
    let inline = dice.one_in(3);
    let exclusive = !dice.one_in(3);
    let roll = dice.below(170);
    match roll {
        100..104 => return Act::Renew,
        104..107 => return Act::RemoveOthers,
        107..110 => return Act::Clean,
        110..112 => return Act::ReapOwn,
        112..121 => return Act::Hear,
        121 => return Act::CutStream,
        122..125 => return Act::Collect,
        125..130 => return Act::GoOn,
        130..145 => return Act::Hear,
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
    let (ino, from) = (dice.pick(&files), dice.pick(&files));
    match roll {
        50..54 => Act::Link { ino, dir, name },
        54..60 => Act::Step(Step::Unlink { dir, name, open: None }),
        60..63 => Act::Step(Step::Unlink { dir, name, open: Some(ino) }),
        63..66 => Act::Step(Step::Chmod { ino: dice.pick(&[dir, ino]), mode }),
        66..69 => Act::Step(Step::Truncate { ino, size: dice.pick(&[0, 3, 8, CHUNK_BYTES - 2]) }),
        69..79 => Act::Write { ino, offset, len, inline },
        79..83 => Act::Append { ino, len },
        83..89 => Act::Step(Step::Copy { from, offset, to: ino, to_offset, len: 16 }),
        89..91 => Act::Compact { ino },
        91..95 | 160..170 => Act::Lock { ino, number, flock, exclusive },
        95..97 => Act::Unlock { ino, number, flock },
        _ => Act::Step(Step::Stat { ino }),
    }
}
