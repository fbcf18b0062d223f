//! Cache coherence: how changes by other clients invalidate this client's cache and the kernel's.
//!
//! [`Caches`] holds the inodes that the kernel is believed to cache, the replies in flight, and the
//! invalidations to be repeated. It depends on [`Meta`], which holds this client's cache, and on
//! [`AccessCheck`]. No lock is held while the kernel is called.
//!
//! If the engine streams changes, this client answers from its cache while it holds a lease of [`LEASE`].
//! Each answer of the stream, an empty one too, renews the lease. When the answers stop, the lease expires:
//! the whole cache is invalidated, here and in the kernel, and lifetimes are short until the stream works
//! again.
//!
//! A reply that is in flight when a change arrives may reach the kernel after the invalidation: see
//! [`crate::in_flight`]. The kernel also checks permissions with the attributes that it has cached:
//! [`crate::kernel_cache`] detects outdated ones, and `change_inodes` (`changes.rs`) then checks the caller.

use host::Instant;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use client::Meta;
use meta::{Changes, Invalidation};
use serde::{Deserialize, Serialize};
use types::{BootInstant, Ino, Name};

use crate::access_check::AccessCheck;
use crate::activity::Event;
use crate::attr::{Attr, Lifetimes, NOTIFIED_LIFETIME};
use crate::in_flight::{InFlight, Outdated, Repeats, ReplyGuard};
use crate::kernel_cache::{Arrival, KernelCache, RevisionsAsOf};
use crate::kernel_names::KernelNames;
use crate::recent_grants::{Part, RecentGrants};
use crate::stop::Stop;

/// The kernel's caches. No method waits for a FUSE request to complete.
pub trait Kernel: Send + Sync + fmt::Debug {
    /// Invalidates attributes and ACLs of the inode before it returns. May be called by a thread that holds a
    /// request for the inode.
    fn invalidate_attributes(&self, ino: Ino);
    /// As [`Kernel::invalidate_attributes`]; also invalidates cached data, asynchronously.
    fn invalidate_content(&self, ino: Ino);
    /// Invalidates attributes and cached data, and then calls `then`. Asynchronous.
    fn invalidate_content_then(&self, ino: Ino, then: Box<dyn FnOnce() + Send>);
    /// Invalidates attributes, and `len` bytes of cached data from `offset` on. Asynchronous.
    fn invalidate_range(&self, ino: Ino, offset: u64, len: u64);
    /// Makes the kernel look the name up again before it uses it. Asynchronous.
    fn expire_name(&self, parent: Ino, name: &[u8]);
    /// As [`Kernel::expire_name`], for all names in a directory that [`Caches::kernel_names`] lists from now
    /// on.
    fn expire_directory(&self, dir: Ino);
    /// As [`Kernel::expire_directory`], for all directories. On an exclusive mount, for all names that the
    /// kernel has.
    fn expire_all(&self);
    /// Whether names can be expired. If not, a mount that is notified of changes gives no name a lifetime
    /// longer than the lease.
    fn can_expire_names(&self) -> bool;
    /// Whether each reference to an inode that a reply gives comes back by FORGET. If not, nothing is kept
    /// for deleted inodes.
    fn sends_forget(&self) -> bool {
        true
    }
}

/// The lease: how long the cache is valid after the start of a successful poll of the stream.
pub(crate) const LEASE: Duration = Duration::from_millis(600);
/// The longest time that one poll of the stream waits for changes.
const POLL_FOR: Duration = Duration::from_millis(100);
/// The pause after a poll that returned changes, so that a busy stream is read in batches: without it, each
/// commit of this client would cost one more request. It delays changes by other clients by at most this
/// time. A stream that polls its server has a longer pause of its own.
const GATHER_FOR: Duration = Duration::from_millis(1);
/// How often the lease is checked.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How often [`Caches::wait_stream`] checks whether the stream is open.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The pause before a failed stream is opened again.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);
/// The kernel's lifetimes if no other client can change the volume.
const EXCLUSIVE_LIFETIME: Duration = Duration::from_secs(86_400);

/// How this client stays coherent with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// There are no other clients.
    Exclusive,
    /// This client is notified of changes by other clients.
    Notified,
    /// This client reads a record again when the cached one is older than the lifetime (polling).
    Polling,
}

impl Coherence {
    /// The name that is shown to users and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Coherence::Exclusive => "exclusive",
            Coherence::Notified => "notified",
            Coherence::Polling => "polling",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Coherence::Exclusive, Coherence::Notified, Coherence::Polling]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

thread_local! {
    /// When the request arrived that this thread handles, if it has waited since then.
    static ARRIVAL: Cell<Option<Arrival>> = const { Cell::new(None) };
}

/// The caches of this client and of the kernel.
#[derive(Debug)]
pub struct Caches {
    meta: Arc<Meta>,
    access: Arc<AccessCheck>,
    stop: Stop,
    cache: KernelCache,
    names: Arc<KernelNames>,
    in_flight: InFlight,
    repeats: Repeats,
    kernel: OnceLock<Arc<dyn Kernel>>,
    pub(crate) grants: RecentGrants,
    /// Whether the stream of changes was ever opened, or there is none.
    is_stream_open: AtomicBool,
    pub(crate) stream: StreamEvents,
}

/// What the kernel is believed to hold, as one process describes it to the next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KernelState {
    /// Inodes, with their lookup counts; none if the mount is exclusive.
    inodes: Vec<(Ino, u64)>,
    /// Directories, with names in them.
    names: Vec<(Ino, Vec<Box<[u8]>>)>,
}

/// Counts of the answers, changes and failures of the stream of changes.
#[derive(Debug, Default)]
pub(crate) struct StreamEvents {
    pub(crate) answers: Event,
    pub(crate) changes: Event,
    pub(crate) failures: Event,
}

impl Caches {
    pub(crate) fn new(meta: &Arc<Meta>, access: &Arc<AccessCheck>, stop: &Stop) -> Self {
        Caches {
            meta: Arc::clone(meta),
            access: Arc::clone(access),
            stop: stop.clone(),
            cache: KernelCache::default(),
            names: Arc::default(),
            in_flight: InFlight::default(),
            repeats: Repeats::default(),
            kernel: OnceLock::new(),
            grants: RecentGrants::default(),
            is_stream_open: AtomicBool::new(false),
            stream: StreamEvents::default(),
        }
    }

    pub fn coherence(&self) -> Coherence {
        match (self.meta.is_exclusive(), self.meta.is_current()) {
            (true, _) => Coherence::Exclusive,
            (false, true) => Coherence::Notified,
            (false, false) => Coherence::Polling,
        }
    }

    /// The number of inodes that the kernel is believed to hold.
    pub(crate) fn kernel_inodes(&self) -> u64 {
        self.cache.count()
    }

    /// The names that the kernel may use without a request.
    pub fn kernel_names(&self) -> &Arc<KernelNames> {
        &self.names
    }

    /// What the kernel is believed to hold, for another process.
    pub(crate) fn describe(&self) -> KernelState {
        KernelState { inodes: self.cache.lookups(), names: self.names.all().collect() }
    }

    /// Takes what another process has described.
    pub(crate) fn restore(&self, kernel: KernelState) {
        let now = Instant::now();
        kernel.inodes.iter().for_each(|(ino, lookups)| self.cache.restore(*ino, *lookups, now));
        for (dir, names) in kernel.names {
            names.iter().for_each(|name| self.names.record_always(dir, name, now));
        }
    }

    /// Waits until the stream of changes is open, for at most `timeout`; returns whether it is. From then on,
    /// this client receives all changes, and it invalidates everything that the kernel had before.
    pub fn wait_stream(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while !self.is_stream_open.load(Ordering::Acquire) {
            if Instant::now() >= until {
                return false;
            }
            host::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Sets the kernel whose caches are to be invalidated. Only the first call counts.
    pub(crate) fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        let _ = self.kernel.set(kernel);
    }

    /// Invalidates an inode's attributes in the kernel, before the request about the inode is answered.
    pub(crate) fn invalidate_attributes(&self, ino: Ino) {
        self.invalidate_inode(ino, false);
    }

    /// Invalidates an inode's attributes and pages in the kernel, and then calls `then`, on another thread.
    pub(crate) fn invalidate_content_then(&self, ino: Ino, then: Box<dyn FnOnce() + Send>) {
        self.cache.note_invalidated(ino, Instant::now());
        match self.kernel.get() {
            Some(kernel) => kernel.invalidate_content_then(ino, then),
            None => then(),
        }
    }

    /// Drops the kernel's pages of a range, asynchronously.
    pub(crate) fn invalidate_range(&self, ino: Ino, offset: u64, len: u64) {
        self.notify(|kernel| kernel.invalidate_range(ino, offset, len));
    }

    /// As [`Self::invalidate_attributes`], but does nothing if the attributes were invalidated a short time
    /// ago: the kernel has then read them again, or will.
    pub(crate) fn invalidate_unless_recent(&self, ino: Ino) {
        if !self.cache.was_invalidated(ino, Instant::now()) {
            self.invalidate_attributes(ino);
        }
    }

    /// Sets the kernel whose caches are to be invalidated. Unless this mount is exclusive, starts the threads
    /// that receive changes by other clients. They end with the session.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn start_watching(self: &Arc<Self>, kernel: Arc<dyn Kernel>) -> io::Result<Vec<JoinHandle<()>>> {
        self.set_kernel(kernel);
        if self.meta.is_exclusive() {
            return Ok(Vec::new());
        }
        let (watching, checking) = (Arc::clone(self), Arc::clone(self));
        let watch = host::spawn("limen-watch", move || watching.watch())?;
        let check = host::spawn("limen-lease", move || checking.check_lease())?;
        Ok(vec![watch, check])
    }

    /// After this mount takes a directory, the attributes that the kernel has of it count as current, because
    /// the take has changed nothing that access depends on.
    pub(crate) fn follow_takes(self: &Arc<Self>) {
        // The caches own the client, so the client must not own the caches.
        let caches = Arc::downgrade(self);
        self.meta.set_note_taken(Arc::new(move |dir, rev| {
            if let Some(caches) = caches.upgrade() {
                caches.cache.move_revision(dir, rev);
            }
        }));
    }

    /// The revisions that the kernel has now, or had at the arrival that [`Caches::handle_since`] was called
    /// with. Must be called before the request waits for anything.
    pub(crate) fn held_by_kernel(&self) -> RevisionsAsOf<'_> {
        self.cache.held_since(ARRIVAL.get())
    }

    /// The moment at which a request has arrived, for [`Caches::handle_since`].
    pub fn arrival(&self) -> Arrival {
        self.cache.arrival()
    }

    /// Handles a request that has waited since `arrival`. Revisions that the kernel got since then do not
    /// count, because the kernel had checked permissions before.
    pub fn handle_since<T>(arrival: Arrival, handle: impl FnOnce() -> T) -> T {
        let before = ARRIVAL.replace(Some(arrival));
        let done = handle();
        ARRIVAL.set(before);
        done
    }

    /// Whether the kernel sends FORGET for each inode that it was given.
    pub(crate) fn sends_forget(&self) -> bool {
        self.kernel.get().is_none_or(|kernel| kernel.sends_forget())
    }

    /// Records that the reply to GETATTR gives the kernel these attributes.
    pub(crate) fn note_sent(&self, attr: &Attr) {
        if !self.meta.is_exclusive() {
            self.cache.record_sent(attr.ino, attr.access_rev, 0, Instant::now());
        }
    }

    /// As [`Self::note_sent`], for the reply to SETATTR, whose attributes the kernel always applies.
    pub(crate) fn note_applied(&self, attr: &Attr) {
        if !self.meta.is_exclusive() {
            self.cache.record_applied(attr.ino, attr.access_rev, Instant::now());
        }
    }

    /// Records that a reply gives the kernel a reference to the inode in addition to its attributes. Called
    /// before the reply is written.
    pub fn looked_up(&self, attr: &Attr) {
        if !self.meta.is_exclusive() {
            self.cache.record_sent(attr.ino, attr.access_rev, 1, Instant::now());
        }
    }

    /// Records that a reply gives the kernel a name in a directory, which exists or does not. Called before
    /// the reply is written. Returns how long the kernel may use the name: `lifetime`, or less if there are
    /// too many names.
    pub fn name_sent(&self, dir: Ino, name: &[u8], lifetime: Duration) -> Duration {
        // A name with a short lifetime is not recorded, because it ends by itself within the lease.
        match self.meta.is_exclusive() || lifetime <= LEASE || self.names.record(dir, name, Instant::now()) {
            true => lifetime,
            false => LEASE,
        }
    }

    /// Records that the kernel renames a file, or exchanges two. It then gives each new name the remaining
    /// lifetime of the old one (`d_move`).
    pub(crate) fn name_moved(&self, from: (Ino, &Name), to: (Ino, &Name), exchange: bool) {
        if self.meta.is_exclusive() {
            return;
        }
        let now = Instant::now();
        self.names.record_always(to.0, to.1.as_bytes(), now);
        match exchange {
            true => self.names.record_always(from.0, from.1.as_bytes(), now),
            false => self.names.remove(from.0, from.1.as_bytes()),
        }
    }

    /// The kernel gives back references to an inode. Returns false if the kernel certainly still holds the
    /// inode.
    pub(crate) fn forget_lookups(&self, ino: Ino, lookups: u64) -> bool {
        self.meta.is_exclusive() || self.cache.forget_lookups(ino, lookups)
    }

    /// Counts a request whose reply the kernel may cache. Must be called before the request reads any record.
    pub fn begin_reply(&self) -> ReplyGuard<'_> {
        ReplyGuard::new((!self.meta.is_exclusive()).then_some(&self.in_flight), || self.lifetimes())
    }

    fn check_lease(&self) {
        let mut was_current = false;
        while !self.stop.is_set() {
            let is_current = self.meta.is_current();
            if was_current && !is_current {
                tracing::warn!("no answer from the stream of changes: all caches are invalidated");
                self.invalidate_all();
            }
            was_current = is_current;
            self.names.drop_old(Instant::now());
            self.repeats.wait(CHECK_EVERY);
            self.repeat();
        }
    }

    fn watch(&self) {
        while !self.stop.is_set() {
            match self.meta.engine().watch() {
                // The engine has no stream. The kernel then caches nothing for longer than the lifetime of
                // cached records.
                Ok(None) => return self.is_stream_open.store(true, Ordering::Release),
                Ok(Some(changes)) => self.follow(changes),
                Err(error) => {
                    self.stream.failures.add(1);
                    tracing::warn!(%error, "cannot open the stream of other clients' changes; retrying");
                }
            }
            host::sleep(RECONNECT_AFTER);
        }
    }

    /// Applies the changes of the stream until it fails.
    fn follow(&self, mut changes: Box<dyn Changes>) {
        self.is_stream_open.store(true, Ordering::Release);
        self.invalidate_all();
        tracing::info!("receiving other clients' changes");
        while !self.stop.is_set() {
            let polled = BootInstant::now();
            let received = match changes.next(POLL_FOR) {
                Ok(received) => received,
                Err(error) => {
                    self.stream.failures.add(1);
                    tracing::warn!(%error, "the stream of changes failed: all caches are invalidated");
                    return self.invalidate_all();
                }
            };
            self.stream.answers.add(1);
            self.stream.changes.add(received.len());
            self.apply(&received);
            // `repeat` does this too, on another thread. It is also done here, so that the notifications that
            // are due are sent before the lease is renewed.
            self.notify_settled();
            self.meta.set_current_until(polled + LEASE);
            if !received.is_empty() {
                host::sleep(GATHER_FOR);
            }
        }
    }

    /// Applies changes by other clients. They are applied to this client's cache first, so that the requests
    /// that the kernel sends after the notifications see them.
    fn apply(&self, changes: &[meta::Change]) {
        let mut parts = BTreeSet::new();
        for change in changes.iter().filter(|change| self.meta.cache_may_lack(change)) {
            self.meta.apply_remote(change);
            if change.by != self.meta.session() {
                // A change of locks may be a recall of a directory that this client holds
                // (`client/src/recall.rs`).
                change.invalidations.iter().for_each(|part| {
                    if let Invalidation::Locks(ino) = part {
                        self.meta.recalled(*ino);
                    }
                });
            }
            // The kernel caches no locks, and a caller that waits for a lock polls.
            parts.extend(
                change.invalidations.iter().filter(|part| !matches!(part, Invalidation::Locks(_))).cloned(),
            );
        }
        if parts.is_empty() {
            return;
        }
        let outdated = Outdated::Parts(parts.iter().cloned().collect());
        if self.repeats.add(outdated, &self.in_flight) {
            parts.iter().for_each(|part| self.invalidate(part, true));
        } else {
            tracing::warn!("too many changes of other clients at once: all caches are invalidated");
            self.invalidate_all();
        }
    }

    /// Invalidates a directory and a name in it in the kernel's caches, after this client has added the name
    /// without a request of the kernel.
    pub(crate) fn entry_added(&self, parent: Ino, name: &Name) {
        let parts = [Invalidation::Data(parent), Invalidation::Dirent(parent, name.clone())];
        if !self.meta.is_exclusive() && !self.repeats.add(Outdated::Parts(parts.to_vec()), &self.in_flight) {
            return self.invalidate_all();
        }
        // This mount made the change, so its own cache is current. Only the kernel's caches must be
        // invalidated.
        self.invalidate_inode(parent, true);
        self.notify(|kernel| kernel.expire_name(parent, name.as_bytes()));
    }

    /// Repeats the invalidations whose effect a reply in flight may have undone.
    fn repeat(&self) {
        for outdated in self.repeats.due(Instant::now(), &self.in_flight) {
            match &*outdated {
                // Cached pages need no repetition: the kernel locks a page while it is being read, and drops
                // it after that.
                Outdated::Parts(parts) => parts.iter().for_each(|part| self.invalidate(part, false)),
                Outdated::Everything => self.invalidate_kernel(false),
            }
        }
        self.notify_settled();
    }

    /// Sends the notifications that waited because a lock was granted.
    fn notify_settled(&self) {
        self.grants.notify_settled(|ino, part| self.invalidate_inode(ino, part == Part::Content));
    }

    /// Invalidates this client's cache and the kernel's caches.
    pub fn invalidate_all(&self) {
        self.meta.set_outdated();
        // Recalls of held directories by other clients may have been missed too.
        self.meta.give_back_soon();
        self.repeats.add(Outdated::Everything, &self.in_flight);
        self.invalidate_kernel(true);
    }

    /// Invalidates what the kernel knows about access, because the volume's rules for SIDs changed. This
    /// client's own caches stay, because the version of the rules is in the key of all that depends on them.
    pub(crate) fn invalidate_access(&self) {
        self.repeats.add(Outdated::Everything, &self.in_flight);
        self.invalidate_kernel(false);
    }

    fn invalidate_kernel(&self, content: bool) {
        self.notify(|kernel| kernel.expire_all());
        self.cache.all().into_iter().for_each(|ino| self.invalidate_or_postpone(ino, content));
    }

    /// How long the kernel may cache the reply to a request that begins now.
    pub(crate) fn lifetimes(&self) -> Lifetimes {
        let both = |lifetime| Lifetimes { name: lifetime, attributes: lifetime };
        match self.coherence() {
            // The kernel would check callers by their local uid, not by the uid that they are squashed to. So
            // it must look up each name.
            _ if self.access.is_squashing() => Lifetimes::NONE,
            Coherence::Exclusive => both(EXCLUSIVE_LIFETIME),
            Coherence::Notified if self.kernel.get().is_some_and(|kernel| kernel.can_expire_names()) => {
                both(NOTIFIED_LIFETIME)
            }
            // When the lease expires, the kernel can be told to invalidate each inode, but not each name.
            Coherence::Notified => Lifetimes { name: LEASE, attributes: NOTIFIED_LIFETIME },
            Coherence::Polling => both(self.meta.lifetime()),
        }
    }

    fn invalidate(&self, part: &Invalidation, content: bool) {
        match part {
            Invalidation::Data(ino) => self.invalidate_or_postpone(*ino, content),
            Invalidation::Inode(ino) | Invalidation::Xattrs(ino) => self.invalidate_or_postpone(*ino, false),
            Invalidation::Dirent(parent, name) => {
                self.notify(|kernel| kernel.expire_name(*parent, name.as_bytes()));
            }
            Invalidation::Names(dir, rev) => {
                self.cache.move_revision(*dir, *rev);
                self.notify(|kernel| kernel.expire_directory(*dir));
            }
            Invalidation::Locks(_) => {}
        }
    }

    /// As [`Self::invalidate_inode`], but postpones the notification if a lock on the file was granted a
    /// short time ago: see [`crate::recent_grants`].
    fn invalidate_or_postpone(&self, ino: Ino, content: bool) {
        let part = if content { Part::Content } else { Part::Attributes };
        self.grants.notify(ino, part, || self.invalidate_inode(ino, content));
    }

    pub(crate) fn invalidate_inode(&self, ino: Ino, content: bool) {
        self.cache.note_invalidated(ino, Instant::now());
        self.notify(|kernel| match content {
            true => kernel.invalidate_content(ino),
            false => kernel.invalidate_attributes(ino),
        });
    }

    fn notify(&self, send: impl FnOnce(&dyn Kernel)) {
        if let Some(kernel) = self.kernel.get() {
            send(&**kernel);
        }
    }
}

#[cfg(test)]
mod tests;
