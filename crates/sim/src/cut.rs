//! The decisions of the scheduler, and which of them are left out.

use std::collections::BTreeSet;

/// The kinds of decisions of the scheduler. Each decision has its own random numbers, so it does not change
/// if others are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Order,
    Gc,
    Fault,
    Kill,
    Halt,
    Pause,
}

impl Kind {
    pub(crate) const COUNT: usize = 6;
    pub(crate) const ALL: [Kind; Kind::COUNT] =
        [Kind::Fault, Kind::Kill, Kind::Halt, Kind::Pause, Kind::Gc, Kind::Order];
}

/// The decisions that are left out, each by its number among those of its kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut(pub(crate) BTreeSet<(Kind, usize)>);

impl Cut {
    pub(crate) fn has(&self, kind: Kind, number: usize) -> bool {
        self.0.contains(&(kind, number))
    }
}
