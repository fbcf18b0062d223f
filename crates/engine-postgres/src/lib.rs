//! The metadata engine on PostgreSQL (13 and newer): rows in plain tables, one statement a request.
//!
//! A request is one call of a function on the server (`functions.sql`), outside any transaction block, so that it is one
//! round trip and its transaction ends with it: no lock waits for a client. A commit locks the inodes it looks at or
//! changes in the order of their numbers, at READ COMMITTED, checks all guards in one look after that, and applies the
//! effects kind by kind.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | the URL a person writes, and how to connect by it |
//! | `tls` | how the connection comes by TLS |
//! | `connection` | one connection: statements prepared once, polled by who uses it |
//! | `schema` | tables and functions (`schema.sql`, `functions.sql`), and their version |
//! | `engine` | [`PostgresEngine`]: opening, `impl Engine` |
//! | `read`, `scan` | what is asked for, and the facts that answer (crate `tables`) |
//! | `gather` | the effects and guards of a run, grouped by kind into arrays |
//! | `columns` | rows as arrays, one for each column; texts that guards compare |
//! | `commit` | runs of transactions, and their outcomes |
//! | `changes` | the stream of changes |
//! | `error` | one table from an error of the server to an engine error |

mod changes;
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
mod tls;

pub use engine::PostgresEngine;
pub use pool::OpenError;
pub use schema::VERSION;
