//! The counters of a running mount. The part of the mount that counts owns its counters; a command gets
//! references to them.

use std::net::SocketAddr;
use std::sync::Arc;

use chunk::BlockStore;
use fuse::{Profile, RequestCounts};
use meta::{Counting, Engine};
use vfs::Vfs;

#[derive(Clone, Debug)]
pub struct Counters {
    pub requests: Arc<RequestCounts>,
    /// The requests of this client to the engine.
    pub engine: Arc<Counting<Arc<dyn Engine>>>,
    /// The requests that were sent to the server. They are fewer than those of `engine` if they are batched.
    /// For the embedded engine, this is the same as `engine`.
    pub sent: Arc<Counting<Arc<dyn Engine>>>,
    pub profile: Arc<Profile>,
    pub store: Arc<BlockStore>,
    pub vfs: Arc<Vfs>,
    pub mountpoint: String,
    /// Whether requests come through io_uring, not `/dev/fuse`.
    pub uses_ring: bool,
    /// The address at which the metrics are served over HTTP.
    pub metrics: Option<SocketAddr>,
}
