//! Counts of the requests that the kernel has sent, by opcode.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use fuse_proto::Opcode;

/// The opcodes of ABI 7.45 are below this; higher ones are counted with the last.
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

    /// The kernel's name of each opcode that was received, and its count, in the order of opcodes.
    pub fn seen(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        counts.filter(|&(_, count)| count > 0).map(|(code, count)| (Opcode(code as u32).to_string(), count))
    }
}

/// `LOOKUP 12, GETATTR 3`, in the order of opcodes; opcodes that were not received are left out.
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
