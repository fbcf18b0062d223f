//! The clocks of the simulated machines: one machine for each client, and one for the tools.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use host::sim::Machine;

use crate::mutant::Mutant;
use crate::port::{self, Request};
use crate::rng::Rng;

/// The time of each client. Threads run one at a time, so relaxed memory ordering is enough.
#[derive(Debug)]
pub(crate) struct Clocks {
    now_nanos: AtomicU64,
    /// The total time for which each client was suspended.
    suspended_nanos: Vec<AtomicU64>,
    /// By how much the wall clock of each client was set forwards or backwards.
    set_nanos: Vec<AtomicI64>,
    mutant: Option<Mutant>,
}

impl Clocks {
    pub(crate) fn new(clients: usize, mutant: Option<Mutant>) -> Self {
        Clocks {
            now_nanos: AtomicU64::new(0),
            suspended_nanos: (0..clients).map(|_| AtomicU64::new(0)).collect(),
            set_nanos: (0..clients).map(|_| AtomicI64::new(0)).collect(),
            mutant,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.now_nanos.load(Relaxed))
    }

    pub(crate) fn advance_to(&self, now: Duration) {
        self.now_nanos.fetch_max(nanos(now), Relaxed);
    }

    /// A suspend of the client's machine: all its clocks advance except the monotonic one.
    pub(crate) fn suspend(&self, client: usize, time: Duration) {
        if let Some(suspended) = self.suspended_nanos.get(client) {
            suspended.fetch_add(nanos(time), Relaxed);
        }
    }

    /// Moves the wall clock of the client's machine forwards by this many seconds, or backwards if it is
    /// negative.
    pub(crate) fn set(&self, client: usize, seconds: i64) {
        if let Some(set) = self.set_nanos.get(client) {
            set.fetch_add(seconds * 1_000_000_000, Relaxed);
        }
    }

    fn set_nanos(&self, client: usize) -> i64 {
        self.set_nanos.get(client).map_or(0, |set| set.load(Relaxed))
    }

    pub(crate) fn monotonic(&self, client: usize) -> Duration {
        let suspended = self.suspended_nanos.get(client).map_or(0, |suspended| suspended.load(Relaxed));
        self.now().saturating_sub(Duration::from_nanos(suspended))
    }

    pub(crate) fn since_boot(&self, client: usize) -> Duration {
        // Each machine was booted at a different time, days ago.
        let boot = Duration::from_secs(200_000 * (client as u64 + 1));
        match self.mutant {
            Some(Mutant::StoppedClock) => boot + self.monotonic(client),
            Some(Mutant::WallClock) => {
                let set = self.set_nanos(client);
                Duration::from_nanos(nanos(boot + self.now()).saturating_add_signed(set))
            }
            _ => boot + self.now(),
        }
    }

    pub(crate) fn nanos_since_epoch(&self, client: usize) -> i128 {
        const BEGIN_SEC: u64 = 1_700_000_000;
        let set = i128::from(self.set_nanos(client));
        (Duration::from_secs(BEGIN_SEC) + self.now()).as_nanos() as i128 + set
    }
}

/// The machine of a client's threads.
#[derive(Debug)]
pub(crate) struct Simulated {
    pub(crate) clocks: Arc<Clocks>,
    pub(crate) client: usize,
    pub(crate) rng: RefCell<Rng>,
}

impl Machine for Simulated {
    fn monotonic(&self) -> Duration {
        self.clocks.monotonic(self.client)
    }

    fn since_boot(&self) -> Duration {
        self.clocks.since_boot(self.client)
    }

    fn nanos_since_epoch(&self) -> i128 {
        self.clocks.nanos_since_epoch(self.client)
    }

    fn sleep(&self, time: Duration) {
        port::send(Request::Sleep(self.clocks.now() + time));
    }

    fn random(&self) -> u64 {
        self.rng.borrow_mut().number()
    }

    fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
