//! Queries on the records of a volume, without a mount: the content of a directory, why a user may or may not
//! do something, and what a user may do in the whole volume. Nothing here changes anything.
//!
//! | module | content |
//! |---|---|
//! | `listing` | [`read_dir_plus`]: names, attributes and ACLs of a directory in bulk |
//! | `access_attrs` | the attributes of an inode that access depends on |
//! | `tree`, `local` | the names of a volume, and those of this machine, for walks along a path |
//! | `path_checks` | a path, and every access check on the way |
//! | `check`, `path` | one access check; paths as bytes |
//! | `domains` | the Windows domains that ACLs name |
//! | `evaluate` | the result of a check for a caller, with its reason |
//! | `audit` | every name of a volume, each distinct permission decided once |
//! | `change` | a planned change, applied to the current attributes |

mod access_attrs;
mod audit;
mod change;
mod check;
mod domains;
mod evaluate;
mod listing;
mod local;
mod path;
mod path_checks;
mod query_error;
mod tree;

pub use access_attrs::{AccessAttrs, Nfs4Rules, Rules};
pub use audit::{
    Audit, AuditError, AuditView, Counts, Difference, Kind, OnName, Progress, Rights, Seen, SeenEntry, Start,
    Totals, VisitedName, audit, list_as,
};
pub use change::{ChangeError, Edit, PlannedChange, UserDatabase, parse_change};
pub use check::{Check, Requirement};
pub use domains::Domains;
pub use evaluate::{CheckReason, CheckResult, evaluate};
pub use listing::{DirEntry, ReadDirPlus, read_dir_plus};
pub use local::{LocalTree, MountedRules};
pub use path_checks::{Operation, OperationError, PathAnswer, PathChecks};
pub use query_error::QueryError;
pub use tree::{Tree, TreeFile, VolumeTree};
