//! State shared by the threads of a history. One thread runs at a time, so no lock here is ever contended.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meta::MemEngine;
use types::{SessionId, SliceId};

use crate::act::{Got, Step};
use crate::mutant::Mutant;
use crate::port;
use crate::world::World;

/// Longer than any history.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// A step of a client, completed or in progress.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) number: usize,
    pub(crate) client: usize,
    pub(crate) session: SessionId,
    pub(crate) step: Step,
    /// The sequence number of the newest commit when the step began.
    pub(crate) began: u64,
    /// The time when the step began.
    pub(crate) at: Duration,
    /// The sequence number of the newest commit when the step ended.
    pub(crate) ended: u64,
    /// The sequence number of the oldest state that a read may return.
    pub(crate) floor: u64,
    pub(crate) got: Got,
    /// The lines of the history when the step began and ended. They order steps without a commit between
    /// them.
    pub(crate) lines: (usize, usize),
    /// The number of times the client had been killed when the step began.
    pub(crate) kills: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mutant: Option<Mutant>,
    pub(crate) world: Mutex<World>,
    steps: Mutex<Vec<Ended>>,
    ticks: Mutex<i64>,
    kills: Mutex<Vec<u64>>,
    /// Slices whose blocks were stored in the object store.
    stored: Mutex<BTreeSet<SliceId>>,
}

impl Shared {
    pub(crate) fn new(world: World, mutant: Option<Mutant>, clients: usize) -> Self {
        Shared {
            mutant,
            world: Mutex::new(world),
            steps: Mutex::default(),
            ticks: Mutex::default(),
            kills: Mutex::new(vec![0; clients]),
            stored: Mutex::default(),
        }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// The world, which is used as an engine to open the stream of changes.
    pub(crate) fn engine(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Counts a kill of the client. If a step that the killed process has begun ends with an error, the step
    /// is in doubt ([`Self::end`]).
    pub(crate) fn kill(&self, number: usize) {
        lock(&self.kills)[number] += 1;
    }

    /// Begins a step; the following requests of this thread belong to it.
    pub(crate) fn begin(&self, client: usize, session: SessionId, floor: u64, step: Step) -> Ended {
        let (began, at) = (self.now(), self.world().time());
        let mut steps = lock(&self.steps);
        let number = steps.len();
        port::set_step(number);
        self.world()
            .trace
            .push(format!("step {number}: client {client} of session {session} begins {step:?}"));
        let kills = self.kills(client);
        let lines = (self.world().trace.len(), usize::MAX);
        // The step is in doubt until it ends, because the client may be killed.
        let begun = Ended {
            number,
            client,
            session,
            step,
            began,
            at,
            ended: u64::MAX,
            floor,
            got: Got::InDoubt,
            lines,
            kills,
        };
        steps.push(begun.clone());
        begun
    }

    /// Ends a step. A step in doubt may end again.
    pub(crate) fn end(&self, mut ended: Ended) {
        ended.ended = self.now();
        ended.lines.1 = self.world().trace.len();
        if ended.kills != self.kills(ended.client) && !matches!(ended.got, Got::Done(_)) {
            // This error is from a process that no longer exists.
            ended.got = Got::InDoubt;
        }
        self.world().trace.push(format!("step {}: {:?}", ended.number, ended.got));
        let number = ended.number;
        lock(&self.steps)[number] = ended;
    }

    fn kills(&self, client: usize) -> u64 {
        lock(&self.kills).get(client).copied().unwrap_or_default()
    }

    pub(crate) fn steps(&self) -> Vec<Ended> {
        lock(&self.steps).clone()
    }

    /// The sequence number of the newest commit.
    pub(crate) fn now(&self) -> u64 {
        self.world().seq
    }

    /// A counter that advances by one at each call.
    pub(crate) fn tick(&self) -> i64 {
        let mut ticks = lock(&self.ticks);
        *ticks += 1;
        *ticks
    }

    pub(crate) fn stored(&self, slice: SliceId) {
        lock(&self.stored).insert(slice);
    }

    pub(crate) fn in_store(&self) -> Vec<SliceId> {
        let world = self.world();
        lock(&self.stored).iter().filter(|slice| !world.is_deleted(**slice)).copied().collect()
    }

    pub(crate) fn delete(&self, step: usize, slices: &[SliceId]) {
        self.world().delete(step, slices);
    }
}

impl std::ops::Deref for World {
    type Target = MemEngine;

    fn deref(&self) -> &MemEngine {
        &self.engine
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
