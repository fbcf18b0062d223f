//! The conformance suite on the smallest store that there can be: an ordered map behind one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use keyspace::{Access, Batch, Claim, Done, Held, Keyspace, Options, Snapshot, Source, Span, Stop, Write};
use meta::{Engine, EngineError, Facts, Guard, Outcome, Page, Scan, Seq, Txn, Want};

#[derive(Debug)]
struct Store {
    keys: Keyspace,
    /// Whether it takes writes that depend on what is there, and whole ranges.
    blind: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    keys: BTreeMap<Vec<u8>, Held>,
}

impl State {
    fn find(&self, span: &Span) -> Vec<(Bytes, Held)> {
        let found = self.keys.range(span.start.clone()..span.end.clone()).take(span.limit);
        found.map(|(key, held)| (Bytes::from(key.clone()), held.clone())).collect()
    }

    fn read(&self, access: &Access, into: &mut Snapshot) {
        let found = match (access, access.span()) {
            (_, Some(span)) => self.find(&span),
            (access, None) => {
                let keys = access.keys().into_iter();
                keys.filter_map(|key| self.keys.get(&key).map(|held| (key.into(), held.clone()))).collect()
            }
        };
        into.fill(access, found);
    }

    /// Asks until there is an answer, reading only what was looked at.
    fn until<T>(&self, ask: impl Fn(&dyn Source) -> (Option<T>, BTreeSet<Access>)) -> T {
        let mut snapshot = Snapshot::default();
        for _ in 0..1000 {
            let (answer, accesses) = ask(&snapshot);
            if let Some(answer) = answer {
                return answer;
            }
            let missing: Vec<_> = accesses.into_iter().filter(|access| !snapshot.has(access)).collect();
            assert!(!missing.is_empty(), "nothing more can be read");
            missing.iter().for_each(|access| self.read(access, &mut snapshot));
        }
        panic!("the questions do not end");
    }

    fn holds(&self, claim: &Claim) -> bool {
        match claim {
            Claim::Key(key, version) => self.keys.get(key).map(|held| held.version) == *version,
            Claim::Empty(span) => self.find(&Span { limit: 1, ..span.clone() }).is_empty(),
            // It was read under the same lock.
            Claim::Unchanged(_) | Claim::Untouched(_) => true,
        }
    }

    fn write(&mut self, writes: Vec<Write>) {
        let version = self.revision;
        let mut seen = BTreeSet::new();
        for write in writes {
            assert!(seen.insert(write.key().to_vec()), "two writes of {:?}", write.key());
            match write {
                Write::Put(key, value) => drop(self.keys.insert(key, Held { value, version })),
                Write::PutGreater(key, value) => {
                    if let Some(held) = self.keys.get_mut(&key).filter(|held| held.value < value) {
                        *held = Held { value, version };
                    }
                }
                Write::PutIfAbsent(key, value) => {
                    self.keys.entry(key).or_insert(Held { value, version });
                }
                Write::Delete(key) => drop(self.keys.remove(&key)),
                Write::DeleteSpan(span) => self.keys.retain(|key, _| *key < span.start || *key >= span.end),
            }
        }
    }
}

impl Store {
    fn new(blind: bool) -> (Self, ()) {
        (Store { keys: Keyspace::new("p/"), blind, state: Mutex::default() }, ())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides by what was read so far, and reads more until what the batch claims is so.
    fn decide(&self, state: &State, txns: &[Txn], snapshot: &mut Snapshot, show: bool) -> Batch {
        let options = Options { blind: self.blind, lane: 7, most_claims: 60, show };
        loop {
            let batch = keyspace::decide(&self.keys, txns, snapshot, options);
            assert_eq!(batch.damaged(), None);
            let missing: Vec<_> =
                batch.accessed.iter().filter(|access| !snapshot.has(access)).cloned().collect();
            let sure = missing.is_empty() || batch.claims.iter().all(|claim| state.holds(claim));
            if !batch.is_missing() && sure && (missing.is_empty() || !batch.done.is_empty()) {
                return batch;
            }
            assert!(!missing.is_empty(), "nothing more can be read");
            missing.iter().for_each(|access| state.read(access, snapshot));
        }
    }

    fn answer(&self, state: &State, wants: &[Want]) -> Facts {
        let records = state.until(|source| {
            let (answer, accesses) = keyspace::answer(&self.keys, wants, source);
            (known(answer), accesses)
        });
        Facts { seq: seq(state.revision, u8::MAX), records }
    }
}

fn known<T>(answer: Result<T, Stop>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(Stop::Missing) => None,
        Err(stop) => panic!("{stop:?}"),
    }
}

fn seq(revision: u64, index: u8) -> Seq {
    Seq(revision << 8 | u64::from(index))
}

impl Engine for Store {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        Ok(self.answer(&self.state(), wants))
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let mut state = self.state();
        let mut outcomes = Vec::new();
        while let Some(rest) = txns.get(outcomes.len()..).filter(|rest| !rest.is_empty()) {
            // What is shown must not be needed to decide, unless it is claimed.
            let mut snapshot = Snapshot::default();
            let batch = self.decide(&state, rest, &mut snapshot, !self.blind);
            if batch.done.is_empty() {
                assert!(batch.conflicts());
                let wants: Vec<Want> = rest[0].guards.iter().map(Guard::want).collect();
                outcomes.push(Outcome::Conflict(self.answer(&state, &wants)));
                continue;
            }
            assert!(batch.claims.iter().all(|claim| state.holds(claim)), "{:?}", batch.claims);
            let shown = self.decide(&state, &rest[..batch.done.len()], &mut snapshot, true);
            assert_eq!(shown.done.len(), batch.done.len());
            state.revision += u64::from(!batch.writes.is_empty());
            let revision = state.revision;
            state.write(batch.writes);
            outcomes.extend(shown.done.into_iter().map(|done| match done {
                Done::Committed { index, nodes } => Outcome::Committed { seq: seq(revision, index), nodes },
                Done::Claimed => Outcome::Committed { seq: seq(revision, u8::MAX), nodes: Vec::new() },
                Done::Repeated { version, index } => {
                    Outcome::Committed { seq: seq(version.unwrap_or(revision), index), nodes: Vec::new() }
                }
            }));
        }
        Ok(outcomes)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        let state = self.state();
        let (records, more) = state.until(|source| {
            let (page, accesses) = keyspace::page(&self.keys, scan, source);
            (known(page), accesses)
        });
        Ok(Page { facts: Facts { seq: seq(state.revision, u8::MAX), records }, more })
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let mut state = self.state();
        state.revision += 1;
        state.keys.clear();
        Ok(())
    }
}

mod blind {
    suite::conformance!(without_stream, || super::Store::new(true));
}

mod seeing {
    suite::conformance!(without_stream, || super::Store::new(false));
}

mod operations {
    suite::operations!(without_stream, || super::Store::new(true));
}

mod operations_seeing {
    suite::operations!(without_stream, || super::Store::new(false));
}
