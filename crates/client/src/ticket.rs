//! The ids of operations, and the terms that they belong to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use types::{OpId, SessionId, Term};

/// A term of this client. Each reference besides that of [`Terms`](crate::terms::Terms) belongs to an
/// operation that has no answer from the engine.
#[derive(Debug)]
pub(crate) struct OpenTerm {
    pub(crate) session: SessionId,
    pub(crate) term: Term,
    /// The number of ids given out. It wraps after 4 billion operations. Only operations that no term guards
    /// get that far without a new term, and the engine drops their results much earlier, so no id is reused
    /// while its result is kept.
    pub(crate) issued: AtomicU32,
    /// Whether an operation of this term was given up in doubt. It may commit until the term ends.
    pub(crate) is_doubtful: AtomicBool,
}

/// An operation's id. The operation holds it until the engine has answered, and so keeps its term open.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) id: OpId,
    pub(crate) term: Arc<OpenTerm>,
}

impl OpenTerm {
    pub(crate) fn new(session: SessionId, term: Term) -> Arc<Self> {
        let (issued, is_doubtful) = (AtomicU32::new(0), AtomicBool::new(false));
        Arc::new(OpenTerm { session, term, issued, is_doubtful })
    }
}
