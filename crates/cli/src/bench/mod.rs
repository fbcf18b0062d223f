//! `limen bench`: measures the speed of a mounted path of any file system, and the cost of each operation.
//!
//! | module | what it holds |
//! |---|---|
//! | `args` | the command line |
//! | `ops` | the operations |
//! | `suite` | one round of the operations: threads, clocks, counters |
//! | `place` | the scratch directory, and the mount that it is on |
//! | `floor` | a mount in memory, as the upper bound of what FUSE can do on this machine |
//! | `series` | several rounds: medians and spread |
//! | `files`, `acl`, `abe`, `big` | the four benchmarks |
//! | `table` | tables of figures as text |

mod abe;
mod acl;
mod args;
mod big;
mod files;
mod floor;
mod ops;
mod place;
mod series;
mod suite;
pub(crate) mod table;

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use self::args::BenchArgs;
use self::args::Comparison;
use crate::fault::Fault;
use crate::interrupt::Interrupt;

pub(crate) fn run(args: &BenchArgs) -> Result<(), Fault> {
    let interrupt = Interrupt::install()?;
    match (&args.comparison, &args.path) {
        (Some(Comparison::Acl(args)), _) => acl::run(args, &interrupt),
        (Some(Comparison::Abe(args)), _) => abe::run(args, &interrupt),
        (None, Some(path)) => files::run(path, args, &interrupt),
        (None, None) => Err(Fault::usage("no path is given").advise("name a directory to measure")),
    }
}

/// A progress bar of `steps` steps; hidden if standard error is not a terminal.
fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("[{bar:30}] {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style.progress_chars("=> "))
}
