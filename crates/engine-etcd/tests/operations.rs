//! The rules of the operations, on a real etcd.

mod support;

meta::ops_suite!(support::empty);
