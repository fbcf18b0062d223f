//! Tests that need a real server: round trips as the server counts them, crashes, hangs, and authentication.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine_etcd::{EtcdEngine, OpenError};
use meta::{
    Effect, Engine, ErrorKind, Guard, Inode, Outcome, Record, RecordKey, Scan, ScanInclude, Session, Txn,
    xattr_blocks,
};
use pool::Url;
use suite::files::{
    add_file_in_quotas, add_nested_quotas, committed, persistently, survive_kills, until_done, wait_until,
};
use support::Server;
use types::{FileType, Ino, Mode, Name, OpId, SessionId, Term, Time, XattrName};

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

/// The transaction that creates the file `number` in the directory `parent`.
fn create(parent: u64, number: u64) -> Txn {
    let (parent, name) = (Ino(parent), name(number));
    let now = Some(Time::from_nanos(2_000_000_000 + number as i64));
    let guards =
        vec![Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }];
    let effects = vec![
        Effect::PutInode(inode(1000 + number, FileType::Regular)),
        Effect::PutDirent { parent, name, ino: Ino(1000 + number), kind: FileType::Regular },
        Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now },
    ];
    txn(number, guards, effects)
}

/// The transaction that renames the file `number` within the directory `parent`.
fn rename(parent: u64, number: u64) -> Txn {
    let (parent, ino, new) = (Ino(parent), Ino(1000 + number), name(number + 100_000));
    let now = Some(Time::from_nanos(3_000_000_000 + number as i64));
    let guards = vec![
        Guard::Access { ino: parent, rev: 0 },
        Guard::DirentIs { parent, name: name(number), ino },
        Guard::DirentAbsent { parent, name: new.clone() },
        Guard::Access { ino, rev: 0 },
    ];
    let effects = vec![
        Effect::DropDirent { parent, name: name(number) },
        Effect::PutDirent { parent, name: new, ino, kind: FileType::Regular },
        Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now },
        Effect::SetTimes { ino, atime: None, mtime: None, ctime: now },
    ];
    txn(number + 100_000, guards, effects)
}

/// Creates a volume with the directories `dirs` below directory 2.
fn volume(server: &Server, prefix: &str, dirs: std::ops::Range<u64>) -> EtcdEngine {
    let engine = server.open(prefix, true).unwrap();
    let mut effects = vec![Effect::PutInode(inode(2, FileType::Directory))];
    for ino in dirs {
        effects.push(Effect::PutInode(inode(ino, FileType::Directory)));
        effects.push(Effect::PutDirent {
            parent: Ino(2),
            name: name(ino),
            ino: Ino(ino),
            kind: FileType::Directory,
        });
    }
    done(&engine, txn(u64::MAX, Vec::new(), effects));
    engine
}

fn done(engine: &EtcdEngine, txn: Txn) {
    let outcomes = engine.commit(&[txn]).unwrap();
    assert!(matches!(outcomes[..], [Outcome::Committed { .. }]), "{outcomes:?}");
}

fn inodes(engine: &EtcdEngine) -> u64 {
    match engine.read(&[RecordKey::Usage]).unwrap().records[..] {
        [Record::Usage(usage)] => usage.inodes,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn each_call_is_one_round_trip() {
    // Use a separate server, because it counts the calls of all clients.
    let server = Server::start();
    let engine = volume(&server, "v_", 10..14);
    engine.read(&[RecordKey::Dirent(Ino(2), name(10))]).unwrap();
    let trips = |what: &str, call: &dyn Fn(), expected: u64| {
        let before = server.requests();
        call();
        assert_eq!(server.requests() - before, expected, "{what}");
    };
    trips("a create", &|| done(&engine, create(10, 1)), 1);
    trips(
        "16 creates",
        &|| drop(engine.commit(&(100..116).map(|n| create(10, n)).collect::<Vec<_>>()).unwrap()),
        1,
    );
    add_nested_quotas(&engine);
    // The first create also reads the quota of the user, which is not in the cache of this client, and
    // creates it.
    for (ino, expected) in [(5000, 2), (5001, 1)] {
        let create = || committed(&engine, add_file_in_quotas(ino));
        trips(&format!("create {ino} under three nested quotas"), &create, expected);
    }
    trips("a lookup", &|| drop(engine.read(&[RecordKey::Dirent(Ino(10), name(1))]).unwrap()), 1);
    trips(
        "a listing",
        &|| {
            let scan =
                Scan::Dir { parent: Ino(10), after: None, limit: 1000, include: ScanInclude::InodesWithAcls };
            assert_eq!(engine.scan(&scan).unwrap().snapshot.records.len(), 2 * 17);
        },
        1,
    );
    trips(
        "a removal",
        &|| {
            let guards = vec![Guard::DirentIs { parent: Ino(10), name: name(1), ino: Ino(1001) }];
            let effects = vec![
                Effect::DropDirent { parent: Ino(10), name: name(1) },
                Effect::DropInode { ino: Ino(1001) },
            ];
            done(&engine, txn(2, guards, effects));
        },
        1,
    );
    trips(
        "an rmdir",
        &|| {
            let drop_dirent = Effect::DropDirent { parent: Ino(2), name: name(13) };
            let effects = vec![drop_dirent, Effect::DropInode { ino: Ino(13) }];
            done(&engine, txn(3, vec![Guard::Empty { ino: Ino(13) }], effects));
        },
        1,
    );
    // A client with an empty cache also needs one round trip for a lookup.
    let cold = server.open("v_", false).unwrap();
    trips(
        "a cold lookup of a file",
        &|| drop(cold.read(&[RecordKey::Dirent(Ino(10), name(100))]).unwrap()),
        1,
    );
    trips(
        "a cold lookup of a directory",
        &|| drop(cold.read(&[RecordKey::Dirent(Ino(2), name(11))]).unwrap()),
        1,
    );
    // A record that another client changed costs one more round trip. The conflict itself costs none.
    done(&cold, txn(4, Vec::new(), vec![Effect::SetParent { ino: Ino(11), parent: Ino(9) }]));
    engine.read(&[RecordKey::Usage]).unwrap();
    done(
        &cold,
        txn(
            5,
            Vec::new(),
            vec![Effect::PutDirent { parent: Ino(12), name: name(7), ino: Ino(99), kind: FileType::Regular }],
        ),
    );
    trips(
        "a create of a name that is taken",
        &|| {
            let outcomes = engine.commit(&[create(12, 7)]).unwrap();
            let [Outcome::Conflict(snapshot)] = &outcomes[..] else { panic!("{outcomes:?}") };
            assert!(snapshot.records.contains(&Record::Inode(Ino(99), None)), "{snapshot:?}");
        },
        2,
    );
    // The session guard of every commit of a mount costs no round trip, even after a heartbeat.
    let effects = || vec![Effect::PutSession(session(1, 1)), begin(1, &[])];
    trips("a session", &|| done(&engine, txn(20, Vec::new(), effects())), 1);
    trips("a create of a session", &|| done(&engine, guarded(create(10, 21))), 1);
    let renewal = guarded(txn(22, Vec::new(), vec![Effect::PutSession(session(1, 2))]));
    trips("a heartbeat", &|| done(&engine, renewal.clone()), 1);
    trips("a create after a heartbeat", &|| done(&engine, guarded(create(10, 23))), 1);
    done(&cold, guarded(txn(24, Vec::new(), vec![Effect::PutSession(session(1, 3))])));
    let sixteen: Vec<Txn> = (200..216).map(|number| guarded(create(10, number))).collect();
    trips("creates after another's heartbeat", &|| drop(engine.commit(&sixteen).unwrap()), 1);
    trips("a term", &|| done(&engine, guarded(txn(27, Vec::new(), vec![begin(2, &[])]))), 1);
    trips("a create after that", &|| done(&engine, guarded(create(10, 28))), 1);
    done(&cold, txn(25, Vec::new(), vec![Effect::DropSession { session: SessionId(1) }]));
    trips("a create of a removed session", &|| is_refused(&engine, guarded(create(10, 26))), 1);
}

fn session(id: u64, heartbeat: i64) -> Session {
    Session::new(SessionId(id), Time::from_nanos(heartbeat))
}

fn begin(term: u32, ended: &[u32]) -> Effect {
    let ended = ended.iter().map(|term| Term(*term)).collect();
    Effect::BeginTerm { session: SessionId(1), term: Term(term), ended }
}

/// Adds the guard of a mount with session 1 in its first term.
fn guarded(mut txn: Txn) -> Txn {
    txn.guards.push(Guard::Term { session: SessionId(1), term: Term(1) });
    txn
}

/// Asserts a conflict whose snapshot shows that the session is missing.
fn is_refused(engine: &EtcdEngine, txn: Txn) {
    let outcomes = engine.commit(&[txn]).unwrap();
    let [Outcome::Conflict(snapshot)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(snapshot.records.contains(&Record::Session(SessionId(1), None)), "{snapshot:?}");
}

/// A handle decides from its cache, which still contains a session that another handle removed.
#[test]
fn removed_session_cannot_commit() {
    let prefix = support::prefix();
    let server = support::shared();
    let engine = volume(&server, &prefix, 10..11);
    let other = server.open(&prefix, false).unwrap();
    done(&engine, txn(1, Vec::new(), vec![Effect::PutSession(session(1, 7)), begin(1, &[])]));
    done(&engine, guarded(create(10, 11)));
    let by = |heartbeat: i64| Guard::Session {
        session: SessionId(1),
        heartbeat: Some(Time::from_nanos(heartbeat)),
    };
    let remove = || vec![Effect::DropSession { session: SessionId(1) }];
    // A removal that is guarded by an older heartbeat conflicts.
    done(&engine, txn(2, vec![by(7)], vec![Effect::PutSession(session(1, 8))]));
    let outcomes = other.commit(&[txn(3, vec![by(7)], remove())]).unwrap();
    assert!(matches!(outcomes[..], [Outcome::Conflict(_)]), "{outcomes:?}");
    done(&engine, guarded(create(10, 4)));
    done(&other, txn(5, vec![by(8)], remove()));
    is_refused(&engine, guarded(create(10, 6)));
    is_refused(&engine, guarded(txn(7, Vec::new(), vec![Effect::PutSession(session(1, 9))])));
    let scan = Scan::Dir { parent: Ino(10), after: None, limit: 1000, include: ScanInclude::Nothing };
    assert_eq!(other.scan(&scan).unwrap().snapshot.records.len(), 2);
}

#[test]
fn many_renames_share_requests() {
    let server = Server::start();
    let engine = volume(&server, "v_", 10..11);
    let all_done = |batch: Vec<Txn>| {
        let before = server.requests();
        let outcomes = engine.commit(&batch).unwrap();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })), "{outcomes:?}");
        server.requests() - before
    };
    all_done((0..64).map(|number| create(10, number)).collect());
    let calls = all_done((0..64).map(|number| rename(10, number)).collect());
    assert!(calls <= 8, "{calls} requests for 64 renames");
    let scan = Scan::Dir { parent: Ino(10), after: None, limit: 1000, include: ScanInclude::InodesWithAcls };
    assert_eq!(engine.scan(&scan).unwrap().snapshot.records.len(), 2 * 64);
}

#[test]
fn concurrent_creates_in_one_directory_do_not_conflict() {
    const CLIENTS: u64 = 4;
    const EACH: u64 = 50;
    let server = Server::start();
    let engine = volume(&server, "v_", 10..11);
    let clients: Vec<_> = (0..CLIENTS).map(|_| server.open("v_", false).unwrap()).collect();
    for client in &clients {
        client.read(&[RecordKey::Dirent(Ino(2), name(10))]).unwrap();
    }
    let before = server.requests();
    thread::scope(|scope| {
        for (client, number) in clients.iter().zip(0..) {
            scope.spawn(move || {
                (0..EACH).for_each(|step| done(client, create(10, 1 + step * CLIENTS + number)));
            });
        }
    });
    assert_eq!(server.requests() - before, CLIENTS * EACH, "no create was retried");
    assert_eq!(inodes(&engine), 2 + CLIENTS * EACH);
}

#[test]
fn creates_far_below_a_limit_do_not_conflict_and_can_fill_it() {
    const CLIENTS: u64 = 4;
    const EACH: u64 = 50;
    const LEFT: u64 = 30;
    let server = Server::start();
    let engine = volume(&server, "v_", 10..11);
    let limited = |number, max_inodes| {
        let mut create = create(10, number);
        create.guards.push(Guard::Room { max_inodes, max_blocks: u64::MAX });
        create
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| server.open("v_", false).unwrap()).collect();
    for (client, number) in clients.iter().zip(1000..) {
        client.read(&[RecordKey::Dirent(Ino(2), name(10))]).unwrap();
        // The first create reserves space.
        done(client, limited(number, 100_000));
    }
    let before = server.requests();
    let made = AtomicU64::new(0);
    let all_make = |first: u64, max_inodes: u64| {
        thread::scope(|scope| {
            for (client, number) in clients.iter().zip(first..) {
                let (made, limited) = (&made, &limited);
                scope.spawn(move || {
                    for step in 0..EACH {
                        let create = limited(number + step * CLIENTS, max_inodes);
                        match client.commit(&[create]).unwrap()[..] {
                            [Outcome::Committed { .. }] => made.fetch_add(1, Ordering::Relaxed),
                            [Outcome::Conflict(_)] => 0,
                            ref other => panic!("{other:?}"),
                        };
                    }
                });
            }
        });
    };
    all_make(1, 100_000);
    assert_eq!(server.requests() - before, CLIENTS * EACH, "no create was retried");
    let there = inodes(&engine);
    assert_eq!(there, 2 + CLIENTS + CLIENTS * EACH);
    all_make(10_000, there + LEFT);
    assert_eq!(made.into_inner(), CLIENTS * EACH + LEFT);
    assert_eq!(inodes(&engine), there + LEFT);
}

#[test]
fn killed_server_loses_and_repeats_nothing() {
    let server = Server::start();
    let engine = server.open("v_", true).unwrap();
    survive_kills(&engine, 3, &|| server.restart());
}

#[test]
fn hanging_server_times_out_after_op_timeout() {
    let server = Server::start();
    volume(&server, "v_", 10..11);
    // Until the server hangs, requests that exceed these timeouts are repeated: the machine may be busy.
    let url = server.url("v_", "&op_timeout=500ms&connect_timeout=500ms");
    let engine = until_done(|| EtcdEngine::open(&url, false));
    let mut changes = persistently(|| engine.watch()).unwrap();
    // The next commit must not have to read first, because then it would fail as a read.
    persistently(|| engine.read(&[RecordKey::Dirent(Ino(2), name(10))]));
    let first = [create(10, 1)];
    persistently(|| engine.commit(&first));
    server.stop(true);
    let commit = engine.commit(&[create(10, 2)]).unwrap_err();
    let read = engine.read(&[RecordKey::Inode(Ino(10))]).unwrap_err();
    assert_eq!(commit.kind, ErrorKind::Indeterminate, "{commit}");
    assert_eq!(read.kind, ErrorKind::Determinate { transient: true }, "{read}");
    let stream = std::iter::repeat_with(|| changes.next(Duration::from_millis(10))).find_map(Result::err);
    assert!(stream.is_some(), "the stream of a hanging server must fail");
    server.stop(false);
    let batch = [create(10, 2)];
    persistently(|| engine.commit(&batch));
    assert_eq!(inodes(&server.open("v_", false).unwrap()), 4);
}

/// Three members. The first keeps running without the others, and then it must not prove that its client has
/// seen all changes: the others might have elected a leader, and committed some.
#[test]
fn a_member_without_the_others_proves_nothing() {
    let members = Server::cluster();
    let [first, others @ ..] = &members;
    drop(volume(first, "v_", 10..11));
    let alone = first.url("v_", "&op_timeout=1s&connect_timeout=1s");
    let engine = until_done(|| EtcdEngine::open(&alone, false));
    let mut changes = persistently(|| engine.watch()).unwrap();
    persistently(|| changes.next(Duration::from_millis(10)));
    others.iter().for_each(|other| other.kill());
    // The member notices after some seconds that it has no leader. Until then, it answers.
    let deadline = Instant::now() + Duration::from_secs(6);
    while Instant::now() < deadline {
        match changes.next(Duration::from_millis(10)) {
            Ok(changes) => panic!("the member calls {changes:?} all changes"),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
        if let Ok(Some(new)) = engine.watch() {
            changes = new;
        }
    }
    // By now it has noticed. A client that knows a member with a leader uses that one.
    let with_leader = Server::start();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.port, with_leader.port);
    let url = Url::parse(&format!("etcd://{hosts}/?table_prefix=v_&connect_timeout=1s")).unwrap();
    EtcdEngine::open(&url, true).unwrap();
}

#[test]
fn stopped_server_is_a_transient_error() {
    let server = Server::start();
    let engine = volume(&server, "v_", 10..11);
    let mut changes = engine.watch().unwrap().unwrap();
    let (url, address) = (server.url("v_", ""), format!("127.0.0.1:{}: ", server.port));
    drop(server);
    wait_until(Duration::from_millis(1), || {
        let polled = changes.next(Duration::from_millis(10));
        polled.is_err_and(|error| error.to_string().contains(&address))
    });
    let error = engine.commit(&[create(10, 1)]).unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    let error = engine.commit(&[create(10, 1)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: true }, "{error}");
    assert!(matches!(EtcdEngine::open(&url, false), Err(OpenError::Engine(_))));
}

#[test]
fn passwords_are_checked_and_not_shown() {
    let server = Server::start();
    server.post("/v3/auth/user/add", r#"{"name": "root", "password": "r%ght"}"#);
    server.post("/v3/auth/role/add", r#"{"name": "root"}"#);
    server.post("/v3/auth/user/grant", r#"{"user": "root", "role": "root"}"#);
    server.post("/v3/auth/enable", "{}");
    let url = |password: &str| server.url_as(&format!("root:{password}@"), "v_", "");
    let engine = EtcdEngine::open(&url("r%25ght"), true).unwrap();
    done(&engine, txn(1, Vec::new(), vec![Effect::PutInode(inode(2, FileType::Directory))]));
    assert_eq!(inodes(&engine), 1);
    assert!(!format!("{engine:?}").contains("r%ght"));
    let wrong = EtcdEngine::open(&url("wr0ng"), false).unwrap_err();
    let nobody = server.open("v_", false).unwrap_err();
    for error in [wrong, nobody] {
        let text = format!("{error} {error:?}");
        assert!(!text.contains("wr0ng") && !text.contains("r%ght"), "{text}");
        assert!(text.contains(&format!("etcd: 127.0.0.1:{}: etcdserver: ", server.port)), "{text}");
    }
}

#[test]
fn open_checks_existence_and_layout_version() {
    let server = support::shared();
    let prefix = support::prefix();
    assert!(matches!(server.open(&prefix, false), Err(OpenError::Missing(_))));
    let engine = server.open(&prefix, true).unwrap();
    assert!(engine.server().unwrap().starts_with("etcd 3."));
    assert_eq!(engine.warnings(), Vec::<String>::new());
    server.open(&prefix, false).unwrap();
    // A version that a later limenfs might write.
    let encode = |text: &str| base64(text.as_bytes());
    let body = format!(r#"{{"key": "{}", "value": "{}"}}"#, encode(&format!("{prefix}/v")), encode("4"));
    server.post("/v3/kv/put", &body);
    assert!(matches!(server.open(&prefix, true), Err(OpenError::Newer { found: 4, known: 3, .. })));
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if digit > group.len() { '=' } else { char::from(DIGITS[value]) });
        }
    }
    text
}

#[test]
fn large_batch_is_split_and_too_large_transaction_is_rejected() {
    let (engine, _server) = support::empty();
    let dirs: Vec<Effect> = (2..700).map(|ino| Effect::PutInode(inode(ino, FileType::Directory))).collect();
    let error = engine.commit(&[txn(1, Vec::new(), dirs)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: false });
    assert!(error.message.contains("max-txn-ops"), "{error}");
    assert_eq!(inodes(&engine), 0);
    // Few comparisons with many writes fit.
    let put = Effect::PutInode(inode(2, FileType::Regular));
    let row = |chunk| Effect::AppendSlice {
        ino: Ino(2),
        chunk: types::ChunkIndex(chunk),
        slice: types::Slice {
            pos: 0,
            len: 1,
            source: types::SliceSource::Blocks { id: types::SliceId(chunk + 1), offset: 0, size: 1 },
        },
    };
    done(&engine, txn(2, Vec::new(), std::iter::once(put).chain((0..1000).map(row)).collect()));
    done(&engine, txn(3, Vec::new(), vec![Effect::DropInode { ino: Ino(2) }]));
    let garbage = Scan::Garbage { after: types::SliceId(0), limit: 4000 };
    assert_eq!(engine.scan(&garbage).unwrap().snapshot.records.len(), 1000);
    // The same with shared slices, some of which belong to the file.
    let put = Effect::PutInode(inode(2, FileType::Regular));
    done(&engine, txn(4, Vec::new(), std::iter::once(put).chain((2000..4000).map(row)).collect()));
    let share = |slice| Effect::Share { slice: types::SliceId(slice), rows: 1 };
    done(&engine, txn(5, Vec::new(), (2001..2301).chain([9000]).map(share).collect()));
    done(&engine, txn(6, Vec::new(), vec![Effect::DropInode { ino: Ino(2) }]));
    assert_eq!(engine.scan(&garbage).unwrap().snapshot.records.len(), 2700);
    let shared = Scan::Shared { after: types::SliceId(0), limit: 2000 };
    let counts = engine.scan(&shared).unwrap().snapshot.records;
    let released = counts.iter().filter(|record| matches!(record, Record::Shared(_, 0))).count();
    assert_eq!((counts.len(), released), (301, 300));
    // A large batch is sent as several requests.
    let many: Vec<Txn> = (0..200)
        .map(|n| txn(10 + n, Vec::new(), vec![Effect::PutInode(inode(2 + n, FileType::Directory))]))
        .collect();
    assert_eq!(engine.commit(&many).unwrap().len(), 200);
    assert_eq!(inodes(&engine), 200);
}

/// A transaction with more reads than the failure branch of its commit can have. The record that would be
/// read last gets a new version with the same value, so only the server notices that the cache is out of
/// date.
#[test]
fn conflict_of_a_transaction_with_many_reads_is_resolved() {
    const XATTRS: u64 = 118;
    let server = Server::start();
    let engine = volume(&server, "v_", 10..11);
    let other = server.open("v_", false).unwrap();
    let xattr = |number: u64| XattrName::new(format!("user.{number:03}").as_bytes()).unwrap();
    let put = |number| Effect::PutXattr { ino: Ino(10), name: xattr(number), value: b"v"[..].into() };
    let guard = |number| Guard::Xattr { ino: Ino(10), name: xattr(number), blocks: xattr_blocks(1) };
    let with_all = |op| {
        let put = Effect::PutInode(inode(100 + op, FileType::Regular));
        txn(op, (0..XATTRS).map(guard).collect(), vec![put])
    };
    done(&engine, txn(1, Vec::new(), (0..XATTRS).map(put).collect()));
    done(&engine, with_all(2));
    done(&other, txn(3, Vec::new(), vec![put(XATTRS - 1)]));
    let before = server.requests();
    done(&engine, with_all(4));
    assert_eq!(server.requests() - before, 3, "a conflict, a read and a commit");
}

/// By default, etcd rejects a request above 1.5 MiB, and its gRPC library one above 2 MiB with another code.
#[test]
fn transaction_that_exceeds_the_size_of_a_request_is_rejected() {
    let (engine, _server) = support::empty();
    let put = |number: u64| {
        let name = XattrName::new(format!("user.{number}").as_bytes()).unwrap();
        Effect::PutXattr { ino: Ino(2), name, value: vec![0; 60_000].into() }
    };
    for (op, xattrs) in [(1, 30), (2, 50)] {
        let file = Effect::PutInode(inode(2, FileType::Regular));
        let effects = std::iter::once(file).chain((0..xattrs).map(put)).collect();
        let error = engine.commit(&[txn(op, Vec::new(), effects)]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Determinate { transient: false }, "{error}");
        assert!(error.message.contains("--max-request-bytes"), "{error}");
    }
    assert_eq!(inodes(&engine), 0);
}
