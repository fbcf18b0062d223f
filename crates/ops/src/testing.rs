//! Runs operations in tests: on the engine in memory, without a client and without a cache.

use std::cell::Cell;

use acl::cache::DecisionCache;
use acl::nfs4::Traversers;
use meta::{Engine, MemEngine, Outcome, Txn, Volume};
use types::{Errno, OpId, SessionId, Time};

use crate::known::{OwnReads, known};
use crate::op::{Authority, Ctx, Op};
use crate::trash_names::TrashDirs;
use crate::view::{PlanStop, View};

#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) engine: MemEngine,
    volume: Volume,
    authority: Authority<'static>,
    decisions: DecisionCache,
    traversers: Traversers,
    pub(crate) trash: TrashDirs,
    next_op: Cell<u128>,
}

impl Direct {
    pub(crate) fn new() -> Self {
        Direct::with(Volume::in_memory("test"))
    }

    pub(crate) fn with(volume: Volume) -> Self {
        let engine = MemEngine::default();
        volume.format(&engine).unwrap();
        Direct {
            engine,
            volume,
            authority: Authority::Kernel { revisions: None },
            decisions: DecisionCache::new(0),
            traversers: Traversers::default(),
            trash: TrashDirs::default(),
            next_op: Cell::new(1),
        }
    }

    pub(crate) fn ctx(&self) -> Ctx<'_> {
        let Direct { volume, authority, decisions, traversers, trash, .. } = self;
        let (now, session) = (Time::now(), SessionId(1));
        Ctx { now, authority, session, volume, decisions, traversers, trash: Some(trash), holds: false }
    }

    /// Reads what the plan is missing, and commits its effects.
    pub(crate) fn run<O: Op>(&self, op: &O) -> Result<O::Reply, Errno> {
        let nothing = OwnReads::default();
        let mut fresh = OwnReads::default();
        loop {
            let mut view = View::new(&nothing, None, &fresh);
            match crate::quota::plan(op, &mut view, &self.ctx()) {
                Ok(plan) => {
                    let op_id = OpId(self.next_op.replace(self.next_op.get() + 1));
                    let txn = Txn { op_id, guards: view.into_guards(), effects: plan.effects };
                    let outcomes = self.engine.commit(&[txn]).unwrap();
                    assert!(matches!(outcomes[..], [Outcome::Committed { .. }]), "{outcomes:?}");
                    return Ok(plan.reply);
                }
                Err(PlanStop::Missing) => {
                    let as_snapshot = view.needs_snapshot();
                    let snapshot = self.engine.read(&view.into_missing()).unwrap();
                    if as_snapshot {
                        fresh.clear();
                    }
                    fresh.extend(snapshot.records.iter().filter_map(|record| known(record, self.volume.acl)));
                }
                Err(PlanStop::Failed(errno)) => return Err(errno),
                Err(PlanStop::KernelIsStale) => return Err(Errno::ESTALE),
                Err(PlanStop::Held(ino)) => panic!("another session holds {ino}"),
            }
        }
    }
}
