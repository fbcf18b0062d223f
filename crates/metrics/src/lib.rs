//! Metrics: counters and histograms that requests update, and the text in which they are exported.
//!
//! | module | what it holds |
//! |---|---|
//! | `counter`, `histogram` | events; distributions of times and sizes; both without a lock |
//! | `shard` | the copies of both for different threads |
//! | `waited` | what the thread's current request has waited for |
//! | `text` | the Prometheus text format, written and read |
//!
//! There is no registry. Each part of the program owns its metrics as fields of a struct, and one function in
//! the crate `command` writes them all.

mod counter;
mod histogram;
mod shard;
mod text;
mod waited;

pub use counter::ShardedCounter;
pub use histogram::{Buckets, Histogram, Summary};
pub use text::{Label, Samples, Text};
pub use waited::{SPANS, WaitTarget, Waited, start_waiting, wait_on, waited};
