//! fuse-proto
