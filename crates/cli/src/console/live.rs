//! The work of the mounts on this machine, from the same figures as `limen stats`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::console::Failure;
use ::console::model::{Fact, Live, LiveOperation, Tone};
use command::registry::Entry;
use command::units::show_size;

use super::opened::{Opened, engine_failed};
use crate::sessions::sessions;
use crate::stats::{Moment, Row};
use crate::status::mount_here;

/// Mounts on a page.
const MOUNTS: usize = 8;
/// Rates that are kept for each mount.
const HISTORY: usize = 90;
/// The shortest time between two readings of a mount, and the age from which a reading is too old to compute
/// rates.
const SHORTEST: Duration = Duration::from_millis(700);
const LONGEST: Duration = Duration::from_secs(30);

/// The text for a mount that was read only once.
const NO_FIGURES: &str = "no figures yet";

/// The readings of mounts, by device number.
#[derive(Debug, Default)]
pub(super) struct Meters(Mutex<HashMap<u64, Meter>>);

#[derive(Default)]
struct Meter {
    last: Option<Moment>,
    shown: Option<Live>,
    history: VecDeque<f64>,
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").finish_non_exhaustive()
    }
}

impl Meters {
    pub(super) fn read(&self, opened: &Opened<'_>) -> Result<Vec<Live>, Failure> {
        let sessions = sessions(&*opened.engine).map_err(engine_failed)?;
        let mounts: Vec<Entry> = sessions.iter().filter_map(mount_here).take(MOUNTS).collect();
        let mut is_first = false;
        for mount in &mounts {
            // The figures are differences, so the first page needs two readings.
            if self.age(mount).is_none_or(|age| age > LONGEST)
                && let Ok(moment) = Moment::read(mount)
            {
                self.change(mount, |meter| *meter = Meter { last: Some(moment), ..Meter::default() });
                is_first = true;
            }
        }
        if is_first {
            thread::sleep(Duration::from_secs(1));
        }
        let live = mounts.iter().map(|mount| self.of(mount)).collect();
        let mut meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        meters.retain(|device, _| mounts.iter().any(|mount| mount.device == *device));
        Ok(live)
    }

    fn of(&self, mount: &Entry) -> Live {
        let is_fresh = self.age(mount).is_some_and(|age| age < SHORTEST);
        let known = self.change(mount, |meter| meter.shown.clone());
        if let (true, Some(known)) = (is_fresh, known) {
            return known;
        }
        let now = Moment::read(mount);
        self.change(mount, |meter| {
            // Another page may have read the mount meanwhile. Rates over no or almost no time say nothing.
            let is_late = match (&now, &meter.last) {
                (Ok(now), Some(last)) => now.at.saturating_duration_since(last.at) < SHORTEST,
                _ => false,
            };
            if is_late {
                return meter.shown.clone().unwrap_or_else(|| without_figures(mount, NO_FIGURES.to_owned()));
            }
            let live = match (now, meter.last.take()) {
                (Ok(now), Some(last)) => {
                    let row = Row::between(&last, &now);
                    meter.history.push_back(row.requests);
                    if meter.history.len() > HISTORY {
                        meter.history.pop_front();
                    }
                    let operations = Row::operations(&last, &now);
                    meter.last = Some(now);
                    Live {
                        mountpoint: mount.mountpoint.to_string_lossy().into_owned(),
                        seconds: row.seconds,
                        figures: figures(&row),
                        operations: operations
                            .into_iter()
                            .map(|row| LiveOperation {
                                name: row.name,
                                per_second: row.per_second,
                                mean_ms: row.mean_ms,
                            })
                            .collect(),
                        history: meter.history.iter().copied().collect(),
                        trouble: None,
                    }
                }
                (now, _) => {
                    let trouble = now.err().map_or(NO_FIGURES.to_owned(), |error| error.to_string());
                    without_figures(mount, trouble)
                }
            };
            meter.shown = Some(live.clone());
            live
        })
    }

    /// The age of the last reading.
    fn age(&self, mount: &Entry) -> Option<Duration> {
        self.change(mount, |meter| {
            meter.last.as_ref().map(|last| Instant::now().saturating_duration_since(last.at))
        })
    }

    fn change<T>(&self, mount: &Entry, change: impl FnOnce(&mut Meter) -> T) -> T {
        let mut meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(meters.entry(mount.device).or_default())
    }
}

fn without_figures(mount: &Entry, trouble: String) -> Live {
    Live {
        mountpoint: mount.mountpoint.to_string_lossy().into_owned(),
        seconds: 0.0,
        figures: Vec::new(),
        operations: Vec::new(),
        history: Vec::new(),
        trouble: Some(trouble),
    }
}

fn figures(row: &Row) -> Vec<Fact> {
    let ms = |mean: Option<f64>| mean.map_or("–".to_owned(), |mean| format!("{mean:.3} ms"));
    let size = |bytes: f64| show_size(bytes as u64);
    let errors = if row.store_errors > 0.0 { Tone::Bad } else { Tone::Plain };
    vec![
        Fact::new("Requests per second", format!("{:.0}", row.requests)),
        Fact::new("Mean time", ms(row.request_ms)),
        Fact::new("Read per second", size(row.read_bytes)),
        Fact::new("Written per second", size(row.written_bytes)),
        Fact::new("Database per second", format!("{:.0}", row.round_trips)),
        Fact::new("Database, mean", ms(row.round_trip_ms)),
        Fact::new("Retries, conflicts", format!("{:.0}, {:.0}", row.retries, row.conflicts)),
        Fact::new(
            "Found in cache",
            row.cached_share.map_or("–".to_owned(), |share| format!("{:.1} %", share * 100.0)),
        ),
        Fact::new("Store per second", format!("{:.0}", row.store_requests)),
        Fact::new("Store, mean", ms(row.store_ms)),
        Fact::new("Store errors", format!("{:.0}", row.store_errors)).tone(errors),
        Fact::new("Not stored yet", size(row.unstored_bytes)),
        Fact::new("Memory", size(row.memory_bytes)),
    ]
}
