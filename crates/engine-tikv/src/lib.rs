//! The engine on TiKV, 5.0 and later: a volume's records as keys of one prefix, laid out as on etcd (crate `keyspace`).
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | the URL's parameters |
//! | `schema` | the version of the layout |
//! | `engine` | [`TikvEngine`]: opening, `impl Engine` |
//! | `read`, `scan` | records out of keys |
//! | `commit` | a batch of transactions as one optimistic transaction |
//! | `changes` | the stream of changes |
//! | `upkeep` | forgetting what is no longer needed |
//! | `store` | the trait [`Store`]: what the engine needs of TiKV |
//! | `client`, `error` | the store that is a cluster, with the feature `client`; one table from its errors to an engine error |

mod changes;
#[cfg(feature = "client")]
mod client;
mod commit;
mod config;
mod engine;
#[cfg(feature = "client")]
mod error;
mod read;
mod scan;
mod schema;
mod store;
mod upkeep;

pub use config::Config;
pub use engine::TikvEngine;
pub use pool::OpenError;
pub use store::{Attempt, CommitError, Found, Mutation, Phases, Store};
