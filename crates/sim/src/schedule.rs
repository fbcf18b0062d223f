//! The scheduler: which thread goes on, and what its request meets.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use meta::{AclKind, Engine, EngineError, MemEngine, Txn, Volume};
use types::Time;

use crate::act::{self, Act, Order};
use crate::check;
use crate::client;
use crate::dice::Dice;
use crate::mutant::Mutant;
use crate::port::{self, Answer, Ask, Asked, Port};
use crate::shared::Shared;
use crate::world::{World, removes};

const CLIENTS: usize = 2;
const THREADS_A_CLIENT: usize = 2;
/// The threads of the clients, and one that collects garbage.
const WORKERS: usize = CLIENTS * THREADS_A_CLIENT + 1;
/// Requests of a thread that fail one after the other at most: the pauses of its retries grow.
const FAULTS_IN_A_ROW: usize = 2;
/// Longer than any thread computes between two requests, retry pauses included.
const STUCK: Duration = Duration::from_secs(60);

/// What a seed led to.
#[derive(Debug)]
pub struct History {
    pub seed: u64,
    /// What must not be; empty if all is well.
    pub findings: Vec<String>,
    /// All that happened, in order.
    pub lines: Vec<String>,
}

impl History {
    /// A number that two equal histories share (FNV-1a).
    pub fn digest(&self) -> u64 {
        let bytes = self.lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// What the seed lets requests meet.
#[derive(Clone, Copy, Debug)]
struct Weather {
    /// One request in so many fails; none with 0.
    faults: usize,
    /// One event in so many kills a client.
    kills: usize,
    patient: bool,
    acts: usize,
}

struct Scheduler {
    dice: Dice,
    weather: Weather,
    shared: Arc<Shared>,
    asks: Receiver<Asked>,
    answers: Vec<Sender<Answer>>,
    parked: Vec<Option<Asked>>,
    paused: Vec<usize>,
    killed: Vec<bool>,
    in_a_row: Vec<usize>,
    /// Commits that are still under way in the network.
    late: Vec<(usize, Vec<Txn>)>,
    acts_left: usize,
}

/// Runs the history of a seed.
pub fn run(seed: u64, mutant: Option<Mutant>) -> History {
    let engine = MemEngine::default();
    if let Err(error) = volume().format(&engine) {
        return History { seed, findings: vec![error.to_string()], lines: Vec::new() };
    }
    let mut dice = Dice::new(seed);
    let weather = Weather {
        faults: dice.pick(&[0, 30, 12, 6, 4]),
        kills: dice.pick(&[2000, 400, 150]),
        patient: dice.one_in(6),
        acts: 40 + dice.below(80),
    };
    let shared = Arc::new(Shared::new(World::new(engine, mutant), mutant, CLIENTS));
    shared.world().trace.push(format!("seed {seed}: {weather:?}"));
    let (ask, asks) = channel();
    let mut answers = Vec::with_capacity(WORKERS);
    let mut threads = Vec::with_capacity(WORKERS);
    for worker in 0..WORKERS {
        let (answer, answered) = channel();
        answers.push(answer);
        let (shared, asks) = (Arc::clone(&shared), ask.clone());
        threads.push(thread::spawn(move || {
            port::open(Port { worker, step: 0, asks, answers: answered });
            client::work(&shared, worker / THREADS_A_CLIENT);
        }));
    }
    drop(ask);
    let mut scheduler = Scheduler {
        dice,
        weather,
        shared: Arc::clone(&shared),
        asks,
        answers,
        parked: (0..WORKERS).map(|_| None).collect(),
        paused: vec![0; WORKERS],
        killed: vec![false; WORKERS],
        in_a_row: vec![0; WORKERS],
        late: Vec::new(),
        acts_left: weather.acts,
    };
    let is_whole = scheduler.go();
    drop(scheduler);
    for thread in threads {
        if is_whole && thread.join().is_err() {
            shared.world().find("a client panicked".to_owned());
        }
    }
    check::judge(&shared);
    let mut world = shared.world();
    let (findings, lines) = (std::mem::take(&mut world.findings), std::mem::take(&mut world.trace));
    History { seed, findings, lines }
}

impl Scheduler {
    /// Runs until nothing is left to do; says whether all threads came to their end.
    fn go(&mut self) -> bool {
        for _ in 0..WORKERS {
            if !self.wait() {
                return false;
            }
        }
        loop {
            let is_idle = |asked: &Option<Asked>| matches!(asked, Some(Asked { ask: Ask::Next, .. }));
            if self.acts_left == 0 && self.parked.iter().all(is_idle) {
                break;
            }
            if !self.event() {
                return false;
            }
        }
        while !self.late.is_empty() {
            self.deliver();
        }
        for worker in 0..WORKERS {
            self.parked[worker] = None;
            let _ = self.answers[worker].send(Answer::End);
        }
        true
    }

    /// Waits until the thread that runs asks again.
    fn wait(&mut self) -> bool {
        match self.asks.recv_timeout(STUCK) {
            Ok(asked) => {
                let worker = asked.worker;
                self.parked[worker] = Some(asked);
                true
            }
            Err(_) => {
                self.shared.world().find("a thread neither asked nor ended".to_owned());
                false
            }
        }
    }

    fn event(&mut self) -> bool {
        if !self.late.is_empty() && self.dice.one_in(8) {
            self.deliver();
            return true;
        }
        if self.acts_left > 0 && self.dice.one_in(self.weather.kills) {
            self.kill();
        }
        if self.dice.one_in(40) {
            let worker = self.dice.below(WORKERS);
            self.paused[worker] = 10 + self.dice.below(60);
        }
        self.paused.iter_mut().for_each(|left| *left = left.saturating_sub(1));
        let may_run = |worker: &usize| {
            // A thread without work waits for ever once there is none.
            let is_idle = matches!(&self.parked[*worker], Some(Asked { ask: Ask::Next, .. }));
            self.paused[*worker] == 0 && !(self.acts_left == 0 && is_idle)
        };
        let ready: Vec<usize> = (0..WORKERS).filter(may_run).collect();
        if ready.is_empty() {
            return true;
        }
        let worker = self.dice.pick(&ready);
        let Some(asked) = self.parked[worker].take() else { return false };
        let Some(answer) = self.answer(&asked) else {
            self.parked[worker] = Some(asked);
            return true;
        };
        self.answers[worker].send(answer).is_ok() && self.wait()
    }

    fn answer(&mut self, asked: &Asked) -> Option<Answer> {
        let worker = asked.worker;
        if let Ask::Next = asked.ask {
            self.killed[worker] = false;
            return self.order(worker).map(Answer::Order);
        }
        if self.killed[worker] {
            return Some(Answer::Killed);
        }
        let faulty = self.weather.faults > 0
            && self.in_a_row[worker] < FAULTS_IN_A_ROW
            && !matches!(asked.ask, Ask::Pause)
            && self.dice.one_in(self.weather.faults);
        self.in_a_row[worker] = if faulty { self.in_a_row[worker] + 1 } else { 0 };
        let lost = || EngineError::transient("simulated: no answer");
        match &asked.ask {
            Ask::Read(wants) => self.trace(format!("  step {}: reads {wants:?}, lost: {faulty}", asked.step)),
            Ask::Scan(scan) => self.trace(format!("  step {}: scans {scan:?}, lost: {faulty}", asked.step)),
            _ => {}
        }
        let world = self.shared.world();
        let answer = match &asked.ask {
            Ask::Next | Ask::Pause | Ask::Sync => Answer::Go,
            Ask::Read(_) if faulty => Answer::Read(Err(lost())),
            Ask::Scan(_) if faulty => Answer::Scan(Err(lost())),
            Ask::Read(wants) => Answer::Read(world.engine.read(wants)),
            Ask::Scan(scan) => Answer::Scan(world.engine.scan(scan)),
            Ask::Commit(txns) => {
                drop(world);
                Answer::Commit(self.commit(asked.step, txns, faulty))
            }
        };
        Some(answer)
    }

    fn commit(&mut self, step: usize, txns: &[Txn], faulty: bool) -> Result<Vec<meta::Outcome>, EngineError> {
        let indeterminate = || Err(EngineError::indeterminate("simulated: no answer"));
        let fate = if faulty { self.dice.below(5) } else { 5 };
        self.trace(format!("  step {step}: a commit meets {}", FATES[fate]));
        match fate {
            0 => return Err(EngineError::transient("simulated: not sent")),
            1 => return indeterminate(),
            2 => {
                self.late.push((step, txns.to_vec()));
                return indeterminate();
            }
            3 => {
                self.apply(step, txns);
                return indeterminate();
            }
            4 => {
                let outcomes = self.apply(step, txns);
                // Nothing of a request that was answered with a conflict is under way: no engine sends it again.
                if outcomes.iter().all(|outcome| matches!(outcome, meta::Outcome::Committed { .. })) {
                    self.late.push((step, txns.to_vec()));
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
                world.find(format!("step {step}: session {session} was removed, and had been renewed"));
            }
            return outcomes;
        }
        world.commit(step, txns)
    }

    /// A commit that was held back arrives.
    fn deliver(&mut self) {
        let at = self.dice.below(self.late.len());
        let (step, txns) = self.late.swap_remove(at);
        self.trace(format!("  step {step}: a late commit arrives"));
        self.apply(step, &txns);
    }

    /// A client dies. What it sent may have arrived, or may arrive later.
    fn kill(&mut self) {
        let client = self.dice.below(CLIENTS);
        self.trace(format!("client {client} is killed"));
        self.shared.kill(client);
        for worker in client * THREADS_A_CLIENT..(client + 1) * THREADS_A_CLIENT {
            self.killed[worker] = true;
            if let Some(Asked { step, ask: Ask::Commit(txns), .. }) = &self.parked[worker]
                && self.dice.one_in(2)
            {
                self.late.push((*step, txns.clone()));
            }
        }
    }

    fn order(&mut self, worker: usize) -> Option<Order> {
        if self.acts_left == 0 {
            return None;
        }
        let client = worker / THREADS_A_CLIENT;
        let patient = self.weather.patient;
        if client == CLIENTS {
            return self.dice.one_in(12).then_some(Order { act: Act::Gc, rejoin: false, patient });
        }
        self.acts_left -= 1;
        let rejoin = self.dice.one_in(2);
        if self.shared.client(client).is_none() {
            // One thread starts the process, and the other waits for it.
            let is_other_busy = (client * THREADS_A_CLIENT..(client + 1) * THREADS_A_CLIENT).any(|other| {
                other != worker && !matches!(&self.parked[other], Some(Asked { ask: Ask::Next, .. }))
            });
            if is_other_busy {
                return None;
            }
            return Some(Order { act: Act::Start, rejoin, patient });
        }
        let act = act::draw(&mut self.dice, &self.shared.world().engine);
        Some(Order { act, rejoin, patient })
    }

    fn trace(&self, line: String) {
        self.shared.world().trace.push(line);
    }
}

const FATES: [&str; 6] =
    ["no network", "loss", "delay", "the loss of its answer", "a repetition", "no fault"];

fn volume() -> Volume {
    Volume {
        name: "sim".into(),
        uuid: "0b6a1a4e-6d1c-4b53-9d5a-0a4f2b1f4f10".into(),
        storage: "mem".into(),
        bucket: "/".into(),
        acl: AclKind::Posix,
        policy: Default::default(),
        compression: "none".into(),
        encryption: String::new(),
        inline_bytes: 4096,
        capacity_bytes: 0,
        max_inodes: 0,
        abe: false,
        store_marker: false,
        created: Time::new(1_700_000_000, 7),
    }
}
