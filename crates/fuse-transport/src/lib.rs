//! fuse-transport
