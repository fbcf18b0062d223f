//! How long a store far away is waited for.

use std::time::Duration;

use opendal::Operator;
use opendal::layers::{RetryLayer, TimeoutLayer};

/// How long one request without data may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// How long one step of a request with data may take: sending a block, or waiting for the next part of one. A block is
/// 4 MiB, so that a link of 1 Mbit/s will do.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a request is tried again that failed in a way that may pass: no answer, 429, 500, 502, 503. With waits of
/// 0.1, 0.2, 0.4 and 0.8 s, each up to twice as long, so that a store that refuses at once is given up within 3 s.
const RETRIES: usize = 4;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A store with bounds on each try, and on their number.
pub(crate) fn patient(operator: Operator) -> Operator {
    let timeout = TimeoutLayer::new().with_timeout(REQUEST_TIMEOUT).with_io_timeout(DATA_TIMEOUT);
    let retry = RetryLayer::default()
        .with_max_times(RETRIES)
        .with_min_delay(FIRST_WAIT)
        .with_max_delay(LONGEST_WAIT)
        .with_jitter();
    operator.layer(timeout).layer(retry)
}
