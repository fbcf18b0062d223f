//! The conformance suite on a real etcd.

mod support;

meta::engine_conformance!(support::empty);
