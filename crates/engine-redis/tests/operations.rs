//! The rules of the operations, on a real server.

mod support;

suite::operations!(support::engine);
