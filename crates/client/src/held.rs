//! Directories that this client holds: changes below them are answered at once and committed afterwards.
//!
//! A directory that this client creates is held by its session from the start: its record names the session
//! ([`Inode::holder`](meta::Inode::holder)). If another client reads this record for an operation, it recalls
//! the directory before it continues (`recall.rs`). So until this client gives the directory back, nobody
//! else reads or changes its content. Inodes that are created in a held directory are held too. A directory
//! that exists can be taken (`taking.rs`). It is then held in the same way, but the inodes that had names in
//! it before are not.
//!
//! While a directory is held, its current state is in memory: `records` has the inodes, entries and rows of
//! everything that was created in held directories, and the names in those that were taken. A transaction
//! that concerns only these is applied to `records`, queued, and answered. The queue is committed in order,
//! several transactions in a request. Nobody else changes held records, so the guards of a queued transaction
//! are still true when it is committed. Only the guard of its term can fail: it fails if the session was
//! removed. The transactions that give directories back are an exception: their guards may fail
//! ([`Queued::is_optional`]).
//!
//! All other transactions are not queued but sent to the engine. If such a transaction changes files at all,
//! the queue is committed first, so the order of all changes is kept. If it also concerns something that is
//! held, for example because it moves a file out of a held directory, no other transaction changes `records`
//! meanwhile, and its effects are applied to `records` after its commit.
//!
//! To give everything back, the queue is committed, `records` is dropped, and then the directories' records
//! are changed so that they no longer name the session. If the session is lost, the queue is lost too.
//!
//! Before a transaction is answered, it is also written to the journal of the session (the crate `journal`).
//! If this process is killed, the next mount on this machine commits the transactions in the journal
//! (`replay.rs`).
//!
//! The transactions of a request are merged (`merge.rs`). A request that failed is sent again unchanged,
//! because it may have been committed under its ids.
//!
//! On an embedded engine, the client that has the volume exclusively holds directories. Nobody recalls them:
//! others use the records that are committed. The engine forgets the results of transactions when its process
//! ends, so each transaction of the queue also leaves a mark in the database ([`Sent::mark`]).
//!
//! Lock order: `sending`, then `state`. No lock but `sending` is held during a request, except by a replay,
//! whose client no other thread has.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use host::{HashMap, HashSet, Instant};
use journal::{Journal, Journals};
use meta::{AclKind, Effect, Engine, ErrorKind, Guard, MemEngine, Part, Record, RecordKey, Snapshot, Txn};
use ops::{Key, KnownRecords, Value, known};
use types::{AclId, Errno, FileType, Ino, SessionId, SliceId, SliceSource, Term};

use crate::cache::Cache;
use crate::candidates::{Candidates, Taking};
use crate::failure::Failure;
use crate::group::{Merged, Queued, Sent, counts};
use crate::ticket::Ticket;

/// If this many transactions are queued, callers with further changes wait. Transactions that give
/// directories back are queued without a limit.
pub(crate) const MAX_QUEUED: usize = 1000;
/// How many texts of ACLs are kept.
pub(crate) const MAX_ACL_TEXTS: usize = 64;
/// If more inodes are held, all are given back.
pub(crate) const MAX_INODES: usize = 100_000;
/// How long no new directory is held after another client has recalled one. If the next recall follows within
/// four times this time, the time doubles, up to [`MAX_SUSPENSION`].
pub(crate) const MIN_SUSPENSION: Duration = Duration::from_secs(1);
pub(crate) const MAX_SUSPENSION: Duration = Duration::from_secs(600);
/// How long the thread that commits the queue waits for more transactions if fewer than
/// [`MAX_GROUP`](crate::group::MAX_GROUP) are queued, and how often it looks meanwhile. On an embedded
/// engine, it waits only for [`GATHER_STEP`]. A request with many transactions costs little more than one
/// with few. Callers that need the commit do not wait for this: fsync, a recall and a full queue send at
/// once.
pub(crate) const GATHER_FOR: Duration = Duration::from_millis(30);
pub(crate) const GATHER_STEP: Duration = Duration::from_millis(3);
/// How long no new directory is held after the disk of an embedded database was found to be nearly full.
pub(crate) const LOOK_FOR_ROOM_AFTER: Duration = Duration::from_secs(1);
/// How long the thread that commits the queue waits after its retries have failed for the whole retry
/// timeout.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How often a waiting thread checks the state again, even if it is not notified.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Makes the blocks of slices durable, before a row that names them is committed.
pub type MakeDurable = Arc<dyn Fn(&[SliceId]) -> Result<(), Errno> + Send + Sync>;

/// Whether the disk of an embedded database has room for everything that can be queued.
pub type HasRoom = Arc<dyn Fn() -> bool + Send + Sync>;

/// Called with a directory that this client has taken and the access revision that it has since then.
pub type NoteTaken = Arc<dyn Fn(Ino, u64) + Send + Sync>;

/// The directories that this client holds, and the queue of changes below them.
pub(crate) struct Held {
    /// Set if new directories are to be held.
    pub(crate) make_durable: OnceLock<MakeDurable>,
    /// Stores the journals of this client's sessions. Without a journal, nothing is held.
    pub(crate) journals: OnceLock<Arc<dyn Journals>>,
    pub(crate) has_journal: AtomicBool,
    /// While it returns false, nothing is held. Set only if the database is embedded.
    pub(crate) has_room: OnceLock<HasRoom>,
    /// Whether anything is held or queued, or a directory that will be held is being created or taken.
    pub(crate) is_busy: AtomicBool,
    /// Until this time, in nanoseconds since the client was opened, a new directory is held only if this
    /// client still holds others.
    pub(crate) not_before: AtomicU64,
    /// Until this time, in nanoseconds since the client was opened, no directory that exists is taken.
    pub(crate) no_take_before: AtomicU64,
    pub(crate) note_taken: OnceLock<NoteTaken>,
    pub(crate) candidates: Candidates,
    pub(crate) directories: AtomicUsize,
    /// How often `records` was dropped.
    pub(crate) drops: AtomicU64,
    /// Whether this client is removing its own session.
    pub(crate) is_ending: AtomicBool,
    /// How often a part of the queue was sent without success.
    pub(crate) failures: AtomicU64,
    /// Whether changes that were answered were lost with a session, and no fsync has reported that yet.
    pub(crate) has_lost: AtomicBool,
    /// Texts of ACLs that queued transactions store, because new files often have the same ACL.
    pub(crate) acl_texts: Mutex<HashMap<AclId, Arc<str>>>,
    pub(crate) state: Mutex<State>,
    /// Notified when anything in `state` changes that a thread waits for.
    pub(crate) changed: Condvar,
    /// The request that was sent and is not known to be committed. A thread keeps the lock while it sends a
    /// part of the queue.
    pub(crate) sending: Mutex<Option<Sent>>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) records: MemEngine,
    pub(crate) directories: HashSet<Ino>,
    /// The held inodes: those in `records`, and those that were deleted from it.
    pub(crate) inodes: HashSet<Ino>,
    /// Directories whose creation the engine is processing, and that will be held.
    pub(crate) being_created: HashSet<Ino>,
    /// Directories whose records may name this session although they are not held.
    pub(crate) stale_holds: HashSet<Ino>,
    /// Directories that exist and are to be taken, and the one that is being taken (`taking.rs`).
    pub(crate) wanted: VecDeque<Ino>,
    pub(crate) taking: Option<Taking>,
    /// The held directories that were taken, and the number of names that were read when they were taken.
    pub(crate) taken: HashSet<Ino>,
    pub(crate) taken_names: usize,
    /// The last recall of a directory that was taken, and how long no directory was taken after it.
    pub(crate) last_take_pause: Option<(Instant, Duration)>,
    pub(crate) queue: VecDeque<Queued>,
    /// The journal, from which the queued transactions are committed if this process is killed.
    pub(crate) journal: Option<Journal>,
    /// How many transactions were ever queued, and how many of them are committed or lost.
    pub(crate) queued: u64,
    pub(crate) committed: u64,
    /// The mark of the transaction that was marked last ([`Sent::mark`]).
    pub(crate) last_mark: Option<Term>,
    /// How often the queue was lost with a session.
    pub(crate) losses: u64,
    /// Whether everything is being given back. Meanwhile no change is answered before it is committed, and
    /// changes of held records wait.
    pub(crate) is_closing: bool,
    /// Whether the engine is processing a transaction that concerns held records.
    pub(crate) is_held_txn_in_flight: bool,
    pub(crate) must_give_back: bool,
    pub(crate) last_suspension: Option<(Instant, Duration)>,
}

/// A transaction that the engine is processing. If it concerns held records, nothing else changes them
/// meanwhile.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    pub(crate) held: &'a Held,
    /// Whether it concerns held records.
    pub(crate) concerns_held: bool,
    /// The directories that it creates and that will be held. No other transaction uses them before that.
    pub(crate) being_created: Vec<Ino>,
}

/// The part of a read that is answered from held records.
#[derive(Debug)]
pub(crate) enum HeldRead {
    /// None of the records is held.
    Nothing,
    /// All are held: their values at one moment.
    All(Snapshot),
    /// As `All`, but some of the records are dirents of these inodes, which are not held.
    Linked(Snapshot, Vec<RecordKey>),
    /// Some are held; or all are, but this client may not answer from memory. All queued changes have been
    /// committed, so the engine has the current records.
    Some,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("directories", &self.directories).finish_non_exhaustive()
    }
}

impl Default for Held {
    fn default() -> Self {
        Held {
            make_durable: OnceLock::new(),
            journals: OnceLock::new(),
            has_journal: AtomicBool::new(false),
            has_room: OnceLock::new(),
            is_busy: AtomicBool::new(false),
            not_before: AtomicU64::new(0),
            no_take_before: AtomicU64::new(0),
            note_taken: OnceLock::new(),
            candidates: Candidates::default(),
            directories: AtomicUsize::new(0),
            drops: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            has_lost: AtomicBool::new(false),
            acl_texts: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            sending: Mutex::default(),
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut state = host::lock(&self.held.state);
        state.is_held_txn_in_flight &= !self.concerns_held;
        self.being_created.iter().for_each(|ino| _ = state.being_created.remove(ino));
        self.held.note(&state);
    }
}

impl Entered<'_> {
    /// Whether the transaction concerns held records. If so, the engine has every change that was answered.
    pub(crate) fn concerns_held(&self) -> bool {
        self.concerns_held
    }
}

impl State {
    /// Whether another client may be waiting for the commit of the queue, because it has recalled a held
    /// directory or one of `stale_holds`. A recall of the latter queues an optional transaction.
    /// `stale_holds` itself is not checked, because it also keeps directories that were never created.
    pub(crate) fn is_awaited(&self) -> bool {
        self.must_give_back || self.queue.iter().any(|queued| queued.is_optional)
    }

    /// Whether the transaction concerns only held records, so that its guards can be checked here.
    pub(crate) fn covers(&self, txn: &Txn, own: SessionId) -> bool {
        txn.guards.iter().all(|guard| self.covers_guard(guard, own))
            && txn.effects.iter().all(|effect| self.covers_effect(effect, &txn.effects, own))
    }

    pub(crate) fn covers_guard(&self, guard: &Guard, own: SessionId) -> bool {
        match guard {
            Guard::DirentIs { parent, .. } | Guard::DirentAbsent { parent, .. } => {
                self.directories.contains(parent)
            }
            Guard::Empty { ino } => self.directories.contains(ino),
            Guard::Access { ino, .. }
            | Guard::Links { ino, .. }
            | Guard::ParentIs { ino, .. }
            | Guard::Xattr { ino, .. }
            | Guard::XattrBlocks { ino, .. }
            | Guard::Size { ino, .. }
            | Guard::Rows { ino, .. } => self.inodes.contains(ino),
            Guard::Term { session, .. } => *session == own,
            // `Meta::with_acls` replaces this guard by an effect.
            Guard::Acl { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn covers_effect(&self, effect: &Effect, all: &[Effect], own: SessionId) -> bool {
        let is_made = |ino: &Ino| {
            all.iter().any(|effect| matches!(effect, Effect::PutInode(inode) if inode.ino == *ino))
        };
        match effect {
            // The inode must get a name in the same transaction. The guards and effects for names check the
            // directory.
            Effect::PutInode(inode) => {
                !self.inodes.contains(&inode.ino)
                    && (!inode.kind.is_dir() || inode.holder() == Some(own))
                    && all
                        .iter()
                        .any(|effect| matches!(effect, Effect::PutDirent { ino, .. } if *ino == inode.ino))
            }
            Effect::PutDirent { parent, ino, .. } => {
                self.directories.contains(parent) && (self.inodes.contains(ino) || is_made(ino))
            }
            Effect::PutOrphan { session, ino } | Effect::DropOrphan { session, ino } => {
                *session == own && self.inodes.contains(ino)
            }
            Effect::PutAcl { .. } | Effect::Share { .. } => true,
            Effect::PutLocks { .. } => false,
            effect => match effect.footprint().part {
                Part::Dirent(parent, _) => self.directories.contains(&parent),
                part => part.inode().is_some_and(|ino| self.inodes.contains(&ino) || is_made(&ino)),
            },
        }
    }

    /// Whether the transaction concerns a directory that another transaction is creating.
    pub(crate) fn concerns_new_directory(&self, txn: &Txn) -> bool {
        let is_being_created =
            |part: Part<'_>| part.inode().is_some_and(|ino| self.being_created.contains(&ino));
        !self.being_created.is_empty()
            && (txn.effects.iter().any(|effect| is_being_created(effect.footprint().part))
                || txn.guards.iter().any(|guard| is_being_created(guard.part())))
    }

    /// Whether the transaction concerns anything that is held.
    pub(crate) fn concerns_held(&self, txn: &Txn) -> bool {
        let is_held = |part: Part<'_>| part.inode().is_some_and(|ino| self.inodes.contains(&ino));
        let by_effect = |effect: &Effect| match effect {
            Effect::PutDirent { ino, .. }
            | Effect::PutOrphan { ino, .. }
            | Effect::DropOrphan { ino, .. } => self.inodes.contains(ino) || is_held(effect.footprint().part),
            effect => is_held(effect.footprint().part),
        };
        txn.guards.iter().any(|guard| self.is_held(&guard.key())) || txn.effects.iter().any(by_effect)
    }

    /// Whether the record belongs to a held inode or directory. Its current value is then in `records`,
    /// unless it is a record of locks: the engine has those.
    pub(crate) fn is_held(&self, key: &RecordKey) -> bool {
        match key {
            RecordKey::Inode(ino)
            | RecordKey::Xattrs(ino)
            | RecordKey::Symlink(ino)
            | RecordKey::Locks(ino)
            | RecordKey::Slices(ino, _) => self.inodes.contains(ino),
            RecordKey::Dirent(parent, _) => self.directories.contains(parent),
            RecordKey::Empty(ino) => self.directories.contains(ino),
            _ => false,
        }
    }

    /// Applies the effects on held records to `records`, and notes which inodes are held after them. If `only`
    /// is given, applies only the effects on these inodes.
    pub(crate) fn apply(&mut self, txn: &Txn, own: SessionId, only: Option<&[Ino]>) {
        let is_of = |ino: Ino| only.is_none_or(|only| only.contains(&ino));
        let is_held = |effect: &&Effect| match effect {
            Effect::PutInode(inode) => inode.holder() == Some(own),
            effect => {
                let ino = effect.footprint().part.inode();
                ino.is_some_and(|ino| self.inodes.contains(&ino) && is_of(ino))
            }
        };
        let mut effects: Vec<Effect> = txn.effects.iter().filter(is_held).cloned().collect();
        // A file that has a name elsewhere can be reached without the held directory, so it is not held any
        // more.
        let leaving: Vec<Ino> = txn
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::PutDirent { parent, ino, kind, .. }
                    if *kind != FileType::Directory
                        && !self.directories.contains(parent)
                        && self.inodes.contains(ino) =>
                {
                    Some(*ino)
                }
                _ => None,
            })
            .collect();
        effects.extend(leaving.iter().map(|&ino| Effect::DropInode { ino }));
        let applied = Txn { op_id: txn.op_id, guards: Vec::new(), effects };
        // The engine in memory does not fail.
        let _ = self.records.commit(std::slice::from_ref(&applied));
        self.note(&applied.effects, own);
        leaving.iter().for_each(|ino| _ = self.inodes.remove(ino));
    }

    /// Notes which inodes are held after these effects.
    pub(crate) fn note(&mut self, effects: &[Effect], own: SessionId) {
        for effect in effects {
            match effect {
                Effect::PutInode(inode) => {
                    self.inodes.insert(inode.ino);
                    if inode.holder() == Some(own) {
                        self.directories.insert(inode.ino);
                    }
                }
                // The inode stays in `inodes`: its absence is held too, because the engine may still have its
                // record.
                Effect::DropInode { ino } => _ = self.directories.remove(ino),
                _ => {}
            }
        }
    }

    /// Writes a transaction to the journal before it is queued. Returns whether the journal has it; if not,
    /// the transaction must not be answered before it is committed.
    pub(crate) fn keep(&mut self, txn: &Txn) -> bool {
        self.journal.as_mut().is_some_and(|journal| journal.queued(txn, false))
    }

    /// Queues a transaction that the journal has.
    pub(crate) fn push(&mut self, txn: Txn, ticket: Ticket) {
        self.queue.push_back(Queued { txn, _ticket: ticket, is_optional: false });
        self.queued += 1;
    }

    /// Queues a transaction whose guards may fail. No program waits for an answer to it, so it is queued even
    /// if the journal cannot take it.
    pub(crate) fn push_optional(&mut self, txn: Txn, ticket: Ticket) {
        if let Some(journal) = &mut self.journal
            && !journal.queued(&txn, true)
        {
            journal.skipped();
        }
        self.queue.push_back(Queued { txn, _ticket: ticket, is_optional: true });
        self.queued += 1;
    }

    /// Removes the first transactions of the queue, which are committed. `sent` is the rest of the request.
    pub(crate) fn pop(&mut self, count: usize, sent: &[Merged]) {
        self.committed += count as u64;
        // The journal must know this before the tickets are dropped. After that, their terms can end, and the
        // database would reject these transactions if a replay sent them again.
        if let Some(journal) = &mut self.journal {
            let left = self.queue.range(count.min(self.queue.len())..);
            journal.committed(count, left.map(|queued| (&queued.txn, queued.is_optional)), &counts(sent));
        }
        self.queue.drain(..count);
    }

    /// Notes in the journal how the transactions of the next request are merged, before it is sent.
    pub(crate) fn note_sent(&mut self, sent: &[Merged]) {
        if let Some(journal) = &mut self.journal {
            journal.sent(&counts(sent));
        }
    }

    /// Drops `records`, but not the queue. Returns the held directories.
    pub(crate) fn drop_records(&mut self, drops: &AtomicU64) -> HashSet<Ino> {
        drops.fetch_add(1, Ordering::AcqRel);
        self.records = MemEngine::default();
        (self.taken, self.taken_names) = (HashSet::default(), 0);
        self.inodes = HashSet::default();
        self.must_give_back = false;
        std::mem::take(&mut self.directories)
    }

    /// The present records of keys that are held.
    pub(crate) fn read(&self, keys: &[RecordKey]) -> Snapshot {
        self.only_held(self.records.read(keys).unwrap_or_default())
    }

    /// Removes the records that the engine in memory returns in addition to the requested ones: ACLs, and
    /// inodes that are not held.
    pub(crate) fn only_held(&self, mut snapshot: Snapshot) -> Snapshot {
        snapshot.records.retain(|record| match record {
            Record::Acl(..) => false,
            Record::Inode(ino, _) => self.inodes.contains(ino),
            _ => true,
        });
        snapshot
    }

    /// Notes that another client has recalled a directory. Returns how long this client is to hold no new
    /// directory.
    pub(crate) fn suspend_holding(&mut self) -> Duration {
        let now = Instant::now();
        let time = match self.last_suspension {
            Some((at, time)) if now.saturating_duration_since(at) < time * 4 => {
                (time * 2).min(MAX_SUSPENSION)
            }
            _ => MIN_SUSPENSION,
        };
        self.last_suspension = Some((now, time));
        time
    }

    /// Notes that another client has recalled this directory. Returns how long this client must take no
    /// directory: `shortest`, or longer if directories that it has taken are recalled again and again.
    pub(crate) fn suspend_taking(&mut self, dir: Ino, shortest: Duration) -> Duration {
        let was_taken = self.taken.contains(&dir) || self.taking.is_some_and(|taking| taking.dir == dir);
        if !was_taken {
            return shortest;
        }
        let now = Instant::now();
        let time = match self.last_take_pause {
            Some((at, time)) if now.saturating_duration_since(at) < time * 4 => {
                (time * 2).min(MAX_SUSPENSION)
            }
            _ => shortest,
        };
        self.last_take_pause = Some((now, time));
        time
    }
}

impl Held {
    /// Whether nothing is held or queued, and no directory that will be held is being created or taken.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy.load(Ordering::Acquire)
    }

    /// Notes a change of `state`, and wakes the threads that wait for one.
    pub(crate) fn note(&self, state: &State) {
        self.directories.store(state.directories.len(), Ordering::Release);
        let is_busy = !state.directories.is_empty()
            || !state.queue.is_empty()
            || !state.being_created.is_empty()
            || state.taking.is_some();
        self.is_busy.store(is_busy, Ordering::Release);
        self.changed.notify_all();
    }

    /// The number of directories that are held.
    pub(crate) fn directories(&self) -> usize {
        self.directories.load(Ordering::Acquire)
    }

    /// The value of a record that is held.
    pub(crate) fn get(&self, key: &Key, kind: AclKind) -> Option<Value> {
        // Locks are not held: the engine has them.
        let key = key.to_read().filter(|key| !matches!(key, RecordKey::Locks(_)))?;
        let state = host::lock(&self.state);
        if !state.is_held(&key) {
            return None;
        }
        let record = state.read(&[key]).records.into_iter().next()?;
        known(&record, kind).map(|(_, value)| value)
    }
}

/// The records that a client knows: those that it holds, and those in its cache.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub(crate) held: &'a Held,
    pub(crate) cache: &'a Cache,
    pub(crate) kind: AclKind,
    /// Whether anything is held, and the session is certain to exist.
    pub(crate) may_be_held: bool,
}

impl KnownRecords for Known<'_> {
    fn get(&self, key: &Key, oldest: Option<Instant>) -> Option<Value> {
        let held = if self.may_be_held { self.held.get(key, self.kind) } else { None };
        held.or_else(|| KnownRecords::get(self.cache, key, oldest))
    }

    fn put(&self, key: Key, value: Value) {
        KnownRecords::put(self.cache, key, value);
    }
}

/// Whether the effect changes files, so that it must not be committed before earlier changes of files.
pub(crate) fn changes_files(effect: &Effect) -> bool {
    let part = effect.footprint().part;
    part.inode().is_some() || matches!(part, Part::Orphan(..) | Part::Setting(_) | Part::Quota(_))
}

/// The slices whose blocks a transaction's rows name.
pub(crate) fn slices_of(txn: &Txn) -> impl Iterator<Item = SliceId> {
    let rows = txn.effects.iter().flat_map(|effect| match effect {
        Effect::AppendSlice { slice, .. } => std::slice::from_ref(slice),
        Effect::ReplaceRows { rows, .. } => rows,
        _ => &[],
    });
    rows.filter_map(|row| match row.source {
        SliceSource::Blocks { id, .. } => Some(id),
        _ => None,
    })
}

/// Whether the error says that nothing was changed.
pub(crate) fn is_determinate(failure: &Failure) -> bool {
    !matches!(failure, Failure::Engine(error) if error.kind == ErrorKind::Indeterminate)
}
