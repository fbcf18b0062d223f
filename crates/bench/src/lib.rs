//! The benchmarks of `limen bench`, `limen mdtest` and `limen objbench`. The first measures a mounted path of
//! any file system, the second a volume without a mount, the third an object store.
//!
//! | module | what it holds |
//! |---|---|
//! | `args` | the command line of `limen bench` |
//! | `files`, `acl`, `abe` | the three benchmarks of a path, with their options |
//! | `big` | one big file, as a part of `files` |
//! | `load`, `ops` | the work of a round; its operations |
//! | `suite` | one round of the operations: threads, clocks, counters |
//! | `scratch`, `probe` | the scratch directory; the mount that it is on |
//! | `floor` | a mount in memory, as the upper bound of what FUSE can do on this machine |
//! | `series` | several rounds: medians and spread |
//! | `figure` | figures as text and in JSON |
//! | `mdtest` | the metadata benchmark, on an open volume |
//! | `store` | the test and benchmark of an object store |
//!
//! The caller opens volumes, so this crate names no engine.

mod abe;
mod acl;
mod args;
mod big;
mod figure;
mod files;
mod floor;
mod load;
pub mod mdtest;
mod ops;
mod probe;
mod scratch;
mod series;
mod store;
mod suite;

pub use args::{BenchArgs, run};
pub use big::VolumeOf;
pub use store::{StoreOptions, run as run_store};
