//! What the commands of `limen` share, whatever they work on: errors, output, Ctrl-C, walks through trees, and
//! the mounts of this machine. It names no engine and parses no command line.
//!
//! | module | what it holds |
//! |---|---|
//! | `fault` | the error of a command |
//! | `output`, `units` | printed output and progress; sizes |
//! | `interrupt` | Ctrl-C in commands that clean up before they end |
//! | `pool`, `remove` | tree walks by several threads; the removal of trees |
//! | `process`, `paths` | processes by id and start time; where a user's files are |
//! | `registry` | which process serves which mount on this machine |
//! | `statistics` | what a mount reports about its work |

pub mod fault;
pub mod interrupt;
pub mod output;
pub mod paths;
pub mod pool;
pub mod process;
pub mod registry;
pub mod remove;
pub mod statistics;
pub mod units;
