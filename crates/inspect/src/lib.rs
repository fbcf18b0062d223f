//! Questions about a volume, answered from its records and without a mount: what is in a directory, why somebody may do
//! something or may not, and who may do what in the whole volume. Nothing here changes anything.
//!
//! | module | what it holds |
//! |---|---|
//! | `listing` | [`read_dir_plus`]: names, attributes and ACLs of a directory in bulk |
//! | `subject` | what access to an inode depends on |
//! | `tree`, `local` | the names of a volume, and those of this machine, for walks along a path |
//! | `route` | a path, and every check that stands on the way |
//! | `domains` | the Windows domains that ACLs name |
//! | `judge` | a check and a caller: granted or not, and by which entry |
//! | `audit` | every name of a volume, each distinct permission decided once |
//! | `change` | what somebody is thinking of changing, applied to what is there |

mod audit;
mod change;
mod domains;
mod judge;
mod listing;
mod local;
mod route;
mod subject;
mod tree;
mod trouble;

pub use audit::{
    Audit, AuditError, Counts, Difference, Kind, Met, Options, Progress, Rights, Seen, Start, Told, Totals,
    View, audit,
};
pub use change::{Change, ChangeError, Edit, Names, parse_change};
pub use domains::Domains;
pub use judge::{Ground, Verdict, judge};
pub use listing::{DirEntry, ReadDirPlus, read_dir_plus};
pub use local::LocalTree;
pub use route::{Answer, Check, Demand, Route, Want, WantError};
pub use subject::{Rules, Subject};
pub use tree::{Found, Tree, VolumeTree};
pub use trouble::Trouble;
