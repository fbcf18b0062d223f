//! Timeouts and retries for remote stores.

use std::time::Duration;

use opendal::Operator;
use opendal::layers::{RetryLayer, TimeoutLayer};

/// The timeout of a query for an object's length and time, and of a rename.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The timeout of one step of any other request: sending a block, waiting for the next part of one, deleting
/// an object, or reading a part of a list. A block is 4 MiB, so a link of 1 Mbit/s is fast enough.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a request is retried after a temporary failure: no reply, or a status such as 429, 500, 502, 503
/// or 504. The waits are 0.1, 0.2, 0.4 and 0.8 s, each up to twice as long because of jitter, so a request
/// fails within 3 s if each attempt fails at once.
const RETRIES: usize = 4;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Adds a timeout to each attempt, and bounded retries.
pub(crate) fn with_retries(operator: Operator) -> Operator {
    let timeout = TimeoutLayer::new().with_timeout(REQUEST_TIMEOUT).with_io_timeout(DATA_TIMEOUT);
    let retry = RetryLayer::default()
        .with_max_times(RETRIES)
        .with_min_delay(FIRST_WAIT)
        .with_max_delay(LONGEST_WAIT)
        .with_jitter();
    operator.layer(timeout).layer(retry)
}
