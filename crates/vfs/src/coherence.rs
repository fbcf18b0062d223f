//! What other clients change: how this client hears of it, and the kernel after it.
//!
//! Where the engine tells of changes, memory serves for as long as nothing else was heard: a lease of a moment, renewed
//! by each answer of the stream, that runs out by itself when the answers stay away. Then all that was remembered is
//! forgotten, here and in the kernel, and lifetimes are short until the stream is back.
//!
//! A reply that is under way when a change is heard may reach the kernel after the notification: see [`crate::in_flight`]. The
//! kernel also checks permissions by what it was given: see [`crate::kernel_cache`] for how that is noticed, and here for what
//! becomes of the request.

use host::Instant;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use meta::{Changes, Failure, Node, Touched, Vouch};
use types::{BootInstant, Errno, Ino};

use crate::attr::Lifetimes;
use crate::caller::Caller;
use crate::gate::Perm;
use crate::in_flight::{InFlight, Outdated, Repeats};
use crate::kernel_cache::{Held, KernelCache};
use crate::vfs::Vfs;

/// What remembers beside this client. No method waits for a request.
pub trait Kernel: Send + Sync + fmt::Debug {
    /// Attributes and ACLs of the inode are outdated, and forgotten when this returns. May be called by a thread that holds a
    /// request for the inode.
    fn forget_attributes(&self, ino: Ino);
    /// As [`Kernel::forget_attributes`], and the bytes too, soon.
    fn forget_content(&self, ino: Ino);
    /// The name is to be looked up again before it is used, soon.
    fn expire_name(&self, parent: Ino, name: &[u8]);
    /// As [`Kernel::expire_name`] for all there are. Does nothing unless [`Kernel::can_expire_all`].
    fn expire_all(&self);
    /// Whether all names can be expired at once. If not, no name is given a lifetime beyond the lease.
    fn can_expire_all(&self) -> bool;
}

/// How long memory serves after the beginning of a question that was answered.
pub(crate) const LEASE: Duration = Duration::from_millis(600);
/// How long the stream may take to say that there is nothing new.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How often it is looked whether the lease has run out.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How long until a stream that broke is begun anew.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the kernel may go by what it was given, where nobody else can change it.
const ALONE: Duration = Duration::from_secs(86_400);
/// And where others can, but it is told: should this process stand still, it serves no longer than that.
pub(crate) const TOLD: Duration = Duration::from_secs(60);

/// How this client keeps up with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coherence {
    /// There are no others.
    Alone,
    /// It is told of what they do.
    Told,
    /// It asks again when what it knows is older than the lifetime.
    Asks,
}

impl Coherence {
    /// A word for people and for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Coherence::Alone => "alone",
            Coherence::Told => "told",
            Coherence::Asks => "asks",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Coherence::Alone, Coherence::Told, Coherence::Asks].into_iter().find(|kind| kind.name() == name)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Neighbour {
    pub(crate) cache: KernelCache,
    pub(crate) in_flight: InFlight,
    repeats: Repeats,
    kernel: OnceLock<Arc<dyn Kernel>>,
}

impl Vfs {
    pub fn coherence(&self) -> Coherence {
        match (self.is_alone(), self.meta.is_current()) {
            (true, _) => Coherence::Alone,
            (false, true) => Coherence::Told,
            (false, false) => Coherence::Asks,
        }
    }

    /// Names what remembers beside this client. Said once; [`Vfs::start_watching`] says it too.
    pub fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        let _ = self.neighbour.kernel.set(kernel);
    }

    /// Has the kernel forget an inode's attributes before its request about it is answered.
    pub(crate) fn forget_attributes(&self, ino: Ino) {
        self.neighbour.cache.note_forgotten(ino, Instant::now());
        if let Some(kernel) = self.neighbour.kernel.get() {
            kernel.forget_attributes(ino);
        }
    }

    /// As [`Vfs::forget_attributes`], unless it was done a short time ago: then the kernel has asked again, or will.
    fn forget_if_kept(&self, ino: Ino) {
        if !self.neighbour.cache.is_forgotten(ino, Instant::now()) {
            self.forget_attributes(ino);
        }
    }

    /// Starts the threads that hear of others' changes, where there are others and the engine tells. They end with
    /// [`Vfs::end`].
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start_watching(self: &Arc<Self>, kernel: Arc<dyn Kernel>) -> io::Result<Vec<JoinHandle<()>>> {
        if self.is_alone() {
            return Ok(Vec::new());
        }
        let kernel = Arc::clone(self.neighbour.kernel.get_or_init(|| kernel));
        let (watching, checking) = (Arc::clone(self), Arc::clone(self));
        let told = Arc::clone(&kernel);
        let watch = host::spawn("limen-watch", move || watching.watch(&*told))?;
        let check = host::spawn("limen-lease", move || {
            let mut was = false;
            while !checking.stopping.load(Ordering::Acquire) {
                let is = checking.meta.is_current();
                if was && !is {
                    tracing::warn!("nothing is heard of other clients: all is asked for again");
                    checking.forget_all(&*kernel);
                }
                was = is;
                checking.neighbour.repeats.wait(CHECK_EVERY);
                checking.repeat(&*kernel);
            }
        })?;
        Ok(vec![watch, check])
    }

    fn watch(&self, kernel: &dyn Kernel) {
        while !self.is_stopping() {
            match self.meta.engine().watch() {
                Ok(None) => return,
                Ok(Some(changes)) => self.follow(changes, kernel),
                Err(error) => tracing::warn!(%error, "cannot hear of other clients' changes; trying again"),
            }
            host::sleep(PAUSE);
        }
    }

    /// Passes on what the stream tells, until it breaks.
    fn follow(&self, mut changes: Box<dyn Changes>, kernel: &dyn Kernel) {
        self.forget_all(kernel);
        tracing::info!("hearing of other clients' changes");
        while !self.is_stopping() {
            let asked = BootInstant::now();
            let news = match changes.next(ASK_EVERY) {
                Ok(news) => news,
                Err(error) => {
                    tracing::warn!(%error, "changes of other clients may have been missed");
                    return self.forget_all(kernel);
                }
            };
            self.apply(&news, kernel);
            self.meta.set_current_until(asked + LEASE);
        }
    }

    /// Takes others' changes in, here first: what is read from now on shows them.
    fn apply(&self, news: &[meta::Change], kernel: &dyn Kernel) {
        let mut parts = BTreeSet::new();
        for change in news.iter().filter(|change| self.meta.is_news(change)) {
            self.meta.heard(change);
            // A caller that waits for a lock asks again anyway.
            parts.extend(change.touched.iter().filter(|part| !matches!(part, Touched::Locks(_))).cloned());
        }
        if parts.is_empty() {
            return;
        }
        let outdated = Outdated::Parts(parts.iter().cloned().collect());
        if self.neighbour.repeats.add(outdated, &self.neighbour.in_flight) {
            parts.iter().for_each(|part| self.pass_on(kernel, part, true));
        } else {
            tracing::warn!("too many changes of other clients at once: all is asked for again");
            self.forget_all(kernel);
        }
    }

    /// Has the kernel forget again what replies may have brought back.
    fn repeat(&self, kernel: &dyn Kernel) {
        for outdated in self.neighbour.repeats.due(Instant::now(), &self.neighbour.in_flight) {
            match &*outdated {
                // Pages need no repetition: the kernel locks those that are being read, and drops them after that.
                Outdated::Parts(parts) => parts.iter().for_each(|part| self.pass_on(kernel, part, false)),
                Outdated::Everything => self.forget_in_kernel(kernel, false),
            }
        }
    }

    /// Nothing that is remembered serves any more, here and in the kernel.
    pub(crate) fn forget_everything(&self) {
        match self.neighbour.kernel.get() {
            Some(kernel) => self.forget_all(&**kernel),
            None => self.meta.set_outdated(),
        }
    }

    /// Nothing that is remembered serves any more.
    fn forget_all(&self, kernel: &dyn Kernel) {
        self.meta.set_outdated();
        self.neighbour.repeats.add(Outdated::Everything, &self.neighbour.in_flight);
        self.forget_in_kernel(kernel, true);
    }

    fn forget_in_kernel(&self, kernel: &dyn Kernel, content: bool) {
        kernel.expire_all();
        self.neighbour.cache.all().into_iter().for_each(|ino| self.forget_inode(kernel, ino, content));
    }

    /// How long the kernel may go by what it is given in a reply to a request that begins now.
    pub(crate) fn lifetimes(&self) -> Lifetimes {
        let both = |lifetime| Lifetimes { name: lifetime, attributes: lifetime };
        match self.coherence() {
            // What the kernel holds it lets pass whomever it takes for somebody else: it has to ask for each name.
            _ if self.is_squashing() => Lifetimes::NONE,
            Coherence::Alone => both(ALONE),
            Coherence::Told if self.can_expire_all() => both(TOLD),
            // When the lease is lost, the kernel can be told of each inode, but not of each name.
            Coherence::Told => Lifetimes { name: LEASE, attributes: TOLD },
            Coherence::Asks => both(self.meta.lifetime()),
        }
    }

    fn can_expire_all(&self) -> bool {
        self.neighbour.kernel.get().is_some_and(|kernel| kernel.can_expire_all())
    }

    /// Runs an operation that may change the volume, for somebody, on these inodes or on names in them.
    ///
    /// If the kernel decided by what no longer holds, this client checks the caller by itself. To answer ESTALE, so that the
    /// kernel looks again, would be wrong for calls by a descriptor, which do not, and where the kernel is outrun once more.
    ///
    /// # Errors
    /// Those of the operation; ESTALE if the caller has to be checked and its credential is not known.
    pub(crate) fn change_inodes<O: meta::Op, const N: usize>(
        &self,
        caller: &Caller<'_>,
        held: Held<'_>,
        op: &O,
        inos: [Ino; N],
    ) -> Result<O::Reply, Errno> {
        if !self.rests_on_kernel() {
            return self.change_for(caller, op);
        }
        let reply = self.meta.run(op, &Vouch::Kernel { told: Some(&held) });
        self.note_change();
        match reply {
            Err(Failure::Refused(Errno::ESTALE)) => {
                if caller.identity().is_err() {
                    // It would else repeat the request on the same grounds.
                    inos.iter().for_each(|&ino| self.forget_attributes(ino));
                    return Err(Errno::ESTALE);
                }
                inos.iter().for_each(|&ino| self.forget_if_kept(ino));
                let reply = self.meta.run(op, &Vouch::Both(caller));
                self.note_change();
                Ok(reply?)
            }
            reply => Ok(reply?),
        }
    }

    /// Whether callers are checked by the kernel alone, while others change what it knows.
    fn rests_on_kernel(&self) -> bool {
        !self.is_alone() && self.kernel_vouches()
    }

    /// Refuses what the kernel has let through by what no longer holds of an inode: a request that waited for the database
    /// may come to it long after it was checked. On volumes of NFSv4 ACLs the daemon has checked it since.
    ///
    /// # Errors
    /// EACCES; ESTALE if the credential of the caller is not known: the kernel looks again, and decides anew.
    pub(crate) fn admit_by_kernel(&self, caller: &Caller<'_>, node: &Node, want: Perm) -> Result<(), Errno> {
        let is_current = || self.neighbour.cache.revision(node.ino) == Some(node.access_rev);
        if !self.rests_on_kernel() || is_current() {
            return Ok(());
        }
        if caller.identity().is_err() {
            self.forget_attributes(node.ino);
            return Err(Errno::ESTALE);
        }
        self.forget_if_kept(node.ino);
        if self.permits(caller, node, want)? { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn pass_on(&self, kernel: &dyn Kernel, part: &Touched, content: bool) {
        match part {
            Touched::Data(ino) => self.forget_inode(kernel, *ino, content),
            Touched::Node(ino) | Touched::Xattrs(ino) => self.forget_inode(kernel, *ino, false),
            Touched::Edge(parent, name) => kernel.expire_name(*parent, name.as_bytes()),
            Touched::Locks(_) => {}
        }
    }

    fn forget_inode(&self, kernel: &dyn Kernel, ino: Ino, content: bool) {
        self.neighbour.cache.note_forgotten(ino, Instant::now());
        if content {
            kernel.forget_content(ino);
        } else {
            kernel.forget_attributes(ino);
        }
    }
}

#[cfg(test)]
mod tests;
