//! The object store of the mounts: in memory, with delays, errors and stalls.
//!
//! Both mounts and the tools use one [`BlockStore`]. It caches nothing, so each read shows what is stored.

use std::sync::Arc;
use std::time::Duration;

use chunk::{BlockStore, Fault, Faults, StorageConfig, StoreCall, StoreOptions};
use meta::MemEngine;
use types::{BLOCK_BYTES, Errno, SliceSource};

use crate::rng::Rng;
use crate::world::rows;

/// Longer than the interval of heartbeats.
const STALL: Duration = Duration::from_secs(40);

/// How the store behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreConditions {
    delay: Duration,
    /// How many of a thousand calls stall.
    stalls: u32,
    /// How many of a thousand calls fail before the work is done; as many fail after it.
    failures: u32,
}

impl StoreConditions {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let delay = Duration::from_millis(rng.pick(&[1, 30, 1000]));
        StoreConditions { delay, stalls: rng.pick(&[0, 0, 5]), failures: rng.pick(&[0, 20, 100]) }
    }
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) blocks: Arc<BlockStore>,
    faults: Arc<Faults>,
}

impl Store {
    pub(super) fn open(seed: u64, conditions: StoreConditions) -> Result<Self, chunk::ChunkError> {
        let faults = Faults::new(seed);
        for call in [StoreCall::Put, StoreCall::Delete] {
            faults.add(call, Fault::Fail(Errno::EIO), conditions.failures);
            faults.add(call, Fault::DoneThenFail(Errno::EIO), conditions.failures);
            faults.add(call, Fault::Slow(STALL), conditions.stalls);
        }
        for call in [StoreCall::Put, StoreCall::Get, StoreCall::Delete, StoreCall::List] {
            faults.add(call, Fault::Slow(conditions.delay / 10), 500);
            faults.add(call, Fault::Slow(conditions.delay), 1000);
        }
        let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
        let options =
            StoreOptions { cache_bytes: 0, faults: Some(Arc::clone(&faults)), ..StoreOptions::default() };
        Ok(Store { blocks: BlockStore::open_with(&config, options)?, faults })
    }

    /// Makes all changes fail from now on. Otherwise a thread that the scheduler ends would remove blocks
    /// that it has not committed, which a killed process does not do.
    pub(super) fn close(&self) {
        self.faults.clear();
        for call in [StoreCall::Put, StoreCall::Delete] {
            self.faults.add(call, Fault::Fail(Errno::EIO), 1000);
        }
    }

    /// Checks that all blocks which rows name are stored. Returns the findings.
    pub(super) fn check(&self, engine: &MemEngine) -> Vec<String> {
        let mut findings = Vec::new();
        for (ino, _, rows) in rows(engine) {
            for row in rows {
                let SliceSource::Blocks { id, size, .. } = row.source else { continue };
                for block in 0..size.div_ceil(BLOCK_BYTES) {
                    if let Err(error) = self.blocks.verify_block(id, size, block) {
                        findings.push(format!("block {block} of slice {} of {ino}: {error}", id.0));
                    }
                }
            }
        }
        findings
    }
}
