//! The rules of the operations on a server of its own; the suite brings its own faults, rivals and threads.

mod support;

suite::operations!(support::empty);
