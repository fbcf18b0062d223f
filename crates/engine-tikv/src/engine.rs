//! The engine: the store, what it remembers, and the boundary it implements.

use std::sync::Arc;

use keyspace::{DoneOps, Keyspace, Lanes, Memory, Upkeep};
use meta::{Changes, Engine, EngineError, Facts, Order, Outcome, Page, Scan, Txn, Want};
use pool::{Jitter, OpenError, Url};

use crate::config::Config;
use crate::store::Store;
use crate::{changes, upkeep};

/// A volume's metadata in a TiKV cluster.
#[derive(Debug)]
pub struct TikvEngine {
    shared: Arc<Shared>,
    _upkeep: Upkeep,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Keyspace,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) memory: Memory,
    pub(crate) lanes: Lanes,
    pub(crate) done: DoneOps,
    pub(crate) order: Order,
    pub(crate) jitter: Jitter,
}

impl TikvEngine {
    /// Connects to the cluster that the URL names, and checks the volume under its prefix; `create` makes one that is
    /// not there.
    ///
    /// # Errors
    /// [`OpenError::Missing`] where there is none, unless `create`; [`OpenError::Newer`] for the layout of a later
    /// limenfs; [`OpenError::Config`] for a URL that cannot be, and where limenfs was built without TiKV's client;
    /// [`OpenError::Engine`] where no placement driver answers.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        Self::on(connect(&config)?, &config.prefix, config.gc, create)
    }

    /// The volume under a prefix of a store. `gc`: whether old versions are dropped from here.
    ///
    /// # Errors
    /// As [`TikvEngine::open`].
    pub fn on(store: Arc<dyn Store>, prefix: &str, gc: bool, create: bool) -> Result<Self, OpenError> {
        let shared = Arc::new(Shared {
            // No prefix has a slash, so that none is the beginning of another.
            keys: Keyspace::new(format!("{prefix}/")),
            store,
            memory: Memory::default(),
            lanes: Lanes::default(),
            done: DoneOps::default(),
            order: Order::default(),
            jitter: Jitter::default(),
        });
        shared.prepare(prefix, create)?;
        let upkeep = upkeep::start(&shared, gc)
            .map_err(|error| OpenError::config(format!("no thread for the upkeep of the volume: {error}")))?;
        Ok(TikvEngine { shared, _upkeep: upkeep })
    }

    /// What answers, for people.
    ///
    /// # Errors
    /// Always determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        self.shared.store.timestamp()?;
        Ok(self.shared.store.name())
    }

    /// What about the server's state can cost data or service: nothing that its client is told of.
    pub fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Does at once what is otherwise done in the background now and then.
    pub fn keep_up(&self) {
        self.shared.keep_up();
    }
}

#[cfg(feature = "client")]
fn connect(config: &Config) -> Result<Arc<dyn Store>, OpenError> {
    Ok(Arc::new(crate::client::Cluster::connect(config)?))
}

#[cfg(not(feature = "client"))]
fn connect(_config: &Config) -> Result<Arc<dyn Store>, OpenError> {
    Err(OpenError::config(
        "this limen was built without TiKV's client: build it with cargo build --release -p cli --features tikv",
    ))
}

impl Engine for TikvEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.shared.facts(wants)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.shared.commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.shared.page(scan)
    }

    /// Returns at once: TiKV answers a write when a majority of its region's replicas have synced it to their logs.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.shared.wipe()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(Some(Box::new(changes::open(&self.shared)?)))
    }
}
