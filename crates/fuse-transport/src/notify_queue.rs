//! The threads that write the queued notifications.
//!
//! One thread takes a notification from the queue, writes it, and takes the next. If a write waits for a
//! request that hangs, another thread goes on with the queue. Notifications about the same inode are then
//! postponed for the thread that waits, so only one thread waits for each inode.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
/// How long to wait if no thread can be started.
const PAUSE: Duration = Duration::from_secs(1);
/// If more notifications are postponed, further ones are dropped unless they have a call, and all names are
/// expired. Cached data then stays until its attributes, which were invalidated before, are read again.
const MAX_POSTPONED: usize = 65_536;

pub(crate) type Call = Box<dyn FnOnce() + Send>;

pub(crate) enum Queued {
    /// The call, if there is one, is made when the notification is written.
    Notification(Notification, Option<Call>),
    /// All copies of the sender are dropped when everything that was queued before is written.
    Mark(SyncSender<()>),
    /// Makes a thread write [`Late`].
    Nothing,
}

/// The notifications with calls that found no room in the queue. They are written after the next message is handled.
#[derive(Clone, Default)]
pub(crate) struct Late(Arc<Mutex<VecDeque<(Notification, Call)>>>);

impl Late {
    pub(crate) fn push(&self, notification: Notification, call: Call) {
        lock(&self.0).push_back((notification, call));
    }

    pub(crate) fn take_first(&self) -> Option<(Notification, Call)> {
        lock(&self.0).pop_front()
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").finish_non_exhaustive()
    }
}

/// A notification that a thread writes.
struct Own {
    notification: Notification,
    call: Option<Call>,
    /// The inode whose notifications other threads postpone for this one.
    node: Option<NodeId>,
}

/// The state that the threads share.
pub(crate) struct Writers {
    device: Arc<Device>,
    queue: Mutex<Receiver<Queued>>,
    late: Late,
    passes: Passes,
    busy: Mutex<Busy>,
    /// Whether a thread waits for or takes the next message.
    has_taker: AtomicBool,
    /// How many messages were taken.
    taken: AtomicU64,
    threads: Arc<AtomicUsize>,
    is_over: AtomicBool,
    watcher: OnceLock<Thread>,
    /// Whether the watcher must be woken when a message is taken.
    watcher_sleeps: AtomicBool,
}

/// The messages that are postponed for each thread that writes, by the inode of its notification.
#[derive(Default)]
struct Busy {
    postponed: HashMap<NodeId, VecDeque<Queued>>,
    notifications: usize,
}

impl Writers {
    /// Starts the first thread, and the one that starts the others. They end when all senders of the queue are
    /// dropped, or when a notification finds that the file system is unmounted.
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
                thread::sleep(PAUSE);
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
            let is_closed = message.is_err();
            // This is done before another thread takes a message, so that a later one does not overtake it.
            let own = message.ok().and_then(|message| self.claim(message));
            self.taken.fetch_add(1, Ordering::SeqCst);
            self.has_taker.store(false, Ordering::SeqCst);
            self.wake_watcher();
            let mut is_alive = !is_closed && own.is_none_or(|own| self.write(own));
            while is_alive && let Some((notification, call)) = self.late.take_first() {
                let own = self.claim(Queued::Notification(notification, Some(call)));
                is_alive = own.is_none_or(|own| self.write(own));
            }
            if !is_alive {
                self.is_over.store(true, Ordering::Release);
                self.wake_watcher();
                while let Some((_, call)) = self.late.take_first() {
                    make(call);
                }
            }
        }
    }

    /// Takes over a message. `None` if this thread has nothing to write for it.
    fn claim(&self, message: Queued) -> Option<Own> {
        let Busy { postponed, notifications } = &mut *lock(&self.busy);
        match message {
            Queued::Notification(notification, call) => {
                let node = notification.node();
                let Some(postponed) = node.and_then(|node| postponed.get_mut(&node)) else {
                    postponed.extend(node.map(|node| (node, VecDeque::new())));
                    return Some(Own { notification, call, node });
                };
                if *notifications < MAX_POSTPONED || call.is_some() {
                    postponed.push_back(Queued::Notification(notification, call));
                    *notifications += 1;
                } else if self.passes.expire_all() {
                    tracing::warn!(
                        "too many notifications wait for requests that hang, so all names are expired"
                    );
                }
            }
            Queued::Mark(mark) => {
                postponed.values_mut().for_each(|postponed| postponed.push_back(Queued::Mark(mark.clone())));
            }
            Queued::Nothing => {}
        }
        None
    }

    /// Writes a notification, and those that other threads postpone for this one meanwhile. Returns whether the file
    /// system still exists.
    fn write(&self, Own { notification, call, node }: Own) -> bool {
        let mut is_alive = self.write_one(&notification, call);
        while let Some(next) = node.and_then(|node| self.next_postponed(node)) {
            if let Queued::Notification(notification, call) = next {
                is_alive &= self.write_one(&notification, call);
            }
        }
        is_alive
    }

    /// The next message that was postponed for the thread that writes notifications about `node`.
    fn next_postponed(&self, node: NodeId) -> Option<Queued> {
        let Busy { postponed, notifications } = &mut *lock(&self.busy);
        let next = postponed.get_mut(&node)?.pop_front();
        match next {
            Some(Queued::Notification(..)) => *notifications -= 1,
            Some(_) => {}
            None => drop(postponed.remove(&node)),
        }
        next
    }

    fn write_one(&self, notification: &Notification, call: Option<Call>) -> bool {
        let is_alive = write(&self.device, notification);
        if let Some(call) = call {
            make(call);
        }
        is_alive
    }
}

/// Makes a call. If it panics, the thread goes on, because notifications may be postponed for it.
fn make(call: Call) {
    // The panic is in the log.
    let _ = catch_unwind(AssertUnwindSafe(call));
}
