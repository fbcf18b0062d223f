//! Removes old backups.
//!
//! The newest 24 backups remain, and also the first of each hour of the last day, the first of each day of
//! the last month, and the first of each month of the last year. A month has 31 days here. Ages are those at
//! the time of the backup that was just made. This backup remains, and so do all that seem to be made later,
//! because the clock of this machine or of another one may be wrong.

use std::collections::BTreeSet;

use chunk::{BackupId, BlockStore, ChunkError, StoredBackup};

const HOUR: u64 = 3600 * 1_000_000_000;
const DAY: u64 = 24 * HOUR;
const MONTH: u64 = 31 * DAY;
const YEAR: u64 = 366 * DAY;

/// The number of newest backups that are kept whatever their age, even if the id of the last one comes from a
/// wrong clock.
const NEWEST: usize = 24;

/// The greatest age of a span, and the length of its periods, in nanoseconds. In each span, the first backup
/// of each period is kept.
const SPANS: [(u64, u64); 3] = [(DAY, HOUR), (MONTH, DAY), (YEAR, MONTH)];

/// At this age, in nanoseconds, a backup that is not complete is not being written any more.
pub(crate) const ABANDONED: u64 = DAY;

/// Removes the backups that are not kept after the complete backup `made`, and returns how many.
///
/// # Errors
/// The store fails. The call may be repeated.
pub fn remove_old(store: &BlockStore, made: BackupId) -> Result<u64, ChunkError> {
    let surplus = surplus(&store.backups()?, made);
    surplus.iter().try_for_each(|backup| store.remove_backup(*backup))?;
    Ok(surplus.len() as u64)
}

/// The backups that are not kept after `made`. `all` begins with the newest one.
fn surplus(all: &[StoredBackup], made: BackupId) -> Vec<BackupId> {
    let known: Vec<&StoredBackup> = all.iter().filter(|backup| backup.id <= made).collect();
    let complete: Vec<u64> =
        known.iter().filter(|backup| backup.is_complete).map(|backup| backup.id.0).collect();
    let age = |backup: u64| made.0.saturating_sub(backup);
    let mut kept: BTreeSet<u64> = complete.iter().take(NEWEST).copied().collect();
    for (span, period) in SPANS {
        let mut last = None;
        // Begin with the oldest backup. The periods do not move, so the first backup of a period stays the
        // first one.
        for &backup in complete.iter().rev().filter(|backup| age(**backup) <= span) {
            if last.replace(backup / period) != Some(backup / period) {
                kept.insert(backup);
            }
        }
    }
    let is_surplus = |backup: &&&StoredBackup| match backup.is_complete {
        true => !kept.contains(&backup.id.0),
        false => age(backup.id.0) > ABANDONED,
    };
    known.iter().filter(is_surplus).map(|backup| backup.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000 * 1_000_000_000;

    /// Makes a backup every `every`, and thins after each, for `long`. Returns the ages that are left, the
    /// lowest first.
    fn after(every: u64, long: u64) -> Vec<u64> {
        let mut all: Vec<StoredBackup> = Vec::new();
        let mut now = NOW;
        while now <= NOW + long {
            all.insert(0, StoredBackup { id: BackupId(now), is_complete: true });
            let surplus = surplus(&all, BackupId(now));
            all.retain(|backup| !surplus.contains(&backup.id));
            now += every;
        }
        let newest = all[0].id.0;
        all.iter().map(|backup| newest - backup.id.0).collect()
    }

    #[test]
    fn a_year_of_hourly_backups_is_thinned() {
        let ages = after(HOUR, 3 * YEAR);
        let count = |from: u64, to: u64| ages.iter().filter(|age| (from..to).contains(*age)).count();
        assert_eq!(count(0, DAY), 24);
        assert!((29..=31).contains(&count(DAY + 1, MONTH)), "{}", count(DAY, MONTH));
        assert!((10..=12).contains(&count(MONTH + 1, YEAR + 1)), "{}", count(MONTH + 1, YEAR + 1));
        assert_eq!(count(YEAR + 1, u64::MAX), 0);
    }

    #[test]
    fn frequent_backups_are_thinned_to_hours_and_rare_ones_are_kept() {
        let ages = after(HOUR / 60, 2 * DAY);
        assert!(ages[..24].iter().enumerate().all(|(at, age)| *age == at as u64 * HOUR / 60));
        assert!((24 + 24..24 + 28).contains(&ages.len()), "{}", ages.len());
        assert_eq!(after(3 * YEAR, 30 * YEAR).len(), 11);
    }

    #[test]
    fn a_wrong_clock_leaves_the_newest_backups() {
        let mut all: Vec<StoredBackup> = (0..100)
            .map(|hours| StoredBackup { id: BackupId(NOW - hours * HOUR), is_complete: true })
            .collect();
        all.insert(0, StoredBackup { id: BackupId(NOW + 20 * YEAR), is_complete: true });
        assert_eq!(all.len() - surplus(&all, all[0].id).len(), 24);
        // The clock is right again. A backup with a future id does not make the others older.
        for hours in 1..30 {
            let made = BackupId(NOW + hours * HOUR);
            all.insert(1, StoredBackup { id: made, is_complete: true });
            let surplus = surplus(&all, made);
            assert!(!surplus.contains(&all[0].id) && !surplus.contains(&made), "{hours}");
            all.retain(|backup| !surplus.contains(&backup.id));
        }
        let hourly = all.iter().filter(|backup| backup.id > BackupId(NOW + 5 * HOUR));
        assert_eq!(hourly.count(), 25, "the last 24, and the one of the future");
    }

    #[test]
    fn a_backup_by_a_slow_clock_is_kept() {
        let all: Vec<StoredBackup> = (0..100)
            .map(|hours| StoredBackup { id: BackupId(NOW - hours * HOUR), is_complete: true })
            .collect();
        let made = all[60].id;
        let surplus = surplus(&all, made);
        assert!(!surplus.is_empty() && surplus.iter().all(|backup| *backup < made), "{surplus:?}");
    }

    #[test]
    fn a_backup_that_is_being_written_is_kept() {
        let backup = |age: u64, is_complete| StoredBackup { id: BackupId(NOW - age), is_complete };
        let all = [backup(0, false), backup(1, true), backup(DAY - HOUR, false), backup(DAY + HOUR, false)];
        assert_eq!(surplus(&all, BackupId(NOW - 1)), [BackupId(NOW - DAY - HOUR)]);
    }
}
