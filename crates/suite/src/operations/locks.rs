//! Locks of several clients, whoever waits for whom; and appends that race.

use std::collections::BTreeMap;
use std::time::Duration;

use meta::ops::{
    Append, DropLocks, FindLock, GetSlices, GetWaits, Locked, Reap, StopWaiting, TakeLock, Unlock,
};
use meta::{Facts, Lock, LockKind, LockOwner, Record, Volume, Want};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, SessionId, Slice, SliceId, SliceSource};

use super::fixture::{Client, ROOT, client, fresh, fresh_with, volume};
use super::invariants::check;
use super::{Case, Factory};
use crate::rng::split_mix;

pub(super) const CASES: &[Case] = &[
    ("locks_exclude_others_and_say_why", locks_exclude_others_and_say_why),
    ("ranges_merge_and_split", ranges_merge_and_split),
    ("who_waits_is_on_record_until_granted", who_waits_is_on_record_until_granted),
    ("circles_of_waiting_are_refused", circles_of_waiting_are_refused),
    ("chains_of_waiting_are_not", chains_of_waiting_are_not),
    ("a_circle_closed_at_one_moment_has_one_victim", a_circle_closed_at_one_moment_has_one_victim),
    ("who_waits_for_what_is_gone_is_in_no_circle", who_waits_for_what_is_gone_is_in_no_circle),
    ("flocks_know_no_ranges_and_no_circles", flocks_know_no_ranges_and_no_circles),
    ("locks_go_with_inode_and_session", locks_go_with_inode_and_session),
    ("locks_agree_with_a_model", locks_agree_with_a_model),
    ("threads_never_hold_what_excludes_them", threads_never_hold_what_excludes_them),
    ("appends_stand_one_after_another", appends_stand_one_after_another),
    ("appends_race_without_loss", appends_race_without_loss),
    ("appends_end_at_the_limits", appends_end_at_the_limits),
];

const END: u64 = u64::MAX;

/// Somebody who locks, through one of the clients.
#[derive(Clone, Copy)]
struct Who<'a> {
    client: &'a Client,
    owner: u64,
    kind: LockKind,
}

impl<'a> Who<'a> {
    fn posix(client: &'a Client, owner: u64) -> Self {
        Who { client, owner, kind: LockKind::Posix }
    }

    fn flock(client: &'a Client, owner: u64) -> Self {
        Who { client, owner, kind: LockKind::Flock }
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

/// Two clients that know of each other, and two files.
fn pair(factory: Factory<'_>) -> (Client, Client, Ino, Ino) {
    let a = fresh(factory);
    a.meta.set_alone(false);
    let b = client(a.engine());
    // As where several mounts share a volume: every question is asked.
    [&a, &b].iter().for_each(|client| client.meta.set_lifetime(Duration::ZERO));
    let (x, y) = (a.create(ROOT, "x").unwrap(), a.create(ROOT, "y").unwrap());
    (a, b, x, y)
}

/// The locks on an inode as the engine has them.
fn held(c: &Client, ino: Ino) -> Vec<Lock> {
    let Facts { records, .. } = c.engine().read(&[Want::Locks(ino)]).unwrap();
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

fn locks_exclude_others_and_say_why(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    // The same number on two mounts is not the same owner.
    let (one, two) = (Who::posix(&a, 7), Who::posix(&b, 7));
    assert_eq!(one.take(x, 10, 19, true), Ok(Locked::Granted));
    assert_eq!(two.take(x, 19, 30, false), Err(Errno::EAGAIN));
    assert_eq!(two.take(x, 0, 10, true), Err(Errno::EAGAIN));
    assert_eq!(two.take(x, 20, 29, true), Ok(Locked::Granted), "beside it");
    assert_eq!(two.take(y, 10, 19, true), Ok(Locked::Granted), "another file");
    assert_eq!(two.find(x, 0, 12, false), Some(one.lock(10, 19, true)));
    assert_eq!(two.find(x, 20, 40, true), None, "its own is not in the way");
    assert_eq!(one.find(x, 29, 29, false), Some(two.lock(20, 29, true)));
    assert_eq!(held(&a, x), {
        let mut all = [one.lock(10, 19, true), two.lock(20, 29, true)];
        all.sort();
        all
    });

    one.unlock(x, 0, END);
    assert_eq!(one.take(x, 0, 9, false), Ok(Locked::Granted));
    assert_eq!(two.take(x, 0, 9, false), Ok(Locked::Granted), "readers share");
    assert_eq!(one.take(x, 0, 9, true), Err(Errno::EAGAIN), "another reads");
    assert_eq!(one.find(x, 0, 9, false), None);
    assert_eq!(ranges(&b, x).iter().filter(|(.., exclusive)| !exclusive).count(), 2, "what failed left all");

    let nowhere = Ino(999_999);
    assert_eq!(one.take(nowhere, 0, 1, true), Err(Errno::ESTALE));
    assert_eq!(one.wait(nowhere, 0, 1, true), Err(Errno::ESTALE));
    assert_eq!(one.find(nowhere, 0, 1, true), None);
    one.unlock(nowhere, 0, END);
    a.run(&DropLocks { ino: nowhere, session: a.meta.session() }).unwrap();
    assert!(held(&a, nowhere).is_empty() && waiting(&a).is_empty());
}

fn ranges_merge_and_split(factory: Factory<'_>) {
    let (a, _, x, _) = pair(factory);
    let who = Who::posix(&a, 1);
    let take = |start, end, exclusive| assert_eq!(who.take(x, start, end, exclusive), Ok(Locked::Granted));
    take(10, 19, true);
    take(20, 29, true);
    assert_eq!(ranges(&a, x), [(10, 29, true)], "they touch");
    take(15, 17, false);
    assert_eq!(ranges(&a, x), [(10, 14, true), (15, 17, false), (18, 29, true)], "the last call counts");
    who.unlock(x, 0, 11);
    who.unlock(x, 16, 16);
    assert_eq!(ranges(&a, x), [(12, 14, true), (15, 15, false), (17, 17, false), (18, 29, true)]);
    take(0, END, true);
    assert_eq!(ranges(&a, x), [(0, END, true)], "to the end of all files");
    who.unlock(x, 1 << 63, 1 << 63);
    assert_eq!(ranges(&a, x), [(0, (1 << 63) - 1, true), ((1 << 63) + 1, END, true)]);
    who.unlock(x, 0, END);
    who.unlock(x, 0, END);
    assert!(held(&a, x).is_empty());
}

fn who_waits_is_on_record_until_granted(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two, three) = (Who::posix(&a, 1), Who::posix(&b, 1), Who::posix(&b, 2));
    assert_eq!(one.wait(x, 0, 9, true), Ok(Locked::Granted), "nobody to wait for");
    assert!(waiting(&a).is_empty());
    assert_eq!(two.wait(x, 5, 20, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 5, 20, true), Ok(Locked::Waiting), "asked again");
    assert_eq!(three.wait(x, 0, 0, false), Ok(Locked::Waiting));
    assert_eq!(waiting(&a), [(two.id(), x), (three.id(), x)]);
    assert_eq!(one.take(x, 15, 25, true), Ok(Locked::Granted), "who waits holds nothing");
    one.unlock(x, 0, 10);
    assert_eq!(two.wait(x, 5, 20, true), Ok(Locked::Waiting), "a part is still taken");
    assert_eq!(three.wait(x, 0, 0, false), Ok(Locked::Granted));
    assert_eq!(waiting(&a), [(two.id(), x)]);
    two.stop();
    two.stop();
    assert!(waiting(&b).is_empty());
    // What waits elsewhere is one record of an owner: the last.
    assert_eq!(two.wait(x, 15, 20, true), Ok(Locked::Waiting));
    assert_eq!(one.take(y, 0, 9, true), Ok(Locked::Granted));
    assert_eq!(two.wait(y, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(waiting(&a), [(two.id(), y)]);
    one.unlock(y, 0, END);
    assert_eq!(two.wait(y, 0, 0, true), Ok(Locked::Granted));
    assert!(waiting(&a).is_empty());
}

fn circles_of_waiting_are_refused(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let c = client(a.engine());
    let (one, two, three) = (Who::posix(&a, 1), Who::posix(&b, 1), Who::posix(&c, 1));
    // Two, over two files.
    one.take(x, 0, 0, true).unwrap();
    two.take(y, 0, 0, true).unwrap();
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, END, false), Err(Errno::EDEADLK));
    assert_eq!(waiting(&a), [(one.id(), y)], "who is refused does not wait");
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Waiting), "the other goes on waiting");
    two.unlock(y, 0, 0);
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Granted));

    // Three, over two files and three sessions: one holds x0 and y0, two x1, three y1.
    two.take(x, 1, 1, true).unwrap();
    three.take(y, 1, 1, true).unwrap();
    assert_eq!(one.wait(x, 1, 1, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(y, 1, 1, true), Ok(Locked::Waiting));
    assert_eq!(three.wait(x, 0, 0, true), Err(Errno::EDEADLK));
    assert_eq!(three.take(x, 0, 0, true), Err(Errno::EAGAIN), "without waiting there is no circle");
    one.stop();
    assert_eq!(three.wait(x, 0, 0, true), Ok(Locked::Waiting), "opened by one who gave up");

    // Two readers that both want to write.
    let (a, b, x, _) = pair(factory);
    let (one, two) = (Who::posix(&a, 1), Who::posix(&b, 1));
    one.take(x, 0, 9, false).unwrap();
    two.take(x, 0, 9, false).unwrap();
    assert_eq!(one.wait(x, 0, 9, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, 9, true), Err(Errno::EDEADLK));
    assert_eq!(held(&a, x).len(), 2, "both still read");

    // Two owners of one mount.
    let (a, _, x, y) = pair(factory);
    let (one, two) = (Who::posix(&a, 1), Who::posix(&a, 2));
    one.take(x, 0, 0, true).unwrap();
    two.take(y, 0, 0, true).unwrap();
    assert_eq!(two.wait(x, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(one.wait(y, 0, 0, true), Err(Errno::EDEADLK));
}

fn chains_of_waiting_are_not(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let c = client(a.engine());
    let who: Vec<Who<'_>> = [&a, &b, &c].iter().flat_map(|c| [Who::posix(c, 1), Who::posix(c, 2)]).collect();
    // Each holds a byte and waits for that of the next; the last waits for nobody, and all may wait for it.
    for (at, who) in who.iter().enumerate() {
        who.take([x, y][at % 2], at as u64, at as u64, true).unwrap();
    }
    for (at, who) in who.iter().enumerate().take(5) {
        let next = at as u64 + 1;
        assert_eq!(who.wait([y, x][at % 2], next, next, true), Ok(Locked::Waiting), "{at}");
    }
    for round in 0..3 {
        for (at, who) in who.iter().enumerate().take(5) {
            let next = at as u64 + 1;
            assert_eq!(who.wait([y, x][at % 2], next, next, true), Ok(Locked::Waiting), "{at} in {round}");
        }
    }
    // A circle that is not the asker's own is not its concern, and the walk ends.
    let (d, e) = (Who::posix(&a, 9), Who::flock(&a, 9));
    d.take(x, 100, 100, true).unwrap();
    assert_eq!(d.wait(x, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(e.wait(x, 0, END, true), Ok(Locked::Granted), "another kind is not in the way");
    // Unwound from the end, all are granted.
    for at in (0..5).rev() {
        who[at + 1].unlock([x, y][(at + 1) % 2], 0, END);
        let next = at as u64 + 1;
        assert_eq!(who[at].wait([y, x][at % 2], next, next, true), Ok(Locked::Granted), "{at}");
        who[at].unlock([y, x][at % 2], 0, END);
    }
}

/// The records of a moment that plans cannot see: both asked, neither was on record yet.
fn a_circle_closed_at_one_moment_has_one_victim(factory: Factory<'_>) {
    for rounds in 0..2 {
        let (a, b, x, y) = pair(factory);
        let (one, two) = (Who::posix(&a, 1), Who::posix(&b, 1));
        one.take(x, 0, 0, true).unwrap();
        two.take(y, 0, 0, true).unwrap();
        let asks = [(one, y), (two, x)];
        for (who, ino) in asks {
            let wait = meta::LockWait { ino, lock: who.lock(0, 0, true) };
            let txn = meta::Txn {
                op_id: types::OpId(u128::MAX << 64 | u128::from(who.client.meta.session().0)),
                guards: Vec::new(),
                effects: vec![meta::Effect::PutWait(wait)],
            };
            who.client.engine().commit(&[txn]).unwrap();
        }
        // Whoever asks first, the same one is refused.
        let first = rounds;
        let answers: BTreeMap<SessionId, _> = [first, 1 - first]
            .into_iter()
            .map(|at| (asks[at].0.client.meta.session(), asks[at].0.wait(asks[at].1, 0, 0, true)))
            .collect();
        let answers: Vec<_> = answers.into_values().collect();
        assert_eq!(answers, [Ok(Locked::Waiting), Err(Errno::EDEADLK)]);
    }
}

fn who_waits_for_what_is_gone_is_in_no_circle(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two) = (Who::posix(&a, 1), Who::posix(&b, 1));
    one.take(x, 0, 0, true).unwrap();
    two.take(y, 0, 0, true).unwrap();
    assert_eq!(one.wait(y, 0, 0, true), Ok(Locked::Waiting));
    a.unlink(ROOT, "y").unwrap();
    assert_eq!(two.wait(x, 0, 0, true), Ok(Locked::Waiting));
    assert_eq!(one.wait(y, 0, 0, true), Err(Errno::ESTALE));
}

fn flocks_know_no_ranges_and_no_circles(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two) = (Who::flock(&a, 1), Who::flock(&b, 1));
    assert_eq!(Who::posix(&a, 1).take(x, 0, END, true), Ok(Locked::Granted));
    assert_eq!(one.take(x, 0, END, true), Ok(Locked::Granted), "of the other kind, also of the same number");
    assert_eq!(two.take(x, 0, END, false), Err(Errno::EAGAIN));
    assert_eq!(two.find(x, 0, END, false), Some(one.lock(0, END, true)));
    one.unlock(x, 0, END);
    assert_eq!(held(&a, x), [Who::posix(&a, 1).lock(0, END, true)]);

    // A circle: nobody is refused.
    one.take(x, 0, END, true).unwrap();
    two.take(y, 0, END, true).unwrap();
    assert_eq!(one.wait(y, 0, END, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, END, true), Ok(Locked::Waiting));
    one.stop();
    two.stop();
    one.unlock(x, 0, END);
    two.unlock(y, 0, END);

    // Both read and want to write: who has to wait gives up what it has, so that the other gets on.
    one.take(x, 0, END, false).unwrap();
    two.take(x, 0, END, false).unwrap();
    assert_eq!(one.wait(x, 0, END, true), Ok(Locked::Waiting));
    assert_eq!(two.wait(x, 0, END, true), Ok(Locked::Granted));
    assert_eq!(one.wait(x, 0, END, true), Ok(Locked::Waiting));
    two.unlock(x, 0, END);
    assert_eq!(one.wait(x, 0, END, true), Ok(Locked::Granted));
    assert!(waiting(&a).is_empty());
    assert_eq!(one.take(x, 0, END, false), Ok(Locked::Granted), "and back");
    assert_eq!(two.take(x, 0, END, false), Ok(Locked::Granted));
}

fn locks_go_with_inode_and_session(factory: Factory<'_>) {
    let (a, b, x, y) = pair(factory);
    let (one, two) = (Who::posix(&a, 1), Who::posix(&b, 1));
    let kinds = [one, Who::posix(&a, 2), Who::flock(&a, 3)];
    for (at, who) in kinds.iter().enumerate() {
        who.take(x, at as u64, at as u64, true).unwrap();
    }
    two.take(x, 50, 50, true).unwrap();
    two.take(y, 50, 50, true).unwrap();
    a.run(&DropLocks { ino: x, session: a.meta.session() }).unwrap();
    a.run(&DropLocks { ino: x, session: a.meta.session() }).unwrap();
    assert_eq!(held(&a, x), [two.lock(50, 50, true)]);

    // An orphan keeps its locks until it goes.
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

/// What each owner holds of each byte of each file, and nothing else.
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
    // Even ones are of fcntl(2), odd ones of flock(2).
    let kinds = |c, owner| [Who::posix(c, owner), Who::flock(c, owner)];
    let who: Vec<Who<'_>> = [kinds(&a, 1), kinds(&b, 1), kinds(&b, 2), kinds(&c, 1)].concat();
    let mut model = Model::default();
    let mut seed = 42;
    for step in 0..STEPS {
        let mut draw = |below: u64| split_mix(&mut seed) % below;
        let (file, owner) = (draw(2) as usize, draw(who.len() as u64) as usize);
        let (p, q) = (draw(BYTES), draw(BYTES));
        let flock = owner % 2 == 1;
        let (start, end) = if flock { (0, BYTES - 1) } else { (p.min(q), p.max(q)) };
        let exclusive = draw(2) == 0;
        match draw(5) {
            0 | 1 => {
                who[owner].unlock(files[file], start, end);
                model.0.retain(|(f, o, byte), _| (*f, *o) != (file, owner) || !(start..=end).contains(byte));
            }
            2 => {
                let free = (start..=end).all(|byte| !model.conflicts(file, owner, byte, exclusive));
                assert_eq!(
                    who[owner].find(files[file], start, end, exclusive).is_none(),
                    free,
                    "step {step}"
                );
            }
            _ => {
                let free = (start..=end).all(|byte| !model.conflicts(file, owner, byte, exclusive));
                let expected = if free { Ok(Locked::Granted) } else { Err(Errno::EAGAIN) };
                let taken = who[owner].take(files[file], start, end, exclusive);
                assert_eq!(taken, expected, "step {step}: {owner} takes {start} to {end} of {file}");
                if free {
                    model.0.extend((start..=end).map(|byte| ((file, owner, byte), exclusive)));
                }
            }
        }
        if step % 64 == 0 {
            agree(&a, &files, &who, &model, step);
        }
    }
    agree(&a, &files, &who, &model, STEPS);
}

fn agree(c: &Client, files: &[Ino], who: &[Who<'_>], model: &Model, step: u32) {
    for (file, ino) in files.iter().enumerate() {
        let mut found = BTreeMap::new();
        for lock in held(c, *ino) {
            let owner = who.iter().position(|who| who.id() == lock.owner).unwrap();
            for byte in lock.start..=lock.end {
                assert_eq!(found.insert((file, owner, byte), lock.exclusive), None, "twice, step {step}");
            }
        }
        let of_file = model.0.iter().filter(|((f, ..), _)| *f == file);
        let expected: BTreeMap<_, _> = of_file.map(|(key, exclusive)| (*key, *exclusive)).collect();
        assert_eq!(found, expected, "step {step}");
    }
}

fn threads_never_hold_what_excludes_them(factory: Factory<'_>) {
    const THREADS: u64 = 6;
    const TURNS: u32 = 40;
    let (a, b, x, _) = pair(factory);
    let inside = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (inside, client) = (&inside, [&a, &b][thread as usize % 2]);
            scope.spawn(move || {
                let who = Who::posix(client, thread);
                for _ in 0..TURNS {
                    while who.wait(x, 3, 4, true).unwrap() == Locked::Waiting {
                        std::thread::yield_now();
                    }
                    use std::sync::atomic::Ordering::SeqCst;
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two hold the lock");
                    inside.fetch_sub(1, SeqCst);
                    who.unlock(x, 0, END);
                }
            });
        }
    });
    assert!(held(&a, x).is_empty() && waiting(&a).is_empty());
}

fn inline(bytes: &[u8]) -> SliceSource {
    SliceSource::Inline(bytes.into())
}

fn appends_stand_one_after_another(factory: Factory<'_>) {
    let (a, b, x, _) = pair(factory);
    let append = |c: &Client, source, len| c.run(&Append { ino: x, source, len });
    let before = a.node(x);
    assert_eq!(append(&a, inline(b"one"), 3), Ok(0));
    assert_eq!(append(&b, inline(b"two!"), 4), Ok(3));
    assert_eq!((a.node(x).size, b.node(x).size), (7, 7));
    assert!(b.node(x).mtime > before.mtime && b.node(x).ctime == b.node(x).mtime);
    // The first does not know how long the file is by now.
    b.truncate(x, 5).unwrap();
    assert_eq!(append(&a, inline(b"x"), 1), Ok(5));
    assert_eq!(a.run(&Append { ino: Ino(999_999), source: inline(b"x"), len: 1 }), Err(Errno::ESTALE));

    // Across the end of a chunk, a slice serves two rows.
    b.truncate(x, CHUNK_BYTES - 3).unwrap();
    let source = SliceSource::Blocks { id: SliceId(77), offset: 0, size: 10 };
    assert_eq!(append(&a, source, 10), Ok(CHUNK_BYTES - 3));
    assert_eq!(a.node(x).size, CHUNK_BYTES + 7);
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
    // The slice goes with the last of its rows, and not before.
    let garbage = |c: &Client| {
        let scan = meta::Scan::Garbage { after: SliceId(0), limit: 10 };
        c.meta.scan(&scan).unwrap().facts.records.len()
    };
    a.truncate(x, CHUNK_BYTES).unwrap();
    assert_eq!(garbage(&a), 0);
    a.truncate(x, 0).unwrap();
    assert_eq!(garbage(&a), 1);
}

fn appends_race_without_loss(factory: Factory<'_>) {
    const THREADS: usize = 6;
    const RECORDS: usize = 40;
    let (a, b, x, _) = pair(factory);
    // Some fall across the end of the first chunk.
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
    assert_eq!(a.node(x).size, end);
    let by_offset: BTreeMap<u64, [u8; 2]> = offsets.into_iter().collect();
    let expected: Vec<u64> = (start..end).step_by(2).collect();
    assert_eq!(by_offset.keys().copied().collect::<Vec<_>>(), expected, "one after another, none twice");
    let mut found: BTreeMap<u64, u8> = BTreeMap::new();
    for chunk in [0, 1].map(ChunkIndex) {
        for row in a.run(&GetSlices { ino: x, chunk }).unwrap().iter() {
            // What made the file long enough is a hole.
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

fn appends_end_at_the_limits(factory: Factory<'_>) {
    let a = fresh_with(factory, &Volume { capacity_bytes: 3 * 4096, ..volume() });
    a.meta.set_alone(false);
    let b = client(a.engine());
    [&a, &b].iter().for_each(|client| client.meta.set_lifetime(Duration::ZERO));
    let x = a.create(ROOT, "x").unwrap();
    let used = b.run(&meta::ops::GetUsage).unwrap().blocks;
    let room = 3 - used;
    let append = |c: &Client, len: u32| {
        let source = SliceSource::Blocks { id: SliceId(5), offset: 0, size: len };
        c.run(&Append { ino: x, source, len })
    };
    assert_eq!(append(&a, (room * 4096) as u32 + 1), Err(Errno::ENOSPC));
    assert_eq!(a.node(x).size, 0);
    assert_eq!(append(&a, (room * 4096) as u32 - 1), Ok(0));
    assert_eq!(append(&b, 1), Ok(room * 4096 - 1), "the last block has room for it");
    assert_eq!(append(&b, 1), Err(Errno::ENOSPC));
    assert_eq!(b.node(x).size, room * 4096);

    let (a, b, x, _) = pair(factory);
    a.truncate(x, i64::MAX as u64 - 2).unwrap();
    let append = |len| b.run(&Append { ino: x, source: inline(&[1; 3][..len as usize]), len });
    assert_eq!(append(3), Err(Errno::EFBIG));
    assert_eq!(append(2), Ok(i64::MAX as u64 - 2));
    assert_eq!(append(1), Err(Errno::EFBIG));
    assert_eq!(b.node(x).size, i64::MAX as u64);
}
