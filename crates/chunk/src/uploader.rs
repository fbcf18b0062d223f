//! The threads that bring staged blocks to the store, and what they have still to do.
//!
//! A block is uploaded for as long as it takes: while the store fails, tries become rarer, up to one in 30 s. The local
//! file goes when the store has the block and keeps it, so that a process killed at any moment uploads one block twice at
//! most, which is the same block.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Refusal};
use crate::layout::{decode, object_len_bound};
use crate::staging::{Pending, Shared, name_of};

/// How many blocks are uploaded at once.
const THREADS: usize = 4;

/// How many blocks wait at most, some 150 bytes of memory each.
const MAX_BLOCKS: usize = 1 << 16;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How often whoever waits is told of progress.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The uploads of one store; dropped, its threads end what they are at and no more.
#[derive(Debug)]
pub(crate) struct Uploads {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Whether an object may be written to the local disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It may, and [`Uploads::settle`] follows.
    Given,
    /// It waits there already.
    Waits,
    /// There is no room.
    Refused,
}

/// An object that is not going to be uploaded any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Withdrawn {
    pub(crate) area: usize,
    /// The store may have it all the same.
    pub(crate) tried: bool,
}

#[derive(Debug)]
struct Queue {
    max_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<String, Object>,
    /// Keys to upload, oldest first; one that was withdrawn stays here until it is its turn.
    order: VecDeque<String>,
    bytes: u64,
    uploaded: u64,
    failures: u64,
    /// Set while uploads fail.
    trouble: Option<Trouble>,
    is_closing: bool,
}

#[derive(Debug)]
struct Trouble {
    error: String,
    not_before: Instant,
    wait: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    area: usize,
    len: u64,
    step: Step,
    tried: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is being written to the local disk.
    Written,
    Waits,
    Uploads,
}

/// What became of an upload.
enum Outcome {
    Stored,
    /// It is not to be tried again, for this reason.
    Lost(String),
    Failed(String),
}

impl Uploads {
    /// Takes up what waits in the areas, and begins to upload.
    ///
    /// # Errors
    /// An area cannot be read, or a thread not be started.
    pub(crate) fn start(shared: &Arc<Shared>, max_bytes: u64) -> io::Result<Self> {
        let mut state = State::default();
        for (area, place) in shared.areas.iter().enumerate() {
            place.each(&mut |key, len| {
                state.bytes += len;
                state.order.push_back(key.clone());
                // Whoever left it may have uploaded it.
                state.objects.insert(key, Object { area, len, step: Step::Waits, tried: true });
            })?;
        }
        if !state.objects.is_empty() {
            let (blocks, bytes) = (state.objects.len(), state.bytes);
            tracing::info!(blocks, bytes, "an earlier mount left blocks that are uploaded now");
        }
        let queue = Arc::new(Queue { max_bytes, state: Mutex::new(state), changed: Condvar::new() });
        let uploads = Uploads { queue, threads: Mutex::default() };
        for _ in 0..THREADS {
            let (queue, shared) = (Arc::clone(&uploads.queue), Arc::clone(shared));
            let thread = Builder::new().name("limen-upload".to_owned());
            uploads.threads().push(thread.spawn(move || queue.run(&shared))?);
        }
        Ok(uploads)
    }

    /// Ends the threads.
    pub(crate) fn close(&self) {
        self.queue.lock().is_closing = true;
        self.queue.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            if thread.join().is_err() {
                tracing::warn!("a thread that uploads panicked");
            }
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for room for an object of `len` bytes in the first area.
    pub(crate) fn claim(&self, key: &str, len: u64) -> Claim {
        let mut state = self.queue.lock();
        if state.objects.contains_key(key) {
            return Claim::Waits;
        }
        if state.objects.len() >= MAX_BLOCKS || state.bytes.saturating_add(len) > self.queue.max_bytes {
            return Claim::Refused;
        }
        state.bytes += len;
        let object = Object { area: 0, len, step: Step::Written, tried: false };
        state.objects.insert(key.to_owned(), object);
        Claim::Given
    }

    /// Says whether the object that was claimed is on the local disk.
    pub(crate) fn settle(&self, key: &str, is_staged: bool) {
        let mut state = self.queue.lock();
        if !is_staged {
            state.forget(key);
        } else if let Some(object) = state.objects.get_mut(key) {
            object.step = Step::Waits;
            state.order.push_back(key.to_owned());
        }
        self.queue.changed.notify_all();
    }

    /// The area that an object is in.
    pub(crate) fn area_of(&self, key: &str) -> Option<usize> {
        let state = self.queue.lock();
        state.objects.get(key).filter(|object| object.step != Step::Written).map(|object| object.area)
    }

    /// Sees to it that an object is not uploaded; waits for an upload of it that is under way. `None` if none was to be.
    pub(crate) fn withdraw(&self, key: &str) -> Option<Withdrawn> {
        let busy =
            |state: &mut State| state.objects.get(key).is_some_and(|object| object.step != Step::Waits);
        let waited = self.queue.changed.wait_while(self.queue.lock(), busy);
        let object = waited.unwrap_or_else(PoisonError::into_inner).forget(key)?;
        self.queue.changed.notify_all();
        Some(Withdrawn { area: object.area, tried: object.tried })
    }

    /// Parts keys into those staged in each area, and those that are not.
    pub(crate) fn split(&self, keys: &[String]) -> (Vec<Vec<String>>, Vec<String>) {
        let state = self.queue.lock();
        let (mut staged, mut others) = (Vec::new(), Vec::new());
        for key in keys {
            match state.objects.get(key) {
                Some(object) => {
                    if staged.len() <= object.area {
                        staged.resize_with(object.area + 1, Vec::new);
                    }
                    staged[object.area].push(key.clone());
                }
                None => others.push(key.clone()),
            }
        }
        (staged, others)
    }

    pub(crate) fn pending(&self) -> Pending {
        self.queue.lock().pending()
    }

    /// Waits until nothing waits any more; gives up when the store has failed for `patience` without taking a block.
    pub(crate) fn wait(&self, patience: Duration, progress: &mut dyn FnMut(&Pending)) -> Result<(), Pending> {
        let (mut last, mut since, mut told) = (0, Instant::now(), Instant::now());
        let mut state = self.queue.lock();
        // The store may be back, and nobody is to wait for nothing.
        if let Some(trouble) = &mut state.trouble {
            trouble.not_before = Instant::now();
            self.queue.changed.notify_all();
        }
        while !state.objects.is_empty() {
            if state.uploaded > last || state.trouble.is_none() {
                (last, since) = (state.uploaded, Instant::now());
            }
            if since.elapsed() >= patience {
                return Err(state.pending());
            }
            if told.elapsed() >= REPORT_EVERY {
                let pending = state.pending();
                drop(state);
                progress(&pending);
                told = Instant::now();
                state = self.queue.lock();
            }
            let step = patience.min(Duration::from_secs(1));
            let waited = self.queue.changed.wait_timeout(state, step);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn run(&self, shared: &Shared) {
        while let Some((key, area)) = self.next() {
            let outcome = upload(shared, &key, area);
            self.end(&key, outcome);
        }
    }

    /// The next object to upload; `None` at the end.
    fn next(&self) -> Option<(String, usize)> {
        let mut state = self.lock();
        loop {
            if state.is_closing {
                return None;
            }
            let now = Instant::now();
            let rest =
                state.trouble.as_ref().map(|trouble| trouble.not_before.saturating_duration_since(now));
            let waited = match rest {
                Some(rest) if !rest.is_zero() => {
                    self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0
                }
                _ => match state.take_next() {
                    Some(next) => return Some(next),
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                },
            };
            state = waited;
        }
    }

    fn end(&self, key: &str, outcome: Outcome) {
        let mut state = self.lock();
        match outcome {
            Outcome::Stored => {
                state.forget(key);
                state.uploaded += 1;
                if state.trouble.take().is_some() {
                    tracing::info!("the store takes blocks again");
                }
            }
            Outcome::Lost(reason) => {
                state.forget(key);
                tracing::error!(key, reason, "a block that waited to be uploaded is lost");
            }
            Outcome::Failed(error) => {
                if let Some(object) = state.objects.get_mut(key) {
                    object.step = Step::Waits;
                    object.tried = true;
                }
                state.order.push_back(key.to_owned());
                state.failures += 1;
                state.hold_back(error);
            }
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_next(&mut self) -> Option<(String, usize)> {
        while let Some(key) = self.order.pop_front() {
            if let Some(object) = self.objects.get_mut(&key).filter(|object| object.step == Step::Waits) {
                object.step = Step::Uploads;
                return Some((key, object.area));
            }
        }
        None
    }

    fn forget(&mut self, key: &str) -> Option<Object> {
        let object = self.objects.remove(key)?;
        self.bytes -= object.len;
        Some(object)
    }

    /// Makes the next try wait; those that began before the last wait was over count as one with it.
    fn hold_back(&mut self, error: String) {
        let now = Instant::now();
        let wait = match &self.trouble {
            Some(trouble) if trouble.not_before > now => return,
            Some(trouble) => (trouble.wait * 2).min(LONGEST_WAIT),
            None => FIRST_WAIT,
        };
        tracing::warn!(error, blocks = self.objects.len(), ?wait, "blocks cannot be uploaded, and wait");
        self.trouble = Some(Trouble { error, not_before: now + wait, wait });
    }

    fn pending(&self) -> Pending {
        Pending {
            blocks: self.objects.len() as u64,
            bytes: self.bytes,
            uploaded: self.uploaded,
            failures: self.failures,
            error: self.trouble.as_ref().map(|trouble| trouble.error.clone()),
        }
    }
}

/// Brings one object to the store, and removes it here.
fn upload(shared: &Shared, key: &str, area: usize) -> Outcome {
    let (Some(name), Some(area)) = (name_of(key), shared.areas.get(area)) else {
        return Outcome::Lost("it is no block".to_owned());
    };
    let object = match area.dir.get_whole(key, object_len_bound(name.len)) {
        Ok(object) => object,
        Err(Refusal::NotFound) => return Outcome::Lost("its file was removed by somebody else".to_owned()),
        Err(Refusal::Other(_, message)) => return Outcome::Failed(message),
    };
    // What a power failure left of it, say, is not to take the place of what the store may have.
    if let Err(damage) = decode(&object, name, &shared.codec) {
        return match area.set_aside(key) {
            Ok(path) => {
                Outcome::Lost(format!("it is damaged ({damage:?}); it is kept as {}", path.display()))
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
    }
    let stored =
        shared.store.put(key, object, Vec::new()).and_then(|()| shared.store.sync(&[key.to_owned()]));
    match stored.and_then(|()| area.dir.delete(key)) {
        Ok(()) => Outcome::Stored,
        Err(Refusal::NotFound) => Outcome::Failed("the store says it is not there".to_owned()),
        Err(Refusal::Other(_, message)) => Outcome::Failed(message),
    }
}
