//! Reserves numbers, and applies effects without any check.

use meta::{Counter, Effect};
use types::Errno;

use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Reserves `count` numbers that no client had before, and returns the first.
///
/// # Errors
/// ENOSPC: there are no more numbers.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub counter: Counter,
    pub count: u64,
}

impl Op for Lease {
    type Reply = u64;
    const NAME: &'static str = "lease";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<u64>, PlanStop> {
        let first = view.counter(self.counter)?;
        let value = first.checked_add(self.count).filter(|&v| v <= i64::MAX as u64).ok_or(Errno::ENOSPC)?;
        Ok(Plan { reply: first, effects: vec![Effect::SetCounter { counter: self.counter, value }] })
    }
}

/// Applies effects without any check.
#[derive(Clone, Debug)]
pub struct Housekeeping(pub Vec<Effect>);

impl Op for Housekeeping {
    type Reply = ();
    const NAME: &'static str = "housekeeping";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        Ok(Plan { reply: (), effects: self.0.clone() })
    }
}
