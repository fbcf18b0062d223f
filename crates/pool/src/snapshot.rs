//! Reads records as of one moment, on a connection in a transaction that only reads.

use std::fmt;

use meta::{EngineError, Page, RecordKey, Scan, Snapshot, SnapshotReader};

use crate::pool::Connect;
use crate::request::{Intent, RequestError};

/// The functions that read on a connection.
type Read<C, F> = Box<dyn Fn(&mut C, &[RecordKey]) -> Result<Snapshot, F> + Send>;
type ReadPage<C, F> = Box<dyn Fn(&mut C, &Scan) -> Result<Page, F> + Send>;

/// A connection that is in a transaction, and belongs to no pool.
pub struct SnapshotConnection<C, F> {
    connection: C,
    /// The address that [`Connect::address`] returns.
    address: String,
    read: Read<C, F>,
    scan: ReadPage<C, F>,
}

impl<C: Send + 'static, F: RequestError + 'static> SnapshotConnection<C, F> {
    /// Connects, and begins the transaction with `begin`.
    ///
    /// # Errors
    /// Those of [`Connect::connect`] and of `begin`.
    pub fn begin(
        connector: &impl Connect<Connection = C>,
        begin: impl FnOnce(&mut C) -> Result<(), F>,
        read: impl Fn(&mut C, &[RecordKey]) -> Result<Snapshot, F> + Send + 'static,
        scan: impl Fn(&mut C, &Scan) -> Result<Page, F> + Send + 'static,
    ) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        let (mut connection, address) = (connector.connect()?, connector.address().to_owned());
        begin(&mut connection).map_err(|failure| failure.engine_error(&address, Intent::Read))?;
        Ok(Some(Box::new(SnapshotConnection {
            connection,
            address,
            read: Box::new(read),
            scan: Box::new(scan),
        })))
    }
}

impl<C, F> fmt::Debug for SnapshotConnection<C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<C: Send, F: RequestError> SnapshotReader for SnapshotConnection<C, F> {
    fn read(&mut self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let read = (self.read)(&mut self.connection, keys);
        read.map_err(|failure| failure.engine_error(&self.address, Intent::Read))
    }

    fn scan(&mut self, scan: &Scan) -> Result<Page, EngineError> {
        let page = (self.scan)(&mut self.connection, scan);
        page.map_err(|failure| failure.engine_error(&self.address, Intent::Read))
    }
}
