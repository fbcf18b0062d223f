//! The embedded engine: a volume's metadata in one SQLite database.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | the URL a person writes, and the options |
//! | `schema` | tables, their version, migration |
//! | `engine` | [`SqliteEngine`]: opening, `impl Engine`, syncing |
//! | `read`, `scan` | records out of rows |
//! | `locks` | the locks on files, and who waits for one |
//! | `rows` | a file's chunks and the slices they refer to |
//! | `commit` | guards and effects, for a batch of transactions |
//! | `queue` | group commit: who waits for the writer joins its next batch |
//! | `fold` | folding the log into the database beside the commits |
//! | `pool` | the reader connections |
//! | `lock` | one process mounts a volume |
//! | `error` | one table from a SQLite error to an engine error |

mod commit;
mod config;
mod engine;
mod error;
mod fold;
mod lock;
mod locks;
mod pool;
mod queue;
mod read;
mod reserve;
mod rows;
mod scan;
mod schema;

pub use config::{Options, UrlError, parse_url};
pub use engine::{SqliteEngine, Stats};
pub use error::OpenError;
pub use lock::{LockError, MountLock};
pub use schema::VERSION;
