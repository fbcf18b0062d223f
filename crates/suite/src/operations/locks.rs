//! Locks of several clients, and which client waits for which; concurrent appends.

use std::collections::BTreeMap;
use std::time::Duration;

use meta::{Lock, LockKind, LockOwner, Record, RecordKey, Snapshot, Volume};
use ops::{Append, DropLocks, FindLock, GetSlices, GetWaits, Locked, Reap, StopWaiting, TakeLock, Unlock};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, SessionId, Slice, SliceId, SliceSource};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, client, fresh, fresh_with, volume};
use super::invariants::check;
use crate::rng::split_mix;

pub(super) const CASES: &[Case] = &[
    ("conflicting_locks_are_refused_and_reported", conflicting_locks_are_refused_and_reported),
    ("lock_ranges_merge_and_split", lock_ranges_merge_and_split),
    ("a_waiter_is_recorded_until_granted", a_waiter_is_recorded_until_granted),
    ("deadlocks_are_refused", deadlocks_are_refused),
    ("chains_of_waiters_are_not_deadlocks", chains_of_waiters_are_not_deadlocks),
    (
        "a_deadlock_of_simultaneous_requests_has_one_victim",
        a_deadlock_of_simultaneous_requests_has_one_victim,
    ),
    ("waiting_for_a_removed_file_is_not_a_deadlock", waiting_for_a_removed_file_is_not_a_deadlock),
    ("flocks_have_no_ranges_and_no_deadlock_detection", flocks_have_no_ranges_and_no_deadlock_detection),
    ("locks_are_removed_with_inode_and_session", locks_are_removed_with_inode_and_session),
    ("locks_agree_with_a_model", locks_agree_with_a_model),
    ("threads_never_hold_conflicting_locks", threads_never_hold_conflicting_locks),
    ("appends_do_not_overlap", appends_do_not_overlap),
    ("concurrent_appends_lose_nothing", concurrent_appends_lose_nothing),
    ("appends_respect_the_limits", appends_respect_the_limits),
];

const END: u64 = u64::MAX;

/// A lock owner that uses one of the clients.
#[derive(Clone, Copy)]
struct Locker<'a> {
    client: &'a Client,
    owner: u64,
    kind: LockKind,
}

impl<'a> Locker<'a> {
    fn posix(client: &'a Client, owner: u64) -> Self {
        Locker { client, owner, kind: LockKind::Posix }
    }

    fn flock(client: &'a Client, owner: u64) -> Self {
        Locker { client, owner, kind: LockKind::Flock }
    }

    fn id(&self) -> LockOwner {
        LockOwner { session: self.client.meta.session(), owner: self.owner, kind: self.kind }
    }

    fn lock(&self, start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { start, end, owner: self.id(), exclusive, pid: self.owner as u32 }
    }

    fn take(&self, ino: Ino, start: u64, end: u64, exclusive: bool) -> Result<Locked, Errno> {
        self.client.run(&TakeLock { ino, lock: self.lock(start, end, exclusive), wait: false })
    }

    fn wait(&self, ino: Ino, start: u64, end: u64, exclusive: bool) -> Result<Locked, Errno> {
        self.client.run(&TakeLock { ino, lock: self.lock(start, end, exclusive), wait: true })
    }

    fn unlock(&self, ino: Ino, start: u64, end: u64) {
        self.client.run(&Unlock { ino, owner: self.id(), start, end }).unwrap();
    }

    fn stop(&self) {
        self.client.run(&StopWaiting(self.id())).unwrap();
    }

    fn find(&self, ino: Ino, start: u64, end: u64, exclusive: bool) -> Option<Lock> {
        self.client.run(&FindLock { ino, lock: self.lock(start, end, exclusive) }).unwrap()
    }
}

/// Two clients of one volume, neither with exclusive use, and two files.
fn pair(factory: Factory<'_>) -> (Client, Client, Ino, Ino) {
    let a = fresh(factory);
    a.meta.set_exclusive(false);
    let b = client(a.engine());
    // Like mounts that share a volume: nothing is served from the cache.
    [&a, &b].iter().for_each(|client| client.meta.set_lifetime(Duration::ZERO));
    let (x, y) = (a.create(ROOT, "x").unwrap(), a.create(ROOT, "y").unwrap());
    (a, b, x, y)
}

/// The locks of an inode in the engine.
fn held(c: &Client, ino: Ino) -> Vec<Lock> {
    let Snapshot { records, .. } = c.engine().read(&[RecordKey::Locks(ino)]).unwrap();
    match &records[..] {
        [Record::Locks(of, locks)] if *of == ino => locks.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn ranges(c: &Client, ino: Ino) -> Vec<(u64, u64, bool)> {
    held(c, ino).iter().map(|lock| (lock.start, lock.end, lock.exclusive)).collect()
}

fn waiting(c: &Client) -> Vec<(LockOwner, Ino)> {
    c.run(&GetWaits).unwrap().iter().map(|wait| (wait.lock.owner, wait.ino)).collect()
}

fn conflicting_locks_are_refused_and_reported(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    // The same number on two mounts is not the same owner.
    let (one, two) = (Locker::posix(&a, 7), Locker::posix(&b, 7));
    assert_eq!(one.take(x, 10, 19, true), Ok(Locked::Granted));
    assert_eq!(two.take(x, 19, 30, false), Err(Errno::EAGAIN));
    assert_eq!(two.take(x, 0, 10, true), Err(Errno::EAGAIN));
    assert_eq!(two.take(x, 20, 29, true), Ok(Locked::Granted), "an adjacent range");
    assert_eq!(two.take(y, 10, 19, true), Ok(Locked::Granted), "another file");
    assert_eq!(two.find(x, 0, 12, false), Some(one.lock(10, 19, true)));
    assert_eq!(two.find(x, 20, 40, true), None, "its own lock does not conflict");
    assert_eq!(one.find(x, 29, 29, false), Some(two.lock(20, 29, true)));
    assert_eq!(held(&a, x), {
        let mut all = [one.lock(10, 19, true), two.lock(20, 29, true)];
        all.sort();
        all
    });

    one.unlock(x, 0, END);
    assert_eq!(one.take(x, 0, 9, false), Ok(Locked::Granted));
    assert_eq!(two.take(x, 0, 9, false), Ok(Locked::Granted), "readers share");
    assert_eq!(one.take(x, 0, 9, true), Err(Errno::EAGAIN), "another owner holds a read lock");
    assert_eq!(one.find(x, 0, 9, false), None);
    assert_eq!(
        ranges(&b, x).iter().filter(|(.., exclusive)| !exclusive).count(),
        2,
        "a refused request changes nothing"
    );

    let nowhere = Ino(999_999);
    assert_eq!(one.take(nowhere, 0, 1, true), Err(Errno::ESTALE));
    assert_eq!(one.wait(nowhere, 0, 1, true), Err(Errno::ESTALE));
    assert_eq!(one.find(nowhere, 0, 1, true), None);
    one.unlock(nowhere, 0, END);
    a.run(&DropLocks { ino: nowhere, session: a.meta.session() }).unwrap();
    assert!(held(&a, nowhere).is_empty() && waiting(&a).is_empty());
}

fn lock_ranges_merge_and_split(factory: Factory<'_>) {
    let (a, _, x, _) = pair(factory);
    let locker = Locker::posix(&a, 1);
    let take = |start, end, exclusive| assert_eq!(locker.take(x, start, end, exclusive), Ok(Locked::Granted));
    take(10, 19, true);
    take(20, 29, true);
    assert_eq!(ranges(&a, x), [(10, 29, true)], "adjacent ranges merge");
    take(15, 17, false);
    assert_eq!(ranges(&a, x), [(10, 14, true), (15, 17, false), (18, 29, true)], "the last call wins");
    locker.unlock(x, 0, 11);
    locker.unlock(x, 16, 16);
    assert_eq!(ranges(&a, x), [(12, 14, true), (15, 15, false), (17, 17, false), (18, 29, true)]);
    take(0, END, true);
    assert_eq!(ranges(&a, x), [(0, END, true)], "up to the maximum offset");
    locker.unlock(x, 1 << 63, 1 << 63);
    assert_eq!(ranges(&a, x), [(0, (1 << 63) - 1, true), ((1 << 63) + 1, END, true)]);
    locker.unlock(x, 0, END);
    locker.unlock(x, 0, END);
    assert!(held(&a, x).is_empty());
}

fn a_waiter_is_recorded_until_granted(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two, three) = (Locker::posix(&a, 1), Locker::posix(&b, 1), Locker::posix(&b, 2));
    assert_eq!(one.wait(x, 0, 9, true), Ok(Locked::Granted), "the lock is free");
    assert!(waiting(&a).is_empty());
    assert_eq!(two.wait(x, 5, 20, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 5, 20, true), Ok(Locked::Waiting), "the same request again");
    assert_eq!(three.wait(x, 0, 0, false), Ok(Locked::Waiting));
    assert_eq!(waiting(&a), [(two.id(), x), (three.id(), x)]);
    assert_eq!(one.take(x, 15, 25, true), Ok(Locked::Granted), "a waiter holds nothing yet");
    one.unlock(x, 0, 10);
    assert_eq!(two.wait(x, 5, 20, true), Ok(Locked::Waiting), "part of the range is still locked");
    assert_eq!(three.wait(x, 0, 0, false), Ok(Locked::Granted));
    assert_eq!(waiting(&a), [(two.id(), x)]);
    two.stop();
    two.stop();
    assert!(waiting(&b).is_empty());
    // An owner has one record of a wait: that of its last request.
    assert_eq!(two.wait(x, 15, 20, true), Ok(Locked::Waiting));
    assert_eq!(one.take(y, 0, 9, true), Ok(Locked::Granted));
    assert_eq!(two.wait(y, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(waiting(&a), [(two.id(), y)]);
    one.unlock(y, 0, END);
    assert_eq!(two.wait(y, 0, 0, true), Ok(Locked::Granted));
    assert!(waiting(&a).is_empty());
}

fn deadlocks_are_refused(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let c = client(a.engine());
    let (one, two, three) = (Locker::posix(&a, 1), Locker::posix(&b, 1), Locker::posix(&c, 1));
    // A cycle of two owners, over two files.
    one.take(x, 0, 0, true).unwrap();
    two.take(y, 0, 0, true).unwrap();
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, END, false), Err(Errno::EDEADLK));
    assert_eq!(waiting(&a), [(one.id(), y)], "a refused owner does not wait");
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Waiting), "the other still waits");
    two.unlock(y, 0, 0);
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Granted));

    // A cycle of three owners, over two files and three sessions: one holds x0 and y0, two holds x1, three
    // holds y1.
    two.take(x, 1, 1, true).unwrap();
    three.take(y, 1, 1, true).unwrap();
    assert_eq!(one.wait(x, 1, 1, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(y, 1, 1, true), Ok(Locked::Waiting));
    assert_eq!(three.wait(x, 0, 0, true), Err(Errno::EDEADLK));
    assert_eq!(
        three.take(x, 0, 0, true),
        Err(Errno::EAGAIN),
        "a request that does not wait causes no deadlock"
    );
    one.stop();
    assert_eq!(three.wait(x, 0, 0, true), Ok(Locked::Waiting), "one waiter gave up, so there is no cycle");

    // A cycle of two readers that both want to write.
    let (a, b, x, _) = pair(factory);
    let (one, two) = (Locker::posix(&a, 1), Locker::posix(&b, 1));
    one.take(x, 0, 9, false).unwrap();
    two.take(x, 0, 9, false).unwrap();
    assert_eq!(one.wait(x, 0, 9, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, 9, true), Err(Errno::EDEADLK));
    assert_eq!(held(&a, x).len(), 2, "both still hold their read locks");

    // A cycle of two owners of one mount.
    let (a, _, x, y) = pair(factory);
    let (one, two) = (Locker::posix(&a, 1), Locker::posix(&a, 2));
    one.take(x, 0, 0, true).unwrap();
    two.take(y, 0, 0, true).unwrap();
    assert_eq!(two.wait(x, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(one.wait(y, 0, 0, true), Err(Errno::EDEADLK));
}

fn chains_of_waiters_are_not_deadlocks(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let c = client(a.engine());
    let lockers: Vec<Locker<'_>> =
        [&a, &b, &c].iter().flat_map(|c| [Locker::posix(c, 1), Locker::posix(c, 2)]).collect();
    // Each owner locks one byte and waits for the byte of the next owner. The last one waits for nothing, so
    // no wait is a deadlock.
    for (at, locker) in lockers.iter().enumerate() {
        locker.take([x, y][at % 2], at as u64, at as u64, true).unwrap();
    }
    for (at, locker) in lockers.iter().enumerate().take(5) {
        let next = at as u64 + 1;
        assert_eq!(locker.wait([y, x][at % 2], next, next, true), Ok(Locked::Waiting), "{at}");
    }
    for round in 0..3 {
        for (at, locker) in lockers.iter().enumerate().take(5) {
            let next = at as u64 + 1;
            assert_eq!(locker.wait([y, x][at % 2], next, next, true), Ok(Locked::Waiting), "{at} in {round}");
        }
    }
    // An owner that joins the chain causes no deadlock, because no owner waits for it.
    let (d, e) = (Locker::posix(&a, 9), Locker::flock(&a, 9));
    d.take(x, 100, 100, true).unwrap();
    assert_eq!(d.wait(x, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(e.wait(x, 0, END, true), Ok(Locked::Granted), "locks of the other kind do not conflict");
    // If the locks are released from the end of the chain, all waits are granted.
    for at in (0..5).rev() {
        lockers[at + 1].unlock([x, y][(at + 1) % 2], 0, END);
        let next = at as u64 + 1;
        assert_eq!(lockers[at].wait([y, x][at % 2], next, next, true), Ok(Locked::Granted), "{at}");
        lockers[at].unlock([y, x][at % 2], 0, END);
    }
}

/// Two waits recorded at the same time, so that neither plan saw the other one.
fn a_deadlock_of_simultaneous_requests_has_one_victim(factory: Factory<'_>) {
    for rounds in 0..2 {
        let (a, b, x, y) = pair(factory);
        let (one, two) = (Locker::posix(&a, 1), Locker::posix(&b, 1));
        one.take(x, 0, 0, true).unwrap();
        two.take(y, 0, 0, true).unwrap();
        let requests = [(one, y), (two, x)];
        for (locker, ino) in requests {
            let wait = meta::LockWait { ino, lock: locker.lock(0, 0, true) };
            let txn = meta::Txn {
                op_id: types::OpId(u128::MAX << 64 | u128::from(locker.client.meta.session().0)),
                guards: Vec::new(),
                effects: vec![meta::Effect::PutWait(wait)],
            };
            locker.client.engine().commit(&[txn]).unwrap();
        }
        // Whichever request is repeated first, the same one of the two fails with EDEADLK.
        let first = rounds;
        let replies: BTreeMap<SessionId, _> = [first, 1 - first]
            .into_iter()
            .map(|at| (requests[at].0.client.meta.session(), requests[at].0.wait(requests[at].1, 0, 0, true)))
            .collect();
        let replies: Vec<_> = replies.into_values().collect();
        assert_eq!(replies, [Ok(Locked::Waiting), Err(Errno::EDEADLK)]);
    }
}

fn waiting_for_a_removed_file_is_not_a_deadlock(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two) = (Locker::posix(&a, 1), Locker::posix(&b, 1));
    one.take(x, 0, 0, true).unwrap();
    two.take(y, 0, 0, true).unwrap();
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Waiting));
    a.unlink(ROOT, "y").unwrap();
    assert_eq!(two.wait(x, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(one.wait(y, 0, 0, true), Err(Errno::ESTALE));
}

fn flocks_have_no_ranges_and_no_deadlock_detection(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two) = (Locker::flock(&a, 1), Locker::flock(&b, 1));
    assert_eq!(Locker::posix(&a, 1).take(x, 0, END, true), Ok(Locked::Granted));
    assert_eq!(
        one.take(x, 0, END, true),
        Ok(Locked::Granted),
        "of the other kind, with the same owner number"
    );
    assert_eq!(two.take(x, 0, END, false), Err(Errno::EAGAIN));
    assert_eq!(two.find(x, 0, END, false), Some(one.lock(0, END, true)));
    one.unlock(x, 0, END);
    assert_eq!(held(&a, x), [Locker::posix(&a, 1).lock(0, END, true)]);

    // A cycle of flocks: none is refused.
    one.take(x, 0, END, true).unwrap();
    two.take(y, 0, END, true).unwrap();
    assert_eq!(one.wait(y, 0, END, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, END, true), Ok(Locked::Waiting));
    one.stop();
    two.stop();
    one.unlock(x, 0, END);
    two.unlock(y, 0, END);

    // Both hold read locks and want to write: the one that must wait loses its lock, so that the other one
    // succeeds.
    one.take(x, 0, END, false).unwrap();
    two.take(x, 0, END, false).unwrap();
    assert_eq!(one.wait(x, 0, END, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, END, true), Ok(Locked::Granted));
    assert_eq!(one.wait(x, 0, END, true), Ok(Locked::Waiting));
    two.unlock(x, 0, END);
    assert_eq!(one.wait(x, 0, END, true), Ok(Locked::Granted));
    assert!(waiting(&a).is_empty());
    assert_eq!(one.take(x, 0, END, false), Ok(Locked::Granted), "back to a read lock");
    assert_eq!(two.take(x, 0, END, false), Ok(Locked::Granted));
}

fn locks_are_removed_with_inode_and_session(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two) = (Locker::posix(&a, 1), Locker::posix(&b, 1));
    let kinds = [one, Locker::posix(&a, 2), Locker::flock(&a, 3)];
    for (at, locker) in kinds.iter().enumerate() {
        locker.take(x, at as u64, at as u64, true).unwrap();
    }
    two.take(x, 50, 50, true).unwrap();
    two.take(y, 50, 50, true).unwrap();
    a.run(&DropLocks { ino: x, session: a.meta.session() }).unwrap();
    a.run(&DropLocks { ino: x, session: a.meta.session() }).unwrap();
    assert_eq!(held(&a, x), [two.lock(50, 50, true)]);

    // An orphan keeps its locks until it is removed.
    b.unlink_open(ROOT, "x", Some(x)).unwrap();
    assert_eq!(one.take(x, 50, 50, true), Err(Errno::EAGAIN));
    assert_eq!(one.take(x, 60, 60, true), Ok(Locked::Granted));
    b.run(&Reap { session: b.meta.session(), ino: x }).unwrap();
    assert!(held(&a, x).is_empty());
    assert_eq!(one.take(x, 50, 50, true), Err(Errno::ESTALE));
    a.unlink(ROOT, "y").unwrap();
    assert!(held(&a, y).is_empty());
    two.unlock(y, 0, END);
    check(&a);
}

const BYTES: u64 = 8;
const STEPS: u32 = 3_000;

/// The locks as one entry per file, owner and byte.
#[derive(Default)]
struct Model(BTreeMap<(usize, usize, u64), bool>);

impl Model {
    fn conflicts(&self, file: usize, owner: usize, byte: u64, exclusive: bool) -> bool {
        self.0.iter().any(|((f, o, b), held)| {
            (*f, *b) == (file, byte) && *o != owner && o % 2 == owner % 2 && (exclusive || *held)
        })
    }
}

fn locks_agree_with_a_model(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let c = client(a.engine());
    let files = [x, y];
    // Even indices use fcntl(2), odd ones flock(2).
    let kinds = |c, owner| [Locker::posix(c, owner), Locker::flock(c, owner)];
    let lockers: Vec<Locker<'_>> = [kinds(&a, 1), kinds(&b, 1), kinds(&b, 2), kinds(&c, 1)].concat();
    let mut model = Model::default();
    let mut seed = 42;
    for step in 0..STEPS {
        let mut draw = |below: u64| split_mix(&mut seed) % below;
        let (file, owner) = (draw(2) as usize, draw(lockers.len() as u64) as usize);
        let (p, q) = (draw(BYTES), draw(BYTES));
        let flock = owner % 2 == 1;
        let (start, end) = if flock { (0, BYTES - 1) } else { (p.min(q), p.max(q)) };
        let exclusive = draw(2) == 0;
        match draw(5) {
            0 | 1 => {
                lockers[owner].unlock(files[file], start, end);
                model.0.retain(|(f, o, byte), _| (*f, *o) != (file, owner) || !(start..=end).contains(byte));
            }
            2 => {
                let free = (start..=end).all(|byte| !model.conflicts(file, owner, byte, exclusive));
                assert_eq!(
                    lockers[owner].find(files[file], start, end, exclusive).is_none(),
                    free,
                    "step {step}"
                );
            }
            _ => {
                let free = (start..=end).all(|byte| !model.conflicts(file, owner, byte, exclusive));
                let expected = if free { Ok(Locked::Granted) } else { Err(Errno::EAGAIN) };
                let taken = lockers[owner].take(files[file], start, end, exclusive);
                assert_eq!(taken, expected, "step {step}: {owner} takes {start} to {end} of {file}");
                if free {
                    model.0.extend((start..=end).map(|byte| ((file, owner, byte), exclusive)));
                }
            }
        }
        if step % 64 == 0 {
            agree(&a, &files, &lockers, &model, step);
        }
    }
    agree(&a, &files, &lockers, &model, STEPS);
}

fn agree(c: &Client, files: &[Ino], lockers: &[Locker<'_>], model: &Model, step: u32) {
    for (file, ino) in files.iter().enumerate() {
        let mut found = BTreeMap::new();
        for lock in held(c, *ino) {
            let owner = lockers.iter().position(|locker| locker.id() == lock.owner).unwrap();
            for byte in lock.start..=lock.end {
                assert_eq!(
                    found.insert((file, owner, byte), lock.exclusive),
                    None,
                    "locked twice, step {step}"
                );
            }
        }
        let of_file = model.0.iter().filter(|((f, ..), _)| *f == file);
        let expected: BTreeMap<_, _> = of_file.map(|(key, exclusive)| (*key, *exclusive)).collect();
        assert_eq!(found, expected, "step {step}");
    }
}

fn threads_never_hold_conflicting_locks(factory: Factory<'_>) {
    const THREADS: u64 = 6;
    const TURNS: u32 = 40;
    let (a, b, x, _) = pair(factory);
    let inside = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (inside, client) = (&inside, [&a, &b][thread as usize % 2]);
            scope.spawn(move || {
                let locker = Locker::posix(client, thread);
                for _ in 0..TURNS {
                    while locker.wait(x, 3, 4, true).unwrap() == Locked::Waiting {
                        std::thread::yield_now();
                    }
                    use std::sync::atomic::Ordering::SeqCst;
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two threads hold the lock");
                    inside.fetch_sub(1, SeqCst);
                    locker.unlock(x, 0, END);
                }
            });
        }
    });
    assert!(held(&a, x).is_empty() && waiting(&a).is_empty());
}

fn inline(bytes: &[u8]) -> SliceSource {
    SliceSource::Inline(bytes.into())
}

fn appends_do_not_overlap(factory: Factory<'_>) {
    let (a, b, x, _) = pair(factory);
    let append = |c: &Client, source, len| c.run(&Append { ino: x, source, len });
    let before = a.inode(x);
    assert_eq!(append(&a, inline(b"one"), 3), Ok(0));
    assert_eq!(append(&b, inline(b"two!"), 4), Ok(3));
    assert_eq!((a.inode(x).size, b.inode(x).size), (7, 7));
    assert!(b.inode(x).mtime > before.mtime && b.inode(x).ctime == b.inode(x).mtime);
    // The first client does not know the current size of the file.
    b.truncate(x, 5).unwrap();
    assert_eq!(append(&a, inline(b"x"), 1), Ok(5));
    assert_eq!(a.run(&Append { ino: Ino(999_999), source: inline(b"x"), len: 1 }), Err(Errno::ESTALE));

    // Across the end of a chunk, one slice has two rows.
    b.truncate(x, CHUNK_BYTES - 3).unwrap();
    let source = SliceSource::Blocks { id: SliceId(77), offset: 0, size: 10 };
    assert_eq!(append(&a, source, 10), Ok(CHUNK_BYTES - 3));
    assert_eq!(a.inode(x).size, CHUNK_BYTES + 7);
    let rows = |chunk| a.run(&GetSlices { ino: x, chunk: ChunkIndex(chunk) }).unwrap();
    let part = |pos, len, offset| Slice {
        pos,
        len,
        source: SliceSource::Blocks { id: SliceId(77), offset, size: 10 },
    };
    assert_eq!(rows(0).last(), Some(&part(CHUNK_BYTES as u32 - 3, 3, 0)));
    assert_eq!(rows(1)[..], [part(0, 7, 3)]);
    assert_eq!(append(&b, inline(b"ab"), 2), Ok(CHUNK_BYTES + 7));
    check(&a);
    // The slice becomes garbage when its last row is removed, not before.
    let garbage = |c: &Client| {
        let scan = meta::Scan::Garbage { after: SliceId(0), limit: 10 };
        c.meta.scan(&scan).unwrap().snapshot.records.len()
    };
    a.truncate(x, CHUNK_BYTES).unwrap();
    assert_eq!(garbage(&a), 0);
    a.truncate(x, 0).unwrap();
    assert_eq!(garbage(&a), 1);
}

fn concurrent_appends_lose_nothing(factory: Factory<'_>) {
    const THREADS: usize = 6;
    const RECORDS: usize = 40;
    let (a, b, x, _) = pair(factory);
    // Some appends cross the end of the first chunk.
    let start = CHUNK_BYTES - (THREADS * RECORDS) as u64;
    a.truncate(x, start).unwrap();
    let offsets: Vec<(u64, [u8; 2])> = std::thread::scope(|scope| {
        let spawn = |thread: usize| {
            let client = [&a, &b][thread % 2];
            let append = move |record: usize| {
                let bytes = [thread as u8, record as u8];
                (client.run(&Append { ino: x, source: inline(&bytes), len: 2 }).unwrap(), bytes)
            };
            scope.spawn(move || (0..RECORDS).map(append).collect::<Vec<_>>())
        };
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let end = start + 2 * (THREADS * RECORDS) as u64;
    assert_eq!(a.inode(x).size, end);
    let by_offset: BTreeMap<u64, [u8; 2]> = offsets.into_iter().collect();
    let expected: Vec<u64> = (start..end).step_by(2).collect();
    assert_eq!(
        by_offset.keys().copied().collect::<Vec<_>>(),
        expected,
        "the appends are adjacent and do not overlap"
    );
    let mut found: BTreeMap<u64, u8> = BTreeMap::new();
    for chunk in [0, 1].map(ChunkIndex) {
        for row in a.run(&GetSlices { ino: x, chunk }).unwrap().iter() {
            // The truncation that extended the file is stored as a hole.
            let SliceSource::Inline(bytes) = &row.source else { continue };
            for (at, byte) in bytes.iter().enumerate() {
                assert_eq!(found.insert(chunk.start() + u64::from(row.pos) + at as u64, *byte), None);
            }
        }
    }
    let written = by_offset.iter().flat_map(|(at, bytes)| [(*at, bytes[0]), (at + 1, bytes[1])]);
    assert_eq!(found, written.collect());
    check(&b);
}

fn appends_respect_the_limits(factory: Factory<'_>) {
    let a = fresh_with(factory, &Volume { capacity_bytes: 3 * 4096, ..volume() });
    a.meta.set_exclusive(false);
    let b = client(a.engine());
    [&a, &b].iter().for_each(|client| client.meta.set_lifetime(Duration::ZERO));
    let x = a.create(ROOT, "x").unwrap();
    let used = b.run(&ops::GetUsage).unwrap().blocks;
    let room = 3 - used;
    let append = |c: &Client, len: u32| {
        let source = SliceSource::Blocks { id: SliceId(5), offset: 0, size: len };
        c.run(&Append { ino: x, source, len })
    };
    assert_eq!(append(&a, (room * 4096) as u32 + 1), Err(Errno::ENOSPC));
    assert_eq!(a.inode(x).size, 0);
    assert_eq!(append(&a, (room * 4096) as u32 - 1), Ok(0));
    assert_eq!(append(&b, 1), Ok(room * 4096 - 1), "the last block has space for it");
    assert_eq!(append(&b, 1), Err(Errno::ENOSPC));
    assert_eq!(b.inode(x).size, room * 4096);

    let (a, b, x, _) = pair(factory);
    a.truncate(x, i64::MAX as u64 - 2).unwrap();
    let append = |len| b.run(&Append { ino: x, source: inline(&[1; 3][..len as usize]), len });
    assert_eq!(append(3), Err(Errno::EFBIG));
    assert_eq!(append(2), Ok(i64::MAX as u64 - 2));
    assert_eq!(append(1), Err(Errno::EFBIG));
    assert_eq!(b.inode(x).size, i64::MAX as u64);
}
