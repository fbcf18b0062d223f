//! The engine on MySQL 8 and MariaDB 10.6+: a volume's metadata in plain InnoDB tables of one database.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | the parameters of the URL, and the settings of connections |
//! | `connect` | one connection; rows of its answers, also as facts (crate `tables`) |
//! | `schema` | tables, their version |
//! | `engine` | [`MysqlEngine`]: opening, `impl Engine`, warnings |
//! | `script` | statements with conditions, sent as one request |
//! | `commit` | a batch of transactions as one script, and the answer to it |
//! | `guard` | guards as a condition |
//! | `effect` | effects as statements; the longer ones are in folder `statements` |
//! | `read`, `scan` | one statement for a set of records or for a range |
//! | `sql` | values as SQL literals, and what statements are made of |
//! | `watch` | the stream of changes |
//! | `error` | one table from a MySQL error to an engine error |
//!
//! **One request for a commit.** The client writes the whole transaction as statements: lock, check, change, log,
//! commit. All values are numbers or hexadecimal literals, so nothing is escaped. MariaDB takes them as one anonymous
//! block (`BEGIN NOT ATOMIC`), which needs no routine and no privilege beyond those on the tables; MySQL has no such
//! blocks, so there one small procedure runs the statements it is given.
//!
//! **Order of locks.** First the row that stands for the volume (table `layout`), where something that belongs to no
//! inode is looked at or changed; then all `node` rows that the request names, by number. Entries, attributes, slices and
//! locks of an inode are only changed under the lock on its row, entries under that on their directory's. Then rows of
//! `shared`; one slot of `usage` is the last. So no two commits wait for each other in a circle.

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
