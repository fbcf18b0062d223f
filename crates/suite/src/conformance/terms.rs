//! Tests of terms: results are kept until their term ends, and no operation of an ended term is applied.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use meta::{Effect, Engine, Guard, Outcome, Record, RecordKey, Session, Txn};
use types::{AclId, Ino, OpId, SessionId, Term, Time};

use super::fixture::{
    DIR, FILE, apply, commit, commit_in_race, committed, found_inode, put, read, read_in_race, read_inode,
    session, txn,
};

const SESSION: SessionId = SessionId(4);

/// An operation of the session, guarded by its term, that adds a link to inode 2.
fn link(term: u32, count: u32) -> Txn {
    within(term, count, vec![Effect::AddLinks { ino: Ino(2), delta: 1 }])
}

fn within(term: u32, count: u32, effects: Vec<Effect>) -> Txn {
    let guards = vec![Guard::Term { session: SESSION, term: Term(term) }];
    Txn { op_id: OpId::new(SESSION, Term(term), count), guards, effects }
}

fn begin(term: u32, ended: &[u32]) -> Effect {
    let ended = ended.iter().map(|term| Term(*term)).collect();
    Effect::BeginTerm { session: SESSION, term: Term(term), ended }
}

/// Creates a directory, and a session whose first term is open.
fn start(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), Effect::PutSession(session(SESSION.0)), begin(1, &[])]);
}

fn links(engine: &dyn Engine) -> u32 {
    read_inode(engine, 2).expect("the directory").nlink
}

fn is_refused(outcome: &Outcome) -> bool {
    // The conflict contains the record of the session, so the session exists and the term has ended.
    matches!(outcome, Outcome::Conflict(snapshot) if snapshot.records == [Record::Session(SESSION, Some(session(SESSION.0)))])
}

pub fn term_guard(engine: &dyn Engine) {
    let holds = |term| matches!(commit(engine, within(term, 1000, Vec::new())), Outcome::Committed { .. });
    assert!(!holds(1));
    apply(engine, vec![begin(1, &[])]);
    assert!(!holds(1), "a term was opened without a session");
    apply(engine, vec![Effect::PutSession(session(SESSION.0))]);
    assert!(!holds(1));
    apply(engine, vec![begin(1, &[])]);
    assert!(holds(1) && !holds(2));
    apply(engine, vec![begin(2, &[])]);
    assert!(holds(1) && holds(2));
    // A renewal neither opens nor ends a term.
    apply(engine, vec![begin(3, &[1])]);
    let later = Session { heartbeat: Time::from_nanos(99), ..session(SESSION.0) };
    apply(engine, vec![Effect::PutSession(later)]);
    assert!(!holds(1) && holds(2) && holds(3));
    let other = Guard::Term { session: SessionId(5), term: Term(2) };
    assert!(matches!(commit(engine, txn(vec![other], Vec::new())), Outcome::Conflict(_)));
    // Removing the session ends all its terms; a new session with the same number does not reopen them.
    apply(engine, vec![Effect::DropSession { session: SESSION }]);
    assert!(!holds(2) && !holds(3));
    apply(engine, vec![Effect::PutSession(session(SESSION.0))]);
    assert!(!holds(2) && !holds(3));
}

pub fn results_are_kept_until_their_term_ends(engine: &dyn Engine) {
    start(engine);
    let (first, _) = committed(commit(engine, link(1, 0)));
    committed(commit(engine, within(1, 1, vec![begin(2, &[])])));
    let acl = Effect::PutAcl { id: AclId(7), text: "u::rw-".into() };
    for _ in 0..170 {
        let others: Vec<Txn> = (0..100).map(|_| txn(Vec::new(), vec![acl.clone()])).collect();
        engine.commit(&others).expect("a commit");
    }
    // The result is still known, and an operation that never arrived before is applied.
    assert_eq!(committed(commit(engine, link(1, 0))), (first, Vec::new()));
    assert_eq!(links(engine), 2);
    committed(commit(engine, link(1, 7)));
    committed(commit(engine, link(2, 0)));
    assert_eq!(links(engine), 4);
    committed(commit(engine, within(2, 1, vec![begin(3, &[1])])));
    // The results of other terms are still known.
    for known in [link(2, 0), within(2, 1, vec![begin(3, &[1])])] {
        committed(commit(engine, known));
    }
    committed(commit(engine, link(2, 2)));
    assert_eq!(links(engine), 5);
}

pub fn an_operation_of_an_ended_term_has_no_effect(engine: &dyn Engine) {
    start(engine);
    committed(commit(engine, link(1, 0)));
    committed(commit(engine, within(1, 1, vec![begin(2, &[1])])));
    // The first operation never arrived before. The second one was applied, and the engine may still have its
    // result.
    assert!(is_refused(&commit(engine, link(1, 2))));
    commit(engine, link(1, 0));
    let outcomes = engine.commit(&[link(1, 3), link(1, 4), link(2, 0)]).expect("a commit");
    assert!(is_refused(&outcomes[0]) && is_refused(&outcomes[1]));
    assert!(matches!(outcomes[2], Outcome::Committed { .. }));
    assert_eq!(links(engine), 3);
    // The same holds in the batch that ends the term.
    let batch = [link(2, 1), within(2, 2, vec![begin(3, &[2])]), link(2, 3), link(3, 0)];
    let outcomes = engine.commit(&batch).expect("a commit");
    let done = outcomes.iter().map(|outcome| matches!(outcome, Outcome::Committed { .. }));
    assert_eq!(done.collect::<Vec<_>>(), [true, true, false, true]);
    assert!(is_refused(&outcomes[2]));
    assert_eq!(links(engine), 5);
    // If the session was removed, the conflict says so.
    apply(engine, vec![Effect::DropSession { session: SESSION }]);
    let Outcome::Conflict(snapshot) = commit(engine, link(3, 1)) else {
        panic!("a change without a session")
    };
    assert_eq!(snapshot.records, [Record::Session(SESSION, None)]);
    assert_eq!(read(engine, &[RecordKey::Session(SESSION)]), snapshot.records);
}

/// Operations of a term are in flight while the term ends. Each of them commits before the end, or never.
pub fn an_operation_racing_with_the_end_of_its_term_commits_before_it_or_never(engine: &dyn Engine) {
    start(engine);
    apply(engine, vec![put(3, FILE)]);
    for term in 1..=20 {
        let begun = AtomicU32::new(0);
        let at_the_end = std::thread::scope(|scope| {
            let run = |thread: u32| {
                let begun = &begun;
                scope.spawn(move || {
                    for count in 0.. {
                        // The end must not starve on an engine with optimistic commits.
                        if count > 20 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        assert!(count < 5_000, "the term has not ended");
                        begun.fetch_add(1, Ordering::Relaxed);
                        // Each operation is sent twice, as after a lost reply.
                        let op = link(term, 3 * count + thread);
                        let first = commit_in_race(engine, &op);
                        let again = commit_in_race(engine, &op);
                        if is_refused(&first) {
                            assert!(is_refused(&again));
                            break;
                        }
                    }
                })
            };
            let threads: Vec<_> = (0..3).map(run).collect();
            // Do not wait longer if a thread has failed.
            while begun.load(Ordering::Relaxed) < 4 && !threads.iter().any(|thread| thread.is_finished()) {
                std::thread::yield_now();
            }
            committed(commit_in_race(engine, &within(term, u32::MAX, vec![begin(term + 1, &[term])])));
            found_inode(&read_in_race(engine, &[RecordKey::Inode(Ino(2))])).expect("the directory").nlink
        });
        assert_eq!(links(engine), at_the_end, "term {term}");
    }
}
