//! A volume's records as ordered keys and values, for engines on key-value stores. Pure: nothing here talks to a store.
//!
//! A store reads keys and ranges as of one moment, and writes keys if what was read is still so. What is to be read for
//! a question, how a transaction is decided by what was read, and what it then writes, is worked out here, once for all
//! such stores.
//!
//! | module | what it holds |
//! |---|---|
//! | `keys` | the table of keys: which record stands where |
//! | `value` | the form of values |
//! | `source` | what is known of the store, and what has to be read |
//! | `answer` | records out of values: wants and ranges |
//! | `state` | the records as the transactions of a batch leave them, one after another |
//! | `guard`, `effect` | what must hold, and what then changes |
//! | `batch` | a batch decided as a whole |
//! | `settle` | the changes as writes of keys |

mod answer;
mod batch;
mod effect;
mod guard;
mod keys;
mod settle;
mod source;
mod state;
mod value;

pub use answer::{Answer, answer, implied_place, page};
pub use batch::{Batch, Done, Options, decide};
pub use keys::{Keyspace, LAYOUT_VERSION, Span};
pub use settle::{Claim, Write};
pub use source::{Access, Held, Known, Snapshot, Source, Stop};
pub use value::{Damaged, Lane, LogEntry, decode_lane, decode_log, encode_lane};
