//! The decisions of the scheduler, and which of them are left out.

use std::collections::BTreeSet;
use std::time::Duration;

/// The kinds of decisions of the scheduler. Each decision has its own random numbers, so it does not change
/// if others are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An act of a thread of a client, or of a program on a mount.
    Assignment,
    /// A run of a tool.
    Gc,
    Fault,
    Kill,
    Halt,
    Pause,
    /// A wall clock is set.
    Jump,
    /// A log of changes loses entries that a client has not read.
    Trim,
}

impl Kind {
    pub(crate) const COUNT: usize = 8;
    pub(crate) const ALL: [Kind; Kind::COUNT] = [
        Kind::Fault,
        Kind::Kill,
        Kind::Halt,
        Kind::Jump,
        Kind::Trim,
        Kind::Pause,
        Kind::Gc,
        Kind::Assignment,
    ];
}

/// The decisions that are left out, each by its number among those of its kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    pub(crate) left_out: BTreeSet<(Kind, usize)>,
    /// Decisions of a kind from this number on are left out too, because a history with fewer decisions has
    /// time for new ones.
    pub(crate) limits: Option<[usize; Kind::COUNT]>,
    /// The history ends at this time.
    pub(crate) until: Option<Duration>,
}

impl Cut {
    pub(crate) fn has(&self, kind: Kind, number: usize) -> bool {
        self.left_out.contains(&(kind, number))
            || self.limits.is_some_and(|limits| number >= limits[kind as usize])
    }
}
