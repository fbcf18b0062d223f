//! The rules of the operations, on a cluster within this process.

mod support;

suite::operations!(support::empty);
