//! Transactions, in the form of minitransactions (Sinfonia, SOSP 2007): guards, which are conditions on the
//! records, and effects, which are the changes to make if all guards hold.
//!
//! An engine checks all guards of a transaction, then applies all its effects, atomically. Effects cannot
//! fail: every condition that can fail is a guard. Effects on contended fields commute ([`Effect::AddLinks`],
//! [`Effect::Extend`], [`Effect::AppendSlice`]), so creates in one directory never conflict. Operations guard
//! [`Effect::SetAccess`] by [`Guard::Access`], whose revision serializes changes of access.
//!
//! Transactions can be written to a mount's journal (the crate `journal`), except those that concern
//! settings.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, OpId, QuotaId, SessionId, Slice, SliceId, SliceSource,
    Term, Time, XattrName,
};

use crate::lock::{Lock, LockOwner};
use crate::quota::{QuotaKey, QuotaRule, QuotaTag};
use crate::record::{Counter, Inode, LockWait, RecordKey, Session};

/// The name of a setting.
pub type SettingName = &'static str;

/// Fails to serialize the name of a setting, because a `&'static str` cannot be deserialized. A transaction
/// with such a name needs no journal, because its caller is answered only after the commit.
mod unwritten {
    use serde::{Deserializer, Serializer, de, ser};

    use super::SettingName;

    pub(super) fn serialize<S: Serializer>(_: &SettingName, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom("a transaction that names a setting cannot be written to a journal"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(_: D) -> Result<SettingName, D::Error> {
        Err(de::Error::custom("a transaction in a journal cannot name a setting"))
    }
}

/// A transaction: the guards and effects that an operation has planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    pub op_id: OpId,
    pub guards: Vec<Guard>,
    pub effects: Vec<Effect>,
}

impl Txn {
    /// The inodes whose records the transaction changes, each once, in the order of the first change.
    pub fn changed_inodes(&self) -> Vec<Ino> {
        let mut changed = Vec::new();
        for ino in self.effects.iter().filter_map(Effect::changed_inode) {
            if !changed.contains(&ino) {
                changed.push(ino);
            }
        }
        changed
    }

    /// The session and term that keep the transaction's result: the ones in its operation id, if a guard of
    /// the transaction names them. `None` if the transaction itself ends that term or removes that session,
    /// because the result may be dropped together with the term.
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

/// A condition on the records. If any guard of a transaction does not hold, the transaction changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guard {
    /// The directory entry exists and refers to `ino`.
    DirentIs { parent: Ino, name: Name, ino: Ino },
    /// The directory has no such entry.
    DirentAbsent { parent: Ino, name: Name },
    /// The inode exists and its access revision is `rev`.
    Access { ino: Ino, rev: u64 },
    /// The inode does not exist.
    InodeAbsent { ino: Ino },
    /// The inode exists and its link count is exactly `nlink`.
    Links { ino: Ino, nlink: u32 },
    /// The directory exists and its parent is `parent`.
    ParentIs { ino: Ino, parent: Ino },
    /// The directory has no entries.
    Empty { ino: Ino },
    /// The extended attribute has this size in blocks ([`xattr_blocks`](crate::xattr_blocks)); 0 if it does
    /// not exist.
    Xattr { ino: Ino, name: XattrName, blocks: u16 },
    /// The inode exists and its extended attributes take at least `least` and at most `most` blocks.
    XattrBlocks { ino: Ino, least: u16, most: u16 },
    /// The setting has exactly this value; `None`: the setting does not exist.
    Setting {
        #[serde(with = "unwritten")]
        name: SettingName,
        value: Option<String>,
    },
    /// The counter has exactly this value.
    Counter { counter: Counter, value: u64 },
    /// The inode exists and its size is exactly `size` bytes.
    Size { ino: Ino, size: u64 },
    /// The inode exists and its locks are exactly these, in order.
    Locks { ino: Ino, locks: Arc<[Lock]> },
    /// The oldest rows of the chunk are exactly these; newer rows may follow.
    Rows { ino: Ino, chunk: ChunkIndex, rows: Arc<[Slice]> },
    /// The volume has fewer than `max_inodes` inodes, and fewer than `max_blocks` blocks in use.
    Room { max_inodes: u64, max_blocks: u64 },
    /// This many more inodes and blocks fit below the hard limits of the quota
    /// ([`Quota::fits`](crate::Quota::fits); 0 always fits). If `outer` is given, the quota must exist and
    /// have this outer quota. If `outer` is not given, the guard holds for a quota that does not exist,
    /// because it has no limits. The guard is serialized with [`Effect::Charge`] on the same quota, so the
    /// limit is never exceeded, however many clients commit. The guard must cost no extra round trip, and
    /// commits with it must not deadlock: an engine that uses locks takes the locks of quotas in the order of
    /// their keys.
    Quota { key: QuotaKey, outer: Option<QuotaId>, inodes: u64, blocks: u64 },
    /// The session exists and, if `heartbeat` is given, its latest heartbeat is exactly this. The guard is
    /// serialized with the removal of the session: a commit that removes the session comes entirely before or
    /// entirely after this transaction.
    Session { session: SessionId, heartbeat: Option<Time> },
    /// The term of the session is open. The guard is serialized with the end of the term: a commit that ends
    /// the term or removes the session comes entirely before or entirely after this transaction. If the guard
    /// does not hold, the session's record tells why: either the session does not exist, or it exists and the
    /// term has ended. Every change of a mount carries this guard. So the guard must cost no extra round
    /// trip, and commits with it must conflict neither with each other nor with renewals of the session.
    Term { session: SessionId, term: Term },
    /// The ACL is stored and not condemned. The guard is serialized with [`Effect::CondemnAcl`]: that commit
    /// comes entirely before or entirely after this transaction. Each transaction that makes an inode refer
    /// to an ACL carries this guard or [`Effect::PutAcl`]. So the guard must cost no extra round trip, and
    /// such commits must not conflict with each other.
    Acl { id: AclId },
}

impl Guard {
    /// The key of the record that decides the guard. If a guard of a transaction does not hold, an engine
    /// returns these records.
    pub fn key(&self) -> RecordKey {
        match self {
            Guard::DirentIs { parent, name, .. } | Guard::DirentAbsent { parent, name } => {
                RecordKey::Dirent(*parent, name.clone())
            }
            Guard::Access { ino, .. }
            | Guard::InodeAbsent { ino }
            | Guard::Links { ino, .. }
            | Guard::Size { ino, .. }
            | Guard::XattrBlocks { ino, .. }
            | Guard::ParentIs { ino, .. } => RecordKey::Inode(*ino),
            Guard::Empty { ino } => RecordKey::Empty(*ino),
            Guard::Xattr { ino, .. } => RecordKey::Xattrs(*ino),
            Guard::Setting { .. } => RecordKey::Settings,
            Guard::Counter { counter, .. } => RecordKey::Counter(*counter),
            Guard::Rows { ino, chunk, .. } => RecordKey::Slices(*ino, *chunk),
            Guard::Locks { ino, .. } => RecordKey::Locks(*ino),
            Guard::Room { .. } => RecordKey::Usage,
            Guard::Quota { key, .. } => RecordKey::Quota(*key),
            Guard::Session { session, .. } | Guard::Term { session, .. } => RecordKey::Session(*session),
            Guard::Acl { id } => RecordKey::Acl(*id),
        }
    }
}

/// The character that engines store before the text of a condemned ACL. No storage form of an ACL begins with
/// it.
pub const CONDEMNED: char = '!';

/// A change to the records. If an effect adds to, changes or removes an inode or row that does not exist, it
/// does nothing. Directory entries and orphans are separate records: they can be stored although the inodes
/// that they name do not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Creates the inode; an existing one is replaced.
    PutInode(Inode),
    /// Removes the inode with its symlink target, xattrs, locks and slices. Its slices in the object store
    /// become garbage, except those that other rows refer to.
    DropInode { ino: Ino },
    /// Creates the directory entry, or makes an existing one refer to `ino`.
    PutDirent { parent: Ino, name: Name, ino: Ino, kind: FileType },
    /// Removes the directory entry.
    DropDirent { parent: Ino, name: Name },
    /// Sets all fields that access depends on, and the quota tag, and increments the access revision by one.
    SetAccess { ino: Ino, access: Access },
    /// Sets the recorded parent of a directory.
    SetParent { ino: Ino, parent: Ino },
    /// Adds `delta` to the link count. The result saturates instead of overflowing.
    AddLinks { ino: Ino, delta: i32 },
    /// Sets the given times. atime and mtime are set unconditionally, as on ext4: if the mtime of a directory
    /// is in the future, the next create sets it to the present. ctime never goes back: a flush sets the time
    /// of its last write, but another change with a later ctime may have committed since that write.
    SetTimes { ino: Ino, atime: Option<Time>, mtime: Option<Time>, ctime: Option<Time> },
    /// Sets the size in bytes. The rows of the file are not changed.
    SetSize { ino: Ino, size: u64 },
    /// Sets the size to the larger of the current size and `size`.
    Extend { ino: Ino, size: u64 },
    /// Appends a row to the chunk; it becomes the newest one.
    AppendSlice { ino: Ino, chunk: ChunkIndex, slice: Slice },
    /// Removes the rows of the chunks in `from..to`. Their slices in the object store become garbage, except
    /// those that other rows refer to.
    DropSlices { ino: Ino, from: ChunkIndex, to: ChunkIndex },
    /// Replaces the `count` oldest rows of the chunk by `rows`, which are at most `count` rows. The new rows
    /// come before all newer rows. The slices of the removed rows are released as by [`Effect::DropSlices`].
    ReplaceRows { ino: Ino, chunk: ChunkIndex, count: u32, rows: Arc<[Slice]> },
    /// Adds `rows` to the number of rows that refer to the slice. The slice becomes garbage only when the
    /// last of its rows is removed. The stored count leaves out the first row, and it remains stored as 0
    /// while one row is left, because a scan of all inodes can miss a slice whose row moves from one inode to
    /// another during the scan. A later scan of the counts then finds the slice.
    Share { slice: SliceId, rows: u32 },
    /// Creates or replaces an xattr.
    PutXattr {
        ino: Ino,
        name: XattrName,
        #[serde(with = "types::bytes")]
        value: Arc<[u8]>,
    },
    /// Removes an xattr.
    DropXattr { ino: Ino, name: XattrName },
    /// Adds `delta` to the xattr blocks of the inode. It accompanies each [`Effect::PutXattr`] and
    /// [`Effect::DropXattr`] that changes the size of an attribute; [`Guard::Xattr`] ensures that `delta` is
    /// exact.
    AddXattrBlocks { ino: Ino, delta: i32 },
    /// Stores an ACL in its storage form under its content hash. If it is stored already, it is kept, and is
    /// not condemned any more. Like [`Guard::Acl`], the effect is serialized with [`Effect::CondemnAcl`].
    PutAcl { id: AclId, text: Arc<str> },
    /// Condemns an ACL, if it is stored, so that [`Effect::DropAcl`] may remove it. A condemned ACL can still
    /// be read.
    CondemnAcl { id: AclId },
    /// Removes an ACL, if it is condemned.
    DropAcl { id: AclId },
    /// Sets the target of a symbolic link.
    PutSymlink {
        ino: Ino,
        #[serde(with = "types::bytes")]
        target: Arc<[u8]>,
    },
    /// Records that the inode has no name left, but `session` has it open.
    PutOrphan { session: SessionId, ino: Ino },
    /// Removes the record of [`Effect::PutOrphan`].
    DropOrphan { session: SessionId, ino: Ino },
    /// Creates or renews the session. A renewal is guarded by [`Guard::Session`].
    PutSession(Session),
    /// Removes the session, its terms, and the results of their operations.
    DropSession { session: SessionId },
    /// If the session exists, opens `term` and ends the terms in `ended`. The results of the operations of an
    /// ended term are dropped, and none of these operations is applied afterwards.
    BeginTerm { session: SessionId, term: Term, ended: Arc<[Term]> },
    /// Sets all locks on the inode.
    PutLocks { ino: Ino, locks: Arc<[Lock]> },
    /// Records that the owner waits for this lock. This replaces any other wait of the owner.
    PutWait(LockWait),
    /// Removes the record of the owner's wait.
    DropWait { owner: LockOwner },
    /// Removes the slice from the garbage, because its blocks are no longer in the object store.
    DropGarbage { slice: SliceId },
    /// Creates or replaces a setting.
    PutSetting {
        #[serde(with = "unwritten")]
        name: SettingName,
        value: String,
    },
    /// Sets the value of a counter.
    SetCounter { counter: Counter, value: u64 },
    /// Corrects [`Usage`](crate::Usage) after damage; without damage, the usage always equals the sum over
    /// the inodes. The result does not go below 0.
    AddUsage { inodes: i64, blocks: i64 },
    /// Sets the rule of the quota and keeps its counters. Creates a quota that does not exist, with counters
    /// of 0.
    PutQuota { key: QuotaKey, rule: QuotaRule },
    /// Removes the quota with its counters.
    DropQuota { key: QuotaKey },
    /// Adds to the counters of the quota, which may become negative. Creates a quota that does not exist,
    /// with [`QuotaRule::default`], which has no limits. Charges commute. The effect ignores limits, which
    /// [`Guard::Quota`] checks.
    Charge { key: QuotaKey, inodes: i64, blocks: i64 },
}

/// The fields of an inode that access depends on, and its quota tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub access_acl: AclId,
    pub default_acl: AclId,
    pub quota: QuotaTag,
}

impl From<&Inode> for Access {
    fn from(inode: &Inode) -> Self {
        Access {
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            access_acl: inode.access_acl,
            default_acl: inode.default_acl,
            quota: inode.quota,
        }
    }
}

/// A setting of at most this size does not count as an addition ([`Effect::adds`]).
const SMALL_SETTING_BYTES: usize = 1024;

impl Effect {
    /// Whether the effect stores something new: an inode, a name, data, an attribute or an ACL. If little
    /// room is left, an engine may fail transactions with such effects with ENOSPC, so that room remains for
    /// the other effects. The other effects remove something, change a record in place, or are bounded by the
    /// number of mounts and open files.
    pub fn adds(&self) -> bool {
        match self {
            Effect::AppendSlice { slice, .. } => slice.source != SliceSource::Hole,
            Effect::PutInode(_)
            | Effect::PutDirent { .. }
            | Effect::ReplaceRows { .. }
            | Effect::Share { .. }
            | Effect::PutXattr { .. }
            | Effect::PutAcl { .. }
            | Effect::PutSymlink { .. }
            | Effect::PutQuota { .. } => true,
            // Settings are few, and a tool must be able to announce itself on a full disk.
            Effect::PutSetting { value, .. } => value.len() > SMALL_SETTING_BYTES,
            _ => false,
        }
    }

    /// Applies the effect to the inode that it changes. Engines and caches share this definition. Some
    /// engines compute the result on the server instead; the suite compares them with this definition by
    /// random transactions. Returns `false` for an effect that changes no field of an existing inode.
    pub fn apply_to(&self, inode: &mut Inode) -> bool {
        match *self {
            Effect::SetAccess { ref access, .. } => {
                inode.mode = access.mode;
                inode.uid = access.uid;
                inode.gid = access.gid;
                inode.access_acl = access.access_acl;
                inode.default_acl = access.default_acl;
                inode.quota = access.quota;
                inode.access_rev += 1;
            }
            Effect::SetParent { parent, .. } => inode.parent = parent,
            Effect::AddLinks { delta, .. } => inode.nlink = inode.nlink.saturating_add_signed(delta),
            Effect::SetTimes { atime, mtime, ctime, .. } => {
                inode.atime = atime.unwrap_or(inode.atime);
                inode.mtime = mtime.unwrap_or(inode.mtime);
                inode.ctime = ctime.map_or(inode.ctime, |ctime| ctime.max(inode.ctime));
            }
            Effect::SetSize { size, .. } => inode.size = size,
            Effect::Extend { size, .. } => inode.size = inode.size.max(size),
            Effect::AddXattrBlocks { delta, .. } => {
                let blocks = i32::from(inode.xattr_blocks).saturating_add(delta);
                inode.xattr_blocks = blocks.clamp(0, u16::MAX.into()) as u16;
            }
            _ => return false,
        }
        true
    }
}
