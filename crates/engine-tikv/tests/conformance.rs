//! The conformance suite, on a cluster within this process.

mod support;

suite::conformance!(support::empty);
