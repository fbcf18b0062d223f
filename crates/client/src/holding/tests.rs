//! Tests of held directories: which operations are answered from memory, when changes are committed, and what
//! survives faults and kills.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use journal::Memory;
use meta::{Counting, Engine, MemEngine, Record, RecordKey, Session, Volume};
use ops::{GetInode, Link, Lookup, Make, MakeKind, Op, Rename, RenameFlags, Rmdir, SetAttr, Unlink};
use suite::{Fault, FaultRates, Faulty};
use types::{BootInstant, Errno, FileType, Ino, Mode, Name, OpId, Term, Time};

use super::*;
use crate::driver::BY_KERNEL;
use crate::group::Sent;
use crate::readdir::Listing;

const LONG: Duration = Duration::from_secs(3600);

pub(crate) type Counted = Arc<Counting<MemEngine>>;

pub(crate) fn volume() -> Counted {
    let engine = Arc::new(Counting::new(MemEngine::default()));
    Volume::in_memory("test").format(&*engine).unwrap();
    engine
}

pub(crate) fn nothing_to_store() -> MakeDurable {
    Arc::new(|_| Ok(()))
}

/// A registered client that is notified of changes, and holds new directories if `holds` is set.
pub(crate) fn client(engine: &Counted, holds: bool) -> Arc<Meta> {
    let journals = holds.then(Memory::default);
    client_with(engine.clone(), journals.as_ref())
}

pub(crate) fn client_with(engine: Arc<dyn Engine>, journals: Option<&Memory>) -> Arc<Meta> {
    let meta = Arc::new(Meta::open(engine, 1000).unwrap());
    meta.set_exclusive(meta.is_embedded());
    if let Some(journals) = journals {
        meta.replay(journals, &nothing_to_store()).unwrap();
        meta.hold_new_directories(nothing_to_store(), Arc::new(journals.clone()));
    }
    meta.begin_journal(meta.session(), Time::from_nanos(1));
    meta.begin_session(Session::new(meta.session(), Time::from_nanos(1)), LONG).unwrap();
    meta.set_current_until(BootInstant::now() + LONG);
    meta
}

/// An embedded engine as one process opens it. Another value does not know the results of the transactions
/// that were committed through this one.
#[derive(Debug)]
struct Embedded {
    database: Arc<dyn Engine>,
    process: u128,
    is_broken: AtomicBool,
    is_full: AtomicBool,
    is_reserve_open: AtomicBool,
}

impl Embedded {
    fn open(database: Arc<dyn Engine>) -> Arc<Embedded> {
        static PROCESSES: AtomicU64 = AtomicU64::new(0);
        let process = u128::from(PROCESSES.fetch_add(1, Ordering::Relaxed));
        let [is_broken, is_full, is_reserve_open] = [(); 3].map(|()| AtomicBool::new(false));
        Arc::new(Embedded { database, process, is_broken, is_full, is_reserve_open })
    }
}

impl Engine for Embedded {
    meta::pass_on! { (.database) read scan sync wipe watch }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(EngineError::permanent("disk I/O error"));
        }
        let adds = txns.iter().flat_map(|txn| &txn.effects).any(Effect::adds);
        if adds && self.is_full.load(Ordering::Relaxed) && !self.is_reserve_open.load(Ordering::Relaxed) {
            return Err(EngineError::permanent("the disk is full").with_errno(Errno::ENOSPC));
        }
        let own = |txn: &Txn| Txn { op_id: OpId(txn.op_id.0 ^ self.process << 96), ..txn.clone() };
        self.database.commit(&txns.iter().map(own).collect::<Vec<_>>())
    }

    fn is_embedded(&self) -> bool {
        true
    }

    fn set_reserve_open(&self, is_open: bool) {
        self.is_reserve_open.store(is_open, Ordering::Relaxed);
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub(crate) fn make(meta: &Meta, parent: Ino, text: &str, ino: u64, kind: MakeKind) -> Result<Inode, Failure> {
    let make = Make {
        parent,
        name: name(text),
        ino: Ino(ino),
        kind,
        mode: Mode::new(0o755),
        umask: 0,
        uid: 0,
        gid: 0,
    };
    meta.run(&make, &BY_KERNEL)
}

pub(crate) fn set_mode(ino: Ino, mode: u32) -> SetAttr {
    SetAttr {
        ino,
        mode: Some(Mode::new(mode)),
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        sets_times_to_now: false,
        is_open: false,
        keep_sgid: false,
        kill_suidgid: false,
        is_superuser: true,
    }
}

pub(crate) fn look(meta: &Meta, parent: Ino, text: &str) -> Result<Option<Inode>, Failure> {
    meta.run(&Lookup { parent, name: name(text) }, &BY_KERNEL)
}

pub(crate) fn stored(engine: &Counted, key: RecordKey) -> Option<Inode> {
    engine.read(&[key]).unwrap().records.iter().find_map(|record| match record {
        Record::Inode(_, inode) => *inode,
        _ => None,
    })
}

/// Runs `work` while one thread commits queued changes and another one receives recalls.
pub(crate) fn beside<T>(holder: &Arc<Meta>, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let mut changes = holder.engine().watch().unwrap().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| holder.commit_queued(&|| is_over.load(Ordering::Relaxed)));
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for change in changes.next(Duration::from_millis(5)).unwrap() {
                    for part in &change.invalidations {
                        if let (meta::Invalidation::Locks(ino), true) = (part, change.by != holder.session())
                        {
                            holder.recalled(*ino);
                        }
                    }
                }
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn changes_in_a_new_directory_cost_no_round_trip_until_they_are_committed_together() {
    let engine = volume();
    let meta = client(&engine, true);
    let dir = make(&meta, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    assert_eq!(dir.holder(), Some(meta.session()));
    assert_eq!(dir.shown_size(), DIR_BYTES);
    assert_eq!(meta.held_directories(), 1);
    let before = engine.counts();
    for n in 0..20 {
        make(&meta, dir.ino, &format!("f{n}"), 100 + n, MakeKind::Regular).unwrap();
    }
    let below = make(&meta, dir.ino, "below", 200, MakeKind::Directory).unwrap();
    make(&meta, below.ino, "link", 201, MakeKind::Symlink(b"there".as_slice().into())).unwrap();
    meta.run(&Link { ino: Ino(100), parent: below.ino, name: name("hard"), orphan_of: None }, &BY_KERNEL)
        .unwrap();
    let rename = |from: &str, to: &str| Rename {
        parent: dir.ino,
        name: name(from),
        new_parent: below.ino,
        new_name: name(to),
        flags: RenameFlags::default(),
        whiteout: None,
        open: None,
    };
    meta.run(&rename("f1", "g1"), &BY_KERNEL).unwrap();
    meta.run(&Unlink { parent: dir.ino, name: name("f2"), open: None }, &BY_KERNEL).unwrap();
    // An error is certain too, so it needs no request.
    assert_eq!(make(&meta, dir.ino, "f3", 300, MakeKind::Regular), Err(Errno::EEXIST.into()));
    let rmdir = Rmdir { parent: dir.ino, name: name("below") };
    assert_eq!(meta.run(&rmdir, &BY_KERNEL).unwrap_err(), Errno::ENOTEMPTY.into());
    assert_eq!(look(&meta, dir.ino, "f2").unwrap(), None);
    assert_eq!(look(&meta, below.ino, "hard").unwrap().unwrap().nlink, 2);
    assert_eq!(meta.run(&GetInode(dir.ino), &BY_KERNEL).unwrap().nlink, 3);
    let listed = |dir, inodes| meta.list(dir, None, 100, inodes).unwrap().entries;
    assert_eq!(listed(dir.ino, true).len(), 19);
    assert_eq!(listed(below.ino, true).len(), 3);
    let counts = engine.counts() - before;
    assert_eq!((counts.reads, counts.commits, counts.scans), (0, 0, 0));
    assert_eq!(stored(&engine, RecordKey::Inode(Ino(100))), None);
    meta.settle_held().unwrap();
    assert_eq!((engine.counts() - before).commits, 1);
    assert_eq!(stored(&engine, RecordKey::Inode(Ino(100))).unwrap().nlink, 2);
    assert_eq!(stored(&engine, RecordKey::Inode(dir.ino)).unwrap().nlink, 3);
    // The committed records agree with the answers.
    meta.give_back().unwrap();
    assert_eq!(meta.held_directories(), 0);
    for ino in [dir.ino, below.ino] {
        assert_eq!(stored(&engine, RecordKey::Inode(ino)).unwrap().holder(), None);
    }
    assert_eq!(look(&meta, below.ino, "hard").unwrap().unwrap().ino, Ino(100));
    assert_eq!(look(&meta, below.ino, "g1").unwrap().unwrap().ino, Ino(101));
    assert_eq!(look(&meta, dir.ino, "f2").unwrap(), None);
}

#[test]
fn a_listing_from_memory_is_not_cached_and_waits_for_changes_at_the_engine() {
    let engine = volume();
    let meta = client(&engine, true);
    let dir = make(&meta, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap().ino;
    make(&meta, dir, "f", 11, MakeKind::Regular).unwrap();
    assert_eq!(meta.generation(dir), None);
    assert!(meta.generation(Ino::ROOT).is_some());
    // The engine has committed this transaction, but this client has not applied it to the held records.
    let effects = vec![Effect::DropDirent { parent: dir, name: name("f") }];
    let txn = Txn { op_id: meta.terms.next_op(meta.session()).unwrap().id, guards: Vec::new(), effects };
    let entered = meta.enter(&txn).unwrap();
    meta.settle_held().unwrap();
    engine.commit(std::slice::from_ref(&txn)).unwrap();
    assert_eq!(meta.list(dir, None, 9, true).unwrap().entries.len(), 0);
    meta.leave(entered, &txn, true);
    let scans = engine.counts().scans;
    assert_eq!(meta.list(dir, None, 9, true).unwrap().entries.len(), 0);
    assert_eq!(engine.counts().scans, scans);
    meta.give_back().unwrap();
    assert!(meta.generation(dir).is_some());
}

#[test]
fn a_directory_that_is_held_after_all_is_not_given_back_as_a_stale_hold() {
    let meta = client(&volume(), true);
    host::lock(&meta.held.state).stale_holds.insert(Ino(10));
    make(&meta, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    let state = host::lock(&meta.held.state);
    assert!(state.directories.contains(&Ino(10)) && state.stale_holds.is_empty());
}

/// The directory stays in `stale_holds` for the rest of the session, but nobody waits for it.
#[test]
fn a_directory_that_was_never_created_lets_the_queue_gather() {
    let meta = client(&volume(), true);
    host::lock(&meta.held.state).stale_holds.insert(Ino(10));
    meta.recalled(Ino(10));
    assert!(host::lock(&meta.held.state).is_awaited());
    meta.settle_held().unwrap();
    let state = host::lock(&meta.held.state);
    assert!(state.stale_holds.contains(&Ino(10)) && state.queue.is_empty());
    assert!(!state.is_awaited());
}

#[test]
fn the_removal_of_a_tree_is_committed_in_few_transactions() {
    let engine = volume();
    let meta = client(&engine, true);
    let top = make(&meta, Ino::ROOT, "top", 10, MakeKind::Directory).unwrap();
    for n in 0..10 {
        let dir = make(&meta, top.ino, &format!("d{n}"), 100 * (n + 1), MakeKind::Directory).unwrap();
        make(&meta, dir.ino, "f", dir.ino.0 + 1, MakeKind::Regular).unwrap();
        let link = Link { ino: Ino(dir.ino.0 + 1), parent: dir.ino, name: name("g"), orphan_of: None };
        meta.run(&link, &BY_KERNEL).unwrap();
    }
    meta.settle_held().unwrap();
    for n in 0..10 {
        let dir = Ino(100 * (n + 1));
        for file in ["f", "g"] {
            meta.run(&Unlink { parent: dir, name: name(file), open: None }, &BY_KERNEL).unwrap();
        }
        meta.run(&Rmdir { parent: top.ino, name: name(&format!("d{n}")) }, &BY_KERNEL).unwrap();
    }
    assert_eq!(Sent::first_of(&host::lock(&meta.held.state).queue).txns.len(), 2);
    let before = engine.counts();
    meta.settle_held().unwrap();
    assert_eq!((engine.counts() - before).commits, 1);
    for n in 0..10 {
        for ino in [100 * (n + 1), 100 * (n + 1) + 1] {
            assert_eq!(stored(&engine, RecordKey::Inode(Ino(ino))), None);
        }
        let entries =
            Scan::Dir { parent: Ino(100 * (n + 1)), after: None, limit: 9, include: ScanInclude::Nothing };
        assert_eq!(engine.scan(&entries).unwrap().snapshot.records, []);
    }
    assert_eq!(stored(&engine, RecordKey::Inode(top.ino)).unwrap().nlink, 2);
}

#[test]
fn another_client_sees_everything_that_was_answered() {
    let engine = volume();
    let [holder, other] = [client(&engine, true), client(&engine, false)];
    beside(&holder, || {
        for round in 0..20_u64 {
            let at = 1000 * (round + 1);
            let text = format!("d{round}");
            // After the recall in the previous round, no new directory is held for a while. The test does not
            // wait.
            holder.held.not_before.store(0, Ordering::Relaxed);
            let dir = make(&holder, Ino::ROOT, &text, at, MakeKind::Directory).unwrap();
            let below = make(&holder, dir.ino, "below", at + 1, MakeKind::Directory).unwrap();
            for n in 0..30 {
                make(&holder, below.ino, &format!("f{n}"), at + 10 + n, MakeKind::Regular).unwrap();
            }
            let mode = set_mode(below.ino, 0o700);
            holder.run(&mode, &BY_KERNEL).unwrap();
            assert_eq!(holder.held_directories(), 2);
            let found = look(&other, Ino::ROOT, &text).unwrap().unwrap();
            assert_eq!((found.ino, found.nlink, found.holder()), (dir.ino, 3, None));
            let found = look(&other, dir.ino, "below").unwrap().unwrap();
            assert_eq!((found.ino, found.mode), (below.ino, Mode::new(0o700)));
            for n in 0..30 {
                assert!(look(&other, below.ino, &format!("f{n}")).unwrap().is_some());
            }
            // Both use the directory now.
            make(&other, below.ino, "theirs", at + 500, MakeKind::Regular).unwrap();
            assert!(look(&holder, below.ino, "theirs").unwrap().is_some() || !holder.is_current());
            make(&holder, below.ino, "ours", at + 501, MakeKind::Regular).unwrap();
        }
    });
}

#[test]
fn a_change_out_of_a_held_directory_is_committed_after_all_earlier_changes() {
    let engine = volume();
    let meta = client(&engine, true);
    let dir = make(&meta, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&meta, dir.ino, "f", 11, MakeKind::Regular).unwrap();
    make(&meta, dir.ino, "g", 12, MakeKind::Regular).unwrap();
    let rename = Rename {
        parent: dir.ino,
        name: name("f"),
        new_parent: Ino::ROOT,
        new_name: name("out"),
        flags: RenameFlags::default(),
        whiteout: None,
        open: None,
    };
    meta.run(&rename, &BY_KERNEL).unwrap();
    assert!(stored(&engine, RecordKey::Inode(Ino(12))).is_some());
    assert_eq!(look(&meta, dir.ino, "f").unwrap(), None);
    assert_eq!(look(&meta, Ino::ROOT, "out").unwrap().unwrap().ino, Ino(11));
    // The file is no longer held: its changes are committed at once.
    let mode = set_mode(Ino(11), 0o600);
    meta.run(&mode, &BY_KERNEL).unwrap();
    assert_eq!(stored(&engine, RecordKey::Inode(Ino(11))).unwrap().mode, Mode::new(0o600));
    // The directory itself is still held.
    let before = engine.counts();
    make(&meta, dir.ino, "h", 13, MakeKind::Regular).unwrap();
    assert_eq!((engine.counts() - before).commits, 0);
    meta.run(&Unlink { parent: dir.ino, name: name("g"), open: None }, &BY_KERNEL).unwrap();
    meta.run(&Unlink { parent: dir.ino, name: name("h"), open: None }, &BY_KERNEL).unwrap();
    meta.run(&Rmdir { parent: Ino::ROOT, name: name("d") }, &BY_KERNEL).unwrap();
    assert_eq!(meta.held_directories(), 0);
    assert_eq!(stored(&engine, RecordKey::Inode(dir.ino)), None);
}

#[test]
fn a_holder_whose_session_is_gone_holds_nothing() {
    let engine = volume();
    let [holder, other] = [client(&engine, true), client(&engine, false)];
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&holder, dir.ino, "lost", 11, MakeKind::Regular).unwrap();
    assert!(other.remove_session(holder.session(), Time::from_nanos(1)).unwrap());
    assert_eq!(look(&other, dir.ino, "lost").unwrap(), None);
    make(&other, dir.ino, "new", 12, MakeKind::Regular).unwrap();
    // Changes that the holder had not committed are never committed.
    let session = holder.session();
    assert_eq!(holder.settle_held(), Err(Failure::Fenced(session)));
    assert_eq!(make(&holder, dir.ino, "more", 13, MakeKind::Regular), Err(Failure::Fenced(session)));
    assert_eq!(holder.drop_held().0, 1);
    assert!(holder.take_held_loss() && !holder.take_held_loss());
    assert_eq!(stored(&engine, RecordKey::Inode(Ino(11))), None);
}

#[test]
fn changes_that_a_killed_client_had_answered_are_committed_by_the_next() {
    let (engine, journals) = (volume(), Memory::default());
    let holder = client_with(engine.clone(), Some(&journals));
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    for n in 0..50 {
        make(&holder, dir.ino, &format!("f{n}"), 100 + n, MakeKind::Regular).unwrap();
    }
    let other = client(&engine, false);
    assert!(!other.replay(&journals, &nothing_to_store()).unwrap(), "its process runs");
    let session = holder.session();
    drop(holder);
    let before = engine.counts();
    assert!(other.replay(&journals, &nothing_to_store()).unwrap());
    // The one read is that of the session. The commits are the renewal of the session, the queue, and the
    // removal of the session.
    let counts = engine.counts() - before;
    assert_eq!((counts.reads, counts.commits), (1, 3));
    assert_eq!(journals.all(), []);
    for n in 0..50 {
        assert_eq!(look(&other, dir.ino, &format!("f{n}")).unwrap().unwrap().ino, Ino(100 + n));
    }
    let records = engine.read(&[RecordKey::Session(session)]).unwrap().records;
    assert_eq!(records, [Record::Session(session, None)]);
}

#[test]
fn a_journal_that_cannot_be_removed_is_replayed_once() {
    let (engine, journals) = (volume(), Memory::default());
    let holder = client_with(engine.clone(), Some(&journals));
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&holder, dir.ino, "f", 11, MakeKind::Regular).unwrap();
    let session = holder.session();
    drop(holder);
    let other = client(&engine, false);
    journals.set_keeps_all(true);
    assert!(other.replay(&journals, &nothing_to_store()).unwrap());
    assert_eq!(journals.all(), [(session, Vec::new())]);
    assert!(!other.replay(&journals, &nothing_to_store()).unwrap());
    assert!(look(&other, dir.ino, "f").unwrap().is_some());
}

/// The file of an embedded database can be replaced by a copy, while its journals remain beside it.
#[test]
fn a_journal_is_not_replayed_on_an_older_copy_of_its_database() {
    let (engine, journals) = (volume(), Memory::default());
    let holder = client_with(Embedded::open(engine.clone()), Some(&journals));
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&holder, dir.ino, "old", 11, MakeKind::Regular).unwrap();
    holder.settle_held().unwrap();
    make(&holder, dir.ino, "new", 12, MakeKind::Regular).unwrap();
    let (session, mark) = (holder.session(), host::lock(&holder.held.state).last_mark.unwrap());
    drop(holder);
    // A copy that was made before the commit does not have its mark.
    let set_marks = |number: u128, term, ended: Vec<Term>| {
        let effects = vec![Effect::BeginTerm { session, term, ended: ended.into() }];
        engine.commit(&[Txn { op_id: OpId((1 << 90) + number), guards: Vec::new(), effects }]).unwrap();
    };
    set_marks(0, Term(99), vec![mark]);
    let replay = || {
        let next = Meta::open(Embedded::open(engine.clone()), 100).unwrap();
        next.replay(&journals, &nothing_to_store())
    };
    let error = replay().unwrap_err().to_string();
    assert!(error.contains("older copy"), "{error}");
    assert_eq!((journals.all().len(), stored(&engine, RecordKey::Inode(Ino(12)))), (1, None));
    set_marks(1, mark, Vec::new());
    assert!(replay().unwrap());
    assert!(journals.all().is_empty() && stored(&engine, RecordKey::Inode(Ino(12))).is_some());
}

/// The session of an embedded database is removed only by force, or the database is another copy.
#[test]
fn the_journal_of_an_embedded_database_without_its_session_is_kept() {
    let (engine, journals) = (volume(), Memory::default());
    let holder = client_with(Embedded::open(engine.clone()), Some(&journals));
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&holder, dir.ino, "f", 11, MakeKind::Regular).unwrap();
    let (session, before) = (holder.session(), journals.all());
    drop(holder);
    assert!(client(&engine, false).remove_session(session, Time::from_nanos(1)).unwrap());
    let next = Meta::open(Embedded::open(engine.clone()), 100).unwrap();
    assert!(next.replay(&journals, &nothing_to_store()).unwrap());
    assert_eq!((journals.all(), journals.aside()), (Vec::new(), before));
}

#[test]
fn answered_changes_are_lost_if_the_session_was_removed_or_the_machine_restarted() {
    for restarts in [false, true] {
        let (engine, journals) = (volume(), Memory::default());
        let (holder, other) = (client_with(engine.clone(), Some(&journals)), client(&engine, false));
        let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
        make(&holder, dir.ino, "lost", 11, MakeKind::Regular).unwrap();
        let session = holder.session();
        if restarts {
            let (_, bytes) = journals.all().pop().unwrap();
            let unfinished = journal::read(&bytes).unwrap();
            assert_eq!(unfinished.changes(), 1);
            let header = Header { boot_id: "another".to_owned(), ..unfinished.header };
            let storage = journals.create(&header.volume, session).unwrap();
            let mut journal = Journal::begin(storage, &header).unwrap();
            assert!(journal.queued(&unfinished.queue[0].0, false));
            drop(holder);
            // It is not known whether the session has ended.
            assert!(!other.replay(&journals, &nothing_to_store()).unwrap());
            assert_eq!(journals.all().len(), 1);
        } else {
            drop(holder);
        }
        assert!(other.remove_session(session, Time::from_nanos(1)).unwrap());
        other.replay(&journals, &nothing_to_store()).unwrap();
        assert_eq!(journals.all(), []);
        assert_eq!(look(&other, dir.ino, "lost").unwrap(), None);
        make(&other, dir.ino, "new", 12, MakeKind::Regular).unwrap();
        let records = engine.read(&[RecordKey::Session(session)]).unwrap().records;
        assert_eq!(records, [Record::Session(session, None)]);
    }
}

#[test]
fn without_room_for_the_journal_changes_are_committed_before_they_are_answered() {
    let (engine, journals) = (volume(), Memory::default());
    let holder = client_with(engine.clone(), Some(&journals));
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&holder, dir.ino, "a", 11, MakeKind::Regular).unwrap();
    journals.set_full(true);
    make(&holder, dir.ino, "b", 12, MakeKind::Regular).unwrap();
    for ino in [11, 12] {
        assert!(stored(&engine, RecordKey::Inode(Ino(ino))).is_some());
    }
    make(&holder, dir.ino, "c", 13, MakeKind::Regular).unwrap();
    assert!(stored(&engine, RecordKey::Inode(Ino(13))).is_some());
    journals.set_full(false);
    let before = engine.counts();
    make(&holder, dir.ino, "d", 14, MakeKind::Regular).unwrap();
    assert_eq!((engine.counts() - before).commits, 0);
    drop(holder);
    let other = client(&engine, false);
    other.replay(&journals, &nothing_to_store()).unwrap();
    for (name, ino) in [("a", 11), ("b", 12), ("c", 13), ("d", 14)] {
        assert_eq!(look(&other, dir.ino, name).unwrap().unwrap().ino, Ino(ino));
    }
}

#[test]
fn nothing_is_held_below_a_limit() {
    let engine = volume();
    let meta = client(&engine, true);
    meta.run(&ops::Configure { capacity_bytes: Some(1 << 40), ..ops::Configure::default() }, &BY_KERNEL)
        .unwrap();
    meta.refresh_settings().unwrap();
    let dir = make(&meta, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    assert_eq!((dir.holder(), meta.held_directories()), (None, 0));
}

#[test]
fn nothing_is_held_if_the_volume_says_so() {
    let engine = volume();
    let meta = client(&engine, true);
    for (sync, ino) in [(true, 10), (false, 11)] {
        let change = ops::Configure { sync_metadata: Some(sync), ..ops::Configure::default() };
        meta.run(&change, &BY_KERNEL).unwrap();
        meta.refresh_settings().unwrap();
        make(&meta, Ino::ROOT, &format!("d{ino}"), ino, MakeKind::Directory).unwrap();
        assert_eq!(meta.held_directories(), usize::from(!sync));
    }
}

#[test]
fn nothing_is_held_while_the_disk_of_an_embedded_database_is_nearly_full() {
    let (engine, journals) = (volume(), Memory::default());
    let meta = client_with(Embedded::open(engine.clone()), Some(&journals));
    let has_room = Arc::new(AtomicBool::new(true));
    let shared = Arc::clone(&has_room);
    meta.set_room_check(Arc::new(move || shared.load(Ordering::Relaxed)));
    let held = |ino: u64| {
        make(&meta, Ino::ROOT, &format!("d{ino}"), ino, MakeKind::Directory).unwrap();
        meta.held_directories()
    };
    assert_eq!(held(10), 1);
    has_room.store(false, Ordering::Relaxed);
    beside(&meta, || {
        while meta.held_directories() > 0 {
            std::thread::yield_now();
        }
    });
    assert_eq!(held(11), 0);
    has_room.store(true, Ordering::Relaxed);
    meta.held.not_before.store(0, Ordering::Relaxed);
    assert_eq!(held(12), 1);
}

/// The engine for SQLite reports errors of the disk as permanent.
#[test]
fn errors_of_the_disk_lose_no_answered_change_of_an_embedded_database() {
    let (engine, journals) = (volume(), Memory::default());
    let embedded = Embedded::open(engine.clone());
    let meta = client_with(embedded.clone(), Some(&journals));
    let dir = make(&meta, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&meta, dir.ino, "kept", 11, MakeKind::Regular).unwrap();
    embedded.is_broken.store(true, Ordering::Relaxed);
    meta.settle_held().unwrap_err();
    make(&meta, Ino::ROOT, "f", 12, MakeKind::Regular).unwrap_err();
    embedded.is_broken.store(false, Ordering::Relaxed);
    meta.settle_held().unwrap();
    assert!(stored(&engine, RecordKey::Inode(Ino(11))).is_some());
    // The mount is killed while the disk fails, and the disk also fails during the first replay.
    make(&meta, dir.ino, "more", 13, MakeKind::Regular).unwrap();
    drop(meta);
    let next = Embedded::open(engine.clone());
    next.is_broken.store(true, Ordering::Relaxed);
    let replay =
        || Meta::open(next.clone(), 100).map(|meta| meta.replay(&journals, &nothing_to_store()).is_ok());
    assert!(replay().is_err() || journals.all().len() == 1);
    next.is_broken.store(false, Ordering::Relaxed);
    assert!(replay().unwrap());
    assert!(stored(&engine, RecordKey::Inode(Ino(13))).is_some());
}

#[test]
fn answered_changes_are_committed_on_a_full_disk() {
    let (engine, journals) = (volume(), Memory::default());
    let holder = client_with(Embedded::open(engine.clone()), Some(&journals));
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&holder, dir.ino, "f", 11, MakeKind::Regular).unwrap();
    drop(holder);
    let next = Embedded::open(engine.clone());
    next.is_full.store(true, Ordering::Relaxed);
    let meta = client_with(next, Some(&journals));
    assert!(stored(&engine, RecordKey::Inode(Ino(11))).is_some());
    let error = make(&meta, Ino::ROOT, "more", 12, MakeKind::Regular).unwrap_err();
    assert_eq!(Errno::from(error), Errno::ENOSPC, "only the replay uses the reserve");
}

/// Another client that does not have the volume exclusively holds nothing, and uses what is committed.
#[test]
fn other_clients_of_an_embedded_database_recall_nothing() {
    let (engine, journals) = (volume(), Memory::default());
    let holder = client_with(Embedded::open(engine.clone()), Some(&journals));
    let dir = make(&holder, Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&holder, dir.ino, "f", 11, MakeKind::Regular).unwrap();
    let other = client_with(Embedded::open(engine.clone()), None);
    other.set_exclusive(false);
    let before = engine.counts();
    assert_eq!(look(&other, dir.ino, "f").unwrap(), None);
    assert_eq!((engine.counts() - before).commits, 0);
    holder.settle_held().unwrap();
    other.cache.clear();
    assert!(look(&other, dir.ino, "f").unwrap().is_some());
    assert_eq!(holder.held_directories(), 1);
}

/// Random operations on a client that holds what it creates, and on one that does not, each on an engine of
/// its own.
struct Twins {
    engines: [Counted; 2],
    /// The engine with faults between the first engine and its client.
    faulty: Arc<Faulty<Counted>>,
    journals: Memory,
    is_embedded: bool,
    metas: [Arc<Meta>; 2],
    random: u64,
    next: u64,
    directories: Vec<Ino>,
    files: Vec<Ino>,
}

impl Twins {
    fn new(seed: u64, is_embedded: bool) -> Twins {
        let (engines, journals) = ([volume(), volume()], Memory::default());
        let faulty = Arc::new(Faulty::new(engines[0].clone(), seed, FaultRates::default()));
        let holder = client_with(Self::open(&faulty, is_embedded), Some(&journals));
        let metas = [holder, client(&engines[1], false)];
        let (directories, files) = (vec![Ino::ROOT], Vec::new());
        Twins { engines, faulty, journals, is_embedded, metas, random: seed, next: 10, directories, files }
    }

    /// The engine of the client that holds directories, as a new process opens it.
    fn open(faulty: &Arc<Faulty<Counted>>, is_embedded: bool) -> Arc<dyn Engine> {
        if is_embedded { Embedded::open(faulty.clone()) } else { faulty.clone() }
    }

    fn below(&mut self, most: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % most
    }

    fn directory(&mut self) -> Ino {
        let at = self.below(self.directories.len() as u64) as usize;
        self.directories[at]
    }

    fn file(&mut self) -> Ino {
        let at = self.below(self.files.len().max(1) as u64) as usize;
        self.files.get(at).copied().unwrap_or(Ino(7))
    }

    fn name(&mut self) -> Name {
        name(&format!("n{}", self.below(6)))
    }

    /// Runs an operation on both, and compares the answers.
    fn both<O: Op>(&self, op: &O) -> Result<O::Reply, Failure>
    where
        O::Reply: std::fmt::Debug,
    {
        let [one, two] = [0, 1].map(|at| self.metas[at].run(op, &BY_KERNEL));
        let shown = |answer: &Result<O::Reply, Failure>| without_times(&format!("{answer:?}"));
        assert_eq!(shown(&one), shown(&two), "{}", O::NAME);
        one
    }

    /// Lists a directory on both in small pages, and compares them.
    fn list(&mut self, dir: Ino) {
        let (limit, inodes) = (1 + self.below(4) as usize, self.below(2) == 0);
        let mut after = None;
        loop {
            let pages = [0, 1].map(|at| self.metas[at].list(dir, after.clone(), limit, inodes).unwrap());
            let [one, two] = pages.each_ref().map(|page| without_times(&format!("{page:?}")));
            assert_eq!(one, two, "{dir:?} after {after:?}");
            let [Listing { entries, more }, _] = pages;
            assert_eq!(entries.iter().all(|(.., inode)| inode.is_some()), inodes || entries.is_empty());
            match entries.last() {
                Some((name, ..)) if more => after = Some(name.clone()),
                _ => return,
            }
        }
    }

    fn step(&mut self) {
        let (parent, name, ino) = (self.directory(), self.name(), self.file());
        match self.below(20) {
            0..5 => {
                self.next += 1;
                let kind = match self.below(4) {
                    0 => MakeKind::Directory,
                    1 => MakeKind::Symlink(b"there".as_slice().into()),
                    _ => MakeKind::Regular,
                };
                let ino = Ino(self.next);
                let mode = Mode::new(0o755);
                let is_dir = kind == MakeKind::Directory;
                let make = Make { parent, name, ino, kind, mode, umask: 0, uid: 0, gid: 0 };
                if self.both(&make).is_ok() {
                    if is_dir { self.directories.push(ino) } else { self.files.push(ino) }
                }
            }
            5 => {
                // A file that is open stays, without a name.
                let open = Some(ino).filter(|_| self.below(2) == 0);
                drop(self.both(&Unlink { parent, name, open }));
            }
            6 => drop(self.both(&Rmdir { parent, name })),
            7..9 => {
                let (new_parent, new_name) = (self.directory(), self.name());
                let flags = RenameFlags { exchange: self.below(5) == 0, no_replace: false };
                drop(self.both(&Rename {
                    parent,
                    name,
                    new_parent,
                    new_name,
                    flags,
                    whiteout: None,
                    open: None,
                }));
            }
            9 => drop(self.both(&Link { ino, parent, name, orphan_of: None })),
            10 => {
                let mode = 0o600 + self.below(8) as u32;
                drop(self.both(&set_mode(ino, mode)));
            }
            11 => {
                let value: Arc<[u8]> = vec![1; self.below(9000) as usize].into();
                let name = types::XattrName::new(b"user.x").unwrap();
                let set = ops::SetXattr { ino, name, value, mode: ops::XattrMode::Set };
                drop(self.both(&set));
            }
            12 => {
                // The attributes of a removed file may still be cached.
                if self.both(&GetInode(ino)).is_ok() {
                    drop(self.both(&ops::GetXattrs(ino)));
                    drop(self.both(&ops::ReadLink(ino)));
                }
                drop(self.both(&GetInode(parent)));
            }
            13 => match self.below(10) {
                3..5 => self.metas[0].cache.clear(),
                0 => self.metas[0].give_back().unwrap(),
                1 => self.metas[0].settle_held().unwrap(),
                2 => self.metas[0].held.not_before.store(0, Ordering::Relaxed),
                // Another client reaches the directory and recalls it.
                _ if self.metas[0].held_directories() > 0 && !self.is_embedded => {
                    let (holder, other) = (Arc::clone(&self.metas[0]), client(&self.engines[0], false));
                    // A program reaches a directory only by its path, so walk from the root.
                    let walk = || {
                        let mut above = vec![Ino::ROOT];
                        while let Some(dir) = above.pop() {
                            let found = (0..6).filter_map(|at| look(&other, dir, &format!("n{at}")).unwrap());
                            above.extend(found.filter(|inode| inode.kind.is_dir()).map(|inode| inode.ino));
                        }
                        other.run(&Lookup { parent, name: name.clone() }, &BY_KERNEL)
                    };
                    let found = beside(&holder, walk);
                    let same = self.metas[1].run(&Lookup { parent, name }, &BY_KERNEL);
                    assert_eq!(without_times(&format!("{found:?}")), without_times(&format!("{same:?}")));
                }
                _ => {}
            },
            14..16 => {
                let (pos, len) = (self.below(100) as u32, 1 + self.below(50) as u32);
                let source = types::SliceSource::Inline(vec![self.below(256) as u8; len as usize].into());
                let slices = vec![(types::ChunkIndex(0), types::Slice { pos, len, source })];
                let end = u64::from(pos + len);
                drop(self.both(&ops::Write { ino, slices, end, mtime: Time::from_nanos(5) }));
            }
            16 => {
                let size = Some(self.below(120));
                drop(self.both(&SetAttr { mode: None, size, ..set_mode(ino, 0) }));
            }
            17 => {
                if self.both(&GetInode(ino)).is_ok_and(|inode| inode.kind == FileType::Regular) {
                    drop(self.both(&ops::GetChunk { ino, chunk: types::ChunkIndex(0) }));
                }
            }
            18 => self.list(parent),
            _ => drop(self.both(&Lookup { parent, name })),
        }
    }

    /// Makes a file or directory with a new name.
    fn make_new(&mut self, parent: Ino, kind: MakeKind) -> Ino {
        self.next += 1;
        let (ino, name, mode) = (Ino(self.next), name(&format!("new{}", self.next)), Mode::new(0o755));
        let is_dir = kind == MakeKind::Directory;
        if is_dir {
            self.directories.push(ino)
        } else {
            self.files.push(ino)
        }
        self.both(&Make { parent, name, ino, kind, mode, umask: 0, uid: 0, gid: 0 }).unwrap();
        ino
    }

    /// Kills the client that holds directories, perhaps while a request is under way, and starts it again.
    fn kill(&mut self) {
        // No request to an embedded engine arrives after the end of the process.
        let faults = [Fault::None, Fault::Before, Fault::After, Fault::Late];
        let kinds = if self.is_embedded { 3 } else { 4 };
        let mut fault = || faults[self.below(kinds) as usize];
        let [first, second, third] = [fault(), fault(), fault()];
        // The client must hold at least this directory.
        let dir = self.make_new(Ino::ROOT, MakeKind::Directory);
        (0..self.below(4)).for_each(|_| _ = self.make_new(dir, MakeKind::Regular));
        self.metas[0].set_retry_timeout(Duration::ZERO);
        self.faulty.script([first]);
        self.faulty.arm(true);
        let _ = self.metas[0].send_queued(u64::MAX);
        self.faulty.arm(false);
        (0..self.below(4)).for_each(|_| _ = self.make_new(dir, MakeKind::Regular));
        // This drops the last reference to the killed client.
        self.metas[0] = Arc::clone(&self.metas[1]);
        // The first replay may be killed too. It reads the session and renews it first.
        let next = Meta::open(Self::open(&self.faulty, self.is_embedded), 1000).unwrap();
        next.set_retry_timeout(Duration::ZERO);
        self.faulty.script([Fault::None, Fault::None, Fault::None, second, third]);
        self.faulty.arm(true);
        let _ = next.replay(&self.journals, &nothing_to_store());
        self.faulty.arm(false);
        drop(next);
        let engine = Self::open(&self.faulty, self.is_embedded);
        self.metas[0] = client_with(engine, Some(&self.journals));
        self.faulty.deliver().unwrap();
        self.metas[0].cache.clear();
    }

    fn records(&self, at: usize) -> Vec<String> {
        let scan = Scan::Inodes { after: Ino(0), limit: 100_000 };
        let mut all = self.engines[at].scan(&scan).unwrap().snapshot.records;
        for dir in &self.directories {
            let scan =
                Scan::Dir { parent: *dir, after: None, limit: 1000, include: meta::ScanInclude::Nothing };
            all.extend(self.engines[at].scan(&scan).unwrap().snapshot.records);
        }
        for ino in &self.files {
            let keys = [RecordKey::Slices(*ino, types::ChunkIndex(0)), RecordKey::Xattrs(*ino)];
            all.extend(self.engines[at].read(&keys).unwrap().records);
        }
        let usage = self.engines[at].read(&[RecordKey::Usage]).unwrap().records;
        all.iter().chain(&usage).map(|record| without_times(&format!("{record:?}"))).collect()
    }
}

/// Removes the parts of a text that differ between two runs: times, and the holders of directories.
fn without_times(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) =
        ["atime: ", "mtime: ", "ctime: ", "size: 22517"].iter().filter_map(|key| rest.find(key)).min()
    {
        shown.push_str(&rest[..at]);
        rest = rest[at..].find([',', '}']).map_or("", |end| &rest[at + end..]);
    }
    let shown = shown + rest;
    shown.replace(" size: 4096,", " ,")
}

#[test]
fn random_operations_have_the_same_answers_with_and_without_held_directories() {
    for (seed, is_embedded) in (0..40).map(|seed| (seed, seed % 2 == 1)) {
        let mut twins = Twins::new(seed, is_embedded);
        for _ in 0..400 {
            twins.step();
        }
        twins.metas[0].give_back().unwrap();
        assert_eq!(twins.records(0), twins.records(1), "seed {seed}");
        let sizes = twins.engines[0].scan(&Scan::Inodes { after: Ino(0), limit: 100_000 }).unwrap();
        for record in sizes.snapshot.records {
            let Record::Inode(_, Some(inode)) = record else { continue };
            assert_eq!(inode.holder(), None, "seed {seed}: {inode:?}");
        }
    }
}

#[test]
fn random_operations_survive_kills() {
    for (seed, is_embedded) in (1000..1120).map(|seed| (seed, seed % 2 == 1)) {
        let mut twins = Twins::new(seed, is_embedded);
        for _ in 0..300 {
            twins.step();
            if twins.below(40) == 0 {
                twins.kill();
                assert_eq!(twins.records(0), twins.records(1), "seed {seed}");
            }
        }
        twins.metas[0].give_back().unwrap();
        assert_eq!(twins.records(0), twins.records(1), "seed {seed}");
    }
}

/// A client that commits a change before it begins its session, like a mount that first cleans up after dead
/// mounts. The operation id of this change belongs to no term.
fn registered_later(engine: &Counted, journals: &Memory) -> Arc<Meta> {
    let meta = Arc::new(Meta::open(engine.clone(), 1000).unwrap());
    meta.replay(journals, &nothing_to_store()).unwrap();
    meta.hold_new_directories(nothing_to_store(), Arc::new(journals.clone()));
    meta.drop_garbage(&[types::SliceId(1)]).unwrap();
    let session = meta.session();
    meta.begin_journal(session, Time::from_nanos(1));
    meta.begin_session(Session::new(session, Time::from_nanos(1)), LONG).unwrap();
    meta
}

/// A replay uses operation ids of another session to renew and remove the session. It cannot use the first
/// ids of the session itself: the killed client may have used them, and the database ignores a change whose
/// id it knows.
#[test]
fn a_replay_removes_the_session_whatever_the_killed_client_had_committed() {
    let (engine, journals) = (volume(), Memory::default());
    for _ in 0..2 {
        let killed = registered_later(&engine, &journals);
        let session = killed.session();
        drop(killed);
        assert!(client(&engine, false).replay(&journals, &nothing_to_store()).unwrap());
        let records = engine.read(&[RecordKey::Session(session)]).unwrap().records;
        assert_eq!(records, [Record::Session(session, None)]);
    }
    assert_eq!(journals.all(), []);
}

/// If a journal lists sent transactions but no queued ones, the sent ones were never answered.
#[test]
fn a_journal_without_a_queue_is_replayed() {
    let (engine, journals) = (volume(), Memory::default());
    let killed = registered_later(&engine, &journals);
    let session = killed.session();
    drop(killed);
    let header = journal::read(&journals.all()[0].1).unwrap().header;
    let storage = journals.create(&header.volume, session).unwrap();
    let mut journal = Journal::begin(storage, &header).unwrap();
    journal.sent(&[1, 3]);
    drop(journal);
    assert!(client(&engine, false).replay(&journals, &nothing_to_store()).unwrap());
    assert_eq!(journals.all(), []);
}

/// A journal that cannot be used does not prevent the replay of the others. After its session is removed, it
/// does not prevent the start of the mount either.
#[test]
fn one_unusable_journal_does_not_hold_up_the_others() {
    let (engine, journals) = (volume(), Memory::default());
    let killed = [(); 3].map(|()| client_with(engine.clone(), Some(&journals)));
    let sessions = killed.each_ref().map(|client| client.session());
    let dir = make(&killed[2], Ino::ROOT, "d", 10, MakeKind::Directory).unwrap();
    make(&killed[2], dir.ino, "f", 11, MakeKind::Regular).unwrap();
    drop(killed);
    let mut all = journals.all();
    all.sort_by_key(|(session, _)| *session);
    let other_format = [&[6, 0, 0, 0][..], &crc32c(&[0, 200, 1, 0, 0, 0]), &[0, 200, 1, 0, 0, 0]].concat();
    assert_eq!(journal::read(&other_format), Err(journal::Unusable::OtherFormat(200)));
    journals.set_bytes(sessions[0], &other_format);
    journals.set_bytes(sessions[1], &[0; 100]);
    let next = client(&engine, false);
    let error = next.replay(&journals, &nothing_to_store()).unwrap_err().to_string();
    assert!(error.contains("format 200") && error.contains("--force"), "{error}");
    assert_eq!(look(&next, dir.ino, "f").unwrap().unwrap().ino, Ino(11));
    assert_eq!(journals.all().iter().map(|(session, _)| *session).collect::<Vec<_>>(), [sessions[0]]);
    assert_eq!(journals.aside(), [(sessions[1], vec![0; 100])], "it is kept");
    assert!(next.remove_session(sessions[0], Time::from_nanos(1)).unwrap());
    next.replay(&journals, &nothing_to_store()).unwrap();
    assert_eq!(journals.all(), []);
}

fn crc32c(bytes: &[u8]) -> [u8; 4] {
    // CRC-32C (Castagnoli's polynomial), one bit at a time.
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    });
    (!crc).to_le_bytes()
}

/// A volume that was loaded from a dump has the UUID of the dumped volume, but does not own its journals.
#[test]
fn a_volume_leaves_the_journals_of_another_with_its_uuid_alone() {
    let (engine, journals) = (volume(), Memory::default());
    drop(client_with(engine.clone(), Some(&journals)));
    let (_, bytes) = journals.all().pop().unwrap();
    let header = Header { loaded: "a dump".to_owned(), ..journal::read(&bytes).unwrap().header };
    let storage = journals.create(&header.volume, header.session).unwrap();
    drop(Journal::begin(storage, &header).unwrap());
    assert!(!client(&engine, false).replay(&journals, &nothing_to_store()).unwrap());
    assert_eq!(journals.all().len(), 1);
}
