//! The stream of changes: an etcd watch on the log. Each new key of the log is one transaction.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use keyspace::{Keyspace, decode_log};
use meta::{Change, Changes, EngineError};
use pool::{Intent, RequestError};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout_at};
use types::BootInstant;

use crate::connect::Connection;
use crate::grpc::{CallError, Channel, Stream};
use crate::read::seq;
use crate::wire::{
    NO_DELETE, RANGE, RangeRequest, RangeResponse, WATCH, WatchCreateRequest, WatchProgressRequest,
    WatchRequest, WatchResponse, WatchUnion,
};

#[derive(Debug)]
pub(crate) struct EtcdChanges {
    keys: Arc<Keyspace>,
    runtime: Runtime,
    stream: Stream,
    channel: Channel,
    op_timeout: Duration,
    /// The address of the server, for messages.
    address: String,
    ready: VecDeque<Change>,
    /// All changes up to this revision were received.
    complete: u64,
    /// The start of the last proof. The clock also runs while the machine is suspended.
    proved: BootInstant,
}

/// How long to wait, after the progress notification, for changes that were already in transit.
const GRACE: Duration = Duration::from_millis(1);

/// Since 3.4.25 and 3.5.8 the server ignores a progress request while the stream is behind, so the request is
/// repeated.
const ASK_AGAIN: Duration = Duration::from_millis(250);

impl EtcdChanges {
    /// Starts the watch. It reports every commit that happens after the call returns.
    ///
    /// # Errors
    /// The member of the cluster has no leader, or is cut off from it.
    pub(crate) fn open(mut connection: Connection, keys: Arc<Keyspace>) -> Result<Self, EngineError> {
        let proved = BootInstant::now();
        let logs = keys.logs();
        let create = WatchCreateRequest {
            key: logs.start.into(),
            range_end: logs.end.into(),
            filters: vec![NO_DELETE],
        };
        let request = WatchRequest { union: Some(WatchUnion::Create(create)) };
        let opened = connection.run(async |channel| {
            let mut stream = channel.stream(WATCH, &request).await?;
            let first: WatchResponse = stream.message().await?;
            Ok((stream, first))
        });
        let (stream, first) = opened.map_err(|error| error.engine_error("etcd", Intent::Read))?;
        let (runtime, channel, op_timeout, address) = connection.into_parts();
        if !first.created || first.canceled {
            let reason = first.cancel_reason;
            return Err(EngineError::permanent(format!("etcd: {address}: the watch was rejected: {reason}")));
        }
        let (ready, complete) = (VecDeque::new(), 0);
        let mut changes =
            EtcdChanges { keys, runtime, stream, channel, op_timeout, address, ready, complete, proved };
        changes.prove()?;
        Ok(changes)
    }

    /// Stores the changes of a response. A response without changes is a progress notification: the changes
    /// up to its revision were sent before. Returns whether the response is one.
    fn take(&mut self, response: WatchResponse) -> Result<bool, EngineError> {
        if response.canceled || response.compact_revision > 0 {
            let reason = response.cancel_reason;
            let message = format!("etcd: {}: the watch was canceled: {reason}", self.address);
            return Err(EngineError::permanent(message));
        }
        let is_progress = response.events.is_empty();
        if is_progress {
            let revision = response.header.map_or(0, |header| header.revision.unsigned_abs());
            self.complete = self.complete.max(revision);
        }
        for kv in response.events.into_iter().filter_map(|event| event.kv) {
            let op = self.keys.parse_log(&kv.key);
            let entry = decode_log(&kv.key, &kv.value)?;
            let op = op.ok_or_else(|| EngineError::permanent("a change has an invalid key"))?;
            let by = op.session();
            self.ready.push_back(Change {
                seq: seq(kv.mod_revision.unsigned_abs(), entry.index),
                by,
                invalidations: entry.invalidations,
            });
        }
        Ok(is_progress)
    }

    /// The next response; `None` if none arrives before the deadline.
    fn receive(&mut self, deadline: Instant) -> Result<Option<WatchResponse>, EngineError> {
        let stream = &mut self.stream;
        match self.runtime.block_on(async { timeout_at(deadline, stream.message()).await }) {
            Ok(message) => message.map(Some).map_err(|error| failed(&self.address, error)),
            Err(_late) => Ok(None),
        }
    }

    /// Proves that every change that was committed before this call has been received.
    ///
    /// A progress notification proves this for the changes up to its revision. The revision alone proves
    /// nothing about the present: a notification may be late, for example after a suspend, and a member of
    /// the cluster that is cut off from the others, or behind them, sends notifications too. So the revision
    /// must be at least that of the cluster, which a linearizable read returns: the member asks its leader,
    /// which asks a majority.
    fn prove(&mut self) -> Result<(), EngineError> {
        let (asked, now) = (Instant::now(), BootInstant::now());
        let deadline = asked + self.op_timeout;
        // Both requests are on the way at the same time.
        self.ask()?;
        let current = self.revision_of_cluster(deadline)?;
        let mut again = asked + ASK_AGAIN;
        while self.complete < current {
            let is_too_old = match self.receive(again.min(deadline))? {
                Some(response) => self.take(response)? && self.complete < current,
                None => true,
            };
            if Instant::now() >= deadline {
                return Err(self.silent());
            }
            if is_too_old {
                self.ask()?;
                again = Instant::now() + ASK_AGAIN;
            }
        }
        // Before 3.4.25 and 3.5.8 the progress notification may overtake changes that are in transit.
        let deadline = Instant::now() + GRACE;
        while let Some(response) = self.receive(deadline)? {
            self.take(response)?;
        }
        self.proved = now;
        Ok(())
    }

    /// Requests a progress notification.
    fn ask(&mut self) -> Result<(), EngineError> {
        let ask = WatchRequest { union: Some(WatchUnion::Progress(WatchProgressRequest {})) };
        self.stream.send(&ask).map_err(|error| failed(&self.address, error))
    }

    /// A revision that is at least that of every change that was committed before this call.
    fn revision_of_cluster(&mut self, deadline: Instant) -> Result<u64, EngineError> {
        let request =
            RangeRequest { key: self.keys.version().into(), count_only: true, ..RangeRequest::default() };
        let channel = &mut self.channel;
        let answer = self
            .runtime
            .block_on(async { timeout_at(deadline, channel.call::<RangeResponse>(RANGE, &request)).await });
        let answer = answer.map_err(|_late| self.silent())?.map_err(|error| failed(&self.address, error))?;
        Ok(answer.header.map_or(0, |header| header.revision.unsigned_abs()))
    }

    fn silent(&self) -> EngineError {
        let (address, limit) = (&self.address, self.op_timeout);
        let message = format!("etcd: {address}: no response on the stream of changes for {limit:?}");
        EngineError::transient(message)
    }

    fn sorted(&mut self) -> Vec<Change> {
        let mut changes: Vec<Change> = self.ready.drain(..).collect();
        // The events of one revision arrive in key order, not in commit order.
        changes.sort_by_key(|change| change.seq);
        changes
    }
}

fn failed(address: &str, error: CallError) -> EngineError {
    error.at(address).engine_error("etcd", Intent::Read)
}

impl Changes for EtcdChanges {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        let deadline = Instant::now() + wait;
        while self.ready.is_empty() {
            let Some(response) = self.receive(deadline)? else { break };
            self.take(response)?;
        }
        if self.ready.is_empty() || self.proved.elapsed() > wait {
            self.prove()?;
        }
        Ok(self.sorted())
    }
}
