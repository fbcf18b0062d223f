//! The metadata engine on PostgreSQL (13 and newer): rows in plain tables, one statement per request.
//!
//! A request is one statement outside any transaction block: a commit or a read of record keys calls one
//! function on the server (`functions.sql`), and a scan is a SELECT. So a request takes one round trip, its
//! transaction ends with it, and no lock is held while the server waits for a client. A commit runs at READ
//! COMMITTED. It locks the inodes that it reads or changes in the order of their numbers, and the quotas in
//! the order of their keys, then checks all guards at once, and then applies the effects kind by kind.
//!
//! | module | content |
//! |---|---|
//! | `config` | the URL, and how to connect |
//! | `tls` | TLS connections |
//! | `connection` | one connection: prepares each statement once; driven by the thread that uses it |
//! | `schema` | tables and functions (`schema.sql`, `functions.sql`), and their version |
//! | `code` | the numbers that stand for guards, effects and rows, in this code and in the functions |
//! | `engine` | [`PostgresEngine`]: opening, `impl Engine` |
//! | `shared` | the state that requests and streams of changes share |
//! | `read`, `scan` | record keys and ranges as arguments, and the rows of a reply (crate `tables`) |
//! | `gather` | arranges the guards and effects of a group by kind, in arrays |
//! | `columns` | rows as arrays, one per column; texts that guards compare |
//! | `commit` | commits groups of transactions, and reads their outcomes |
//! | `changes` | the stream of changes |
//! | `error` | maps an error of the server to an engine error |

mod changes;
mod code;
mod columns;
mod commit;
mod config;
mod connection;
mod engine;
mod error;
mod gather;
mod read;
mod scan;
mod schema;
mod shared;
mod tls;

pub use engine::PostgresEngine;
pub use pool::OpenError;
pub use schema::VERSION;
