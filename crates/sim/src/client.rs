//! A simulated process: a real `Meta` on the simulated engine, and the state that a mount keeps in addition.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::{Failure, InDoubtTxn, Meta};
use meta::{Changes, Counter, Engine, ErrorKind, Inode, Lock, LockOwner, Process, Session};
use ops::{
    Append, Authority, ChangeQuota, Compact, CopyRange, DropLocks, GetInode, GetSlices, GetXattrs, Link,
    Lookup, Make, MakeKind, QuotaLimits, Reap, RemoveXattr, Rename, Rmdir, SetAttr, SetXattr, TakeLock,
    Unlink, UnlinkOutcome, Unlock, Write, XattrMode,
};
use types::{
    BootInstant, ChunkIndex, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, SliceSource, Time,
};

use crate::act::{Act, Got, NonTreeAction, Reply, Seen, Step};
use crate::model;
use crate::mutant::Mutant;
use crate::port::{self, SimEngine};
use crate::quotas::{self, Limits};
use crate::shared::{Ended, LONG, Shared};
use crate::xattrs;

const KERNEL: Authority<'_> = Authority::Kernel { revisions: None };
/// How long the cache may be used after a poll of the stream began (`vfs/src/coherence.rs`).
pub(crate) const LEASE: Duration = Duration::from_millis(600);
const SLICES_PER_LEASE: u64 = 3;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) meta: Meta,
    next_ino: AtomicU64,
    slices: Mutex<Slices>,
    stream: Mutex<Option<Box<dyn Changes>>>,
    is_applying: AtomicBool,
    is_leasing: AtomicBool,
    /// All commits up to this one have been received from the stream.
    floor: AtomicU64,
    received: AtomicU64,
    /// The unlinked inodes that the client has open, each with the session that keeps it.
    orphans: Mutex<BTreeSet<(SessionId, Ino)>>,
    /// Writes in doubt, which are to be retried.
    in_doubt: Mutex<Vec<(Ended, Write, InDoubtTxn)>>,
}

/// The leased slice numbers that are left, and the numbers of slices that may be in the store without a row;
/// see `vfs/src/numbers.rs`.
#[derive(Debug, Default)]
struct Slices {
    left: Range<u64>,
    held: BTreeSet<u64>,
}

impl Client {
    pub(crate) fn open(shared: &Shared, number: usize) -> Result<Client, Failure> {
        let engine: Arc<dyn Engine> = Arc::new(SimEngine);
        let failed = |_| Failure::Operation(types::Errno::EIO);
        let meta = Meta::open(engine, 1000).map_err(failed)?;
        meta.set_lifetime(Duration::ZERO);
        meta.set_repeat_for(LONG);
        let next_ino = AtomicU64::new(meta.lease(Counter::Ino, 1000)?);
        let next_slice = meta.read_counter(Counter::Slice)?;
        let slices = Slices { left: next_slice..next_slice, held: BTreeSet::new() };
        let client = Client {
            number,
            meta,
            next_ino,
            slices: Mutex::new(slices),
            stream: Mutex::default(),
            is_applying: AtomicBool::new(false),
            is_leasing: AtomicBool::new(false),
            floor: AtomicU64::new(0),
            received: AtomicU64::new(0),
            orphans: Mutex::default(),
            in_doubt: Mutex::default(),
        };
        client.meta.begin_session(client.record(shared, client.meta.session()), LONG)?;
        Ok(client)
    }

    fn record(&self, shared: &Shared, id: SessionId) -> Session {
        let slices = lock(&self.slices);
        let first = slices.held.first().map_or(slices.left.start, |held| slices.left.start.min(*held));
        Session {
            id,
            host: "host".into(),
            pid: self.number as u32,
            mountpoint: "/m".into(),
            since: Time::from_nanos(0),
            heartbeat: Time::from_nanos(shared.tick()),
            process: Process::default(),
            version: String::new(),
            first_slice: SliceId(first),
        }
    }

    pub(crate) fn rejoin(&self, shared: &Shared) {
        let mut begun = shared.begin(self.number, self.meta.session(), 0, Step::Other(NonTreeAction::Rejoin));
        // A collector that saw neither the old nor the new session may remove slices below the counter, so
        // the numbers that are left are not used.
        let next = self.meta.read_counter(Counter::Slice);
        if let Ok(next) = &next {
            lock(&self.slices).left = *next..*next;
        }
        let done = next.and_then(|_| self.meta.rejoin(|id| self.record(shared, id), LONG));
        begun.got = got(done.map(|_| Reply::Nothing), true);
        shared.end(begun);
    }

    pub(crate) fn act(&self, shared: &Shared, act: &Act) {
        match act {
            Act::Start | Act::Gc => {}
            Act::Make { dir, name, is_dir, mode } => {
                let ino = Ino(self.next_ino.fetch_add(1, Ordering::Relaxed));
                self.step(shared, Step::Make { dir: *dir, name, ino, is_dir: *is_dir, mode: *mode });
            }
            Act::Write { ino, offset, len, inline } => self.write(shared, *ino, *offset, *len, *inline),
            Act::Append { ino, len } => {
                let Some((slice, source)) = self.take_slice(shared, *len) else { return };
                let got = self.step(shared, Step::Append { ino: *ino, len: *len, source });
                self.settle(slice, &got);
            }
            Act::Link { ino, dir, name } => {
                let session = self.meta.session();
                // The inode is removed from the set before the call, because it is no orphan once the call
                // succeeds.
                let is_own = lock(&self.orphans).remove(&(session, *ino));
                let orphan_of = is_own.then_some(session);
                let got = self.step(shared, Step::Link { ino: *ino, dir: *dir, name, orphan_of });
                if is_own && matches!(got, Got::Error(_)) {
                    lock(&self.orphans).insert((session, *ino));
                }
            }
            Act::Compact { ino } => self.compact(shared, *ino),
            Act::FillXattrs { ino } => {
                // This fills 240 of 256 blocks. Two of the names are those that other acts use.
                for name in (2..17).map(xattrs::name) {
                    let value = xattrs::Value::new(xattrs::MAX_BYTES, 1);
                    self.step(shared, Step::SetXattr { ino: *ino, name, value, mode: XattrMode::Set });
                }
            }
            Act::Lock { ino, number, flock, exclusive } => {
                let owner = model::owner(self.meta.session(), *number, *flock);
                self.step(shared, Step::Lock { ino: *ino, owner, exclusive: *exclusive });
            }
            Act::Unlock { ino, number, flock } => {
                let owner = model::owner(self.meta.session(), *number, *flock);
                self.step(shared, Step::Unlock { ino: *ino, owner });
            }
            Act::Step(step) => drop(self.step(shared, step.clone())),
            Act::GoOn => self.go_on(shared),
            Act::Renew => {
                let id = self.meta.session();
                let mut begun = shared.begin(self.number, id, 0, Step::Other(NonTreeAction::Renew));
                let done = self.meta.renew_session(self.record(shared, id), LONG);
                begun.got = got(done.map(|()| Reply::Nothing), true);
                shared.end(begun);
            }
            Act::RemoveOthers => self.remove_others(shared),
            Act::Clean => self.clean(shared),
            Act::ReapOwn => {
                let session = self.meta.session();
                for ino in self.orphans().into_iter().filter(|(of, _)| *of == session).map(|(_, ino)| ino) {
                    self.step(shared, Step::Reap { session, ino });
                }
            }
            Act::ApplyRemote => self.apply_remote(shared),
            Act::CutStream => {
                if !self.is_applying.load(Ordering::Relaxed) {
                    let begun = shared.begin(
                        self.number,
                        self.meta.session(),
                        0,
                        Step::Other(NonTreeAction::CutStream),
                    );
                    shared.end(Ended { got: Got::Done(Reply::Nothing), ..begun });
                    *lock(&self.stream) = None;
                    self.forget(shared);
                }
            }
            Act::Collect => self.collect(shared),
        }
    }

    /// Runs an operation and records its result.
    pub(crate) fn step(&self, shared: &Shared, step: Step) -> Got {
        let mut begun = shared.begin(self.number, self.meta.session(), self.floor(shared), step);
        begun.got = got(self.run(&begun.step), !begun.step.is_read());
        if let Got::Done(Reply::Unlinked(ino, UnlinkOutcome::Orphan)) = begun.got {
            lock(&self.orphans).insert((begun.session, ino));
        }
        let got = begun.got.clone();
        shared.end(begun);
        got
    }

    /// The oldest state that a read which begins now may return.
    fn floor(&self, shared: &Shared) -> u64 {
        let follows_stream = lock(&self.stream).is_some() || self.is_applying.load(Ordering::Relaxed);
        if follows_stream { self.floor.load(Ordering::Relaxed) } else { shared.now() }
    }

    fn run(&self, step: &Step) -> Result<Reply, Failure> {
        let meta = &self.meta;
        let nothing = |()| Reply::Nothing;
        match step.clone() {
            Step::Make { dir, name, ino, is_dir, mode } => {
                let kind = if is_dir { MakeKind::Directory } else { MakeKind::Regular };
                let (mode, umask, uid, gid) = (Mode::new(mode), 0, 0, 0);
                let make = Make { parent: dir, name: n(name), ino, kind, mode, umask, uid, gid };
                meta.run(&make, &KERNEL).map(|inode| Reply::Ino(inode.ino))
            }
            Step::Link { ino, dir, name, orphan_of } => {
                let link = Link { ino, parent: dir, name: n(name), orphan_of };
                meta.run(&link, &KERNEL).map(|_| Reply::Nothing)
            }
            Step::Unlink { dir, name, open } => {
                let unlinked = meta.run(&Unlink { parent: dir, name: n(name), open }, &KERNEL)?;
                Ok(Reply::Unlinked(unlinked.inode.ino, unlinked.outcome))
            }
            Step::Rmdir { dir, name } => meta
                .run(&Rmdir { parent: dir, name: n(name) }, &KERNEL)
                .map(|done| Reply::Ino(done.inode.ino)),
            Step::Rename { dir, name, to, new_name, flags } => {
                let (parent, name, new_parent, new_name) = (dir, n(name), to, n(new_name));
                let rename = Rename { parent, name, new_parent, new_name, flags, whiteout: None, open: None };
                let renamed = meta.run(&rename, &KERNEL)?;
                Ok(Reply::Moved {
                    moved: renamed.moved.ino,
                    exchanged: renamed.exchanged.map(|inode| inode.ino),
                    replaced: renamed.replaced.map(|unlinked| (unlinked.inode.ino, unlinked.outcome)),
                })
            }
            Step::Chmod { ino, mode } => {
                let mode = Some(Mode::new(mode));
                meta.run(&SetAttr { ino, mode, ..SetAttr::default() }, &KERNEL).map(|_| Reply::Nothing)
            }
            Step::Truncate { ino, size } => {
                let size = Some(size);
                meta.run(&SetAttr { ino, size, ..SetAttr::default() }, &KERNEL).map(|_| Reply::Nothing)
            }
            Step::Write { ino, offset, len, source } => {
                meta.run(&write_op(ino, offset, len, source), &KERNEL).map(nothing)
            }
            Step::Append { ino, len, source } => {
                meta.run(&Append { ino, source, len }, &KERNEL).map(Reply::Number)
            }
            Step::Copy { from, offset, to, to_offset, len } => {
                meta.run(&CopyRange { from, offset, to, to_offset, len }, &KERNEL).map(Reply::Number)
            }
            Step::Compact { ino, old, new } => {
                meta.run(&Compact { ino, chunk: ChunkIndex(0), old, new }, &KERNEL).map(nothing)
            }
            Step::Lock { ino, owner, exclusive } => {
                let lock = whole(owner, exclusive);
                meta.run(&TakeLock { ino, lock, wait: false }, &KERNEL).map(|_| Reply::Nothing)
            }
            Step::Unlock { ino, owner } => {
                meta.run(&Unlock { ino, owner, start: 0, end: u64::MAX }, &KERNEL).map(nothing)
            }
            Step::DropLocks { ino, session } => meta.run(&DropLocks { ino, session }, &KERNEL).map(nothing),
            Step::Reap { session, ino } => meta.run(&Reap { session, ino }, &KERNEL).map(nothing),
            Step::SetXattr { ino, name, value, mode } => {
                meta.run(&SetXattr { ino, name, value: value.bytes(), mode }, &KERNEL).map(nothing)
            }
            Step::RemoveXattr { ino, name } => meta.run(&RemoveXattr { ino, name }, &KERNEL).map(nothing),
            Step::ListXattrs { ino } => {
                meta.run(&GetXattrs(ino), &KERNEL).map(|found| Reply::Xattrs(xattrs::values(&found)))
            }
            Step::SetLimits { quota, limits: Limits { inodes, blocks } } => {
                let (max_inodes, max_blocks) = (Some(inodes), Some(blocks));
                let limits = QuotaLimits { max_inodes, max_blocks, ..QuotaLimits::default() };
                let key = quotas::LIMITED[quota];
                meta.run(&ChangeQuota { key, limits, state: None }, &KERNEL).map(|_| Reply::Nothing)
            }
            Step::Lookup { dir, name } => {
                let found = meta.run(&Lookup { parent: dir, name: n(name) }, &KERNEL)?;
                Ok(Reply::Found(found.map(|inode| (inode.ino, seen(&inode)))))
            }
            Step::Stat { ino } => {
                meta.run(&GetInode(ino), &KERNEL).map(|inode| Reply::Found(Some((inode.ino, seen(&inode)))))
            }
            Step::Remove { session, heartbeat } => {
                let removed = meta.remove_session(session, Time::from_nanos(heartbeat))?;
                Ok(Reply::Number(u64::from(removed)))
            }
            Step::Other(_) => Ok(Reply::Nothing),
        }
    }

    /// Returns a new slice whose blocks are stored. `None` if no number could be leased, or if the session
    /// was lost meanwhile. In that case, a collector may have removed the blocks.
    fn take_slice(&self, shared: &Shared, len: u32) -> Option<(u64, SliceSource)> {
        let session = self.meta.session();
        if lock(&self.slices).left.is_empty() {
            // A mount takes the lease under a lock (`vfs/src/numbers.rs`). Here a thread that would wait for
            // the lock gives up.
            if self.is_leasing.swap(true, Ordering::Relaxed) {
                return None;
            }
            let begun = shared.begin(self.number, session, 0, Step::Other(NonTreeAction::LeaseSlices));
            let first = self.meta.lease(Counter::Slice, SLICES_PER_LEASE);
            shared.end(Ended { got: got(first.clone().map(Reply::Number), true), ..begun });
            self.is_leasing.store(false, Ordering::Relaxed);
            let first = first.ok()?;
            lock(&self.slices).left = first..first + SLICES_PER_LEASE;
        }
        let id = {
            let mut slices = lock(&self.slices);
            let id = slices.left.next()?;
            slices.held.insert(id);
            id
        };
        shared.stored(SliceId(id));
        // The upload of the blocks takes time.
        port::pause();
        (self.meta.session() == session && !self.meta.is_fenced())
            .then_some((id, SliceSource::Blocks { id: SliceId(id), offset: 0, size: len }))
    }

    /// Stops holding the number of a slice if its operation is not in doubt.
    fn settle(&self, slice: u64, got: &Got) {
        if *got != Got::InDoubt {
            lock(&self.slices).held.remove(&slice);
        }
    }

    fn write(&self, shared: &Shared, ino: Ino, offset: u64, len: u32, inline: bool) {
        let (slice, source) = if inline {
            let byte = shared.tick() as u8;
            (0, SliceSource::Inline(vec![byte; len as usize].into()))
        } else {
            let Some(taken) = self.take_slice(shared, len) else { return };
            taken
        };
        let step = Step::Write { ino, offset, len, source: source.clone() };
        let mut begun = shared.begin(self.number, self.meta.session(), 0, step);
        let write = write_op(ino, offset, len, source);
        let mut in_doubt = None;
        let done = self.meta.run_once(&write, &KERNEL, &mut in_doubt);
        begun.got = if in_doubt.is_some() { Got::InDoubt } else { got(done.map(|()| Reply::Nothing), true) };
        self.settle(slice, &begun.got);
        if let Some(in_doubt) = in_doubt {
            lock(&self.in_doubt).push((begun.clone(), write, in_doubt));
        }
        shared.end(begun);
    }

    fn go_on(&self, shared: &Shared) {
        let Some((mut begun, write, in_doubt)) = lock(&self.in_doubt).pop() else { return };
        let mut in_doubt = Some(in_doubt).filter(|_| shared.mutant != Some(Mutant::NewIdAfterDoubt));
        port::set_step(begun.number);
        let done = self.meta.run_once(&write, &KERNEL, &mut in_doubt);
        begun.got = if in_doubt.is_some() { Got::InDoubt } else { got(done.map(|()| Reply::Nothing), true) };
        if let SliceSource::Blocks { id, .. } = write.slices[0].1.source {
            self.settle(id.0, &begun.got);
        }
        if let Some(in_doubt) = in_doubt {
            lock(&self.in_doubt).push((begun.clone(), write, in_doubt));
        }
        shared.end(begun);
    }

    /// Removes the oldest row of a chunk if one of the next rows covers it.
    fn compact(&self, shared: &Shared, ino: Ino) {
        let begun = shared.begin(self.number, self.meta.session(), 0, Step::Other(NonTreeAction::ReadRows));
        let rows = self.meta.run(&GetSlices { ino, chunk: ChunkIndex(0) }, &KERNEL);
        shared.end(Ended { got: Got::Done(Reply::Nothing), ..begun });
        let Ok(old) = rows else { return };
        let covers =
            |row: &Slice, first: &Slice| row.pos <= first.pos && first.pos + first.len <= row.pos + row.len;
        // The replaced rows release their slices, so no new row may name one.
        let is_plain = |row: &&Slice| !matches!(row.source, SliceSource::Blocks { .. });
        let count = 1 + old.iter().skip(1).take_while(is_plain).count();
        let old: Arc<[Slice]> = old.iter().take(count).cloned().collect();
        let is_covered = old.first().is_some_and(|first| old[1..].iter().any(|row| covers(row, first)));
        if is_covered {
            let new: Arc<[Slice]> = old[1..].into();
            self.step(shared, Step::Compact { ino, old, new });
        }
    }

    fn forget(&self, shared: &Shared) {
        if shared.mutant != Some(Mutant::KeepsMemory) {
            self.meta.set_outdated();
        }
    }

    /// See `vfs/src/coherence.rs`: the cache may be used only after a stream began and all older records were
    /// invalidated.
    fn apply_remote(&self, shared: &Shared) {
        if self.is_applying.swap(true, Ordering::Relaxed) {
            return;
        }
        let begun =
            shared.begin(self.number, self.meta.session(), 0, Step::Other(NonTreeAction::ApplyRemote));
        let known = lock(&self.stream).take();
        let is_new = known.is_none();
        let stream = known.or_else(|| shared.engine().watch().unwrap_or_default());
        let Some(mut stream) = stream else {
            self.is_applying.store(false, Ordering::Relaxed);
            shared.end(Ended { got: Got::Failed, ..begun });
            return;
        };
        let (until, asked) = (shared.now(), BootInstant::now());
        let changes = stream.next(Duration::ZERO).unwrap_or_default();
        if is_new {
            self.floor.store(until, Ordering::Relaxed);
            self.forget(shared);
        }
        // The delivery of the changes takes time.
        port::pause();
        for change in &changes {
            let received = self.received.fetch_add(1, Ordering::Relaxed);
            if shared.mutant != Some(Mutant::SilentStream) || received % 3 != 2 {
                self.meta.apply_remote(change);
            }
        }
        self.floor.store(until, Ordering::Relaxed);
        *lock(&self.stream) = Some(stream);
        let lease_until = match shared.mutant {
            Some(Mutant::LongLease) => asked + LEASE * 4,
            Some(Mutant::LeaseFromAnswer) => BootInstant::now() + LEASE,
            _ => asked + LEASE,
        };
        self.meta.set_current_until(lease_until);
        self.is_applying.store(false, Ordering::Relaxed);
        shared.end(Ended { got: Got::Done(Reply::Number(until)), ..begun });
    }
}

/// The result of a call. A read that fails has changed nothing, so it is never in doubt.
pub(crate) fn got(done: Result<Reply, Failure>, is_change: bool) -> Got {
    match done {
        Ok(reply) => Got::Done(reply),
        Err(Failure::Operation(errno)) => Got::Error(errno),
        Err(Failure::Fenced(_)) => Got::Fenced,
        Err(Failure::Engine(error)) if is_change && error.kind == ErrorKind::Indeterminate => Got::InDoubt,
        Err(Failure::Engine(_)) => Got::Failed,
    }
}

fn write_op(ino: Ino, offset: u64, len: u32, source: SliceSource) -> Write {
    let (chunk, pos) = ChunkIndex::of(offset);
    let slices = vec![(chunk, Slice { pos, len, source })];
    Write { ino, slices, end: offset + u64::from(len), mtime: Time::from_nanos(1) }
}

fn whole(owner: LockOwner, exclusive: bool) -> Lock {
    Lock { start: 0, end: u64::MAX, owner, exclusive, pid: 1 }
}

fn seen(inode: &Inode) -> Seen {
    let is_dir = inode.kind == FileType::Directory;
    Seen { is_dir, mode: inode.mode.bits(), nlink: inode.nlink, size: inode.size }
}

#[expect(clippy::expect_used, reason = "the names of a simulation are valid")]
fn n(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("a valid name")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
