//! The records that have changed since they were read, for programs that read all records of a volume while
//! clients change them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::change::Invalidation;
use crate::engine::{Changes, Engine, EngineError};

/// Up to this many changed records are read with one request.
const FEW: usize = 128;

/// The keys that a stream of changes has named, and that have not been read again since.
#[derive(Debug)]
pub struct ChangedKeys<K> {
    pub keys: BTreeSet<K>,
    stream: Box<dyn Changes>,
    key_of: fn(Invalidation) -> Option<K>,
}

impl<K: Ord + Clone> ChangedKeys<K> {
    /// Collects the keys that change from now on. `key_of` returns the key of an invalidation; `None` if the
    /// caller does not need it.
    ///
    /// # Errors
    /// Those of [`Engine::watch`]; a permanent error if the engine does not report changes.
    pub fn new(engine: &dyn Engine, key_of: fn(Invalidation) -> Option<K>) -> Result<Self, EngineError> {
        let none = || EngineError::permanent("the engine does not report changes");
        Ok(ChangedKeys { keys: BTreeSet::new(), stream: engine.watch()?.ok_or_else(none)?, key_of })
    }

    /// Takes all changes from the stream that were committed before this call, and returns their keys, which
    /// are also added to `keys`. `None` if there are more than `most` keys, so the caller must give up.
    ///
    /// # Errors
    /// Those of [`Changes::next`]; changes may then be missing from here on.
    pub fn poll(&mut self, most: usize) -> Result<Option<BTreeSet<K>>, EngineError> {
        let changes = self.stream.next(Duration::ZERO)?;
        let invalidations = changes.into_iter().flat_map(|change| change.invalidations);
        let news: BTreeSet<K> = invalidations.filter_map(self.key_of).collect();
        self.keys.extend(news.iter().cloned());
        Ok((self.keys.len() <= most).then_some(news))
    }

    /// Whether so few keys have changed that they can be read with one request.
    pub fn are_few(&self) -> bool {
        self.keys.len() <= FEW
    }

    /// Takes as many keys as are read with one request.
    pub fn take_few(&mut self) -> BTreeSet<K> {
        match self.keys.iter().nth(FEW).cloned() {
            None => std::mem::take(&mut self.keys),
            Some(next) => {
                let rest = self.keys.split_off(&next);
                std::mem::replace(&mut self.keys, rest)
            }
        }
    }
}
