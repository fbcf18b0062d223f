//! Engines on a cluster within this process.

#![allow(dead_code, reason = "not every test binary needs all of it")]

mod cluster;
mod mvcc;

use std::sync::Arc;

use engine_tikv::TikvEngine;

#[allow(unused_imports, reason = "not every test binary needs all of it")]
pub(crate) use cluster::{Cluster, Counts, Fault};

/// An empty volume.
pub(crate) fn empty() -> (TikvEngine, Arc<Cluster>) {
    let cluster = Cluster::new();
    (open(&cluster, true), cluster)
}

/// A handle on the volume of a cluster in this process.
pub(crate) fn open(cluster: &Arc<Cluster>, create: bool) -> TikvEngine {
    TikvEngine::on(cluster.clone(), "v_", true, create).expect("a volume")
}
