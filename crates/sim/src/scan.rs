//! Reads whole ranges of records.

use meta::{Engine, Record, Scan};

/// Passes each record of a range to `last_of`, beginning after the key `first`. `last_of` returns the
/// record's key, and `scan` makes the query for the page after a key. Ends at the first error of the engine,
/// without reporting it.
pub(crate) fn scan_all<K>(
    engine: &dyn Engine,
    scan: impl Fn(K) -> Scan,
    first: K,
    mut last_of: impl FnMut(&Record) -> Option<K>,
) {
    let mut after = first;
    loop {
        let Ok(page) = engine.scan(&scan(after)) else { return };
        let last = page.snapshot.records.iter().filter_map(&mut last_of).last();
        match last {
            Some(last) if page.more => after = last,
            _ => return,
        }
    }
}
