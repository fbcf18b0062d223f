//! A request on a connection, and what it means when it fails.

use meta::EngineError;

use crate::pool::{Connect, Pool};

/// What a request is for, and so what nobody knows after it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Look,
    Change,
}

/// How a request failed.
pub trait Failed {
    fn leaves(&self) -> Leaves;

    /// What it means to the caller; `place` is that of [`Connect::place`].
    fn engine_error(self, place: &str, asked: Asked) -> EngineError;
}

/// What it means is known already.
impl Failed for EngineError {
    fn leaves(&self) -> Leaves {
        Leaves::Connection
    }

    fn engine_error(self, _place: &str, _asked: Asked) -> EngineError {
        self
    }
}

/// What a request that failed leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// A connection as good as before.
    Connection,
    /// One that nobody should use again.
    Broken,
    /// No server, so that the other connections are most likely dead too.
    NoServer,
}

impl Asked {
    /// No answer came: a change may have happened.
    pub fn unanswered(self, message: impl Into<String>) -> EngineError {
        match self {
            Asked::Look => EngineError::transient(message),
            Asked::Change => EngineError::indeterminate(message),
        }
    }

    /// An answer came that makes no sense, as the next one would: a change may have happened.
    pub fn not_understood(self, message: impl Into<String>) -> EngineError {
        match self {
            Asked::Look => EngineError::permanent(message),
            Asked::Change => EngineError::indeterminate(message),
        }
    }
}

impl<C: Connect> Pool<C> {
    /// Makes a request on a connection that nobody else uses, and closes what a failure leaves unusable.
    ///
    /// # Errors
    /// Those of [`Pool::get`], and what the request's failure means.
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
