//! The engine on etcd, 3.4 and later: a volume's records as keys of one prefix.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | the URL's parameters |
//! | `schema` | the version of the layout |
//! | `engine` | [`EtcdEngine`]: opening, `impl Engine` |
//! | `read`, `scan` | records out of keys |
//! | `commit` | a batch of transactions as one etcd transaction |
//! | `request` | claims, writes and reads as etcd has them |
//! | `changes` | the stream of changes |
//! | `upkeep` | forgetting what is no longer needed |
//! | `connect`, `grpc`, `wire` | a connection; calls over HTTP/2; etcd's messages |
//! | `error` | one table from etcd's errors to an engine error |

mod changes;
mod commit;
mod config;
mod connect;
mod engine;
mod error;
mod grpc;
mod read;
mod request;
mod scan;
mod schema;
mod upkeep;
mod wire;

pub use engine::EtcdEngine;
pub use pool::OpenError;
