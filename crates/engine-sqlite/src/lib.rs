//! The embedded engine: a volume's metadata in one SQLite database.
//!
//! | module | contents |
//! |---|---|
//! | `config` | the URL and the options of a database |
//! | `schema` | tables, their version, migration |
//! | `engine` | [`SqliteEngine`]: opening, `impl Engine`, syncing |
//! | `read`, `scan` | answer record keys and scans |
//! | `sql`, `number` | statements for rows; numbers as SQLite stores them |
//! | `rows` | the rows of file chunks, and references to slices |
//! | `commit` | guards and effects, for a batch of transactions |
//! | `additions` | the new rows of a transaction, many to a statement |
//! | `quotas` | changes of quotas of directories, users and groups |
//! | `queue` | group commit: the transactions of callers that wait for the writer become its next batch |
//! | `checkpoint` | checkpoints, concurrently with commits |
//! | `pool` | the reader connections |
//! | `reserve` | disk space that is kept for removals on a full disk |
//! | `lock` | which processes may mount the volume |
//! | `error` | maps an SQLite error to an engine error |

mod additions;
mod checkpoint;
mod commit;
mod config;
mod engine;
mod error;
mod lock;
mod number;
mod pool;
mod queue;
mod quotas;
mod read;
mod reserve;
mod rows;
mod scan;
mod schema;
mod sql;

pub use config::{Options, UrlError, parse_url};
pub use engine::{SqliteEngine, Stats};
pub use error::OpenError;
pub use lock::{LockError, MountLock};
pub use schema::VERSION;
