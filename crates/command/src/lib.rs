//! Code that several commands of `limen` share: errors, output, Ctrl-C, walks through trees, and the mounts
//! of this machine. This crate names no engine and parses no command line.
//!
//! | module | what it holds |
//! |---|---|
//! | `error` | the error of a command |
//! | `output`, `units` | printed output and progress; sizes and numbers |
//! | `interrupt` | Ctrl-C in commands that clean up before they end |
//! | `pool`, `remove` | tree walks by several threads; the removal of trees |
//! | `process`, `paths` | processes by id and start time; the directories for logs and state, paths as text |
//! | `registry` | which process serves which mount on this machine |
//! | `clone`, `quotas`, `file_requests` | requests to a mount: copy a tree; change a quota; act on files |
//! | `answers` | reads the lines with which a mount answers the requests of the row above |
//! | `running` | limits how many requests of one kind a mount serves at the same time |
//! | `counters`, `exported` | the counters of a mount; all its metrics as text |
//! | `profile` | what the profilers of a mount record |
//! | `statistics`, `exporter` | what a mount reports to other commands; its metrics over HTTP |
//! | `http` | HTTP requests and answers, for `exporter` and for the crate `console` |

mod answers;
pub mod clone;
pub mod counters;
pub mod error;
pub mod exported;
pub mod exporter;
pub mod file_requests;
pub mod http;
pub mod interrupt;
pub mod output;
pub mod paths;
pub mod pool;
pub mod process;
mod profile;
pub mod quotas;
pub mod registry;
pub mod remove;
mod running;
pub mod statistics;
pub mod units;
