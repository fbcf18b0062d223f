//! Records out of keys.

use keyspace::{Access, Known, Snapshot, Source, Span, Stop};
use meta::{EngineError, Facts, Record, Seq, Want};

use crate::connect::Connection;
use crate::engine::Shared;
use crate::error::{Asked, engine_error};
use crate::grpc::CallError;
use crate::memory::{Memory, Recall};
use crate::request;
use crate::wire::{TXN, TxnRequest, TxnResponse};

/// How often what was read may turn out not to be enough: an entry, its inode's place, its ACLs, and as many again.
const ROUNDS: usize = 16;

/// The number of what was committed by a revision, one of the transactions that it held.
pub(crate) fn seq(revision: i64, index: u8) -> Seq {
    Seq(revision.unsigned_abs() << 8 | u64::from(index))
}

/// The number of a read as of a revision: it has all that was committed by it.
pub(crate) fn read_seq(revision: i64) -> Seq {
    seq(revision, u8::MAX)
}

/// Reads as of a revision, or if that is 0 as of now, and says as of which.
pub(crate) fn fetch(
    connection: &mut Connection,
    accesses: &[Access],
    at: i64,
    most: usize,
    into: &mut Snapshot,
) -> Result<i64, CallError> {
    let mut revision = at;
    let ask = |part: &[Access], at: i64| TxnRequest {
        success: part.iter().map(|access| request::read(access, at)).collect(),
        ..TxnRequest::default()
    };
    let mut parts = accesses.chunks(most.max(1));
    // The first tells the revision of which the others are to be.
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

/// What was read, and beneath it what never changes.
pub(crate) struct Fresh<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) shared: &'a Shared,
}

impl Source for Fresh<'_> {
    fn get(&self, key: &[u8]) -> Known {
        match self.snapshot.get(key) {
            Known::Unknown if self.shared.keys.is_constant(key) => match self.shared.memory.get(key) {
                Known::Held(held) => Known::Held(held),
                // It may be there by now.
                Known::Absent | Known::Unknown => Known::Unknown,
            },
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(bytes::Bytes, keyspace::Held)]> {
        self.snapshot.span(span)
    }
}

impl Shared {
    /// Whether it has to be read, or is remembered and cannot have changed.
    pub(crate) fn is_needed(&self, access: &Access) -> bool {
        match access {
            Access::Key(key) if self.keys.is_constant(key) => !matches!(self.memory.get(key), Known::Held(_)),
            _ => true,
        }
    }

    pub(crate) fn facts(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        // What a look at the memory comes across is most likely all that is needed.
        let nothing = Snapshot::default();
        let (_, mut accesses) = keyspace::answer(&self.keys, wants, &Recall::new(&nothing, &self.memory));
        if accesses.is_empty() {
            accesses.insert(Access::Key(self.keys.version()));
        }
        let (records, revision) = self.read_until(accesses, |source| {
            let (answer, accesses) = keyspace::answer(&self.keys, wants, source);
            (answer, accesses)
        })?;
        Ok(Facts { seq: read_seq(revision), records })
    }

    /// Reads until there is an answer, all as of one revision.
    pub(crate) fn read_until<T>(
        &self,
        first: impl IntoIterator<Item = Access>,
        answer: impl Fn(&dyn Source) -> (Result<T, Stop>, std::collections::BTreeSet<Access>),
    ) -> Result<(T, i64), EngineError> {
        let mut snapshot = Snapshot::default();
        let mut accesses: Vec<Access> = first.into_iter().filter(|access| self.is_needed(access)).collect();
        let mut revision = 0;
        for _ in 0..ROUNDS * ROUNDS {
            if !accesses.is_empty() || revision == 0 {
                if accesses.is_empty() {
                    accesses.push(Access::Key(self.keys.version()));
                }
                let mut found = Snapshot::default();
                revision = self.with_connection(Asked::Look, |connection| {
                    fetch(connection, &accesses, revision, self.max_ops, &mut found)
                })?;
                self.memory.note_snapshot(&self.keys, &found, revision);
                snapshot.extend(found);
            }
            let (answered, looked) = answer(&Fresh { snapshot: &snapshot, shared: self });
            match answered {
                Ok(records) => return Ok((records, revision)),
                Err(Stop::Damaged(damaged)) => return Err(EngineError::permanent(damaged.to_string())),
                Err(Stop::Missing | Stop::Flush) => {
                    accesses = looked
                        .into_iter()
                        .filter(|access| !snapshot.has(access) && self.is_needed(access))
                        .collect();
                    if accesses.is_empty() {
                        return Err(disagree());
                    }
                }
            }
        }
        Err(EngineError::permanent("a read came to no end"))
    }

    /// Runs a request on a connection of the pool, which is closed should it fail.
    pub(crate) fn with_connection<T>(
        &self,
        asked: Asked,
        work: impl FnOnce(&mut Connection) -> Result<T, CallError>,
    ) -> Result<T, EngineError> {
        let mut connection = self.pool.get()?;
        work(&mut connection).map_err(|error| {
            connection.mark_broken();
            if !matches!(error, CallError::Status(..)) {
                self.pool.clear();
            }
            engine_error(asked, &error)
        })
    }
}

pub(crate) fn disagree() -> EngineError {
    EngineError::permanent("an inode's place and the entry it names do not agree: run limen fsck")
}

pub(crate) fn records_of(memory: &Memory, keys: &keyspace::Keyspace, wants: &[Want]) -> Vec<Access> {
    let nothing = Snapshot::default();
    let (_, accesses): (Result<Vec<Record>, Stop>, _) =
        keyspace::answer(keys, wants, &Recall::new(&nothing, memory));
    accesses.into_iter().collect()
}
