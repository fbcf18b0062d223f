//! Simulated machines: the trait by which the simulator provides clocks, threads and random numbers, and the
//! machine that the current thread belongs to.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Add, AddAssign, Sub};
use std::rc::Rc;
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::Duration;

/// A simulated machine, as seen by its threads.
pub trait Machine: fmt::Debug {
    /// A clock that stops while the machine is suspended.
    fn monotonic(&self) -> Duration;
    fn since_boot(&self) -> Duration;
    fn nanos_since_epoch(&self) -> i128;
    fn sleep(&self, time: Duration);
    fn random(&self) -> u64;
    /// Starts a thread that belongs to this machine.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;
}

thread_local! {
    static MACHINE: RefCell<Option<Rc<dyn Machine>>> = const { RefCell::new(None) };
}

/// Makes this thread belong to a simulated machine.
pub fn enter(machine: Rc<dyn Machine>) {
    MACHINE.set(Some(machine));
}

/// Calls `call` with the machine of this thread, if it is a simulated one.
pub(crate) fn with<T>(call: impl FnOnce(&dyn Machine) -> T) -> Option<T> {
    Some(call(&*machine()?))
}

pub(crate) fn machine() -> Option<Rc<dyn Machine>> {
    MACHINE.with_borrow(Option::clone)
}

/// As [`std::time::Instant`]. Moments of a simulated machine can be compared only with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Self {
        static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        // An offset from zero, so that moments before the origin can be represented.
        const BEFORE: Duration = Duration::from_secs(1 << 32);
        Instant(BEFORE + with(|machine| machine.monotonic()).unwrap_or_else(|| ORIGIN.elapsed()))
    }

    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
        self.0.checked_sub(duration).map(Instant)
    }

    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0 + duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0 - duration)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{nanos_since_epoch, random, sleep, time_since_boot};
    use std::cell::Cell;

    #[derive(Debug, Default)]
    struct Frozen(Cell<Duration>);

    impl Machine for Frozen {
        fn monotonic(&self) -> Duration {
            self.0.get()
        }

        fn since_boot(&self) -> Duration {
            self.0.get() * 2
        }

        fn nanos_since_epoch(&self) -> i128 {
            -7
        }

        fn sleep(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }

        fn random(&self) -> u64 {
            9
        }

        fn spawn(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
            Ok(std::thread::spawn(work))
        }
    }

    #[test]
    fn only_threads_of_a_simulated_machine_use_its_clocks() {
        let second = Duration::from_secs(1);
        let thread = std::thread::spawn(move || {
            enter(Rc::new(Frozen::default()));
            let before = Instant::now();
            sleep(second * 3600);
            assert_eq!(before.elapsed(), second * 3600);
            assert_eq!((before - second) + second * 3601, Instant::now());
            assert_eq!(time_since_boot(), second * 7200);
            assert_eq!((nanos_since_epoch(), random()), (-7, 9));
        });
        thread.join().unwrap();
        let before = Instant::now();
        sleep(Duration::from_millis(1));
        assert!(before.elapsed() >= Duration::from_millis(1) && before.elapsed() < second * 3600);
        assert!(nanos_since_epoch() > 0 && time_since_boot() > Duration::ZERO);
        assert_ne!(random(), random());
    }
}
