//! The services of its machine that a client needs: clocks, threads, random numbers.
//!
//! Without the feature `sim`, these come from the standard library and the kernel. With the feature, which
//! only the simulator enables, a thread of a simulated machine ([`sim::enter`]) uses that machine's services;
//! all other threads still use the real ones.

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
    lock, park_timeout, read, receive, spawn, spawn_if_simulated, wait, wait_timeout, with_helpers, write,
};
