//! ACLs that are condemned and removed, while other transactions make inodes refer to them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use meta::{Effect, Engine, Guard, Outcome, Record, RecordKey, Scan, Txn};
use types::{AclId, Ino};

use super::fixture::{
    DIR, FILE, apply, commit, commit_in_race, committed, inode, put, read, read_inode, scan, txn,
};
use crate::files::persistently;

const ID: AclId = AclId(1 << 100 | 7);

fn put_acl(id: AclId) -> Effect {
    Effect::PutAcl { id, text: "u::rw-".into() }
}

fn condemn(id: AclId) -> Effect {
    Effect::CondemnAcl { id }
}

/// Creates an inode that refers to the ACL.
fn refer(ino: u64) -> Effect {
    let mut file = inode(ino, FILE);
    file.access_acl = ID;
    Effect::PutInode(file)
}

fn stored(engine: &dyn Engine) -> Vec<AclId> {
    let page = persistently(|| engine.scan(&Scan::Acls { after: AclId::NONE, limit: 100 }));
    let id = |record| if let Record::Acl(id, Some(_)) = record { Some(id) } else { None };
    page.snapshot.records.into_iter().filter_map(id).collect()
}

pub fn acl_guard(engine: &dyn Engine) {
    let holds = |id| {
        let outcome = commit(engine, txn(vec![Guard::Acl { id }], Vec::new()));
        let changed = commit(engine, txn(vec![Guard::Acl { id }], vec![put(3, FILE)]));
        assert_eq!(
            matches!(outcome, Outcome::Committed { .. }),
            matches!(changed, Outcome::Committed { .. })
        );
        matches!(outcome, Outcome::Committed { .. })
    };
    let other = AclId(1 << 100 | 8);
    assert!(!holds(ID));
    apply(engine, vec![put_acl(ID), put_acl(other)]);
    assert!(holds(ID) && holds(other));
    apply(engine, vec![condemn(ID)]);
    assert!(!holds(ID) && holds(other));
    // The conflict shows a condemned ACL like a stored one.
    let Outcome::Conflict(snapshot) = commit(engine, txn(vec![Guard::Acl { id: ID }], vec![put(4, FILE)]))
    else {
        panic!("a condemned ACL was used")
    };
    assert_eq!(snapshot.records, [Record::Acl(ID, Some("u::rw-".into()))]);
    assert_eq!(read_inode(engine, 4), None);
    apply(engine, vec![put_acl(ID)]);
    assert!(holds(ID));
    // Another transaction of the same call changes what a guard finds.
    let uses = |ino| txn(vec![Guard::Acl { id: ID }], vec![refer(ino)]);
    let alone = |effect| txn(Vec::new(), vec![effect]);
    let batch = [
        uses(10),
        alone(condemn(ID)),
        uses(11),
        alone(put_acl(ID)),
        uses(12),
        txn(Vec::new(), vec![condemn(ID), put_acl(ID)]),
        uses(13),
        txn(vec![Guard::Acl { id: ID }], vec![put_acl(ID), condemn(ID), Effect::DropAcl { id: ID }]),
        uses(14),
        txn(Vec::new(), vec![put_acl(ID), refer(15)]),
        uses(16),
        uses(17),
    ];
    let outcomes = engine.commit(&batch).expect("a commit");
    let done = outcomes.iter().map(|outcome| matches!(outcome, Outcome::Committed { .. }));
    let expected = [true, true, false, true, true, true, true, true, false, true, true, true];
    assert_eq!(done.collect::<Vec<_>>(), expected);
    let made = |ino: &u64| read_inode(engine, *ino).is_some();
    assert_eq!((10..18).filter(made).collect::<Vec<_>>(), [10, 12, 13, 15, 16, 17]);
}

pub fn only_condemned_acls_are_dropped(engine: &dyn Engine) {
    let acl = || {
        let [record] = &read(engine, &[RecordKey::Acl(ID)])[..] else { panic!("one record") };
        assert_eq!(stored(engine).contains(&ID), matches!(record, Record::Acl(_, Some(_))));
        record.clone()
    };
    let there = Record::Acl(ID, Some("u::rw-".into()));
    let drop = || apply(engine, vec![Effect::DropAcl { id: ID }]);
    apply(engine, vec![condemn(ID)]);
    drop();
    assert_eq!(acl(), Record::Acl(ID, None));
    apply(engine, vec![put_acl(ID), refer(3)]);
    drop();
    assert_eq!(acl(), there);
    // A condemned ACL is read as before, even if it was condemned twice, and also with its inode.
    apply(engine, vec![condemn(ID)]);
    apply(engine, vec![condemn(ID)]);
    assert_eq!(acl(), there);
    assert_eq!(read(engine, &[RecordKey::Inode(Ino(3))]).last(), Some(&there));
    let all = scan(engine, &Scan::Acls { after: AclId::NONE, limit: 9 }).snapshot.records;
    assert_eq!(all, std::slice::from_ref(&there));
    // Storing the ACL again ends its condemnation, and keeps the old text.
    apply(engine, vec![Effect::PutAcl { id: ID, text: "other".into() }]);
    drop();
    assert_eq!(acl(), there);
    apply(engine, vec![condemn(ID)]);
    drop();
    drop();
    assert_eq!(acl(), Record::Acl(ID, None));
    apply(engine, vec![Effect::PutAcl { id: ID, text: "new".into() }]);
    assert_eq!(acl(), Record::Acl(ID, Some("new".into())));
}

/// Transactions that use an ACL are in flight while the ACL is condemned. Each of them commits before the
/// condemnation, or never.
pub fn no_inode_begins_to_refer_to_a_condemned_acl(engine: &dyn Engine) {
    let next = AtomicU64::new(100);
    let references = || {
        let scan = Scan::Inodes { after: Ino(0), limit: usize::MAX };
        persistently(|| engine.scan(&scan)).snapshot.records.len()
    };
    for round in 0..20 {
        apply(engine, vec![put_acl(ID)]);
        let begun = AtomicU64::new(0);
        let at_the_end = std::thread::scope(|scope| {
            let run = |_| {
                scope.spawn(|| {
                    for count in 0.. {
                        // The condemnation must not starve on an engine with optimistic commits.
                        if count > 20 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        assert!(count < 5_000, "the ACL is not condemned");
                        begun.fetch_add(1, Ordering::Relaxed);
                        let ino = next.fetch_add(1, Ordering::Relaxed);
                        let uses = txn(vec![Guard::Acl { id: ID }], vec![refer(ino)]);
                        if let Outcome::Conflict(_) = commit_in_race(engine, &uses) {
                            break;
                        }
                    }
                })
            };
            let threads: Vec<_> = (0..3).map(run).collect();
            while begun.load(Ordering::Relaxed) < 6 && !threads.iter().any(|thread| thread.is_finished()) {
                std::thread::yield_now();
            }
            committed(commit_in_race(engine, &txn(Vec::new(), vec![condemn(ID)])));
            references()
        });
        assert_eq!(references(), at_the_end, "round {round}");
    }
}

/// Removes an ACL in the steps of `limen gc`, while other clients use the ACL.
pub fn an_acl_that_an_inode_refers_to_is_not_dropped(engine: &dyn Engine) {
    let (next, refused, ended) = (AtomicU64::new(100), AtomicU64::new(0), AtomicBool::new(false));
    apply(engine, vec![put(2, DIR)]);
    std::thread::scope(|scope| {
        let use_it = |thread: u64| {
            let (next, refused, ended) = (&next, &refused, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let ino = next.fetch_add(1, Ordering::Relaxed);
                    let mut uses = txn(vec![Guard::Acl { id: ID }], vec![refer(ino)]);
                    if let Outcome::Conflict(_) = commit_in_race(engine, &uses) {
                        refused.fetch_add(1, Ordering::Relaxed);
                        uses = txn(Vec::new(), vec![put_acl(ID), refer(ino)]);
                        committed(commit_in_race(engine, &uses));
                    }
                    assert_eq!(stored(engine), [ID], "an inode refers to a missing ACL");
                    let gone = txn(Vec::new(), vec![Effect::DropInode { ino: Ino(ino) }]);
                    committed(commit_in_race(engine, &gone));
                    // Pause, so that at some moments no inode refers to the ACL.
                    std::thread::sleep(Duration::from_millis(thread));
                }
            })
        };
        let threads: Vec<_> = (1..=3).map(use_it).collect();
        for round in 0.. {
            assert!(round < 5_000, "no use is refused");
            let alone = |effect| -> Txn { txn(Vec::new(), vec![effect]) };
            committed(commit_in_race(engine, &alone(condemn(ID))));
            let inodes = Scan::Inodes { after: Ino(2), limit: 10 };
            if persistently(|| engine.scan(&inodes)).snapshot.records.is_empty() {
                committed(commit_in_race(engine, &alone(Effect::DropAcl { id: ID })));
            }
            // Do not wait longer if a thread has failed.
            if refused.load(Ordering::Relaxed) >= 20 || threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        ended.store(true, Ordering::Relaxed);
    });
}
