//! A volume's records as ordered keys and values, for engines on key-value stores. Pure: nothing here talks to a store.
//!
//! A store reads keys and ranges as of one moment, and writes keys if what was read is still so. What is to be read for
//! a question, how a transaction is decided by what was read, and what it then writes, is worked out here, once for all
//! such stores.
//!
//! | module | what it holds |
//! |---|---|
//! | `keys` | the table of keys: which record stands where |
//! | `form`, `value` | fields as bytes; the form of values |
//! | `source` | what is known of the store, and what has to be read |
//! | `answer` | records out of values: wants and ranges |
//! | `state` | the records as the transactions of a batch leave them, one after another |
//! | `guard`, `effect` | what must hold, and what then changes |
//! | `batch` | a batch decided as a whole |
//! | `settle` | the changes as writes of keys |
//! | `memory` | the keys that were seen last |
//! | `ask` | a question, asked until there is an answer |
//! | `told` | changes as keys, for stores that push none |
//! | `lanes`, `share` | the usage in parts, one for each writer; room below a limit, shared out to them |
//! | `upkeep` | what is done now and then in the background |

mod answer;
mod ask;
mod batch;
mod effect;
mod form;
mod guard;
mod keys;
mod lanes;
mod memory;
mod settle;
mod share;
mod source;
mod state;
mod told;
mod upkeep;
mod value;

pub use answer::{Answer, answer, page};
pub use ask::{Fresh, disagree, is_needed, likely, until, wants};
pub use batch::{Batch, Done, Options, decide};
pub use form::{Reader, Writer};
pub use keys::{Keyspace, LAYOUT_VERSION, Span};
pub use lanes::{Fold, Lanes, Taken, fold};
pub use memory::{Above, Memory, Recall};
pub use settle::{Claim, Write};
pub use source::{Access, Held, Known, Snapshot, Source, Stop};
pub use told::{Head, KEPT, Told, decode_head, decode_told, encode_head, encode_told};
pub use upkeep::{DoneOps, Upkeep};
pub use value::{Damaged, LogEntry, decode_log};
