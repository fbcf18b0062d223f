//! The definition of an operation, and the inputs of its plan.

use std::fmt;

use acl::cache::DecisionCache;
use acl::nfs4::Traversers;
use meta::{Effect, Volume};
use types::{Cred, Ino, SessionId, Time};

use crate::credential_source::CredentialSource;
use crate::trash_names::TrashDirs;
use crate::view::{PlanStop, View};

/// An operation: a pure function from the known records to effects and a reply.
pub trait Op {
    type Reply;
    /// For logs and metrics.
    const NAME: &'static str;
    /// Whether the operation never has effects. If so, it can be answered from cached records within their
    /// lifetime.
    const READ: bool = false;
    /// Whether the client's cache takes the records that the operation reads and changes. If not, the
    /// operation must not change a record that may be cached, because the cache would keep the old one.
    const IS_REMEMBERED: bool = true;

    /// Decides what to do. It is called again, with more or newer records, after [`PlanStop::Missing`] and
    /// after a conflict.
    ///
    /// # Errors
    /// [`PlanStop`]: the operation fails by its rules, records are missing, or the kernel's attributes are
    /// out of date.
    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop>;

    /// The quotas that may refuse the operation.
    fn bound_by(&self) -> BoundBy {
        BoundBy::AllQuotas
    }
}

/// The quotas that may refuse an operation. Its changes count in all quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundBy {
    AllQuotas,
    /// For the superuser: those of directories, not those of users and groups (`ignore_hardlimit`,
    /// fs/quota/dquot.c, for `CAP_SYS_RESOURCE`).
    DirectoryQuotas,
    /// None: for tools, and for operations that must not fail because a quota is full.
    NoQuota,
}

impl BoundBy {
    /// For a caller that is, or is not, the superuser.
    pub fn caller(is_superuser: bool) -> BoundBy {
        if is_superuser { BoundBy::DirectoryQuotas } else { BoundBy::AllQuotas }
    }
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

/// The inputs of a plan apart from the records.
#[derive(Debug)]
pub struct Ctx<'a> {
    pub now: Time,
    pub authority: &'a Authority<'a>,
    pub session: SessionId,
    pub volume: &'a Volume,
    pub decisions: &'a DecisionCache,
    /// The users and groups that may search every directory of a volume with NFSv4 ACLs.
    pub traversers: &'a Traversers,
    /// The directories of the trash that this client knows; `None` if removed files are not kept.
    pub trash: Option<&'a TrashDirs>,
    /// Whether the session holds the directories that it creates ([`Inode::holder`](meta::Inode::holder)).
    pub holds: bool,
}

/// The authority for the operation: who checked the caller's access.
#[derive(Clone, Debug)]
pub enum Authority<'a> {
    /// The kernel checked, using the inode attributes that it has cached. If `revisions` shows that they are
    /// out of date, the operation fails with ESTALE, so that the kernel looks up again. `revisions` is `None`
    /// if this client has the volume exclusively, because the kernel's attributes are then always current.
    Kernel { revisions: Option<&'a dyn KernelRevisions> },
    /// The kernel did not check. The operation checks this credential.
    Daemon(Cred),
    /// The kernel checked, but may have allowed more than the volume's ACLs grant. The operation checks this
    /// caller again.
    Both(&'a dyn CredentialSource),
    /// The kernel did not check, and the caller is unknown. The operation may at most search directories, and
    /// only those that everybody may search.
    Anyone,
}

/// The access revisions that the kernel was given, as of the moment at which it checked the caller. If the
/// operation is replanned, it uses the same revisions.
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
