//! Lets a caller stay on its CPU when its request is answered.
//!
//! The kernel wakes a caller while the ring thread that gives the reply still runs. So the CPU of both is busy, and the
//! scheduler moves the caller to an idle CPU (`select_idle_sibling`), from where its next request goes to the ring thread of
//! that CPU. To wake an idle CPU takes tens of microseconds in a virtual machine, longer than most operations. But if only
//! threads of the class `SCHED_IDLE` run on a CPU, the scheduler treats it as idle (`sched_idle_cpu`). Therefore busy ring
//! threads run in this class: the caller stays, runs at once, and the ring thread continues when the caller waits for its
//! next request.
//!
//! A thread of this class gets hardly any time while other threads want its CPU. So a watcher looks at all ring threads
//! every few milliseconds. It puts a thread that serves requests into the class, and takes it out again
//! - if it served no request since the last look. If it was ready to run nevertheless, it stays out for a while;
//! - for a while, if the callers keep all CPUs busy. Then no caller would move, and the class would only let them
//!   interrupt the ring threads.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The pause between two looks: the longest time for which a thread of the class waits for a CPU is between one and two of
/// these.
const TICK: Duration = Duration::from_millis(4);
/// A thread that serves this many requests in a tick enters the class.
const BUSY: u64 = 2;
/// The watcher sleeps after this many ticks without a request.
const QUIET_TICKS: u32 = 250;
/// After this many requests, a ring thread looks whether the watcher sleeps.
const WAKE_EVERY: u64 = 16;
/// If all CPUs are busy in this many ticks in succession, no thread stays in the class.
const CROWDED_TICKS: u32 = 3;
/// How long a thread stays out of the class at first. If it must leave again within the same time, it stays out twice as
/// long, up to the maximum.
const PAUSE: Duration = Duration::from_millis(32);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// A thread that a ring thread of the class starts inherits the class. The watcher looks for such threads every so many
/// ticks.
const SWEEP_TICKS: u32 = 250;

/// The watcher of a mount, and what it knows about the ring threads. Dropping it ends the watcher.
#[derive(Debug)]
pub(crate) struct IdleClass {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    seats: Vec<Seat>,
    /// The number of CPUs that have ring threads.
    cpus: usize,
    is_asleep: AtomicBool,
    is_ending: AtomicBool,
    watcher: OnceLock<Thread>,
}

/// A ring thread. Aligned so that the counts of two threads are in different cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Seat {
    cpu: usize,
    /// How many requests the thread has served.
    served: AtomicU64,
    /// The thread's id while it serves. Locked while its class changes, so that no other thread has this id by then.
    thread: Mutex<Option<i32>>,
}

/// Counts the requests of a ring thread.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    shared: &'a Shared,
    seat: &'a Seat,
    served: u64,
}

impl IdleClass {
    /// Starts the watcher of ring threads that are pinned to these CPUs, one element for each thread. `None` if no thread
    /// can enter and leave the class, or if callers cannot move because there is one CPU.
    pub(crate) fn start(cpus: &[usize]) -> Option<IdleClass> {
        let distinct = cpus.iter().collect::<HashSet<_>>().len();
        if distinct < 2 {
            return None;
        }
        let seat = |cpu: &usize| Seat { cpu: *cpu, served: AtomicU64::new(0), thread: Mutex::new(None) };
        let shared = Arc::new(Shared {
            seats: cpus.iter().map(seat).collect(),
            cpus: distinct,
            is_asleep: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            watcher: OnceLock::new(),
        });
        let watched = Arc::clone(&shared);
        let watcher = thread::Builder::new().name("limen-watch".into()).spawn(move || {
            // Without CAP_SYS_NICE, a thread cannot leave the class.
            let tried = sched::set(0, sched::IDLE).and_then(|()| sched::set(0, sched::OTHER));
            match tried {
                Ok(()) => watched.watch(),
                Err(error) => tracing::debug!(%error, "the ring threads cannot use SCHED_IDLE"),
            }
        });
        let watcher =
            watcher.inspect_err(|error| tracing::warn!(%error, "cannot watch the ring threads")).ok()?;
        let _ = shared.watcher.set(watcher.thread().clone());
        Some(IdleClass { shared, watcher: Some(watcher) })
    }

    /// Counts the requests of the calling thread, which is the ring thread `index` of those given to [`Self::start`].
    pub(crate) fn count(&self, index: usize) -> Counted<'_> {
        let seat = &self.shared.seats[index];
        // Another class was chosen for the whole process.
        let is_ordinary = sched::class_of(0) == Some(sched::OTHER);
        let own_id = || rustix::thread::gettid().as_raw_nonzero().get();
        *seat.thread.lock().unwrap_or_else(PoisonError::into_inner) = is_ordinary.then(own_id);
        Counted { shared: &self.shared, seat, served: seat.served.load(Ordering::Relaxed) }
    }
}

impl Drop for IdleClass {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        if let Some(watcher) = self.watcher.take() {
            watcher.thread().unpark();
            // If the thread panicked, the panic is in the log.
            let _ = watcher.join();
        }
    }
}

impl Counted<'_> {
    pub(crate) fn request(&mut self) {
        self.served += 1;
        self.seat.served.store(self.served, Ordering::Relaxed);
        if self.served.is_multiple_of(WAKE_EVERY)
            && self.shared.is_asleep.load(Ordering::Relaxed)
            && self.shared.is_asleep.swap(false, Ordering::AcqRel)
            && let Some(watcher) = self.shared.watcher.get()
        {
            watcher.unpark();
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let thread = self.seat.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some() {
            let _ = sched::set(0, sched::OTHER);
        }
    }
}

/// What the watcher knows about a thread.
struct Watched<'a> {
    seat: &'a Seat,
    served: u64,
    is_idle_class: bool,
    /// The last pause, and its end.
    pause: Duration,
    paused_until: Instant,
}

impl<'a> Watched<'a> {
    fn new(seat: &'a Seat) -> Self {
        Watched { seat, served: 0, is_idle_class: false, pause: Duration::ZERO, paused_until: Instant::now() }
    }

    /// Changes the class of the thread, if it serves.
    fn set(&mut self, is_idle_class: bool) {
        let thread = match self.seat.thread.try_lock() {
            Ok(thread) => thread,
            Err(TryLockError::Poisoned(thread)) => thread.into_inner(),
            // It begins or ends.
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(id) = *thread else {
            self.is_idle_class = false;
            return;
        };
        let policy = if is_idle_class { sched::IDLE } else { sched::OTHER };
        match sched::set(id, policy) {
            Ok(()) => self.is_idle_class = is_idle_class,
            Err(error) => tracing::debug!(%error, id, "cannot change the class of a ring thread"),
        }
    }

    fn pause(&mut self) {
        self.set(false);
        let now = Instant::now();
        let is_again = now < self.paused_until + self.pause;
        self.pause = if is_again { (self.pause * 2).clamp(PAUSE, MAX_PAUSE) } else { PAUSE };
        self.paused_until = now + self.pause;
    }

    fn is_ready_to_run(&self) -> bool {
        let id = self.seat.thread.try_lock().ok().and_then(|thread| *thread);
        id.is_some_and(|id| {
            let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat"));
            stat.is_ok_and(|stat| is_ready_to_run(&stat))
        })
    }
}

/// Whether a line of `/proc/PID/stat` has the state R. The state follows the name, which may contain parentheses.
fn is_ready_to_run(stat: &str) -> bool {
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R'))
}

impl Shared {
    fn watch(&self) {
        let mut all: Vec<Watched<'_>> = self.seats.iter().map(Watched::new).collect();
        let (mut quiet, mut crowded, mut since_sweep) = (0, 0, 0);
        while !self.is_ending.load(Ordering::Acquire) {
            if quiet >= QUIET_TICKS {
                sweep(&all);
                quiet = 0;
                self.is_asleep.store(true, Ordering::Release);
                while self.is_asleep.load(Ordering::Acquire) && !self.is_ending.load(Ordering::Acquire) {
                    thread::park();
                }
                continue;
            }
            thread::park_timeout(TICK);
            let (served, busy_cpus) = look(&mut all);
            quiet = if served == 0 { quiet + 1 } else { 0 };
            crowded = if busy_cpus == self.cpus { crowded + 1 } else { 0 };
            if crowded >= CROWDED_TICKS {
                all.iter_mut().for_each(Watched::pause);
                crowded = 0;
            }
            since_sweep += 1;
            if since_sweep >= SWEEP_TICKS {
                sweep(&all);
                since_sweep = 0;
            }
        }
        all.iter_mut().filter(|watched| watched.is_idle_class).for_each(|watched| watched.set(false));
    }
}

/// Looks at all threads. Returns how many requests they have served since the last look, and the number of CPUs whose threads
/// of the class have served a good part of these.
fn look(all: &mut [Watched<'_>]) -> (u64, usize) {
    let mut total = 0;
    let mut of_class: Vec<(usize, u64)> = Vec::new();
    for watched in all {
        let before = std::mem::replace(&mut watched.served, watched.seat.served.load(Ordering::Relaxed));
        let served = watched.served - before;
        total += served;
        if !watched.is_idle_class {
            if served >= BUSY && Instant::now() >= watched.paused_until {
                watched.set(true);
            }
        } else if served > 0 {
            of_class.push((watched.seat.cpu, served));
        } else if watched.is_ready_to_run() {
            watched.pause();
        } else {
            watched.set(false);
        }
    }
    let busy = of_class.into_iter().filter(|(_, served)| served * 8 >= total).map(|(cpu, _)| cpu);
    (total, busy.collect::<HashSet<_>>().len())
}

/// Takes all threads of this process out of the class, except ring threads.
fn sweep(all: &[Watched<'_>]) {
    let ring_threads: HashSet<i32> = all
        .iter()
        .filter_map(|watched| watched.seat.thread.try_lock().ok().and_then(|thread| *thread))
        .collect();
    let ids = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for id in ids.filter(|id| !ring_threads.contains(id)) {
        if sched::class_of(id) == Some(sched::IDLE) {
            let _ = sched::set(id, sched::OTHER);
        }
    }
}

mod sched {
    use std::ffi::c_int;
    use std::io;

    // `sched.h`
    pub(super) const OTHER: c_int = 0;
    pub(super) const IDLE: c_int = 5;

    #[repr(C)]
    struct Param {
        priority: c_int,
    }

    // SAFETY: the declarations are those of `sched.h`; a `Param` is a `struct sched_param`, which is only read.
    // sched_setscheduler(2) and sched_getscheduler(2) reject ids and classes that they do not know.
    unsafe extern "C" {
        safe fn sched_setscheduler(thread: c_int, class: c_int, param: &Param) -> c_int;
        safe fn sched_getscheduler(thread: c_int) -> c_int;
    }

    /// Sets the scheduling class of a thread; 0 is the calling thread.
    ///
    /// # Errors
    /// EPERM without the right to leave [`IDLE`]; ESRCH; ENOSYS with a C library that lacks the call.
    pub(super) fn set(thread: i32, class: c_int) -> io::Result<()> {
        match sched_setscheduler(thread, class, &Param { priority: 0 }) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The scheduling class of a thread; 0 is the calling thread.
    pub(super) fn class_of(thread: i32) -> Option<c_int> {
        let class = sched_getscheduler(thread);
        (class >= 0).then_some(class)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;
    use std::sync::atomic::AtomicU8;

    use super::*;

    const SERVE: u8 = 0;
    const SPIN: u8 = 1;
    const WAIT: u8 = 2;
    const END: u8 = 3;
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// What the threads of a test do, and their ids. One test runs at a time, because [`sweep`] looks at all threads of the
    /// process.
    struct Threads {
        does: AtomicU8,
        ids: Vec<OnceLock<i32>>,
        _exclusive: MutexGuard<'static, ()>,
    }

    impl Threads {
        /// `None`, and reports a skip, without the right to leave the class.
        fn new(count: usize) -> Option<Threads> {
            static EXCLUSIVE: Mutex<()> = Mutex::new(());
            let exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
            let ids = (0..count).map(|_| OnceLock::new()).collect();
            skip::is_root().then_some(Threads { does: AtomicU8::new(SERVE), ids, _exclusive: exclusive })
        }

        fn run(&self, idle_class: &IdleClass, index: usize) {
            let mut counted = idle_class.count(index);
            self.ids[index].set(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            loop {
                match self.does.load(Ordering::Relaxed) {
                    SERVE => counted.request(),
                    SPIN => std::hint::spin_loop(),
                    WAIT => thread::park(),
                    _ => return,
                }
            }
        }

        fn until_class_of(&self, index: usize, class: i32) {
            until(|| self.ids[index].get().is_some_and(|id| sched::class_of(*id) == Some(class)));
        }
    }

    #[track_caller]
    fn until(holds: impl Fn() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !holds() {
            assert!(Instant::now() < deadline, "timed out");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn thread_is_in_the_class_while_it_serves() {
        let Some(threads) = Threads::new(2) else { return };
        let idle_class = IdleClass::start(&[0, 1]).unwrap();
        thread::scope(|scope| {
            let ring = scope.spawn(|| threads.run(&idle_class, 0));
            threads.until_class_of(0, sched::IDLE);
            threads.does.store(WAIT, Ordering::Relaxed);
            threads.until_class_of(0, sched::OTHER);
            until(|| idle_class.shared.is_asleep.load(Ordering::Relaxed));
            threads.does.store(SERVE, Ordering::Relaxed);
            ring.thread().unpark();
            threads.until_class_of(0, sched::IDLE);
            threads.does.store(END, Ordering::Relaxed);
        });
    }

    #[test]
    fn thread_that_waits_for_a_cpu_leaves_the_class_for_a_while() {
        let Some(threads) = Threads::new(2) else { return };
        let idle_class = IdleClass::start(&[0, 1]).unwrap();
        thread::scope(|scope| {
            let began = Instant::now();
            scope.spawn(|| threads.run(&idle_class, 0));
            threads.until_class_of(0, sched::IDLE);
            threads.does.store(SPIN, Ordering::Relaxed);
            threads.until_class_of(0, sched::OTHER);
            threads.does.store(SERVE, Ordering::Relaxed);
            threads.until_class_of(0, sched::IDLE);
            assert!(began.elapsed() >= PAUSE);
            threads.does.store(END, Ordering::Relaxed);
        });
    }

    #[test]
    fn threads_leave_the_class_if_all_cpus_are_busy() {
        let Some(threads) = Threads::new(2) else { return };
        let idle_class = IdleClass::start(&[0, 1]).unwrap();
        threads.does.store(WAIT, Ordering::Relaxed);
        thread::scope(|scope| {
            let rings = [0, 1].map(|index| {
                scope.spawn({
                    let (threads, idle_class) = (&threads, &idle_class);
                    move || threads.run(idle_class, index)
                })
            });
            [0, 1].iter().for_each(|index| until(|| threads.ids[*index].get().is_some()));
            // A watcher of its own, which looks only now.
            let seats = &idle_class.shared.seats;
            let mut all: Vec<Watched<'_>> = seats.iter().map(Watched::new).collect();
            let mut serve = |served: [u64; 2]| {
                for (seat, served) in seats.iter().zip(served) {
                    seat.served.fetch_add(served, Ordering::Relaxed);
                }
                look(&mut all)
            };
            assert_eq!(serve([BUSY - 1, BUSY]), (2 * BUSY - 1, 0));
            assert_eq!(serve([BUSY, 3]), (BUSY + 3, 0));
            assert_eq!(serve([10, 90]), (100, 1));
            assert_eq!(serve([20, 80]), (100, 2));
            assert_eq!(serve([0, 80]), (80, 1));
            assert!(!all[0].is_idle_class && all[1].is_idle_class);
            threads.does.store(END, Ordering::Relaxed);
            rings.iter().for_each(|ring| ring.thread().unpark());
        });
    }

    #[test]
    fn thread_that_a_ring_thread_has_started_leaves_the_class() {
        let Some(_threads) = Threads::new(0) else { return };
        let (send, ids) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                sched::set(0, sched::IDLE).unwrap();
                let started = thread::spawn(move || {
                    send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                    thread::park();
                });
                let id = ids.recv().unwrap();
                assert_eq!(sched::class_of(id), Some(sched::IDLE));
                sweep(&[]);
                assert_eq!(sched::class_of(id), Some(sched::OTHER));
                started.thread().unpark();
            });
        });
    }

    #[test]
    fn state_of_a_thread_is_read_behind_its_name() {
        assert!(is_ready_to_run("17 (limen-ring-0) R 1 17 17 0"));
        assert!(is_ready_to_run("17 (a) S (b) R 1"));
        for other in ["17 (limen-ring-0) S 1 17", "17 (a) R (b) D 1", "17 R", ""] {
            assert!(!is_ready_to_run(other), "{other}");
        }
    }
}
