//! Counts and measurements of the requests that the kernel has sent, by opcode.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fuse_proto::Opcode;
use metrics::{Buckets, Histogram};

/// The opcodes of ABI 7.45 are below this; higher opcodes are counted at the last index.
const CODES: usize = 64;

/// The requests of a mount. A request counts when it arrives, and is measured when its handler returns.
#[derive(Debug)]
pub struct RequestCounts {
    counts: [AtomicU64; CODES],
    meters: Box<[OnceLock<RequestMeter>; CODES]>,
}

/// Measurements of the requests with one opcode.
#[derive(Debug)]
pub struct RequestMeter {
    /// The time from the arrival of a request to the end of its handler, which includes the reply. If a
    /// request waits for a lock, its handler ends when it starts to wait.
    pub times: Histogram,
    /// The sizes of data, listings, link targets and extended attributes that were read or written; empty for
    /// other requests.
    pub bytes: Histogram,
}

impl RequestMeter {
    fn new() -> Self {
        RequestMeter { times: Histogram::new(Buckets::SECONDS), bytes: Histogram::new(Buckets::BYTES) }
    }
}

impl RequestCounts {
    pub(crate) fn new() -> Self {
        RequestCounts {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            meters: Box::new([const { OnceLock::new() }; CODES]),
        }
    }

    /// Counts a request, and returns the meter of its opcode.
    pub(crate) fn begin(&self, opcode: Opcode) -> &RequestMeter {
        self.counts[index(opcode)].fetch_add(1, Ordering::Relaxed);
        self.meter(opcode)
    }

    /// The meter of an opcode.
    pub(crate) fn meter(&self, opcode: Opcode) -> &RequestMeter {
        self.meters[index(opcode)].get_or_init(RequestMeter::new)
    }

    /// The kernel's name of each opcode that was received, in lower case, with its measurements.
    pub fn meters(&self) -> impl Iterator<Item = (String, &RequestMeter)> {
        let meters = self.meters.iter().enumerate();
        meters
            .filter_map(|(code, meter)| Some((Opcode(code as u32).to_string().to_lowercase(), meter.get()?)))
    }

    /// The kernel's name of each opcode that was received, and its count, in the order of opcodes.
    pub fn seen(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        counts.filter(|&(_, count)| count > 0).map(|(code, count)| (Opcode(code as u32).to_string(), count))
    }
}

fn index(opcode: Opcode) -> usize {
    (opcode.0 as usize).min(CODES - 1)
}

/// Formats the counts as `LOOKUP 12, GETATTR 3`, in the order of opcodes. Opcodes that were not received are
/// left out.
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
