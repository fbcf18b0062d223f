//! A check in progress: its window in memory, and its totals.

use meta::{Engine, Usage};
use types::{Ino, SessionId, SliceId};

use super::{CheckScope, Problem};
use crate::quotas::Counts;

/// The largest number of inodes or slices in memory, at 50 to 100 bytes each.
pub const WINDOW: usize = 1 << 20;

/// The numbers of records that a check has processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub inodes: u64,
    pub entries: u64,
    pub rows: u64,
    /// Below a path: files with more links than names there. Their other names may be elsewhere.
    pub linked_elsewhere: u64,
    /// Below a path: slices with more recorded rows than were found there. The other rows may be elsewhere.
    pub shared_elsewhere: u64,
    /// Problems that were found but not reported, because the check keeps a bounded number of them.
    pub unlisted: u64,
}

/// The totals of a check: the numbers of records, the largest numbers found, and the usage that follows from
/// the inodes.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) checked: Checked,
    pub(crate) usage: Usage,
    pub(crate) quotas: Counts,
    pub(crate) last_ino: Ino,
    pub(crate) last_slice: SliceId,
    pub(crate) last_session: SessionId,
}

impl Totals {
    /// Notes an inode number that the counter must be above. Numbers from [`Ino::TRASH`] on are ignored,
    /// because the counter never reaches them: the first is that of the trash, and only damage causes the
    /// others.
    pub(crate) fn note_ino(&mut self, ino: Ino) {
        if ino < Ino::TRASH {
            self.last_ino = self.last_ino.max(ino);
        }
    }
}

/// A check in progress.
pub(crate) struct Run<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) scope: &'a CheckScope,
    /// The largest number of inodes or slices in memory.
    pub(crate) window: usize,
    pub(crate) totals: Totals,
    pub(crate) report: &'a mut dyn FnMut(Problem),
    /// Called with the kind of records, and how many have been checked so far.
    pub(crate) progress: &'a mut dyn FnMut(&'static str, u64),
}
