//! The rules of the operations, on a server of its own. Some of the suite's tests inject faults.

mod support;

suite::operations!(support::empty);
