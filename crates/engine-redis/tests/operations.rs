//! The rules of the operations, on a real server; under faults too, where the suite says so.

mod support;

suite::operations!(support::engine);
