//! The last automatic backup of a volume's metadata, stored as a setting. The mounts use the setting to agree
//! which of them makes the next backup.

use std::time::Duration;

use types::Time;

/// The time between two automatic backups unless `limen config` changes it, in seconds.
pub const DEFAULT_BACKUP_SECS: u64 = 3600;

/// If a backup took `d`, the next one begins no earlier than `MIN_INTERVAL_FACTOR * d` after that backup
/// began. So backups run for at most one eighth of the time.
const MIN_INTERVAL_FACTOR: u32 = 8;

/// When a backup began, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastBackup {
    pub began: Time,
    /// How long it took, in seconds; `None` if it is not known to be complete.
    pub took_secs: Option<u64>,
}

impl LastBackup {
    /// The name of the setting.
    pub const SETTING: &str = "last_backup";

    /// The value of the setting.
    pub fn encode(&self) -> String {
        let took = self.took_secs.map(|secs| format!(" {secs}")).unwrap_or_default();
        format!("{}{took}", self.began.nanos())
    }

    /// Decodes the setting; `None` if it is malformed.
    pub fn decode(text: &str) -> Option<LastBackup> {
        let (began, took) = text.split_once(' ').map_or((text, None), |(began, took)| (began, Some(took)));
        let took_secs = took.map(str::parse).transpose().ok()?;
        Some(LastBackup { began: Time::from_nanos(began.parse().ok()?), took_secs })
    }

    /// The time from this backup to the next one: `interval`, or more if this one took long.
    pub fn pause(&self, interval: Duration) -> Duration {
        interval.max(Duration::from_secs(self.took_secs.unwrap_or(0)).saturating_mul(MIN_INTERVAL_FACTOR))
    }

    /// The time from the beginning of this backup to `now`; zero if the backup began after `now`. If it began
    /// after `now` by more than `pause`, the clock of one machine is wrong, and `pause` is returned, so that
    /// the next backup is due.
    pub fn age(&self, now: Time, pause: Duration) -> Duration {
        let between = now.nanos().abs_diff(self.began.nanos());
        let between = Duration::from_nanos(between);
        match self.began <= now {
            true => between,
            false if between > pause => pause,
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_read_back() {
        for took_secs in [None, Some(0), Some(70)] {
            let last = LastBackup { began: Time::from_nanos(-7), took_secs };
            assert_eq!(LastBackup::decode(&last.encode()), Some(last));
        }
        for malformed in ["", "x", "1 ", "1 x", "1 2 3"] {
            assert_eq!(LastBackup::decode(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn long_backups_are_made_less_often() {
        let pause = |took_secs| {
            let last = LastBackup { began: Time::new(100, 0), took_secs };
            last.pause(Duration::from_secs(60)).as_secs()
        };
        assert_eq!((pause(None), pause(Some(7)), pause(Some(100))), (60, 60, 800));
    }

    #[test]
    fn a_backup_of_the_future_is_new_or_its_clock_is_wrong() {
        let age = |began| {
            let last = LastBackup { began: Time::new(began, 0), took_secs: None };
            last.age(Time::new(100, 0), Duration::from_secs(60)).as_secs()
        };
        assert_eq!((age(30), age(100), age(160), age(161), age(i64::MAX)), (70, 0, 0, 60, 60));
    }
}
