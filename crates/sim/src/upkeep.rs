//! The maintenance that clients and the collector do: they remove silent sessions with their locks and
//! unlinked files, garbage, and unreferenced slices.

use std::collections::BTreeSet;

use meta::{Counter, Engine, Record, Scan};
use types::{Ino, SessionId, SliceId};

use crate::act::{Got, NonTreeAction, Reply, Step};
use crate::client::{Client, got};
use crate::mutant::Mutant;
use crate::port::{self, SimEngine};
use crate::shared::{Ended, Shared};

impl Client {
    pub(crate) fn remove_others(&self, shared: &Shared) {
        let mut sessions = Vec::new();
        self.scan(
            |after| Scan::Sessions { after, limit: 100 },
            SessionId(0),
            |record| match record {
                Record::Session(id, Some(session)) => {
                    sessions.push((*id, session.heartbeat.nanos()));
                    Some(*id)
                }
                _ => None,
            },
        );
        port::pause();
        port::pause();
        for (session, heartbeat) in sessions.into_iter().filter(|(id, _)| *id != self.meta.session()) {
            self.step(shared, Step::Remove { session, heartbeat });
        }
    }

    /// See `vfs/src/cleanup.rs`: orphans and locks are read before the sessions.
    pub(crate) fn clean(&self, shared: &Shared) {
        let orphans = self.orphans();
        let mut owners: BTreeSet<(Ino, SessionId)> = BTreeSet::new();
        self.scan(
            |after| Scan::Locks { after, limit: 100 },
            Ino(0),
            |record| match record {
                Record::Locks(ino, locks) => {
                    owners.extend(locks.iter().map(|lock| (*ino, lock.owner.session)));
                    Some(*ino)
                }
                _ => None,
            },
        );
        let mut living = BTreeSet::new();
        let is_whole = self.scan(
            |after| Scan::Sessions { after, limit: 100 },
            SessionId(0),
            |record| match record {
                Record::Session(id, Some(_)) => {
                    living.insert(*id);
                    Some(*id)
                }
                _ => None,
            },
        );
        if !is_whole {
            return;
        }
        for (session, ino) in orphans.into_iter().filter(|(session, _)| !living.contains(session)) {
            self.step(shared, Step::Reap { session, ino });
        }
        for (ino, session) in owners.into_iter().filter(|(_, session)| !living.contains(session)) {
            self.step(shared, Step::DropLocks { ino, session });
        }
    }

    pub(crate) fn orphans(&self) -> Vec<(SessionId, Ino)> {
        let mut orphans = Vec::new();
        self.scan(
            |after| Scan::Orphans { after, limit: 100 },
            (SessionId(0), Ino(0)),
            |record| match record {
                Record::Orphan(session, ino) => {
                    orphans.push((*session, *ino));
                    Some((*session, *ino))
                }
                _ => None,
            },
        );
        orphans
    }

    /// Returns whether all records were read.
    fn scan<K>(
        &self,
        scan: impl Fn(K) -> Scan,
        first: K,
        mut last_of: impl FnMut(&Record) -> Option<K>,
    ) -> bool {
        let mut after = first;
        loop {
            let Ok(page) = self.meta.scan(&scan(after)) else { return false };
            let last = page.snapshot.records.iter().filter_map(&mut last_of).last();
            match last {
                Some(last) if page.more => after = last,
                _ => return true,
            }
        }
    }

    /// See `collect` in `cli/src/gc.rs`.
    pub(crate) fn collect(&self, shared: &Shared) {
        let begun = shared.begin(self.number, self.meta.session(), 0, Step::Other(NonTreeAction::Collect));
        let mut garbage = Vec::new();
        self.scan(
            |after| Scan::Garbage { after, limit: 100 },
            SliceId(0),
            |record| match record {
                Record::Garbage(found) => {
                    garbage.push(found.slice);
                    Some(found.slice)
                }
                _ => None,
            },
        );
        shared.delete(begun.number, &garbage);
        port::pause();
        let done = self.meta.drop_garbage(&garbage);
        shared.end(Ended { got: got(done.map(|()| Reply::Nothing), true), ..begun });
    }
}

/// The steps of `limen gc` on a mounted volume (`cli/src/gc.rs`): it reads the counter, the sessions, and the
/// slices in windows, and then lists the store. Objects of any age are removed, so the rules must hold
/// without the grace period.
pub(crate) fn collect_unreferenced(shared: &Shared) {
    let begun = shared.begin(usize::MAX, SessionId(0), 0, Step::Other(NonTreeAction::Gc));
    let mut below = u64::MAX;
    let is_late = shared.mutant == Some(Mutant::GcReadsSessionsFirst);
    let counter = || -> Result<u64, meta::EngineError> {
        let records = SimEngine.read(&[meta::RecordKey::Counter(Counter::Slice)])?.records;
        let next = |record| if let Record::Counter(_, next) = record { Some(next) } else { None };
        Ok(records.into_iter().find_map(next).unwrap_or_default())
    };
    let mut read = || -> Result<(), meta::EngineError> {
        if !is_late {
            below = counter()?;
        }
        let page = SimEngine.scan(&Scan::Sessions { after: SessionId(0), limit: 1000 })?;
        // A collector on a busy machine is slow.
        (0..8).for_each(|_| port::pause());
        for record in &page.snapshot.records {
            if let Record::Session(_, Some(session)) = record {
                below = below.min(session.first_slice.0);
            }
        }
        if is_late {
            below = below.min(counter()?);
        }
        if shared.mutant == Some(Mutant::GcWithoutGrace) {
            below = u64::MAX;
        }
        check::for_each_slice_window(&SimEngine, |window| {
            let selected: Vec<SliceId> = shared
                .in_store()
                .into_iter()
                .filter(|slice| slice.0 < below && window.holds(*slice) && window.get(*slice).is_none())
                .collect();
            shared.delete(begun.number, &selected);
            Ok(())
        })
    };
    let done = read();
    let got = if done.is_ok() { Got::Done(Reply::Nothing) } else { Got::Failed };
    shared.end(Ended { got, ..begun });
}
