//! A store whose requests are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use bytes::Bytes;
use host::Instant;
use metrics::{Buckets, Histogram, WaitTarget, wait_on};

use crate::backend::{Backend, StoreError};

/// The requests of one kind that a store has answered.
#[derive(Debug)]
pub struct RequestMeter {
    pub times: Histogram,
    /// The numbers of bytes that were stored or read; empty for other kinds of requests.
    pub bytes: Histogram,
    pub failures: AtomicU64,
    /// Requests for an object that does not exist. A list, a delete or a stat never counts here.
    pub not_found: AtomicU64,
}

/// The requests that a store has answered, by kind.
#[derive(Debug, Default)]
pub struct StoreMeters {
    pub put: RequestMeter,
    pub get: RequestMeter,
    pub delete: RequestMeter,
    pub list: RequestMeter,
    /// Queries of the time at which an object was written.
    pub stat: RequestMeter,
    /// Syncs of a local directory.
    pub sync: RequestMeter,
}

impl StoreMeters {
    /// The kinds with their names.
    pub fn all(&self) -> [(&'static str, &RequestMeter); 6] {
        let StoreMeters { put, get, delete, list, stat, sync } = self;
        [("put", put), ("get", get), ("delete", delete), ("list", list), ("stat", stat), ("sync", sync)]
    }
}

impl Default for RequestMeter {
    fn default() -> Self {
        RequestMeter {
            times: Histogram::new(Buckets::SECONDS),
            bytes: Histogram::new(Buckets::BYTES),
            failures: AtomicU64::new(0),
            not_found: AtomicU64::new(0),
        }
    }
}

impl RequestMeter {
    fn request<T>(
        &self,
        call: &'static str,
        send: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let answer = wait_on(WaitTarget::Store(call), || {
            let began = Instant::now();
            let answer = send();
            let time = began.elapsed();
            self.times.record_time(time);
            (answer, time)
        });
        match &answer {
            Ok(_) => 0,
            Err(StoreError::NotFound) => self.not_found.fetch_add(1, Relaxed),
            Err(StoreError::Other(..)) => self.failures.fetch_add(1, Relaxed),
        };
        answer
    }

    fn read(&self, send: impl FnOnce() -> Result<Bytes, StoreError>) -> Result<Bytes, StoreError> {
        let bytes = self.request("get", send)?;
        self.bytes.record(bytes.len() as u64);
        Ok(bytes)
    }
}

#[derive(Debug)]
pub(crate) struct Metered {
    inner: Box<dyn Backend>,
    meters: Arc<StoreMeters>,
}

impl Metered {
    pub(crate) fn new(inner: Box<dyn Backend>, meters: Arc<StoreMeters>) -> Self {
        Metered { inner, meters }
    }
}

impl Backend for Metered {
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn device(&self) -> Option<u64> {
        self.inner.device()
    }

    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        let size = data.len() + trailer.len();
        self.meters.put.request("put", || self.inner.put(key, data, trailer))?;
        self.meters.put.bytes.record(size as u64);
        Ok(())
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        self.meters.get.read(|| self.inner.get(key, offset, len))
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        self.meters.get.read(|| self.inner.get_whole(key, at_most))
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.meters.delete.request("delete", || self.inner.delete(key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.meters.list.request("list", || self.inner.list(prefix))
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        self.meters.stat.request("stat", || self.inner.modified(key))
    }

    fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare()
    }

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }

    fn sync(&self, keys: &[String]) -> Result<(), StoreError> {
        self.meters.sync.request("sync", || self.inner.sync(keys))
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.meters.sync.request("sync", || self.inner.sync_all())
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
    use types::Errno;

    use super::*;
    use crate::faults::{Fault, Faults, Faulty, StoreCall};
    use crate::kinds::MEMORY;
    use crate::services::{StorageConfig, open};

    #[test]
    fn requests_are_counted_by_kind_with_bytes_and_failures() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let config = StorageConfig { storage: MEMORY.to_owned(), bucket: String::new() };
        let faults = Faults::new(1);
        let inner = Faulty::new(open(&config, true, runtime.handle()).unwrap(), Arc::clone(&faults));
        let meters = Arc::new(StoreMeters::default());
        let store = Metered::new(Box::new(inner), Arc::clone(&meters));
        metrics::start_waiting();
        store.put("a", Bytes::from_static(b"12345"), b"67".to_vec()).unwrap();
        assert_eq!(store.get("a", 1, 3).unwrap(), "234");
        assert_eq!(store.get_whole("a", 100).unwrap(), "1234567");
        store.get("b", 0, 1).unwrap_err();
        faults.add(StoreCall::Delete, Fault::Fail(Errno::EIO), 1000);
        store.delete("a").unwrap_err();
        let seen = meters.all().map(|(name, meter)| {
            let (failures, not_found) = (meter.failures.load(Relaxed), meter.not_found.load(Relaxed));
            let bytes = meter.bytes.summary();
            (name, meter.times.count(), [bytes.count, bytes.sum as u64], [failures, not_found])
        });
        assert_eq!(
            seen,
            [
                ("put", 1, [1, 7], [0, 0]),
                ("get", 3, [2, 10], [0, 1]),
                ("delete", 1, [0, 0], [1, 0]),
                ("list", 0, [0, 0], [0, 0]),
                ("stat", 0, [0, 0], [0, 0]),
                ("sync", 0, [0, 0], [0, 0]),
            ]
        );
        assert_eq!(metrics::waited().store_calls, 5);
    }
}
