//! The last automatic backup of a volume's metadata. It is a setting, by which the mounts agree which of them makes the
//! next one.

use std::time::Duration;

use types::Time;

/// The time between two automatic backups unless `limen config` changes it, in seconds.
pub const DEFAULT_BACKUP_SECS: u64 = 3600;

/// A backup takes at most one part in so many of the time.
const LEISURE: u32 = 8;

/// When a backup began.
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

    /// When the next backup is due: after `interval`, or later if this one took long. If this one began in the future by
    /// more than that, a clock was wrong, and the next one is due now.
    pub fn next_due(&self, interval: Duration, now: Time) -> Time {
        let took = Duration::from_secs(self.took_secs.unwrap_or(0));
        let pause = i64::try_from(interval.max(took.saturating_mul(LEISURE)).as_nanos()).unwrap_or(i64::MAX);
        match self.began.nanos() > now.nanos().saturating_add(pause) {
            true => now,
            false => Time::from_nanos(self.began.nanos().saturating_add(pause)),
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
        let at = |secs: i64| Time::new(secs, 0);
        let due = |began, took_secs, now| {
            LastBackup { began: at(began), took_secs }.next_due(Duration::from_secs(60), at(now)).sec()
        };
        assert_eq!((due(100, None, 100), due(100, Some(7), 500), due(100, Some(100), 500)), (160, 160, 900));
        // The clock of the mount that made it was ahead.
        assert_eq!((due(150, None, 100), due(161, None, 100)), (210, 100));
    }
}
