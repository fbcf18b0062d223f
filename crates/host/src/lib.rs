//! Services of the machine that a client runs on: clocks, threads, random numbers, and the boot id.
//!
//! Without the feature `sim`, these come from the standard library and the kernel. Only the simulator enables
//! the feature. Then a thread of a simulated machine ([`sim::enter`]) uses the clocks, threads and random
//! numbers of that machine; all other threads still use the real ones.

mod boot;
mod clock;
mod random;
#[cfg(feature = "sim")]
pub mod sim;
mod thread;

pub use boot::boot_id;
pub use clock::{Instant, nanos_since_epoch, sleep, time_since_boot};
pub use random::{HashMap, HashSet, RandomState, random};
pub use thread::{
    begin_thread, lock, park_timeout, read, receive, set_thread_start, spawn, spawn_if_simulated, wait,
    wait_timeout, with_helpers, write,
};
