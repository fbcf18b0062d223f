//! The benchmarks of `limen bench` and `limen mdtest`. The first measures a mounted path of any file system; the
//! second measures a volume without a mount.
//!
//! | module | what it holds |
//! |---|---|
//! | `files`, `acl`, `abe` | the three benchmarks of a path |
//! | `big` | one big file, as a part of `files` |
//! | `load`, `ops` | the work of a round; its operations |
//! | `suite` | one round of the operations: threads, clocks, counters |
//! | `place`, `probe` | the scratch directory; the mount that it is on |
//! | `floor` | a mount in memory, as the upper bound of what FUSE can do on this machine |
//! | `series` | several rounds: medians and spread |
//! | `table` | tables of figures as text |
//! | `mdtest` | the metadata benchmark, on an open volume |
//!
//! The caller parses the command line and opens volumes, so this crate names no engine.

pub mod abe;
pub mod acl;
mod big;
pub mod files;
mod floor;
pub mod load;
pub mod mdtest;
pub mod ops;
mod place;
mod probe;
mod series;
mod suite;
mod table;
