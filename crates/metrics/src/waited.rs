//! The time that the current request of this thread has waited so far, and for what. Each wait is also
//! recorded as a tracing span.
//!
//! One thread handles a request from start to end, so the account is thread-local and costs no atomic
//! operation. Threads that handle no request have an account too, which is never read.

use std::cell::Cell;
use std::time::Duration;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTarget {
    /// A request of this kind to the metadata engine.
    Engine(&'static str),
    /// A request of this kind to the object store, by this thread or by another one.
    Store(&'static str),
    /// The pause before a retry.
    Pause,
}

/// The account of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    pub engine: Duration,
    pub engine_calls: u32,
    pub store: Duration,
    pub store_calls: u32,
    pub pauses: Duration,
    pub retries: u32,
}

/// The `target` of the tracing spans, by which a subscriber filters.
pub const SPANS: &str = "limen::spans";

impl WaitTarget {
    /// A span around the wait. If no subscriber takes spans, this costs one comparison.
    fn span(self) -> tracing::Span {
        match self {
            WaitTarget::Engine(call) => {
                tracing::trace_span!(target: SPANS, "engine", otel.kind = "client", call)
            }
            WaitTarget::Store(call) => {
                tracing::trace_span!(target: SPANS, "store", otel.kind = "client", call)
            }
            WaitTarget::Pause => tracing::trace_span!(target: SPANS, "pause"),
        }
    }
}

thread_local! {
    static ACCOUNT: Cell<Waited> = const { Cell::new(Waited::NONE) };
}

impl Waited {
    const NONE: Waited = Waited {
        engine: Duration::ZERO,
        engine_calls: 0,
        store: Duration::ZERO,
        store_calls: 0,
        pauses: Duration::ZERO,
        retries: 0,
    };

    fn parts(&mut self, target: WaitTarget) -> (&mut Duration, &mut u32) {
        match target {
            WaitTarget::Engine(_) => (&mut self.engine, &mut self.engine_calls),
            WaitTarget::Store(_) => (&mut self.store, &mut self.store_calls),
            WaitTarget::Pause => (&mut self.pauses, &mut self.retries),
        }
    }

    /// The whole time of waiting.
    pub fn total(&self) -> Duration {
        self.engine + self.store + self.pauses
    }
}

/// Starts the account of a new request on this thread.
pub fn start_waiting() {
    ACCOUNT.set(Waited::NONE);
}

/// The account of this thread.
pub fn waited() -> Waited {
    ACCOUNT.get()
}

/// Runs a call, which returns its result and its duration, and adds one call and the duration to the account.
/// Calls of the same kind inside this call do not count, because its duration includes theirs.
pub fn wait_on<T>(target: WaitTarget, run: impl FnOnce() -> (T, Duration)) -> T {
    let mut before = waited();
    let (value, time) = target.span().in_scope(run);
    let mut account = waited();
    let (sum, calls) = before.parts(target);
    let parts = account.parts(target);
    (*parts.0, *parts.1) = (*sum + time, *calls + 1);
    ACCOUNT.set(account);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_call_inside_another_counts_once() {
        start_waiting();
        let value = wait_on(WaitTarget::Engine("read"), || {
            wait_on(WaitTarget::Engine("read"), || ((), 3 * MS));
            wait_on(WaitTarget::Pause, || ((), 2 * MS));
            (7, 4 * MS)
        });
        wait_on(WaitTarget::Engine("read"), || ((), MS));
        let waited = waited();
        assert_eq!((value, waited.engine, waited.engine_calls), (7, 5 * MS, 2));
        assert_eq!((waited.pauses, waited.retries, waited.store_calls), (2 * MS, 1, 0));
        assert_eq!(waited.total(), 7 * MS);
        start_waiting();
        assert_eq!(super::waited(), Waited::default());
    }
}
