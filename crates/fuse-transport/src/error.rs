//! Errors, with messages for the user.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} is not empty; mount over it with the option nonempty", .0.display())]
    NotEmpty(PathBuf),
    #[error("a limenfs volume is already mounted at {}", .0.display())]
    AlreadyMounted(PathBuf),
    #[error("the mount at {} is dead: its server has ended; unmount it first", .0.display())]
    Dead(PathBuf),
    #[error("no limenfs volume is mounted at {}", .0.display())]
    NotMounted(PathBuf),
    #[error("{} is busy: a process has a file open or its working directory there", .0.display())]
    Busy(PathBuf),
    #[error("cannot open /dev/fuse (is the kernel module fuse loaded?): {0}")]
    NoDevice(io::Error),
    #[error("mounting without CAP_SYS_ADMIN needs fusermount3, which could not be run: {0}")]
    NoFusermount(io::Error),
    #[error("fusermount3 failed: {0}")]
    Fusermount(String),
    /// A system call failed; `what` is its purpose.
    #[error("cannot {what}: {source}")]
    System { what: String, source: io::Error },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::System { what: what.into(), source: source.into() }
    }

    pub(crate) fn at(what: &str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::system(format!("{what} {}", path.display()), source)
    }
}
