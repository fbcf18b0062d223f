//! Access times: which reads update them, and how the updates are stored.

use meta::Effect;
use types::{Ino, Time};

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// The reads that update an inode's atime; see `mount(8)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimeMode {
    /// No read: `noatime`.
    #[default]
    Never,
    /// The first read after a change of the inode, and at most one other read per day: `relatime`.
    Relative,
    /// Every read: `strictatime`.
    Always,
}

/// With `relatime`, a read updates an atime that is at least this old, in nanoseconds.
const A_DAY_NANOS: i64 = 86_400 * 1_000_000_000;

impl AtimeMode {
    /// Whether a read at `now` updates the atime of an inode with these times. Equivalent to
    /// `relatime_need_update` in fs/inode.c.
    pub fn is_due(self, atime: Time, mtime: Time, ctime: Time, now: Time) -> bool {
        match self {
            AtimeMode::Never => false,
            AtimeMode::Relative => {
                atime <= mtime || atime <= ctime || now.nanos().saturating_sub(atime.nanos()) >= A_DAY_NANOS
            }
            AtimeMode::Always => true,
        }
    }
}

/// Stores when inodes were last read. Inodes that no longer exist are skipped. The plan adds no guards, so it
/// conflicts with no other change of the inodes.
#[derive(Debug)]
pub struct SetAtimes(pub Vec<(Ino, Time)>);

impl Op for SetAtimes {
    type Reply = ();
    const NAME: &'static str = "accessed";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let set_atime = |&(ino, atime): &(Ino, Time)| Effect::SetTimes {
            ino,
            atime: Some(atime),
            mtime: None,
            ctime: None,
        };
        Ok(Plan { reply: (), effects: self.0.iter().map(set_atime).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatime_updates_an_atime_older_than_a_change_or_than_a_day() {
        let time = |sec| Time::new(sec, 0);
        let due = |atime, mtime, ctime, now| {
            AtimeMode::Relative.is_due(time(atime), time(mtime), time(ctime), time(now))
        };
        assert!(due(10, 10, 10, 11), "as old as the change");
        assert!(due(10, 9, 11, 11), "older than a change of attributes");
        assert!(!due(12, 10, 11, 12 + 86_399));
        assert!(due(12, 10, 11, 12 + 86_400), "a day");
        assert!(!due(1 << 40, 10, 11, 12), "in the future");
        assert!(!AtimeMode::Never.is_due(time(0), time(1), time(1), time(1 << 30)));
        assert!(AtimeMode::Always.is_due(time(5), time(1), time(1), time(5)));
    }
}
