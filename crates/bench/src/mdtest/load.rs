//! Runs a list of operations with many threads, and measures their times.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use command::error::{CliError, ErrorAt};
use command::output::ProgressBar;

use super::histogram::Histogram;
use crate::suite::wall;

/// The measured times of one run, of all threads together.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// The time of each operation.
    pub(crate) times: Histogram,
    /// The time from the start of the first thread to the end of the last one.
    pub(crate) wall: Duration,
}

impl Load {
    /// Adds the times of a run that began after this one had ended.
    pub(crate) fn then(&mut self, next: &Load) {
        self.times.merge(&next.times);
        self.wall += next.wall;
    }
}

/// Calls `work` once for each of `numbers`, and `stop` before each call. A thread that has finished a number
/// takes the next number. So all threads are busy until the end, and at any moment they work on adjacent
/// numbers.
///
/// # Errors
/// The error of `work`; the error of `stop`, which ends the run after Ctrl-C; a thread cannot be started, or
/// panics. The other threads end after their current operation.
pub(crate) fn run(
    threads: usize,
    numbers: Range<u64>,
    bar: &ProgressBar,
    stop: &(dyn Fn() -> Result<(), CliError> + Sync),
    work: &(dyn Fn(u64) -> Result<(), CliError> + Sync),
) -> Result<Load, CliError> {
    let next = AtomicU64::new(numbers.start);
    // Set when a thread ends, because no number is left, or because of an error or a panic.
    let ended = AtomicBool::new(false);
    let serve = || -> Result<(Range<Instant>, Histogram), CliError> {
        let begun = Instant::now();
        let mut times = Histogram::default();
        let _ends_others = EndsOthers(&ended);
        while !ended.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                break;
            }
            let began = Instant::now();
            stop().and_then(|()| work(number))?;
            times.add(began.elapsed());
            bar.inc(1);
        }
        Ok((begun..Instant::now(), times))
    };
    let done: Vec<_> = thread::scope(|scope| {
        let mut all = Vec::with_capacity(threads);
        for _ in 0..threads {
            let spawned = thread::Builder::new().name("limen-bench".into()).spawn_scoped(scope, serve);
            let spawned = spawned.inspect_err(|_| ended.store(true, Ordering::Relaxed));
            all.push(spawned.what("cannot start a thread").advise("use fewer --threads")?);
        }
        let panicked = || CliError::new("a thread of the benchmark panicked: its message is above");
        all.into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            .collect::<Result<_, CliError>>()
    })?;
    let mut times = Histogram::default();
    done.iter().for_each(|(_, more)| times.merge(more));
    Ok(Load { times, wall: wall(done.iter().map(|(time, _)| time)) })
}

/// Makes the other threads end when this thread ends, even after a panic.
struct EndsOthers<'a>(&'a AtomicBool);

impl Drop for EndsOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_number_is_processed_once_and_counted() {
        for threads in [1, 7] {
            let met = Mutex::new(Vec::new());
            let work = |number| {
                met.lock().unwrap().push(number);
                Ok(())
            };
            let mut load = run(threads, 3..500, &ProgressBar::hidden(), &|| Ok(()), &work).unwrap();
            let mut met = met.into_inner().unwrap();
            met.sort_unstable();
            assert_eq!(met, (3..500).collect::<Vec<_>>());
            assert_eq!(load.times.count(), 497);
            let nothing =
                run(threads, 5..5, &ProgressBar::hidden(), &|| Ok(()), &|_| panic!("no work")).unwrap();
            load.then(&nothing);
            assert_eq!(load.times.count(), 497);
        }
    }

    #[test]
    fn a_failure_ends_all_threads() {
        let done = AtomicU64::new(0);
        let work = |number| {
            done.fetch_add(1, Ordering::Relaxed);
            if number == 5 { Err(CliError::new("the fifth")) } else { Ok(()) }
        };
        let error = run(4, 0..1 << 60, &ProgressBar::hidden(), &|| Ok(()), &work).unwrap_err();
        assert_eq!(error.to_string(), "the fifth");
        let stop = || Err(CliError::new("interrupted"));
        let error = run(2, 0..1 << 60, &ProgressBar::hidden(), &stop, &|_| panic!("no work")).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
    }

    #[test]
    fn a_panic_ends_all_threads() {
        const NUMBERS: u64 = 1 << 24;
        let done = AtomicU64::new(0);
        let work = |number| {
            assert!(number != 5, "requested by the test");
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let error = run(4, 0..NUMBERS, &ProgressBar::hidden(), &|| Ok(()), &work).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(done.into_inner() < NUMBERS - 1);
    }
}
