//! The conformance suite on a real server.

mod support;

suite::conformance!(support::engine);
