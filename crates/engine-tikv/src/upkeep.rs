//! Forgetting what is no longer needed, in the background: operations that nobody will repeat, parts of the usage and
//! lanes of handles that are gone, old versions.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyspace::{Access, Claim, Fold, Span, Upkeep, Write, fold};
use meta::EngineError;

use crate::engine::Shared;
use crate::read::LOGICAL_BITS;
use crate::store::{CommitError, Mutation, Phases};

/// How often it is done.
const EVERY: Duration = Duration::from_secs(30);
/// How often old versions are dropped, and how old they are then: reads of several parts are over by that time.
const GC_EVERY: Duration = Duration::from_secs(600);
/// A lane that nobody has written for so long is cleared away.
pub(crate) const IDLE: Duration = Duration::from_secs(600);
/// Keys that are removed by one transaction.
const AT_ONCE: usize = 1000;
/// How often a part of it is tried.
const ATTEMPTS: usize = 20;

pub(crate) fn start(shared: &Arc<Shared>, gc: bool) -> io::Result<Upkeep> {
    let mut collected = Instant::now();
    Upkeep::start("limen-tikv", shared, EVERY, move |shared| {
        shared.keep_up();
        if gc && collected.elapsed() >= GC_EVERY {
            collected = Instant::now();
            let done =
                shared.store.timestamp().and_then(|now| shared.store.forget_before(before(now, GC_EVERY)));
            warn(done, "old versions stay");
        }
    })
}

/// The timestamp so long before another one.
pub(crate) fn before(now: u64, age: Duration) -> u64 {
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    now.saturating_sub(millis.saturating_mul(1 << LOGICAL_BITS))
}

impl Shared {
    pub(crate) fn keep_up(&self) {
        warn(self.forget_ops(), "operations that are done stay remembered");
        warn(self.fold_lanes(), "the usage stays in many parts");
        warn(self.clear_lanes(IDLE), "lanes of handles that are gone stay");
    }

    fn forget_ops(&self) -> Result<(), EngineError> {
        loop {
            let old = self.done.take_old(AT_ONCE);
            if old.is_empty() {
                return Ok(());
            }
            let keys = old.iter().map(|op| Mutation::Delete(self.keys.log(*op)));
            self.commit_now(keys.collect())?;
        }
    }

    /// Commits what rests on nothing.
    fn commit_now(&self, mutations: Vec<Mutation>) -> Result<(), EngineError> {
        for _ in 0..ATTEMPTS {
            match self.store.begin(Phases::Two)?.commit(mutations.clone()) {
                Ok(()) => return Ok(()),
                Err(CommitError::Conflict(_) | CommitError::OnePhaseRefused) => {}
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        Err(EngineError::transient("other clients were faster"))
    }

    /// Brings the usage into one lane, should there be many.
    fn fold_lanes(&self) -> Result<(), EngineError> {
        let attempt = self.store.begin(Phases::Two)?;
        let start = attempt.started_at();
        let snapshot = self.read_as_of(start, &[Access::Span(self.keys.lanes())])?;
        let found: Vec<_> = snapshot.found().cloned().collect();
        let Some(Fold { claims, writes }) = fold(&self.keys, &found)? else { return Ok(()) };
        match attempt.commit(self.mutations(start, &claims, &writes)?) {
            Err(CommitError::Failed(error)) => Err(error),
            // Whoever writes one of them meanwhile is faster; it is done another time.
            Ok(()) | Err(CommitError::Conflict(_) | CommitError::OnePhaseRefused) => Ok(()),
        }
    }

    /// Removes the lanes that nobody has written for so long: what was touched by them has been told.
    pub(crate) fn clear_lanes(&self, idle: Duration) -> Result<(), EngineError> {
        let now = self.store.timestamp()?;
        for (lane, (_, version)) in self.heads(now)? {
            if version >= before(now, idle) {
                continue;
            }
            let attempt = self.store.begin(Phases::Two)?;
            let start = attempt.started_at();
            let told = self.read_as_of(start, &[Access::Span(self.keys.all_told(lane))])?;
            let mut writes: Vec<Write> = told.found().map(|(key, _)| Write::Delete(key.to_vec())).collect();
            writes.push(Write::Delete(self.keys.head(lane)));
            // Written after all, since it was looked at: then its head has another version than the one seen.
            let unchanged = self.heads(start)?.get(&lane).is_some_and(|(_, again)| *again == version);
            if unchanged {
                let mutations = self.mutations(start, &[] as &[Claim], &writes)?;
                if let Err(CommitError::Failed(error)) = attempt.commit(mutations) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Removes all there is but the version of the layout.
    pub(crate) fn wipe(&self) -> Result<(), EngineError> {
        let all = self.keys.all();
        let version = self.keys.version();
        let mut failures = 0;
        loop {
            let attempt = self.store.begin(Phases::Two)?;
            let start = attempt.started_at();
            let some = Access::Span(Span { limit: AT_ONCE, ..all.clone() });
            let found = self.read_as_of(start, &[some])?;
            let keys = found.found().filter(|(key, _)| *key != version);
            let deletes: Vec<_> = keys.map(|(key, _)| Mutation::Delete(key.to_vec())).collect();
            if deletes.is_empty() {
                break;
            }
            match attempt.commit(deletes) {
                Ok(()) => failures = 0,
                Err(CommitError::Failed(error)) => return Err(error),
                Err(CommitError::Conflict(_) | CommitError::OnePhaseRefused) if failures < ATTEMPTS => {
                    failures += 1
                }
                Err(_) => return Err(EngineError::transient("other clients go on writing")),
            }
        }
        self.memory.clear();
        Ok(())
    }
}

fn warn(done: Result<(), EngineError>, what: &str) {
    if let Err(error) = done {
        tracing::warn!(%error, "{what}");
    }
}
