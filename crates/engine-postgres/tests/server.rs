//! Tests that need a real server: round trips, crashes, hangs, refusals, and other clients.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine_postgres::{OpenError, PostgresEngine};
use meta::{
    Effect, Engine, EngineError, ErrorKind, Guard, Inode, Outcome, QuotaKey, QuotaRule, Record, RecordKey,
    Scan, ScanInclude, Session, Txn,
};
use suite::files::{self, is_committed, persistently, survive_kills, until_done};
use support::{LONG_TIMEOUTS, Server, empty, shared};
use types::{AclId, Errno, FileType, Ino, Mode, Name, OpId, SessionId, Term, Time};

fn inode(ino: u64, kind: FileType) -> Inode {
    Inode {
        nlink: 2,
        parent: Ino(2),
        access_rev: 0,
        ..Inode::new(Ino(ino), kind, Mode::new(0o755), Time::from_nanos(0))
    }
}

fn txn(guards: Vec<Guard>, effects: Vec<Effect>) -> Txn {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Txn { op_id: OpId(5 << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed))), guards, effects }
}

fn put_dir(ino: u64) -> Txn {
    txn(Vec::new(), vec![Effect::PutInode(inode(ino, FileType::Directory))])
}

/// A create as the operations plan it.
fn create(parent: u64, ino: u64) -> Txn {
    let (parent, name) = (Ino(parent), Name::new(format!("file{ino}").as_bytes()).unwrap());
    let now = Some(Time::from_nanos(ino as i64));
    txn(
        vec![Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }],
        vec![
            Effect::PutInode(inode(ino, FileType::Regular)),
            Effect::PutDirent { parent, name, ino: Ino(ino), kind: FileType::Regular },
            Effect::AddLinks { ino: parent, delta: 1 },
            Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now },
        ],
    )
}

/// The create, below the directories of three nested quotas.
fn in_quotas(create: Txn) -> Txn {
    let nested = files::add_file_in_quotas(1);
    let quotas = nested.guards.into_iter().filter(|guard| matches!(guard, Guard::Quota { .. }));
    let charges = nested.effects.into_iter().filter(|effect| matches!(effect, Effect::Charge { .. }));
    Txn {
        guards: create.guards.into_iter().chain(quotas).collect(),
        effects: create.effects.into_iter().chain(charges).collect(),
        ..create
    }
}

fn commit(engine: &dyn Engine, txn: Txn) -> Result<Outcome, EngineError> {
    Ok(engine.commit(&[txn])?.remove(0))
}

fn links(engine: &dyn Engine, ino: u64) -> u32 {
    match engine.read(&[RecordKey::Inode(Ino(ino))]).unwrap().records[0] {
        Record::Inode(_, Some(inode)) => inode.nlink,
        ref other => panic!("{other:?}"),
    }
}

fn inos(engine: &dyn Engine) -> Vec<u64> {
    let page = engine.scan(&Scan::Inodes { after: Ino(2), limit: usize::MAX }).unwrap();
    let ino = |record| if let Record::Inode(ino, _) = record { ino.0 } else { 0 };
    page.snapshot.records.into_iter().map(ino).collect()
}

#[test]
fn each_request_is_one_statement() {
    let server = Server::fast();
    server.sql("CREATE ROLE counted SUPERUSER LOGIN");
    let url = format!("postgres://counted@127.0.0.1:{}/postgres", server.port);
    let engine = PostgresEngine::open(&pool::Url::parse(&url).unwrap(), true).unwrap();
    let statements = || -> u64 {
        let count = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid \
                     WHERE r.rolname = 'counted'";
        server.sql(count).parse().unwrap()
    };
    let entry = RecordKey::Dirent(Ino(2), Name::new(b"file10").unwrap());
    let scans = [
        Scan::Dir { parent: Ino(2), after: None, limit: 100, include: ScanInclude::InodesWithAcls },
        Scan::Dir { parent: Ino(2), after: None, limit: 100, include: ScanInclude::Nothing },
        Scan::Inodes { after: Ino(0), limit: 100 },
    ];
    let claim = || txn(vec![Guard::Access { ino: Ino(2), rev: 0 }], Vec::new());
    let stale =
        || txn(vec![Guard::Access { ino: Ino(2), rev: 9 }], vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
    // Prepares the statements on the single connection, before the counting.
    commit(&engine, put_dir(2)).unwrap();
    assert!(is_committed(&commit(&engine, claim()).unwrap()));
    engine.read(&[RecordKey::Usage]).unwrap();
    scans.iter().for_each(|scan| drop(engine.scan(scan).unwrap()));

    let counted = |what: &str, request: &dyn Fn()| {
        let before = statements();
        request();
        assert_eq!(statements() - before, 1, "{what}");
    };
    counted("a create", &|| assert!(is_committed(&commit(&engine, create(2, 10)).unwrap())));
    files::add_nested_quotas(&engine);
    // The first one also creates the quota of a user.
    for ino in [400, 401] {
        let create = || in_quotas(create(2, ino));
        counted("a create under three nested quotas", &|| {
            assert!(is_committed(&commit(&engine, create()).unwrap()));
        });
    }
    counted("a batch under three nested quotas", &|| {
        let batch: Vec<Txn> = (402..418).map(|ino| in_quotas(create(2, ino))).collect();
        assert!(engine.commit(&batch).unwrap().iter().all(is_committed));
    });
    // The quota of the user that all of them count in is full.
    let limit = |max_inodes| {
        let rule = QuotaRule { max_inodes, ..QuotaRule::default() };
        let put = Effect::PutQuota { key: QuotaKey::User(1), rule };
        assert!(is_committed(&commit(&engine, txn(Vec::new(), vec![put])).unwrap()));
    };
    limit(18);
    counted("a batch in a full quota", &|| {
        let batch: Vec<Txn> = (418..434).map(|ino| in_quotas(create(2, ino))).collect();
        let refused = engine.commit(&batch).unwrap();
        assert!(refused.iter().all(|outcome| matches!(outcome, Outcome::Conflict(_))), "{refused:?}");
    });
    limit(QuotaRule::NO_LIMIT);
    counted("a batch", &|| {
        let batch: Vec<Txn> = (0..16).map(|n| create(2, 100 + n)).collect();
        assert!(engine.commit(&batch).unwrap().iter().all(is_committed));
    });
    counted("a conflict", &|| match commit(&engine, stale()).unwrap() {
        Outcome::Conflict(snapshot) => assert!(matches!(snapshot.records[..], [Record::Inode(_, Some(_))])),
        other => panic!("{other:?}"),
    });
    counted("a create of a name that exists", &|| {
        let refused = commit(&engine, create(2, 100)).unwrap();
        assert!(matches!(refused, Outcome::Conflict(_)), "{refused:?}");
    });
    counted("a claim", &|| assert!(is_committed(&commit(&engine, claim()).unwrap())));
    counted("a cold name", &|| {
        assert_eq!(engine.read(std::slice::from_ref(&entry)).unwrap().records.len(), 2)
    });
    counted("sixteen record keys", &|| {
        let keys: Vec<RecordKey> = (100..116).map(|ino| RecordKey::Inode(Ino(ino))).collect();
        assert_eq!(engine.read(&keys).unwrap().records.len(), 16);
    });
    for scan in &scans {
        counted("a scan", &|| assert!(!engine.scan(scan).unwrap().snapshot.records.is_empty()));
    }
    let unlink = |ino: u64| {
        let name = Name::new(format!("file{ino}").as_bytes()).unwrap();
        let guards = vec![Guard::DirentIs { parent: Ino(2), name: name.clone(), ino: Ino(ino) }];
        txn(guards, vec![Effect::DropDirent { parent: Ino(2), name }, Effect::DropInode { ino: Ino(ino) }])
    };
    let guarded = |ino: u64| {
        let create = create(2, ino);
        Txn { guards: [&create.guards[..], &[session_is(4, None)]].concat(), ..create }
    };
    commit(&engine, txn(Vec::new(), vec![Effect::PutSession(session(4, 7))])).unwrap();
    counted("a batch that a session guards", &|| {
        let batch: Vec<Txn> = (200..216).map(guarded).collect();
        assert!(engine.commit(&batch).unwrap().iter().all(is_committed));
    });
    counted("an unlink", &|| assert!(is_committed(&commit(&engine, unlink(10)).unwrap())));
}

/// Servers before PostgreSQL 18 plan the statement of an SQL function again in each statement that calls it.
#[test]
fn the_guard_on_quotas_is_planned_once_for_each_connection() {
    let server = Server::fast();
    server.sql(
        "CREATE ROLE planned SUPERUSER LOGIN; ALTER ROLE planned SET pg_stat_statements.track = 'all'; \
         ALTER ROLE planned SET pg_stat_statements.track_planning = on",
    );
    let url = format!("postgres://planned@127.0.0.1:{}/postgres?max_open_conns=1", server.port);
    let engine = PostgresEngine::open(&pool::Url::parse(&url).unwrap(), true).unwrap();
    commit(&engine, put_dir(2)).unwrap();
    files::add_nested_quotas(&engine);
    for ino in 10..60 {
        assert!(is_committed(&commit(&engine, in_quotas(create(2, ino))).unwrap()));
    }
    let counts = server.sql(
        "SELECT plans, calls FROM pg_stat_statements \
         WHERE strpos(query, 'max_inodes - ') > 0 AND strpos(query, 'FUNCTION') = 0",
    );
    let counts: Vec<u64> = counts.split('|').map(|count| count.parse().unwrap()).collect();
    let [plans, calls] = counts[..] else { panic!("{counts:?}") };
    assert!(plans <= 1 && calls >= 50 * 4, "{plans} plans of {calls} calls");
}

fn session(id: u64, heartbeat: i64) -> Session {
    Session::new(SessionId(id), Time::from_nanos(heartbeat))
}

fn session_is(id: u64, heartbeat: Option<i64>) -> Guard {
    Guard::Session { session: SessionId(id), heartbeat: heartbeat.map(Time::from_nanos) }
}

/// A commit in a session and the removal of that session, each while the other is in flight.
#[test]
fn a_removed_session_commits_nothing_afterwards() {
    let server = Server::fast();
    let url = server.url(&format!("sslmode=disable&{LONG_TIMEOUTS}"));
    let engine = PostgresEngine::open(&url, true).unwrap();
    let sessions = [4, 5].map(|id| Effect::PutSession(session(id, 7)));
    assert!(is_committed(&commit(&engine, txn(Vec::new(), sessions.to_vec())).unwrap()));
    for ino in [2, 3] {
        assert!(is_committed(&commit(&engine, put_dir(ino)).unwrap()));
    }
    let hold = |sql: &str| {
        let holder = server.hold(&format!("BEGIN; {sql} FOR UPDATE; SELECT pg_advisory_lock(1);"));
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND granted";
        wait_until(|| server.sql(held) == "1");
        holder
    };
    let end = |mut holder: std::process::Child| {
        drop(holder.stdin.take());
        holder.wait().unwrap();
    };
    let waiting = || -> usize {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        server.sql(sql).parse().unwrap()
    };
    let change = |ino| Effect::AddLinks { ino: Ino(ino), delta: 1 };
    let changing = |ino| txn(vec![session_is(4, None)], vec![change(ino)]);
    let renewing = || txn(vec![session_is(4, None)], vec![Effect::PutSession(session(4, 8))]);
    let drop_session = || Effect::DropSession { session: SessionId(4) };

    // A commit does not wait for a renewal, which changes the session's row.
    let holder = hold("SELECT FROM limen_session WHERE id = 4");
    assert!(is_committed(&commit(&engine, changing(3)).unwrap()));
    end(holder);
    let holder = hold("SELECT FROM limen_node WHERE ino = 2");
    std::thread::scope(|scope| {
        let engine = &engine;
        let commits = scope.spawn(move || commit(engine, changing(2)).unwrap());
        wait_until(|| waiting() == 1);
        // Neither a renewal nor another commit waits for this commit, but the removal does.
        assert!(is_committed(&commit(engine, renewing()).unwrap()));
        assert!(is_committed(&commit(engine, changing(3)).unwrap()));
        let removal = txn(vec![session_is(5, None), session_is(4, Some(8))], vec![drop_session()]);
        let removes = scope.spawn(move || commit(engine, removal).unwrap());
        wait_until(|| waiting() == 2 || removes.is_finished());
        let is_removed = removes.is_finished();
        end(holder);
        let (committed, removed) = (commits.join().unwrap(), removes.join().unwrap());
        assert!(
            !(is_removed && is_committed(&committed)),
            "the commit came after the removal of its session"
        );
        assert!(is_committed(&committed) && is_committed(&removed), "{committed:?} {removed:?}");
    });
    assert_eq!((links(&engine, 2), links(&engine, 3)), (3, 4));

    assert!(is_committed(
        &commit(&engine, txn(Vec::new(), vec![Effect::PutSession(session(4, 9))])).unwrap()
    ));
    let holder = hold("SELECT FROM limen_node WHERE ino = 2");
    std::thread::scope(|scope| {
        let engine = &engine;
        let removal = txn(vec![session_is(4, Some(9))], vec![drop_session(), change(2)]);
        let removes = scope.spawn(move || commit(engine, removal).unwrap());
        wait_until(|| waiting() == 1);
        let commits = scope.spawn(move || commit(engine, changing(3)).unwrap());
        let renews = scope.spawn(move || commit(engine, renewing()).unwrap());
        wait_until(|| waiting() == 3 || (commits.is_finished() && renews.is_finished()));
        end(holder);
        assert!(is_committed(&removes.join().unwrap()));
        for late in [commits, renews] {
            let late = late.join().unwrap();
            assert!(matches!(late, Outcome::Conflict(_)), "{late:?}");
        }
    });
    assert_eq!((links(&engine, 2), links(&engine, 3)), (4, 4));
}

/// A commit in a term and the end of that term, each while the other is in flight.
#[test]
fn an_ended_term_commits_nothing_afterwards() {
    let server = Server::fast();
    let url = server.url(&format!("sslmode=disable&{LONG_TIMEOUTS}"));
    let engine = PostgresEngine::open(&url, true).unwrap();
    let begin = |term: u32, ended: &[u32]| {
        let ended = ended.iter().map(|term| Term(*term)).collect();
        Effect::BeginTerm { session: SessionId(4), term: Term(term), ended }
    };
    let within = |term: u32, effects: Vec<Effect>| {
        txn(vec![Guard::Term { session: SessionId(4), term: Term(term) }], effects)
    };
    let change = |ino| Effect::AddLinks { ino: Ino(ino), delta: 1 };
    let start = vec![Effect::PutSession(session(4, 7)), begin(1, &[]), begin(2, &[])];
    assert!(is_committed(&commit(&engine, txn(Vec::new(), start)).unwrap()));
    for ino in [2, 3] {
        assert!(is_committed(&commit(&engine, put_dir(ino)).unwrap()));
    }
    let hold = || {
        let sql = "BEGIN; SELECT FROM limen_node WHERE ino = 2 FOR UPDATE; SELECT pg_advisory_lock(1);";
        let holder = server.hold(sql);
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND granted";
        wait_until(|| server.sql(held) == "1");
        holder
    };
    let end = |mut holder: std::process::Child| {
        drop(holder.stdin.take());
        holder.wait().unwrap();
    };
    let waiting = || -> usize {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        server.sql(sql).parse().unwrap()
    };
    let holder = hold();
    std::thread::scope(|scope| {
        let engine = &engine;
        let late = within(1, vec![change(2)]);
        let commits = scope.spawn(move || commit(engine, late).unwrap());
        wait_until(|| waiting() == 1);
        let ends = within(2, vec![begin(3, &[1])]);
        let ends = scope.spawn(move || commit(engine, ends).unwrap());
        wait_until(|| waiting() == 2 || ends.is_finished());
        assert!(!ends.is_finished(), "the term ended while a commit in it was in flight");
        end(holder);
        assert!(is_committed(&commits.join().unwrap()) && is_committed(&ends.join().unwrap()));
    });
    let holder = hold();
    std::thread::scope(|scope| {
        let engine = &engine;
        let ends = within(3, vec![begin(4, &[2]), change(2)]);
        let ends = scope.spawn(move || commit(engine, ends).unwrap());
        wait_until(|| waiting() == 1);
        let late = within(2, vec![change(3)]);
        let commits = scope.spawn(move || commit(engine, late).unwrap());
        wait_until(|| waiting() == 2 || commits.is_finished());
        end(holder);
        assert!(is_committed(&ends.join().unwrap()));
        let late = commits.join().unwrap();
        assert!(matches!(late, Outcome::Conflict(_)), "{late:?}");
    });
    assert_eq!((links(&engine, 2), links(&engine, 3)), (4, 2));
}

/// Rows of an open term are kept, however old they are. After the term has ended, they are removed, and the
/// results with them.
#[test]
fn log_keeps_results_of_open_terms() {
    let (engine, place) = empty();
    let prefix = place.prefix();
    let term = |term: u32, ended: &[u32]| {
        let ended = ended.iter().map(|term| Term(*term)).collect();
        Effect::BeginTerm { session: SessionId(4), term: Term(term), ended }
    };
    let within = |number: u32, count: u32, effects: Vec<Effect>| {
        let (session, term) = (SessionId(4), Term(number));
        Txn { op_id: OpId::new(session, term, count), guards: vec![Guard::Term { session, term }], effects }
    };
    commit(&engine, put_dir(2)).unwrap();
    commit(&engine, txn(Vec::new(), vec![Effect::PutSession(session(4, 7)), term(1, &[]), term(2, &[])]))
        .unwrap();
    let link = || Effect::AddLinks { ino: Ino(2), delta: 1 };
    for count in 0..30 {
        assert!(is_committed(&commit(&engine, within(1, count, vec![link()])).unwrap()));
    }
    let rows = |term: u32| -> usize {
        let sql = format!("SELECT count(*) FROM {prefix}log WHERE session = 4 AND op >> 32 = {term}");
        shared().sql(&sql).parse().unwrap()
    };
    let trim = || {
        shared().sql(&format!(
            "UPDATE {prefix}log SET at = now() - interval '1 hour' WHERE seq > 0;
             SELECT setval('{prefix}seq', nextval('{prefix}seq') + 100000)"
        ));
        engine.commit(&std::array::from_fn::<_, 64, _>(|_| txn(Vec::new(), vec![link()]))).unwrap();
    };
    trim();
    trim();
    assert_eq!(rows(1), 30);
    let before = links(&engine, 2);
    assert!(is_committed(&commit(&engine, within(1, 0, vec![link()])).unwrap()));
    assert_eq!(links(&engine, 2), before, "the repetition was recognised");
    assert!(is_committed(&commit(&engine, within(2, 0, vec![term(3, &[1])])).unwrap()));
    trim();
    assert_eq!((rows(1), rows(2)), (0, 1));
    assert!(matches!(commit(&engine, within(1, 0, vec![link()])).unwrap(), Outcome::Conflict(_)));
}

fn wait_until(is_so: impl FnMut() -> bool) {
    files::wait_until(Duration::from_millis(10), is_so);
}

#[test]
fn killed_server_keeps_acknowledged_commits_and_repeats_none() {
    let server = Server::durable();
    let engine = PostgresEngine::open(&server.url("op_timeout=5s&sslmode=disable"), true).unwrap();
    survive_kills(&engine, 3, &|| server.restart());
    assert!(engine.warnings().is_empty(), "{:?}", engine.warnings());
}

#[test]
fn hanging_server_times_out_and_is_used_again() {
    let server = Server::fast();
    let patient =
        PostgresEngine::open(&server.url(&format!("sslmode=disable&{LONG_TIMEOUTS}")), true).unwrap();
    commit(&patient, put_dir(2)).unwrap();
    // Until the server hangs, requests that exceed these timeouts are repeated: the machine may be busy.
    let url = server.url("op_timeout=1s&connect_timeout=1s&sslmode=disable");
    let engine = until_done(|| PostgresEngine::open(&url, false));
    let create = create(2, 10);
    // A connection is needed that has committed, because a request that cannot connect or prepare its
    // statement was certainly not sent.
    let other = put_dir(3);
    persistently(|| engine.commit(std::slice::from_ref(&other)));
    server.stop(true);
    let began = Instant::now();
    let error = engine.commit(std::slice::from_ref(&create)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    assert!(error.message.contains("op_timeout"), "{error}");
    let error = engine.read(&[RecordKey::Usage]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: true }, "{error}");
    assert!(error.message.contains("connect_timeout"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60), "the timeouts apply");
    server.stop(false);
    assert!(persistently(|| engine.commit(std::slice::from_ref(&create))).iter().all(is_committed));
    assert_eq!(links(&patient, 2), 3);
    assert_eq!(patient.warnings().len(), 3, "{:?}", patient.warnings());
}

#[test]
fn wrong_password_is_reported_without_the_password() {
    for (role, kind) in [("guarded", "scram-sha-256"), ("guarded_of_old", "md5")] {
        shared()
            .sql(&format!("SET password_encryption = '{kind}'; CREATE ROLE {role} LOGIN PASSWORD 'right'"));
        let open = |password: &str| {
            let url = format!("postgres://{role}:{password}@127.0.0.1:{}/postgres", shared().port);
            PostgresEngine::open(&pool::Url::parse(&url).unwrap(), false)
        };
        let error = open("s3cret-wrong").unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains("password authentication failed") && !text.contains("s3cret"), "{text}");
        assert!(
            matches!(error, OpenError::Engine(e) if e.kind == ErrorKind::Determinate { transient: false })
        );
        // There are no tables with the default prefix.
        let right = open("right");
        assert!(matches!(right, Err(OpenError::Missing { .. })), "{right:?}");
    }
}

#[test]
fn open_errors_name_the_cause() {
    let open = |query: &str, create| PostgresEngine::open(&shared().url(query), create);
    assert!(matches!(open("table_prefix=none_", false), Err(OpenError::Missing { .. })));
    for (query, part) in
        [("max_conns=1", "max_conns"), ("sslmode=maybe", "sslmode"), ("schema=a-b", "schema")]
    {
        let error = open(query, false).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = open("sslmode=require", false).unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
    let engine = open("table_prefix=v_&schema=of_its_own", true).unwrap();
    commit(&engine, put_dir(2)).unwrap();
    assert_eq!(shared().sql("SELECT count(*) FROM of_its_own.v_node"), "1");
    assert!(engine.server().unwrap().starts_with("PostgreSQL 1"), "{:?}", engine.server());
    drop(open("table_prefix=v_&schema=of_its_own", true).unwrap());
    shared().sql("UPDATE of_its_own.v_layout SET version = 2");
    let error = open("table_prefix=v_&schema=of_its_own", true).unwrap_err();
    assert!(matches!(error, OpenError::Older { found: 2, .. }), "{error}");
    shared().sql("UPDATE of_its_own.v_layout SET version = 99");
    let error = open("table_prefix=v_&schema=of_its_own", true).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
}

/// Version 3 had no quotas.
#[test]
fn volume_of_the_version_before_is_converted() {
    let server = shared();
    let url = server.url("sslmode=disable&table_prefix=old_");
    let engine = PostgresEngine::open(&url, true).unwrap();
    commit(&engine, put_dir(2)).unwrap();
    assert!(is_committed(&commit(&engine, create(2, 10)).unwrap()));
    commit(&engine, txn(Vec::new(), vec![Effect::PutSession(session(4, Time::now().nanos()))])).unwrap();
    drop(engine);
    let columns = || {
        server.sql(
            "SELECT table_name, column_name, data_type, is_nullable, column_default \
             FROM information_schema.columns WHERE table_name LIKE 'old\\_%' ORDER BY table_name, ordinal_position",
        )
    };
    let as_new = columns();
    server.sql(
        "ALTER TABLE old_node DROP COLUMN quota; ALTER TABLE old_log RENAME COLUMN invalidations TO touched; \
         DROP TABLE old_quota; UPDATE old_layout SET version = 3",
    );
    // A client of that version uses the volume.
    let error = PostgresEngine::open(&url, true).unwrap_err();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    let old_commit =
        "INSERT INTO old_log (session, op, seq, xid, at, touched) VALUES (9, 9, 9, '9', now(), '')";
    server.sql(old_commit);
    server.sql("UPDATE old_session SET heartbeat = 0");
    let engine = PostgresEngine::open(&url, false).unwrap();
    files::add_nested_quotas(&engine);
    assert!(is_committed(&commit(&engine, in_quotas(create(2, 11))).unwrap()));
    assert_eq!(inos(&engine), [10, 11]);
    // A client of version 3 can change nothing.
    let refused = server.client().args(["-c", old_commit]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("touched"), "{error}");
    assert_eq!(columns(), as_new);
}

/// Plans are made once per connection; here they are made when the tables are almost empty.
#[test]
fn plans_made_for_empty_tables_use_keys_when_the_tables_are_full() {
    let server = Server::fast();
    let engine = PostgresEngine::open(&server.url("sslmode=disable"), true).unwrap();
    for ino in 10..12 {
        assert!(is_committed(&commit(&engine, put_dir(ino)).unwrap()));
    }
    server.sql("VACUUM ANALYZE");
    drop(engine);
    let read = |what: &str| {
        // A connection publishes its counters when it ends. Before version 15 they arrive a little later.
        let others = "SELECT count(*) FROM pg_stat_activity \
                      WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        wait_until(|| server.sql(others) == "0");
        let sql =
            format!("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'limen_{what}'");
        let mut last = (0, Instant::now());
        while last.1.elapsed() < Duration::from_secs(1) {
            let now = server.sql(&sql).trim().parse::<u64>().unwrap();
            if now != last.0 {
                last = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        last.0
    };
    let before = (read("node"), read("edge"));
    let engine = PostgresEngine::open(&server.url("sslmode=disable&max_open_conns=1"), false).unwrap();
    let acl = |ino: u64| AclId::from_bytes(u128::from(ino).to_be_bytes());
    let (mut next, mut commits) = (100, 0);
    for round in 0..60 {
        // Some transactions change two inodes once, some change one inode several times, and some read
        // existing records.
        let mut txns: Vec<Txn> = (0..10).map(|at| create(10 + (at & (round % 2)), next + at)).collect();
        for txn in &mut txns {
            for effect in &mut txn.effects {
                if let Effect::PutInode(inode) = effect {
                    inode.access_acl = acl(inode.ino.0);
                }
            }
        }
        txns.extend(
            (next..next + 5)
                .map(|ino| txn(Vec::new(), vec![Effect::PutAcl { id: acl(ino), text: "user::rwx".into() }])),
        );
        assert!(engine.commit(&txns).unwrap().iter().all(is_committed));
        let (parent, old) = (Ino(10 + round % 2), Ino(next + 3));
        next += 10;
        let name = Name::new(format!("file{}", old.0).as_bytes()).unwrap();
        let unlink = txn(
            vec![Guard::DirentIs { parent, name: name.clone(), ino: old }],
            vec![Effect::DropDirent { parent, name }],
        );
        assert!(is_committed(&commit(&engine, unlink).unwrap()));
        engine.read(&[RecordKey::Inode(old)]).unwrap();
        commits += 3;
    }
    drop(engine);
    let inodes = read("node") - before.0;
    let entries = read("edge") - before.1;
    assert!(inodes > 0 && entries > 0, "nothing was counted: {inodes} rows of inodes, {entries} of entries");
    assert!(inodes <= 30 * commits, "{inodes} rows of inodes read by {commits} requests");
    assert!(entries <= 30 * commits, "{entries} rows of entries read by {commits} requests");
}

#[test]
fn missing_functions_are_created_again() {
    let (engine, place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    let drop_all = format!(
        "SELECT string_agg('DROP FUNCTION IF EXISTS ' || oid::regprocedure || ' CASCADE', '; ') FROM pg_proc \
         WHERE proname ~ '^{}commit_'",
        place.prefix()
    );
    shared().sql(&shared().sql(&drop_all));
    let create = create(2, 10);
    let mut tries = 0;
    while let Err(error) = engine.commit(std::slice::from_ref(&create)) {
        assert_eq!(error.kind, ErrorKind::Determinate { transient: true }, "{error}");
        tries += 1;
        assert!(tries < 5, "{error}");
    }
    assert_eq!(links(&engine, 2), 3);
}

#[test]
fn malformed_reply_to_a_commit_is_indeterminate() {
    let (engine, place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    let named = format!("SELECT proname FROM pg_proc WHERE proname LIKE '{}commit\\_%'", place.prefix());
    let name = shared().sql(&named);
    // The server runs the request, and returns something else.
    shared().sql(&format!(
        "ALTER FUNCTION {name} RENAME TO {name}_done; \
         CREATE FUNCTION {name}(p {args}) RETURNS TABLE (row_kind smallint, numbers bigint[], bytes bytea[]) LANGUAGE sql AS \
         'SELECT r.* FROM {name}_done(p) r UNION ALL SELECT 99::smallint, NULL, NULL'",
        args = name.replace("commit", "args")
    ));
    let create = create(2, 10);
    let error = engine.commit(std::slice::from_ref(&create)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    shared().sql(&format!("DROP FUNCTION {name}; ALTER FUNCTION {name}_done RENAME TO {name}"));
    assert!(engine.commit(std::slice::from_ref(&create)).unwrap().iter().all(is_committed));
    assert_eq!(links(&engine, 2), 3, "the change happened once");
}

#[test]
fn incomplete_conflict_is_an_error() {
    let (engine, place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    let stale = || txn(vec![Guard::Access { ino: Ino(2), rev: 9 }], Vec::new());
    let is_conflict = |outcome: &Outcome| matches!(outcome, Outcome::Conflict(_));
    let changing = [create(2, 10), stale()];
    let columns = "(row_kind smallint, numbers bigint[], bytes bytea[])";
    let bigints = ["bigint[]"; 5].join(", ");
    let functions = ["claim", "commit"].map(|function| {
        let named =
            format!("SELECT proname FROM pg_proc WHERE proname LIKE '{}{function}\\_%'", place.prefix());
        shared().sql(&named)
    });
    let [claim, apply] = &functions;
    let parameters = [
        (format!("{bigints}, bytea[], bytea[]"), "$1, $2, $3, $4, $5, $6, $7"),
        (apply.replace("commit", "args"), "$1"),
    ];
    for (name, (types, values)) in functions.iter().zip(parameters) {
        shared().sql(&format!(
            "ALTER FUNCTION {name} RENAME TO {name}_done; \
             CREATE FUNCTION {name}({types}) RETURNS TABLE {columns} LANGUAGE sql AS \
             'SELECT r.* FROM {name}_done({values}) r WHERE r.row_kind <> 23'"
        ));
    }
    assert!(is_committed(
        &commit(&engine, txn(vec![Guard::Access { ino: Ino(2), rev: 0 }], Vec::new())).unwrap()
    ));
    let error = commit(&engine, stale()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: false }, "{error}");
    let error = engine.commit(&changing).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    for name in [claim, apply] {
        shared().sql(&format!("DROP FUNCTION {name}; ALTER FUNCTION {name}_done RENAME TO {name}"));
    }
    assert!(is_conflict(&commit(&engine, stale()).unwrap()));
    let outcomes = engine.commit(&changing).unwrap();
    assert!(is_committed(&outcomes[0]) && is_conflict(&outcomes[1]), "{outcomes:?}");
    assert_eq!(links(&engine, 2), 3, "the change happened once");
}

/// A proxy between an engine and the server, which can replace a reply.
struct Proxy {
    port: u16,
    instead: Arc<Mutex<Option<Vec<u8>>>>,
}

/// ReadyForQuery, not in a transaction: the end of each reply of the server.
const READY: &[u8] = b"Z\0\0\0\x05I";

impl Proxy {
    fn to(server: &'static Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let instead: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
        let said = Arc::clone(&instead);
        // The thread and its connections end with the test program.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, upstream) =
                    (client.unwrap(), TcpStream::connect(("127.0.0.1", server.port)).unwrap());
                let (to_server, to_client) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
                let said = Arc::clone(&said);
                std::thread::spawn(move || relay(client, to_server, |_| false));
                std::thread::spawn(move || {
                    relay(upstream, to_client, |answer| {
                        let mut said = said.lock().unwrap();
                        let is_whole = answer.ends_with(READY);
                        if let Some(instead) = said.take_if(|_| is_whole) {
                            *answer = instead;
                        }
                        said.is_some()
                    });
                });
            }
        });
        Proxy { port, instead }
    }

    /// Replaces the next complete reply of the server by an error.
    fn say(&self, severity: &str, code: &str) {
        let fields = format!("S{severity}\0V{severity}\0C{code}\0Msaid by the test\0\0");
        let mut message = vec![b'E'];
        message.extend_from_slice(&(fields.len() as u32 + 4).to_be_bytes());
        message.extend_from_slice(fields.as_bytes());
        if severity == "ERROR" {
            message.extend_from_slice(READY);
        }
        *self.instead.lock().unwrap() = Some(message);
    }
}

/// Forwards data. While `change` returns true, holds the data back, and shows it to `change` together with
/// the data that follows.
fn relay(mut from: TcpStream, mut to: TcpStream, mut change: impl FnMut(&mut Vec<u8>) -> bool) {
    let (mut bytes, mut held) = (vec![0; 64 << 10], Vec::new());
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        held.extend_from_slice(&bytes[..len]);
        if !change(&mut held) {
            if to.write_all(&held).is_err() {
                break;
            }
            held.clear();
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[test]
fn commit_is_indeterminate_if_the_server_ends_the_connection() {
    const UNKNOWN: ErrorKind = ErrorKind::Indeterminate;
    const AGAIN: ErrorKind = ErrorKind::Determinate { transient: true };
    const NEVER: ErrorKind = ErrorKind::Determinate { transient: false };
    let (direct, place) = empty();
    commit(&direct, put_dir(2)).unwrap();
    let proxy = Proxy::to(shared());
    // Use a single connection, so that each request uses the connection on which the statements are prepared.
    let url = format!(
        "postgres://limen@127.0.0.1:{}/postgres?sslmode=disable&max_open_conns=1&table_prefix={}",
        proxy.port,
        place.prefix()
    );
    let engine = PostgresEngine::open(&pool::Url::parse(&url).unwrap(), false).unwrap();
    let one_more = || txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
    let cases = [
        // The server shuts down, crashes, or has no space for its log; a pooler reports that the server is
        // gone.
        ("FATAL", "57P01", UNKNOWN, AGAIN),
        ("FATAL", "XX000", UNKNOWN, AGAIN),
        ("PANIC", "53100", UNKNOWN, AGAIN),
        ("ERROR", "08006", UNKNOWN, AGAIN),
        ("ERROR", "57P02", UNKNOWN, AGAIN),
        // The server rejected only this request.
        ("ERROR", "57014", AGAIN, AGAIN),
        ("ERROR", "40001", AGAIN, AGAIN),
        ("ERROR", "53100", NEVER, NEVER),
        ("ERROR", "42501", NEVER, NEVER),
    ];
    for ((severity, code, of_change, of_look), number) in cases.into_iter().zip(1..) {
        let prepared = one_more();
        commit(&engine, prepared).unwrap();
        engine.read(&[RecordKey::Usage]).unwrap();
        let change = one_more();
        proxy.say(severity, code);
        let error = engine.commit(std::slice::from_ref(&change)).unwrap_err();
        assert_eq!(error.kind, of_change, "{severity} {code}: {error}");
        assert!(error.message.contains(&format!("said by the test ({code})")), "{error}");
        assert_eq!(error.errno == Errno::ENOSPC, (severity, code) == ("ERROR", "53100"), "{error}");
        // The server had applied the change in each case.
        assert!(engine.commit(&[change]).unwrap().iter().all(is_committed));
        assert_eq!(links(&engine, 2), 2 + 2 * number, "{severity} {code}: it happened once");
        proxy.say(severity, code);
        let error = engine.read(&[RecordKey::Usage]).unwrap_err();
        assert_eq!(error.kind, of_look, "{severity} {code}: {error}");
    }
}

#[test]
fn concurrent_batches_neither_deadlock_nor_conflict() {
    const THREADS: u64 = 6;
    const EACH: u64 = 60;
    let (engine, _place) = empty();
    (2..6).for_each(|ino| assert!(is_committed(&commit(&engine, put_dir(ino)).unwrap())));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let engine = &engine;
            scope.spawn(move || {
                for n in 0..EACH {
                    let at = 100 + (thread * EACH + n) * 4;
                    // Each batch has a different order, which must not be the lock order.
                    let batch: Vec<Txn> =
                        (0..4).map(|k| create(2 + (k * 3 + thread + n) % 4, at + k)).collect();
                    let outcomes = engine.commit(&batch).unwrap();
                    assert!(outcomes.iter().all(is_committed), "{outcomes:?}");
                }
            });
        }
    });
    assert_eq!((2..6).map(|ino| u64::from(links(&engine, ino))).sum::<u64>(), 8 + THREADS * EACH * 4);
}

#[test]
fn existing_rows_are_found_by_a_group_by_a_repetition_and_in_several_stages() {
    let (engine, _place) = empty();
    let first = create(2, 10);
    commit(&engine, put_dir(2)).unwrap();
    let done = commit(&engine, first.clone()).unwrap();
    let batch = engine.commit(&[create(2, 10), create(2, 11)]).unwrap();
    assert!(matches!(batch[..], [Outcome::Conflict(_), Outcome::Committed { .. }]), "{batch:?}");
    let again = commit(&engine, first.clone()).unwrap();
    assert_eq!(Outcome::newest(&[again]), Outcome::newest(&[done]));
    // An effect on a dirent after another one on the same dirent is in a stage of its own.
    let restated = |name: &Name| {
        let (parent, name) = (Ino(2), name.clone());
        let guard = Guard::DirentAbsent { parent, name: name.clone() };
        let drop = Effect::DropDirent { parent, name: name.clone() };
        txn(
            vec![guard],
            vec![drop, Effect::PutDirent { parent, name, ino: Ino(11), kind: FileType::Regular }],
        )
    };
    let (old, new) = (Name::new(b"file10").unwrap(), Name::new(b"new").unwrap());
    let refused = commit(&engine, restated(&old)).unwrap();
    assert!(matches!(refused, Outcome::Conflict(_)), "{refused:?}");
    assert!(is_committed(&commit(&engine, restated(&new)).unwrap()));
    let ino = |name: Name| match &engine.read(&[RecordKey::Dirent(Ino(2), name)]).unwrap().records[..] {
        [Record::Dirent(_, _, found), ..] => found.map(|dirent| dirent.ino.0),
        other => panic!("{other:?}"),
    };
    assert_eq!((ino(old), ino(new), links(&engine, 2)), (Some(10), Some(11), 4));
}

/// Numbers that are negative for the server are ordered before the others there.
#[test]
fn each_inode_gets_its_own_change_even_above_i64_max() {
    const INOS: [u64; 4] = [7, 3 | 1 << 63, 5, u64::MAX];
    let (engine, _place) = empty();
    for ino in INOS {
        assert!(is_committed(&commit(&engine, put_dir(ino)).unwrap()));
    }
    let add = |delta| move |(ino, n): (u64, i32)| Effect::AddLinks { ino: Ino(ino), delta: n + delta };
    let each = || INOS.into_iter().zip(1..);
    // One transaction that changes all inodes, then several that each change two.
    assert!(is_committed(&commit(&engine, txn(Vec::new(), each().map(add(0)).collect())).unwrap()));
    let batch: Vec<Txn> =
        each().zip(each().skip(1)).map(|(a, b)| txn(Vec::new(), vec![add(10)(a), add(20)(b)])).collect();
    assert!(engine.commit(&batch).unwrap().iter().all(is_committed));
    assert_eq!(
        INOS.map(|ino| links(&engine, ino)),
        [2 + 1 + 11, 2 + 2 + 12 + 22, 2 + 3 + 13 + 23, 2 + 4 + 24]
    );
}

/// As many creates as a client sends in one batch.
fn limited(first: u64, max_inodes: u64) -> Vec<Txn> {
    let limited = |ino| {
        let mut create = create(2, ino);
        create.guards.push(Guard::Room { max_inodes, max_blocks: 1 });
        create
    };
    (first..first + 32).map(limited).collect()
}

#[test]
fn creates_within_a_limit_are_one_server_transaction() {
    let (engine, place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    let transactions = || -> u64 {
        let count = format!("SELECT count(DISTINCT xid) FROM {}log", place.prefix());
        shared().sql(&count).parse().unwrap()
    };
    let before = transactions();
    // The first batch stays far from the limit; the second one reaches it exactly.
    for (first, max_inodes) in [(100, 1 << 40), (200, 1 + 64)] {
        let outcomes = engine.commit(&limited(first, max_inodes)).unwrap();
        assert!(outcomes.iter().all(is_committed), "{outcomes:?}");
    }
    assert_eq!(transactions() - before, 2);
    // A batch that fits only in part is divided, but not into single transactions.
    let outcomes = engine.commit(&limited(300, 1 + 64 + 20)).unwrap();
    assert_eq!(outcomes.iter().take_while(|outcome| is_committed(outcome)).count(), 20);
    assert_eq!(outcomes.iter().filter(|outcome| is_committed(outcome)).count(), 20);
    assert_eq!(transactions() - before, 4, "16 and 4 of them are committed together");
}

#[test]
fn concurrent_creates_do_not_exceed_the_limit() {
    const ROOM: u64 = 40;
    let (engine, _place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..5 {
            let engine = &engine;
            scope.spawn(move || {
                for n in 0..20 {
                    let mut create = create(2, 100 + thread * 100 + n);
                    create.guards.push(Guard::Room { max_inodes: ROOM, max_blocks: 1 });
                    engine.commit(&[create]).unwrap();
                }
            });
        }
    });
    assert_eq!(inos(&engine).len() as u64 + 1, ROOM);
}

#[test]
fn an_empty_directory_is_removed_or_filled_but_not_both() {
    let (engine, _place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    for round in 0..40 {
        let dir = 10 + round * 10;
        commit(&engine, put_dir(dir)).unwrap();
        let guards = vec![Guard::Access { ino: Ino(dir), rev: 0 }, Guard::Empty { ino: Ino(dir) }];
        let rmdir = txn(guards, vec![Effect::DropInode { ino: Ino(dir) }]);
        let create = create(dir, dir + 1);
        let (removed, filled) = std::thread::scope(|scope| {
            let removed = scope.spawn(|| is_committed(&commit(&engine, rmdir).unwrap()));
            let filled = is_committed(&commit(&engine, create).unwrap());
            (removed.join().unwrap(), filled)
        });
        assert_ne!(removed, filled, "round {round}");
    }
}

#[test]
fn changes_are_delivered_while_another_transaction_runs() {
    let (engine, place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    let mark = format!("held for {}", place.prefix());
    let mut slow = shared().hold(&format!("BEGIN; SELECT pg_current_xact_id() /* {mark} */;"));
    until_held(&mark);
    let mut changes = engine.watch().unwrap().unwrap();
    for ino in 10..13 {
        commit(&engine, create(2, ino)).unwrap();
        let news = changes.next(Duration::from_secs(60)).unwrap();
        assert_eq!(news.len(), 1, "{news:?}");
    }
    until_held(&mark);
    engine.wipe().unwrap();
    let error = changes.next(Duration::from_secs(60)).unwrap_err().to_string();
    assert!(error.contains("wiped") && !error.contains("malformed"), "{error}");
    drop(slow.stdin.take());
    slow.wait().unwrap();
}

/// Waits until there is a transaction, running or held open, that has an xid and whose last statement
/// contains `mark`.
fn until_held(mark: &str) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE backend_xid IS NOT NULL AND strpos(query, '{mark} ') > 0"
    );
    wait_until(|| shared().sql(&sql) != "0");
}

#[test]
fn old_transactions_are_removed_from_the_log() {
    let (engine, place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    let prefix = place.prefix();
    // One more row is the mark.
    let rows = || shared().sql(&format!("SELECT count(*) FROM {prefix}log WHERE seq > 0"));
    let touch =
        || commit(&engine, txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }])).unwrap();
    for _ in 0..64 {
        touch();
    }
    assert_ne!(rows(), "0", "recent rows are kept");
    shared().sql(&format!(
        "UPDATE {prefix}log SET at = now() - interval '1 hour'; \
         SELECT setval('{prefix}seq', nextval('{prefix}seq') + 100000)"
    ));
    for _ in 0..64 {
        touch();
    }
    assert_eq!(rows(), "64", "old rows are removed");
}

/// After a suspension, a client must learn that rows it has not read are gone. Its own clock cannot tell.
#[test]
fn a_stream_fails_if_rows_that_it_has_not_read_were_trimmed() {
    // This test has a server of its own, because a stream also ends if another test's transaction ran for
    // longer than rows are kept.
    let server = Server::fast();
    let engine = PostgresEngine::open(&server.url("sslmode=disable"), true).unwrap();
    commit(&engine, put_dir(2)).unwrap();
    let touch = || {
        let add = || txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
        engine.commit(&std::array::from_fn::<_, 64, _>(|_| add())).unwrap();
    };
    let age = || {
        server.sql(
            "UPDATE limen_log SET at = now() - interval '1 hour' WHERE seq > 0;
             SELECT setval('limen_seq', nextval('limen_seq') + 100000)",
        )
    };
    let wait = Duration::from_millis(30);
    let (mut reading, mut asleep) = (engine.watch().unwrap().unwrap(), engine.watch().unwrap().unwrap());
    touch();
    assert_eq!(reading.next(wait).unwrap().len(), 64);
    // Trims the rows that `reading` has read and `asleep` has not.
    age();
    touch();
    assert_eq!(reading.next(wait).unwrap().len(), 64);
    assert_eq!(reading.next(wait).unwrap(), []);
    asleep.next(wait).unwrap_err();
    asleep.next(wait).unwrap_err();
    // A stream that begins now misses nothing if rows from before its start are trimmed.
    let mut fresh = engine.watch().unwrap().unwrap();
    age();
    assert_eq!(fresh.next(wait).unwrap(), []);
    touch();
    assert_eq!(fresh.next(wait).unwrap().len(), 64);
    assert_eq!(reading.next(wait).unwrap().len(), 64);
}

/// A transaction that was still running at the stream's last poll commits, and its row is trimmed.
#[test]
fn a_stream_fails_if_the_row_of_a_transaction_that_was_running_was_trimmed() {
    let (engine, place) = empty();
    commit(&engine, put_dir(2)).unwrap();
    let prefix = place.prefix();
    let wait = Duration::from_millis(30);
    let touch = || {
        let add = || txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
        engine.commit(&std::array::from_fn::<_, 64, _>(|_| add())).unwrap();
    };
    for trimmed in [false, true] {
        let op = u8::from(trimmed);
        let row = format!("(7, {op}, nextval('{prefix}seq'), pg_current_xact_id(), now(), '')");
        let mark = format!("held for {prefix}{op}");
        let mut slow = shared().hold(&format!("BEGIN; INSERT INTO {prefix}log VALUES {row} /* {mark} */;"));
        until_held(&mark);
        touch();
        let mut changes = engine.watch().unwrap().unwrap();
        touch();
        assert_eq!(changes.next(wait).unwrap().len(), 64);
        writeln!(slow.stdin.as_mut().unwrap(), "COMMIT;").unwrap();
        drop(slow.stdin.take());
        slow.wait().unwrap();
        shared().sql(&format!(
            "UPDATE {prefix}log SET at = now() - interval '1 hour' WHERE session = 7;
             SELECT setval('{prefix}seq', nextval('{prefix}seq') + 100000)"
        ));
        if trimmed {
            // The oldest rows are young, so nothing is trimmed unless they are made old.
            shared().sql(&format!("UPDATE {prefix}log SET at = now() - interval '1 hour' WHERE seq > 0"));
            touch();
            let rows = format!("SELECT count(*) FROM {prefix}log WHERE session = 7 AND op = 1");
            assert_eq!(shared().sql(&rows), "0");
            changes.next(wait).unwrap_err();
        } else {
            assert_eq!(changes.next(wait).unwrap().len(), 1);
            assert_eq!(changes.next(wait).unwrap(), []);
        }
    }
}
