//! The record of a client's session and its terms.

use std::cell::Cell;
use std::sync::Arc;

use meta::{Effect, Guard, Maintenance, Session, Volume};
use types::{Errno, SessionId, Term, Time};

use crate::configure::moves;
use crate::maintenance::announced;
use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// Registers a client that starts to use the volume. If an announced tool keeps the client out, the reply is
/// that tool, and nothing is changed.
///
/// # Errors
/// ESTALE: the volume that the client has opened does not exist any more: it was removed, restored from a
/// backup, or has moved to a copy of its objects.
#[derive(Clone, Debug)]
pub struct BeginSession(pub Session);

impl Op for BeginSession {
    type Reply = Option<Maintenance>;
    const NAME: &'static str = "begin session";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let announced = announced(view)?;
        if announced.is_none()
            && (view.setting("uuid")?.as_ref() != Some(&ctx.volume.uuid)
                || moves(view)? != ctx.volume.moves
                || view.setting(Volume::LOADED)?.unwrap_or_default() != ctx.volume.loaded)
        {
            return Err(Errno::ESTALE.into());
        }
        let effects = match announced {
            None => {
                let (session, ended) = (self.0.id, [].into());
                let begin = Effect::BeginTerm { session, term: Term::FIRST, ended };
                vec![Effect::PutSession(self.0.clone()), begin]
            }
            Some(_) => Vec::new(),
        };
        Ok(Plan { reply: announced, effects })
    }
}

/// Renews a session's record, but never creates it: a session that was removed stays removed.
#[derive(Clone, Debug)]
pub struct RenewSession(pub Session);

impl Op for RenewSession {
    type Reply = ();
    const NAME: &'static str = "renew";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        view.guard(Guard::Session { session: self.0.id, heartbeat: None });
        Ok(Plan { reply: (), effects: vec![Effect::PutSession(self.0.clone())] })
    }
}

/// Removes the session of a client that is considered dead, if its heartbeat is still `heartbeat`.
///
/// # Errors
/// EAGAIN: the session was renewed or removed. After that, the same operation cannot be run again.
#[derive(Clone, Debug)]
pub struct RemoveSession {
    session: SessionId,
    heartbeat: Time,
    is_planned: Cell<bool>,
}

impl RemoveSession {
    pub fn new(session: SessionId, heartbeat: Time) -> Self {
        RemoveSession { session, heartbeat, is_planned: Cell::new(false) }
    }
}

impl Op for RemoveSession {
    type Reply = ();
    const NAME: &'static str = "remove session";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        // After a conflict the operation fails: the caller has to read the session again.
        if self.is_planned.replace(true) {
            return Err(Errno::EAGAIN.into());
        }
        view.guard(Guard::Session { session: self.session, heartbeat: Some(self.heartbeat) });
        Ok(Plan { reply: (), effects: vec![Effect::DropSession { session: self.session }] })
    }
}

/// Begins a term of a session, and ends the terms `ended`. All operations of these terms must have been
/// answered.
#[derive(Clone, Debug)]
pub struct BeginTerm {
    pub session: SessionId,
    pub term: Term,
    pub ended: Arc<[Term]>,
}

impl Op for BeginTerm {
    type Reply = ();
    const NAME: &'static str = "begin term";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let BeginTerm { session, term, ref ended } = *self;
        Ok(Plan { reply: (), effects: vec![Effect::BeginTerm { session, term, ended: ended.clone() }] })
    }
}
