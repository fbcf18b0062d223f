//! Access times: which reads move them, and how that is written down.

use types::{Ino, Time};

use crate::driver::{Ctx, Op, Plan};
use crate::txn::Effect;
use crate::view::{Stop, View};

/// Which reads move an inode's atime, `mount(8)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimeMode {
    /// None: `noatime`.
    #[default]
    Never,
    /// The first one after a change of the inode, and one a day: `relatime`.
    Relative,
    /// Every one: `strictatime`.
    Always,
}

/// Under `relatime` an atime as old as this is moved by the next read, in nanoseconds.
const A_DAY_NANOS: i64 = 86_400 * 1_000_000_000;

impl AtimeMode {
    /// Whether a read at `now` moves the atime of an inode with these times. Twin of `relatime_need_update`.
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

/// Writes down when inodes were read last; those that are gone by now are passed over. It looks at nothing, and so meets
/// no conflict.
#[derive(Debug)]
pub struct Accessed(pub Vec<(Ino, Time)>);

impl Op for Accessed {
    type Reply = ();
    const NAME: &'static str = "accessed";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        let touch =
            |&(ino, atime): &(Ino, Time)| Effect::Touch { ino, atime: Some(atime), mtime: None, ctime: None };
        Ok(Plan { reply: (), effects: self.0.iter().map(touch).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatime_moves_what_is_older_than_a_change_or_than_a_day() {
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
