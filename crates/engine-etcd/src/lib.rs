//! The metadata engine on etcd.
