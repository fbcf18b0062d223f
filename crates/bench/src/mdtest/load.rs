//! Runs a list of operations with many threads, and measures their times.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use command::fault::Fault;
use command::output::ProgressBar;

use super::histogram::Histogram;

/// The measured times of one run, of all threads together.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// The time of each operation.
    pub(super) times: Histogram,
    /// The time from the start of the first thread to the end of the last one.
    pub(super) wall: Duration,
}

impl Load {
    /// Adds the times of a run that began after this one had ended.
    pub(super) fn then(&mut self, next: &Load) {
        self.times.merge(&next.times);
        self.wall += next.wall;
    }
}

/// Calls `work` once for each of `numbers`, and `stop` before each. A thread that has finished a number takes
/// the next one. So all threads are busy until the end, and at any moment they work on adjacent numbers.
///
/// # Errors
/// An error of `work`, or of `stop`, which ends the run after Ctrl-C; a thread cannot be started, or panics. The
/// other threads end after their current operation, except after a panic.
pub(super) fn run(
    threads: usize,
    numbers: Range<u64>,
    bar: &ProgressBar,
    stop: &(dyn Fn() -> Result<(), Fault> + Sync),
    work: &(dyn Fn(u64) -> Result<(), Fault> + Sync),
) -> Result<Load, Fault> {
    let next = AtomicU64::new(numbers.start);
    let failed = AtomicBool::new(false);
    let turn = || -> Result<Turn, Fault> {
        let begun = Instant::now();
        let mut times = Histogram::default();
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                break;
            }
            let began = Instant::now();
            stop().and_then(|()| work(number)).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            times.add(began.elapsed());
            bar.inc(1);
        }
        Ok(Turn { begun, ended: Instant::now(), times })
    };
    let turns: Vec<Turn> = thread::scope(|scope| {
        let mut all = Vec::with_capacity(threads);
        for _ in 0..threads {
            let spawned = thread::Builder::new().name("limen-mdtest".into()).spawn_scoped(scope, turn);
            all.push(spawned.map_err(|error| {
                failed.store(true, Ordering::Relaxed);
                Fault::new(format!("cannot start a thread: {error}")).advise("use fewer --threads")
            })?);
        }
        let ended_early = || Fault::new("a thread of the benchmark panicked: its message is above");
        all.into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(ended_early())))
            .collect::<Result<_, Fault>>()
    })?;
    let mut times = Histogram::default();
    turns.iter().for_each(|turn| times.merge(&turn.times));
    let begun = turns.iter().map(|turn| turn.begun).min();
    let ended = turns.iter().map(|turn| turn.ended).max();
    Ok(Load { times, wall: begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun) })
}

/// What one thread measured.
#[derive(Debug)]
struct Turn {
    begun: Instant,
    ended: Instant,
    times: Histogram,
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
            if number == 5 { Err(Fault::new("the fifth")) } else { Ok(()) }
        };
        let fault = run(4, 0..1 << 60, &ProgressBar::hidden(), &|| Ok(()), &work).unwrap_err();
        assert_eq!(fault.to_string(), "the fifth");
        let stop = || Err(Fault::new("interrupted"));
        let fault = run(2, 0..1 << 60, &ProgressBar::hidden(), &stop, &|_| panic!("no work")).unwrap_err();
        assert_eq!(fault.to_string(), "interrupted");
    }
}
