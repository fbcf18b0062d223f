//! The cost of recording the metrics of one request: the times of the request and of its commit, with two
//! clock readings each; the size of the commit's batch; a number of bytes; a counter; and the account of what
//! the request waited for.
//!
//! `cargo bench -p metrics` prints nanoseconds for each request, with one thread and with two. It also prints
//! how long it takes to write a hundred histograms, more than a mount has, in the text format of Prometheus.

use std::hint::black_box;
use std::time::{Duration, Instant};

use metrics::{Buckets, Histogram, ShardedCounter, Text, WaitTarget, start_waiting, wait_on};

const REQUESTS: u32 = 1_000_000;
const RUNS: usize = 21;

struct Recorded {
    request: Histogram,
    bytes: Histogram,
    commit: Histogram,
    batch: Histogram,
    hits: ShardedCounter,
}

impl Recorded {
    fn new() -> Recorded {
        Recorded {
            request: Histogram::new(Buckets::SECONDS),
            bytes: Histogram::new(Buckets::BYTES),
            commit: Histogram::new(Buckets::SECONDS),
            batch: Histogram::new(Buckets::NUMBERS),
            hits: ShardedCounter::default(),
        }
    }

    fn record(&self, number: u32) {
        start_waiting();
        let began = Instant::now();
        wait_on(WaitTarget::Engine("commit"), || {
            let began = Instant::now();
            self.hits.add(1);
            self.batch.record(u64::from(number % 16));
            let time = black_box(began.elapsed());
            self.commit.record_time(time);
            ((), time)
        });
        self.bytes.record(u64::from(number));
        self.request.record_time(black_box(began.elapsed()));
    }
}

/// Nanoseconds for each request of one thread while `threads` record.
fn time(threads: u32) -> f64 {
    let recorded = Recorded::new();
    let work = || {
        let began = Instant::now();
        (0..REQUESTS).for_each(|number| recorded.record(black_box(number)));
        began.elapsed()
    };
    let times: Vec<Duration> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("a thread of the benchmark has panicked"))
            .collect()
    });
    assert_eq!(recorded.request.count(), u64::from(threads * REQUESTS));
    times.iter().map(Duration::as_secs_f64).sum::<f64>() / f64::from(threads) / f64::from(REQUESTS) * 1e9
}

/// Microseconds to write the text of a hundred histograms.
fn text() -> f64 {
    let recorded = Recorded::new();
    (0..1000).for_each(|number| recorded.record(number));
    let began = Instant::now();
    let mut text = Text::default();
    let ops: Vec<String> = (0..100).map(|n| format!("op{n}")).collect();
    text.histograms(
        "limen_bench_seconds",
        "A distribution.",
        "op",
        ops.iter().map(|op| (op.as_str(), recorded.request.summary())),
    );
    black_box(text.finish());
    began.elapsed().as_secs_f64() * 1e6
}

fn median(measure: impl Fn() -> f64) -> f64 {
    let mut runs: Vec<f64> = (0..RUNS).map(|_| measure()).collect();
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}

fn main() {
    println!(
        "ns for each request: {:.0} with one thread, {:.0} with two",
        median(|| time(1)),
        median(|| time(2))
    );
    println!("µs for the text of a hundred histograms: {:.0}", median(text));
}
