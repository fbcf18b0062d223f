//! Creates and removes files in one directory with single transactions, without a client. For tests of an
//! engine whose server crashes, hangs or fails over.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use meta::{
    Effect, Engine, EngineError, ErrorKind, Guard, Inode, Lock, LockKind, LockOwner, LockWait, Outcome,
    QuotaKey, QuotaRule, Record, RecordKey, Scan, ScanInclude, Txn, Usage,
};
use types::{FileType, Ino, Mode, Name, OpId, QuotaId, SessionId, Time};

/// The directory. Its link count is the number of its files.
const DIR: Ino = Ino(2);

/// How long a condition may take to become true. Normally it takes far less.
const TIMEOUT: Duration = Duration::from_secs(60);

pub fn name(ino: u64) -> Name {
    Name::new(format!("file{ino}").as_bytes()).expect("a valid name")
}

/// A file of one block.
pub fn file(ino: u64) -> Inode {
    let times = [1, 2, 3].map(Time::from_nanos);
    Inode {
        uid: 1,
        gid: 2,
        size: 1,
        mtime: times[1],
        ctime: times[2],
        access_rev: 0,
        ..Inode::new(Ino(ino), FileType::Regular, Mode::new(0o644), times[0])
    }
}

/// A transaction with an operation id of its own.
pub fn txn(guards: Vec<Guard>, effects: Vec<Effect>) -> Txn {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Txn { op_id: OpId(NEXT.fetch_add(1, Ordering::Relaxed).into()), guards, effects }
}

/// The transaction of a create.
pub fn add_file(ino: u64) -> Txn {
    let (parent, name) = (DIR, name(ino));
    let guards =
        vec![Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }];
    let dirent = Effect::PutDirent { parent, name, ino: Ino(ino), kind: FileType::Regular };
    txn(guards, vec![Effect::PutInode(file(ino)), dirent, Effect::AddLinks { ino: parent, delta: 1 }])
}

/// Adds the quotas of three nested directories, with limits and without usage.
pub fn add_nested_quotas(engine: &dyn Engine) {
    let rules = (0..3).map(|outer| {
        let rule = QuotaRule { outer: QuotaId(outer), max_inodes: 1 << 40, ..QuotaRule::default() };
        Effect::PutQuota { key: QuotaKey::Directory(QuotaId(outer + 1)), rule }
    });
    committed(engine, txn(Vec::new(), rules.collect()));
}

/// The transaction of a create below the directories of [`add_nested_quotas`], which is also charged to a
/// user's quota.
pub fn add_file_in_quotas(ino: u64) -> Txn {
    let mut create = add_file(ino);
    let nested = (0..3).map(|outer| (QuotaKey::Directory(QuotaId(outer + 1)), Some(QuotaId(outer))));
    for (key, outer) in nested.chain([(QuotaKey::User(1), None)]) {
        create.guards.push(Guard::Quota { key, outer, inodes: 1, blocks: 1 });
        create.effects.push(Effect::Charge { key, inodes: 1, blocks: 1 });
    }
    create
}

/// Interrupts wipes of a volume with `symlinks` symlinks and as many waiting lock requests. `wipe(n)` lets
/// only the first `n` requests of the wipe through. `n` grows by one until a wipe is not interrupted. If the
/// settings are gone, everything must be gone, because a later wipe recognizes the volume by its settings.
pub fn interrupted_wipes_leave_the_settings(
    engine: &dyn Engine,
    symlinks: u64,
    wipe: impl Fn(u64) -> Result<(), EngineError>,
) {
    // The numbers of settings and requests, the usage, and the first inode.
    let left = || {
        let keys = [RecordKey::Settings, RecordKey::Waits, RecordKey::Usage];
        let records = engine.read(&keys).expect("a read").records;
        let [Record::Settings(settings), Record::Waits(waits), Record::Usage(usage)] = &records[..] else {
            panic!("{records:?}")
        };
        let first = engine.scan(&Scan::Inodes { after: Ino(0), limit: 1 }).expect("a scan").snapshot.records;
        (settings.len(), waits.len(), *usage, first)
    };
    let nothing = left();
    for requests in 0.. {
        committed(engine, txn(Vec::new(), vec![Effect::PutSetting { name: "name", value: "v".to_owned() }]));
        let inodes: Vec<Ino> = (DIR.0..DIR.0 + symlinks).map(Ino).collect();
        for some in inodes.chunks(200) {
            let put = |ino: &Ino| {
                let inode = Inode { kind: FileType::Symlink, ..file(ino.0) };
                let owner = LockOwner { session: SessionId(1), owner: ino.0, kind: LockKind::Flock };
                let lock = Lock { start: 0, end: 9, owner, exclusive: true, pid: 1 };
                [
                    Effect::PutInode(inode),
                    Effect::PutSymlink { ino: *ino, target: b"target"[..].into() },
                    Effect::PutWait(LockWait { ino: *ino, lock }),
                ]
            };
            committed(engine, txn(Vec::new(), some.iter().flat_map(put).collect()));
        }
        let wiped = wipe(requests);
        let left = left();
        if left.0 == 0 || wiped.is_ok() {
            assert_eq!(left, nothing, "after {requests} requests: {wiped:?}");
        }
        if wiped.is_ok() {
            assert!(requests > 2, "{requests} wipes were interrupted");
            return;
        }
    }
}

/// The transaction of an unlink.
pub fn drop_file(ino: u64) -> Txn {
    let (parent, name, ino) = (DIR, name(ino), Ino(ino));
    let guards =
        vec![Guard::Access { ino: parent, rev: 0 }, Guard::DirentIs { parent, name: name.clone(), ino }];
    let dirent = Effect::DropDirent { parent, name };
    txn(guards, vec![dirent, Effect::AddLinks { ino: parent, delta: -1 }, Effect::DropInode { ino }])
}

/// Creates the directory.
pub fn add_directory(engine: &dyn Engine) {
    let directory = Inode { kind: FileType::Directory, nlink: 0, ..file(DIR.0) };
    committed(engine, txn(Vec::new(), vec![Effect::PutInode(directory)]));
}

/// Commits a transaction whose guards hold.
pub fn committed(engine: &dyn Engine, txn: Txn) {
    let outcomes = engine.commit(&[txn]).expect("a commit");
    assert!(matches!(outcomes[..], [Outcome::Committed { .. }]), "{outcomes:?}");
}

pub fn is_committed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Committed { .. })
}

/// The inode numbers of the files, after a check that the entries, the link count and the usage agree.
pub fn files(engine: &dyn Engine) -> BTreeSet<u64> {
    let (mut files, mut after) = (BTreeSet::new(), None);
    loop {
        let include = ScanInclude::InodesWithAcls;
        let scan = Scan::Dir { parent: DIR, after: after.take(), limit: 1000, include };
        let page = persistently(|| engine.scan(&scan));
        for record in page.snapshot.records {
            match record {
                Record::Dirent(_, name, Some(dirent)) => {
                    assert!(files.insert(dirent.ino.0), "two names of one file");
                    after = Some(name);
                }
                Record::Inode(_, Some(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        if !page.more {
            break;
        }
    }
    let records = persistently(|| engine.read(&[RecordKey::Inode(DIR), RecordKey::Usage])).records;
    let [Record::Inode(_, Some(directory)), Record::Usage(usage)] = records[..] else {
        panic!("{records:?}")
    };
    let count = files.len() as u64;
    assert_eq!(u64::from(directory.nlink), count, "each create was applied once");
    assert_eq!(usage, Usage { inodes: count + 1, blocks: count });
    files
}

/// Repeats a request while its errors are transient or indeterminate, as a client does.
pub fn persistently<T>(mut request: impl FnMut() -> Result<T, EngineError>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match request() {
            Ok(done) => return done,
            Err(error) => {
                assert_ne!(error.kind, ErrorKind::Determinate { transient: false }, "{error}");
                assert!(Instant::now() < deadline, "{error}");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Repeats a request until it succeeds: for requests whose timeout is so short that a busy machine may exceed
/// it.
pub fn until_done<T, E: fmt::Display>(mut request: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match request() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Checks a condition after each pause until it is true.
pub fn wait_until(pause: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "the condition is not met in time");
        thread::sleep(pause);
    }
}

/// Several threads create files while `restart` kills the server and starts it again: each acknowledged
/// create is kept, and none is applied twice. Returns the files.
pub fn survive_kills(engine: &dyn Engine, kills: u32, restart: &dyn Fn()) -> BTreeSet<u64> {
    const THREADS: u64 = 4;
    const BATCH: u64 = 4;
    const BETWEEN_KILLS: u64 = 100;
    add_directory(engine);
    let (stop, acknowledged, failures) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let create_until_stopped = |thread: u64| {
        let mut done = Vec::new();
        for round in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let inos = (0..BATCH).map(|n| 10 + (round * BATCH + n) * THREADS + thread);
            let batch: Vec<Txn> = inos.clone().map(add_file).collect();
            let outcomes = persistently(|| {
                let outcomes = engine.commit(&batch);
                failures.fetch_add(outcomes.is_err().into(), Ordering::Relaxed);
                outcomes
            });
            assert!(outcomes.iter().all(is_committed), "{outcomes:?}");
            done.extend(inos);
            acknowledged.fetch_add(BATCH, Ordering::Relaxed);
        }
        done
    };
    let create_until_stopped = &create_until_stopped;
    let done: BTreeSet<u64> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || create_until_stopped(thread))).collect();
        for _ in 0..kills {
            let target = acknowledged.load(Ordering::Relaxed) + BETWEEN_KILLS;
            // Do not wait longer if a thread has failed.
            while acknowledged.load(Ordering::Relaxed) < target && !threads.iter().any(|t| t.is_finished()) {
                thread::sleep(Duration::from_millis(1));
            }
            restart();
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().expect("no thread fails")).collect()
    });
    assert!(done.len() as u64 >= u64::from(kills) * BETWEEN_KILLS);
    assert!(failures.load(Ordering::Relaxed) > 0, "no kill interrupted a request");
    assert_eq!(files(engine), done);
    done
}
