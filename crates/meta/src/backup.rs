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
    /// If it is not complete: how long it had run, in seconds, when its mount last noted that.
    pub ran_secs: u64,
}

impl LastBackup {
    /// The name of the setting.
    pub const SETTING: &str = "last_backup";

    /// A backup that has just begun.
    pub fn begun(began: Time) -> LastBackup {
        LastBackup { began, took_secs: None, ran_secs: 0 }
    }

    /// The value of the setting. Versions that do not know the `+` parse the number without it, and take the
    /// backup for complete. They do not begin the next one too early, because they also wait for a multiple
    /// of this number.
    pub fn encode(&self) -> String {
        let began = self.began.nanos();
        match (self.took_secs, self.ran_secs) {
            (Some(took), _) => format!("{began} {took}"),
            (None, 0) => began.to_string(),
            (None, ran) => format!("{began} +{ran}"),
        }
    }

    /// Decodes the setting; `None` if it is malformed.
    pub fn decode(text: &str) -> Option<LastBackup> {
        let (began, took) = text.split_once(' ').map_or((text, None), |(began, took)| (began, Some(took)));
        let (took, ran) = match took.map(|took| took.strip_prefix('+').ok_or(took)) {
            Some(Ok(ran)) => (None, Some(ran)),
            Some(Err(took)) => (Some(took), None),
            None => (None, None),
        };
        let took_secs = took.map(str::parse).transpose().ok()?;
        let ran_secs = ran.map_or(Ok(0), str::parse).ok()?;
        Some(LastBackup { began: Time::from_nanos(began.parse().ok()?), took_secs, ran_secs })
    }

    /// The time from this backup to the next one: `interval`, or more if this one took long. If this one is
    /// not complete, the time is counted from the last note that it is still being made.
    pub fn pause(&self, interval: Duration) -> Duration {
        match self.took_secs {
            Some(took) => interval.max(Duration::from_secs(took).saturating_mul(MIN_INTERVAL_FACTOR)),
            None => interval.saturating_add(Duration::from_secs(self.ran_secs)),
        }
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
        for (took_secs, ran_secs) in [(None, 0), (Some(0), 0), (Some(70), 0), (None, 9)] {
            let last = LastBackup { began: Time::from_nanos(-7), took_secs, ran_secs };
            assert_eq!(LastBackup::decode(&last.encode()), Some(last));
        }
        for malformed in ["", "x", "1 ", "1 x", "1 2 3", "1 +"] {
            assert_eq!(LastBackup::decode(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn long_backups_are_made_less_often() {
        let pause = |took_secs| {
            let last = LastBackup { took_secs, ..LastBackup::begun(Time::new(100, 0)) };
            last.pause(Duration::from_secs(60)).as_secs()
        };
        assert_eq!((pause(None), pause(Some(7)), pause(Some(100))), (60, 60, 800));
    }

    #[test]
    fn a_backup_of_the_future_is_new_or_its_clock_is_wrong() {
        let age = |began| {
            let last = LastBackup::begun(Time::new(began, 0));
            last.age(Time::new(100, 0), Duration::from_secs(60)).as_secs()
        };
        assert_eq!((age(30), age(100), age(160), age(161), age(i64::MAX)), (70, 0, 0, 60, 60));
    }
}
