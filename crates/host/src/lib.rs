//! What a client takes from its machine: clocks, threads, random numbers.
//!
//! Without the feature `sim` these are those of the standard library and of the kernel. With it, which only the simulator
//! turns on, a thread that belongs to a simulated machine ([`sim::enter`]) gets that machine's; all others still get the
//! real ones.

mod clock;
mod random;
#[cfg(feature = "sim")]
pub mod sim;
mod thread;

pub use clock::{Instant, nanos_since_epoch, sleep, time_since_boot};
pub use random::{HashMap, RandomState, random};
pub use thread::{lock, park_timeout, read, spawn, wait, wait_timeout, write};
