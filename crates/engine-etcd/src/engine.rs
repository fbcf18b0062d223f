//! The engine: opens a volume, holds its connections and cache, and implements [`Engine`].

use std::sync::Arc;

use keyspace::{
    CompletedOps, KeyCache, KeyWrite, Keyspace, LAYOUT_VERSION, PeriodicTask, Precondition, ShardPool,
    SnapshotStore,
};
use meta::{Changes, Engine, EngineError, Outcome, Page, RecordKey, Scan, Snapshot, SnapshotReader, Txn};
use pool::{Connect, Intent, Jitter, OpenError, Pool, Url};

use crate::changes::EtcdChanges;
use crate::config::Config;
use crate::connect::Connector;
use crate::read::read_seq;
use crate::request;
use crate::shared::Shared;
use crate::upkeep;
use crate::wire::{STATUS, StatusRequest, StatusResponse};

/// A volume's metadata in an etcd cluster.
#[derive(Debug)]
pub struct EtcdEngine {
    shared: Arc<Shared>,
    _upkeep: PeriodicTask,
}

impl EtcdEngine {
    /// Connects to the cluster in the URL and checks the volume under its `table_prefix`. Creates an empty
    /// volume if `create` is set and none exists.
    ///
    /// # Errors
    /// [`OpenError::Missing`] if there is no volume, unless `create`; [`OpenError::Newer`] if a later limenfs
    /// wrote its layout; [`OpenError::Config`] if the URL is invalid; [`OpenError::Engine`] if no host
    /// answers or the login fails.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let prefix = config.params.table_prefix.clone();
        // All keys begin with the prefix and a slash. A prefix contains no slash, so no two volumes have a
        // key in common.
        let keys = Arc::new(Keyspace::new(format!("{prefix}/")));
        let (max_ops, compaction, params) = (config.max_txn_ops, config.compaction, config.params.clone());
        let shared = Arc::new(Shared {
            keys,
            pool: Pool::new(Connector::new(config), &params),
            key_cache: KeyCache::default(),
            shards: ShardPool::default(),
            done: CompletedOps::default(),
            max_ops,
            compaction,
            jitter: Jitter::default(),
        });
        shared.prepare(&prefix, create)?;
        let upkeep = upkeep::start(&shared)
            .map_err(|error| OpenError::config(format!("cannot start the housekeeping thread: {error}")))?;
        Ok(EtcdEngine { shared, _upkeep: upkeep })
    }

    /// The server's name and version: `etcd 3.4.23`.
    ///
    /// # Errors
    /// Always determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        Ok(format!("etcd {}", self.status()?.version))
    }

    /// Describes states of the server in which data or availability may be lost.
    pub fn warnings(&self) -> Vec<String> {
        match self.status() {
            Ok(status) => status.errors.into_iter().map(|error| format!("etcd reports: {error}")).collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    fn status(&self) -> Result<StatusResponse, EngineError> {
        self.shared.pool.request(Intent::Read, |connection| {
            connection.run(|channel| channel.call(STATUS, &StatusRequest {}))
        })
    }
}

impl Engine for EtcdEngine {
    fn read(&self, record_keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let (records, revision) = keyspace::read(&*self.shared, record_keys)?;
        Ok(Snapshot { seq: read_seq(revision), records })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.shared.commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        let ((records, more), revision) = keyspace::scan(&*self.shared, scan)?;
        Ok(Page { snapshot: Snapshot { seq: read_seq(revision), records }, more })
    }

    /// The housekeeping keeps the revision that the snapshot reads for at least one interval.
    fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        Ok(Some(Box::new(SnapshotStore::new(&self.shared, read_seq)?)))
    }

    /// Returns immediately: etcd acknowledges a write only after a majority of its members have synced it to
    /// their logs.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let shared = &self.shared;
        let [before, after] = shared.beside_version().map(KeyWrite::DeleteSpan);
        let put = KeyWrite::Put(shared.keys.version(), LAYOUT_VERSION.to_string().into());
        shared.transact(&request::commit(&[], 0, &[], &[before, after, put], &[], shared.max_ops)?)?;
        shared.key_cache.clear();
        Ok(())
    }

    fn remove(&self) -> Result<(), EngineError> {
        let (shared, version) = (&self.shared, KeyWrite::Delete(self.shared.keys.version()));
        let none = shared.beside_version().map(Precondition::Empty);
        shared.transact(&request::commit(&none, 0, &[], &[version], &[], shared.max_ops)?).map(drop)
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        // Use a separate connection, because it lives as long as the stream.
        let connection = self.shared.pool.connector().connect()?;
        Ok(Some(Box::new(EtcdChanges::open(connection, Arc::clone(&self.shared.keys))?)))
    }
}
