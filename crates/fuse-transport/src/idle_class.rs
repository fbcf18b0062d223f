//! Lets a caller stay on its CPU when its request is answered.
//!
//! The kernel wakes a caller while the ring thread that gives the reply still runs. So the CPU of both is busy, and the
//! scheduler moves the caller to an idle CPU (`select_idle_sibling`), from where its next request goes to the ring
//! thread of that CPU. To wake an idle CPU takes tens of microseconds in a virtual machine, longer than most
//! operations. But if only threads of the class `SCHED_IDLE` run on a CPU, the scheduler treats it as idle
//! (`sched_idle_cpu`). Therefore busy ring threads run in this class: the caller stays, runs at once, and the ring
//! thread continues when the caller waits for its next request.
//!
//! A thread of this class gets hardly any time while other threads want its CPU. So a watcher looks at all ring
//! threads every few milliseconds. It puts a thread that serves requests into the class, and takes it out again
//! - if it served no request since the last look;
//! - for a while, if it waited for its CPU most of the time;
//! - for a while, if the callers keep all CPUs busy. Then no caller would move, and the class would only let them
//!   interrupt the ring threads.
//!
//! A thread that a ring thread starts inherits its CPU and its class, so new threads begin with [`reset`].

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

/// The pause between two looks.
const TICK: Duration = Duration::from_millis(4);
/// A thread that serves this many requests in a tick enters the class.
const BUSY: u64 = 2;
/// The watcher sleeps after this many ticks without a request. No thread is in the class by then.
const QUIET_TICKS: u32 = 8;
/// After this many requests, a ring thread looks whether the watcher sleeps.
const WAKE_EVERY: u64 = 16;
/// If all CPUs are busy in this many ticks in succession, all threads leave the class.
const CROWDED_TICKS: u32 = 3;
/// How long a thread stays out of the class at first. If it must leave again within the same time, it stays out twice
/// as long, up to the maximum.
const PAUSE: Duration = Duration::from_millis(32);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// The watcher looks for threads that have inherited the class every so many ticks.
const SWEEP_TICKS: u32 = 64;

/// The CPUs and the class of new threads of this process, except those that a ring thread starts. Set before the first ring
/// thread is pinned.
static ORDINARY: OnceLock<(CpuSet, Option<i32>)> = OnceLock::new();

/// Makes all threads of this process begin with [`reset`] from now on. `cpus` are those that this process may use.
pub(crate) fn reset_new_threads(cpus: &CpuSet) {
    let _ = ORDINARY.set((*cpus, sched::class_of(0)));
    host::set_thread_start(reset);
}

/// Gives the calling thread the CPUs and the class that it would have if no ring thread had started it.
fn reset() {
    let Some((cpus, class)) = ORDINARY.get() else { return };
    let _ = rustix::thread::sched_setaffinity(None, cpus);
    if *class == Some(sched::OTHER) && sched::class_of(0) == Some(sched::IDLE) {
        let _ = sched::set(0, sched::OTHER);
    }
}

/// The watcher of a mount, and what it knows about the ring threads. Dropping it ends the watcher.
#[derive(Debug)]
pub(crate) struct IdleClass {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    seats: Vec<Seat>,
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
    /// Starts the watcher of ring threads that are pinned to these CPUs, one element for each thread. `None` if callers
    /// cannot move because there is one CPU; if the administrator chose another class or a higher priority for this
    /// process; or if no thread can enter and leave the class.
    pub(crate) fn start(cpus: &[usize]) -> Option<IdleClass> {
        if cpus.iter().all(|cpu| Some(cpu) == cpus.first()) || !is_usable() {
            return None;
        }
        let shared = Arc::new(Shared::new(cpus));
        let watched = Arc::clone(&shared);
        let watcher = thread::Builder::new().name("limen-idle".into()).spawn(move || watched.watch());
        let watcher =
            watcher.inspect_err(|error| tracing::warn!(%error, "cannot watch the ring threads")).ok()?;
        let _ = shared.watcher.set(watcher.thread().clone());
        Some(IdleClass { shared, watcher: Some(watcher) })
    }

    /// Counts the requests of the calling thread, which is the ring thread `index` of those given to [`Self::start`].
    pub(crate) fn count(&self, index: usize) -> Counted<'_> {
        let seat = &self.shared.seats[index];
        *seat.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(own_id());
        Counted { shared: &self.shared, seat, served: seat.served.load(Ordering::Relaxed) }
    }
}

/// Whether the threads of this process can enter the class and leave it again, and may.
fn is_usable() -> bool {
    let is_ordinary = sched::class_of(0) == Some(sched::OTHER)
        && rustix::process::getpriority_process(None).is_ok_and(|nice| nice >= 0);
    // Without /proc, or with the /proc of another PID namespace, the watcher would not see that a thread waits.
    if !is_ordinary || !fs::exists(format!("/proc/self/task/{}/stat", own_id())).unwrap_or(false) {
        return false;
    }
    // Without CAP_SYS_NICE, a thread cannot leave the class, so another thread tries it.
    let try_both = || sched::set(0, sched::IDLE).is_ok() && sched::set(0, sched::OTHER).is_ok();
    thread::Builder::new().spawn(try_both).is_ok_and(|tried| tried.join().unwrap_or(false))
}

fn own_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
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
        *self.seat.thread.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if sched::class_of(0) == Some(sched::IDLE) {
            let _ = sched::set(0, sched::OTHER);
        }
    }
}

/// What the watcher knows about a thread.
#[derive(Debug)]
struct Watched<'a> {
    seat: &'a Seat,
    served: u64,
    is_idle_class: bool,
    /// The last pause, and its end.
    pause: Duration,
    paused_until: Instant,
    /// `/proc/self/task/ID/schedstat`, and how long the thread had waited for its CPU at the last look.
    stat: Option<File>,
    waited: Duration,
}

impl<'a> Watched<'a> {
    fn new(seat: &'a Seat) -> Self {
        Watched {
            seat,
            served: 0,
            is_idle_class: false,
            pause: Duration::ZERO,
            paused_until: Instant::now(),
            stat: None,
            waited: Duration::ZERO,
        }
    }

    /// Changes the class of the thread, if it serves and has one of these two.
    fn set(&mut self, is_idle_class: bool) {
        let (from, to) =
            if is_idle_class { (sched::OTHER, sched::IDLE) } else { (sched::IDLE, sched::OTHER) };
        let thread = match self.seat.thread.try_lock() {
            Ok(thread) => thread,
            Err(TryLockError::Poisoned(thread)) => thread.into_inner(),
            // It begins or ends.
            Err(TryLockError::WouldBlock) => return,
        };
        self.is_idle_class = false;
        let Some(id) = *thread else { return };
        if sched::class_of(id) != Some(from) {
            return;
        }
        match sched::set(id, to) {
            Ok(()) => self.is_idle_class = is_idle_class,
            Err(error) => tracing::debug!(%error, id, "cannot change the class of a ring thread"),
        }
        if self.is_idle_class {
            self.stat = File::open(format!("/proc/self/task/{id}/schedstat")).ok();
            self.waited = self.read_waited();
        }
    }

    fn pause(&mut self) {
        self.set(false);
        let now = Instant::now();
        let is_again = now < self.paused_until + self.pause;
        self.pause = if is_again { (self.pause * 2).clamp(PAUSE, MAX_PAUSE) } else { PAUSE };
        self.paused_until = now + self.pause;
    }

    fn is_paused(&self) -> bool {
        Instant::now() < self.paused_until
    }

    /// How long the thread has waited for its CPU, up to the last time that it got it.
    fn read_waited(&self) -> Duration {
        let mut line = [0; 64];
        let read = self.stat.as_ref().and_then(|stat| stat.read_at(&mut line, 0).ok()).unwrap_or(0);
        std::str::from_utf8(&line[..read]).ok().and_then(waited_of).unwrap_or_default()
    }

    /// Whether the thread is ready to run, but does not run.
    fn is_ready(&self) -> bool {
        let id = self.seat.thread.try_lock().ok().and_then(|thread| *thread);
        id.is_some_and(|id| {
            let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat"));
            stat.is_ok_and(|stat| is_ready(&stat))
        })
    }

    /// Whether the thread waited for its CPU for three quarters of the time since the last look. It also waits while its
    /// caller computes, but a caller whose requests matter computes less.
    fn is_starved(&mut self, served: u64, elapsed: Duration) -> bool {
        let waited = self.read_waited();
        let waited = waited.saturating_sub(std::mem::replace(&mut self.waited, waited));
        waited > elapsed * 3 / 4 || served == 0 && self.is_ready()
    }
}

/// Whether a line of `/proc/PID/stat` has the state R. The state follows the name, which may contain parentheses.
fn is_ready(stat: &str) -> bool {
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R'))
}

/// The second number of `/proc/PID/schedstat`: nanoseconds of waiting for a CPU.
fn waited_of(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// The ring threads, as the watcher sees them. When this is dropped, also because of a panic, all leave the class.
#[derive(Debug)]
struct Watch<'a> {
    all: Vec<Watched<'a>>,
    looked: Instant,
    /// The number of ticks in succession in which the callers kept all CPUs busy.
    crowded: u32,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.all.iter_mut().filter(|watched| watched.is_idle_class).for_each(|watched| watched.set(false));
    }
}

impl Shared {
    fn new(cpus: &[usize]) -> Shared {
        let seat = |cpu: &usize| Seat { cpu: *cpu, served: AtomicU64::new(0), thread: Mutex::new(None) };
        Shared {
            seats: cpus.iter().map(seat).collect(),
            is_asleep: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            watcher: OnceLock::new(),
        }
    }

    fn watch(&self) {
        let mut watch = Watch::new(&self.seats);
        let (mut quiet, mut since_sweep) = (0, 0);
        while !self.is_ending.load(Ordering::Acquire) {
            if quiet >= QUIET_TICKS {
                watch.sweep();
                quiet = 0;
                self.is_asleep.store(true, Ordering::Release);
                while self.is_asleep.load(Ordering::Acquire) && !self.is_ending.load(Ordering::Acquire) {
                    thread::park();
                }
                continue;
            }
            thread::park_timeout(TICK);
            quiet = if watch.look() == 0 { quiet + 1 } else { 0 };
            since_sweep += 1;
            if since_sweep >= SWEEP_TICKS {
                watch.sweep();
                since_sweep = 0;
            }
        }
    }
}

impl<'a> Watch<'a> {
    fn new(seats: &'a [Seat]) -> Self {
        Watch { all: seats.iter().map(Watched::new).collect(), looked: Instant::now(), crowded: 0 }
    }

    /// Looks at all threads, and changes their classes. Returns how many requests they have served since the last look.
    fn look(&mut self) -> u64 {
        let elapsed = self.looked.elapsed();
        self.looked = Instant::now();
        let mut total = 0;
        // The requests of the threads that were in the class, or would have been without their pause.
        let mut of_cpus: HashMap<usize, u64> = HashMap::new();
        for watched in &mut self.all {
            let before = std::mem::replace(&mut watched.served, watched.seat.served.load(Ordering::Relaxed));
            let served = watched.served - before;
            total += served;
            let of_cpu = of_cpus.entry(watched.seat.cpu).or_default();
            if watched.is_idle_class || watched.is_paused() {
                *of_cpu += served;
            }
            if !watched.is_idle_class {
                if served >= BUSY && !watched.is_paused() {
                    watched.set(true);
                }
            } else if watched.is_starved(served, elapsed) {
                watched.pause();
            } else if served == 0 {
                watched.set(false);
            }
        }
        // Whether each CPU has at least half of its share.
        let cpus = of_cpus.len() as u64;
        let is_crowded = total > 0 && of_cpus.values().all(|served| served * 2 * cpus >= total);
        self.crowded = if is_crowded { self.crowded + 1 } else { 0 };
        if self.crowded >= CROWDED_TICKS {
            self.all.iter_mut().filter(|watched| watched.is_idle_class).for_each(Watched::pause);
        }
        total
    }

    /// Takes all threads of this process out of the class, except ring threads.
    fn sweep(&self) {
        let id_of = |watched: &Watched<'_>| watched.seat.thread.try_lock().ok().and_then(|thread| *thread);
        let ring_threads: HashSet<i32> = self.all.iter().filter_map(id_of).collect();
        let ids = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        for id in ids.filter(|id| !ring_threads.contains(id)) {
            if sched::class_of(id) == Some(sched::IDLE) {
                let _ = sched::set(id, sched::OTHER);
            }
        }
    }
}

/// The scheduling classes of Linux. These are system calls, because musl's functions of the same names only fail.
mod sched {
    use std::ffi::{c_int, c_long};
    use std::io;

    // `include/uapi/linux/sched.h`
    pub(super) const OTHER: c_int = 0;
    pub(super) const IDLE: c_int = 5;

    #[cfg(target_arch = "x86_64")]
    const SET_AND_GET: Option<(c_long, c_long)> = Some((144, 145));
    #[cfg(target_arch = "aarch64")]
    const SET_AND_GET: Option<(c_long, c_long)> = Some((119, 120));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const SET_AND_GET: Option<(c_long, c_long)> = None;

    /// `struct sched_param`
    #[repr(C)]
    struct Param {
        priority: c_int,
    }

    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }

    /// Sets the scheduling class of a thread; 0 is the calling thread.
    ///
    /// # Errors
    /// EPERM without the right to leave [`IDLE`]; ESRCH; [`io::ErrorKind::Unsupported`] on an unknown architecture.
    pub(super) fn set(thread: i32, class: c_int) -> io::Result<()> {
        let (set, _) = SET_AND_GET.ok_or(io::ErrorKind::Unsupported)?;
        let param = Param { priority: 0 };
        // SAFETY: sched_setscheduler(2) reads the param, which outlives the call, and checks the other two.
        match unsafe { syscall(set, thread, class, &raw const param) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The scheduling class of a thread; 0 is the calling thread.
    pub(super) fn class_of(thread: i32) -> Option<c_int> {
        let (_, get) = SET_AND_GET?;
        // SAFETY: sched_getscheduler(2) takes an integer.
        c_int::try_from(unsafe { syscall(get, thread) }).ok().filter(|class| *class >= 0)
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

    /// Ring threads of a test.
    struct Threads {
        does: AtomicU8,
        ids: Vec<OnceLock<i32>>,
        _exclusive: MutexGuard<'static, ()>,
    }

    /// Ends the threads, also if the test fails.
    struct End<'a>(&'a Threads);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.does.store(END, Ordering::Relaxed);
        }
    }

    impl Threads {
        /// `None`, and reports a skip, without the right to leave the class. One test runs at a time, because
        /// [`Watch::sweep`] looks at all threads of the process.
        fn new(count: usize) -> Option<Threads> {
            static EXCLUSIVE: Mutex<()> = Mutex::new(());
            let exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
            if !skip::is_root() {
                return None;
            }
            if !is_usable() {
                skip::unsupported("threads that enter and leave SCHED_IDLE: CAP_SYS_NICE");
                return None;
            }
            let ids = (0..count).map(|_| OnceLock::new()).collect();
            Some(Threads { does: AtomicU8::new(SERVE), ids, _exclusive: exclusive })
        }

        fn run(&self, mut counted: Counted<'_>, index: usize) {
            self.ids[index].set(own_id()).unwrap();
            loop {
                match self.does.load(Ordering::Relaxed) {
                    SERVE => counted.request(),
                    SPIN => std::hint::spin_loop(),
                    WAIT => thread::sleep(Duration::from_millis(300)),
                    _ => return,
                }
            }
        }

        #[track_caller]
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
        let Some(threads) = Threads::new(1) else { return };
        let idle_class = IdleClass::start(&[0, 1]).unwrap();
        thread::scope(|scope| {
            let _end = End(&threads);
            scope.spawn(|| threads.run(idle_class.count(0), 0));
            threads.until_class_of(0, sched::IDLE);
            threads.does.store(WAIT, Ordering::Relaxed);
            threads.until_class_of(0, sched::OTHER);
            until(|| idle_class.shared.is_asleep.load(Ordering::Relaxed));
            threads.does.store(SERVE, Ordering::Relaxed);
            threads.until_class_of(0, sched::IDLE);
        });
    }

    #[test]
    fn thread_that_waits_for_a_cpu_leaves_the_class_for_a_while() {
        let Some(threads) = Threads::new(1) else { return };
        let idle_class = IdleClass::start(&[0, 1]).unwrap();
        thread::scope(|scope| {
            let _end = End(&threads);
            scope.spawn(|| threads.run(idle_class.count(0), 0));
            threads.until_class_of(0, sched::IDLE);
            threads.does.store(SPIN, Ordering::Relaxed);
            threads.until_class_of(0, sched::OTHER);
            threads.does.store(SERVE, Ordering::Relaxed);
            let left = Instant::now();
            threads.until_class_of(0, sched::IDLE);
            // The thread left at most a look and a poll before this was seen.
            assert!(left.elapsed() + 2 * TICK >= PAUSE, "{:?}", left.elapsed());
        });
    }

    #[test]
    fn threads_leave_the_class_if_all_cpus_are_busy() {
        let Some(threads) = Threads::new(4) else { return };
        let shared = Shared::new(&[0, 0, 1, 1]);
        threads.does.store(WAIT, Ordering::Relaxed);
        thread::scope(|scope| {
            let _end = End(&threads);
            for index in 0..4 {
                let (threads, shared) = (&threads, &shared);
                scope.spawn(move || {
                    let seat = &shared.seats[index];
                    *seat.thread.lock().unwrap() = Some(own_id());
                    threads.run(Counted { shared, seat, served: 0 }, index);
                });
            }
            until(|| threads.ids.iter().all(|id| id.get().is_some()));
            let mut watch = Watch::new(&shared.seats);
            let mut after = |served: [u64; 4]| {
                for (seat, served) in shared.seats.iter().zip(served) {
                    seat.served.fetch_add(served, Ordering::Relaxed);
                }
                watch.looked = Instant::now().checked_sub(TICK).unwrap();
                assert_eq!(watch.look(), served.iter().sum::<u64>());
                let classes = watch.all.iter().map(|watched| if watched.is_idle_class { 'I' } else { '.' });
                classes.collect::<String>()
            };
            assert_eq!(after([BUSY - 1, BUSY, 0, 0]), ".I..");
            assert_eq!(after([BUSY, BUSY, 0, BUSY]), "II.I");
            // CPU 1 has less than half of its share, as often as it wants.
            for _ in 0..9 {
                assert_eq!(after([40, 40, 0, 20]), "II.I");
            }
            for _ in 1..CROWDED_TICKS {
                assert_eq!(after([40, 40, 0, 30]), "II.I");
            }
            assert_eq!(after([40, 40, 0, 30]), "....");
            assert_eq!(after([40, 40, 0, 30]), "....");
        });
    }

    #[test]
    fn thread_that_a_ring_thread_has_started_leaves_the_class() {
        let Some(_threads) = Threads::new(0) else { return };
        let (send, ids) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                sched::set(0, sched::IDLE).unwrap();
                let (wait, end) = std::sync::mpsc::channel::<()>();
                thread::spawn(move || {
                    send.send(own_id()).unwrap();
                    let _ = end.recv();
                });
                let id = ids.recv().unwrap();
                assert_eq!(sched::class_of(id), Some(sched::IDLE));
                Watch::new(&[]).sweep();
                assert_eq!(sched::class_of(id), Some(sched::OTHER));
                drop(wait);
            });
        });
    }

    #[test]
    fn new_threads_have_neither_the_cpu_nor_the_class_of_a_ring_thread() {
        let Some(_threads) = Threads::new(0) else { return };
        let all = rustix::thread::sched_getaffinity(None).unwrap();
        reset_new_threads(&all);
        let started = thread::spawn(move || {
            sched::set(0, sched::IDLE).unwrap();
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            let (send, receive) = std::sync::mpsc::channel();
            host::spawn("new", move || {
                let _ =
                    send.send((sched::class_of(0), rustix::thread::sched_getaffinity(None).unwrap() == all));
            })
            .unwrap();
            receive.recv().unwrap()
        });
        assert_eq!(started.join().unwrap(), (Some(sched::OTHER), true));
    }

    #[test]
    fn numbers_of_proc_are_read() {
        assert!(is_ready("17 (limen-ring-0) R 1 17 17 0"));
        assert!(is_ready("17 (a) S (b) R 1"));
        for other in ["17 (limen-ring-0) S 1 17", "17 (a) R (b) D 1", "17 R", ""] {
            assert!(!is_ready(other), "{other}");
        }
        assert_eq!(waited_of("17 2000000 5\n"), Some(Duration::from_millis(2)));
        assert_eq!(waited_of("17\n"), None);
    }
}
