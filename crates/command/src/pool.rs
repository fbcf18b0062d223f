//! A work queue for tree walks: several threads run tasks that can add more tasks.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The waiting tasks. The newest task runs first, so that a walk is depth-first and few tasks wait.
#[derive(Debug)]
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: Vec<T>,
    running: usize,
}

/// Runs the tasks of `first` and all tasks that they add; returns when none is left.
pub fn run<T: Send>(threads: usize, first: Vec<T>, work: impl Fn(&Queue<T>, T) + Sync) {
    let queue = Queue { state: Mutex::new(State { waiting: first, running: 0 }), changed: Condvar::new() };
    let serve = || {
        while let Some(task) = queue.take() {
            let _running = Running(&queue);
            work(&queue, task);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If a thread cannot be started, the others do the work; this thread alone is enough.
            let _ = thread::Builder::new().spawn_scoped(scope, serve);
        }
        serve();
    });
}

impl<T> Queue<T> {
    pub fn push(&self, task: T) {
        self.lock().waiting.push(task);
        self.changed.notify_one();
    }

    /// How many tasks wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Waits for the next task; `None` when no task waits or runs any more.
    fn take(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.waiting.pop() {
                state.running += 1;
                return Some(task);
            }
            if state.running == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running task. Dropping it ends the task, even after a panic, so that no thread waits for it forever.
#[derive(Debug)]
struct Running<'a, T>(&'a Queue<T>);

impl<T> Drop for Running<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        if state.running == 0 && state.waiting.is_empty() {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn every_task_and_every_added_task_runs_once() {
        for threads in [1, 2, 7] {
            let done = AtomicU64::new(0);
            run(threads, vec![10_u64, 3], |queue, depth| {
                done.fetch_add(1, Ordering::Relaxed);
                for _ in 0..2.min(depth) {
                    queue.push(depth - 1);
                }
            });
            // A task adds two tasks of the next smaller depth, but a task of depth 1 adds only one.
            let tree = |depth: u32| (1_u64 << depth) - 1 + (1 << (depth - 1));
            assert_eq!(done.into_inner(), tree(10) + tree(3), "{threads} threads");
        }
    }

    #[test]
    fn empty_queue_returns_at_once() {
        run(3, Vec::<()>::new(), |_, ()| panic!("there is no task"));
    }
}
