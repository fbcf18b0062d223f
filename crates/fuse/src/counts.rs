//! How many requests of each kind the kernel has sent.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use fuse_proto::Opcode;

/// Codes of ABI 7.45 are below this; what is above counts as the last.
const CODES: usize = 64;

#[derive(Debug)]
pub struct RequestCounts([AtomicU64; CODES]);

impl RequestCounts {
    pub(crate) fn new() -> Self {
        RequestCounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(crate) fn add(&self, opcode: Opcode) {
        self.0[(opcode.0 as usize).min(CODES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel's name of each code that came, and how often it did; by number of the code.
    pub fn seen(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        counts.filter(|&(_, count)| count > 0).map(|(code, count)| (Opcode(code as u32).to_string(), count))
    }
}

/// `LOOKUP 12, GETATTR 3`, by number of the code; codes that never came are left out.
impl fmt::Display for RequestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, count) in self.seen() {
            write!(f, "{separator}{name} {count}")?;
            separator = ", ";
        }
        Ok(())
    }
}
