//! The scheduler: decides which thread runs next, and what happens to its request.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use meta::{Engine, EngineError, MemEngine, Txn, Volume};

use crate::act::{self, Act, Assignment};
use crate::check;
use crate::cut::{Cut, Kind};
use crate::machine::{Clocks, Simulated};
use crate::mutant::Mutant;
use crate::port::{self, Answer, Pending, Port, Request};
use crate::quotas;
use crate::rng::Rng;
use crate::shared::Shared;
use crate::worker::{self, Clients};
use crate::world::{World, removes};

const CLIENTS: usize = 2;
const THREADS_PER_CLIENT: usize = 2;
/// The threads of the clients, and one that collects garbage.
const WORKERS: usize = CLIENTS * THREADS_PER_CLIENT + 1;
/// The maximum number of consecutive faults of a thread, because the pauses of its retries grow.
const FAULTS_IN_A_ROW: usize = 2;
/// The longest delay of a commit. It is shorter than `LOST_FOR` (`meta/src/commit_numbers.rs`), the time
/// after which a server has ended every request that its client no longer waits for.
const ENDED_AFTER: Duration = Duration::from_secs(50);
/// Longer than any thread computes between two requests.
const STUCK: Duration = Duration::from_secs(60);

/// The history that a seed gives, and its findings.
#[derive(Debug)]
pub struct History {
    pub seed: u64,
    /// The violations found; empty if there are none.
    pub findings: Vec<String>,
    /// All events, in order.
    pub lines: Vec<String>,
    /// The number of decisions of each kind.
    pub(crate) decisions: [usize; Kind::COUNT],
    /// The time of the first finding, if it is known.
    pub(crate) found_at: Option<Duration>,
}

impl History {
    pub(crate) fn new(seed: u64) -> Self {
        let decisions = [0; Kind::COUNT];
        History { seed, findings: Vec::new(), lines: Vec::new(), decisions, found_at: None }
    }

    /// A hash of the history (FNV-1a). Equal histories have equal hashes.
    pub fn digest(&self) -> u64 {
        let bytes = self.lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// The conditions that the seed selects.
#[derive(Clone, Copy, Debug)]
struct Conditions {
    /// One of this many requests fails; 0 means none.
    faults: usize,
    /// One of this many events kills a client.
    kills: usize,
    /// One of this many events stops a client for a while.
    halts: usize,
    /// One of this many events sets the wall clock of a client.
    jumps: usize,
    /// The upper bound of the time between two events.
    tick: Duration,
    patient: bool,
    acts: usize,
}

struct Scheduler {
    seed: u64,
    cut: Cut,
    decisions: [usize; Kind::COUNT],
    rng: Rng,
    conditions: Conditions,
    shared: Arc<Shared>,
    clients: Arc<Clients>,
    clocks: Arc<Clocks>,
    /// The time until which each client stands still.
    halted: Vec<Option<Duration>>,
    requests: Receiver<Pending>,
    answers: Vec<Sender<Answer>>,
    parked: Vec<Option<Pending>>,
    paused: Vec<usize>,
    killed: Vec<bool>,
    in_a_row: Vec<usize>,
    /// Commits in flight in the network, each with its step and the time when it was sent.
    late: Vec<(usize, Vec<Txn>, Duration)>,
    acts_left: usize,
}

/// Runs the history of a seed.
pub fn run(seed: u64, mutant: Option<Mutant>) -> History {
    run_cut(seed, mutant, &Cut::default())
}

/// Like [`run`], without the decisions that `cut` leaves out.
pub(crate) fn run_cut(seed: u64, mutant: Option<Mutant>, cut: &Cut) -> History {
    let engine = MemEngine::default();
    if let Err(error) = volume().format(&engine) {
        return History { findings: vec![error.to_string()], ..History::new(seed) };
    }
    // Use a separate generator, so that the rest of a history does not depend on whether there are quotas.
    let limits = quotas::set_up(&engine, &mut Rng::of(seed, Kind::COUNT as u64 + 1, 0));
    let mut rng = Rng::new(seed);
    let conditions = Conditions {
        faults: rng.pick(&[0, 30, 12, 6, 4]),
        kills: rng.pick(&[2000, 400, 150]),
        halts: rng.pick(&[5000, 300, 100]),
        jumps: rng.pick(&[5000, 200]),
        tick: Duration::from_micros(rng.pick(&[100, 5_000, 100_000, 2_000_000])),
        patient: rng.one_in(6),
        acts: 40 + rng.below(80),
    };
    let clocks = Arc::new(Clocks::new(CLIENTS, mutant));
    let world = World::new(engine, limits, mutant, Arc::clone(&clocks));
    let shared = Arc::new(Shared::new(world, mutant, CLIENTS));
    let clients = Arc::new(Clients::new(CLIENTS));
    shared.world().trace.push(format!("seed {seed}: {conditions:?}, {limits:?}"));
    let (sender, requests) = channel();
    let mut answers = Vec::with_capacity(WORKERS);
    let mut threads = Vec::with_capacity(WORKERS);
    for worker in 0..WORKERS {
        let (answer, answered) = channel();
        answers.push(answer);
        let (shared, clients) = (Arc::clone(&shared), Arc::clone(&clients));
        let (requests, clocks) = (sender.clone(), Arc::clone(&clocks));
        threads.push(thread::spawn(move || {
            let client = worker / THREADS_PER_CLIENT;
            let rng = RefCell::new(Rng::of(seed, Kind::COUNT as u64, worker as u64));
            host::sim::enter(Rc::new(Simulated { clocks, client, rng }));
            port::open(Port { worker, step: 0, requests, answers: answered });
            worker::work(&shared, &clients, client);
        }));
    }
    drop(sender);
    let mut scheduler = Scheduler {
        seed,
        cut: cut.clone(),
        decisions: [0; Kind::COUNT],
        rng,
        conditions,
        shared: Arc::clone(&shared),
        clients,
        clocks,
        halted: vec![None; CLIENTS],
        requests,
        answers,
        parked: (0..WORKERS).map(|_| None).collect(),
        paused: vec![0; WORKERS],
        killed: vec![false; WORKERS],
        in_a_row: vec![0; WORKERS],
        late: Vec::new(),
        acts_left: conditions.acts,
    };
    let is_whole = scheduler.go();
    let decisions = scheduler.decisions;
    drop(scheduler);
    for thread in threads {
        if is_whole && thread.join().is_err() {
            shared.world().find("a client panicked".to_owned());
        }
    }
    check::check_history(&shared);
    let mut world = shared.world();
    let (findings, lines) = (std::mem::take(&mut world.findings), std::mem::take(&mut world.trace));
    History { findings, lines, decisions, ..History::new(seed) }
}

impl Scheduler {
    /// Runs until nothing is left to do. Returns whether all threads ended.
    fn go(&mut self) -> bool {
        for _ in 0..WORKERS {
            if !self.wait() {
                return false;
            }
        }
        loop {
            let is_idle =
                |pending: &Option<Pending>| matches!(pending, Some(Pending { request: Request::Next, .. }));
            if self.acts_left == 0 && self.parked.iter().all(is_idle) {
                break;
            }
            if !self.event() {
                return false;
            }
        }
        while !self.late.is_empty() {
            self.deliver(0);
        }
        for worker in 0..WORKERS {
            self.parked[worker] = None;
            let _ = self.answers[worker].send(Answer::End);
        }
        true
    }

    /// Waits for the next request of the running thread. Returns false if none arrives.
    fn wait(&mut self) -> bool {
        match self.requests.recv_timeout(STUCK) {
            Ok(pending) => {
                let worker = pending.worker;
                self.parked[worker] = Some(pending);
                true
            }
            Err(_) => {
                self.shared.world().find("a thread neither sent a request nor ended".to_owned());
                false
            }
        }
    }

    fn event(&mut self) -> bool {
        self.pass_time();
        let now = self.clocks.now();
        if let Some(at) = self.late.iter().position(|(.., sent)| now >= *sent + ENDED_AFTER) {
            self.deliver(at);
            return true;
        }
        if !self.late.is_empty() && self.rng.one_in(8) {
            let at = self.rng.below(self.late.len());
            self.deliver(at);
            return true;
        }
        if self.acts_left > 0 && self.rng.one_in(self.conditions.kills) && self.decide(Kind::Kill).is_some() {
            self.kill();
        }
        if self.acts_left > 0 && self.rng.one_in(self.conditions.halts) {
            self.halt();
        }
        if self.acts_left > 0 && self.rng.one_in(self.conditions.jumps) {
            self.jump();
        }
        if self.rng.one_in(40) && self.decide(Kind::Pause).is_some() {
            let worker = self.rng.below(WORKERS);
            self.paused[worker] = 10 + self.rng.below(60);
        }
        self.paused.iter_mut().for_each(|left| *left = left.saturating_sub(1));
        let may_run = |worker: &usize| {
            let is_waiting = match &self.parked[*worker] {
                // An idle thread stays idle once no acts are left.
                Some(Pending { request: Request::Next, .. }) => self.acts_left == 0,
                Some(Pending { request: Request::Sleep(until), .. }) => now < *until && !self.killed[*worker],
                _ => false,
            };
            let is_halted = self.halted.get(worker / THREADS_PER_CLIENT).is_some_and(Option::is_some);
            self.paused[*worker] == 0 && !is_waiting && !is_halted
        };
        let ready: Vec<usize> = (0..WORKERS).filter(may_run).collect();
        if ready.is_empty() {
            self.skip_time();
            return true;
        }
        let worker = self.rng.pick(&ready);
        let Some(pending) = self.parked[worker].take() else { return false };
        let Some(answer) = self.answer(&pending) else {
            self.parked[worker] = Some(pending);
            return true;
        };
        self.answers[worker].send(answer).is_ok() && self.wait()
    }

    fn answer(&mut self, pending: &Pending) -> Option<Answer> {
        let worker = pending.worker;
        if let Request::Next = pending.request {
            self.killed[worker] = false;
            return self.assign(worker).map(Answer::Assignment);
        }
        if self.killed[worker] {
            return Some(Answer::Killed);
        }
        let may_fail = self.conditions.faults > 0
            && self.in_a_row[worker] < FAULTS_IN_A_ROW
            && !matches!(pending.request, Request::Pause | Request::Sleep(_))
            && self.rng.one_in(self.conditions.faults);
        let fault = if may_fail { self.decide(Kind::Fault) } else { None };
        let faulty = fault.is_some();
        self.in_a_row[worker] = if faulty { self.in_a_row[worker] + 1 } else { 0 };
        let lost = || EngineError::transient("simulated: no answer");
        match &pending.request {
            Request::Read(keys) => {
                self.trace(format!("  step {}: reads {keys:?}, lost: {faulty}", pending.step))
            }
            Request::Scan(scan) => {
                self.trace(format!("  step {}: scans {scan:?}, lost: {faulty}", pending.step))
            }
            _ => {}
        }
        let world = self.shared.world();
        let answer = match &pending.request {
            Request::Next | Request::Pause | Request::Sleep(_) | Request::Sync => Answer::Go,
            Request::Read(_) if faulty => Answer::Read(Err(lost())),
            Request::Scan(_) if faulty => Answer::Scan(Err(lost())),
            Request::Read(keys) => Answer::Read(world.engine.read(keys)),
            Request::Scan(scan) => Answer::Scan(world.engine.scan(scan)),
            Request::Commit(txns) => {
                drop(world);
                Answer::Commit(self.commit(pending.step, txns, fault))
            }
        };
        Some(answer)
    }

    fn commit(
        &mut self,
        step: usize,
        txns: &[Txn],
        fault: Option<Rng>,
    ) -> Result<Vec<meta::Outcome>, EngineError> {
        let indeterminate = || Err(EngineError::indeterminate("simulated: no answer"));
        let fate = fault.map_or(5, |mut rng| rng.below(5));
        self.trace(format!("  step {step}: a commit meets {}", FATES[fate]));
        match fate {
            0 => return Err(EngineError::transient("simulated: not sent")),
            1 => return indeterminate(),
            2 => {
                self.late.push((step, txns.to_vec(), self.clocks.now()));
                return indeterminate();
            }
            3 => {
                self.apply(step, txns);
                return indeterminate();
            }
            4 => {
                let outcomes = self.apply(step, txns);
                // A copy of the request arrives later, except after a conflict, because no engine retries a
                // request then.
                if outcomes.iter().all(|outcome| matches!(outcome, meta::Outcome::Committed { .. })) {
                    self.late.push((step, txns.to_vec(), self.clocks.now()));
                }
                return Ok(outcomes);
            }
            _ => {}
        }
        Ok(self.apply(step, txns))
    }

    fn apply(&mut self, step: usize, txns: &[Txn]) -> Vec<meta::Outcome> {
        let mut world = self.shared.world();
        if let Some((session, heartbeat)) = txns.iter().find_map(removes) {
            let found = world.heartbeat(session);
            let before = world.seq;
            let outcomes = world.commit(step, txns);
            if world.seq > before && found != Some(heartbeat) {
                world.find(format!("step {step}: session {session} was removed after a renewal"));
            }
            return outcomes;
        }
        world.commit(step, txns)
    }

    /// Delivers a delayed commit.
    fn deliver(&mut self, at: usize) {
        let (step, txns, _) = self.late.swap_remove(at);
        self.trace(format!("  step {step}: a late commit arrives"));
        self.apply(step, &txns);
    }

    /// Kills a client. Its requests may have arrived, or may arrive later.
    fn kill(&mut self) {
        let client = self.rng.below(CLIENTS);
        self.trace(format!("client {client} is killed"));
        self.clients.remove(client);
        self.shared.kill(client);
        for worker in client * THREADS_PER_CLIENT..(client + 1) * THREADS_PER_CLIENT {
            self.killed[worker] = true;
            if let Some(Pending { step, request: Request::Commit(txns), .. }) = &self.parked[worker]
                && self.rng.one_in(2)
            {
                self.late.push((*step, txns.clone(), self.clocks.now()));
            }
        }
    }

    fn assign(&mut self, worker: usize) -> Option<Assignment> {
        if self.acts_left == 0 {
            return None;
        }
        let client = worker / THREADS_PER_CLIENT;
        let patient = self.conditions.patient;
        if client == CLIENTS {
            let is_due = self.rng.one_in(12) && self.decide(Kind::Gc).is_some();
            return is_due.then_some(Assignment { act: Act::Gc, rejoin: false, patient });
        }
        self.acts_left -= 1;
        let mut rng = self.decide(Kind::Assignment)?;
        let rejoin = rng.one_in(2);
        if self.clients.get(client).is_none() {
            // One thread starts the process while the other waits.
            let is_other_busy =
                (client * THREADS_PER_CLIENT..(client + 1) * THREADS_PER_CLIENT).any(|other| {
                    other != worker
                        && !matches!(&self.parked[other], Some(Pending { request: Request::Next, .. }))
                });
            if is_other_busy {
                return None;
            }
            return Some(Assignment { act: Act::Start, rejoin, patient });
        }
        let act = act::draw(&mut rng, &self.shared.world().engine);
        Some(Assignment { act, rejoin, patient })
    }

    /// The random numbers for the next decision of a kind; `None` if the decision is cut from the history.
    fn decide(&mut self, kind: Kind) -> Option<Rng> {
        let count = &mut self.decisions[kind as usize];
        let number = *count;
        *count += 1;
        (!self.cut.has(kind, number)).then(|| Rng::of(self.seed, kind as u64, number as u64))
    }

    /// Stops a client for a while, as by SIGSTOP, or suspends its whole machine.
    fn halt(&mut self) {
        let Some(mut rng) = self.decide(Kind::Halt) else { return };
        let client = rng.below(CLIENTS);
        if self.halted[client].is_some() {
            return;
        }
        let time = Duration::from_millis(rng.pick(&[50, 700, 10_000, 120_000]));
        let is_suspended = rng.one_in(2);
        if is_suspended {
            self.clocks.suspend(client, time);
        }
        self.halted[client] = Some(self.clocks.now() + time);
        self.trace(format!("client {client} stands still for {time:?}, machine suspended: {is_suspended}"));
    }

    /// Sets the wall clock of a client's machine.
    fn jump(&mut self) {
        let Some(mut rng) = self.decide(Kind::Jump) else { return };
        let (client, hours) = (rng.below(CLIENTS), rng.pick(&[-12, -1, 1, 12]));
        self.clocks.set(client, hours * 3600);
        self.trace(format!("the wall clock of client {client} is set by {hours} h"));
    }

    fn pass_time(&mut self) {
        let nanos = self.rng.below(self.conditions.tick.as_nanos() as usize) as u64;
        self.go_to(self.clocks.now() + Duration::from_nanos(nanos));
    }

    /// No thread can run now: advances the time until one can.
    fn skip_time(&mut self) {
        let sleeps = self.parked.iter().flatten().filter_map(|pending| match pending.request {
            Request::Sleep(until) => Some(until),
            _ => None,
        });
        let next = sleeps
            .chain(self.halted.iter().flatten().copied())
            .filter(|until| *until > self.clocks.now())
            .min();
        if let Some(next) = next {
            self.go_to(next);
        }
    }

    /// Advances the time, but not past the moment when a delayed commit must arrive.
    fn go_to(&mut self, moment: Duration) {
        let due = self.late.iter().map(|(.., sent)| *sent + ENDED_AFTER).min();
        self.clocks.advance_to(due.map_or(moment, |due| due.min(moment)));
        let now = self.clocks.now();
        for until in &mut self.halted {
            *until = until.filter(|until| *until > now);
        }
    }

    fn trace(&self, line: String) {
        self.shared.world().trace.push(line);
    }
}

const FATES: [&str; 6] = ["no network", "loss", "delay", "loss of its answer", "a repetition", "no fault"];

pub(crate) fn volume() -> Volume {
    Volume::in_memory("sim")
}
