//! The rules of the operations on the engine in memory.

use meta::MemEngine;

suite::operations!(|| (MemEngine::default(), ()));
