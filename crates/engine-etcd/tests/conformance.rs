//! The conformance suite on a real etcd.

mod support;

suite::conformance!(support::empty);
