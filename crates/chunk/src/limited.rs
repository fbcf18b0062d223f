//! A store whose traffic is limited.

use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use host::Instant;
use metrics::{WaitTarget, wait_on};

use crate::backend::{Backend, Bucket, StoreError};

/// The maximum number of bytes per second that are sent to a store and received from it; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficLimits {
    pub upload: Option<NonZeroU64>,
    pub download: Option<NonZeroU64>,
}

/// The limit of the traffic in one direction. Requests take turns: each delays the next one by the time that
/// its bytes take at the limit. So a request is never cut into parts, and an idle time does not permit a
/// burst afterwards.
#[derive(Debug)]
struct Limit {
    bytes_per_second: NonZeroU64,
    /// The next request may begin at this time.
    free_at: Mutex<Option<Instant>>,
}

impl Limit {
    fn new(bytes_per_second: NonZeroU64) -> Self {
        Limit { bytes_per_second, free_at: Mutex::new(None) }
    }

    /// When a request of `bytes` that arrives `now` may begin.
    fn turn(&self, now: Instant, bytes: usize) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = free_at.map_or(now, |free_at| free_at.max(now));
        let seconds = bytes as f64 / self.bytes_per_second.get() as f64;
        *free_at = Some(begin + Duration::from_secs_f64(seconds));
        begin
    }

    /// Waits for the turn of a request of `bytes`.
    fn wait(&self, bytes: usize) {
        let now = Instant::now();
        let time = self.turn(now, bytes).saturating_duration_since(now);
        if !time.is_zero() {
            wait_on(WaitTarget::Store("limit"), || {
                host::sleep(time);
                ((), time)
            });
        }
    }
}

#[derive(Debug)]
pub(crate) struct Limited {
    inner: Box<dyn Backend>,
    upload: Option<Limit>,
    download: Option<Limit>,
}

impl Limited {
    pub(crate) fn new(inner: Box<dyn Backend>, limits: TrafficLimits) -> Self {
        Limited { inner, upload: limits.upload.map(Limit::new), download: limits.download.map(Limit::new) }
    }
}

impl Backend for Limited {
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn buckets(&self) -> Vec<Bucket<'_>> {
        self.inner.buckets()
    }

    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        if let Some(limit) = &self.upload {
            limit.wait(data.len() + trailer.len());
        }
        self.inner.put(key, data, trailer)
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        if let Some(limit) = &self.download {
            limit.wait(len);
        }
        self.inner.get(key, offset, len)
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        // The length of the object is unknown before it is read, so the wait follows the read.
        let data = self.inner.get_whole(key, at_most)?;
        if let Some(limit) = &self.download {
            limit.wait(data.len());
        }
        Ok(data)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.inner.delete(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.inner.list(prefix)
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        self.inner.modified(key)
    }

    fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare()
    }

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }

    fn sync(&self, keys: &[String]) -> Result<(), StoreError> {
        self.inner.sync(keys)
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.inner.sync_all()
    }

    fn remove_directory(&self, prefix: &str) -> Result<(), StoreError> {
        self.inner.remove_directory(prefix)
    }

    fn remove_root(&self) -> Result<(), StoreError> {
        self.inner.remove_root()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::MEMORY;
    use crate::services::{StorageConfig, open};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_request_waits_for_the_time_of_earlier_requests() {
        let limit = Limit::new(NonZeroU64::new(1000).unwrap());
        let now = Instant::now();
        let begins = [500, 2000, 1].map(|bytes| limit.turn(now, bytes).saturating_duration_since(now));
        assert_eq!(begins, [Duration::ZERO, SECOND / 2, SECOND * 5 / 2]);
        let later = now + 10 * SECOND;
        assert_eq!(limit.turn(later, 1000), later);
        assert_eq!(limit.turn(later, 1000), later + SECOND);
    }

    /// A put counts against the limit of uploads only, and a get against that of downloads.
    #[test]
    fn traffic_counts_in_its_direction() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let config = StorageConfig { storage: MEMORY.to_owned(), bucket: String::new() };
        let store = open(&config, true, runtime.handle()).unwrap();
        let rate = NonZeroU64::new(1 << 40);
        let store = Limited::new(store, TrafficLimits { upload: rate, download: rate });
        let taken = |limit: &Option<Limit>| *limit.as_ref().unwrap().free_at.lock().unwrap();
        store.put("a", Bytes::from(vec![0; 1 << 20]), vec![0; 10]).unwrap();
        assert_eq!((taken(&store.upload).is_some(), taken(&store.download)), (true, None));
        store.get("a", 0, 100).unwrap();
        assert!(taken(&store.download).is_some());
        assert_eq!(store.get_whole("a", 1 << 21).unwrap().len(), (1 << 20) + 10);
    }
}
