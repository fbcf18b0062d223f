//! The engine on TiKV, 5.0 and later: a volume's records as keys under one prefix, in the same layout as on
//! etcd (crate `keyspace`).
//!
//! | module | content |
//! |---|---|
//! | `config` | the URL's parameters |
//! | `schema` | the version of the layout |
//! | `engine` | [`TikvEngine`]: opens the volume, implements `Engine` |
//! | `shared` | the state that requests and the background thread share |
//! | `read` | reads keys and ranges; the crate `keyspace` makes records of them |
//! | `commit` | commits a batch of transactions as one optimistic transaction |
//! | `changes` | the stream of changes |
//! | `upkeep` | removes keys and versions that are no longer needed |
//! | `store` | the trait [`Store`]: the operations of TiKV that the engine uses |
//! | `client`, `error` | the store on a real cluster (feature `client`); maps its errors to engine errors |

mod changes;
#[cfg(feature = "client")]
mod client;
mod commit;
mod config;
mod engine;
#[cfg(feature = "client")]
mod error;
mod read;
mod schema;
mod shared;
mod store;
mod upkeep;

pub use config::Config;
pub use engine::TikvEngine;
pub use pool::OpenError;
pub use store::{Attempt, CommitError, Mutation, Phases, ReadResult, Store};
