//! The threads that write the queued notifications.
//!
//! One thread takes a notification from the queue, writes it, and takes the next. If a write waits for a
//! request that hangs, another thread goes on with the queue. What is queued for the same directory or file
//! meanwhile is left to the thread that waits, so that each hanging request occupies one thread only.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use fuse_proto::{NodeId, Notification};

use crate::device::Device;
use crate::entry::lock;
use crate::expiry::{Count, Passes, spawn, write};

/// If no message is taken from the queue in this time although no thread waits for one, another thread
/// starts, up to [`MAX_WRITERS`].
const LOOK_EVERY: Duration = Duration::from_millis(20);
const MAX_WRITERS: usize = 64;
/// If more notifications are left to threads that wait, all names are expired instead.
const MAX_LEFT: usize = 65_536;

pub(crate) type Call = Box<dyn FnOnce() + Send>;

pub(crate) enum Queued {
    /// The call, if there is one, is made when the notification is written.
    Notification(Notification, Option<Call>),
    /// All copies of the sender are dropped when everything that was queued before is written.
    Mark(SyncSender<()>),
    /// Makes a thread write [`Late`].
    Nothing,
}

/// The notifications with calls that found no room in the queue. They are written after the next message.
#[derive(Clone, Default)]
pub(crate) struct Late(Arc<Mutex<Vec<(Notification, Call)>>>);

impl Late {
    pub(crate) fn push(&self, notification: Notification, call: Call) {
        lock(&self.0).push((notification, call));
    }

    pub(crate) fn take(&self) -> Vec<(Notification, Call)> {
        mem::take(&mut *lock(&self.0))
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").finish_non_exhaustive()
    }
}

/// What the threads share.
pub(crate) struct Writers {
    device: Arc<Device>,
    queue: Mutex<Receiver<Queued>>,
    late: Late,
    passes: Passes,
    busy: Mutex<Busy>,
    /// Whether a thread takes the next message from the queue.
    has_taker: AtomicBool,
    /// How many messages were taken.
    taken: AtomicU64,
    threads: Arc<AtomicUsize>,
    is_over: AtomicBool,
    watcher: OnceLock<Thread>,
    /// Whether the watcher must be woken when a message is taken.
    watcher_sleeps: AtomicBool,
}

/// What is left to each thread that writes, by the inode whose lock it may wait for.
#[derive(Default)]
struct Busy {
    left: HashMap<NodeId, VecDeque<Queued>>,
    notifications: usize,
}

impl Writers {
    /// Starts the first thread, and the one that starts the others. They end when all senders of the queue are
    /// dropped, or the file system is unmounted.
    pub(crate) fn start(
        device: Arc<Device>,
        queue: Receiver<Queued>,
        late: Late,
        passes: Passes,
    ) -> std::io::Result<()> {
        let writers = Arc::new(Writers {
            device,
            queue: Mutex::new(queue),
            late,
            passes,
            busy: Mutex::default(),
            has_taker: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            threads: Arc::default(),
            is_over: AtomicBool::new(false),
            watcher: OnceLock::new(),
            watcher_sleeps: AtomicBool::new(false),
        });
        writers.add_thread()?;
        spawn("limen-notify", move || writers.watch())
    }

    fn add_thread(self: &Arc<Self>) -> std::io::Result<()> {
        let (writers, count) = (Arc::clone(self), Count::new(&self.threads));
        spawn("limen-notify", move || {
            writers.run();
            drop(count);
        })
    }

    /// Starts a thread whenever none takes messages any more because all wait.
    fn watch(self: Arc<Self>) {
        let _ = self.watcher.set(thread::current());
        while !self.is_over.load(Ordering::Acquire) {
            self.watcher_sleeps.store(true, Ordering::SeqCst);
            let before = self.taken.load(Ordering::SeqCst);
            if self.has_taker.load(Ordering::SeqCst) {
                while self.watcher_sleeps.load(Ordering::SeqCst) {
                    thread::park();
                }
            }
            thread::sleep(LOOK_EVERY);
            let is_stuck =
                !self.has_taker.load(Ordering::SeqCst) && self.taken.load(Ordering::SeqCst) == before;
            if is_stuck
                && self.threads.load(Ordering::Acquire) < MAX_WRITERS
                && let Err(error) = self.add_thread()
            {
                tracing::warn!(%error, "cannot start a thread that writes notifications; retrying");
            }
        }
    }

    fn wake_watcher(&self) {
        if self.watcher_sleeps.swap(false, Ordering::SeqCst)
            && let Some(watcher) = self.watcher.get()
        {
            watcher.unpark();
        }
    }

    /// Takes messages until another thread does so, or the file system has ended.
    fn run(&self) {
        while !self.is_over.load(Ordering::Acquire) && !self.has_taker.swap(true, Ordering::SeqCst) {
            let message = lock(&self.queue).recv();
            self.taken.fetch_add(1, Ordering::SeqCst);
            self.has_taker.store(false, Ordering::SeqCst);
            self.wake_watcher();
            let is_alive = match message {
                Ok(message) => self.handle(message) && self.write_late(),
                Err(_) => false,
            };
            if !is_alive {
                self.is_over.store(true, Ordering::Release);
                self.wake_watcher();
            }
        }
    }

    /// Returns whether the file system still exists.
    fn handle(&self, message: Queued) -> bool {
        match message {
            Queued::Notification(notification, call) => self.write(notification, call),
            Queued::Mark(mark) => {
                let mut busy = lock(&self.busy);
                busy.left.values_mut().for_each(|left| left.push_back(Queued::Mark(mark.clone())));
                true
            }
            Queued::Nothing => true,
        }
    }

    fn write_late(&self) -> bool {
        let late = self.late.take();
        late.into_iter().all(|(notification, call)| self.write(notification, Some(call)))
    }

    /// Writes a notification, and what other threads leave to this one meanwhile.
    fn write(&self, notification: Notification, call: Option<Call>) -> bool {
        let Some(node) = notification.node() else { return self.write_one(&notification, call) };
        {
            let Busy { left, notifications } = &mut *lock(&self.busy);
            if let Some(left) = left.get_mut(&node) {
                if *notifications < MAX_LEFT || call.is_some() {
                    left.push_back(Queued::Notification(notification, call));
                    *notifications += 1;
                } else {
                    self.passes.expire_all();
                }
                return true;
            }
            left.insert(node, VecDeque::new());
        }
        let mut is_alive = self.write_one(&notification, call);
        while let Some(next) = self.next_left(node) {
            if let Queued::Notification(notification, call) = next {
                is_alive &= self.write_one(&notification, call);
            }
        }
        is_alive
    }

    /// The next message that was left to the thread that writes notifications about `node`.
    fn next_left(&self, node: NodeId) -> Option<Queued> {
        let Busy { left, notifications } = &mut *lock(&self.busy);
        let next = left.get_mut(&node)?.pop_front();
        match next {
            Some(Queued::Notification(..)) => *notifications -= 1,
            Some(_) => {}
            None => drop(left.remove(&node)),
        }
        next
    }

    fn write_one(&self, notification: &Notification, call: Option<Call>) -> bool {
        let is_alive = write(&self.device, notification);
        if let Some(call) = call {
            call();
        }
        is_alive
    }
}
