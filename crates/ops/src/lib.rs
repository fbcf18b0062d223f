//! The POSIX operations, as pure plans over records. Each rule is written once, with one family of operations
//! in each file.
//!
//! An operation is a struct of its arguments. Its [`plan`](Op::plan) reads records through a [`View`], which
//! turns lookups into guards, and returns effects. It makes its checks in the same order as Linux. The docs
//! list errors in the order in which they are checked. Three rules apply to all operations, and most docs do
//! not repeat them: a capability can override a check; an operation that depends on an ACL fails with EIO if
//! the ACL is missing or damaged; and an operation that adds inodes or blocks fails with EDQUOT, after all
//! other checks, if they do not fit in a quota that limits the operation ([`BoundBy`]).
//!
//! A plan sends nothing and waits for nothing. A view gets its records from any [`KnownRecords`], and the
//! caller commits the effects that the plan returns. So an operation can be tested with a map of records.

mod access;
mod acl;
mod acl_sweep;
mod backup;
mod clone;
mod configure;
mod credential_source;
mod domains;
mod hold;
mod known;
mod lease;
mod link;
mod lock;
mod lock_ranges;
mod maintenance;
mod make;
mod nfs4;
mod nfs4_copy;
mod op;
mod quota;
mod quota_rules;
mod range;
mod read;
mod remove;
mod rename;
mod room;
mod session;
mod set_atimes;
mod setattr;
mod sid_rules;
#[cfg(test)]
mod testing;
mod trash;
mod trash_names;
mod view;
mod write;
mod xattr;

pub use acl::{AclType, RequireMappedAcl, SetAcl};
pub use acl_sweep::{AclSweep, BeginAclSweep, SweepAcls};
pub use backup::{BackupClaim, ClaimBackup, FinishBackup, KnownBackup, RenewBackup};
pub use clone::{
    BeginClone, CLONED_CHUNKS, CloneChunks, CloneEntries, CloneEntry, CloneSource, ClonedEntry, EndClone,
    Prune,
};
pub use configure::{Configure, MoveStore};
pub use credential_source::CredentialSource;
pub use domains::{GetDomains, Numbering, domains_in, reserve_domains};
pub use hold::TakeDirectory;
pub use known::{Acl, InheritKey, Key, KnownRecords, OwnReads, Value, known};
pub use lease::{Housekeeping, Lease};
pub use link::Link;
pub use lock::{DropLocks, FindLock, GetWaits, Locked, StopWaiting, TakeLock, Unlock};
pub use maintenance::{BeginMaintenance, EndMaintenance, FinalMaintenance, GetMaintenance};
pub use make::{Make, MakeKind, MakeOrphan};
pub use nfs4::{CheckAccess, GetDeciding, GetNfs4Acl, GetProjection, Open, OpenAccess, Opened, SetNfs4Acl};
pub use nfs4_copy::{CopiedAcl, CopyAcl};
pub use op::{Authority, BoundBy, Ctx, KernelRevisions, Op, Plan};
pub use quota::{MAX_NESTED_QUOTAS, plan};
pub use quota_rules::{
    BeginQuota, ChangeQuota, CorrectQuotas, DropQuota, GetQuotas, GetQuotasOf, QuotaLimits, Retag, RetagAt,
    Retagged, SetOwnerQuotas, TagChange,
};
pub use range::{Allocate, AllocateMode, Compact, CopyRange};
pub use read::{
    CountedLookup, GetAcl, GetByHandle, GetChunk, GetInode, GetParent, GetSlices, GetUsage, GetXattrs,
    Lookup, ReadLink, StoredChunk,
};
pub use remove::{DeleteOnlyFile, Reap, ReapAll, Rmdir, Unlink, UnlinkOutcome, Unlinked, Unlinks};
pub use rename::{Rename, RenameFlags, Renamed, Whiteout};
pub use session::{BeginSession, BeginTerm, RemoveSession, RenewSession};
pub use set_atimes::{AtimeMode, SetAtimes};
pub use setattr::SetAttr;
pub use sid_rules::{AddSidRule, RemoveSidRules, SidRulesRefusal};
pub use trash::{EmptyTrash, MakeTrash, WithTrash};
pub use trash_names::{TRASH_NAME, TrashDirs, TrashHour, TrashName, is_in_trash};
pub use view::{PlanStop, View};
pub use write::{Append, KillPriv, Write};
pub use xattr::{RemoveXattr, SetXattr, XattrMode};

use meta::Effect;
use types::{Ino, Time};

/// Sets a directory's times after a change of its entries.
fn set_dir_times(ino: Ino, now: Time) -> Effect {
    Effect::SetTimes { ino, atime: None, mtime: Some(now), ctime: Some(now) }
}

/// Sets an inode's ctime after a change of its attributes.
fn set_ctime(ino: Ino, now: Time) -> Effect {
    Effect::SetTimes { ino, atime: None, mtime: None, ctime: Some(now) }
}
