//! The state of an engine that its requests and its background thread share.

use std::sync::Arc;

use keyspace::{CompletedOps, KeyCache, Keyspace, ShardPool};
use meta::CommitNumbers;
use pool::Jitter;

use crate::store::Store;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Keyspace,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) key_cache: KeyCache,
    pub(crate) shards: ShardPool,
    pub(crate) done: CompletedOps,
    pub(crate) commit_numbers: CommitNumbers,
    pub(crate) jitter: Jitter,
}
