//! The metadata engine for etcd 3.4 and later. The records of a volume are keys under one prefix.
//!
//! | module | contents |
//! |---|---|
//! | `config` | the URL's parameters |
//! | `schema` | the version of the layout |
//! | `engine` | [`EtcdEngine`]: opening, `impl Engine` |
//! | `shared` | the state that requests and housekeeping share |
//! | `read` | reads keys and ranges; the crate `keyspace` makes records of them |
//! | `commit` | commits a batch of transactions as one etcd transaction |
//! | `request` | encodes preconditions, writes and reads as etcd operations |
//! | `changes` | the stream of changes |
//! | `upkeep` | housekeeping: compaction, removal of old results, merging of usage shards |
//! | `connect`, `grpc`, `wire` | connections; calls over HTTP/2; etcd's messages |
//! | `error` | maps etcd's errors to an engine error |

mod changes;
mod commit;
mod config;
mod connect;
mod engine;
mod error;
mod grpc;
mod read;
mod request;
mod schema;
mod shared;
mod upkeep;
mod wire;

pub use engine::EtcdEngine;
pub use pool::OpenError;
