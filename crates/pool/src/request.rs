//! A request on a connection, and the state of the connection after a failure.

use meta::EngineError;

use crate::pool::{Connect, Pool};

/// Whether a request changes records, and so whether it may have taken effect although it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// The request changes nothing.
    Read,
    /// The request may change records.
    Change,
}

/// The error of a request.
pub trait RequestError {
    /// The state of the connection after this error.
    fn connection_after(&self) -> ConnectionState;

    /// The error for the caller. `address` is that of [`Connect::address`].
    fn engine_error(self, address: &str, intent: Intent) -> EngineError;
}

/// For requests that already return engine errors.
impl RequestError for EngineError {
    fn connection_after(&self) -> ConnectionState {
        ConnectionState::Usable
    }

    fn engine_error(self, _address: &str, _intent: Intent) -> EngineError {
        self
    }
}

/// The state of a connection after a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// The connection is still usable.
    Usable,
    /// The connection must not be used again.
    Broken,
    /// The server is gone, so the other connections are probably dead too.
    ServerLost,
}

impl Intent {
    /// The error for a request without a reply. A change may have happened.
    pub fn unanswered(self, message: impl Into<String>) -> EngineError {
        match self {
            Intent::Read => EngineError::transient(message),
            Intent::Change => EngineError::indeterminate(message),
        }
    }

    /// The error for a reply that cannot be decoded, so that a retry would not help. A change may have
    /// happened.
    pub fn malformed_reply(self, message: impl Into<String>) -> EngineError {
        match self {
            Intent::Read => EngineError::permanent(message),
            Intent::Change => EngineError::indeterminate(message),
        }
    }
}

impl<C: Connect> Pool<C> {
    /// Sends a request on a connection of the pool, and closes connections that a failure makes unusable.
    ///
    /// # Errors
    /// Those of [`Connect::connect`]; a transient error if all connections are in use for the duration of
    /// `op_timeout`; the error of the failed request.
    pub fn request<T, F: RequestError>(
        &self,
        intent: Intent,
        request: impl FnOnce(&mut C::Connection) -> Result<T, F>,
    ) -> Result<T, EngineError> {
        let mut connection = self.get()?;
        request(&mut connection).map_err(|failure| {
            let state = failure.connection_after();
            if state != ConnectionState::Usable {
                connection.mark_broken();
            }
            drop(connection);
            if state == ConnectionState::ServerLost {
                self.clear();
            }
            failure.engine_error(self.connector().address(), intent)
        })
    }
}
