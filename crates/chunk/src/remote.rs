//! Objects in a store that opendal accesses.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::SystemTime;

use bytes::Bytes;
use futures_core::Stream;
use opendal::{Buffer, ErrorKind, Operator};
use tokio::runtime::Handle;
use types::Errno;

use crate::backend::{Backend, StoreError};
use crate::plain::plain;

#[derive(Debug)]
pub(crate) struct Remote {
    operator: Operator,
    runtime: Handle,
    put: Put,
}

/// How a `put` becomes atomic.
#[derive(Debug)]
pub(crate) enum Put {
    /// The store's writes are atomic.
    Atomic,
    /// The object is written below `tmp/` under a unique name, and renamed.
    #[cfg(any(feature = "webdav", feature = "sftp", feature = "hdfs"))]
    Renamed(std::sync::atomic::AtomicU64),
}

impl Remote {
    pub(crate) fn new(operator: Operator, runtime: Handle, put: Put) -> Self {
        Remote { operator, runtime, put }
    }
}

impl Backend for Remote {
    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        let body = Buffer::from(vec![data, Bytes::from(trailer)]);
        let put = async {
            match &self.put {
                Put::Atomic => self.operator.write(key, body).await.map(drop),
                #[cfg(any(feature = "webdav", feature = "sftp", feature = "hdfs"))]
                Put::Renamed(serial) => {
                    let serial = serial.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let name = key.rsplit('/').next().unwrap_or(key);
                    let tmp = format!("tmp/{name}.{}.{serial}", std::process::id());
                    self.operator.write(&tmp, body).await?;
                    self.operator.rename(&tmp, key).await
                }
            }
        };
        self.runtime.block_on(put).map_err(from_opendal)
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        let read = |len: u64| {
            let read = self.operator.read_with(key).range(offset..offset + len);
            self.runtime.block_on(async { read.await })
        };
        match read(len as u64) {
            Ok(buffer) => Ok(buffer.to_bytes()),
            Err(error) if matches!(error.kind(), ErrorKind::RangeNotSatisfied | ErrorKind::Unexpected) => {
                // The object may end before the range does; opendal and stores report this in different ways.
                let size =
                    self.runtime.block_on(self.operator.stat(key)).map_err(from_opendal)?.content_length();
                match size.saturating_sub(offset) {
                    0 => Ok(Bytes::new()),
                    left if left < len as u64 => Ok(read(left).map_err(from_opendal)?.to_bytes()),
                    _ => Err(from_opendal(error)),
                }
            }
            Err(error) => Err(from_opendal(error)),
        }
    }

    /// Reads a stream, so that the memory is bounded even if the object is longer than `at_most`, without a
    /// request for its length.
    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        self.runtime.block_on(async {
            let mut stream = self
                .operator
                .reader(key)
                .await
                .map_err(from_opendal)?
                .into_stream(..)
                .await
                .map_err(from_opendal)?;
            let mut parts: Vec<Bytes> = Vec::new();
            let mut left = at_most;
            while left > 0
                && let Some(buffer) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await
            {
                for mut part in buffer.map_err(from_opendal)? {
                    part.truncate(left);
                    left -= part.len();
                    parts.push(part);
                }
            }
            Ok(match parts.as_slice() {
                [whole] => whole.clone(),
                _ => Bytes::from(parts.concat()),
            })
        })
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.runtime.block_on(self.operator.delete(key)).map_err(from_opendal)
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        match self.runtime.block_on(self.operator.stat(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            metadata => Ok(metadata.map_err(from_opendal)?.last_modified().map(SystemTime::from)),
        }
    }

    /// Removes temporary objects of interrupted writes and checks.
    fn remove_root(&self) -> Result<(), StoreError> {
        self.list("tmp/")?.iter().try_for_each(|name| self.delete(&format!("tmp/{name}")))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let entries = match self.runtime.block_on(self.operator.list(prefix)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(from_opendal)?,
        };
        let names = entries.iter().filter_map(|entry| entry.path().strip_prefix(prefix));
        Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }
}

/// Converts an error. Searches its causes for an errno of the operating system, because opendal's error kinds
/// do not include a full disk.
fn from_opendal(error: opendal::Error) -> StoreError {
    if error.kind() == ErrorKind::NotFound {
        return StoreError::NotFound;
    }
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let os = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().filter(|os| os.raw_os_error().is_some()).map(Errno::from)
    };
    let errno = causes.filter_map(os).next();
    // The retry layer marks every error that it returns as persistent, so the kinds tell which are temporary.
    let is_retried = error.is_persistent() || error.is_temporary();
    let errno = match (errno, error.kind()) {
        (Some(errno @ (Errno::ENOSPC | Errno::EDQUOT)), _) => errno,
        (_, ErrorKind::Unexpected | ErrorKind::RateLimited) if is_retried => Errno::ETIMEDOUT,
        (errno, _) => errno.unwrap_or(Errno::EIO),
    };
    StoreError::Other(errno, plain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use opendal::services::Memory;
    use tokio::runtime::Builder;

    #[test]
    fn only_errors_that_may_pass_are_timeouts() {
        let errno = |kind, cause: Option<i32>| {
            let error = opendal::Error::new(kind, "failed").set_persistent();
            let error = match cause {
                Some(errno) => error.set_source(io::Error::from_raw_os_error(errno)),
                None => error,
            };
            match from_opendal(error) {
                StoreError::Other(errno, _) => errno,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(errno(ErrorKind::Unexpected, Some(28)), Errno::ENOSPC);
        assert_eq!(errno(ErrorKind::Unexpected, Some(111)), Errno::ETIMEDOUT);
        assert_eq!(errno(ErrorKind::RateLimited, None), Errno::ETIMEDOUT);
        assert_eq!(errno(ErrorKind::PermissionDenied, None), Errno::EIO);
    }

    #[test]
    fn a_read_beyond_the_end_of_an_object_is_short() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let remote =
            Remote::new(Operator::new(Memory::default()).unwrap(), runtime.handle().clone(), Put::Atomic);
        remote.put("a/b", Bytes::from_static(b"0123"), b"45".to_vec()).unwrap();
        assert_eq!(remote.get("a/b", 2, 4).unwrap(), "2345");
        assert_eq!(remote.get("a/b", 2, 10).unwrap(), "2345");
        assert_eq!(
            (remote.get_whole("a/b", 10).unwrap(), remote.get_whole("a/b", 3).unwrap()),
            ("012345".into(), "012".into())
        );
        assert!(matches!(remote.get_whole("a/c", 1), Err(StoreError::NotFound)));
        assert_eq!(remote.get("a/b", 60, 10).unwrap(), "");
        assert!(matches!(remote.get("a/c", 0, 1), Err(StoreError::NotFound)));
        assert_eq!(remote.list("a/").unwrap(), ["b"]);
        assert_eq!(remote.list("").unwrap(), ["a/"]);
    }
}
