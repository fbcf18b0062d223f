//! State shared by the threads of all mounts, and the conditions of a history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use types::Ino;

use super::scheduler;
use crate::machine::Clocks;
use crate::mutant::Mutant;
use crate::world::World;

/// The number of files that the programs use.
pub(super) const FILES: usize = 8;

/// The conditions that the seed selects.
#[derive(Clone, Debug)]
pub(super) struct Weather {
    /// The duration of the history.
    pub(super) horizon: Duration,
    /// The upper bound of the time that a request takes one way.
    pub(super) delay: Duration,
    /// One of this many requests fails; 0 means none.
    pub(super) faults: u64,
    /// The maximum time in ms between two actions of a program.
    pub(super) idle_ms: u64,
    pub(super) halts: Vec<scheduler::Halt>,
}

/// State shared by the threads of all mounts.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) mutant: Option<Mutant>,
    pub(super) weather: Weather,
    pub(super) clocks: Arc<Clocks>,
    pub(super) world: Mutex<World>,
    pub(super) files: Mutex<Vec<Ino>>,
    /// The modes of each file, each with the time when it was set.
    pub(super) modes: Mutex<BTreeMap<Ino, Vec<(Duration, u32)>>>,
    pub(super) chmods: AtomicU32,
}

impl Shared {
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    pub(super) fn files(&self) -> MutexGuard<'_, Vec<Ino>> {
        lock(&self.files)
    }

    pub(super) fn delay(&self) -> Duration {
        Duration::from_nanos(host::random() % self.weather.delay.as_nanos() as u64)
    }

    pub(super) fn note_mode(&self, ino: Ino, mode: u32) {
        lock(&self.modes).entry(ino).or_default().push((self.clocks.now(), mode));
    }

    /// Whether the file had the mode at that time or later.
    pub(super) fn was_mode(&self, ino: Ino, mode: u32, since: Duration) -> bool {
        let modes = lock(&self.modes);
        let Some(of_file) = modes.get(&ino) else { return true };
        let first = of_file.partition_point(|(from, _)| *from <= since).saturating_sub(1);
        of_file[first..].iter().any(|(_, was)| *was == mode)
    }

    /// A mode that no file has had for a long time.
    pub(super) fn next_mode(&self) -> u32 {
        self.chmods.fetch_add(1, Relaxed) % 0o777 + 1
    }

    /// Whether the client stood still at some moment in the last `within`.
    pub(super) fn has_stood_still(&self, client: usize, within: Duration) -> bool {
        let now = self.clocks.now();
        let is_near = |halt: &scheduler::Halt| halt.from <= now && halt.to + within > now;
        self.weather.halts.iter().any(|halt| halt.client == client && is_near(halt))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
