//! The conformance suite on a real server.

mod support;

meta::engine_conformance!(support::engine);
