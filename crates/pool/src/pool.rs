//! A bounded pool of blocking connections.
//!
//! Lock order: the pool's state is the only lock. No connection is opened, used or closed while it is held.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meta::EngineError;

use crate::params::Params;

/// Opens connections.
pub trait Connect: Send + Sync + fmt::Debug {
    type Connection: Send;

    /// # Errors
    /// A determinate error; transient if the server may come back.
    fn connect(&self) -> Result<Self::Connection, EngineError>;

    /// The address of the server, for messages; without a password.
    fn address(&self) -> &str;
}

/// How long an idle connection stays open if more than `max_idle_conns` are idle. The number of requests that
/// are under way changes all the time. If a surplus connection were closed at once, every peak would open new
/// ones, and a new connection costs a server more than many requests.
const SURPLUS_TIME: Duration = Duration::from_secs(10);

/// Connections to one server. The most recently used one is taken first, so that connections that are not
/// needed stay idle and are closed.
#[derive(Debug)]
pub struct Pool<C: Connect> {
    connect: C,
    max_open: usize,
    max_idle: usize,
    max_idle_time: Duration,
    /// [`SURPLUS_TIME`].
    surplus_time: Duration,
    max_life_time: Duration,
    /// How long to wait for a connection if all are in use.
    timeout: Duration,
    state: Mutex<State<C::Connection>>,
    returned: Condvar,
}

struct State<T> {
    /// In the order in which they became idle.
    idle: Vec<Idle<T>>,
    /// The number of connections, idle or in use.
    open: usize,
}

struct Idle<T> {
    connection: T,
    born: Instant,
    since: Instant,
}

/// A connection in use. It returns to the pool when dropped, unless it is broken.
pub(crate) struct Pooled<'a, C: Connect> {
    pool: &'a Pool<C>,
    /// `Some` until it is dropped.
    connection: Option<C::Connection>,
    born: Instant,
    broken: bool,
}

impl<C: Connect> Pool<C> {
    pub fn new(connect: C, params: &Params) -> Self {
        Pool {
            connect,
            max_open: params.max_open_conns.max(1),
            max_idle: params.max_idle_conns,
            max_idle_time: params.max_idle_time,
            surplus_time: SURPLUS_TIME,
            max_life_time: params.max_life_time,
            timeout: params.op_timeout,
            state: Mutex::new(State { idle: Vec::new(), open: 0 }),
            returned: Condvar::new(),
        }
    }

    pub fn connector(&self) -> &C {
        &self.connect
    }

    /// Returns a connection for exclusive use: an idle one, a new one, or the next that is returned.
    ///
    /// # Errors
    /// Those of [`Connect::connect`]; a transient error if all connections are in use for the duration of
    /// `op_timeout`.
    pub(crate) fn get(&self) -> Result<Pooled<'_, C>, EngineError> {
        let deadline = Instant::now() + self.timeout;
        let mut too_old = Vec::new();
        let mut state = self.state();
        loop {
            too_old.extend(self.take_old(&mut state));
            if let Some(Idle { connection, born, .. }) = state.idle.pop() {
                return Ok(Pooled { pool: self, connection: Some(connection), born, broken: false });
            }
            if state.open < self.max_open {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (count, address) = (self.max_open, self.connect.address());
                return Err(EngineError::transient(format!(
                    "{address}: all {count} connections are in use: raise max_open_conns"
                )));
            }
            state = self.returned.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.open += 1;
        drop(state);
        // If the connection cannot be opened, dropping `pooled` corrects `open`.
        let mut pooled = Pooled { pool: self, connection: None, born: Instant::now(), broken: true };
        pooled.connection = Some(self.connect.connect()?);
        pooled.broken = false;
        Ok(pooled)
    }

    /// Closes all idle connections, because after a failure of the server they are probably dead too.
    pub(crate) fn clear(&self) {
        let idle = {
            let mut state = self.state();
            state.open -= state.idle.len();
            std::mem::take(&mut state.idle)
        };
        drop(idle);
        self.returned.notify_all();
    }

    fn take_old(&self, state: &mut State<C::Connection>) -> Vec<Idle<C::Connection>> {
        let mut surplus = state.idle.len().saturating_sub(self.max_idle);
        let is_old = |idle: &mut Idle<C::Connection>| {
            let max_idle_time =
                if surplus > 0 { self.max_idle_time.min(self.surplus_time) } else { self.max_idle_time };
            surplus = surplus.saturating_sub(1);
            idle.since.elapsed() >= max_idle_time || self.is_worn(idle.born)
        };
        let old: Vec<_> = state.idle.extract_if(.., is_old).collect();
        state.open -= old.len();
        old
    }

    fn is_worn(&self, born: Instant) -> bool {
        !self.max_life_time.is_zero() && born.elapsed() >= self.max_life_time
    }

    fn state(&self) -> MutexGuard<'_, State<C::Connection>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connect> Pooled<'_, C> {
    /// Marks the connection as being in an unknown state, so that it is closed and not used again.
    pub(crate) fn mark_broken(&mut self) {
        self.broken = true;
    }
}

impl<C: Connect> Deref for Pooled<'_, C> {
    type Target = C::Connection;

    fn deref(&self) -> &C::Connection {
        self.connection.as_ref().expect("a pooled connection is present until it is dropped")
    }
}

impl<C: Connect> DerefMut for Pooled<'_, C> {
    fn deref_mut(&mut self) -> &mut C::Connection {
        self.connection.as_mut().expect("a pooled connection is present until it is dropped")
    }
}

impl<C: Connect> Drop for Pooled<'_, C> {
    fn drop(&mut self) {
        let connection = self.connection.take();
        let mut state = self.pool.state();
        let closed = match connection {
            Some(connection) if !self.broken && !self.pool.is_worn(self.born) => {
                state.idle.push(Idle { connection, born: self.born, since: Instant::now() });
                None
            }
            other => {
                state.open -= 1;
                other
            }
        };
        drop(state);
        self.pool.returned.notify_one();
        // Closing may talk to the server, so it happens after the lock is released.
        drop(closed);
    }
}

impl<T> fmt::Debug for State<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("idle", &self.idle.len()).field("open", &self.open).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns numbers as connections; the third attempt fails.
    #[derive(Debug, Default)]
    struct Numbers(AtomicUsize);

    impl Connect for Numbers {
        type Connection = usize;

        fn connect(&self) -> Result<usize, EngineError> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                2 => Err(EngineError::transient("no third")),
                number => Ok(number),
            }
        }

        fn address(&self) -> &str {
            "nowhere"
        }
    }

    fn pool(params: Params) -> Pool<Numbers> {
        Pool::new(Numbers::default(), &params)
    }

    /// The number of open connections, including idle ones.
    fn open(pool: &Pool<Numbers>) -> usize {
        pool.state().open
    }

    #[test]
    fn connections_are_used_again_unless_broken() {
        let pool = pool(Params::default());
        assert_eq!(*pool.get().unwrap(), 0);
        let mut again = pool.get().unwrap();
        assert_eq!(*again, 0);
        again.mark_broken();
        drop(again);
        assert_eq!(*pool.get().unwrap(), 1);
        assert_eq!(open(&pool), 1);
        pool.clear();
        assert_eq!(open(&pool), 0);
        assert!(pool.get().is_err());
        assert_eq!(open(&pool), 0, "a failed connection takes no place");
        assert_eq!(*pool.get().unwrap(), 3);
    }

    #[test]
    fn open_connections_are_bounded_and_waiters_get_returned_ones() {
        let params = Params { max_open_conns: 1, op_timeout: Duration::from_secs(20), ..Params::default() };
        let pool = pool(params);
        let held = pool.get().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| *pool.get().unwrap());
            drop(held);
            assert_eq!(waiter.join().unwrap(), 0);
        });
        let short = Pool { timeout: Duration::from_millis(1), ..pool };
        let _held = short.get().unwrap();
        let error = short.get().err().unwrap();
        assert!(error.message.contains("max_open_conns"), "{error}");
    }

    #[test]
    fn idle_and_worn_connections_are_closed() {
        let idle = pool(Params { max_idle_time: Duration::ZERO, ..Params::default() });
        drop(idle.get().unwrap());
        assert_eq!(*idle.get().unwrap(), 1, "the first was idle for too long");
        let worn = pool(Params { max_life_time: Duration::from_nanos(1), ..Params::default() });
        drop(worn.get().unwrap());
        assert_eq!(open(&worn), 0);
    }

    /// If one of two connections is idle between requests, it is not opened again for each of them.
    #[test]
    fn surplus_connections_stay_open_for_a_while() {
        let params = Params { max_idle_conns: 1, ..Params::default() };
        let mut pool = pool(params);
        for _ in 0..3 {
            let held = [pool.get().unwrap(), pool.get().unwrap()];
            drop(held);
        }
        assert_eq!(open(&pool), 2);
        pool.surplus_time = Duration::ZERO;
        // The one that was used last stays open.
        assert_eq!(*pool.get().unwrap(), 1);
        assert_eq!(open(&pool), 1);
    }
}
