//! Engines for the tests: on a cluster within this process, or on the one that `LIMEN_TEST_TIKV` names.

#![allow(dead_code, reason = "not every test binary needs all of it")]

mod cluster;
mod mvcc;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_tikv::TikvEngine;
use meta::Engine;
use pool::Url;

#[allow(unused_imports, reason = "not every test binary needs all of it")]
pub(crate) use cluster::{Cluster, Counts, Fault};

/// The placement drivers, `host:port[,host:port...]`. If set, the suites run on that cluster, each test under
/// its own prefix.
const VARIABLE: &str = "LIMEN_TEST_TIKV";

/// Empties a volume of a real cluster when the test is over.
#[derive(Debug)]
pub(crate) struct Emptied(Option<TikvEngine>);

impl Drop for Emptied {
    fn drop(&mut self) {
        if let Some(engine) = &self.0
            && let Err(error) = engine.wipe()
        {
            eprintln!("cannot remove the keys of a test: {error}");
        }
    }
}

/// An empty volume.
pub(crate) fn empty() -> (TikvEngine, Emptied) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let Ok(places) = std::env::var(VARIABLE) else {
        return (open(&Cluster::new(), true), Emptied(None));
    };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let url = format!("tikv://{places}/t{}_{number}?gc=off", std::process::id());
    let url = Url::parse(&url).expect("a URL");
    let engine = TikvEngine::open(&url, true).expect("a volume on the cluster");
    (engine, Emptied(Some(TikvEngine::open(&url, false).expect("the volume"))))
}

/// A handle on the volume of a cluster in this process.
pub(crate) fn open(cluster: &Arc<Cluster>, create: bool) -> TikvEngine {
    TikvEngine::on(cluster.clone(), "v_", true, create).expect("a volume")
}
