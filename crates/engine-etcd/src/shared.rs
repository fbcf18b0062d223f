//! The state of an engine that its requests and its housekeeping share.

use std::sync::Arc;

use keyspace::{CompletedOps, KeyCache, Keyspace, ShardPool, Span};
use pool::{Jitter, Pool};

use crate::connect::Connector;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Arc<Keyspace>,
    pub(crate) pool: Pool<Connector>,
    pub(crate) key_cache: KeyCache,
    pub(crate) shards: ShardPool,
    pub(crate) done: CompletedOps,
    pub(crate) max_ops: usize,
    pub(crate) compaction: bool,
    pub(crate) jitter: Jitter,
}

impl Shared {
    /// The ranges of all keys of the volume except the key of the version.
    pub(crate) fn beside_version(&self) -> [Span; 2] {
        let (all, version) = (self.keys.all(), self.keys.version());
        let after = [&version[..], &[0]].concat();
        [(all.start, version), (after, all.end)].map(|(start, end)| Span { start, end, limit: usize::MAX })
    }
}
