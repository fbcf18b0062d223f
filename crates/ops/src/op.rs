//! What an operation is: its plan, and what the plan depends on.

use std::fmt;

use acl::cache::DecisionCache;
use acl::nfs4::Traversers;
use meta::{Effect, Volume};
use types::{Cred, Ino, SessionId, Time};

use crate::credential_source::CredentialSource;
use crate::view::{PlanStop, View};

/// An operation: a pure function from the known records to effects and a reply.
pub trait Op {
    type Reply;
    /// For logs and metrics.
    const NAME: &'static str;
    /// Whether the operation never has effects. If so, cached records within their lifetime can answer it.
    const READ: bool = false;

    /// Decides what to do. It is called again, with more or newer records, after [`PlanStop::Missing`] and
    /// after a conflict.
    ///
    /// # Errors
    /// [`PlanStop`]: the operation fails by its rules, or records are missing.
    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop>;
}

/// The decision of an operation.
#[derive(Debug)]
pub struct Plan<R> {
    pub reply: R,
    pub effects: Vec<Effect>,
}

impl<R> Plan<R> {
    /// A reply without effects.
    pub fn answer(reply: R) -> Self {
        Plan { reply, effects: Vec::new() }
    }
}

/// What a plan depends on, apart from the records.
#[derive(Debug)]
pub struct Ctx<'a> {
    pub now: Time,
    pub authority: &'a Authority<'a>,
    pub session: SessionId,
    pub volume: &'a Volume,
    pub decisions: &'a DecisionCache,
    /// The users and groups that may search every directory of a volume with NFSv4 ACLs.
    pub traversers: &'a Traversers,
}

/// The authority for the operation: who checked the caller's access.
#[derive(Clone, Debug)]
pub enum Authority<'a> {
    /// The kernel did, using the inode attributes that it has cached. If `told` shows that they are out of
    /// date, the operation fails with ESTALE, so that the kernel looks up again. `None` if this client has
    /// the volume exclusively, because the kernel's attributes are then always current.
    Kernel { told: Option<&'a dyn KernelRevisions> },
    /// Nobody did: the operation checks this credential.
    Daemon(Cred),
    /// The kernel did, by a check that is weaker than the volume's ACLs: it never denies what they grant. The
    /// operation checks this caller again.
    Both(&'a dyn CredentialSource),
    /// Nobody did, and the caller is unknown: the operation may do only what everybody may do, which is at
    /// most to search.
    Anyone,
}

/// The access revisions that the kernel was given, as of the moment at which it checked the caller. They do
/// not change while the operation is replanned.
pub trait KernelRevisions: Send + Sync + fmt::Debug {
    /// `None` if the kernel was given no revision for the inode: then the kernel has checked nothing.
    fn revision(&self, ino: Ino) -> Option<u64>;
}

/// For a few inodes with known revisions.
impl<const N: usize> KernelRevisions for [(Ino, u64); N] {
    fn revision(&self, ino: Ino) -> Option<u64> {
        self.iter().find(|(known, _)| *known == ino).map(|(_, rev)| *rev)
    }
}
