//! The options of the metadata benchmark, and the size of its tree.

use std::sync::Arc;

use command::error::CliError;
use command::units::{parse_size, parse_threads};
use meta::{Counting, Engine};
use vfs::Vfs;

/// The maximum number of directories and files together.
const MAX_ENTRIES: u64 = 100_000_000;

/// The largest depth. The paths of much deeper trees would exceed `PATH_MAX`.
const MAX_DEPTH: i64 = 256;

/// The options of the benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A directory of the volume, as a path from its root: if it does not exist, it is created and removed
    /// afterwards; otherwise it must be empty
    #[arg(value_name = "DIR")]
    pub(super) dir: String,
    #[command(flatten)]
    pub(super) shape: Shape,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    pub(super) threads: usize,
    /// How many bytes to write to each file
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    pub(super) write: u64,
    /// Keep the tree, and skip the phases unlink and rmdir
    #[arg(long)]
    pub(super) keep: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// How large a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct Shape {
    /// Levels of directories below DIR
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(0..=MAX_DEPTH), default_value = "2")]
    pub(super) depth: u32,
    /// Directories in each directory
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(super) dirs: u64,
    /// Files in each directory
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) files: u64,
    /// Alternate between the files of all directories, instead of working on one directory after the other
    #[arg(long)]
    pub(super) spread: bool,
}

/// A volume that is open as for a mount, without a session.
#[derive(Debug)]
pub struct OpenVolume {
    pub vfs: Arc<Vfs>,
    /// The metadata URL, without a password.
    pub url: String,
    /// The name of the metadata engine.
    pub engine: &'static str,
    /// The name and version of the database server, if there is one.
    pub server: Option<String>,
    pub counters: Counters,
}

/// The counters of engine requests.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Requests of the client to the engine.
    pub asked: Counted,
    /// Requests to the database server, after batching.
    pub sent: Option<Counted>,
}

type Counted = Arc<Counting<Arc<dyn Engine>>>;

impl Options {
    /// Checks the size of the tree.
    ///
    /// # Errors
    /// The tree would have too many files and directories.
    pub fn check(&self) -> Result<(), CliError> {
        self.shape.levels().map(drop)
    }
}

impl Shape {
    /// The first directory number of each level, followed by the number of all directories.
    ///
    /// # Errors
    /// The tree would have too many files and directories.
    pub(super) fn levels(self) -> Result<Vec<u64>, CliError> {
        let too_many = || {
            CliError::usage(format!("this tree has more than {MAX_ENTRIES} directories and files"))
                .advise("use a smaller --depth, --dirs or --files")
        };
        let mut levels = vec![0, 1];
        let mut width = 1_u64;
        let mut all = 1_u64;
        for _ in 0..self.depth {
            width = width.saturating_mul(self.dirs);
            all = all.saturating_add(width);
            if all > MAX_ENTRIES {
                return Err(too_many());
            }
            levels.push(all);
        }
        let entries = all.saturating_mul(self.files.saturating_add(1));
        if entries > MAX_ENTRIES { Err(too_many()) } else { Ok(levels) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counted_and_bounded() {
        let levels = |depth, dirs, files| Shape { depth, dirs, files, spread: false }.levels();
        assert_eq!(levels(2, 3, 10).unwrap(), [0, 1, 4, 13]);
        assert_eq!(levels(0, 3, 10).unwrap(), [0, 1]);
        assert_eq!(levels(2, 0, 10).unwrap(), [0, 1, 1, 1]);
        assert_eq!(levels(0, 0, MAX_ENTRIES - 1).unwrap(), [0, 1]);
        for (depth, dirs, files) in
            [(0, 0, MAX_ENTRIES), (64, 2, 0), (64, u64::MAX, u64::MAX), (1, MAX_ENTRIES, 0)]
        {
            let error = levels(depth, dirs, files).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("--depth"), "{error}");
        }
    }
}
