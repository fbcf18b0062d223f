//! The parts of the volume that effects change and guards check. This file alone defines them. The
//! invalidations for other clients (`change.rs`), conflict-free groups (`groups.rs`), and the inodes of an
//! outcome are derived from these definitions. The crate `tables` also derives the locks of a transaction and
//! the stages of its statements from them.

use types::{AclId, Ino, Name, SessionId, SliceId, XattrName};

use crate::lock::LockOwner;
use crate::quota::QuotaKey;
use crate::record::Counter;
use crate::txn::{Effect, Guard};

/// A part of the volume that one effect changes or one guard checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part<'a> {
    /// Whether the inode exists. Everything that is stored with an inode is removed with it.
    Existence(Ino),
    Access(Ino),
    Parent(Ino),
    Links(Ino),
    Times(Ino),
    Size(Ino),
    XattrBlocks(Ino),
    /// The rows of the inode's chunks.
    Rows(Ino),
    Xattr(Ino, &'a XattrName),
    Symlink(Ino),
    Locks(Ino),
    Dirent(Ino, &'a Name),
    /// Whether the directory has entries. Only guards name this part; effects change it by changing dirents.
    Entries(Ino),
    Acl(AclId),
    /// How many rows refer to the slice, and whether it is garbage.
    Slice(SliceId),
    Orphan(SessionId, Ino),
    /// The session and its terms.
    Session(SessionId),
    Wait(LockOwner),
    Setting(&'static str),
    Counter(Counter),
    Usage,
    Quota(QuotaKey),
}

impl Part<'_> {
    /// If the part is a field of an existing inode, that inode.
    pub fn field_of(self) -> Option<Ino> {
        match self {
            Part::Access(ino)
            | Part::Parent(ino)
            | Part::Links(ino)
            | Part::Times(ino)
            | Part::Size(ino)
            | Part::XattrBlocks(ino) => Some(ino),
            _ => None,
        }
    }

    /// The inode that the part is stored with; a dirent is stored with its directory.
    pub fn inode(self) -> Option<Ino> {
        match self {
            Part::Existence(ino)
            | Part::Rows(ino)
            | Part::Xattr(ino, _)
            | Part::Symlink(ino)
            | Part::Locks(ino)
            | Part::Dirent(ino, _)
            | Part::Entries(ino) => Some(ino),
            _ => self.field_of(),
        }
    }

    /// Whether the part is a separate record that each effect on it sets or removes as a whole, or a session,
    /// whose terms are set separately.
    pub fn is_replaced_whole(self) -> bool {
        match self {
            Part::Dirent(..)
            | Part::Xattr(..)
            | Part::Symlink(_)
            | Part::Locks(_)
            | Part::Orphan(..)
            | Part::Session(_)
            | Part::Wait(_)
            | Part::Setting(_)
            | Part::Counter(_) => true,
            // If an ACL is stored twice, the first text is kept, and only a condemned ACL is removed.
            Part::Acl(_) | Part::Entries(_) | Part::Existence(_) | Part::Rows(_) => false,
            Part::Slice(_) | Part::Usage | Part::Quota(_) => false,
            Part::Access(_)
            | Part::Parent(_)
            | Part::Links(_)
            | Part::Times(_)
            | Part::Size(_)
            | Part::XattrBlocks(_) => false,
        }
    }
}

/// The part that an effect changes, and the consequences of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint<'e> {
    pub part: Part<'e>,
    /// Whether several such effects on the same part may be applied together: they commute, or the last one
    /// overrides the others.
    pub commutes: bool,
    /// Whether rows may be removed, so that slices become garbage.
    pub releases_slices: bool,
    /// Whether the volume's usage may change as a consequence.
    pub changes_usage: bool,
}

impl Effect {
    pub fn footprint(&self) -> Footprint<'_> {
        let ordered =
            |part| Footprint { part, commutes: false, releases_slices: false, changes_usage: false };
        let commuting = |part| Footprint { commutes: true, ..ordered(part) };
        match self {
            Effect::PutInode(inode) => Footprint {
                // The inode may replace another one.
                releases_slices: true,
                changes_usage: true,
                ..ordered(Part::Existence(inode.ino))
            },
            Effect::DropInode { ino } => {
                Footprint { releases_slices: true, changes_usage: true, ..ordered(Part::Existence(*ino)) }
            }
            Effect::PutDirent { parent, name, .. } | Effect::DropDirent { parent, name } => {
                ordered(Part::Dirent(*parent, name))
            }
            Effect::SetAccess { ino, .. } => ordered(Part::Access(*ino)),
            Effect::SetParent { ino, .. } => ordered(Part::Parent(*ino)),
            Effect::AddLinks { ino, .. } => commuting(Part::Links(*ino)),
            Effect::SetTimes { ino, .. } => commuting(Part::Times(*ino)),
            Effect::SetSize { ino, .. } => Footprint { changes_usage: true, ..ordered(Part::Size(*ino)) },
            Effect::Extend { ino, .. } => Footprint { changes_usage: true, ..commuting(Part::Size(*ino)) },
            Effect::AppendSlice { ino, .. } => commuting(Part::Rows(*ino)),
            Effect::DropSlices { ino, .. } | Effect::ReplaceRows { ino, .. } => {
                Footprint { releases_slices: true, ..ordered(Part::Rows(*ino)) }
            }
            Effect::Share { slice, .. } | Effect::DropGarbage { slice } => ordered(Part::Slice(*slice)),
            Effect::PutXattr { ino, name, .. } | Effect::DropXattr { ino, name } => {
                ordered(Part::Xattr(*ino, name))
            }
            Effect::AddXattrBlocks { ino, .. } => {
                Footprint { changes_usage: true, ..commuting(Part::XattrBlocks(*ino)) }
            }
            Effect::PutAcl { id, .. } => commuting(Part::Acl(*id)),
            Effect::CondemnAcl { id } | Effect::DropAcl { id } => ordered(Part::Acl(*id)),
            Effect::PutSymlink { ino, .. } => ordered(Part::Symlink(*ino)),
            Effect::PutOrphan { session, ino } | Effect::DropOrphan { session, ino } => {
                ordered(Part::Orphan(*session, *ino))
            }
            Effect::PutSession(session) => ordered(Part::Session(session.id)),
            Effect::DropSession { session } | Effect::BeginTerm { session, .. } => {
                ordered(Part::Session(*session))
            }
            Effect::PutLocks { ino, .. } => ordered(Part::Locks(*ino)),
            Effect::PutWait(wait) => ordered(Part::Wait(wait.lock.owner)),
            Effect::DropWait { owner } => ordered(Part::Wait(*owner)),
            Effect::PutSetting { name, .. } => ordered(Part::Setting(name)),
            Effect::SetCounter { counter, .. } => ordered(Part::Counter(*counter)),
            Effect::AddUsage { .. } => ordered(Part::Usage),
            Effect::PutQuota { key, .. } | Effect::DropQuota { key } => ordered(Part::Quota(*key)),
            Effect::Charge { key, .. } => commuting(Part::Quota(*key)),
        }
    }

    /// The existing inode that [`Effect::apply_to`] changes.
    pub fn changed_inode(&self) -> Option<Ino> {
        self.footprint().part.field_of()
    }
}

impl Guard {
    /// The part that the guard checks. If the part is stored with an inode, the guard also depends on the
    /// existence of the inode, except for [`Part::Dirent`] and [`Part::Entries`].
    pub fn part(&self) -> Part<'_> {
        match self {
            Guard::DirentIs { parent, name, .. } | Guard::DirentAbsent { parent, name } => {
                Part::Dirent(*parent, name)
            }
            Guard::Access { ino, .. } => Part::Access(*ino),
            Guard::InodeAbsent { ino } => Part::Existence(*ino),
            Guard::Links { ino, .. } => Part::Links(*ino),
            Guard::ParentIs { ino, .. } => Part::Parent(*ino),
            Guard::Empty { ino } => Part::Entries(*ino),
            Guard::Xattr { ino, name, .. } => Part::Xattr(*ino, name),
            Guard::XattrBlocks { ino, .. } => Part::XattrBlocks(*ino),
            Guard::Setting { name, .. } => Part::Setting(name),
            Guard::Counter { counter, .. } => Part::Counter(*counter),
            Guard::Size { ino, .. } => Part::Size(*ino),
            Guard::Locks { ino, .. } => Part::Locks(*ino),
            Guard::Rows { ino, .. } => Part::Rows(*ino),
            Guard::Room { .. } => Part::Usage,
            Guard::Quota { key, .. } => Part::Quota(*key),
            Guard::Session { session, .. } | Guard::Term { session, .. } => Part::Session(*session),
            Guard::Acl { id } => Part::Acl(*id),
        }
    }
}
