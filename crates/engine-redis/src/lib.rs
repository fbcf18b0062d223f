//! The metadata engine for Redis 6.2 or later and Valkey. Each request runs one script on the server.
//!
//! | module | contents |
//! |---|---|
//! | `config` | URLs and their parameters |
//! | `schema` | the keys, their contents, and the version of the layout |
//! | `lua/` | the scripts `read`, `scan` and `commit`; `common` is prepended to each |
//! | `connect` | finds the master, directly or through Sentinel or Cluster, and sends requests |
//! | `engine` | [`RedisEngine`]: `open`, `impl Engine`, `warnings` |
//! | `code` | the codes of guards, effects and records in requests |
//! | `request` | encodes requests and decodes answers |
//! | `rows` | the stored forms of records |
//! | `read`, `scan`, `commit` | the arguments and answers of each script |
//! | `watch` | the stream of changes |
//! | `error` | maps a Redis error to an engine error |
//!
//! The scripts are run by EVALSHA, and are not functions (FCALL): the same text serves Redis 6.2, 7 and
//! Valkey, nothing is installed on the server, and a script that the server has lost is sent again with the
//! request.

mod code;
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
