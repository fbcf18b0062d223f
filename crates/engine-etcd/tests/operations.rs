//! The rules of the operations, on a real etcd.

mod support;

suite::operations!(support::empty);
