//! The engine on MySQL 8 and MariaDB 10.6+: a volume's metadata in plain InnoDB tables of one database.
//!
//! | module | content |
//! |---|---|
//! | `config` | the parameters of the URL, and the settings of connections |
//! | `connect` | one connection; rows of replies |
//! | `schema` | the tables and their version |
//! | `engine` | [`MysqlEngine`]: opens the volume, implements `Engine`, reports warnings |
//! | `script` | statements with conditions, sent as one request |
//! | `commit` | sends a batch of transactions as one script, and reads the reply |
//! | `guard` | guards as SQL conditions |
//! | `effect` | effects as statements; the longer ones are in the directory `statements` |
//! | `read`, `scan` | one statement for a set of records or for a range |
//! | `sql` | values as SQL literals, and helpers to build statements |
//! | `watch` | the stream of changes |
//! | `error` | maps a MySQL error to an engine error |
//!
//! **One request per commit.** The client sends the whole transaction as statements: lock, check, change,
//! log, commit. All values are numbers or hexadecimal literals, so nothing is escaped. MariaDB runs the
//! statements as one anonymous block (`BEGIN NOT ATOMIC`), which needs no routine and no privilege other than
//! those on the tables. MySQL has no such blocks, so there one small procedure runs the statements that it
//! receives.
//!
//! **Lock order.** A commit first locks the row that represents the volume (table `layout`), if it reads or
//! changes settings or counters, changes the rule of a quota, corrects the usage, checks a limit of the
//! volume, or may insert a quota. Then it locks all `node` rows that the request names, in the order of their
//! numbers. Attributes, slices and locks of an inode are changed only while its row is locked, and entries
//! only while the row of their directory is locked. Then follow the rows of `quota` by key, the rows of
//! `fence`, rows of `shared`, and last one slot of `usage`. So commits do not deadlock on these rows, and
//! rows that do not exist need no gap locks. Rows of `acl` have no place in this order: the removal of unused
//! ACLs may deadlock with a commit that stores them again; then one of the two is retried.
//!
//! **Sessions.** A commit that a session or term guards reads a row of table `fence` with LOCK IN SHARE MODE,
//! in the statement that checks its guards. The removal of the session, or the end of the term, deletes the
//! row, so it waits for commits in flight. Renewals do not change the row, so renewals and commits do not
//! wait for each other.

mod commit;
mod config;
mod connect;
mod effect;
mod engine;
mod error;
mod guard;
mod read;
mod scan;
mod schema;
mod script;
mod sql;
mod watch;

pub use engine::MysqlEngine;
pub use pool::OpenError;
pub use schema::VERSION;
