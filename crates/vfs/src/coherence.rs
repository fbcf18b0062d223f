//! What other clients change: how this client hears of it, and the kernel after it.
//!
//! Where the engine tells of changes, memory serves for as long as nothing else was heard: a lease of a moment, renewed
//! by each answer of the stream, that runs out by itself when the answers stay away. Then all that was remembered is
//! forgotten, here and in the kernel, and lifetimes are short until the stream is back.
//!
//! The kernel also checks permissions by what it was told. What it knows of directories is kept here ([`Known`]), so that
//! a change it decided on outdated grounds is refused (ESTALE) and it looks again.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meta::{Changes, Node, Told, Touched, Vouch};
use types::{Errno, Ino, Name};

use crate::caller::Caller;
use crate::vfs::Vfs;

/// What remembers beside this client. No method waits.
pub trait Kernel: Send + Sync + fmt::Debug {
    /// Attributes and ACLs of the inode are outdated, and forgotten when this returns. May be called by who holds a request
    /// for the inode.
    fn forget_attributes(&self, ino: Ino);
    /// Attributes and ACLs of the inode are outdated, and with `content` its bytes.
    fn forget_inode(&self, ino: Ino, content: bool);
    /// The name is to be looked up again before it is used.
    fn expire_name(&self, parent: Ino, name: &[u8]);
    /// As [`Kernel::expire_name`] for all there are.
    fn expire_all(&self);
}

/// How long memory serves after the beginning of a question that was answered.
const LEASE: Duration = Duration::from_millis(600);
/// How long the stream may take to say that there is nothing new.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How often it is looked whether the lease has run out.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How long until a stream that broke is begun anew.
const PAUSE: Duration = Duration::from_millis(500);
/// A name that was looked up just before it changed may reach the kernel after the word of the change: it is said twice.
const SAY_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Names that wait to be said again; beyond these all are expired.
const MAX_AGAIN: usize = 10_000;

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
    pub(crate) known: Known,
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
        if let Some(kernel) = self.neighbour.kernel.get() {
            kernel.forget_attributes(ino);
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
        let watch =
            thread::Builder::new().name("limen-watch".into()).spawn(move || watching.watch(&*told))?;
        let check = thread::Builder::new().name("limen-lease".into()).spawn(move || {
            let mut was = false;
            while !checking.stopping.load(Ordering::Acquire) {
                let is = checking.meta.is_current();
                if was && !is {
                    tracing::warn!("nothing is heard of other clients: all is asked for again");
                    checking.forget_all(&*kernel);
                }
                was = is;
                thread::sleep(CHECK_EVERY);
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
            thread::sleep(PAUSE);
        }
    }

    /// Passes on what the stream tells, until it breaks.
    fn follow(&self, mut changes: Box<dyn Changes>, kernel: &dyn Kernel) {
        self.forget_all(kernel);
        tracing::info!("hearing of other clients' changes");
        let mut again: VecDeque<(Instant, Ino, Name)> = VecDeque::new();
        while !self.is_stopping() {
            let asked = Instant::now();
            let news = match changes.next(ASK_EVERY) {
                Ok(news) => news,
                Err(error) => {
                    tracing::warn!(%error, "changes of other clients may have been missed");
                    return self.forget_all(kernel);
                }
            };
            for change in news.iter().filter(|change| self.meta.is_news(change)) {
                self.meta.heard(change);
                for touched in &change.touched {
                    pass_on(kernel, touched);
                    if let Touched::Edge(parent, name) = touched {
                        again.push_back((asked + SAY_AGAIN_AFTER, *parent, name.clone()));
                    }
                }
            }
            self.meta.set_current_until(asked + LEASE);
            if again.len() > MAX_AGAIN {
                again.clear();
                kernel.expire_all();
            }
            while again.front().is_some_and(|(due, ..)| *due <= Instant::now())
                && let Some((_, parent, name)) = again.pop_front()
            {
                kernel.expire_name(parent, name.as_bytes());
            }
        }
    }

    /// Nothing that is remembered serves any more.
    fn forget_all(&self, kernel: &dyn Kernel) {
        self.meta.set_outdated();
        kernel.expire_all();
        for ino in self.neighbour.known.all() {
            kernel.forget_inode(ino, true);
        }
    }

    /// Notes what the kernel is about to be told of an inode.
    pub(crate) fn tell(&self, node: &Node) {
        if !self.is_alone() {
            self.neighbour.known.insert(node.ino, node.access_rev);
        }
    }

    /// The kernel has checked the caller by what it knows of these directories. Where the operation checks him as well, it
    /// is no matter how old that is.
    fn by_kernel<'a>(&self, caller: &'a Caller<'_>, from: Ino, to: Ino) -> Vouch<'a> {
        if self.is_alone() || self.has_nfs4_acls() || self.is_squashing() {
            return self.vouch(caller);
        }
        // A directory that it was told nothing of has no revision 0 either: it looks again.
        let rev = |ino| (ino, self.neighbour.known.get(ino).unwrap_or(0));
        Vouch::Kernel { told: Some(Told::two(rev(from), rev(to))) }
    }

    /// Runs an operation on names in these directories that may change the volume, for somebody. If the kernel decided by what no longer
    /// holds, it is made to forget it before it hears so: it might else repeat the request on the same grounds.
    pub(crate) fn change_names<O: meta::Op>(
        &self,
        caller: &Caller<'_>,
        op: &O,
        from: Ino,
        to: Ino,
    ) -> Result<O::Reply, Errno> {
        let reply = self.meta.run(op, &self.by_kernel(caller, from, to)).map_err(Errno::from);
        self.note_change();
        if let Err(Errno::ESTALE) = &reply {
            self.make_kernel_look_again(&[from, to]);
        }
        reply
    }

    /// Refuses what the kernel has let through by what no longer holds of an inode: a request that waited for the database
    /// may come to it long after it was checked. On volumes of NFSv4 ACLs the daemon has checked it since.
    ///
    /// # Errors
    /// ESTALE: the kernel looks again, and decides anew.
    pub(crate) fn admit_by_kernel(&self, node: &Node) -> Result<(), Errno> {
        let is_current = || self.neighbour.known.get(node.ino) == Some(node.access_rev);
        if self.is_alone() || self.has_nfs4_acls() || is_current() {
            return Ok(());
        }
        self.make_kernel_look_again(&[node.ino]);
        Err(Errno::ESTALE)
    }

    fn make_kernel_look_again(&self, inos: &[Ino]) {
        if let Some(kernel) = self.neighbour.kernel.get() {
            inos.iter().for_each(|&ino| kernel.forget_inode(ino, false));
            // It hears of it from another thread.
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn pass_on(kernel: &dyn Kernel, touched: &Touched) {
    match touched {
        Touched::Node(ino) | Touched::Xattrs(ino) => kernel.forget_inode(*ino, false),
        Touched::Data(ino) => kernel.forget_inode(*ino, true),
        Touched::Edge(parent, name) => kernel.expire_name(*parent, name.as_bytes()),
        // Who waits for a lock asks again anyway.
        Touched::Locks(_) => {}
    }
}

const SHARDS: usize = 64;

/// The inodes that the kernel holds, each with the newest access revision that it was told of.
#[derive(Debug)]
pub(crate) struct Known([Mutex<HashMap<Ino, u64>>; SHARDS]);

impl Default for Known {
    fn default() -> Self {
        Known(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Known {
    fn insert(&self, ino: Ino, rev: u64) {
        self.shard(ino).entry(ino).and_modify(|known| *known = rev.max(*known)).or_insert(rev);
    }

    fn get(&self, ino: Ino) -> Option<u64> {
        self.shard(ino).get(&ino).copied()
    }

    /// The kernel holds it no more.
    pub(crate) fn remove(&self, ino: Ino) {
        self.shard(ino).remove(&ino);
    }

    fn all(&self) -> Vec<Ino> {
        let shards = self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.flat_map(|shard| shard.keys().copied().collect::<Vec<_>>()).collect()
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<Ino, u64>> {
        self.0[ino.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
