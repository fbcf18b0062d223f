//! The threads that upload staged blocks, and their queue.
//!
//! Uploads are retried without a limit. While the store fails, the pauses between attempts grow to 30 s. The
//! local file is removed only after the store has the block durably, so that a process killed at any moment
//! causes at most a second upload of the same block.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use types::SliceId;

use crate::areas::{Pending, Shared};
use crate::backend::{Backend, StoreError};
use crate::block::BlockName;
use crate::error::no_memory;
use crate::format::BlockFault;
use crate::layout::{Damage, decode, object_len_bound};

/// The number of blocks uploaded at the same time.
const THREADS: usize = 4;

/// The maximum number of staged blocks; each takes some 150 bytes of memory.
const MAX_BLOCKS: usize = 1 << 16;

/// The maximum number of slices that are remembered as lost.
const MAX_LOST: usize = 1 << 16;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The interval of progress reports.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The uploads of one store. When dropped, its threads finish their current block and stop.
#[derive(Debug)]
pub(crate) struct Uploads {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Whether an object may be written to the local disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The object may be written; [`Uploads::settle`] must follow.
    Given,
    /// The object is staged already.
    Waits,
    /// There is no room for the object.
    Refused,
}

/// An object that will not be uploaded any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Withdrawn {
    pub(crate) area: usize,
    /// An upload was tried, so the store may have the object.
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
    /// Keys to upload, oldest first; a withdrawn key stays here until it is popped.
    order: VecDeque<String>,
    bytes: u64,
    uploaded: u64,
    failures: u64,
    /// The slices of staged blocks that were lost, at most [`MAX_LOST`]. If there are more, `has_lost_more`
    /// is set, and every slice may have lost a block.
    lost: HashSet<SliceId>,
    has_lost_more: bool,
    /// Set while uploads fail.
    backoff: Option<Backoff>,
    is_closing: bool,
}

#[derive(Debug)]
struct Backoff {
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
    /// The object is being written to the local disk.
    Written,
    Waits,
    Uploads,
}

/// The result of an upload.
enum UploadResult {
    Stored,
    /// The upload must not be retried, for this reason.
    Lost(String),
    Failed(String),
}

impl Uploads {
    /// Queues the objects that are staged in the areas. Nothing is uploaded before [`Uploads::begin`].
    ///
    /// # Errors
    /// Fails if an area cannot be read.
    pub(crate) fn new(shared: &Shared, max_bytes: u64) -> io::Result<Self> {
        let mut state = State::default();
        for (area, place) in shared.areas.iter().enumerate() {
            place.dir.each_block(&mut |key, metadata| {
                let len = metadata.len();
                state.bytes += len;
                state.order.push_back(key.clone());
                // The process that left the object may have uploaded it.
                state.objects.insert(key, Object { area, len, step: Step::Waits, tried: true });
                Ok(())
            })?;
        }
        if !state.objects.is_empty() {
            let (blocks, bytes) = (state.objects.len(), state.bytes);
            tracing::info!(blocks, bytes, "an earlier mount left blocks to upload");
        }
        let queue = Arc::new(Queue { max_bytes, state: Mutex::new(state), changed: Condvar::new() });
        Ok(Uploads { queue, threads: Mutex::default() })
    }

    /// Starts the threads that upload, unless they run.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub(crate) fn begin(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let mut threads = self.threads();
        while threads.len() < THREADS {
            let (queue, shared) = (Arc::clone(&self.queue), Arc::clone(shared));
            let thread = Builder::new().name("limen-upload".to_owned());
            threads.push(thread.spawn(move || queue.run(&shared))?);
        }
        Ok(())
    }

    /// Stops the threads.
    pub(crate) fn close(&self) {
        self.queue.lock().is_closing = true;
        self.queue.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            if thread.join().is_err() {
                tracing::warn!("an upload thread panicked");
            }
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves space for an object of `len` bytes in the first area, if it is not staged and there is room.
    pub(crate) fn admit(&self, key: &str, len: u64) -> Admission {
        let mut state = self.queue.lock();
        if state.objects.contains_key(key) {
            return Admission::Waits;
        }
        if state.objects.len() >= MAX_BLOCKS || state.bytes.saturating_add(len) > self.queue.max_bytes {
            return Admission::Refused;
        }
        state.bytes += len;
        let object = Object { area: 0, len, step: Step::Written, tried: false };
        state.objects.insert(key.to_owned(), object);
        Admission::Given
    }

    /// Ends an admission: `is_staged` says whether the object is on the local disk.
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

    /// The area that holds an object.
    pub(crate) fn area_of(&self, key: &str) -> Option<usize> {
        let state = self.queue.lock();
        state.objects.get(key).filter(|object| object.step != Step::Written).map(|object| object.area)
    }

    /// Takes an object out of the queue. If the object is being written to the local disk or uploaded, waits
    /// until that has ended. `None` if it was not queued.
    pub(crate) fn withdraw(&self, key: &str) -> Option<Withdrawn> {
        let busy =
            |state: &mut State| state.objects.get(key).is_some_and(|object| object.step != Step::Waits);
        let waited = self.queue.changed.wait_while(self.queue.lock(), busy);
        let object = waited.unwrap_or_else(PoisonError::into_inner).forget(key)?;
        self.queue.changed.notify_all();
        Some(Withdrawn { area: object.area, tried: object.tried })
    }

    /// Splits keys into those staged in each area, and those that are not staged.
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

    /// Whether a staged block was lost.
    pub(crate) fn has_lost(&self) -> bool {
        !self.queue.lock().lost.is_empty()
    }

    /// Whether a staged block of this slice may have been lost.
    pub(crate) fn may_have_lost(&self, id: SliceId) -> bool {
        let state = self.queue.lock();
        state.has_lost_more || state.lost.contains(&id)
    }

    /// Waits until the queue is empty; gives up if the store has failed for `timeout` without accepting a
    /// block.
    pub(crate) fn wait(&self, timeout: Duration, progress: &mut dyn FnMut(&Pending)) -> Result<(), Pending> {
        let (mut last, mut since, mut reported) = (0, Instant::now(), Instant::now());
        let mut state = self.queue.lock();
        // Retry at once, because the store may work again.
        if let Some(backoff) = &mut state.backoff {
            backoff.not_before = Instant::now();
            self.queue.changed.notify_all();
        }
        while !state.objects.is_empty() {
            if state.uploaded > last || state.backoff.is_none() {
                (last, since) = (state.uploaded, Instant::now());
            }
            if since.elapsed() >= timeout {
                return Err(state.pending());
            }
            if reported.elapsed() >= REPORT_EVERY {
                let pending = state.pending();
                drop(state);
                progress(&pending);
                reported = Instant::now();
                state = self.queue.lock();
            }
            let step = timeout.min(Duration::from_secs(1));
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
            let result = upload(shared, &key, area);
            self.end(&key, result);
        }
    }

    /// The next object to upload; waits for one. `None` when closing.
    fn next(&self) -> Option<(String, usize)> {
        let mut state = self.lock();
        loop {
            if state.is_closing {
                return None;
            }
            let now = Instant::now();
            let rest =
                state.backoff.as_ref().map(|backoff| backoff.not_before.saturating_duration_since(now));
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

    fn end(&self, key: &str, result: UploadResult) {
        let mut state = self.lock();
        match result {
            UploadResult::Stored => {
                state.forget(key);
                state.uploaded += 1;
                if state.backoff.take().is_some() {
                    tracing::info!("the store accepts blocks again");
                }
            }
            UploadResult::Lost(reason) => {
                state.forget(key);
                state.note_lost(key);
                tracing::error!(key, reason, "a staged block is lost");
            }
            UploadResult::Failed(error) => {
                if let Some(object) = state.objects.get_mut(key) {
                    object.step = Step::Waits;
                    object.tried = true;
                }
                state.order.push_back(key.to_owned());
                state.failures += 1;
                state.back_off(error);
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

    fn note_lost(&mut self, key: &str) {
        let Some(BlockName { id, .. }) = BlockName::of_key(key) else { return };
        if self.lost.len() < MAX_LOST {
            self.lost.insert(id);
        } else {
            self.has_lost_more |= !self.lost.contains(&id);
        }
    }

    /// Delays the next attempt. A failure that is reported during the delay does not prolong it.
    fn back_off(&mut self, error: String) {
        let now = Instant::now();
        let wait = match &self.backoff {
            Some(backoff) if backoff.not_before > now => return,
            Some(backoff) => (backoff.wait * 2).min(LONGEST_WAIT),
            None => FIRST_WAIT,
        };
        tracing::warn!(
            error,
            blocks = self.objects.len(),
            ?wait,
            "cannot upload blocks; retrying after a pause"
        );
        self.backoff = Some(Backoff { error, not_before: now + wait, wait });
    }

    fn pending(&self) -> Pending {
        Pending {
            blocks: self.objects.len() as u64,
            bytes: self.bytes,
            uploaded: self.uploaded,
            failures: self.failures,
            error: self.backoff.as_ref().map(|backoff| backoff.error.clone()),
        }
    }
}

/// Uploads one object, and removes the local file.
fn upload(shared: &Shared, key: &str, area: usize) -> UploadResult {
    let (Some(name), Some(area)) = (BlockName::of_key(key), shared.areas.get(area)) else {
        return UploadResult::Lost("its key does not name a block".to_owned());
    };
    let object = match area.dir.get_whole(key, object_len_bound(name.len)) {
        Ok(object) => object,
        Err(StoreError::NotFound) => {
            return UploadResult::Lost("its local file was removed by another program".to_owned());
        }
        Err(StoreError::Other(_, message)) => return UploadResult::Failed(message),
    };
    // A damaged file, for example after a power failure, must not overwrite a good object in the store.
    if let Err(damage) = decode(&object, name, &shared.codec) {
        if damage == Damage::Fault(BlockFault::NoMemory) {
            return UploadResult::Failed(no_memory(key).to_string());
        }
        return match area.set_aside(key) {
            Ok(path) => {
                UploadResult::Lost(format!("it is damaged ({damage:?}); it is kept as {}", path.display()))
            }
            Err(error) => UploadResult::Failed(error.to_string()),
        };
    }
    let stored = shared.store().and_then(|store| {
        store.put(key, object, Vec::new())?;
        store.sync(&[key.to_owned()])
    });
    match stored.and_then(|()| area.dir.delete(key)) {
        Ok(()) => UploadResult::Stored,
        Err(StoreError::NotFound) => UploadResult::Failed(
            "the store or the local disk reports that the object does not exist".to_owned(),
        ),
        Err(StoreError::Other(_, message)) => UploadResult::Failed(message),
    }
}
