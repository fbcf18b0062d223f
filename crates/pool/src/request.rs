//! A request on a connection, and the meaning of its failure.

use meta::EngineError;

use crate::pool::{Connect, Pool};

/// The kind of a request, which decides what is unknown after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Look,
    Change,
}

/// A failure of a request.
pub trait Failed {
    fn leaves(&self) -> Leaves;

    /// The error for the caller; `place` is that of [`Connect::place`].
    fn engine_error(self, place: &str, asked: Asked) -> EngineError;
}

/// An error whose meaning is known already.
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
    /// The error if no reply came: a change may have happened.
    pub fn unanswered(self, message: impl Into<String>) -> EngineError {
        match self {
            Asked::Look => EngineError::transient(message),
            Asked::Change => EngineError::indeterminate(message),
        }
    }

    /// The error if a reply cannot be understood, and repeating would not help: a change may have happened.
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
