//! The conformance suite on the engine in memory, alone and behind [`Batching`], whose callers share round
//! trips.

use meta::{Batching, MemEngine};

suite::conformance!(|| (MemEngine::default(), ()));

mod batching {
    use super::*;

    suite::conformance!(|| (Batching::new(MemEngine::default(), 2), ()));
}
