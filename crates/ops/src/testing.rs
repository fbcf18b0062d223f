//! Runs operations in tests: on the engine in memory, without a client and without a cache.

use std::cell::Cell;

use acl::cache::DecisionCache;
use acl::nfs4::Traversers;
use meta::{Engine, MemEngine, Outcome, Txn, Volume};
use types::{Errno, OpId, SessionId, Time};

use crate::known::{OwnReads, known};
use crate::op::{Authority, Ctx, Op};
use crate::view::{PlanStop, View};

#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) engine: MemEngine,
    volume: Volume,
    authority: Authority<'static>,
    decisions: DecisionCache,
    traversers: Traversers,
    next_op: Cell<u128>,
}

impl Direct {
    pub(crate) fn new() -> Self {
        let (engine, volume) = (MemEngine::default(), Volume::in_memory("test"));
        volume.format(&engine).unwrap();
        Direct {
            engine,
            volume,
            authority: Authority::Kernel { revisions: None },
            decisions: DecisionCache::new(0),
            traversers: Traversers::default(),
            next_op: Cell::new(1),
        }
    }

    pub(crate) fn ctx(&self) -> Ctx<'_> {
        let Direct { volume, authority, decisions, traversers, .. } = self;
        Ctx { now: Time::now(), authority, session: SessionId(1), volume, decisions, traversers }
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
                    let snapshot = self.engine.read(&view.into_missing()).unwrap();
                    fresh.extend(snapshot.records.iter().filter_map(|record| known(record, self.volume.acl)));
                }
                Err(PlanStop::Refused(errno)) => return Err(errno),
                Err(PlanStop::KernelIsStale) => return Err(Errno::ESTALE),
            }
        }
    }
}
