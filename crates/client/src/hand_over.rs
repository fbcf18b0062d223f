//! The hand-over of a session from one process to the next, which serves the same mount.
//!
//! The session, its terms and its operation numbers continue. So the process that hands over makes no change
//! from the moment at which it describes the session, unless the next process has certainly failed before its
//! own first change.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use types::{BootInstant, Ino, SessionId, Term};

use crate::driver::Meta;

/// After a renewal, a session is valid for less time than this. A `valid_until` that is later is wrong.
const LONGEST_VALIDITY: Duration = Duration::from_secs(3600);

/// The session of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    pub session: SessionId,
    /// Until this time the session is assumed to exist, in nanoseconds since the machine started.
    valid_until: u64,
    /// The open terms, each with the number of ids that were given out. The last one is the current term.
    terms: Vec<(Term, u32)>,
    /// Directories whose records may name this session although they are not held.
    stale_holds: Vec<Ino>,
}

impl Meta {
    /// Describes the session for another process.
    ///
    /// # Errors
    /// Why the session cannot be handed over now: something is unfinished.
    pub fn session_state(&self) -> Result<SessionState, &'static str> {
        if self.is_fenced() {
            return Err("the session of the mount was lost, and there is no new one yet");
        }
        let stale_holds = {
            let state = host::lock(&self.held.state);
            if !state.queue.is_empty()
                || !state.directories.is_empty()
                || !state.being_created.is_empty()
                || state.taking.is_some()
            {
                return Err("changes in held directories are not committed");
            }
            state.stale_holds.iter().copied().collect()
        };
        if self.held.has_lost.load(Ordering::Acquire) {
            return Err("changes were lost with an earlier session, and no fsync has reported that yet");
        }
        let terms = self.terms.idle().ok_or("an earlier change may still happen")?;
        let valid_until = self.fence.valid_until();
        Ok(SessionState { session: self.session(), valid_until, terms, stale_holds })
    }

    /// Continues a session that another process has described. Everything in the cache is dropped, because it
    /// may have been read before the last changes under the session.
    pub fn take_session(&self, state: &SessionState) {
        let SessionState { session, valid_until, terms, stale_holds } = state;
        let latest = (BootInstant::now() + LONGEST_VALIDITY).nanos();
        self.terms.resume(*session, terms);
        self.fence.set_valid_nanos((*valid_until).min(latest));
        self.fence.set_session(*session);
        host::lock(&self.held.state).stale_holds.extend(stale_holds);
        self.set_outdated();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meta::{Engine, MemEngine, Session, Volume};
    use ops::Configure;
    use suite::{Fault, FaultRates, Faulty};
    use types::Time;

    use super::*;
    use crate::driver::BY_KERNEL;
    use crate::failure::Failure;

    fn change(meta: &Meta, abe: bool) -> Result<(), Failure> {
        meta.run(&Configure { abe: Some(abe), ..Configure::default() }, &BY_KERNEL)
    }

    #[test]
    fn the_next_process_continues_the_session_and_gives_no_id_again() {
        let engine = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let [own, next] = [0; 2].map(|_| Meta::open(engine.clone(), 1000).unwrap());
        own.begin_session(Session::new(own.session(), Time::from_nanos(1)), Duration::from_secs(60)).unwrap();
        for _ in 0..2 {
            change(&own, false).unwrap();
            change(&own, true).unwrap();
            own.begin_next_term().unwrap();
        }
        change(&own, false).unwrap();
        change(&own, true).unwrap();
        let state = own.session_state().unwrap();
        let current = |state: &SessionState| state.terms.last().unwrap().0.0;
        next.take_session(&state);
        assert_eq!(next.session(), own.session());
        assert_eq!(next.session_of(next.session()).unwrap().unwrap().heartbeat, Time::from_nanos(1));
        // An id that was given before would be answered from its result, and would change nothing.
        change(&next, false).unwrap();
        assert!(!Volume::load(&*engine).unwrap().abe);
        next.begin_next_term().unwrap();
        change(&next, true).unwrap();
        assert!(Volume::load(&*engine).unwrap().abe);
        assert_eq!(current(&next.session_state().unwrap()), current(&state) + 1);
    }

    #[test]
    fn a_session_with_a_change_in_doubt_is_not_handed_over() {
        let engine = Arc::new(Faulty::new(MemEngine::default(), 1, FaultRates::default()));
        Volume::in_memory("test").format(&*engine).unwrap();
        let meta = Meta::open(engine.clone() as Arc<dyn Engine>, 1000).unwrap();
        meta.begin_session(Session::new(meta.session(), Time::from_nanos(1)), Duration::from_secs(60))
            .unwrap();
        meta.set_retry_timeout(Duration::ZERO);
        engine.arm(true);
        change(&meta, true).unwrap();
        engine.script([Fault::None, Fault::Late]);
        change(&meta, false).unwrap_err();
        engine.script([]);
        assert!(meta.session_state().is_err());
        for _ in 0..2 {
            change(&meta, false).unwrap();
            change(&meta, true).unwrap();
            meta.begin_next_term().unwrap();
        }
        assert!(meta.session_state().is_ok());
    }
}
