//! The stream of changes, for engines that have one.

use std::time::Duration;

use meta::{Change, Changes, Effect, Engine, Guard, Invalidation, Outcome, RecordKey, Seq};
use types::Ino;

use super::fixture::{DIR, FILE, apply, commit, commit_in_race, committed, name, put, put_dirent, txn};

/// Longer than any server needs, so that a timeout is a failure.
const LONG: Duration = Duration::from_secs(60);

/// The stream of changes. It must exist: without one, mounts poll, and no other test would fail.
fn watch(engine: &dyn Engine) -> Box<dyn Changes> {
    engine.watch().expect("a stream").expect("this engine must have a stream")
}

/// An engine with a stream must be tested with one.
pub fn the_engine_has_no_stream_of_changes(engine: &dyn Engine) {
    assert!(engine.watch().expect("a reply").is_none(), "the engine has a stream: use `conformance!($new)`");
}

/// Reads changes until one contains `last`.
fn until(changes: &mut dyn Changes, last: &Invalidation) -> Vec<Change> {
    let mut all = Vec::new();
    while !all.iter().any(|change: &Change| change.invalidations.contains(last)) {
        let more = changes.next(LONG).expect("changes");
        assert!(!more.is_empty(), "no more changes within {LONG:?} after {all:?}");
        all.extend(more);
    }
    all
}

pub fn changes_are_delivered_in_order(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), put(3, FILE)]);
    let mut changes = watch(engine);
    assert_eq!(changes.next(Duration::ZERO).expect("changes"), [], "earlier changes are not delivered");
    let touch = || Effect::AddLinks { ino: Ino(3), delta: 1 };
    let committed = txn(Vec::new(), vec![put_dirent(2, "a", 3), touch()]);
    let by = types::SessionId((committed.op_id.0 >> 64) as u64);
    let Outcome::Committed { seq, .. } = commit(engine, committed) else { panic!("a conflict") };
    commit(engine, txn(vec![Guard::InodeAbsent { ino: Ino(3) }], vec![touch()]));
    commit(engine, txn(vec![Guard::Access { ino: Ino(3), rev: 5 }], Vec::new()));
    let size = Effect::SetSize { ino: Ino(3), size: 9 };
    let batch = [txn(Vec::new(), vec![size]), txn(Vec::new(), vec![Effect::DropInode { ino: Ino(3) }])];
    engine.commit(&batch).expect("a commit");
    let marker = Invalidation::Dirent(Ino(2), name("z"));
    apply(engine, vec![Effect::DropDirent { parent: Ino(2), name: name("z") }]);
    let found = until(&mut *changes, &marker);
    let invalidations: Vec<_> = found.iter().map(|change| change.invalidations.clone()).collect();
    let inode = Invalidation::Inode(Ino(3));
    let expected = [
        vec![Invalidation::Dirent(Ino(2), name("a")), inode.clone()],
        vec![inode.clone(), Invalidation::Data(Ino(3))],
        vec![inode],
        vec![marker],
    ];
    assert_eq!(
        invalidations, expected,
        "neither conflicts nor transactions without effects are changes, and no change is delivered twice"
    );
    assert_eq!((found[0].seq, found[0].by), (seq, by));
    assert!(found.windows(2).all(|pair| pair[0].seq < pair[1].seq), "{found:?}");
    let last = found.iter().map(|change| change.seq).max().unwrap_or(Seq(0));
    assert!(engine.read(&[RecordKey::Usage]).expect("a read").seq >= last);
    assert_eq!(changes.next(Duration::ZERO).expect("changes"), []);
}

/// A call that does not wait returns all changes.
pub fn all_changes_are_returned_without_waiting(engine: &dyn Engine) {
    changes_of_commits_are_returned_without_waiting(engine, 50);
}

/// As [`all_changes_are_returned_without_waiting`], for this many commits of four transactions each: an engine
/// may need several requests to read these changes.
pub fn changes_of_commits_are_returned_without_waiting(engine: &dyn Engine, commits: u64) {
    const EACH: u64 = 4;
    apply(engine, (2..2 + EACH).map(|ino| put(ino, FILE)).collect());
    let mut changes = watch(engine);
    for size in 1..=commits {
        let extend = |ino| txn(Vec::new(), vec![Effect::Extend { ino: Ino(ino), size }]);
        let batch: Vec<_> = (2..2 + EACH).map(extend).collect();
        engine.commit(&batch).expect("a commit");
    }
    assert_eq!(changes.next(Duration::ZERO).expect("changes").len() as u64, commits * EACH);
    assert_eq!(changes.next(Duration::ZERO).expect("changes"), []);
}

/// A client that waits for a change gets it from one call.
pub fn the_next_call_returns_a_change(engine: &dyn Engine) {
    apply(engine, vec![put(2, FILE)]);
    let mut changes = watch(engine);
    for size in 1..=20 {
        apply(engine, vec![Effect::Extend { ino: Ino(2), size }]);
        let found = changes.next(LONG).expect("changes");
        assert_eq!(found.len(), 1, "change {size}: {found:?}");
    }
}

pub fn every_change_is_delivered_once(engine: &dyn Engine) {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    apply(engine, (2..2 + THREADS).map(|ino| put(ino, FILE)).collect());
    let mut changes = watch(engine);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for size in 1..=EACH {
                    let extend = Effect::Extend { ino: Ino(2 + thread), size };
                    committed(commit_in_race(engine, &txn(Vec::new(), vec![extend])));
                }
            });
        }
        let mut found = Vec::new();
        while found.len() < (THREADS * EACH) as usize {
            let more = changes.next(LONG).expect("changes");
            assert!(!more.is_empty(), "{} of {} changes delivered", found.len(), THREADS * EACH);
            found.extend(more);
        }
        for ino in (2..2 + THREADS).map(Ino) {
            let seqs: Vec<_> = found
                .iter()
                .filter(|change| change.invalidations.contains(&Invalidation::Inode(ino)))
                .map(|c| c.seq)
                .collect();
            assert_eq!(seqs.len() as u64, EACH, "of {ino:?}");
            assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "in order for {ino:?}: {seqs:?}");
        }
    });
    assert_eq!(changes.next(Duration::ZERO).expect("changes"), []);
}
