//! Decodes keys into records.

use keyspace::{Access, Answer, ReadSet, Source, answer};
use meta::{EngineError, RecordKey, Seq, Snapshot};
use pool::Asked;

use crate::connect::Connection;
use crate::grpc::CallError;
use crate::request;
use crate::shared::Shared;
use crate::wire::{TXN, TxnRequest, TxnResponse};

/// The sequence number of a transaction: its revision, and its index within the batch that the revision
/// committed.
pub(crate) fn seq(revision: i64, index: u8) -> Seq {
    Seq(revision.unsigned_abs() << 8 | u64::from(index))
}

/// The sequence number of a read at a revision. It covers every transaction that the revision committed.
pub(crate) fn read_seq(revision: i64) -> Seq {
    seq(revision, u8::MAX)
}

/// Reads at revision `at`, or at the current one if `at` is 0. Returns the revision.
pub(crate) fn fetch(
    connection: &mut Connection,
    accesses: &[Access],
    at: i64,
    most: usize,
    into: &mut ReadSet,
) -> Result<i64, CallError> {
    let mut revision = at;
    let ask = |part: &[Access], at: i64| TxnRequest {
        success: part.iter().map(|access| request::read(access, at)).collect(),
        ..TxnRequest::default()
    };
    let mut parts = accesses.chunks(most.max(1));
    // The first part determines the revision at which the other parts are read.
    if let Some(part) = parts.next() {
        let request = ask(part, at);
        let answer: TxnResponse = connection.run(|channel| channel.call(TXN, &request))?;
        if at == 0 {
            revision = answer.header.map_or(0, |header| header.revision);
        }
        request::take(into, part, answer.responses.into_iter());
    }
    let parts: Vec<&[Access]> = parts.collect();
    if !parts.is_empty() {
        let requests: Vec<TxnRequest> = parts.iter().map(|part| ask(part, revision)).collect();
        let answers: Vec<TxnResponse> = connection.run(async |channel| {
            let mut calls = Vec::with_capacity(requests.len());
            for request in &requests {
                calls.push(channel.start(TXN, request).await?);
            }
            let mut answers = Vec::with_capacity(calls.len());
            for call in calls {
                answers.push(call.answer().await?);
            }
            Ok(answers)
        })?;
        for (part, answer) in parts.into_iter().zip(answers) {
            request::take(into, part, answer.responses.into_iter());
        }
    }
    Ok(revision)
}

impl Shared {
    pub(crate) fn snapshot(&self, wants: &[RecordKey]) -> Result<Snapshot, EngineError> {
        // The keys that a lookup in the cache visits are most likely all that is needed.
        let first = keyspace::likely(&self.keys, &self.memory, wants);
        let (records, revision) = self.read_until(first, |source| answer(&self.keys, wants, source))?;
        Ok(Snapshot { seq: read_seq(revision), records })
    }

    /// Reads until `answer` has all its keys, all at one revision.
    pub(crate) fn read_until<T>(
        &self,
        first: impl IntoIterator<Item = Access>,
        answer: impl Fn(&dyn Source) -> Answer<T>,
    ) -> Result<(T, i64), EngineError> {
        let fetch = |accesses: &[Access], at: Option<u64>| {
            let mut found = ReadSet::default();
            let at = at.and_then(|at| i64::try_from(at).ok()).unwrap_or(0);
            let revision = self.pool.request(Asked::Look, |connection| {
                fetch(connection, accesses, at, self.max_ops, &mut found)
            })?;
            Ok((found, revision.unsigned_abs()))
        };
        let (answer, revision) = keyspace::until(&self.keys, &self.memory, None, first, fetch, answer)?;
        Ok((answer, i64::try_from(revision).unwrap_or(0)))
    }

    /// Executes a transaction that changes something.
    pub(crate) fn transact(&self, request: &TxnRequest) -> Result<TxnResponse, EngineError> {
        self.pool.request(Asked::Change, |connection| connection.run(|channel| channel.call(TXN, request)))
    }
}
