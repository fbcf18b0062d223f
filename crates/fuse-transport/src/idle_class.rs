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

/// The pause between two looks.
const TICK: Duration = Duration::from_millis(4);
/// A thread that serves this many requests in a tick enters the class.
const BUSY: u64 = 2;
/// The watcher sleeps after this many ticks without a request. No thread is in the class by then.
const QUIET_TICKS: u32 = 8;
/// A ring thread looks after every so many requests whether the watcher sleeps.
const WAKE_EVERY: u64 = 16;
/// If all CPUs are busy in this many ticks in succession, all threads leave the class.
const CROWDED_TICKS: u32 = 3;
/// How long a thread stays out of the class at first. If it must leave again within the same time, it stays out twice
/// as long, up to the maximum.
const PAUSE: Duration = Duration::from_millis(32);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// The watcher looks for threads that have inherited the class every so many ticks.
const SWEEP_TICKS: u32 = 64;

/// Gives the calling thread the CPUs and the class of the process's main thread if it has inherited those of a ring
/// thread: one CPU, or this class.
pub(crate) fn reset() {
    let main = rustix::process::getpid();
    let cpus_of = |thread| rustix::thread::sched_getaffinity(thread).ok();
    if cpus_of(None).is_some_and(|cpus| cpus.count() == 1)
        && let Some(cpus) = cpus_of(Some(main))
    {
        let _ = rustix::thread::sched_setaffinity(None, &cpus);
    }
    if sched::class_of(0) == Some(sched::IDLE)
        && sched::class_of(main.as_raw_nonzero().get()) == Some(sched::OTHER)
    {
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
    /// The thread's id while it serves. Locked while its class changes, so that the thread cannot end, and no
    /// other thread can get its id.
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
    /// cannot move because there is one CPU; if the administrator chose another class or a higher priority
    /// for this process; or if no thread can enter and leave the class, or be watched.
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

/// Whether the administrator has left this process in its ordinary class and priority, its threads can enter
/// the class and leave it again, and the watcher can read how long they wait.
fn is_usable() -> bool {
    let is_ordinary = sched::class_of(0) == Some(sched::OTHER)
        && rustix::process::getpriority_process(None).is_ok_and(|nice| nice >= 0);
    // Without these numbers, or with the /proc of another PID namespace, the watcher would not see that a thread waits.
    let times = File::open(schedstat_of(own_id())).ok().and_then(|stat| Times::read(&stat));
    if !is_ordinary || times.is_none() {
        return false;
    }
    // Without CAP_SYS_NICE or a sufficient RLIMIT_NICE, a thread cannot leave the class (sched(7)). So
    // another thread tries it.
    let try_both = || sched::set(0, sched::IDLE).is_ok() && sched::set(0, sched::OTHER).is_ok();
    thread::Builder::new().spawn(try_both).is_ok_and(|tried| tried.join().unwrap_or(false))
}

fn schedstat_of(thread: i32) -> String {
    format!("/proc/self/task/{thread}/schedstat")
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
    /// `/proc/self/task/ID/schedstat`, and its content at the last look. `None` outside of the class.
    times: Option<(File, Times)>,
}

/// How long a thread has run, and how long it has waited for its CPU, without the present wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    ran: Duration,
    waited: Duration,
}

impl Times {
    /// `None` if the thread has ended.
    fn read(schedstat: &File) -> Option<Times> {
        let mut line = [0; 64];
        let read = schedstat.read_at(&mut line, 0).ok()?;
        Times::parse(std::str::from_utf8(&line[..read]).ok()?)
    }

    /// The first two numbers are nanoseconds (`Documentation/scheduler/sched-stats.rst`).
    fn parse(schedstat: &str) -> Option<Times> {
        let mut numbers = schedstat.split_whitespace().map(|number| number.parse().map(Duration::from_nanos));
        Some(Times { ran: numbers.next()?.ok()?, waited: numbers.next()?.ok()? })
    }
}

impl<'a> Watched<'a> {
    fn new(seat: &'a Seat) -> Self {
        Watched {
            seat,
            served: 0,
            is_idle_class: false,
            pause: Duration::ZERO,
            paused_until: Instant::now(),
            times: None,
        }
    }

    /// Changes the class of the thread, if it serves and has one of the two classes.
    fn set(&mut self, is_idle_class: bool) {
        let thread = match self.seat.thread.try_lock() {
            Ok(thread) => thread,
            Err(TryLockError::Poisoned(thread)) => thread.into_inner(),
            // The thread begins or ends.
            Err(TryLockError::WouldBlock) => return,
        };
        let class = thread.and_then(sched::class_of);
        let (Some(id), Some(sched::OTHER | sched::IDLE)) = (*thread, class) else {
            self.is_idle_class = false;
            return;
        };
        let times = || {
            File::open(schedstat_of(id)).ok().and_then(|file| Times::read(&file).map(|times| (file, times)))
        };
        self.times = if is_idle_class { times() } else { None };
        let wanted = if self.times.is_some() { sched::IDLE } else { sched::OTHER };
        let changed = if class == Some(wanted) { Ok(()) } else { sched::set(id, wanted) };
        self.is_idle_class = wanted == sched::IDLE;
        if let Err(error) = changed {
            tracing::debug!(%error, id, "cannot change the class of a ring thread");
            // The watcher tries it again.
            self.is_idle_class = class == Some(sched::IDLE);
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

    /// Whether the thread runs or is ready to run.
    fn is_ready(&self) -> bool {
        let id = self.seat.thread.try_lock().ok().and_then(|thread| *thread);
        id.is_some_and(|id| {
            let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat"));
            stat.is_ok_and(|stat| is_ready(&stat))
        })
    }

    /// Whether the thread waited for its CPU for more than 3/4 of the time since the last look, or still
    /// waits. It also waits while its caller computes, but a caller whose requests matter computes less.
    fn is_starved(&mut self, served: u64, elapsed: Duration) -> bool {
        let Some((file, before)) = &mut self.times else { return true };
        let Some(now) = Times::read(file) else { return true };
        let before = std::mem::replace(before, now);
        let (ran, waited) = (now.ran.saturating_sub(before.ran), now.waited.saturating_sub(before.waited));
        waited > elapsed * 3 / 4 || served == 0 && ran < elapsed / 4 && self.is_ready()
    }
}

/// Whether a line of `/proc/PID/stat` has the state R. The state follows the name, which may contain parentheses.
fn is_ready(stat: &str) -> bool {
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R'))
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
    use std::sync::mpsc::channel;

    use rustix::thread::CpuSet;

    use super::*;
    use crate::cpus::pin;

    const SERVE: u8 = 0;
    const WAIT: u8 = 1;
    const END: u8 = 2;
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
                    WAIT => thread::sleep(Duration::from_millis(50)),
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
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).unwrap();
        let is_wanted = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = End(&threads);
            scope.spawn(|| {
                pin(cpu).unwrap();
                threads.run(idle_class.count(0), 0);
            });
            // Another program that wants the CPU.
            scope.spawn(|| {
                pin(cpu).unwrap();
                while threads.does.load(Ordering::Relaxed) != END {
                    if !is_wanted.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            threads.until_class_of(0, sched::IDLE);
            is_wanted.store(true, Ordering::Relaxed);
            let id = *threads.ids[0].get().unwrap();
            // A moment at which the thread was still in the class.
            let mut was_in = Instant::now();
            let deadline = was_in + TIMEOUT;
            loop {
                let now = Instant::now();
                assert!(now < deadline, "timed out");
                match sched::class_of(id) {
                    Some(sched::IDLE) => was_in = now,
                    _ => break,
                }
            }
            is_wanted.store(false, Ordering::Relaxed);
            threads.until_class_of(0, sched::IDLE);
            assert!(was_in.elapsed() >= PAUSE, "{:?}", was_in.elapsed());
        });
    }

    #[test]
    fn threads_leave_the_class_if_all_cpus_are_busy() {
        let Some(_threads) = Threads::new(0) else { return };
        let shared = Shared::new(&[0, 0, 1, 1]);
        thread::scope(|scope| {
            // The threads wait until these are dropped, also if the test fails.
            let mut waits = Vec::new();
            for seat in &shared.seats {
                let (wait, end) = channel::<()>();
                waits.push(wait);
                scope.spawn(move || {
                    *seat.thread.lock().unwrap() = Some(own_id());
                    let _ = end.recv();
                });
            }
            let mut watch = Watch::new(&shared.seats);
            until(|| {
                let waits = |watched: &Watched<'_>| {
                    watched.seat.thread.lock().unwrap().is_some() && !watched.is_ready()
                };
                watch.all.iter().all(waits)
            });
            let mut after = |served: [u64; 4]| {
                for (seat, served) in shared.seats.iter().zip(served) {
                    seat.served.fetch_add(served, Ordering::Relaxed);
                }
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
        });
    }

    #[test]
    fn thread_that_a_ring_thread_has_started_leaves_the_class() {
        let Some(_threads) = Threads::new(0) else { return };
        let (send, ids) = channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                sched::set(0, sched::IDLE).unwrap();
                let (wait, end) = channel::<()>();
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
        host::set_thread_start(reset);
        let started = thread::spawn(move || {
            sched::set(0, sched::IDLE).unwrap();
            pin((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap()).unwrap();
            let (send, receive) = channel();
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
        let times =
            |ran, waited| Times { ran: Duration::from_millis(ran), waited: Duration::from_millis(waited) };
        assert_eq!(Times::parse("17000000 2000000 5\n"), Some(times(17, 2)));
        assert_eq!(Times::parse("17\n"), None);
    }
}
