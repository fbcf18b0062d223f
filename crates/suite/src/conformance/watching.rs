//! The stream of changes, of engines that have one.

use std::time::Duration;

use meta::{Change, Changes, Effect, Engine, Guard, Outcome, Seq, Touched, Want};
use types::Ino;

use super::fixture::{DIR, FILE, apply, commit, name, put, put_edge, txn};

/// Longer than any server takes to tell, so that a failure is one.
const LONG: Duration = Duration::from_secs(60);

/// The stream, which has to be there: mounts on an engine without one poll, and nothing else would fail.
fn watch(engine: &dyn Engine) -> Box<dyn Changes> {
    engine.watch().expect("a stream").expect("an engine whose suite says that it has a stream")
}

/// An engine that has a stream has it tested.
pub fn no_changes_are_told(engine: &dyn Engine) {
    assert!(
        engine.watch().expect("an answer").is_none(),
        "there is a stream: its suite is `conformance!($new)`"
    );
}

/// The next changes until they touch `last`.
fn until(changes: &mut dyn Changes, last: &Touched) -> Vec<Change> {
    let mut all = Vec::new();
    while !all.iter().any(|change: &Change| change.touched.contains(last)) {
        let more = changes.next(LONG).expect("changes");
        assert!(!more.is_empty(), "nothing came within {LONG:?} but {all:?}");
        all.extend(more);
    }
    all
}

pub fn changes_are_told_in_order(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), put(3, FILE)]);
    let mut changes = watch(engine);
    assert_eq!(changes.next(Duration::ZERO).expect("changes"), [], "what was before is not told");
    let touch = || Effect::AddLinks { ino: Ino(3), delta: 1 };
    let committed = txn(Vec::new(), vec![put_edge(2, "a", 3), touch()]);
    let by = types::SessionId((committed.op_id.0 >> 64) as u64);
    let Outcome::Committed { seq, .. } = commit(engine, committed) else { panic!("a conflict") };
    commit(engine, txn(vec![Guard::NodeAbsent { ino: Ino(3) }], vec![touch()]));
    commit(engine, txn(vec![Guard::Access { ino: Ino(3), rev: 5 }], Vec::new()));
    let size = Effect::SetSize { ino: Ino(3), size: 9 };
    let batch = [txn(Vec::new(), vec![size]), txn(Vec::new(), vec![Effect::DropNode { ino: Ino(3) }])];
    engine.commit(&batch).expect("a commit");
    let marker = Touched::Edge(Ino(2), name("z"));
    apply(engine, vec![Effect::DropEdge { parent: Ino(2), name: name("z") }]);
    let told = until(&mut *changes, &marker);
    let touched: Vec<_> = told.iter().map(|change| change.touched.clone()).collect();
    let node = Touched::Node(Ino(3));
    let expected = [
        vec![Touched::Edge(Ino(2), name("a")), node.clone()],
        vec![node.clone(), Touched::Data(Ino(3))],
        vec![node],
        vec![marker],
    ];
    assert_eq!(touched, expected, "conflicts and claims are no changes, and nothing is told twice");
    assert_eq!((told[0].seq, told[0].by), (seq, by));
    assert!(told.windows(2).all(|pair| pair[0].seq < pair[1].seq), "{told:?}");
    let last = told.iter().map(|change| change.seq).max().unwrap_or(Seq(0));
    assert!(engine.read(&[Want::Usage]).expect("a read").seq >= last);
    assert_eq!(changes.next(Duration::ZERO).expect("changes"), []);
}

/// A client that waits for a change asks once for it.
pub fn a_change_comes_with_the_next_answer(engine: &dyn Engine) {
    apply(engine, vec![put(2, FILE)]);
    let mut changes = watch(engine);
    for size in 1..=20 {
        apply(engine, vec![Effect::Extend { ino: Ino(2), size }]);
        let told = changes.next(LONG).expect("changes");
        assert_eq!(told.len(), 1, "change {size}: {told:?}");
    }
}

pub fn every_change_is_told_once(engine: &dyn Engine) {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    apply(engine, (2..2 + THREADS).map(|ino| put(ino, FILE)).collect());
    let mut changes = watch(engine);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for size in 1..=EACH {
                    apply(engine, vec![Effect::Extend { ino: Ino(2 + thread), size }]);
                }
            });
        }
        let mut told = Vec::new();
        while told.len() < (THREADS * EACH) as usize {
            let more = changes.next(LONG).expect("changes");
            assert!(!more.is_empty(), "{} of {} came", told.len(), THREADS * EACH);
            told.extend(more);
        }
        for ino in (2..2 + THREADS).map(Ino) {
            let seqs: Vec<_> = told
                .iter()
                .filter(|change| change.touched.contains(&Touched::Node(ino)))
                .map(|c| c.seq)
                .collect();
            assert_eq!(seqs.len() as u64, EACH, "of {ino:?}");
            assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "in order for {ino:?}: {seqs:?}");
        }
    });
    assert_eq!(changes.next(Duration::ZERO).expect("changes"), []);
}
