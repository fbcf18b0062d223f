//! The scheduler: one thread runs at a time, until it sleeps or ends. The next one is the thread whose sleep
//! ends first.

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use host::sim::Machine;

use crate::machine::Clocks;
use crate::rng::Rng;

/// Longer than any thread computes between two sleeps.
const STUCK: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Message {
    worker: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    Sleep(Duration),
    New(Thread),
    /// The thread ended; true if it panicked.
    Over(bool),
}

#[derive(Debug)]
struct Thread {
    client: usize,
    /// Tells the thread whether to go on.
    answers: Sender<bool>,
    until: Duration,
}

impl Thread {
    /// Makes the thread unwind. This does nothing if the thread has already ended.
    fn end(&self) {
        let _ = self.answers.send(false);
    }
}

/// A time span in which a client stands still.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halt {
    pub(super) client: usize,
    pub(super) from: Duration,
    pub(super) to: Duration,
    /// Whether its machine is suspended.
    pub(super) is_suspend: bool,
}

/// A moment at which the wall clock of a client's machine is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jump {
    pub(super) client: usize,
    pub(super) at: Duration,
    pub(super) seconds: i64,
}

/// A moment at which the process of a client is killed, and started again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kill {
    pub(super) client: usize,
    pub(super) at: Duration,
}

/// The events of the machines; each list is sorted by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    pub(super) halts: Vec<Halt>,
    pub(super) jumps: Vec<Jump>,
    pub(super) kills: Vec<Kill>,
}

/// The work of a main thread. It runs a client, or the tools, whose number is that of the last client plus 1.
pub(super) type Main = Box<dyn FnOnce() + Send>;

/// The simulated machine, as one thread uses it.
#[derive(Debug)]
struct ThreadMachine {
    clocks: Arc<Clocks>,
    client: usize,
    worker: usize,
    count: Arc<AtomicUsize>,
    seed: u64,
    messages: Sender<Message>,
    answers: Receiver<bool>,
}

/// The panic payload that ends a thread.
struct Ended;

thread_local! {
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
    static RNG: RefCell<Rng> = RefCell::new(Rng::new(0));
}

/// Replaces the random numbers of this thread. A program calls this before each of its acts, so that an act
/// has the same random numbers even if other acts are cut from the history.
pub(super) fn set_rng(rng: Rng) {
    RNG.set(rng);
}

/// The name given to this thread when it was started.
pub(super) fn name() -> String {
    NAME.with_borrow(Clone::clone)
}

impl Machine for ThreadMachine {
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
        if thread::panicking() {
            thread::yield_now();
            return;
        }
        // Add a random time, so that no two threads wake up at the same moment.
        let jitter = Duration::from_nanos(RNG.with_borrow_mut(|rng| rng.below(20_000)) as u64);
        let until = self.clocks.now() + time + jitter;
        let is_sent = self.messages.send(Message { worker: self.worker, what: What::Sleep(until) }).is_ok();
        if !is_sent || !self.answers.recv().unwrap_or(false) {
            resume_unwind(Box::new(Ended));
        }
    }

    fn random(&self) -> u64 {
        RNG.with_borrow_mut(Rng::number)
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        let worker = self.count.fetch_add(1, Relaxed);
        let place = self.place(name, worker, self.client);
        Ok(start(place, self.clocks.now(), work))
    }
}

impl ThreadMachine {
    fn place(&self, name: &str, worker: usize, client: usize) -> (Seat, Sender<Message>) {
        let seat = Seat {
            clocks: Arc::clone(&self.clocks),
            client,
            name: name.to_owned(),
            worker,
            count: Arc::clone(&self.count),
            seed: self.seed,
        };
        (seat, self.messages.clone())
    }
}

/// The name and the machine of a new thread, without its channels to the scheduler.
struct Seat {
    clocks: Arc<Clocks>,
    client: usize,
    name: String,
    worker: usize,
    count: Arc<AtomicUsize>,
    seed: u64,
}

fn start(
    (seat, messages): (Seat, Sender<Message>),
    until: Duration,
    work: Box<dyn FnOnce() + Send>,
) -> JoinHandle<()> {
    let (go, answers) = channel();
    let new = Thread { client: seat.client, answers: go, until };
    let _ = messages.send(Message { worker: seat.worker, what: What::New(new) });
    thread::spawn(move || {
        if !answers.recv().unwrap_or(false) {
            return;
        }
        let Seat { clocks, client, name, worker, count, seed } = seat;
        NAME.set(name);
        set_rng(Rng::of(seed, 1, worker as u64));
        let over = messages.clone();
        host::sim::enter(Rc::new(ThreadMachine { clocks, client, worker, count, seed, messages, answers }));
        let done = catch_unwind(AssertUnwindSafe(work));
        let is_panic = done.is_err_and(|cause: Box<dyn Any + Send>| !cause.is::<Ended>());
        let _ = over.send(Message { worker, what: What::Over(is_panic) });
    })
}

/// Runs `mains` main threads, one for each client and one for the tools, and all threads that they start,
/// until `horizon`. Calls `before_end` before it ends the threads. Returns the findings.
pub(super) fn run(
    seed: u64,
    clocks: &Arc<Clocks>,
    events: &Events,
    horizon: Duration,
    mains: usize,
    main: &dyn Fn(usize) -> Main,
    before_end: &dyn Fn(),
) -> Vec<String> {
    let (messages, received) = channel();
    let count = Arc::new(AtomicUsize::new(mains));
    let begin = |client: usize, worker: usize, until: Duration| {
        let (clocks, count) = (Arc::clone(clocks), Arc::clone(&count));
        let seat = Seat { clocks, client, name: "main".to_owned(), worker, count, seed };
        start((seat, messages.clone()), until, main(client))
    };
    let mut joins: Vec<JoinHandle<()>> =
        (0..mains).map(|client| begin(client, client, Duration::from_nanos(client as u64))).collect();
    let mut threads: Vec<Option<Thread>> = Vec::new();
    let mut findings = Vec::new();
    let mut running = 0;
    for _ in 0..joins.len() {
        receive(&received, &mut threads, &mut running, &mut findings);
    }
    let Events { halts, jumps, kills } = events;
    let (mut suspended, mut set) = (0, 0);
    let mut kills = kills.iter().peekable();
    'run: loop {
        let awake = |thread: &Thread| {
            let standing = halts.iter().filter(|halt| halt.client == thread.client);
            let mut until = thread.until;
            standing.for_each(|halt| {
                if halt.from <= until && until < halt.to {
                    until = halt.to;
                }
            });
            until
        };
        let next = threads.iter().enumerate().filter_map(|(worker, thread)| {
            let thread = thread.as_ref()?;
            Some((awake(thread), worker))
        });
        let Some((moment, worker)) = next.min().filter(|(moment, _)| *moment < horizon) else { break };
        while let Some(halt) = halts.get(suspended).filter(|halt| halt.from <= moment) {
            if halt.is_suspend {
                clocks.suspend(halt.client, halt.to - halt.from);
            }
            suspended += 1;
        }
        while let Some(jump) = jumps.get(set).filter(|jump| jump.at <= moment) {
            clocks.set(jump.client, jump.seconds);
            set += 1;
        }
        if let Some(Kill { client, at }) = kills.next_if(|kill| kill.at <= moment) {
            clocks.advance_to(*at);
            let is_killed =
                |thread: &Option<Thread>| thread.as_ref().is_some_and(|one| one.client == *client);
            // Tell all threads of the process to end at once, as at the end of the history.
            threads.iter().filter(|thread| is_killed(thread)).flatten().for_each(Thread::end);
            let before = threads.len();
            while threads.iter().any(is_killed) {
                if !receive(&received, &mut threads, &mut running, &mut findings) {
                    break 'run;
                }
                // If a thread that unwinds starts another thread, that thread never runs.
                for thread in threads[before..].iter_mut().filter(|thread| is_killed(thread)) {
                    thread.take().iter().for_each(Thread::end);
                }
            }
            joins.push(begin(*client, count.fetch_add(1, Relaxed), *at));
            if !receive(&received, &mut threads, &mut running, &mut findings) {
                break;
            }
            continue;
        }
        clocks.advance_to(moment);
        let Some(thread) = &threads[worker] else { break };
        if thread.answers.send(true).is_err() {
            findings.push("a thread has ended unexpectedly".to_owned());
            break;
        }
        running = 1;
        while running > 0 {
            if !receive(&received, &mut threads, &mut running, &mut findings) {
                break 'run;
            }
        }
    }
    before_end();
    // Tell all threads to end at once, because a thread that unwinds may need a lock that another one holds.
    threads.iter().flatten().for_each(Thread::end);
    drop(threads);
    joins.into_iter().for_each(|join| drop(join.join()));
    findings
}

/// Receives the next message from a running thread; false if none arrives.
fn receive(
    received: &Receiver<Message>,
    threads: &mut Vec<Option<Thread>>,
    running: &mut usize,
    findings: &mut Vec<String>,
) -> bool {
    let Ok(Message { worker, what }) = received.recv_timeout(STUCK) else {
        findings.push("a thread neither slept nor ended".to_owned());
        return false;
    };
    if threads.len() <= worker {
        threads.resize_with(worker + 1, || None);
    }
    match what {
        What::New(thread) => threads[worker] = Some(thread),
        What::Sleep(until) => {
            *running = 0;
            if let Some(thread) = &mut threads[worker] {
                thread.until = until;
            }
        }
        What::Over(is_panic) => {
            *running = 0;
            threads[worker] = None;
            if is_panic {
                findings.push("a thread panicked".to_owned());
            }
        }
    }
    true
}
