//! Tests of several transactions: in one batch, repeated, and from several threads.

use std::collections::BTreeSet;

use meta::{Effect, Engine, Guard, Inode, Outcome, Record, RecordKey, Scan, ScanInclude, Seq, Txn, Usage};
use types::{Ino, Time};

use super::fixture::*;

pub fn later_transactions_see_earlier_ones(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR)]);
    let create = |ino, entry: &str| {
        let absent = Guard::DirentAbsent { parent: Ino(2), name: name(entry) };
        let links = Effect::AddLinks { ino: Ino(2), delta: 1 };
        txn(
            vec![absent, Guard::InodeAbsent { ino: Ino(ino) }],
            vec![put(ino, FILE), put_dirent(2, entry, ino), links],
        )
    };
    let links_are = |nlink| txn(vec![Guard::Links { ino: Ino(2), nlink }], Vec::new());
    let batch = [
        create(3, "a"),
        create(4, "b"),
        create(5, "a"),
        links_are(3),
        txn(vec![Guard::Room { max_inodes: 4, max_blocks: 1 }], Vec::new()),
        txn(vec![Guard::Room { max_inodes: 3, max_blocks: 1 }], Vec::new()),
        txn(vec![Guard::Empty { ino: Ino(2) }], vec![Effect::DropInode { ino: Ino(2) }]),
        txn(Vec::new(), vec![Effect::DropInode { ino: Ino(3) }]),
        create(3, "c"),
    ];
    let outcomes = engine.commit(&batch).expect("a commit");
    let done: Vec<bool> = outcomes.iter().map(|o| matches!(o, Outcome::Committed { .. })).collect();
    assert_eq!(done, [true, true, false, true, true, false, false, true, true]);
    match &outcomes[2] {
        Outcome::Conflict(snapshot) => {
            assert!(snapshot.records.contains(&Record::Inode(Ino(3), Some(inode(3, FILE)))));
            assert!(snapshot.records.contains(&Record::Inode(Ino(5), None)));
        }
        outcome => panic!("{outcome:?}"),
    }
    match &outcomes[5] {
        Outcome::Conflict(snapshot) => {
            assert_eq!(snapshot.records, [Record::Usage(Usage { inodes: 3, blocks: 0 })]);
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(read_inode(engine, 2).map(|dir| dir.nlink), Some(4));
    assert_eq!(read_usage(engine).inodes, 3);
}

/// Files are created in one directory, together with transactions that change or check the same records. The
/// result is that of sequential commits.
pub fn creates_are_applied_in_order(engine: &dyn Engine) {
    let touch = |parent, time| {
        let time = Some(Time::from_nanos(time));
        Effect::SetTimes { ino: Ino(parent), atime: None, mtime: time, ctime: time }
    };
    let create = |parent, ino, entry: &str, time| {
        let guards = vec![
            Guard::Access { ino: Ino(parent), rev: 5 },
            Guard::DirentAbsent { parent: Ino(parent), name: name(entry) },
        ];
        txn(guards, vec![put(ino, FILE), put_dirent(parent, entry, ino), touch(parent, time)])
    };
    let remove = |parent, ino, entry: &str, time| {
        let guard = Guard::DirentIs { parent: Ino(parent), name: name(entry), ino: Ino(ino) };
        let dirent = Effect::DropDirent { parent: Ino(parent), name: name(entry) };
        txn(vec![guard], vec![dirent, touch(parent, time), Effect::DropInode { ino: Ino(ino) }])
    };
    let mtime = |ino, time| {
        let mtime = Some(Time::from_nanos(time));
        txn(Vec::new(), vec![Effect::SetTimes { ino: Ino(ino), atime: None, mtime, ctime: None }])
    };
    let is_empty = |ino| txn(vec![Guard::Empty { ino: Ino(ino) }], Vec::new());
    let times =
        |ino| read_inode(engine, ino).map(|inode| [inode.mtime, inode.ctime].map(|time| time.nanos()));
    let done = |batch: &[Txn]| -> Vec<bool> {
        let outcomes = engine.commit(batch).expect("a commit");
        outcomes.iter().map(|outcome| matches!(outcome, Outcome::Committed { .. })).collect()
    };
    apply(engine, vec![put(2, DIR), put(3, DIR), put(4, DIR)]);
    // mtime is that of the last transaction, ctime the maximum, whatever transactions come in between.
    let batch = [
        create(2, 10, "a", 50),
        create(2, 11, "b", 40),
        create(2, 12, "a", 90),
        create(3, 13, "a", 60),
        is_empty(3),
        create(2, 14, "c", 45),
        is_empty(2),
        mtime(3, 20),
    ];
    assert_eq!(done(&batch), [true, true, false, true, false, true, false, true]);
    assert_eq!([times(2), times(3)], [Some([45, 50]), Some([20, 60])]);
    // Later transactions see a new file: it can be removed, and created again.
    let batch = [
        create(4, 20, "x", 70),
        create(4, 21, "y", 60),
        remove(4, 20, "x", 80),
        create(4, 22, "x", 75),
        create(4, 23, "x", 99),
        remove(4, 22, "x", 65),
        mtime(4, 7),
        create(4, 24, "z", 66),
        mtime(4, 8),
    ];
    assert_eq!(done(&batch), [true, true, true, true, false, true, true, true, true]);
    assert_eq!(times(4), Some([8, 80]));
    let names = |parent| -> Vec<Record> {
        let range = Scan::Dir { parent: Ino(parent), after: None, limit: 100, include: ScanInclude::Nothing };
        scan(engine, &range).snapshot.records
    };
    let dirent = |parent, entry: &str, ino| {
        let dirent = meta::Dirent { ino: Ino(ino), kind: FILE };
        Record::Dirent(Ino(parent), name(entry), Some(dirent))
    };
    assert_eq!(names(4), [dirent(4, "y", 21), dirent(4, "z", 24)]);
    // Removing a directory discards the changes to it that the same batch made before; a new directory with
    // its number has its own times.
    let gone = |ino| txn(Vec::new(), vec![Effect::DropInode { ino: Ino(ino) }]);
    let batch = [
        create(2, 30, "d", 100),
        gone(2),
        create(3, 31, "d", 100),
        gone(3),
        txn(Vec::new(), vec![put(3, DIR)]),
    ];
    assert_eq!(done(&batch), [true; 5]);
    assert_eq!([times(2), times(3)], [None, Some([2, 3])]);
}

/// Files are created near a limit. Each create sees the space that earlier ones left, however the engine
/// groups them.
pub fn space_is_granted_in_order(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR)]);
    let create = |ino: u64, max_inodes| {
        let entry = format!("f{ino}");
        let guards = vec![
            Guard::Access { ino: Ino(2), rev: 5 },
            Guard::DirentAbsent { parent: Ino(2), name: name(&entry) },
            Guard::Room { max_inodes, max_blocks: u64::MAX },
        ];
        txn(guards, vec![put(ino, FILE), put_dirent(2, &entry, ino)])
    };
    let remove = |ino: u64| txn(Vec::new(), vec![Effect::DropInode { ino: Ino(ino) }]);
    let write = |ino, max_blocks| {
        let guards = vec![Guard::Room { max_inodes: u64::MAX, max_blocks }];
        txn(guards, vec![Effect::Extend { ino: Ino(ino), size: 8192 }])
    };
    let done = |batch: &[Txn]| -> Vec<bool> {
        let outcomes = engine.commit(batch).expect("a commit");
        for outcome in &outcomes {
            if let Outcome::Conflict(snapshot) = outcome {
                let is_usage = |record: &Record| matches!(record, Record::Usage(_));
                assert!(snapshot.records.iter().any(is_usage), "{snapshot:?}");
            }
        }
        outcomes.iter().map(|outcome| matches!(outcome, Outcome::Committed { .. })).collect()
    };
    let far: Vec<Txn> = (10..30).map(|ino| create(ino, 1_000_000)).collect();
    assert_eq!(done(&far), [true; 20]);
    let near: Vec<Txn> = (30..40).map(|ino| create(ino, 24)).collect();
    let held: Vec<bool> = (0..10).map(|at| at < 3).collect();
    assert_eq!(done(&near), held);
    assert_eq!(read_usage(engine).inodes, 24);
    let full: Vec<Txn> = (40..44).map(|ino| create(ino, 24)).collect();
    assert_eq!(done(&full), [false; 4]);
    // Later transactions get the space that a removal freed, and no more.
    let turns = [create(50, 24), remove(10), create(51, 24), create(52, 24), remove(11), create(53, 24)];
    assert_eq!(done(&turns), [false, true, true, false, true, true]);
    assert_eq!(done(&[write(12, 3), write(13, 3), write(14, 3), write(15, 5)]), [true, true, false, true]);
    assert_eq!(read_usage(engine), Usage { inodes: 24, blocks: 6 });
}

pub fn a_directory_is_empty_only_after_all_removals_of_the_batch(engine: &dyn Engine) {
    let d = Ino(2);
    let unlink = |entry: &str| txn(Vec::new(), vec![Effect::DropDirent { parent: d, name: name(entry) }]);
    let rmdir = || {
        txn(
            vec![Guard::Empty { ino: d }],
            vec![Effect::DropInode { ino: d }, Effect::AddLinks { ino: Ino(3), delta: -1 }],
        )
    };
    let done = |batch: &[Txn]| -> Vec<bool> {
        let outcomes = engine.commit(batch).expect("a commit");
        outcomes.iter().map(|outcome| matches!(outcome, Outcome::Committed { .. })).collect()
    };
    apply(engine, vec![put(2, DIR), put(3, DIR), put_dirent(2, "a", 8), put_dirent(2, "b", 9)]);
    assert_eq!(done(&[unlink("a"), rmdir()]), [true, false]);
    assert_eq!((read_inode(engine, 2), read_inode(engine, 3)), (Some(inode(2, DIR)), Some(inode(3, DIR))));
    assert_eq!(done(&[unlink("b"), rmdir()]), [true, true]);
    assert_eq!(
        (read_inode(engine, 2), read_inode(engine, 3)),
        (None, Some(Inode { nlink: 0, ..inode(3, DIR) }))
    );
}

pub fn a_directory_is_removed_together_with_its_entries(engine: &dyn Engine) {
    let (top, d, e) = (Ino(2), Ino(3), Ino(4));
    let drop_dirent = |parent, entry: &str| Effect::DropDirent { parent, name: name(entry) };
    apply(
        engine,
        vec![
            put(2, DIR),
            put(3, DIR),
            put(4, DIR),
            put_dirent(2, "d", 3),
            put_dirent(3, "e", 4),
            put(5, FILE),
            put_dirent(4, "a", 5),
            put_dirent(4, "b", 5),
            Effect::AddLinks { ino: Ino(5), delta: 1 },
        ],
    );
    let is = |parent, entry: &str, ino| Guard::DirentIs { parent, name: name(entry), ino };
    let guards = vec![is(e, "a", Ino(5)), is(e, "b", Ino(5)), is(d, "e", e), is(top, "d", d)];
    let effects = vec![
        drop_dirent(e, "a"),
        drop_dirent(e, "b"),
        Effect::DropInode { ino: Ino(5) },
        drop_dirent(d, "e"),
        Effect::DropInode { ino: e },
        drop_dirent(top, "d"),
        Effect::DropInode { ino: d },
        Effect::SetTimes { ino: top, atime: None, mtime: Some(Time::from_nanos(50)), ctime: None },
    ];
    // The transaction shares a batch with other changes.
    let make = |entry: &str, ino| txn(Vec::new(), vec![put(ino, FILE), put_dirent(2, entry, ino)]);
    let batch = [make("x", 6), txn(guards, effects), make("y", 7)];
    let outcomes = engine.commit(&batch).expect("a commit");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })), "{outcomes:?}");
    for ino in [3, 4, 5] {
        assert_eq!(read_inode(engine, ino), None);
        let scan = Scan::Dir { parent: Ino(ino), after: None, limit: 9, include: ScanInclude::Nothing };
        assert_eq!(engine.scan(&scan).expect("a scan").snapshot.records, []);
    }
    assert_eq!(read_inode(engine, 2).map(|inode| inode.mtime.nanos()), Some(50));
    assert_eq!(read_usage(engine), Usage { inodes: 3, blocks: 0 });
}

pub fn a_conflict_affects_only_its_transaction(engine: &dyn Engine) {
    let never = Guard::Access { ino: Ino(99), rev: 0 };
    let batch = [
        txn(Vec::new(), vec![put(2, DIR)]),
        txn(vec![Guard::InodeAbsent { ino: Ino(98) }, never], vec![put(3, FILE), put(2, FILE)]),
        txn(Vec::new(), vec![put(4, FILE)]),
    ];
    let outcomes = engine.commit(&batch).expect("a commit");
    assert!(matches!(
        outcomes[..],
        [Outcome::Committed { .. }, Outcome::Conflict(_), Outcome::Committed { .. }]
    ));
    assert_eq!(
        [2, 3, 4].map(|ino| read_inode(engine, ino).map(|inode| inode.kind)),
        [Some(DIR), None, Some(FILE)]
    );
}

pub fn a_repeated_transaction_has_no_effect(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR)]);
    let add = txn(
        vec![Guard::DirentAbsent { parent: Ino(2), name: name("a") }],
        vec![put_dirent(2, "a", 3), Effect::AddLinks { ino: Ino(2), delta: 1 }],
    );
    let (seq, inodes) = committed(commit(engine, add.clone()));
    assert_eq!(inodes.len(), 1);
    apply(engine, vec![put(4, FILE)]);
    let again = committed(commit(engine, add.clone()));
    assert_eq!(again, (seq, Vec::new()), "the result has the first sequence number and no inodes");
    // The repetition is found within a batch, too.
    let other = txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 10 }]);
    let outcomes = engine.commit(&[other.clone(), add, other]).expect("a commit");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
    assert_eq!(read_inode(engine, 2).map(|dir| dir.nlink), Some(12));
    // A conflict has no effect, so the transaction can be committed later.
    let late = txn(vec![Guard::InodeAbsent { ino: Ino(2) }], vec![put(2, FILE)]);
    assert!(matches!(commit(engine, late.clone()), Outcome::Conflict(_)));
    apply(engine, vec![Effect::DropInode { ino: Ino(2) }]);
    committed(commit(engine, late));
    assert_eq!(read_inode(engine, 2).map(|inode| inode.kind), Some(FILE));
}

pub fn results_of_ten_thousand_operations_are_kept(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR)]);
    let link = || txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
    let first = link();
    committed(commit(engine, first.clone()));
    for _ in 0..100 {
        let batch: Vec<Txn> = std::iter::repeat_with(link).take(99).collect();
        engine.commit(&batch).expect("a commit");
    }
    committed(commit(engine, first));
    assert_eq!(read_inode(engine, 2).map(|dir| dir.nlink), Some(1 + 1 + 9900));
}

pub fn transactions_without_effects_check_their_guards(engine: &dyn Engine) {
    assert_eq!(engine.commit(&[]).expect("a commit"), []);
    let (before, _) = committed(commit(engine, txn(Vec::new(), vec![put(2, DIR)])));
    let guarded = txn(vec![Guard::Access { ino: Ino(2), rev: 5 }], Vec::new());
    // The sequence number may be later, because a server may also number the commits of others.
    for empty in [guarded.clone(), txn(Vec::new(), Vec::new())] {
        let (seq, inodes) = committed(commit(engine, empty));
        assert!(seq >= before && inodes.is_empty(), "{seq:?} after {before:?}, {inodes:?}");
    }
    // The guards are checked at each commit, because nothing was applied that could be repeated.
    apply(engine, vec![Effect::DropInode { ino: Ino(2) }]);
    assert!(matches!(commit(engine, guarded), Outcome::Conflict(_)));
}

pub fn commits_have_increasing_sequence_numbers(engine: &dyn Engine) {
    let mut last = engine.read(&[]).expect("a read").seq;
    for ino in 2..6 {
        let batch = [txn(Vec::new(), vec![put(ino, FILE)]), txn(Vec::new(), vec![put(ino + 10, FILE)])];
        for outcome in engine.commit(&batch).expect("a commit") {
            let (seq, _) = committed(outcome);
            assert!(seq > last, "{seq:?} after {last:?}");
            last = seq;
        }
        let conflict = txn(vec![Guard::InodeAbsent { ino: Ino(ino) }], vec![put(99, FILE)]);
        let Outcome::Conflict(snapshot) = commit(engine, conflict) else { panic!("no conflict") };
        assert!(snapshot.seq >= last);
        assert!(engine.read(&[RecordKey::Usage]).expect("a read").seq >= last);
        assert!(scan(engine, &Scan::Inodes { after: Ino(0), limit: 1 }).snapshot.seq >= last);
    }
}

pub fn usage_is_exact(engine: &dyn Engine) {
    let sized = |ino, kind, size| {
        let mut inode = inode(ino, kind);
        inode.size = size;
        Effect::PutInode(inode)
    };
    let usage = |inodes, blocks| assert_eq!(read_usage(engine), Usage { inodes, blocks });
    usage(0, 0);
    apply(engine, vec![sized(2, DIR, 9999), sized(3, FILE, 1), sized(4, FILE, 4096), sized(5, FILE, 0)]);
    usage(4, 2);
    apply(engine, vec![Effect::Extend { ino: Ino(5), size: 4097 }, Effect::SetSize { ino: Ino(3), size: 0 }]);
    usage(4, 3);
    apply(engine, vec![sized(4, DIR, 4096), sized(5, FILE, 1 << 40)]);
    usage(4, 1 << 28);
    apply(engine, vec![Effect::DropInode { ino: Ino(5) }, Effect::DropInode { ino: Ino(5) }]);
    usage(3, 0);
    let batch = [
        txn(Vec::new(), vec![sized(6, FILE, 10)]),
        txn(Vec::new(), vec![Effect::Extend { ino: Ino(6), size: 8192 }]),
        txn(Vec::new(), vec![Effect::DropInode { ino: Ino(6) }]),
    ];
    engine.commit(&batch).expect("a commit");
    usage(3, 0);
}

pub fn a_wiped_engine_is_empty(engine: &dyn Engine) {
    let empty = dump(engine, 4, 1);
    let add = txn(
        Vec::new(),
        vec![
            put(2, DIR),
            put(3, FILE),
            put_dirent(2, "a", 3),
            Effect::PutSession(session(1)),
            Effect::PutSetting { name: "a", value: "b".to_owned() },
        ],
    );
    committed(commit(engine, add.clone()));
    engine.wipe().expect("a wipe");
    assert_eq!(dump(engine, 4, 1), empty);
    engine.wipe().expect("a wipe of nothing");
    // The wipe also removed the results of earlier operations.
    committed(commit(engine, add));
    engine.remove().expect("a removal of all but records");
    assert_eq!(read_usage(engine).inodes, 2, "there are records, so all stays");
}

pub fn sync_succeeds(engine: &dyn Engine) {
    engine.sync().expect("a sync of nothing");
    apply(engine, vec![put(2, DIR)]);
    engine.sync().expect("a sync");
    engine.sync().expect("a sync again");
    assert_eq!(read_inode(engine, 2), Some(inode(2, DIR)));
}

const THREADS: u64 = 4;
const CREATES: u64 = 100;

/// Concurrent creates in one directory do not conflict, and none is lost.
pub fn concurrent_creates_all_commit(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR)]);
    let create = |number: u64| {
        let (parent, name) = (Ino(2), name(format!("f{number:04}")));
        let ino = Ino(100 + number);
        let time = Some(Time::from_nanos(5));
        txn(
            vec![Guard::Access { ino: parent, rev: 5 }, Guard::DirentAbsent { parent, name: name.clone() }],
            vec![
                put(ino.0, FILE),
                Effect::PutDirent { parent, name, ino, kind: FILE },
                Effect::AddLinks { ino: parent, delta: 1 },
                Effect::SetTimes { ino: parent, atime: None, mtime: time, ctime: time },
                Effect::Extend { ino, size: 4096 },
            ],
        )
    };
    let numbers: Vec<Seq> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let run = move || {
                    let create = |n: u64| committed(commit_in_race(engine, &create(n * THREADS + thread))).0;
                    (0..CREATES).map(create).collect::<Vec<Seq>>()
                };
                scope.spawn(run)
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    let all = THREADS * CREATES;
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len() as u64, all, "each commit has its own number");
    assert_eq!(read_usage(engine), Usage { inodes: all + 1, blocks: all });
    assert_eq!(read_inode(engine, 2).map(|dir| u64::from(dir.nlink)), Some(all + 1));
    let entries = scan(
        engine,
        &Scan::Dir { parent: Ino(2), after: None, limit: usize::MAX, include: ScanInclude::Nothing },
    );
    assert_eq!(entries.snapshot.records.len() as u64, all);
}

/// An inode that is renamed back and forth has exactly one name in every read.
pub fn reads_are_atomic(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), put(3, FILE), put_dirent(2, "a", 3)]);
    let keys = [
        RecordKey::Dirent(Ino(2), name("a")),
        RecordKey::Inode(Ino(2)),
        RecordKey::Dirent(Ino(2), name("b")),
    ];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for (from, to) in [("a", "b"), ("b", "a")].into_iter().cycle().take(200) {
                let drop = Effect::DropDirent { parent: Ino(2), name: name(from) };
                let size = Effect::AddLinks { ino: Ino(2), delta: 1 };
                committed(commit_in_race(engine, &txn(Vec::new(), vec![put_dirent(2, to, 3), drop, size])));
            }
        });
        while !writer.is_finished() {
            let records = read_in_race(engine, &keys);
            let names =
                records.iter().filter(|record| matches!(record, Record::Dirent(_, _, Some(_)))).count();
            assert_eq!(names, 1, "{records:?}");
        }
    });
    assert_eq!(read_inode(engine, 2).map(|dir| dir.nlink), Some(201));
}
