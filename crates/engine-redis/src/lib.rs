//! The metadata engine on Redis 6.2 or later, and on Valkey: one script run on the server for each request.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | the URL a person writes |
//! | `schema` | the keys, their contents and version |
//! | `lua/` | the scripts: `read`, `scan` and `commit`, each after `common` |
//! | `connect` | finding the master, by itself or by Sentinel or Cluster, and talking to it |
//! | `engine` | [`RedisEngine`]: opening, `impl Engine`, warnings |
//! | `request` | requests put together, answers taken apart |
//! | `rows` | the stored forms of records |
//! | `read`, `scan`, `commit` | what is sent to the scripts, and what comes back |
//! | `watch` | the stream of changes |
//! | `error` | one table from a Redis error to an engine error |

mod commit;
mod config;
mod connect;
mod engine;
mod error;
mod read;
mod request;
mod rows;
mod scan;
mod schema;
mod watch;

pub use engine::RedisEngine;
pub use pool::OpenError;
pub use schema::VERSION;
