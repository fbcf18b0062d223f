//! Tests of cases that TiKV leaves to its clients: write skew, crashes between the phases, a refused
//! one-phase commit. They also count the requests of each call.

mod support;

use std::sync::Arc;
use std::time::Duration;

use engine_tikv::{Mutation, OpenError, Phases, Store, TikvEngine};
use meta::{
    Effect, Engine, ErrorKind, Guard, Inode, Outcome, Record, RecordKey, Scan, ScanInclude, Seq, Session, Txn,
};
use suite::files::interrupted_wipes_leave_the_settings;
use support::{Cluster, Counts, Fault, open};
use types::{FileType, Ino, Mode, Name, OpId, SessionId, Term, Time};

const DIR: u64 = 10;
const LOCK_LIFE: Duration = Duration::from_secs(4);

fn inode(ino: u64, kind: FileType) -> Inode {
    let now = Time::from_nanos(1_000_000_000);
    Inode { nlink: 1, access_rev: 0, ..Inode::new(Ino(ino), kind, Mode::new(0o755), now) }
}

fn name(number: u64) -> Name {
    Name::new(format!("file{number}").as_bytes()).unwrap()
}

fn txn(op: u64, guards: Vec<Guard>, effects: Vec<Effect>) -> Txn {
    Txn { op_id: OpId(1 << 64 | u128::from(op)), guards, effects }
}

fn touch(ino: u64, nanos: i64) -> Effect {
    let now = Some(Time::from_nanos(nanos));
    Effect::SetTimes { ino: Ino(ino), atime: None, mtime: now, ctime: now }
}

/// A create of the file `number` in the directory [`DIR`].
fn create(number: u64) -> Txn {
    let (parent, name) = (Ino(DIR), name(number));
    let guards =
        vec![Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }];
    let effects = vec![
        Effect::PutInode(inode(1000 + number, FileType::Regular)),
        Effect::PutDirent { parent, name, ino: Ino(1000 + number), kind: FileType::Regular },
        touch(DIR, 2_000_000_000 + number as i64),
    ];
    txn(number, guards, effects)
}

/// A volume with the directory [`DIR`] in the directory with number 2.
fn volume(cluster: &Arc<Cluster>) -> TikvEngine {
    let engine = open(cluster, true);
    let dirent =
        Effect::PutDirent { parent: Ino(2), name: name(DIR), ino: Ino(DIR), kind: FileType::Directory };
    let dirs = [2, DIR].map(|ino| Effect::PutInode(inode(ino, FileType::Directory)));
    done(&engine, txn(u64::MAX, Vec::new(), dirs.into_iter().chain([dirent]).collect()));
    engine
}

fn done(engine: &TikvEngine, txn: Txn) -> (Seq, Vec<Inode>) {
    match engine.commit(&[txn]).unwrap().pop() {
        Some(Outcome::Committed { seq, inodes }) => (seq, inodes),
        other => panic!("{other:?}"),
    }
}

fn conflicts(engine: &TikvEngine, txn: Txn) -> bool {
    matches!(engine.commit(&[txn]).unwrap()[..], [Outcome::Conflict(_)])
}

fn inodes(engine: &TikvEngine) -> u64 {
    match engine.read(&[RecordKey::Usage]).unwrap().records[..] {
        [Record::Usage(usage)] => usage.inodes,
        ref other => panic!("{other:?}"),
    }
}

fn entries(engine: &TikvEngine) -> usize {
    let scan = Scan::Dir { parent: Ino(DIR), after: None, limit: 1000, include: ScanInclude::Nothing };
    engine.scan(&scan).unwrap().snapshot.records.len()
}

/// Commits `first` on one handle, and `second` on another handle between the reads of the first and its
/// commit. Returns which of the two were committed. With `used`, each handle has added an inode to the volume
/// before.
fn interleaved(cluster: &Arc<Cluster>, used: bool, first: Txn, second: Txn) -> (bool, bool) {
    let (one, other) = (open(cluster, false), open(cluster, false));
    if used {
        done(&one, txn(11, Vec::new(), vec![Effect::PutInode(inode(900, FileType::Regular))]));
        done(&other, txn(12, Vec::new(), vec![Effect::PutInode(inode(901, FileType::Regular))]));
    }
    let hooked = std::sync::mpsc::channel();
    cluster.before_commit(move || hooked.0.send(!conflicts(&other, second)).expect("a receiver"));
    let first = !conflicts(&one, first);
    (first, hooked.1.try_recv().expect("the result of the second transaction"))
}

/// Pairs of transactions that each read what the other one writes, in a volume with room for `room` inodes.
fn skewed(room: u64) -> Vec<(&'static str, Txn, Txn)> {
    let absent = |name| vec![Guard::Setting { name, value: None }];
    let set = |name| vec![Effect::PutSetting { name, value: "1".to_owned() }];
    let room = || vec![Guard::Room { max_inodes: room, max_blocks: 100 }];
    let put = |ino| vec![Effect::PutInode(inode(ino, FileType::Regular))];
    let make = Effect::PutDirent { parent: Ino(DIR), name: name(1), ino: Ino(5), kind: FileType::Regular };
    let remove =
        vec![Effect::DropDirent { parent: Ino(2), name: name(DIR) }, Effect::DropInode { ino: Ino(DIR) }];
    vec![
        ("two settings", txn(1, absent("a"), set("b")), txn(2, absent("b"), set("a"))),
        ("the last inode that fits", txn(1, room(), put(20)), txn(2, room(), put(21))),
        (
            "an entry in a directory that is removed",
            txn(1, vec![Guard::Access { ino: Ino(DIR), rev: 0 }], vec![make]),
            txn(2, vec![Guard::Empty { ino: Ino(DIR) }], remove),
        ),
    ]
}

#[test]
fn write_skew_is_prevented() {
    for (used, room) in [(false, 3), (true, 5)] {
        for (what, first, second) in skewed(room) {
            for (first, second) in [(first.clone(), second.clone()), (second, first)] {
                let cluster = Cluster::new();
                let _engine = volume(&cluster);
                assert_eq!(interleaved(&cluster, used, first, second), (false, true), "{what}");
            }
        }
    }
}

/// Proves that the test above detects write skew: on a store that ignores locks on keys that are not written,
/// both transactions succeed.
#[test]
fn write_skew_happens_without_locks() {
    for (what, first, second) in skewed(5) {
        let cluster = Cluster::without_locks();
        let _engine = volume(&cluster);
        assert_eq!(interleaved(&cluster, true, first, second), (true, true), "{what}");
    }
}

fn session(heartbeat: i64) -> Effect {
    Effect::PutSession(Session::new(SessionId(1), Time::from_nanos(heartbeat)))
}

fn begin(term: u32, ended: &[u32]) -> Effect {
    let ended = ended.iter().map(|term| Term(*term)).collect();
    Effect::BeginTerm { session: SessionId(1), term: Term(term), ended }
}

/// Adds the guard of a mount with session 1, in its first term.
fn guarded(txn: Txn) -> Txn {
    within(1, txn)
}

fn within(term: u32, mut txn: Txn) -> Txn {
    txn.guards.push(Guard::Term { session: SessionId(1), term: Term(term) });
    txn
}

fn removal(op: u64) -> Txn {
    let guards = vec![Guard::Session { session: SessionId(1), heartbeat: Some(Time::from_nanos(7)) }];
    txn(op, guards, vec![Effect::DropSession { session: SessionId(1) }])
}

/// A volume in which session 1 has committed before.
fn volume_of_session(cluster: &Arc<Cluster>) -> TikvEngine {
    let engine = volume(cluster);
    done(&engine, txn(100, Vec::new(), vec![session(7), begin(1, &[])]));
    done(&engine, guarded(create(100)));
    engine
}

#[test]
fn commit_that_began_before_its_term_ended_is_rejected() {
    for used in [false, true] {
        let end = || guarded(txn(2, Vec::new(), vec![begin(2, &[1])]));
        let cluster = Cluster::new();
        let _engine = volume_of_session(&cluster);
        assert_eq!(interleaved(&cluster, used, guarded(create(1)), end()), (false, true));
        let cluster = Cluster::new();
        let _engine = volume_of_session(&cluster);
        assert_eq!(interleaved(&cluster, used, end(), guarded(create(1))), (true, true));
        // A term does not begin in a session that is being removed.
        let cluster = Cluster::new();
        let _engine = volume_of_session(&cluster);
        assert_eq!(interleaved(&cluster, used, end(), removal(3)), (false, true));
    }
    // Without locks, both are committed, unless both handles happen to choose the same shard of the term.
    let both_committed = || {
        let cluster = Cluster::without_locks();
        let _engine = volume_of_session(&cluster);
        let end = guarded(txn(2, Vec::new(), vec![begin(2, &[1])]));
        interleaved(&cluster, false, guarded(create(1)), end) == (true, true)
    };
    assert!((0..20).any(|_| both_committed()));
}

#[test]
fn end_of_a_term_does_not_conflict_with_the_next_and_drops_results() {
    let cluster = Cluster::new();
    let engine = Arc::new(volume_of_session(&cluster));
    let id = |count| OpId::new(SessionId(1), Term(1), count);
    let first: Vec<Txn> =
        (0..30).map(|count| Txn { op_id: id(count), ..guarded(create(1 + u64::from(count))) }).collect();
    engine.commit(&first).unwrap();
    done(&engine, guarded(txn(301, Vec::new(), vec![begin(2, &[])])));
    let logs = || {
        let start = b"v_/l\0\0\0\0\0\0\0\x01\0\0\0\x01".to_vec();
        let end = b"v_/l\0\0\0\0\0\0\0\x01\0\0\0\x02".to_vec();
        let span = keyspace::Span { start, end, limit: usize::MAX };
        cluster.read(cluster.timestamp().unwrap(), &[], &[span]).unwrap().spans[0].len()
    };
    assert_eq!(logs(), 30);
    let other = Arc::clone(&engine);
    cluster.counts();
    cluster.before_commit(move || drop(done(&other, within(2, create(50)))));
    done(&engine, within(2, txn(302, Vec::new(), vec![begin(3, &[1])])));
    assert_eq!(cluster.counts().prewrites, 2, "no attempt failed");
    assert_eq!(logs(), 0);
}

#[test]
fn commit_that_began_before_its_session_was_removed_is_rejected() {
    for used in [false, true] {
        let cluster = Cluster::new();
        let _engine = volume_of_session(&cluster);
        assert_eq!(interleaved(&cluster, used, guarded(create(1)), removal(2)), (false, true));
        // A commit that is faster than the removal happens before it, and the removal is then retried.
        let cluster = Cluster::new();
        let _engine = volume_of_session(&cluster);
        assert_eq!(interleaved(&cluster, used, removal(2), guarded(create(1))), (true, true));
        // A renewal is rejected too, as is a removal that saw an older heartbeat.
        let renewal = || guarded(txn(1, Vec::new(), vec![session(8)]));
        let cluster = Cluster::new();
        let _engine = volume_of_session(&cluster);
        assert_eq!(interleaved(&cluster, used, renewal(), removal(2)), (false, true));
        let cluster = Cluster::new();
        let _engine = volume_of_session(&cluster);
        assert_eq!(interleaved(&cluster, used, removal(2), renewal()), (false, true));
    }
}

/// Proves that the test above detects missing locks.
#[test]
fn removed_session_commits_without_locks() {
    let cluster = Cluster::without_locks();
    let _engine = volume_of_session(&cluster);
    assert_eq!(interleaved(&cluster, false, guarded(create(1)), removal(2)), (true, true));
}

#[test]
fn commits_of_one_session_do_not_conflict() {
    let cluster = Cluster::new();
    let engine = Arc::new(volume_of_session(&cluster));
    let other = Arc::clone(&engine);
    let set =
        |op, name| guarded(txn(op, Vec::new(), vec![Effect::PutSetting { name, value: "1".to_owned() }]));
    let (second, heartbeat) = (set(2, "b"), guarded(txn(3, Vec::new(), vec![session(8)])));
    cluster.counts();
    cluster.before_commit(move || drop((done(&other, second), done(&other, heartbeat))));
    done(&engine, set(1, "a"));
    assert_eq!(cluster.counts(), Counts { timestamps: 3, reads: 3, prewrites: 3, commits: 0 });
}

#[test]
fn returned_inode_matches_its_sequence_number() {
    let cluster = Cluster::new();
    let engine = volume(&cluster);
    let links = Effect::AddLinks { ino: Ino(DIR), delta: 5 };
    let (one, other) = (open(&cluster, false), open(&cluster, false));
    let (send, receive) = std::sync::mpsc::channel();
    let times = txn(2, Vec::new(), vec![touch(DIR, 77_000_000_000)]);
    cluster.before_commit(move || send.send(done(&other, times)).expect("a receiver"));
    let (later, inodes) = done(&one, txn(1, Vec::new(), vec![links]));
    let (earlier, before) = receive.try_recv().expect("the result of the second transaction");
    assert!(earlier < later, "{earlier:?} {later:?}");
    assert_eq!((before[0].nlink, before[0].mtime), (1, Time::from_nanos(77_000_000_000)));
    assert_eq!((inodes[0].nlink, inodes[0].mtime), (6, Time::from_nanos(77_000_000_000)));
    assert_eq!(
        engine.read(&[RecordKey::Inode(Ino(DIR))]).unwrap().records,
        [Record::Inode(Ino(DIR), Some(inodes[0]))]
    );
}

#[test]
fn call_costs_one_timestamp_one_read_and_one_commit() {
    let one_phase = Counts { timestamps: 1, reads: 1, prewrites: 1, commits: 0 };
    let read = Counts { timestamps: 1, reads: 1, ..Counts::default() };
    let cluster = Cluster::new();
    let engine = volume(&cluster);
    let costs = |what: &str, call: &dyn Fn(), expected: Counts| {
        cluster.counts();
        call();
        assert_eq!(cluster.counts(), expected, "{what}");
    };
    costs("a create", &|| drop(done(&engine, create(1))), one_phase);
    let effects = || vec![session(7), begin(1, &[])];
    costs("a session", &|| drop(done(&engine, txn(70, Vec::new(), effects()))), one_phase);
    costs("a create of a session", &|| drop(done(&engine, guarded(create(200)))), one_phase);
    let several: Vec<Txn> = (201..216).map(|number| guarded(create(number))).collect();
    costs("15 creates of a session", &|| drop(engine.commit(&several).unwrap()), one_phase);
    costs("a session's end", &|| drop(done(&engine, removal(71))), one_phase);
    costs("a create of a removed session", &|| assert!(conflicts(&engine, guarded(create(300)))), read);
    let sixteen: Vec<Txn> = (100..116).map(create).collect();
    costs("16 creates", &|| drop(engine.commit(&sixteen).unwrap()), one_phase);
    costs("a lookup", &|| drop(engine.read(&[RecordKey::Dirent(Ino(DIR), name(1))]).unwrap()), read);
    costs("a listing", &|| assert_eq!(entries(&engine), 17 + 16), read);
    let chmod = |op| {
        let mut access = meta::Access::from(&inode(1001, FileType::Regular));
        access.mode = Mode::new(0o600);
        let guards = vec![Guard::Access { ino: Ino(1001), rev: op - 50 }];
        txn(op, guards, vec![Effect::SetAccess { ino: Ino(1001), access }, touch(1001, 5_000_000_000)])
    };
    costs("a chmod", &|| drop(done(&engine, chmod(50))), one_phase);
    let rename = txn(
        60,
        vec![
            Guard::DirentIs { parent: Ino(DIR), name: name(1), ino: Ino(1001) },
            Guard::DirentAbsent { parent: Ino(DIR), name: name(2) },
        ],
        vec![
            Effect::DropDirent { parent: Ino(DIR), name: name(1) },
            Effect::PutDirent { parent: Ino(DIR), name: name(2), ino: Ino(1001), kind: FileType::Regular },
            touch(DIR, 6_000_000_000),
        ],
    );
    costs("a rename", &|| drop(done(&engine, rename.clone())), one_phase);
    let remove = txn(
        61,
        vec![Guard::DirentIs { parent: Ino(DIR), name: name(2), ino: Ino(1001) }],
        vec![
            Effect::DropDirent { parent: Ino(DIR), name: name(2) },
            Effect::DropInode { ino: Ino(1001) },
            touch(DIR, 7_000_000_000),
        ],
    );
    costs("a removal", &|| drop(done(&engine, remove.clone())), one_phase);
    costs("guards only", &|| drop(done(&engine, txn(62, create(1).guards, Vec::new()))), read);
    let taken = || assert!(conflicts(&engine, Txn { op_id: OpId(7), ..create(100) }));
    costs("a create of a name that is taken", &taken, read);
    // A client with an empty cache looks a name up with one read, and needs one more to find the location of
    // an inode.
    let stranger = open(&cluster, false);
    costs("a cold lookup", &|| drop(stranger.read(&[RecordKey::Dirent(Ino(2), name(DIR))]).unwrap()), read);
    let stranger = open(&cluster, false);
    let cold = Counts { reads: 2, ..one_phase };
    costs("a create in a directory never seen", &|| drop(done(&stranger, create(3))), cold);
    // Changes by other clients cost no further request, unless one of them moved the directory.
    done(&engine, create(4));
    costs("a create after others'", &|| drop(done(&stranger, create(5))), one_phase);
    // If the keys are in several regions, the commit has its own timestamp.
    let cluster = Cluster::split(&[b"v_/e", b"v_/n"]);
    let engine = volume(&cluster);
    cluster.counts();
    done(&engine, create(1));
    assert_eq!(cluster.counts(), Counts { timestamps: 2, reads: 1, prewrites: 3, commits: 1 });
}

#[test]
fn refused_one_phase_commit_is_retried_in_two_phases() {
    let cluster = Cluster::new();
    let engine = volume(&cluster);
    cluster.counts();
    cluster.fail_next(Fault::OnePhaseRefused);
    done(&engine, create(1));
    let counts = cluster.counts();
    assert_eq!((counts.prewrites, counts.commits, counts.reads), (2, 1, 2), "{counts:?}");
    assert_eq!((inodes(&engine), entries(&engine)), (3, 1), "it was committed once");
    // The next commit is attempted in one phase again.
    done(&engine, create(2));
    assert_eq!(cluster.counts().commits, 0);
}

#[test]
fn locks_of_a_client_that_died_between_the_phases_are_resolved() {
    let cluster = Cluster::split(&[b"v_/e", b"v_/n"]);
    let (dead, other) = (volume(&cluster), open(&cluster, false));
    cluster.fail_next(Fault::DeadAfterPrewrite);
    let error = dead.commit(&[create(1)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    assert!(cluster.locks() > 5, "it left its locks");
    // Until they expire, its locks are respected.
    let error = other.read(&[RecordKey::Dirent(Ino(DIR), name(1))]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: true }, "{error}");
    cluster.advance(LOCK_LIFE);
    let found = other.read(&[RecordKey::Dirent(Ino(DIR), name(1))]).unwrap();
    assert_eq!(found.records, [Record::Dirent(Ino(DIR), name(1), None)]);
    done(&other, create(2));
    // The first attempt was not committed, so its repetition is applied.
    done(&dead, create(1));
    assert_eq!((inodes(&other), entries(&other)), (4, 2));
}

#[test]
fn commit_with_a_lost_reply_is_repeated_once() {
    for boundaries in [&[][..], &[&b"v_/e"[..], b"v_/n"]] {
        let cluster = Cluster::split(boundaries);
        let (engine, other) = (volume(&cluster), open(&cluster, false));
        let mut changes = other.watch().unwrap().unwrap();
        cluster.fail_next(Fault::AnswerLost);
        let error = engine.commit(&[create(1), create(2)]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
        // If the commit left locks, their primary key shows that it was committed.
        assert_eq!((inodes(&other), entries(&other)), (4, 2), "others see the commit");
        let found = changes.next(Duration::ZERO).unwrap();
        assert_eq!(found.iter().map(|change| change.by).collect::<Vec<_>>(), [SessionId(1), SessionId(1)]);
        let again = engine.commit(&[create(1), create(2)]).unwrap();
        let repeated = found.iter().map(|change| Outcome::Committed { seq: change.seq, inodes: Vec::new() });
        assert_eq!(again, repeated.collect::<Vec<_>>(), "it is not applied twice");
        assert_eq!((inodes(&engine), entries(&engine)), (4, 2));
        assert_eq!(changes.next(Duration::ZERO).unwrap(), []);

        cluster.fail_next(Fault::RequestLost);
        let error = engine.commit(&[create(3)]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
        cluster.advance(LOCK_LIFE);
        assert_eq!(entries(&other), 2);
        done(&engine, create(3));
        assert_eq!((inodes(&other), entries(&other)), (5, 3));
    }
}

#[test]
fn transaction_rolled_back_by_another_client_is_retried() {
    let cluster = Cluster::split(&[b"v_/e", b"v_/n"]);
    let (engine, other) = (volume(&cluster), open(&cluster, false));
    let clock = Arc::clone(&cluster);
    // The first client is so late with its second phase that another client treats it as dead.
    cluster.between_phases(move || {
        clock.advance(LOCK_LIFE);
        done(&other, create(2));
    });
    done(&engine, create(1));
    assert_eq!((inodes(&engine), entries(&engine)), (4, 2));
}

/// TiKV sends no notifications: a poll is one timestamp and one read, and changes need one more read, however
/// many there are.
#[test]
fn delivering_changes_costs_one_read() {
    let cluster = Cluster::new();
    let engine = volume(&cluster);
    let mut changes = open(&cluster, false).watch().unwrap().unwrap();
    for number in 0..5 {
        done(&engine, create(number));
    }
    cluster.counts();
    assert_eq!(changes.next(Duration::ZERO).unwrap().len(), 5);
    assert_eq!(cluster.counts(), Counts { timestamps: 1, reads: 2, ..Counts::default() });
    assert_eq!(changes.next(Duration::ZERO).unwrap(), []);
    assert_eq!(cluster.counts(), Counts { timestamps: 1, reads: 1, ..Counts::default() });
}

#[test]
fn periodic_work_bounds_the_number_of_keys() {
    let cluster = Cluster::new();
    let engine = volume(&cluster);
    for number in 0..100 {
        // Each handle adds to the usage in its own shard.
        done(&open(&cluster, false), create(number));
    }
    let mut changes = engine.watch().unwrap().unwrap();
    let before = cluster.records();
    engine.keep_up();
    assert_eq!(inodes(&engine), 102);
    assert_eq!(changes.next(Duration::ZERO).unwrap(), [], "there is no change");
    // Removing idle shards is no change either.
    for _ in 0..3 {
        cluster.advance(Duration::from_secs(250));
        assert_eq!(changes.next(Duration::ZERO).unwrap(), []);
    }
    let shards = cluster.records();
    engine.keep_up();
    assert!(cluster.records() > shards, "idle shards were removed");
    assert_eq!(changes.next(Duration::ZERO).unwrap(), []);
    done(&engine, create(1000));
    assert_eq!(changes.next(Duration::ZERO).unwrap().len(), 1);
    // A stream that is polled less often than shards are removed cannot prove that it missed nothing.
    for _ in 0..15 {
        cluster.advance(Duration::from_secs(250));
        assert_eq!(changes.next(Duration::ZERO).unwrap(), []);
    }
    cluster.forget_before(cluster.timestamp().unwrap()).unwrap();
    assert!(cluster.records() < before * 2 / 3, "{} of {before}", cluster.records());
    done(&engine, create(1001));
    assert_eq!((inodes(&engine), entries(&engine)), (104, 102));
    assert_eq!(changes.next(Duration::ZERO).unwrap().len(), 1);
    engine.wipe().unwrap();
    assert!(changes.next(Duration::ZERO).is_err(), "the watcher is notified of the wipe");
}

/// After a suspension, a client must learn that a shard was removed with changes that it has not read. Its
/// own clock cannot tell.
#[test]
fn stream_fails_if_unread_changes_may_have_been_removed() {
    for known in [true, false] {
        let cluster = Cluster::new();
        let (engine, other) = (volume(&cluster), open(&cluster, false));
        if known {
            done(&other, create(1));
        }
        let mut changes = engine.watch().unwrap().unwrap();
        done(&other, create(2));
        cluster.advance(Duration::from_secs(3600));
        engine.keep_up();
        changes.next(Duration::ZERO).unwrap_err();
        changes.next(Duration::ZERO).unwrap_err();
    }
}

#[test]
fn existence_and_version_of_a_volume_are_checked() {
    let cluster = Cluster::new();
    let store = || cluster.clone() as Arc<dyn Store>;
    assert!(matches!(TikvEngine::on(store(), "v_", true, false), Err(OpenError::Missing(_))));
    let engine = open(&cluster, true);
    assert_eq!(engine.warnings(), Vec::<String>::new());
    assert!(engine.server().unwrap().contains("TiKV"));
    let _again = open(&cluster, true);
    // A version that a later limenfs might write.
    let put = |value: &[u8]| {
        let attempt = cluster.begin(Phases::Two).unwrap();
        let value = [value, &attempt.started_at().to_be_bytes()].concat().into();
        attempt.commit(vec![Mutation::Put(b"v_/v".to_vec(), value)]).unwrap();
    };
    put(b"4");
    assert!(matches!(
        TikvEngine::on(store(), "v_", true, true),
        Err(OpenError::Newer { found: 4, known: 3, .. })
    ));
    put(b"?");
    assert!(matches!(TikvEngine::on(store(), "v_", true, true), Err(OpenError::NotLimenfs(_))));
    let text = format!("{:?}", TikvEngine::on(store(), "w_", true, false).unwrap_err());
    assert!(text.contains("w_"), "the prefix is named: {text}");
}

#[test]
fn interrupted_wipe_leaves_the_settings() {
    let cluster = Cluster::new();
    let engine = open(&cluster, true);
    interrupted_wipes_leave_the_settings(&engine, 1500, |commits| {
        // A wipe commits in two phases, so the first fault has no effect on its commits.
        (0..commits).for_each(|_| cluster.fail_next(Fault::OnePhaseRefused));
        cluster.fail_next(Fault::RequestLost);
        let wiped = engine.wipe();
        cluster.advance(LOCK_LIFE);
        wiped
    });
}
