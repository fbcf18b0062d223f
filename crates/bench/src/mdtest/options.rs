//! What the metadata benchmark measures, and how large its tree is.

use std::sync::Arc;

use command::fault::Fault;
use meta::{Counting, Engine};
use vfs::Vfs;

/// The most directories and files together.
const MAX_ENTRIES: u64 = 100_000_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory of the volume, as a path from its root.
    pub dir: String,
    pub shape: Shape,
    pub threads: usize,
    /// How many bytes to write to each file.
    pub write_bytes: u64,
    /// Whether the tree stays.
    pub keep: bool,
    pub json: bool,
}

/// How large a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Levels below the top.
    pub depth: u32,
    /// Directories in each directory that is not of the last level.
    pub dirs: u64,
    /// Files in each directory, the top included.
    pub files: u64,
    /// Files with consecutive numbers are in different directories, not in the same one.
    pub spread: bool,
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

impl Shape {
    /// The first directory number of each level, and the number of directories at the end.
    ///
    /// # Errors
    /// The tree would have too many files and directories.
    pub fn levels(self) -> Result<Vec<u64>, Fault> {
        let too_many = || {
            Fault::usage(format!("this tree has more than {MAX_ENTRIES} directories and files"))
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
            let fault = levels(depth, dirs, files).unwrap_err();
            assert_eq!(fault.exit_code(), 2);
            assert!(fault.to_string().contains("--depth"), "{fault}");
        }
    }
}
