//! A volume's records as ordered keys and values, for engines on key-value stores (etcd, TiKV). This crate
//! does no I/O; the engines talk to the stores.
//!
//! A store reads keys and ranges as of one moment, and writes keys only if the values that were read are
//! still current. For such a store, this crate computes what must be read to answer record keys or to decide
//! a transaction, and what the transaction writes.
//!
//! | module | content |
//! |---|---|
//! | `keys` | the table of keys: where each record is stored |
//! | `form`, `value` | fields as bytes; the format of values |
//! | `source` | known keys and ranges of the store; queries, which are keys and ranges to read |
//! | `answer` | builds records from values: record keys and scans |
//! | `state` | the records after each transaction of a batch |
//! | `guard`, `effect` | checks guards, and applies effects |
//! | `batch` | decides a whole batch |
//! | `writes` | turns the changes into writes of keys, with their preconditions |
//! | `key_cache` | a cache of keys |
//! | `ask` | repeats reads until there is an answer |
//! | `change_log` | a log of changes, as keys, for stores that push no changes |
//! | `shards`, `reservation` | the usage, divided into one shard per writer; space reserved below a limit |
//! | `periodic_task` | periodic work in the background |

mod answer;
mod ask;
mod batch;
mod change_log;
mod effect;
mod form;
mod guard;
mod key_cache;
mod keys;
mod periodic_task;
mod reservation;
mod shards;
mod source;
mod state;
mod value;
mod writes;

pub use answer::{Answer, answer, page};
pub use ask::{
    Fresh, KeyReader, SnapshotStore, disagree, guard_keys, is_needed, likely, read, read_until_complete, scan,
};
pub use batch::{Batch, Done, decide};
pub use change_log::{
    ChangeEntry, KEPT, ShardHead, decode_changes, decode_head, encode_changes, encode_head,
};
pub use form::{Reader, Writer};
pub use key_cache::{CachedSource, KeyCache, Overlay};
pub use keys::{Keyspace, LAYOUT_VERSION, Span};
pub use periodic_task::{CompletedOps, PeriodicTask};
pub use shards::{ShardMerge, ShardPool, TakenShard, merge_shards};
pub use source::{KeyQuery, KeyState, ReadSet, ReadStop, Source, StoredValue};
pub use state::Options;
pub use value::{Damaged, LogEntry, decode_log};
pub use writes::{KeyWrite, Precondition};
