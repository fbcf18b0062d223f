//! Reads whole ranges of records.

use meta::{Engine, Record, Scan};

/// Passes all records of a range to `last_of`, which returns the position of a record in the order of the
/// range. Begins after `first`.
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
