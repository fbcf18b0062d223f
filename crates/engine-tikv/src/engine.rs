//! The engine: its store and its cache, and the implementation of [`Engine`].

use std::sync::Arc;

use keyspace::{CompletedOps, KeyCache, Keyspace, PeriodicTask, ShardPool, SnapshotStore};
use meta::{
    Changes, CommitNumbers, Engine, EngineError, Outcome, Page, RecordKey, Scan, Snapshot, SnapshotReader,
    Txn,
};
use pool::{Jitter, OpenError, Url};

use crate::config::Config;
use crate::shared::Shared;
use crate::store::Store;
use crate::{changes, upkeep};

/// A volume's metadata in a TiKV cluster.
#[derive(Debug)]
pub struct TikvEngine {
    shared: Arc<Shared>,
    _upkeep: PeriodicTask,
}

impl TikvEngine {
    /// Connects to the cluster that the URL names, and checks the volume under its prefix. If `create` is
    /// true, creates the volume if it does not exist.
    ///
    /// # Errors
    /// [`OpenError::Missing`] if there is no volume, unless `create` is true; [`OpenError::Newer`] for the
    /// layout of a later limenfs; [`OpenError::Config`] for an invalid URL, and if limenfs was built without
    /// TiKV's client; [`OpenError::Engine`] if no placement driver answers.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        Self::on(connect(&config)?, &config.prefix, config.gc, create)
    }

    /// Opens the volume under a prefix of a store. `gc`: whether this client deletes old versions.
    ///
    /// # Errors
    /// Those of [`TikvEngine::open`].
    pub fn on(store: Arc<dyn Store>, prefix: &str, gc: bool, create: bool) -> Result<Self, OpenError> {
        let shared = Arc::new(Shared {
            keys: keyspace(prefix),
            store,
            key_cache: KeyCache::default(),
            shards: ShardPool::default(),
            done: CompletedOps::default(),
            commit_numbers: CommitNumbers::default(),
            jitter: Jitter::default(),
        });
        shared.prepare(prefix, create)?;
        let upkeep = upkeep::start(&shared, gc).map_err(|error| {
            OpenError::config(format!("cannot start the background thread of the volume: {error}"))
        })?;
        Ok(TikvEngine { shared, _upkeep: upkeep })
    }

    /// The name of the cluster, for messages. Fails if no placement driver answers.
    ///
    /// # Errors
    /// Always determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        self.shared.store.timestamp()?;
        Ok(self.shared.store.name())
    }

    /// Warnings about server settings with which data can be lost. There are none, because the client cannot
    /// query the settings.
    pub fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Does the periodic background work once, now.
    pub fn keep_up(&self) {
        self.shared.keep_up();
    }
}

/// All keys begin with the prefix and a slash. A prefix contains no slash, so no two volumes have a key in
/// common.
fn keyspace(prefix: &str) -> Keyspace {
    Keyspace::new(format!("{prefix}/"))
}

#[cfg(feature = "client")]
fn connect(config: &Config) -> Result<Arc<dyn Store>, OpenError> {
    Ok(Arc::new(crate::client::Cluster::connect(config, keyspace(&config.prefix))?))
}

#[cfg(not(feature = "client"))]
fn connect(_config: &Config) -> Result<Arc<dyn Store>, OpenError> {
    Err(OpenError::config(
        "this limen was built without TiKV's client: build it with cargo build --release -p cli --features tikv",
    ))
}

impl Engine for TikvEngine {
    fn read(&self, record_keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let seq = self.shared.commit_numbers.read();
        let (records, _) = keyspace::read(&*self.shared, record_keys)?;
        Ok(Snapshot { seq, records })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.shared.commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        let seq = self.shared.commit_numbers.read();
        let ((records, more), _) = keyspace::scan(&*self.shared, scan)?;
        Ok(Page { snapshot: Snapshot { seq, records }, more })
    }

    /// The versions that the snapshot reads are kept for at least ten minutes, unless another program deletes
    /// old versions (`gc=off`).
    fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        let seq = self.shared.commit_numbers.read();
        Ok(Some(Box::new(SnapshotStore::new(&self.shared, |_| seq)?)))
    }

    /// Returns at once: TiKV answers a write when a majority of its region's replicas have synced it to their
    /// logs.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.shared.wipe()
    }

    fn remove(&self) -> Result<(), EngineError> {
        self.shared.remove()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(Some(Box::new(changes::open(&self.shared)?)))
    }
}
