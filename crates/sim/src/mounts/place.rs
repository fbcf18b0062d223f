//! A directory that one program changes, and what it was answered about the names there.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use types::Ino;
use vfs::SessionLoss;

/// The programs of all mounts.
pub(super) const ALL_PROGRAMS: usize = 4;

/// The names that the program of a directory changes in it. Each other program changes one name more.
pub(super) const NAMES: usize = 4;
pub(super) const ALL_NAMES: usize = NAMES + ALL_PROGRAMS;
/// A directory that one program changes.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) ino: Ino,
    pub(super) client: usize,
    pub(super) program: u64,
    /// The loss of the session of its mount that the mount knew of when it made the directory.
    pub(super) loss: Option<SessionLoss>,
    pub(super) names: Mutex<Names>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) changes: usize,
    /// The clients that have looked into the directory.
    pub(super) seen: HashSet<usize>,
    /// For each name its states, the last one last.
    pub(super) states: [Vec<NameState>; ALL_NAMES],
}

/// Whether a name exists from a moment on.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameState {
    /// When the change to this state began, and when it was answered. `None` while it is under way, and if it failed.
    pub(super) began: Duration,
    pub(super) answered: Option<Duration>,
    pub(super) exists: bool,
}
