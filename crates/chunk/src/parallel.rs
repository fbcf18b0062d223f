//! Requests to all buckets of a store at the same time.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, Builder};

use crate::backend::{Backend, Bucket};

/// The maximum number of requests at the same time.
const THREADS: usize = 16;

/// Sends a request to each bucket, with its index, and returns the answers in the order of the buckets.
pub(crate) fn on_each<T: Send>(
    buckets: &[Bucket<'_>],
    request: impl Fn(usize, &dyn Backend) -> T + Sync,
) -> Vec<T> {
    if let [only] = buckets {
        return vec![request(0, only.store)];
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(bucket) = buckets.get(index) else { return answers };
            answers.push((index, request(index, bucket.store)));
        }
    };
    let mut answers = thread::scope(|scope| {
        // If a thread cannot be started, the others send its requests.
        let begin_and_work = || {
            host::begin_thread();
            work()
        };
        let start =
            |_| Builder::new().name("limen-buckets".to_owned()).spawn_scoped(scope, begin_and_work).ok();
        let threads: Vec<_> = (1..buckets.len().min(THREADS)).filter_map(start).collect();
        let mut answers = work();
        for thread in threads {
            answers.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        answers
    });
    answers.sort_unstable_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
