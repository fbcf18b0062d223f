//! State shared by the threads of all mounts, and the conditions of a history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use journal::Memory;
use types::Ino;

use super::journals::MachineJournals;
use super::place::Place;
use super::scheduler;
use crate::cut::{Cut, Kind};
use crate::machine::Clocks;
use crate::mounts::store::{Store, StoreConditions};
use crate::mutant::Mutant;
use crate::world::World;
use crate::xattrs::Value;

pub(super) const CLIENTS: usize = 2;
pub(super) const PROGRAMS: u64 = 2;
/// The number of files that the programs use.
pub(super) const FILES: usize = 8;
/// The maximum number of records in a client's cache.
pub(super) const CACHE_RECORDS: usize = 1000;

/// The conditions that the seed selects.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    /// The duration of the history.
    pub(super) horizon: Duration,
    /// The upper bound of the time that a request takes one way.
    pub(super) delay: Duration,
    /// One of this many requests fails; 0 means none.
    pub(super) faults: u64,
    /// The maximum time in ms between two actions of a program.
    pub(super) idle_ms: u64,
    /// If a poll of a stream finds changes, in one of this many cases some of them are removed from the log
    /// unread; 0 means never.
    pub(super) trims: u64,
    /// Whether tools run beside the mounts.
    pub(super) has_tools: bool,
    /// Whether mounts hold the directories that they create.
    pub(super) holds_directories: bool,
    /// One of this many commits of queued changes is slow; 0 means none.
    pub(super) slow_commits: u64,
    /// Whether all mounts are on one machine, and so each sees the journals of the others.
    pub(super) shares_machine: bool,
    pub(super) store: StoreConditions,
    pub(super) events: scheduler::Events,
}

/// The values of each object, each with the time when it was set.
#[derive(Debug)]
pub(super) struct Past<K, V>(pub(super) BTreeMap<K, Vec<(Duration, V)>>);

impl<K: Ord, V> Past<K, V> {
    pub(super) fn note(&mut self, key: K, now: Duration, value: V) {
        self.0.entry(key).or_default().push((now, value));
    }

    /// Whether `is` holds for one of the values at that time or later. `None` if the object has no known
    /// value.
    pub(super) fn had(&self, key: &K, since: Duration, is: impl Fn(&V) -> bool) -> Option<bool> {
        let all = self.0.get(key)?;
        let first = all.partition_point(|(from, _)| *from <= since).saturating_sub(1);
        Some(all[first..].iter().any(|(_, was)| is(was)))
    }
}

impl<K, V> Default for Past<K, V> {
    fn default() -> Self {
        Past(BTreeMap::new())
    }
}

/// The values of each attribute; `None` while it does not exist.
type PastXattrs = Past<(Ino, Vec<u8>), Option<Value>>;

/// State shared by the threads of all mounts.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) seed: u64,
    pub(super) mutant: Option<Mutant>,
    pub(super) cut: Cut,
    /// The number of decisions of each kind.
    pub(super) decisions: [AtomicUsize; Kind::COUNT],
    pub(super) conditions: Conditions,
    pub(super) clocks: Arc<Clocks>,
    pub(super) world: Mutex<World>,
    pub(super) store: Store,
    pub(super) files: Mutex<Vec<Ino>>,
    pub(super) modes: Mutex<Past<Ino, u32>>,
    pub(super) xattrs: Mutex<PastXattrs>,
    /// The directories of the programs.
    pub(super) places: Mutex<Vec<Arc<Place>>>,
    pub(super) journals: [Memory; CLIENTS],
    pub(super) chmods: AtomicU32,
}

impl Shared {
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    pub(super) fn files(&self) -> MutexGuard<'_, Vec<Ino>> {
        lock(&self.files)
    }

    pub(super) fn journals_of(&self, client: usize) -> MachineJournals {
        let machine = if self.conditions.shares_machine { 0 } else { client };
        MachineJournals { memory: self.journals[machine].clone(), mutant: self.mutant }
    }

    pub(super) fn delay(&self) -> Duration {
        Duration::from_nanos(host::random() % self.conditions.delay.as_nanos() as u64)
    }

    /// Whether the next decision of this kind is carried out.
    pub(super) fn decide(&self, kind: Kind) -> bool {
        let number = self.decisions[kind as usize].fetch_add(1, Relaxed);
        !self.cut.has(kind, number)
    }

    /// Like [`Self::decide`], for the decision with this number.
    pub(super) fn decide_numbered(&self, kind: Kind, number: usize) -> bool {
        self.decisions[kind as usize].fetch_max(number + 1, Relaxed);
        !self.cut.has(kind, number)
    }

    pub(super) fn trace(&self, what: &str) {
        let line = format!("{:?}: {what}", self.clocks.now());
        self.world().trace.push(line);
    }

    pub(super) fn note_mode(&self, ino: Ino, mode: u32) {
        lock(&self.modes).note(ino, self.clocks.now(), mode);
    }

    /// Whether the file had the mode at that time or later.
    pub(super) fn was_mode(&self, ino: Ino, mode: u32, since: Duration) -> bool {
        lock(&self.modes).had(&ino, since, |was| *was == mode).unwrap_or(true)
    }

    pub(super) fn note_xattr(&self, ino: Ino, name: &[u8], value: Option<Value>) {
        let key = (ino, name.to_owned());
        let mut xattrs = lock(&self.xattrs);
        if !xattrs.0.contains_key(&key) {
            xattrs.note(key.clone(), Duration::ZERO, None);
        }
        xattrs.note(key, self.clocks.now(), value);
    }

    /// Whether `is` holds for one of the values of the attribute at that time or later; `None` is its
    /// absence.
    pub(super) fn was_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        since: Duration,
        is: impl Fn(Option<Value>) -> bool,
    ) -> bool {
        let had = lock(&self.xattrs).had(&(ino, name.to_owned()), since, |was| is(*was));
        had.unwrap_or_else(|| is(None))
    }

    /// A mode that no file has had for a long time.
    pub(super) fn next_mode(&self) -> u32 {
        self.chmods.fetch_add(1, Relaxed) % 0o777 + 1
    }

    /// Whether the client stood still at some moment in the last `within`.
    pub(super) fn has_stood_still(&self, client: usize, within: Duration) -> bool {
        let now = self.clocks.now();
        let is_near = |halt: &scheduler::Halt| halt.from <= now && halt.to + within > now;
        self.conditions.events.halts.iter().any(|halt| halt.client == client && is_near(halt))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
