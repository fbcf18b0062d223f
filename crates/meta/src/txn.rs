//! Minitransactions: what must hold, and what then happens.
//!
//! Guards are all checked first, then all effects applied, atomically. An effect cannot fail: whatever can fail is a
//! guard. Effects on hot fields commute ([`Effect::AddLinks`], [`Effect::Extend`], [`Effect::AppendSlice`]), so that
//! creates in one directory never conflict; the others are guarded by [`Guard::Access`], whose revision orders them.

use std::sync::Arc;

use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, OpId, SessionId, Slice, SliceId, SliceSource, Term, Time,
    XattrName,
};

use crate::lock::{Lock, LockOwner};
use crate::record::{Counter, LockWait, Node, Session, Want};

/// What an operation decided, ready for an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    pub op_id: OpId,
    pub guards: Vec<Guard>,
    pub effects: Vec<Effect>,
}

impl Txn {
    /// The inodes whose nodes it changes, each once, in the order of first change.
    pub fn changed_nodes(&self) -> Vec<Ino> {
        let mut changed = Vec::new();
        for ino in self.effects.iter().filter_map(Effect::changed_node) {
            if !changed.contains(&ino) {
                changed.push(ino);
            }
        }
        changed
    }

    /// The session and term until whose end its result is kept: those of its id, if they guard it. The result of a
    /// transaction that itself ends its term or removes its session may go with that.
    pub fn kept_by(&self) -> Option<(SessionId, Term)> {
        let own = (self.op_id.session(), self.op_id.term());
        let is_own =
            |guard: &Guard| matches!(guard, Guard::Term { session, term } if (*session, *term) == own);
        let ends = |effect: &Effect| match effect {
            Effect::DropSession { session } => *session == own.0,
            Effect::BeginTerm { session, ended, .. } => *session == own.0 && ended.contains(&own.1),
            _ => false,
        };
        (self.guards.iter().any(is_own) && !self.effects.iter().any(ends)).then_some(own)
    }
}

/// A condition on the records; a transaction whose guards do not all hold does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The directory entry is there and refers to `ino`.
    EdgeIs {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    EdgeAbsent {
        parent: Ino,
        name: Name,
    },
    /// The inode is there and its access revision is `rev`.
    Access {
        ino: Ino,
        rev: u64,
    },
    NodeAbsent {
        ino: Ino,
    },
    /// The inode is there and has just `nlink` links.
    Links {
        ino: Ino,
        nlink: u32,
    },
    /// The directory is there and lies in `parent`.
    ParentIs {
        ino: Ino,
        parent: Ino,
    },
    /// No entry lies in the directory.
    Empty {
        ino: Ino,
    },
    /// Whether the inode has that extended attribute.
    Xattr {
        ino: Ino,
        name: XattrName,
        present: bool,
    },
    /// The setting's value, or its absence.
    Setting {
        name: &'static str,
        value: Option<String>,
    },
    Counter {
        counter: Counter,
        value: u64,
    },
    /// The inode is there and so many bytes long.
    Size {
        ino: Ino,
        size: u64,
    },
    /// The inode is there and its locks are just these, in order.
    Locks {
        ino: Ino,
        locks: Arc<[Lock]>,
    },
    /// The chunk's oldest rows are just these; newer ones may follow.
    Rows {
        ino: Ino,
        chunk: ChunkIndex,
        rows: Arc<[Slice]>,
    },
    /// One more inode fits below `max_inodes`, and the blocks in use are below `max_blocks`.
    Room {
        max_inodes: u64,
        max_blocks: u64,
    },
    /// The session's record is there and, if given, this is its latest heartbeat. It is decided together with the effects:
    /// a commit that removes the session comes entirely before or entirely after.
    Session {
        session: SessionId,
        heartbeat: Option<Time>,
    },
    /// This term of the session is open. It is decided together with the effects: a commit that ends the term, or removes
    /// the session, comes entirely before or entirely after. If it does not hold, the session's record tells whether the
    /// session is gone, or is there and the term has ended. Every change of a mount carries it, so it costs no round trip,
    /// and such commits meet neither each other nor renewals.
    Term {
        session: SessionId,
        term: Term,
    },
}

impl Guard {
    /// The record that decides the guard: what a conflict reads afresh.
    pub fn want(&self) -> Want {
        match self {
            Guard::EdgeIs { parent, name, .. } | Guard::EdgeAbsent { parent, name } => {
                Want::Entry(*parent, name.clone())
            }
            Guard::Access { ino, .. }
            | Guard::NodeAbsent { ino }
            | Guard::Links { ino, .. }
            | Guard::Size { ino, .. }
            | Guard::ParentIs { ino, .. } => Want::Node(*ino),
            Guard::Empty { ino } => Want::Empty(*ino),
            Guard::Xattr { ino, .. } => Want::Xattrs(*ino),
            Guard::Setting { .. } => Want::Settings,
            Guard::Counter { counter, .. } => Want::Counter(*counter),
            Guard::Rows { ino, chunk, .. } => Want::Slices(*ino, *chunk),
            Guard::Locks { ino, .. } => Want::Locks(*ino),
            Guard::Room { .. } => Want::Usage,
            Guard::Session { session, .. } | Guard::Term { session, .. } => Want::Session(*session),
        }
    }
}

/// A change to the records. Where it names an inode or row that is not there, it does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A new inode; one that is there is replaced.
    PutNode(Node),
    /// The inode goes, and with it its symlink target, xattrs, locks and slices; slices in the object store become garbage.
    DropNode {
        ino: Ino,
    },
    /// The entry is made, or refers to another inode from now on.
    PutEdge {
        parent: Ino,
        name: Name,
        ino: Ino,
        kind: FileType,
    },
    DropEdge {
        parent: Ino,
        name: Name,
    },
    /// All that access depends on; the access revision moves by one.
    SetAccess {
        ino: Ino,
        access: Access,
    },
    SetParent {
        ino: Ino,
        parent: Ino,
    },
    AddLinks {
        ino: Ino,
        delta: i32,
    },
    /// The times given are taken over, whatever stood there, but for ctime: that never goes back, for a flush brings the
    /// time of its last write, and another change may have committed since that write or while the flush was planned.
    Touch {
        ino: Ino,
        atime: Option<Time>,
        mtime: Option<Time>,
        ctime: Option<Time>,
    },
    SetSize {
        ino: Ino,
        size: u64,
    },
    /// The size becomes the larger of the two.
    Extend {
        ino: Ino,
        size: u64,
    },
    AppendSlice {
        ino: Ino,
        chunk: ChunkIndex,
        slice: Slice,
    },
    /// The rows of the chunks from `from` on and before `to` go; slices in the object store that no other row refers to
    /// become garbage.
    DropSlices {
        ino: Ino,
        from: ChunkIndex,
        to: ChunkIndex,
    },
    /// The chunk's `count` oldest rows go as by [`Effect::DropSlices`], and `rows`, no more than these, stand in their
    /// place: before all newer ones.
    ReplaceRows {
        ino: Ino,
        chunk: ChunkIndex,
        count: u32,
        rows: Arc<[Slice]>,
    },
    /// One row more than so far refers to the slice: it becomes garbage only when that many have gone. The count stays,
    /// at 0, while one row is left: a scan of all inodes may miss a slice whose rows move meanwhile from one inode to
    /// another, but a later scan of the counts then finds it.
    Share {
        slice: SliceId,
    },
    PutXattr {
        ino: Ino,
        name: XattrName,
        value: Arc<[u8]>,
    },
    DropXattr {
        ino: Ino,
        name: XattrName,
    },
    /// An ACL in its storage form under its content hash; nothing happens if it is there.
    PutAcl {
        id: AclId,
        text: Arc<str>,
    },
    PutSymlink {
        ino: Ino,
        target: Arc<[u8]>,
    },
    /// The inode has no name, but `session` has it open.
    PutOrphan {
        session: SessionId,
        ino: Ino,
    },
    DropOrphan {
        session: SessionId,
        ino: Ino,
    },
    /// The session begins, or is renewed; its renewal is guarded by [`Guard::Session`].
    PutSession(Session),
    /// The session goes, and with it its terms and the results of their operations.
    DropSession {
        session: SessionId,
    },
    /// If the session is on record, `term` is open from now on, and the terms `ended` are not: the results of their
    /// operations go, and none of these operations is applied after this.
    BeginTerm {
        session: SessionId,
        term: Term,
        ended: Arc<[Term]>,
    },
    /// All locks on the inode are these from now on.
    PutLocks {
        ino: Ino,
        locks: Arc<[Lock]>,
    },
    /// The owner waits for this lock, and for no other.
    PutWait(LockWait),
    DropWait {
        owner: LockOwner,
    },
    /// The slice's blocks are gone from the object store.
    DropGarbage {
        slice: SliceId,
    },
    PutSetting {
        name: &'static str,
        value: String,
    },
    SetCounter {
        counter: Counter,
        value: u64,
    },
    /// Corrects [`Usage`](crate::Usage) where it does not follow from the inodes, as only damage can have it. It does not
    /// go below 0.
    AddUsage {
        inodes: i64,
        blocks: i64,
    },
}

/// The fields of a node that access depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub access_acl: AclId,
    pub default_acl: AclId,
}

impl From<&Node> for Access {
    fn from(node: &Node) -> Self {
        Access {
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            access_acl: node.access_acl,
            default_acl: node.default_acl,
        }
    }
}

/// A setting of so many bytes does not count as something new.
const SMALL_SETTING_BYTES: usize = 1024;

impl Effect {
    /// Whether the effect stores something that was not there: an inode, a name, data, an attribute, an ACL. An engine may
    /// refuse these with ENOSPC while it keeps room for the others, which remove something, change a record in place, or
    /// are bounded by the number of mounts and open files.
    pub fn adds(&self) -> bool {
        match self {
            Effect::AppendSlice { slice, .. } => slice.source != SliceSource::Hole,
            Effect::PutNode(_)
            | Effect::PutEdge { .. }
            | Effect::ReplaceRows { .. }
            | Effect::Share { .. }
            | Effect::PutXattr { .. }
            | Effect::PutAcl { .. }
            | Effect::PutSymlink { .. } => true,
            // There are few of them, and a tool has to announce itself.
            Effect::PutSetting { value, .. } => value.len() > SMALL_SETTING_BYTES,
            _ => false,
        }
    }

    /// Applies the effect to the node it changes: the one definition that engines and caches share. Effects that
    /// change no field of an existing node return `false`.
    pub fn apply_to(&self, node: &mut Node) -> bool {
        match *self {
            Effect::SetAccess { ref access, .. } => {
                node.mode = access.mode;
                node.uid = access.uid;
                node.gid = access.gid;
                node.access_acl = access.access_acl;
                node.default_acl = access.default_acl;
                node.access_rev += 1;
            }
            Effect::SetParent { parent, .. } => node.parent = parent,
            Effect::AddLinks { delta, .. } => node.nlink = node.nlink.saturating_add_signed(delta),
            Effect::Touch { atime, mtime, ctime, .. } => {
                node.atime = atime.unwrap_or(node.atime);
                node.mtime = mtime.unwrap_or(node.mtime);
                node.ctime = ctime.map_or(node.ctime, |ctime| ctime.max(node.ctime));
            }
            Effect::SetSize { size, .. } => node.size = size,
            Effect::Extend { size, .. } => node.size = node.size.max(size),
            _ => return false,
        }
        true
    }

    /// The existing inode whose node record [`Effect::apply_to`] changes.
    pub fn changed_node(&self) -> Option<Ino> {
        match *self {
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::Touch { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. } => Some(ino),
            _ => None,
        }
    }
}
