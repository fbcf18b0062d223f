//! The engine: its connections, what it remembers, and the boundary it implements.

use std::sync::Arc;

use keyspace::{DoneOps, Keyspace, LAYOUT_VERSION, Lanes, Memory, Span, Upkeep, Write};
use meta::{Changes, Engine, EngineError, Facts, Outcome, Page, Scan, Txn, Want};
use pool::{Asked, Connect, Jitter, OpenError, Pool, Url};

use crate::changes::EtcdChanges;
use crate::config::Config;
use crate::connect::Connector;
use crate::request;
use crate::schema;
use crate::upkeep;
use crate::wire::{STATUS, StatusRequest, StatusResponse};

/// A volume's metadata in an etcd cluster.
#[derive(Debug)]
pub struct EtcdEngine {
    shared: Arc<Shared>,
    _upkeep: Upkeep,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Arc<Keyspace>,
    pub(crate) pool: Pool<Connector>,
    pub(crate) memory: Memory,
    pub(crate) lanes: Lanes,
    pub(crate) done: DoneOps,
    pub(crate) max_ops: usize,
    pub(crate) compaction: bool,
    pub(crate) jitter: Jitter,
}

impl EtcdEngine {
    /// Connects to the cluster that the URL names, and checks the volume under its `table_prefix`; `create` makes one
    /// that is not there.
    ///
    /// # Errors
    /// [`OpenError::Missing`] where there is none, unless `create`; [`OpenError::Newer`] for the layout of a later
    /// limenfs; [`OpenError::Config`] for a URL that cannot be; [`OpenError::Engine`] where no
    /// host answers or lets us in.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let prefix = config.params.table_prefix.clone();
        // No prefix has a slash, so that none is the beginning of another.
        let keys = Arc::new(Keyspace::new(format!("{prefix}/")));
        let (max_ops, compaction, params) = (config.max_txn_ops, config.compaction, config.params.clone());
        let shared = Arc::new(Shared {
            keys: Arc::clone(&keys),
            pool: Pool::new(Connector::new(config), &params),
            memory: Memory::default(),
            lanes: Lanes::default(),
            done: DoneOps::default(),
            max_ops,
            compaction,
            jitter: Jitter::default(),
        });
        let mut connection = shared.pool.get()?;
        schema::prepare(&mut connection, &keys, &prefix, create)?;
        drop(connection);
        let upkeep = upkeep::start(&shared)
            .map_err(|error| OpenError::config(format!("no thread for the upkeep of the volume: {error}")))?;
        Ok(EtcdEngine { shared, _upkeep: upkeep })
    }

    /// What answers: `etcd 3.4.23`.
    ///
    /// # Errors
    /// Always determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        Ok(format!("etcd {}", self.status()?.version))
    }

    /// What about the server's state can cost data or service.
    pub fn warnings(&self) -> Vec<String> {
        match self.status() {
            Ok(status) => status.errors.into_iter().map(|error| format!("etcd reports: {error}")).collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    fn status(&self) -> Result<StatusResponse, EngineError> {
        self.shared.pool.request(Asked::Look, |connection| {
            connection.run(|channel| channel.call(STATUS, &StatusRequest {}))
        })
    }
}

impl Engine for EtcdEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.shared.facts(wants)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.shared.commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.shared.page(scan)
    }

    /// Returns at once: etcd answers a write when a majority of its members have synced it to their logs.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let shared = &self.shared;
        let (all, version) = (shared.keys.all(), shared.keys.version());
        let mut after = version.clone();
        after.push(0);
        let span = |start, end| Write::DeleteSpan(Span { start, end, limit: usize::MAX });
        let put = Write::Put(version.clone(), LAYOUT_VERSION.to_string().into());
        let writes = [span(all.start, version), span(after, all.end), put];
        shared.transact(&request::commit(&[], 0, &[], &writes, &[], shared.max_ops)?)?;
        shared.memory.clear();
        Ok(())
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        // A connection of its own: it lives as long as the stream.
        let connection = self.shared.pool.connector().connect()?;
        Ok(Some(Box::new(EtcdChanges::open(connection, Arc::clone(&self.shared.keys))?)))
    }
}
