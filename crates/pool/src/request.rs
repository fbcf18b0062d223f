//! A request on a connection, and the state after its failure.

use meta::EngineError;

use crate::pool::{Connect, Pool};

/// The kind of a request. It decides whether a failed request may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The request changes nothing.
    Look,
    /// The request may change records.
    Change,
}

/// A failure of a request.
pub trait Failed {
    fn leaves(&self) -> Leaves;

    /// The error for the caller. `place` is the address that [`Connect::place`] returns.
    fn engine_error(self, place: &str, asked: Asked) -> EngineError;
}

/// For requests that already return engine errors.
impl Failed for EngineError {
    fn leaves(&self) -> Leaves {
        Leaves::Connection
    }

    fn engine_error(self, _place: &str, _asked: Asked) -> EngineError {
        self
    }
}

/// The state after a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// The connection is still usable.
    Connection,
    /// The connection must not be used again.
    Broken,
    /// The server is gone, so the other connections are probably dead too.
    NoServer,
}

impl Asked {
    /// The error for a request without a reply. A change may have happened.
    pub fn unanswered(self, message: impl Into<String>) -> EngineError {
        match self {
            Asked::Look => EngineError::transient(message),
            Asked::Change => EngineError::indeterminate(message),
        }
    }

    /// The error for a reply that cannot be decoded, so that a retry would not help. A change may have happened.
    pub fn not_understood(self, message: impl Into<String>) -> EngineError {
        match self {
            Asked::Look => EngineError::permanent(message),
            Asked::Change => EngineError::indeterminate(message),
        }
    }
}

impl<C: Connect> Pool<C> {
    /// Sends a request on a connection of the pool, and closes connections that a failure makes unusable.
    ///
    /// # Errors
    /// Those of [`Connect::connect`]; a transient error if all connections are in use for the duration of
    /// `op_timeout`; the error of the failed request.
    pub fn request<T, F: Failed>(
        &self,
        asked: Asked,
        request: impl FnOnce(&mut C::Connection) -> Result<T, F>,
    ) -> Result<T, EngineError> {
        let mut connection = self.get()?;
        request(&mut connection).map_err(|failure| {
            let leaves = failure.leaves();
            if leaves != Leaves::Connection {
                connection.mark_broken();
            }
            drop(connection);
            if leaves == Leaves::NoServer {
                self.clear();
            }
            failure.engine_error(self.connector().place(), asked)
        })
    }
}
