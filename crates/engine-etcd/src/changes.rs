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
    NO_DELETE, WATCH, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, WatchUnion,
};

#[derive(Debug)]
pub(crate) struct EtcdChanges {
    keys: Arc<Keyspace>,
    runtime: Runtime,
    stream: Stream,
    _channel: Channel,
    op_timeout: Duration,
    ready: VecDeque<Change>,
    progress: ProgressRequests,
    /// The time of the last progress request that the server answered. The clock also runs while the machine is
    /// suspended.
    proved: BootInstant,
}

/// Matches progress notifications with requests. A notification does not name its request, the server ignores some
/// requests, and a notification may arrive long after its request, for example after a suspend. Such a notification
/// proves nothing about later changes. So a proof takes more notifications than requests were unanswered before it.
#[derive(Debug, Default)]
struct ProgressRequests {
    /// Requests that the server may still answer.
    unanswered: u32,
    /// The number of notifications after which one surely answers a request of the current proof.
    needed: u32,
}

impl ProgressRequests {
    /// Begins a proof. Returns the number of requests to send.
    fn begin(&mut self) -> u32 {
        self.needed = self.unanswered + 1;
        self.unanswered += self.needed;
        self.needed
    }

    fn repeat(&mut self) {
        self.unanswered += 1;
    }

    /// Takes a notification. Returns whether the proof is complete.
    fn answer(&mut self) -> bool {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.needed = self.needed.saturating_sub(1);
        self.needed == 0
    }
}

/// How long to wait, after the progress notification, for changes that were already in transit.
const GRACE: Duration = Duration::from_millis(1);

/// Since 3.4.25 and 3.5.8 the server ignores a progress request while the stream is behind, so the request is
/// repeated.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// If more requests than this are unanswered before a proof, the stream ends, because the server will never
/// answer those that it ignored. The server was then behind for seconds, and the caches have expired.
const MOST_UNANSWERED: u32 = 16;

impl EtcdChanges {
    /// Starts the watch. It reports every commit that happens after the call returns.
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
        let (stream, first) = opened.map_err(failed)?;
        let (runtime, channel, op_timeout) = connection.into_parts();
        if !first.created || first.canceled {
            let reason = first.cancel_reason;
            return Err(EngineError::permanent(format!("etcd rejected the watch: {reason}")));
        }
        let ready = VecDeque::new();
        let progress = ProgressRequests::default();
        Ok(EtcdChanges { keys, runtime, stream, _channel: channel, op_timeout, ready, progress, proved })
    }

    /// Stores the changes of a response. Returns whether it is a progress notification that completes a proof. Such
    /// a notification has no changes.
    fn take(&mut self, response: WatchResponse) -> Result<bool, EngineError> {
        if response.canceled || response.compact_revision > 0 {
            let reason = response.cancel_reason;
            return Err(EngineError::permanent(format!("etcd canceled the watch: {reason}")));
        }
        let is_progress = response.events.is_empty();
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
        Ok(is_progress && self.progress.answer())
    }

    /// The next response; `None` if none arrives before the deadline.
    fn receive(&mut self, deadline: Instant) -> Result<Option<WatchResponse>, EngineError> {
        let stream = &mut self.stream;
        match self.runtime.block_on(async { timeout_at(deadline, stream.message()).await }) {
            Ok(message) => message.map(Some).map_err(failed),
            Err(_late) => Ok(None),
        }
    }

    /// Requests a progress notification, and receives everything that the server sends before it. Otherwise
    /// silence could mean that the server is gone, and the changes that arrive could be old.
    fn prove(&mut self) -> Result<(), EngineError> {
        let (asked, now) = (Instant::now(), BootInstant::now());
        let ask = WatchRequest { union: Some(WatchUnion::Progress(WatchProgressRequest {})) };
        if self.progress.unanswered > MOST_UNANSWERED {
            let message = "etcd: the server ignored requests on the stream of changes: start a new watch";
            return Err(EngineError::transient(message));
        }
        for _ in 0..self.progress.begin() {
            self.stream.send(&ask).map_err(failed)?;
        }
        let mut is_answered = false;
        loop {
            let deadline = (Instant::now() + ASK_AGAIN).min(asked + self.op_timeout);
            while !is_answered && let Some(response) = self.receive(deadline)? {
                is_answered = self.take(response)?;
            }
            if is_answered {
                break;
            }
            if asked.elapsed() >= self.op_timeout {
                let message = format!("etcd: no response on the stream of changes for {:?}", self.op_timeout);
                return Err(EngineError::transient(message));
            }
            self.progress.repeat();
            self.stream.send(&ask).map_err(failed)?;
        }
        // Before 3.4.25 and 3.5.8 the progress notification may overtake changes that are in transit.
        let deadline = Instant::now() + GRACE;
        while let Some(response) = self.receive(deadline)? {
            self.take(response)?;
        }
        self.proved = now;
        Ok(())
    }

    fn sorted(&mut self) -> Vec<Change> {
        let mut changes: Vec<Change> = self.ready.drain(..).collect();
        // The events of one revision arrive in key order, not in commit order.
        changes.sort_by_key(|change| change.seq);
        changes
    }
}

fn failed(error: CallError) -> EngineError {
    error.engine_error("etcd", Intent::Read)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_notification_of_an_earlier_proof_proves_nothing() {
        let mut progress = ProgressRequests::default();
        assert_eq!(progress.begin(), 1);
        progress.repeat();
        assert!(progress.answer(), "both requests belong to this proof");
        // The answer to the repetition is still on its way.
        assert_eq!(progress.begin(), 2);
        assert!(!progress.answer());
        assert!(progress.answer());
        // The answer arrives between two proofs.
        progress.answer();
        assert_eq!((progress.unanswered, progress.begin()), (0, 1));
        assert!(progress.answer());
    }
}
