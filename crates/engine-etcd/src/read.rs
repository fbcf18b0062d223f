//! Reads keys and ranges at one revision.

use keyspace::{KeyCache, KeyQuery, KeyReader, Keyspace, ReadSet};
use meta::{EngineError, Seq};
use pool::Intent;

use crate::connect::Connection;
use crate::grpc::CallError;
use crate::request;
use crate::shared::Shared;
use crate::wire::{TXN, TxnRequest, TxnResponse};

/// The sequence number of a transaction: the revision that committed it, and its index within the batch that
/// this revision committed.
pub(crate) fn seq(revision: u64, index: u8) -> Seq {
    Seq(revision << 8 | u64::from(index))
}

/// The sequence number of a read at a revision. It covers every transaction that the revision committed.
pub(crate) fn read_seq(revision: u64) -> Seq {
    seq(revision, u8::MAX)
}

/// Reads at revision `at`; `None` means the current one. At most `most` queries are sent in one request. Also
/// returns the revision.
pub(crate) fn fetch(
    connection: &mut Connection,
    queries: &[KeyQuery],
    at: Option<u64>,
    most: usize,
) -> Result<(ReadSet, u64), CallError> {
    let ask = |part: &[KeyQuery], at: u64| TxnRequest {
        success: part.iter().map(|query| request::read(query, at)).collect(),
        ..TxnRequest::default()
    };
    let mut found = ReadSet::default();
    // The first part determines the revision at which the other parts are read.
    let (first, others) = queries.split_at(most.max(1).min(queries.len()));
    let request = ask(first, at.unwrap_or(0));
    let answer: TxnResponse = connection.run(|channel| channel.call(TXN, &request))?;
    let revision = at.unwrap_or(answer.revision());
    request::take(&mut found, first, answer.responses.into_iter());
    let parts: Vec<&[KeyQuery]> = others.chunks(most.max(1)).collect();
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
            request::take(&mut found, part, answer.responses.into_iter());
        }
    }
    Ok((found, revision))
}

impl KeyReader for Shared {
    fn keys(&self) -> &Keyspace {
        &self.keys
    }

    fn key_cache(&self) -> &KeyCache {
        &self.key_cache
    }

    fn fetch(&self, queries: &[KeyQuery], at: Option<u64>) -> Result<(ReadSet, u64), EngineError> {
        self.pool.request(Intent::Read, |connection| fetch(connection, queries, at, self.max_ops))
    }
}

impl Shared {
    /// Executes a transaction that changes something.
    pub(crate) fn transact(&self, request: &TxnRequest) -> Result<TxnResponse, EngineError> {
        self.pool.request(Intent::Change, |connection| connection.run(|channel| channel.call(TXN, request)))
    }
}
