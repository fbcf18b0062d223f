//! A directory that one program changes, and the states of its names according to the replies that the
//! program got.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use types::Ino;
use vfs::SessionLoss;

/// The number of programs on all mounts.
pub(super) const ALL_PROGRAMS: usize = 4;

/// The number of names that the directory's own program changes in it. Each program of any mount may change
/// one more name, which only that program changes.
pub(super) const NAMES: usize = 4;
pub(super) const ALL_NAMES: usize = NAMES + ALL_PROGRAMS;
/// A directory that one program changes.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) ino: Ino,
    pub(super) client: usize,
    pub(super) program: u64,
    /// The last loss of the mount's session before the mount created the directory, if any.
    pub(super) loss: Option<SessionLoss>,
    pub(super) names: Mutex<Names>,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) changes: usize,
    /// The clients that have looked into the directory.
    pub(super) seen: HashSet<usize>,
    /// The states of each name, in the order of time.
    pub(super) states: [Vec<NameState>; ALL_NAMES],
}

/// The state of a name since a change: whether it exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameState {
    /// The time when the change to this state began.
    pub(super) began: Duration,
    /// The time when the change succeeded; `None` while it is in progress, and if it failed.
    pub(super) answered: Option<Duration>,
    pub(super) exists: bool,
}
