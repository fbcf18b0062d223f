//! The state of an engine that its requests and its streams of changes share.

use meta::CommitNumbers;
use pool::{CommitCounter, Connect, Pool};

use crate::config::Target;
use crate::schema::Tables;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool<Target>,
    pub(crate) numbers: CommitNumbers,
    pub(crate) tables: Tables,
    pub(crate) sql: Sql,
    /// Decides when to trim the log.
    pub(crate) commits: CommitCounter,
}

/// The most frequent statements, and the functions that they call.
#[derive(Debug)]
pub(crate) struct Sql {
    pub(crate) functions: String,
    pub(crate) commit: String,
    pub(crate) claim: String,
    pub(crate) read: String,
}

impl Shared {
    /// The name of the database, for messages.
    pub(crate) fn address(&self) -> &str {
        self.pool.connector().address()
    }
}
