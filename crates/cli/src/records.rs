//! Reads records of a volume: its usage, a counter, or all records of a range.

use meta::{Counter, Engine, EngineError, Record, RecordKey, Scan, Usage};

/// The volume's usage.
///
/// # Errors
/// Those of the database.
pub(crate) fn usage(engine: &dyn Engine) -> Result<Usage, EngineError> {
    match engine.read(&[RecordKey::Usage])?.records.first() {
        Some(Record::Usage(usage)) => Ok(*usage),
        _ => Err(EngineError::permanent("the engine returned no usage record")),
    }
}

pub(crate) fn used_bytes(usage: &Usage) -> u64 {
    usage.blocks.saturating_mul(Usage::BLOCK_BYTES)
}

/// The next slice number to be allocated.
///
/// # Errors
/// Errors of the database.
pub(crate) fn next_slice(engine: &dyn Engine) -> Result<u64, EngineError> {
    next(engine, Counter::Slice)
}

/// The next number to be allocated by a counter.
///
/// # Errors
/// Errors of the database.
pub(crate) fn next(engine: &dyn Engine, counter: Counter) -> Result<u64, EngineError> {
    match engine.read(&[RecordKey::Counter(counter)])?.records.first() {
        Some(Record::Counter(_, value)) => Ok(*value),
        _ => Err(EngineError::permanent(format!("the engine returned no counter {counter:?}"))),
    }
}

/// Records read at a time.
pub(crate) const PAGE: usize = 256;

/// The values that `select` takes from the records of a range.
///
/// # Errors
/// Errors of the database.
pub(crate) fn all<T>(
    engine: &dyn Engine,
    scan: Scan,
    select: impl Fn(Record) -> Option<T>,
) -> Result<Vec<T>, EngineError> {
    let mut all = Vec::new();
    for page in scan.pages(|scan| engine.scan(scan)) {
        all.extend(page?.into_iter().filter_map(&select));
    }
    Ok(all)
}
