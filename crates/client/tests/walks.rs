//! Walks over trees end although the tree is damaged or the database fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use client::{Emptying, Failure, Meta};
use meta::{
    Counter, Effect, Engine, EngineError, ErrorKind, Inode, MemEngine, Outcome, Page, Record, RecordKey,
    Scan, Snapshot, Txn, Volume,
};
use ops::{
    Authority, BeginClone, CloneEntries, CloneEntry, CloneSource, Make, MakeKind, MakeOrphan, MakeTrash, Op,
    QuotaLimits, Reap, Rmdir, TrashHour, Unlink,
};
use types::{Errno, FileType, Ino, Mode, Name, OpId, Time};

/// An engine that can be down, and that can refuse large transactions.
#[derive(Debug, Default)]
struct Server {
    inner: MemEngine,
    is_down: AtomicBool,
    /// After this many commits the server goes down; 0 for never.
    down_after: AtomicUsize,
    /// At a transaction with this many effects the server goes down; 0 for never.
    down_at: AtomicUsize,
    /// The maximum number of effects of a transaction; 0 for any number.
    max_effects: AtomicUsize,
    /// How many requests failed because the server was down.
    failed: AtomicU64,
}

impl Server {
    fn check(&self) -> Result<(), EngineError> {
        match self.is_down.load(Ordering::Relaxed) {
            true => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(EngineError::transient("the server is down"))
            }
            false => Ok(()),
        }
    }

    /// Ends an outage, and returns how many requests failed in it.
    fn recover(&self) -> u64 {
        self.is_down.store(false, Ordering::Relaxed);
        self.down_at.store(0, Ordering::Relaxed);
        self.failed.swap(0, Ordering::Relaxed)
    }
}

impl Engine for Server {
    meta::pass_on! { (.inner) sync wipe }

    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.check()?;
        self.inner.read(keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.check()?;
        self.inner.scan(scan)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.check()?;
        let most = self.max_effects.load(Ordering::Relaxed);
        if most != 0 && txns.iter().any(|txn| txn.effects.len() > most) {
            return Err(EngineError::permanent("the transaction is too large"));
        }
        let down_at = self.down_at.load(Ordering::Relaxed);
        let is_last = self.down_after.load(Ordering::Relaxed) > 0
            && self.down_after.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last || down_at != 0 && txns.iter().any(|txn| txn.effects.len() >= down_at) {
            self.is_down.store(true, Ordering::Relaxed);
            self.check()?;
        }
        self.inner.commit(txns)
    }
}

const BY_KERNEL: Authority<'_> = Authority::Kernel { revisions: None };

struct Sample {
    server: Arc<Server>,
    meta: Meta,
}

impl Sample {
    fn new(trash_days: u64) -> Self {
        let server = Arc::new(Server::default());
        Volume { trash_days, ..Volume::in_memory("test") }.format(&*server).unwrap();
        let meta = Meta::open(server.clone(), 10_000).unwrap();
        meta.set_exclusive(true);
        // A request is tried once.
        meta.set_retry_timeout(Duration::ZERO);
        Sample { server, meta }
    }

    fn run<O: Op>(&self, op: &O) -> O::Reply {
        self.meta.run(op, &BY_KERNEL).unwrap()
    }

    fn next_ino(&self) -> Ino {
        Ino(self.meta.lease(Counter::Ino, 1).unwrap())
    }

    fn make_op(&self, parent: Ino, text: &str, kind: MakeKind) -> Make {
        let mode = Mode::new(0o755);
        Make { parent, name: name(text), ino: self.next_ino(), kind, mode, umask: 0, uid: 0, gid: 0 }
    }

    fn mkdir(&self, parent: Ino, text: &str) -> Ino {
        self.run(&self.make_op(parent, text, MakeKind::Directory)).ino
    }

    fn create(&self, parent: Ino, text: &str) -> Ino {
        self.run(&self.make_op(parent, text, MakeKind::Regular)).ino
    }

    fn orphans(&self, count: usize) -> Vec<Reap> {
        let session = self.meta.session();
        let orphan = || MakeOrphan(self.make_op(Ino::ROOT, "x", MakeKind::Regular));
        (0..count).map(|_| Reap { session, ino: self.run(&orphan()).ino }).collect()
    }

    /// An unfinished copy of a directory with this many files.
    fn unfinished_copy(&self, files: usize) -> Reap {
        let source = self.mkdir(Ino::ROOT, "source");
        let ino = self.next_ino();
        let begin = BeginClone {
            source: CloneSource::new(&self.run(&ops::GetInode(source))),
            ino,
            parent: Ino::ROOT,
            name: name("copy"),
            max_chunks: 1,
        };
        let (_, session) = self.run(&begin);
        let entries: Vec<CloneEntry> = (0..files)
            .map(|n| {
                let file = self.create(source, &n.to_string());
                CloneEntry {
                    source: CloneSource::new(&self.run(&ops::GetInode(file))),
                    parent: ino,
                    name: name(&n.to_string()),
                    ino: self.next_ino(),
                    is_linked: false,
                }
            })
            .collect();
        self.run(&CloneEntries { session, root: ino, entries: &entries, max_chunks: 1 });
        Reap { session, ino }
    }

    /// The directory of the present hour in the trash.
    fn trash_hour(&self) -> Ino {
        let hour = TrashHour::of(Time::now());
        let inos = [self.next_ino(), self.next_ino()];
        let [_, dir] = self.run(&MakeTrash { uid: 0, hour, inos });
        self.meta.trash().put(0, hour, dir);
        dir
    }

    fn empty_trash(&self, stop: &dyn Fn() -> bool) -> Result<client::Emptied, Failure> {
        self.meta.empty_trash(&Emptying {
            before: TrashHour::of(Time::new(Time::now().sec() + 7200, 0)),
            user: None,
            most: 10_000,
            keeps: &|_| false,
            stop,
            deleted: &|_, _| {},
        })
    }

    /// A directory in the trash that contains a directory.
    fn trashed_tree(&self) -> (Ino, Ino) {
        let hour = self.trash_hour();
        let dir = self.mkdir(Ino::ROOT, "d");
        let removed = self.run(&Rmdir { parent: Ino::ROOT, name: name("d") });
        assert_eq!(removed.outcome, ops::UnlinkOutcome::Trashed { hour });
        let below = self.next_ino();
        let inode = self.run(&ops::GetInode(dir));
        self.damage(vec![
            Effect::PutInode(meta::Inode { ino: below, parent: dir, ..inode }),
            dirent(dir, "below", below),
        ]);
        (dir, below)
    }

    fn damage(&self, effects: Vec<Effect>) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let op_id = OpId((1 << 120) + u128::from(COUNT.fetch_add(1, Ordering::Relaxed)));
        let outcomes = self.server.inner.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
        assert!(matches!(outcomes[..], [Outcome::Committed { .. }]));
        self.meta.set_exclusive(true);
    }

    fn is_there(&self, ino: Ino) -> bool {
        let read = self.server.inner.read(&[RecordKey::Inode(ino)]).unwrap();
        matches!(read.records[..], [Record::Inode(_, Some(_))])
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn dirent(parent: Ino, text: &str, ino: Ino) -> Effect {
    Effect::PutDirent { parent, name: name(text), ino, kind: FileType::Directory }
}

fn is_outage<T>(done: Result<T, Failure>) -> bool {
    matches!(done, Err(Failure::Engine(error)) if error.kind != ErrorKind::Determinate { transient: false })
}

#[test]
fn orphans_are_not_tried_one_by_one_while_the_database_is_down() {
    let s = Sample::new(0);
    let orphans = s.orphans(16);
    s.server.is_down.store(true, Ordering::Relaxed);
    assert!(is_outage(s.meta.reap(&orphans, &|| false)));
    assert_eq!(s.server.recover(), 1);
    // The batch is too large. The database goes down at the third orphan.
    s.server.max_effects.store(2, Ordering::Relaxed);
    s.server.down_after.store(3, Ordering::Relaxed);
    assert!(is_outage(s.meta.reap(&orphans, &|| false)));
    assert_eq!(s.server.recover(), 1);
    assert_eq!(orphans.iter().filter(|orphan| s.is_there(orphan.ino)).count(), 14);
    s.meta.reap(&orphans, &|| false).unwrap();
    assert!(orphans.iter().all(|orphan| !s.is_there(orphan.ino)));
}

#[test]
fn an_unfinished_copy_is_not_removed_in_smaller_parts_while_the_database_is_down() {
    let s = Sample::new(0);
    let copy = s.unfinished_copy(64);
    s.server.down_at.store(64, Ordering::Relaxed);
    assert!(is_outage(s.meta.reap(std::slice::from_ref(&copy), &|| false)));
    assert_eq!(s.server.recover(), 1);
    // `stop` is called before each part.
    s.server.max_effects.store(8, Ordering::Relaxed);
    let asked = AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) > 10;
    assert_eq!(s.meta.reap(std::slice::from_ref(&copy), &stop), Err(Failure::Operation(Errno::ENOTEMPTY)));
    s.meta.reap(std::slice::from_ref(&copy), &|| false).unwrap();
    assert!(!s.is_there(copy.ino));
}

#[test]
fn the_trash_is_not_emptied_in_smaller_parts_while_the_database_is_down() {
    let s = Sample::new(1);
    s.trash_hour();
    for n in 0..64 {
        s.create(Ino::ROOT, &n.to_string());
        s.run(&Unlink { parent: Ino::ROOT, name: name(&n.to_string()), open: None });
    }
    s.server.down_at.store(64, Ordering::Relaxed);
    assert!(is_outage(s.empty_trash(&|| false)));
    assert_eq!(s.server.recover(), 1);
    s.server.max_effects.store(8, Ordering::Relaxed);
    assert_eq!(s.empty_trash(&|| false).unwrap().entries, 64);
}

#[test]
fn a_quota_walk_does_not_try_an_entry_alone_while_the_database_is_down() {
    let s = Sample::new(0);
    let dir = s.mkdir(Ino::ROOT, "d");
    for n in 0..16 {
        s.create(dir, &n.to_string());
    }
    let limits = QuotaLimits { max_inodes: Some(100), ..QuotaLimits::default() };
    s.server.down_at.store(16, Ordering::Relaxed);
    let done = s.meta.set_directory_quota(dir, limits, &mut |_| true);
    assert!(matches!(done, Err(client::QuotaError::Failed(Failure::Engine(_)))), "{done:?}");
    assert_eq!(s.server.recover(), 1);
    s.meta.set_directory_quota(dir, limits, &mut |_| true).unwrap();
    assert_eq!(s.meta.quotas().unwrap()[0].1.inodes, 17);
}

#[test]
fn a_quota_walk_ends_although_an_entry_names_a_directory_above() {
    let s = Sample::new(0);
    let dir = s.mkdir(Ino::ROOT, "d");
    let sub = s.mkdir(dir, "sub");
    s.create(sub, "f");
    s.damage(vec![dirent(sub, "up", dir), dirent(sub, "self", sub), dirent(sub, "root", Ino::ROOT)]);
    let mut steps = 0;
    let limits = QuotaLimits { max_inodes: Some(100), ..QuotaLimits::default() };
    let done = s.meta.set_directory_quota(dir, limits, &mut |_| {
        steps += 1;
        steps < 100
    });
    done.unwrap();
    assert_eq!(s.meta.quotas().unwrap()[0].1.inodes, 3);
    assert_eq!(s.run(&ops::GetInode(Ino::ROOT)).quota, meta::QuotaTag::default());
}

#[test]
fn the_trash_is_emptied_although_an_entry_names_a_directory_elsewhere() {
    let s = Sample::new(1);
    let (dir, below) = s.trashed_tree();
    let elsewhere = s.mkdir(Ino::ROOT, "elsewhere");
    s.damage(vec![
        dirent(below, "up", dir),
        dirent(below, "self", below),
        dirent(dir, "elsewhere", elsewhere),
    ]);
    let asked = AtomicUsize::new(0);
    let emptied = s.empty_trash(&|| asked.fetch_add(1, Ordering::Relaxed) > 100).unwrap();
    assert!(asked.into_inner() < 100 && !emptied.is_done);
    assert!(s.is_there(elsewhere), "an entry of the trash does not remove a directory elsewhere");
    // The entries of the damaged directories stay until a repair has removed the damage.
    s.damage(vec![
        Effect::DropDirent { parent: below, name: name("up") },
        Effect::DropDirent { parent: below, name: name("self") },
        Effect::DropDirent { parent: dir, name: name("elsewhere") },
    ]);
    assert!(s.empty_trash(&|| false).unwrap().is_done);
    assert!(!s.is_there(dir) && !s.is_there(below) && s.is_there(elsewhere));
}

/// The damaged entries of a user's directory in the trash name this directory itself, and a directory outside
/// the trash.
#[test]
fn an_hour_of_the_trash_is_in_the_directory_that_names_it() {
    let s = Sample::new(1);
    let hour = s.trash_hour();
    let user = s.run(&ops::GetInode(hour)).parent;
    let live = s.mkdir(Ino::ROOT, "live");
    s.damage(vec![dirent(user, "2020-01-01-00", user), dirent(user, "2020-01-01-01", live)]);
    let soon = TrashHour::of(Time::new(Time::now().sec() + 7200, 0));
    let hours = |max| {
        let hours = s.meta.trashed_hours(soon, None, max).unwrap();
        hours.iter().map(|hour| hour.dir).collect::<Vec<_>>()
    };
    assert_eq!(hours(usize::MAX), [hour]);
    assert_eq!(hours(0), []);
}

#[test]
fn an_unfinished_copy_is_removed_without_a_directory_that_is_elsewhere() {
    let s = Sample::new(0);
    let copy = s.unfinished_copy(1);
    let live = s.mkdir(Ino::ROOT, "live");
    let file = s.create(live, "f");
    let below = s.next_ino();
    let mode = Mode::new(0o755);
    let inode = Inode { parent: copy.ino, ..Inode::new(below, FileType::Directory, mode, Time::now()) };
    s.damage(vec![
        dirent(copy.ino, "live", live),
        dirent(copy.ino, "self", copy.ino),
        Effect::PutInode(inode),
        dirent(copy.ino, "below", below),
        dirent(below, "live", live),
    ]);
    let asked = AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) > 100;
    let done = s.meta.reap(std::slice::from_ref(&copy), &stop);
    assert_eq!(done, Err(Failure::Operation(Errno::ENOTEMPTY)));
    assert!(asked.into_inner() < 100);
    assert!(s.is_there(live) && s.is_there(file));
}
