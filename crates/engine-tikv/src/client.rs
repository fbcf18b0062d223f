//! The store on a TiKV cluster, through the crate `tikv_client`.
//!
//! The client is asynchronous, and also works in the background: when a commit returns, only the primary key
//! is committed, and the client commits the other keys afterwards. So it has a runtime with threads of its
//! own, to which callers submit their requests.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use keyspace::{Keyspace, Span};
use meta::EngineError;
use pool::OpenError;
use tikv_client::transaction::{HeartbeatOption, ResolveLocksOptions};
use tikv_client::{
    CheckLevel, Error, KvPair, Timestamp, TimestampExt, Transaction, TransactionClient, TransactionOptions,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::error::{begun_only, commit_error, read_error};
use crate::store::{Attempt, CommitError, Mutation, Phases, ReadResult, Store};
use crate::upkeep::before;

/// The number of threads that talk to the servers.
const WORKERS: usize = 2;
/// Requests are divided so that no answer is larger than this. TiKV sends at most 10 MiB
/// (`server.max-grpc-send-msg-len`).
const ANSWER_BYTES: usize = 8 << 20;
/// The size of an answer that the client accepts, far above what a server sends.
const ACCEPTED_BYTES: usize = 64 << 20;

/// A transaction that has locked keys but not its primary key counts as abandoned at this age, and is rolled
/// back. After that, its client can no longer lock the primary key.
const ABANDONED: Duration = Duration::from_secs(5);
/// The pause before a read that a transaction blocks is repeated.
const BETWEEN_READS: Duration = Duration::from_millis(5);

pub(crate) struct Cluster {
    client: Arc<TransactionClient>,
    keys: Keyspace,
    runtime: Runtime,
    op_timeout: Duration,
    addresses: String,
}

struct Running<'a> {
    cluster: &'a Cluster,
    transaction: Transaction,
}

impl Cluster {
    pub(crate) fn connect(config: &Config, keys: Keyspace) -> Result<Self, OpenError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("limen-tikv-io")
            .enable_all()
            .build()
            .map_err(|error| {
                OpenError::config(format!("cannot start the threads of TiKV's client: {error}"))
            })?;
        let mut options = tikv_client::Config::default()
            .with_timeout(config.op_timeout)
            .with_grpc_max_decoding_message_size(ACCEPTED_BYTES);
        if let Some([roots, certificate, key]) = &config.tls {
            options = options.with_security(roots, certificate, key);
        }
        let addresses = config.pds.join(",");
        let limit = config.connect_timeout;
        let connected = runtime.block_on(async {
            let connect = TransactionClient::new_with_config(config.pds.clone(), options);
            tokio::time::timeout(limit, connect).await
        });
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(EngineError::transient(format!("{addresses}: {error}")).into()),
            Err(_late) => {
                let message = format!("{addresses}: no answer within {limit:?} (connect_timeout)");
                return Err(EngineError::transient(message).into());
            }
        };
        Ok(Cluster { client: Arc::new(client), keys, runtime, op_timeout: config.op_timeout, addresses })
    }

    /// Runs a request; returns `None` if it takes longer than `op_timeout`.
    fn wait<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(self.op_timeout, request).await.ok() })
    }

    fn read_request<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, EngineError> {
        match self.wait(request) {
            Some(answer) => answer.map_err(|error| read_error(&self.name(), &error)),
            None => Err(EngineError::transient(self.late())),
        }
    }

    async fn read_once(&self, at: u64, keys: &[Vec<u8>], spans: &[Span]) -> Result<ReadResult, Error> {
        let mut scans: JoinSet<Result<_, Error>> = JoinSet::new();
        for (number, span) in spans.iter().cloned().enumerate() {
            let rows = ANSWER_BYTES / self.keys.max_bytes(&span.start);
            let client = Arc::clone(&self.client);
            scans.spawn(async move { Ok((number, scan(client, at, span, rows).await?)) });
        }
        let mut gets: JoinSet<Result<_, Error>> = JoinSet::new();
        let mut found = ReadResult { values: vec![None; keys.len()], spans: vec![Vec::new(); spans.len()] };
        for part in parts(keys, ANSWER_BYTES, |key| self.keys.max_bytes(key)) {
            let (client, keys) = (Arc::clone(&self.client), keys[part.clone()].to_vec());
            gets.spawn(async move { Ok((part, get(client, at, keys).await?)) });
        }
        while let Some(done) = gets.join_next().await {
            let (part, values): (Range<usize>, Vec<_>) = done.map_err(Error::JoinError)??;
            found.values.splice(part, values);
        }
        while let Some(done) = scans.join_next().await {
            let (number, rows): (usize, _) = done.map_err(Error::JoinError)??;
            if let Some(place) = found.spans.get_mut(number) {
                *place = rows;
            }
        }
        Ok(found)
    }

    /// Waits for a transaction that has locked keys, but not yet its primary key. If it is abandoned, because
    /// its client died or its request for the primary key was lost, rolls it back. The crate `tikv_client`
    /// does that only in its garbage collection.
    fn await_begun(&self, start: u64) -> Result<(), EngineError> {
        let abandoned = before(self.timestamp()?, ABANDONED);
        if start > abandoned {
            std::thread::sleep(BETWEEN_READS);
            return Ok(());
        }
        let all = self.keys.all();
        let abandoned = Timestamp::from_version(abandoned);
        self.read_request(async {
            let done =
                self.client.cleanup_locks(all.start..all.end, &abandoned, ResolveLocksOptions::default());
            done.await.map(drop)
        })
    }

    fn late(&self) -> String {
        format!("{}: no answer within {:?} (op_timeout)", self.name(), self.op_timeout)
    }
}

fn options() -> TransactionOptions {
    // A lock lives for three seconds, and no transaction of this engine should take as long. So it is not
    // renewed: a transaction that takes longer may be rolled back by another client.
    TransactionOptions::new_optimistic()
        .drop_check(CheckLevel::None)
        .heartbeat_option(HeartbeatOption::NoHeartbeat)
}

/// Divides keys into as few parts as possible. No part exceeds `limit` bytes, unless it has only one key.
fn parts(keys: &[Vec<u8>], limit: usize, bytes: impl Fn(&[u8]) -> usize) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut room = 0;
    for (number, key) in keys.iter().enumerate() {
        let bytes = bytes(key);
        match parts.last_mut() {
            Some(part) if bytes <= room => part.end += 1,
            _ => {
                parts.push(number..number + 1);
                room = limit;
            }
        }
        room = room.saturating_sub(bytes);
    }
    parts
}

/// Reads keys with one request. The keys must be sorted.
async fn get(
    client: Arc<TransactionClient>,
    at: u64,
    keys: Vec<Vec<u8>>,
) -> Result<Vec<Option<Bytes>>, Error> {
    let mut values = vec![None; keys.len()];
    if keys.is_empty() {
        return Ok(values);
    }
    let mut snapshot = client.snapshot(Timestamp::from_version(at), options());
    for KvPair(key, value) in snapshot.batch_get(keys.iter().cloned()).await? {
        let key: Vec<u8> = key.into();
        // The answer has the pairs in any order.
        if let Some(place) = keys.binary_search(&key).ok().and_then(|index| values.get_mut(index)) {
            *place = Some(Bytes::from(value));
        }
    }
    Ok(values)
}

/// Reads a range with requests of `rows` rows.
async fn scan(
    client: Arc<TransactionClient>,
    at: u64,
    span: Span,
    rows: usize,
) -> Result<Vec<(Bytes, Bytes)>, Error> {
    let mut found: Vec<(Bytes, Bytes)> = Vec::new();
    let mut start = span.start;
    while found.len() < span.limit && start < span.end {
        let part = (span.limit - found.len()).min(rows);
        let mut snapshot = client.snapshot(Timestamp::from_version(at), options());
        let pairs = snapshot.scan(start..span.end.clone(), u32::try_from(part).unwrap_or(u32::MAX)).await?;
        let before = found.len();
        found.extend(pairs.map(|KvPair(key, value)| (Bytes::from(Vec::from(key)), Bytes::from(value))));
        match found.last() {
            Some((last, _)) if found.len() - before == part => {
                start = last.to_vec();
                start.push(0);
            }
            _ => break,
        }
    }
    Ok(found)
}

impl Store for Cluster {
    fn timestamp(&self) -> Result<u64, EngineError> {
        self.read_request(async { Ok(self.client.current_timestamp().await?.version()) })
    }

    fn begin(&self, phases: Phases) -> Result<Box<dyn Attempt + '_>, EngineError> {
        let options = match phases {
            Phases::One => options().try_one_pc(),
            Phases::Two => options(),
        };
        let transaction = self.read_request(self.client.begin_with_options(options))?;
        Ok(Box::new(Running { cluster: self, transaction }))
    }

    fn read(&self, at: u64, keys: &[Vec<u8>], spans: &[Span]) -> Result<ReadResult, EngineError> {
        let deadline = Instant::now() + self.op_timeout;
        loop {
            let found = self.wait(self.read_once(at, keys, spans));
            let Some(found) = found else { return Err(EngineError::transient(self.late())) };
            let error = match found {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            match begun_only(&error) {
                Some(start) if Instant::now() < deadline => self.await_begun(start)?,
                _ => return Err(read_error(&self.name(), &error)),
            }
        }
    }

    fn forget_before(&self, at: u64) -> Result<(), EngineError> {
        self.read_request(async { self.client.gc(Timestamp::from_version(at)).await.map(drop) })
    }

    fn name(&self) -> String {
        format!("TiKV by {}", self.addresses)
    }
}

impl Attempt for Running<'_> {
    fn started_at(&self) -> u64 {
        self.transaction.start_timestamp().version()
    }

    fn commit(mut self: Box<Self>, mutations: Vec<Mutation>) -> Result<(), CommitError> {
        let cluster = self.cluster;
        let transaction = &mut self.transaction;
        let done = cluster.wait(async {
            for mutation in mutations {
                match mutation {
                    Mutation::Put(key, value) => transaction.put(key, Vec::from(value)).await?,
                    Mutation::Delete(key) => transaction.delete(key).await?,
                    Mutation::Lock(key) => transaction.lock_keys([key]).await?,
                }
            }
            transaction.commit().await
        });
        let error = match done {
            Some(Ok(_)) => return Ok(()),
            Some(Err(error)) => commit_error(&cluster.name(), &error),
            None => CommitError::Failed(EngineError::indeterminate(cluster.late())),
        };
        if matches!(error, CommitError::Conflict(_) | CommitError::OnePhaseRefused) {
            // Otherwise the locks of this transaction would block other clients, and the next attempt, until
            // they expire.
            if let Some(Err(left)) = cluster.wait(transaction.rollback()) {
                tracing::debug!(%left, "the locks of a failed commit remain until they expire");
            }
        }
        Err(error)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl fmt::Debug for Running<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("start", &self.started_at()).finish_non_exhaustive()
    }
}
