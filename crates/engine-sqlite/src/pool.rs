//! The pool of reader connections.

use std::ops::Deref;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, Result};

/// At most `limit` connections, opened on demand. If all are in use, a caller waits.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    returned: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct State {
    /// The connection used last is lent first, because its page cache is the warmest.
    idle: Vec<Connection>,
    open: usize,
}

impl Pool {
    pub(crate) fn new(limit: usize) -> Self {
        let state = Mutex::new(State { idle: Vec::new(), open: 0 });
        Pool { state, returned: Condvar::new(), limit: limit.max(1) }
    }

    /// Returns an idle connection. If there is none, opens a new one; at the limit, waits until a connection
    /// is returned.
    pub(crate) fn take(&self, open: impl FnOnce() -> Result<Connection>) -> Result<Lent<'_>> {
        let mut state = self.lock();
        loop {
            if let Some(conn) = state.idle.pop() {
                return Ok(Lent { pool: self, conn: Some(conn) });
            }
            if state.open < self.limit {
                state.open += 1;
                break;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // If `open` fails, dropping this frees the slot.
        let mut lent = Lent { pool: self, conn: None };
        lent.conn = Some(open()?);
        Ok(lent)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A borrowed connection. Dropping it returns it to the pool.
#[derive(Debug)]
pub(crate) struct Lent<'p> {
    pool: &'p Pool,
    conn: Option<Connection>,
}

impl Deref for Lent<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.conn.as_ref().expect("the connection is present until drop")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.conn.take() {
            // A connection that is still inside a transaction cannot be used again.
            Some(conn) if conn.is_autocommit() => state.idle.push(conn),
            _ => state.open -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_never_exceed_the_limit() {
        let pool = Pool::new(2);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let conn = pool.take(Connection::open_in_memory).unwrap();
                        conn.execute_batch("SELECT 1").unwrap();
                        assert!(pool.lock().open <= 2);
                    }
                });
            }
        });
        let state = pool.lock();
        assert_eq!(state.idle.len(), state.open);
    }

    #[test]
    fn failed_opening_and_broken_connection_free_their_slot() {
        let pool = Pool::new(1);
        for _ in 0..3 {
            pool.take(|| Err(rusqlite::Error::InvalidQuery)).unwrap_err();
            let conn = pool.take(Connection::open_in_memory).unwrap();
            conn.execute_batch("BEGIN").unwrap();
        }
        assert_eq!(pool.lock().open, 0);
    }
}
