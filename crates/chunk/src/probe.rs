//! Probes: small objects that are written to check that a store works, and to find buckets that are the same
//! place.

use bytes::Bytes;
use types::Errno;

use crate::ChunkError;
use crate::backend::{Backend, Bucket, StoreError};
use crate::error::store_error;
use crate::parallel::on_each;

/// The prefix of the objects' keys. After an interrupted check, the objects remain. If the bucket is a
/// directory, a later mount removes them from its `tmp/` when they are a day old.
const PREFIX: &str = "tmp/";

const DATA: &[u8] = b"limen";

fn key(run: &str, index: usize) -> String {
    format!("{PREFIX}{run}.{index}")
}

/// Writes an object to each bucket. If a write fails, removes the objects that were written. Returns the
/// error of a full bucket only if no bucket has another error, because a full store can still be read.
pub(crate) fn put(buckets: &[Bucket<'_>], run: &str) -> Result<(), ChunkError> {
    let written = on_each(buckets, |index, store| {
        let key = key(run, index);
        let put = store.prepare().and_then(|()| store.put(&key, Bytes::from_static(DATA), Vec::new()));
        put.map_err(|error| store_error("write", &key, error))
    });
    if written.iter().all(Result::is_ok) {
        return Ok(());
    }
    on_each(buckets, |index, store| written[index].is_ok().then(|| store.delete(&key(run, index))));
    let is_full = |error: &ChunkError| matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT);
    written.into_iter().filter_map(Result::err).min_by_key(is_full).map_or(Ok(()), Err)
}

/// Reads the object of each bucket.
pub(crate) fn read(buckets: &[Bucket<'_>], run: &str) -> Result<(), ChunkError> {
    let read = on_each(buckets, |index, store| {
        let key = key(run, index);
        let wrong =
            || StoreError::Other(Errno::EIO, "it does not hold the bytes that were written".to_owned());
        let read = store.get(&key, 0, DATA.len());
        let read = read.and_then(|read| if read == DATA { Ok(()) } else { Err(wrong()) });
        read.map_err(|error| store_error("read", &key, error))
    });
    read.into_iter().collect()
}

/// For each bucket, the indexes of the objects of this run that it has.
pub(crate) fn find(buckets: &[Bucket<'_>], run: &str) -> Result<Vec<Vec<usize>>, ChunkError> {
    let index = |name: &str| name.strip_prefix(run)?.strip_prefix('.')?.parse().ok();
    let found = on_each(buckets, |at, store| {
        let names = store.list(PREFIX).map_err(|error| store_error("list", &key(run, at), error))?;
        Ok(names.iter().filter_map(|name| index(name)).collect())
    });
    found.into_iter().collect()
}

/// Removes the object of each bucket.
pub(crate) fn remove(buckets: &[Bucket<'_>], run: &str) -> Result<(), ChunkError> {
    let removed = on_each(buckets, |index, store: &dyn Backend| {
        let key = key(run, index);
        store.delete(&key).map_err(|error| store_error("delete", &key, error))
    });
    removed.into_iter().collect()
}

/// Fails unless each bucket has its own object, and no other bucket's.
pub(crate) fn require_apart(buckets: &[Bucket<'_>], run: &str) -> Result<(), ChunkError> {
    for (index, found) in find(buckets, run)?.iter().enumerate() {
        if let Some(other) = found.iter().find(|found| **found != index) {
            let [first, second] =
                [index, *other].map(|index| buckets.get(index).map_or("", |bucket| bucket.address));
            return Err(ChunkError::Config(format!("the buckets {first} and {second} are the same place")));
        }
        if found.is_empty() {
            let what = "the list does not contain an object that was just written".to_owned();
            return Err(store_error("list", &key(run, index), StoreError::Other(Errno::EIO, what)));
        }
    }
    Ok(())
}
