//! The rules of the operations, on a real server. Some of the suite's tests inject faults.

mod support;

suite::operations!(support::engine);
