//! Tests that the conformance suite does not cover: durability, foreign and newer databases, damage, a full
//! disk, and the death of the process.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine_sqlite::{LockError, MountLock, OpenError, Options, SqliteEngine, VERSION};
use meta::{
    Effect, Engine, EngineError, ErrorKind, Guard, Inode, MemEngine, Outcome, Record, RecordKey, Scan,
    ScanInclude, Seq, Session, Txn, Usage,
};
use types::{
    ChunkIndex, Errno, FileType, Ino, Mode, Name, OpId, SessionId, Slice, SliceId, SliceSource, Time,
    XattrName,
};

fn create(path: &Path) -> SqliteEngine {
    SqliteEngine::open(path, &Options { create: true, ..Options::default() }).unwrap()
}

fn open(path: &Path) -> Result<SqliteEngine, OpenError> {
    SqliteEngine::open(path, &Options::default())
}

fn inode(ino: u64) -> Inode {
    Inode {
        size: 1,
        access_rev: 0,
        ..Inode::new(Ino(ino), FileType::Regular, Mode::new(0o644), Time::from_nanos(0))
    }
}

fn txn(guards: Vec<Guard>, effects: Vec<Effect>) -> Txn {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Txn { op_id: OpId(NEXT.fetch_add(1, Ordering::Relaxed).into()), guards, effects }
}

fn add_file(ino: u64) -> Txn {
    let name =
        Name::new(format!("file {ino}, whose name is long enough to fill a page sooner").as_bytes()).unwrap();
    let dirent = Effect::PutDirent { parent: Ino(2), name, ino: Ino(ino), kind: FileType::Regular };
    txn(vec![Guard::InodeAbsent { ino: Ino(ino) }], vec![Effect::PutInode(inode(ino)), dirent])
}

fn commit(engine: &dyn Engine, txn: Txn) -> Result<Seq, EngineError> {
    match engine.commit(&[txn])?.remove(0) {
        Outcome::Committed { seq, .. } => Ok(seq),
        Outcome::Conflict(snapshot) => panic!("a conflict: {snapshot:?}"),
    }
}

fn inodes(engine: &dyn Engine) -> Vec<Record> {
    engine.scan(&Scan::Inodes { after: Ino(0), limit: usize::MAX }).unwrap().snapshot.records
}

fn inos(engine: &dyn Engine) -> BTreeSet<u64> {
    let ino = |record| if let Record::Inode(ino, _) = record { ino.0 } else { 0 };
    inodes(engine).into_iter().map(ino).collect()
}

/// Asserts that the usage matches the inodes, and that each inode has its name.
fn assert_consistent(engine: &dyn Engine) {
    let inodes = inos(engine);
    let count = inodes.len() as u64;
    let usage = engine.read(&[RecordKey::Usage]).unwrap().records;
    assert_eq!(usage, [Record::Usage(Usage { inodes: count, blocks: count })]);
    let names = Scan::Dir { parent: Ino(2), after: None, limit: usize::MAX, include: ScanInclude::Nothing };
    let entries = engine.scan(&names).unwrap().snapshot.records;
    let named = entries.into_iter().map(|record| match record {
        Record::Dirent(_, _, Some(dirent)) => dirent.ino.0,
        other => panic!("{other:?}"),
    });
    assert_eq!(named.collect::<BTreeSet<_>>(), inodes);
}

/// The effects that make a file with several rows of chunks, a symlink target and an xattr. Every tenth file
/// gets the name of another one.
fn add_everything(ino: u64) -> Vec<Effect> {
    let at = Ino(ino);
    let append = |chunk, pos| {
        let source = SliceSource::Blocks { id: SliceId(1 + ino % 40), offset: 0, size: 9 };
        Effect::AppendSlice { ino: at, chunk: ChunkIndex(chunk), slice: Slice { pos, len: 9, source } }
    };
    let name = Name::new(format!("{}", if ino.is_multiple_of(10) { 11 } else { ino }).as_bytes()).unwrap();
    vec![
        Effect::PutInode(inode(ino)),
        Effect::Share { slice: SliceId(1 + ino % 40), rows: 5 },
        append(0, 0),
        append(0, 5),
        append(2, 0),
        // This row is not after the last one.
        append(1, 7),
        append(0, 8),
        Effect::PutSymlink { ino: at, target: ino.to_be_bytes()[..].into() },
        Effect::PutXattr { ino: at, name: XattrName::new(b"user.a").unwrap(), value: b"x"[..].into() },
        Effect::PutDirent { parent: Ino(2), name, ino: at, kind: FileType::Regular },
    ]
}

/// Rows are inserted together, unless an inode among them exists.
#[test]
fn many_effects_of_a_transaction_equal_single_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.db");
    // The effects come in the order of the files or, as those of a copy, in the order of their kinds.
    for (run, is_by_kind) in [false, true].into_iter().enumerate() {
        let (engine, memory) = (create(&path.with_extension(run.to_string())), MemEngine::default());
        let mut keys = Vec::new();
        for (first, last) in [(10, 30), (100, 350), (20, 150)] {
            let mut effects: Vec<Effect> = (first..last).flat_map(add_everything).collect();
            if is_by_kind {
                effects.sort_by_key(|effect| !matches!(effect, Effect::PutInode(_)));
            }
            let name = Name::new(b"11").unwrap();
            effects.push(Effect::DropDirent { parent: Ino(2), name });
            effects.extend(add_everything(last));
            effects.push(Effect::DropInode { ino: Ino(last) });
            for engine in [&engine as &dyn Engine, &memory] {
                commit(engine, txn(Vec::new(), effects.clone())).unwrap();
            }
            for ino in (first..=last).map(Ino) {
                let chunks = (0..3).map(|chunk| RecordKey::Slices(ino, ChunkIndex(chunk)));
                keys.extend(chunks);
                keys.extend([RecordKey::Inode(ino), RecordKey::Xattrs(ino), RecordKey::Symlink(ino)]);
            }
            keys.push(RecordKey::Usage);
            let expected = memory.read(&keys).unwrap().records;
            assert_eq!(engine.read(&keys).unwrap().records, expected);
            for (key, expected) in keys.iter().zip(&expected) {
                assert_eq!(
                    engine.read(std::slice::from_ref(key)).unwrap().records,
                    std::slice::from_ref(expected)
                );
            }
            for scan in [
                Scan::Dir { parent: Ino(2), after: None, limit: 1000, include: ScanInclude::Nothing },
                Scan::Shared { after: SliceId(0), limit: 1000 },
                Scan::Garbage { after: SliceId(0), limit: 1000 },
            ] {
                let records = |engine: &dyn Engine| engine.scan(&scan).unwrap().snapshot.records;
                assert_eq!(records(&engine), records(&memory));
            }
            // Guards of many chunks, all of which must hold.
            let guards = |break_at: usize| {
                let rows = expected.iter().filter_map(|record| match record {
                    Record::Slices(ino, chunk, rows) => Some((*ino, *chunk, rows.clone())),
                    _ => None,
                });
                let guard =
                    |(at, (ino, chunk, rows)): (usize, (Ino, ChunkIndex, std::sync::Arc<[Slice]>))| {
                        let chunk = if at == break_at { ChunkIndex(9) } else { chunk };
                        Guard::Rows { ino, chunk, rows }
                    };
                rows.enumerate().map(guard).collect::<Vec<_>>()
            };
            assert!(matches!(
                engine.commit(&[txn(guards(usize::MAX), Vec::new())]).unwrap()[..],
                [Outcome::Committed { .. }]
            ));
            assert!(matches!(
                engine.commit(&[txn(guards(40), Vec::new())]).unwrap()[..],
                [Outcome::Conflict(_)]
            ));
        }
    }
}

#[test]
fn commits_persist_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    for round in 0..3 {
        let engine = create(&path);
        assert_eq!(inos(&engine), (10..10 + round).collect());
        commit(&engine, add_file(10 + round)).unwrap();
    }
    assert_consistent(&open(&path).unwrap());
    let left = || -> BTreeSet<_> {
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(
        left(),
        ["v.db", "v.db.reserve"].map(Into::into).into(),
        "closing checkpoints the log and removes it"
    );
    SqliteEngine::remove_files(&path).unwrap();
    SqliteEngine::remove_files(&path).unwrap();
    assert!(matches!(open(&path), Err(OpenError::Missing(_))));
    assert_eq!(left(), BTreeSet::new(), "opening a missing database creates no file");
}

#[test]
fn two_handles_on_one_database_see_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    let one = create(&path);
    let other = open(&path).unwrap();
    commit(&one, add_file(10)).unwrap();
    commit(&other, add_file(11)).unwrap();
    assert_eq!((inos(&one), inos(&other)), (BTreeSet::from([10, 11]), BTreeSet::from([10, 11])));
}

#[test]
fn foreign_and_newer_databases_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    let message = |path: &Path| open(path).unwrap_err().to_string();

    drop(create(&path));
    let plain = rusqlite::Connection::open(&path).unwrap();
    plain.pragma_update(None, "user_version", VERSION + 1).unwrap();
    drop(plain);
    let newer = message(&path);
    assert!(newer.contains(&format!("version {}", VERSION + 1)), "{newer}");
    assert!(newer.contains(&format!("up to {VERSION}")), "{newer}");

    let theirs = directory.path().join("theirs.db");
    let plain = rusqlite::Connection::open(&theirs).unwrap();
    plain.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
    let before = fs::read(&theirs).unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "this is a text, and long enough to be read as a header of a database".repeat(200))
        .unwrap();
    for path in [&theirs, &text] {
        assert!(message(path).contains("is not a limenfs database"), "{}", message(path));
        let error = SqliteEngine::open(path, &Options { create: true, ..Options::default() }).unwrap_err();
        assert!(matches!(error, OpenError::NotLimenfs(_)), "{error}");
    }
    assert_eq!(fs::read(&theirs).unwrap(), before, "the file must not change");

    let empty = directory.path().join("empty.db");
    fs::write(&empty, "").unwrap();
    assert!(matches!(open(&empty), Err(OpenError::Missing(_))));
    let nowhere = directory.path().join("none/v.db");
    let error = SqliteEngine::open(&nowhere, &Options { create: true, ..Options::default() }).unwrap_err();
    assert!(error.to_string().contains("none/v.db"), "{error}");
}

#[test]
fn damaged_database_error_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    let engine = create(&path);
    for ino in 10..500 {
        commit(&engine, add_file(ino)).unwrap();
    }
    drop(engine);
    let mut bytes = fs::read(&path).unwrap();
    let schema_pages = 5 * 4096;
    bytes[schema_pages..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let error = match open(&path) {
        Err(error) => error.to_string(),
        Ok(engine) => {
            let scan = Scan::Inodes { after: Ino(0), limit: usize::MAX };
            let error = engine.scan(&scan).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Determinate { transient: false });
            assert!(commit(&engine, add_file(600)).is_err());
            error.to_string()
        }
    };
    assert!(error.contains("v.db"), "{error}");
}

#[test]
fn exclusive_lock_excludes_other_handles() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    let (one, other) = (create(&path), open(&path).unwrap());
    let lock = one.lock_exclusive().unwrap();
    match other.lock_exclusive() {
        Err(LockError::AlreadyMounted { holder, .. }) => assert_eq!(holder, std::process::id().to_string()),
        outcome => panic!("{outcome:?}"),
    }
    commit(&other, add_file(10)).unwrap();
    drop(lock);
    let _lock = lock_in_the_end(&other);
}

#[test]
fn cache_is_dropped_when_others_may_have_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    let (one, other) = (create(&path), open(&path).unwrap());
    let touch = |nanos| Effect::SetTimes {
        ino: Ino(10),
        atime: None,
        mtime: None,
        ctime: Some(Time::from_nanos(nanos)),
    };
    let lock = one.lock_exclusive().unwrap();
    commit(&one, add_file(10)).unwrap();
    drop(lock);
    let grow = Effect::SetSize { ino: Ino(10), size: 7 };
    commit(&other, txn(Vec::new(), vec![grow])).unwrap();
    let guard = || Guard::Size { ino: Ino(10), size: 7 };
    commit(&one, txn(vec![guard()], vec![touch(1)])).unwrap();
    // A child process that another test starts has a copy of the dropped lock until it executes its program.
    let _lock = loop {
        match one.lock_exclusive() {
            Ok(lock) => break lock,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    commit(&one, txn(vec![guard()], vec![touch(2)])).unwrap();
}

#[test]
fn usage_contains_every_commit_up_to_its_sequence_number() {
    let directory = tempfile::tempdir().unwrap();
    let engine = create(&directory.path().join("v.db"));
    let _lock = engine.lock_exclusive().unwrap();
    let usage = || {
        let found = engine.read(&[RecordKey::Usage]).unwrap();
        match found.records[..] {
            [Record::Usage(usage)] => (found.seq.0, usage.inodes),
            ref records => panic!("{records:?}"),
        }
    };
    let before = usage();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Many threads, usually more than CPUs, so that some are interrupted while they read.
        for _ in 0..16 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let (seq, inodes) = usage();
                    assert!(
                        inodes - before.1 >= seq - before.0,
                        "{inodes} inodes after {seq} commits, first {before:?}"
                    );
                }
            });
        }
        for ino in 10..5000 {
            commit(&engine, add_file(ino)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(usage(), (before.0 + 4990, before.1 + 4990));
}

#[test]
fn usage_is_right_after_an_exclusive_handle_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    let usage = |engine: &SqliteEngine| match engine.read(&[RecordKey::Usage]).unwrap().records[..] {
        [Record::Usage(Usage { inodes, blocks })] => (inodes, blocks),
        ref records => panic!("{records:?}"),
    };
    let is_exact = || {
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.query_row("SELECT exact FROM usage", [], |row| row.get::<_, bool>(0)).unwrap()
    };
    let one = create(&path);
    let lock = one.lock_exclusive().unwrap();
    commit(&one, add_file(10)).unwrap();
    commit(&one, add_file(11)).unwrap();
    // Another handle does not trust the row.
    assert_eq!((usage(&one), usage(&open(&path).unwrap()), is_exact()), ((2, 2), (2, 2), false));
    one.sync().unwrap();
    assert_eq!((usage(&one), is_exact()), ((2, 2), true));
    commit(&one, add_file(12)).unwrap();
    assert!(!is_exact());
    // Drop the handle without a sync, as if the process were killed.
    drop((one, lock));
    let two = open(&path).unwrap();
    let lock = two.lock_exclusive().unwrap();
    commit(&two, add_file(13)).unwrap();
    assert_eq!(usage(&two), (4, 4));
    drop((two, lock));
    let three = open(&path).unwrap();
    let _lock = three.lock_shared().unwrap();
    assert!(is_exact());
    commit(&three, add_file(14)).unwrap();
    assert_eq!((usage(&three), is_exact()), ((5, 5), true));
}

#[test]
fn concurrent_transactions_share_commits() {
    const THREADS: u64 = 8;
    const EACH: u64 = 200;
    let directory = tempfile::tempdir().unwrap();
    let engine = create(&directory.path().join("v.db"));
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                for n in 0..EACH {
                    commit(engine, add_file(10 + n * THREADS + thread)).unwrap();
                }
            });
        }
    });
    let stats = engine.stats();
    assert_eq!(stats.transactions, THREADS * EACH);
    assert!(stats.commits < stats.transactions, "{stats:?}");
    assert_consistent(&engine);
}

#[test]
fn commuting_effects_match_the_memory_engine() {
    const THREADS: u64 = 6;
    let work = |engine: &(dyn Engine + Sync)| {
        for ino in 2..10 {
            commit(engine, txn(Vec::new(), vec![Effect::PutInode(inode(ino))])).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for n in 0..150 {
                        let ino = Ino(2 + (n * (thread + 3)) % 8);
                        let links = Effect::AddLinks { ino, delta: 1 + (n % 3) as i32 };
                        let extend = Effect::Extend { ino, size: n * 100 + thread };
                        commit(engine, txn(vec![Guard::Access { ino, rev: 0 }], vec![links, extend]))
                            .unwrap();
                    }
                });
            }
        });
        (inodes(engine), engine.read(&[RecordKey::Usage]).unwrap().records)
    };
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(work(&create(&directory.path().join("v.db"))), work(&MemEngine::default()));
}

#[test]
fn repeated_sync_reaches_the_disk_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    let engine = create(&path);
    for (round, syncs) in [(1, 1), (2, 2)] {
        commit(&engine, add_file(10 + round)).unwrap();
        engine.sync().unwrap();
        engine.sync().unwrap();
        assert_eq!(engine.stats().syncs, syncs);
    }
    // A new handle cannot know whether the log has commits of an earlier handle that were never synced.
    let other = open(&path).unwrap();
    other.sync().unwrap();
    assert_eq!(other.stats().syncs, 1);
}

/// A small tmpfs, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(size: &CStr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", directory.path(), "tmpfs", flags, size).unwrap();
        SmallDisk(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Uses up all free space.
    fn fill(&self) {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(self.path("filler")).unwrap();
        while file.write(&[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn log_is_checkpointed_while_the_database_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.db");
    let engine = create(&path);
    let size = || fs::metadata(&path).unwrap().len();
    let empty = size();
    let mut next = 10;
    while size() == empty {
        assert!(next < 100_000, "nothing but the log has grown");
        let txns: Vec<Txn> = (next..next + 100).map(add_file).collect();
        engine.commit(&txns).unwrap();
        next += 100;
    }
    drop(engine);
    let engine = open(&path).unwrap();
    assert_eq!(inos(&engine), (10..next).collect());
    assert_consistent(&engine);
}

#[test]
fn full_disk_loses_nothing_and_recovers() {
    if !skip::is_root() {
        return;
    }
    let disk = SmallDisk::mount(c"size=3m");
    let path = disk.path("v.db");
    let engine = create(&path);
    let mut next = 10;
    for _ in 0..50 {
        commit(&engine, add_file(next)).unwrap();
        next += 1;
    }
    disk.fill();
    let error = loop {
        match commit(&engine, add_file(next)) {
            Ok(_) => next += 1,
            Err(error) => break error,
        }
        assert!(next < 100_000, "the disk does not fill up");
    };
    assert_eq!((error.kind, error.errno), (ErrorKind::Determinate { transient: false }, Errno::ENOSPC));
    assert!(error.message.contains("v.db"), "{error}");
    assert_eq!(
        inos(&engine),
        (10..next).collect(),
        "reads still work and do not show the failed transaction"
    );
    assert_consistent(&engine);
    engine.sync().unwrap();

    fs::remove_file(disk.path("filler")).unwrap();
    for _ in 0..50 {
        commit(&engine, add_file(next)).unwrap();
        next += 1;
    }
    drop(engine);
    let engine = open(&path).unwrap();
    assert_eq!(inos(&engine), (10..next).collect());
    assert_consistent(&engine);
}

/// Retries, because a child process that another test forks inherits the lock until it calls exec.
fn lock_in_the_end(engine: &SqliteEngine) -> MountLock {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match engine.lock_exclusive() {
            Err(LockError::AlreadyMounted { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            locked => return locked.unwrap(),
        }
    }
}

#[test]
fn full_disk_permits_removal_and_opening() {
    if !skip::is_root() {
        return;
    }
    // The disk is filled by another program, or by the volume itself.
    for filled in [true, false] {
        remove_on_a_full_disk(&SmallDisk::mount(c"size=16m"), filled);
    }
}

fn remove_on_a_full_disk(disk: &SmallDisk, filled: bool) {
    let path = disk.path("v.db");
    let mut engine = create(&path);
    let mut lock = engine.lock_exclusive().unwrap();
    let data = |ino| {
        let slice = Slice { pos: 0, len: 1000, source: SliceSource::Inline(vec![7; 1000].into()) };
        let mut add = add_file(ino);
        add.effects.push(Effect::AppendSlice { ino: Ino(ino), chunk: ChunkIndex(0), slice });
        add
    };
    // An addition may succeed, because removals may have freed space.
    let try_to_add = |engine: &SqliteEngine, left: &mut BTreeSet<u64>, next: &mut u64| {
        match commit(engine, data(*next)) {
            Ok(_) => assert!(left.insert(*next)),
            Err(error) => assert_eq!(error.errno, Errno::ENOSPC, "{error}"),
        }
        *next += 1;
    };
    let mut next = 10;
    for _ in 0..500 {
        commit(&engine, data(next)).unwrap();
        next += 1;
    }
    if filled {
        disk.fill();
    }
    while commit(&engine, data(next)).is_ok() {
        next += 1;
        assert!(next < 100_000, "the disk does not fill up");
    }
    let mut left: BTreeSet<u64> = (10..next).collect();
    for round in 0..3 {
        try_to_add(&engine, &mut left, &mut next);
        for _ in 0..left.len() / 2 {
            let ino = left.pop_first().unwrap();
            let orphan = Effect::PutOrphan { session: SessionId(7), ino: Ino(ino) };
            commit(&engine, txn(Vec::new(), vec![orphan])).unwrap();
            let Some(Effect::PutDirent { parent, name, .. }) = add_file(ino).effects.pop() else { panic!() };
            let drops = vec![
                Effect::DropDirent { parent, name },
                Effect::DropInode { ino: Ino(ino) },
                Effect::DropOrphan { session: SessionId(7), ino: Ino(ino) },
            ];
            commit(&engine, txn(Vec::new(), drops)).unwrap();
            if ino.is_multiple_of(10) {
                try_to_add(&engine, &mut left, &mut next);
            }
        }
        assert!(inos(&engine) == left, "round {round}");
        engine.sync().unwrap();
        // Unmount, then mount without a free block except for the reserve, if there still is one.
        drop((engine, lock));
        if filled && round == 0 {
            disk.fill();
        }
        engine = open(&path).unwrap();
        lock = lock_in_the_end(&engine);
        let session = Session::new(SessionId(round), Time::from_nanos(0));
        commit(&engine, txn(Vec::new(), vec![Effect::PutSession(session)])).unwrap();
    }
    if filled {
        fs::remove_file(disk.path("filler")).unwrap();
    }
    for _ in 0..50 {
        commit(&engine, data(next)).unwrap();
        left.insert(next);
        next += 1;
    }
    assert!(fs::metadata(disk.path("v.db.reserve")).unwrap().len() > 0, "the reserve is restored");
    assert!(inos(&engine) == left);
    assert_consistent(&engine);
}

/// The environment variable that passes the database's path to the child process of the next test.
const CHILD: &str = "LIMEN_TEST_CHILD_DATABASE";

#[test]
fn acknowledged_commits_survive_a_killed_process() {
    if let Some(path) = std::env::var_os(CHILD) {
        return commit_until_killed(Path::new(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.db");
    drop(create(&path));
    let mut acknowledged = BTreeSet::new();
    for round in 1..=6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "acknowledged_commits_survive_a_killed_process", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut take =
            |line: std::io::Result<String>| acknowledged.insert(line.unwrap().parse::<u64>().unwrap());
        lines.by_ref().take(150 * round).for_each(|line| assert!(take(line)));
        child.kill().unwrap();
        lines.for_each(|line| assert!(take(line)));
        assert!(!child.wait().unwrap().success());

        let engine = open(&path).unwrap();
        engine.lock_exclusive().expect("the death of a process releases its lock");
        let there = inos(&engine);
        assert!(there.is_superset(&acknowledged), "lost: {:?}", acknowledged.difference(&there));
        assert_consistent(&engine);
    }
}

fn commit_until_killed(path: &Path) {
    let engine = open(path).unwrap();
    let _lock = lock_in_the_end(&engine);
    let next = AtomicU64::new(inos(&engine).last().map_or(10, |last| last + 1));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let ino = next.fetch_add(1, Ordering::Relaxed);
                    commit(&engine, add_file(ino)).unwrap();
                    // Use a single write, so that a line is written as a whole or not at all.
                    std::io::stderr().write_all(format!("{ino}\n").as_bytes()).unwrap();
                }
            });
        }
    });
}
