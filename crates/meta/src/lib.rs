//! The contract between a client and a metadata engine: records, and transactions of guards and effects.
//!
//! An engine implements [`Engine`]. It depends neither on `ops` nor on `client`: it knows no file-system
//! operation, and does not choose the errno with which an operation fails.
//!
//! | module | content |
//! |---|---|
//! | `engine` | the trait [`Engine`], its outcomes and errors |
//! | `txn` | transactions: guards and effects |
//! | `record`, `lock`, `volume` | records and scans; file locks; the settings of a volume |
//! | `quota` | quotas of directories, users and groups |
//! | `backup` | when the metadata was last backed up |
//! | `footprint` | what each effect changes and each guard checks |
//! | `groups` | which transactions of a batch may be applied together |
//! | `change` | which cached records of other clients a commit invalidates |
//! | `changed_keys` | the records that have changed since they were read |
//! | `commit_numbers` | the [`Seq`] of a read, for servers that only number commits |
//! | `results` | results of operations, kept to recognize retries |
//! | `maintenance` | the announcement of a tool that needs exclusive use of the volume |
//! | `mem` | [`MemEngine`], the executable specification |
//! | `wrap` | wrappers, which add batching, counting or a guard to any engine |

mod backup;
mod change;
mod changed_keys;
mod commit_numbers;
mod engine;
mod footprint;
mod groups;
mod lock;
mod maintenance;
mod mem;
mod quota;
mod record;
mod results;
mod txn;
mod volume;
mod wrap;

pub use backup::{DEFAULT_BACKUP_SECS, LastBackup};
pub use change::{Change, Invalidation};
pub use changed_keys::ChangedKeys;
pub use commit_numbers::{CommitNumbers, LOST_FOR};
pub use engine::{Changes, Engine, EngineError, ErrorKind, Outcome, SnapshotReader};
pub use footprint::{Footprint, Part};
pub use groups::{
    certain_charged_before_quota_guard, conflict_free_groups, max_added, max_added_before_room_guard,
    max_charged_before_quota_guard,
};
pub use lock::{Lock, LockKind, LockOwner};
pub use maintenance::Maintenance;
pub use mem::MemEngine;
pub use quota::{Quota, QuotaKey, QuotaRule, QuotaState, QuotaTag};
pub use record::{
    Counter, DIR_BYTES, Dirent, Garbage, Inode, LockWait, Page, Process, Record, RecordKey, Scan,
    ScanInclude, Seq, Session, Settings, Snapshot, Usage, Xattrs, blocks_of, xattr_blocks,
};
pub use results::Results;
pub use txn::{Access, CONDEMNED, Effect, Guard, SettingName, Txn};
pub use volume::{AclKind, DEFAULT_INLINE_BYTES, FORMAT_VERSION, Volume, VolumeError};
pub use wrap::{Announced, Batching, Counting, Counts, Measured};
