//! The conformance suite on the engine in memory, by itself and with callers that share round trips.

use meta::{Batching, MemEngine};

suite::conformance!(|| (MemEngine::default(), ()));

mod batching {
    use super::*;

    suite::conformance!(|| (Batching::new(MemEngine::default(), 2), ()));
}
