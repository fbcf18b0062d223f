//! Questions that are answered by what was read as of one moment, and by what never changes.

use std::collections::BTreeSet;

use bytes::Bytes;
use meta::{EngineError, Guard, Txn, Want};

use crate::answer::{Answer, answer};
use crate::keys::{Keyspace, Span};
use crate::memory::{Memory, Recall};
use crate::source::{Access, Held, Known, Snapshot, Source, Stop};
use crate::value::Damaged;

/// How often what was read may turn out not to be enough: a long range is read in parts.
const ROUNDS: usize = 256;

/// What was read, and beneath it what never changes.
#[derive(Debug)]
pub struct Fresh<'a> {
    pub snapshot: &'a Snapshot,
    pub memory: &'a Memory,
    pub keys: &'a Keyspace,
}

impl Source for Fresh<'_> {
    fn get(&self, key: &[u8]) -> Known {
        match self.snapshot.get(key) {
            Known::Unknown if self.keys.is_constant(key) => match self.memory.get(key) {
                Known::Held(held) => Known::Held(held),
                // It may be there by now.
                Known::Absent | Known::Unknown => Known::Unknown,
            },
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, Held)]> {
        self.snapshot.span(span)
    }
}

/// Whether it has to be read, or is remembered and cannot have changed.
pub fn is_needed(keys: &Keyspace, memory: &Memory, access: &Access) -> bool {
    match access {
        Access::Key(key) if keys.is_constant(key) => !matches!(memory.get(key), Known::Held(_)),
        _ => true,
    }
}

/// What most likely has to be read to answer the wants.
pub fn likely(keys: &Keyspace, memory: &Memory, wants: &[Want]) -> BTreeSet<Access> {
    let nothing = Snapshot::default();
    answer(keys, wants, &Recall::new(&nothing, memory)).1
}

/// What a conflict of any of them has to tell.
pub fn wants(txns: &[Txn]) -> Vec<Want> {
    txns.iter().flat_map(|txn| &txn.guards).map(Guard::want).collect()
}

/// Reads until there is an answer that rests on nothing but what was read, all as of one moment, and says which: `at`, or
/// with `None` the one that `fetch` reads as of when it is told none. `first` is what is most likely needed.
///
/// # Errors
/// Those of `fetch`; permanent where the store is damaged.
pub fn until<T>(
    keys: &Keyspace,
    memory: &Memory,
    at: Option<u64>,
    first: impl IntoIterator<Item = Access>,
    mut fetch: impl FnMut(&[Access], Option<u64>) -> Result<(Snapshot, u64), EngineError>,
    answer: impl Fn(&dyn Source) -> Answer<T>,
) -> Result<(T, u64), EngineError> {
    let mut accesses: Vec<Access> =
        first.into_iter().filter(|access| is_needed(keys, memory, access)).collect();
    if accesses.is_empty() {
        accesses.push(Access::Key(keys.version()));
    }
    let (mut snapshot, mut moment) = (Snapshot::default(), at);
    for _ in 0..ROUNDS {
        let (found, read_at) = fetch(&accesses, moment)?;
        memory.note_snapshot(keys, &found, read_at);
        snapshot.extend(found);
        moment = Some(read_at);
        let (answered, looked) = answer(&Fresh { snapshot: &snapshot, memory, keys });
        accesses = looked
            .into_iter()
            .filter(|access| !snapshot.has(access) && is_needed(keys, memory, access))
            .collect();
        match answered {
            Ok(answer) if accesses.is_empty() => return Ok((answer, read_at)),
            Err(Stop::Damaged(damaged)) => return Err(damaged.into()),
            Err(Stop::Missing | Stop::Flush) if accesses.is_empty() => return Err(disagree()),
            _ => {}
        }
    }
    Err(EngineError::permanent("a read came to no end"))
}

/// Records that were read as of one moment do not fit together.
pub fn disagree() -> EngineError {
    EngineError::permanent("an inode's place and the entry it names do not agree: run limen fsck")
}

impl From<Damaged> for EngineError {
    fn from(damaged: Damaged) -> Self {
        EngineError::permanent(damaged.to_string())
    }
}
