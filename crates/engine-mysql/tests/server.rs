//! Tests that need a real server: round trips, crashes, hangs, passwords, contention, and the stream of
//! changes.

mod support;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use engine_mysql::{MysqlEngine, OpenError, VERSION};
use meta::{
    Changes, Effect, Engine, ErrorKind, Guard, Invalidation, Outcome, RecordKey, Scan, ScanInclude, Session,
    Txn,
};
use mysql::prelude::Queryable;
use servers::Proxy;
use suite::files::{
    self, add_directory, add_file, add_file_in_quotas, add_nested_quotas, committed, drop_file, file, files,
    interrupted_wipes_leave_the_settings, is_committed, name, persistently, survive_kills, txn, until_done,
};
use support::{LONG_TIMEOUTS, PASSWORD, Server};
use types::{Ino, OpId, SessionId, Term, Time, XattrName};

/// The number of statements that clients have sent to the server, including this one.
fn questions(root: &mut mysql::Conn) -> u64 {
    let (_, count): (String, u64) = root.query_first("SHOW GLOBAL STATUS LIKE 'Questions'").unwrap().unwrap();
    count
}

#[test]
fn interrupted_wipe_leaves_the_settings() {
    let server = Server::fast();
    let proxy = Proxy::to(&server);
    let url = |port| pool::Url::parse(&format!("mysql://limen:{PASSWORD}@127.0.0.1:{port}/limen")).unwrap();
    let engine = MysqlEngine::open(&url(server.port), true).unwrap();
    let through_proxy = MysqlEngine::open(&url(proxy.port), false).unwrap();
    let is_unknown = Cell::new(false);
    interrupted_wipes_leave_the_settings(&engine, 10, |requests| {
        proxy.close_after(requests);
        through_proxy.wipe().inspect_err(|error| {
            is_unknown.set(is_unknown.get() || error.kind == ErrorKind::Indeterminate);
        })
    });
    assert!(is_unknown.get(), "a statement without an answer may have removed records");
}

#[test]
fn a_request_is_one_round_trip() {
    let server = Server::fast();
    for routine in ["auto", "always"] {
        let prefix = format!("{routine}_");
        let engine =
            MysqlEngine::open(&server.url(&format!("routine={routine}&table_prefix={prefix}")), true);
        let engine = engine.unwrap();
        add_directory(&engine);
        let mut root = server.root();
        let mut requests = |what: &str, expected: u64, request: &dyn Fn()| {
            let before = questions(&mut root);
            request();
            assert_eq!(questions(&mut root) - before - 1, expected, "{what}, routine {routine}");
        };
        requests("a create", 1, &|| committed(&engine, add_file(10)));
        requests("a create that conflicts", 1, &|| {
            assert!(matches!(engine.commit(&[add_file(10)]).unwrap()[..], [Outcome::Conflict(_)]));
        });
        requests("a batch in which one conflicts", 2, &|| {
            let batch: Vec<Txn> = [200, 10, 201].map(add_file).into();
            let outcomes = engine.commit(&batch).unwrap();
            let conflicts = outcomes.iter().map(|outcome| matches!(outcome, Outcome::Conflict(_)));
            assert_eq!(conflicts.collect::<Vec<_>>(), [false, true, false]);
        });
        add_nested_quotas(&engine);
        let mut cost = |what: &str, request: &dyn Fn()| requests(what, 1, request);
        // The first one also creates the quota of a user.
        for ino in [600, 601] {
            cost("a create under three nested quotas", &|| committed(&engine, add_file_in_quotas(ino)));
        }
        cost("a batch of 16 under three nested quotas", &|| {
            let batch: Vec<Txn> = (602..618).map(add_file_in_quotas).collect();
            assert!(engine.commit(&batch).unwrap().iter().all(is_committed));
        });
        (600..618).for_each(|ino| committed(&engine, drop_file(ino)));
        let mut cost = |what: &str, request: &dyn Fn()| requests(what, 1, request);
        cost("a batch of 16", &|| {
            let batch: Vec<Txn> = (100..116).map(add_file).collect();
            let outcomes = engine.commit(&batch).unwrap();
            assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
        });
        // The first batch stays far from the limit; the second one reaches it exactly.
        for (first, max_inodes) in [(400, 1 << 40), (500, 20 + 2 * 16)] {
            cost("a batch of 16 with a limit", &|| {
                let limited = |ino| {
                    let mut create = add_file(ino);
                    create.guards.push(Guard::Room { max_inodes, max_blocks: 1 << 40 });
                    create
                };
                let batch: Vec<Txn> = (first..first + 16).map(limited).collect();
                let outcomes = engine.commit(&batch).unwrap();
                assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
            });
        }
        (400..416).chain(500..516).for_each(|ino| committed(&engine, drop_file(ino)));
        let mut cost = |what: &str, request: &dyn Fn()| requests(what, 1, request);
        cost("a batch of dependent transactions", &|| {
            let outcomes = engine.commit(&[add_file(300), drop_file(300), add_file(300)]).unwrap();
            assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
        });
        cost("guards only", &|| {
            committed(&engine, txn(vec![Guard::Access { ino: Ino(2), rev: 0 }], Vec::new()));
        });
        cost("an unlink", &|| committed(&engine, drop_file(10)));
        cost("a lookup", &|| drop(engine.read(&[RecordKey::Dirent(Ino(2), name(100))]).unwrap()));
        cost("a read of many kinds", &|| {
            let keys = [
                RecordKey::Inode(Ino(2)),
                RecordKey::Usage,
                RecordKey::Settings,
                RecordKey::Xattrs(Ino(100)),
            ];
            assert_eq!(engine.read(&keys).unwrap().records.len(), 4);
        });
        cost("a scan", &|| {
            let scan =
                Scan::Dir { parent: Ino(2), after: None, limit: 100, include: ScanInclude::InodesWithAcls };
            assert_eq!(engine.scan(&scan).unwrap().snapshot.records.len(), 2 * 19);
        });
        let guard_only = |rev| txn(vec![Guard::Access { ino: Ino(2), rev }], Vec::new());
        requests("a batch of guards only", 1, &|| {
            let outcomes = engine.commit(&[0, 0, 0].map(guard_only)).unwrap();
            assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
        });
        requests("a batch of guards only, one of which fails", 2, &|| {
            let outcomes = engine.commit(&[0, 1, 0].map(guard_only)).unwrap();
            let conflicts = outcomes.iter().map(|outcome| matches!(outcome, Outcome::Conflict(_)));
            assert_eq!(conflicts.collect::<Vec<_>>(), [false, true, false]);
        });
    }
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
    let mut root = server.root();
    for routine in ["auto", "always"] {
        let query = format!("routine={routine}&table_prefix={routine}_&{LONG_TIMEOUTS}");
        let engine = MysqlEngine::open(&server.url(&query), true).unwrap();
        add_directory(&engine);
        let xattr = XattrName::new(b"user.held").unwrap();
        let put_xattr = || Effect::PutXattr { ino: Ino(2), name: xattr.clone(), value: b"v"[..].into() };
        let sessions = [4, 5].map(|id| Effect::PutSession(session(id, 7)));
        committed(&engine, txn(Vec::new(), [&sessions[..], &[put_xattr()]].concat()));
        let mut holder = server.root();
        let hold = |holder: &mut mysql::Conn, table: &str, whose: &str| {
            holder.query_drop("START TRANSACTION").unwrap();
            let sql = format!("SELECT COUNT(*) FROM limen.{routine}_{table} WHERE {whose} FOR UPDATE");
            assert_eq!(holder.query_first::<u64, _>(sql).unwrap(), Some(1));
        };
        let mut waiting = || {
            let sql = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
            root.query_first::<u64, _>(sql).unwrap().unwrap()
        };
        let add = |ino: u64| {
            let create = add_file(ino);
            Txn { guards: [&create.guards[..], &[session_is(4, None)]].concat(), ..create }
        };
        let renewing =
            |heartbeat| txn(vec![session_is(4, None)], vec![Effect::PutSession(session(4, heartbeat))]);
        let removing = |guards: &[Guard], more: &[Effect]| {
            let effects = [&[Effect::DropSession { session: SessionId(4) }], more].concat();
            txn(guards.to_vec(), effects)
        };

        // A commit does not wait for a renewal, which changes the session's row.
        hold(&mut holder, "session", "id = 4");
        committed(&engine, add(10));
        holder.query_drop("ROLLBACK").unwrap();
        hold(&mut holder, "xattr", "ino = 2");
        std::thread::scope(|scope| {
            let engine = &engine;
            let change = txn(vec![session_is(4, None)], vec![put_xattr()]);
            let commits = scope.spawn(move || engine.commit(&[change]).unwrap().remove(0));
            wait_until(|| waiting() == 1);
            // A renewal does not wait for this commit, but the removal does.
            committed(engine, renewing(8));
            let removal = removing(&[session_is(5, None), session_is(4, Some(8))], &[]);
            let removes = scope.spawn(move || engine.commit(&[removal]).unwrap().remove(0));
            wait_until(|| waiting() == 2 || removes.is_finished());
            let is_removed = removes.is_finished();
            holder.query_drop("ROLLBACK").unwrap();
            let (committed, removed) = (commits.join().unwrap(), removes.join().unwrap());
            assert!(
                !(is_removed && is_committed(&committed)),
                "the commit came after the removal of its session"
            );
            assert!(is_committed(&committed) && is_committed(&removed), "{committed:?} {removed:?}");
        });
        assert!(matches!(engine.commit(&[add(11)]).unwrap()[..], [Outcome::Conflict(_)]));

        committed(&engine, txn(Vec::new(), vec![Effect::PutSession(session(4, 9))]));
        hold(&mut holder, "xattr", "ino = 2");
        std::thread::scope(|scope| {
            let engine = &engine;
            let removal = removing(&[session_is(4, Some(9))], &[put_xattr()]);
            let removes = scope.spawn(move || engine.commit(&[removal]).unwrap().remove(0));
            wait_until(|| waiting() == 1);
            let put = Effect::PutInode(file(12));
            let change = txn(vec![session_is(4, None)], vec![put]);
            let commits = scope.spawn(move || engine.commit(&[change]).unwrap().remove(0));
            let renewal = renewing(10);
            let renews = scope.spawn(move || engine.commit(&[renewal]).unwrap().remove(0));
            wait_until(|| waiting() == 3 || (commits.is_finished() && renews.is_finished()));
            holder.query_drop("ROLLBACK").unwrap();
            assert!(is_committed(&removes.join().unwrap()));
            for late in [commits, renews] {
                let late = late.join().unwrap();
                assert!(matches!(late, Outcome::Conflict(_)), "{late:?}");
            }
        });
        assert_eq!(files(&engine), BTreeSet::from([10]));
    }
}

/// The server refreshes `information_schema.innodb_trx` only if it was not queried for 0.1 s.
fn wait_until(is_so: impl FnMut() -> bool) {
    files::wait_until(Duration::from_millis(150), is_so);
}

#[test]
fn killed_server_keeps_acknowledged_commits_and_repeats_none() {
    let server = Server::durable();
    let engine = MysqlEngine::open(&server.url("op_timeout=5s"), true).unwrap();
    survive_kills(&engine, 3, &|| server.restart());
}

#[test]
fn hanging_server_times_out_and_is_used_again() {
    let server = Server::fast();
    add_directory(&MysqlEngine::open(&server.url(LONG_TIMEOUTS), true).unwrap());
    // Until the server hangs, requests that exceed these timeouts are repeated: the machine may be busy.
    let url = server.url("op_timeout=1s&connect_timeout=1s");
    let engine = until_done(|| MysqlEngine::open(&url, false));
    server.stop(true);
    let read = engine.read(&[RecordKey::Usage]).unwrap_err();
    assert_eq!(read.kind, ErrorKind::Determinate { transient: true }, "{read}");
    // An open connection is needed, because a request that cannot connect was certainly not sent.
    server.stop(false);
    persistently(|| engine.read(&[RecordKey::Usage]));
    server.stop(true);
    let add = add_file(10);
    let commit = engine.commit(std::slice::from_ref(&add)).unwrap_err();
    assert_eq!(commit.kind, ErrorKind::Indeterminate, "{commit}");
    server.stop(false);
    let outcomes = persistently(|| engine.commit(std::slice::from_ref(&add)));
    assert!(matches!(outcomes[..], [Outcome::Committed { .. }]), "{outcomes:?}");
    assert_eq!(files(&engine), BTreeSet::from([10]));
}

#[test]
fn passwords_are_required_and_never_shown() {
    let server = support::shared();
    let wrong = MysqlEngine::open(&server.url_as("limen", "mistaken", "table_prefix=pw_"), true).unwrap_err();
    let text = format!("{wrong} {wrong:?}");
    assert!(text.contains("1045") && text.contains("limen:***@127.0.0.1"), "{text}");
    assert!(!text.contains("mistaken"), "{text}");
    let engine = MysqlEngine::open(&server.url("table_prefix=pw_"), true).unwrap();
    assert!(!format!("{engine:?}").contains(PASSWORD));
    let name = if servers::is_mysql() { "MySQL " } else { "MariaDB 1" };
    assert!(engine.server().unwrap().starts_with(name), "{:?}", engine.server());
}

/// Version 3 had no quotas.
#[test]
fn volume_of_the_version_before_is_converted() {
    let server = support::shared();
    let url = server.url("table_prefix=old_");
    let engine = MysqlEngine::open(&url, true).unwrap();
    add_directory(&engine);
    committed(&engine, add_file(10));
    committed(&engine, txn(Vec::new(), vec![Effect::PutSession(session(4, Time::now().nanos()))]));
    drop(engine);
    let mut root = server.root();
    let columns = "SELECT table_name, column_name, column_type, is_nullable, column_default, column_comment \
                   FROM information_schema.columns WHERE table_name LIKE 'old\\_%' ORDER BY table_name, ordinal_position";
    let as_new: Vec<mysql::Row> = root.query(columns).unwrap();
    let mut sql = |sql: &str| root.query_drop(sql).unwrap();
    sql("USE limen");
    sql("ALTER TABLE old_node DROP COLUMN quota");
    sql("ALTER TABLE old_log RENAME COLUMN invalidations TO touched");
    sql("DROP TABLE old_quota");
    sql("UPDATE old_layout SET version = 3");
    // A client of that version uses the volume.
    let error = MysqlEngine::open(&url, true).unwrap_err();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    let old_commit = "INSERT INTO old_log (op_id, at, touched) VALUES (REPEAT('x', 16), 0, '')";
    sql(old_commit);
    sql("UPDATE old_session SET heartbeat = 0");
    // A conversion that ends before its last change leaves the volume to clients of that version.
    let mut reader = server.root();
    reader.query_drop("START TRANSACTION").unwrap();
    assert_eq!(reader.query_first("SELECT COUNT(*) FROM limen.old_node").unwrap(), Some(2_u64));
    let waits = server.url("table_prefix=old_&op_timeout=2s");
    let error = MysqlEngine::open(&waits, false).unwrap_err();
    assert!(matches!(error, OpenError::Engine(_)), "{error}");
    sql("INSERT INTO old_log (op_id, at, touched) VALUES (REPEAT('y', 16), 0, '')");
    reader.query_drop("ROLLBACK").unwrap();
    let engine = MysqlEngine::open(&url, false).unwrap();
    assert_eq!(files(&engine), BTreeSet::from([10]));
    add_nested_quotas(&engine);
    committed(&engine, add_file_in_quotas(11));
    assert_eq!(files(&engine), BTreeSet::from([10, 11]));
    // A client of version 3 can change nothing. A conversion that was interrupted goes on.
    let error = root.query_drop(old_commit).unwrap_err();
    assert!(error.to_string().contains("touched"), "{error}");
    root.query_drop("UPDATE old_layout SET version = 3").unwrap();
    drop(MysqlEngine::open(&url, false).unwrap());
    let mut require_as_new = || {
        let converted: Vec<mysql::Row> = root.query(columns).unwrap();
        assert_eq!(format!("{converted:?}"), format!("{as_new:?}"));
    };
    require_as_new();
    // A client of version 3 was killed while it created the tables.
    let mut other = server.root();
    for change in [
        "ALTER TABLE limen.old_node DROP COLUMN quota",
        "ALTER TABLE limen.old_log RENAME COLUMN invalidations TO touched",
        "DROP TABLE limen.old_quota",
        "DELETE FROM limen.old_layout",
    ] {
        other.query_drop(change).unwrap();
    }
    drop(MysqlEngine::open(&url, true).unwrap());
    require_as_new();
}

#[test]
fn volume_is_created_on_request_and_rejected_if_newer() {
    let server = support::shared();
    let url = server.url("table_prefix=ver_");
    assert!(matches!(MysqlEngine::open(&url, false), Err(OpenError::Missing(_))));
    drop(MysqlEngine::open(&url, true).unwrap());
    drop(MysqlEngine::open(&url, false).unwrap());
    server.root().query_drop(format!("UPDATE limen.ver_layout SET version = {}", VERSION - 2)).unwrap();
    let error = MysqlEngine::open(&url, true).unwrap_err();
    assert!(matches!(error, OpenError::Older { known: VERSION, .. }), "{error}");
    let newer = VERSION + 1;
    server.root().query_drop(format!("UPDATE limen.ver_layout SET version = {newer}")).unwrap();
    let error = MysqlEngine::open(&url, true).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found, known: VERSION, .. } if found == newer), "{error}");
    let socket = server.socket();
    let by_socket = server.url(&format!("table_prefix=sock_&socket={}", socket.display()));
    add_directory(&MysqlEngine::open(&by_socket, true).unwrap());
}

#[test]
fn procedure_is_created_once_by_a_privileged_user() {
    let server = support::shared();
    let mut root = server.root();
    for host in ["127.0.0.1", "localhost"] {
        root.query_drop(format!("CREATE USER guest@'{host}' IDENTIFIED BY '{PASSWORD}'")).unwrap();
        let rights = "SELECT, INSERT, UPDATE, DELETE, EXECUTE";
        root.query_drop(format!("GRANT {rights} ON limen.* TO guest@'{host}'")).unwrap();
    }
    let query = "table_prefix=once_&routine=always";
    let open = |user| MysqlEngine::open(&server.url_as(user, PASSWORD, query), true);
    add_directory(&open("limen").unwrap());
    committed(&open("guest").unwrap(), add_file(10));
    let procedures: Vec<String> = root
        .query("SELECT routine_name FROM information_schema.routines WHERE routine_name LIKE 'once\\_%'")
        .unwrap();
    assert_eq!(procedures.len(), 1, "{procedures:?}");
    root.query_drop(format!("DROP PROCEDURE limen.{}", procedures[0])).unwrap();
    let error = open("guest").unwrap_err().to_string();
    assert!(error.contains("CREATE ROUTINE"), "{error}");
    committed(&open("limen").unwrap(), add_file(11));
}

#[test]
fn removal_drops_the_procedures_of_all_versions_and_no_others() {
    let server = support::shared();
    let engine = MysqlEngine::open(&server.url("table_prefix=gone_&routine=always"), true).unwrap();
    let mut root = server.root();
    let others = ["all_gone_run5", "gone_run", "gone_run5x", "gone_rerun5"];
    for name in ["gone_run5"].into_iter().chain(others) {
        root.query_drop(format!("CREATE PROCEDURE limen.{name}() SELECT 1")).unwrap();
    }
    engine.remove().unwrap();
    let names =
        "SELECT routine_name FROM information_schema.routines WHERE routine_name LIKE '%gone\\_%' ORDER BY 1";
    let left: Vec<String> = root.query(names).unwrap();
    assert_eq!(left, ["all_gone_run5", "gone_rerun5", "gone_run", "gone_run5x"]);
    // The next call drops the leftovers of one that failed.
    root.query_drop("CREATE TABLE limen.gone_edge (id INT)").unwrap();
    root.query_drop("CREATE PROCEDURE limen.gone_run6() SELECT 1").unwrap();
    for _ in 0..2 {
        engine.remove().unwrap();
    }
    let left: Vec<String> = root.query(names).unwrap();
    assert_eq!(left, ["all_gone_run5", "gone_rerun5", "gone_run", "gone_run5x"]);
    assert_eq!(root.query::<String, _>("SHOW TABLES FROM limen LIKE 'gone\\_%'").unwrap(), [""; 0]);
}

#[test]
fn many_writers_of_one_directory_do_not_deadlock() {
    const THREADS: u64 = 12;
    const EACH: u64 = 40;
    let (engine, _place) = support::empty();
    add_directory(&engine);
    let engine = &engine;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for number in 0..EACH {
                    let ino = 1000 + (number * THREADS + thread) * 4;
                    // Any error fails the test; the victim of a deadlock gets one.
                    let batch: Vec<Txn> = (ino..ino + 4).map(add_file).collect();
                    let added = engine.commit(&batch).unwrap();
                    assert!(added.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
                    committed(engine, drop_file(ino + number % 4));
                }
            });
        }
    });
    assert_eq!(files(engine).len() as u64, THREADS * EACH * 3);
}

#[test]
fn a_directory_is_removed_or_gets_an_entry_but_not_both() {
    let (engine, _place) = support::empty();
    let (engine, directory) = (&engine, Ino(2));
    for ino in 10..40 {
        add_directory(engine);
        let rmdir = txn(vec![Guard::Empty { ino: directory }], vec![Effect::DropInode { ino: directory }]);
        let (removed, added) = std::thread::scope(|scope| {
            let remove = scope.spawn(|| engine.commit(&[rmdir]).unwrap());
            let add = scope.spawn(|| engine.commit(&[add_file(ino)]).unwrap());
            (remove.join().unwrap(), add.join().unwrap())
        });
        let done = [removed, added].map(|outcomes| matches!(outcomes[..], [Outcome::Committed { .. }]));
        assert!(done[0] != done[1], "removed and added: {done:?}");
        engine.wipe().unwrap();
    }
}

#[test]
fn watcher_skips_rolled_back_rows_and_reports_missed_changes() {
    let server = support::shared();
    let (engine, _place) = support::empty();
    let prefix = format!("{_place:?}");
    let prefix = prefix.split('"').nth(1).unwrap();
    add_directory(&engine);
    let mut changes = engine.watch().unwrap().unwrap();
    // A transaction that takes a number of the log and commits late.
    let mut root = server.root();
    root.query_drop("START TRANSACTION").unwrap();
    let insert =
        format!("INSERT INTO limen.{prefix}log (op_id, at, invalidations) VALUES (REPEAT('x', 16), 0, '')");
    root.query_drop(insert).unwrap();
    committed(&engine, add_file(10));
    let found = changes.next(Duration::from_secs(60)).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].invalidations.contains(&Invalidation::Dirent(Ino(2), name(10))));
    // The row of a long transaction is reported when it commits, with its own number.
    root.query_drop("COMMIT").unwrap();
    let late = changes.next(Duration::from_secs(60)).unwrap();
    assert_eq!((late.len(), late[0].seq < found[0].seq), (1, true), "{late:?}");
    root.query_drop("START TRANSACTION").unwrap();
    root.query_drop(format!(
        "INSERT INTO limen.{prefix}log (op_id, at, invalidations) VALUES (REPEAT('y', 16), 0, '')"
    ))
    .unwrap();
    root.query_drop("ROLLBACK").unwrap();
    committed(&engine, add_file(11));
    assert_eq!(changes.next(Duration::from_secs(60)).unwrap().len(), 1);
    let passed = Instant::now() + Duration::from_secs(60);
    while !format!("{changes:?}").contains("delivered: {}") {
        assert_eq!(changes.next(Duration::from_millis(50)).unwrap(), []);
        assert!(
            Instant::now() < passed,
            "the stream still waits for a number that never appears: {changes:?}"
        );
    }
    engine.wipe().unwrap();
    let error = changes.next(Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("wiped") && !error.contains("damaged"), "{error}");
    changes.next(Duration::ZERO).unwrap_err();
}

#[test]
fn only_old_rows_of_the_log_are_trimmed() {
    let (engine, place) = support::empty();
    let prefix = format!("{place:?}");
    let log = format!("limen.{}log", prefix.split('"').nth(1).unwrap());
    add_directory(&engine);
    let mut root = support::shared().root();
    let rows = |root: &mut mysql::Conn| -> u64 {
        root.query_first(format!("SELECT COUNT(*) FROM {log}")).unwrap().unwrap()
    };
    let add = |count: u64| {
        for _ in 0..count / 50 {
            let batch: Vec<Txn> =
                (0..50).map(|_| txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }])).collect();
            engine.commit(&batch).unwrap();
        }
    };
    add(3000);
    assert_eq!(rows(&mut root), 3001, "all rows are young");
    root.query_drop(format!("UPDATE {log} SET at = 1")).unwrap();
    add(3000);
    assert_eq!(rows(&mut root), 6001, "the rows are old, but few");
    // Raises the numbers as if many rows had been stored in the meantime.
    root.query_drop(format!("ALTER TABLE {log} AUTO_INCREMENT = 1000000")).unwrap();
    add(3000);
    let left = rows(&mut root);
    assert!((6000..=6050).contains(&left), "{left}: only 3000 old rows are removed");
}

fn begin(term: u32, ended: &[u32]) -> Effect {
    let ended = ended.iter().map(|term| Term(*term)).collect();
    Effect::BeginTerm { session: SessionId(4), term: Term(term), ended }
}

/// An operation of session 4 in a term.
fn within(term: u32, count: u32, effects: Vec<Effect>) -> Txn {
    let (session, term) = (SessionId(4), Term(term));
    Txn { op_id: OpId::new(session, term, count), guards: vec![Guard::Term { session, term }], effects }
}

/// A commit in a term and the end of that term, each while the other is in flight.
#[test]
fn an_ended_term_commits_nothing_afterwards() {
    let server = Server::fast();
    let mut root = server.root();
    for routine in ["auto", "always"] {
        let query = format!("routine={routine}&table_prefix={routine}_&{LONG_TIMEOUTS}");
        let engine = MysqlEngine::open(&server.url(&query), true).unwrap();
        add_directory(&engine);
        let xattr = XattrName::new(b"user.held").unwrap();
        let put_xattr = || Effect::PutXattr { ino: Ino(2), name: xattr.clone(), value: b"v"[..].into() };
        let start = vec![put_xattr(), Effect::PutSession(session(4, 7)), begin(1, &[]), begin(2, &[])];
        committed(&engine, txn(Vec::new(), start));
        let mut holder = server.root();
        let hold = |holder: &mut mysql::Conn| {
            holder.query_drop("START TRANSACTION").unwrap();
            let sql = format!("SELECT COUNT(*) FROM limen.{routine}_xattr WHERE ino = 2 FOR UPDATE");
            assert_eq!(holder.query_first::<u64, _>(sql).unwrap(), Some(1));
        };
        let mut waiting = || {
            let sql = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
            root.query_first::<u64, _>(sql).unwrap().unwrap()
        };
        let run = |txn: Txn| engine.commit(&[txn]).unwrap().remove(0);
        hold(&mut holder);
        std::thread::scope(|scope| {
            let (run, late) = (&run, within(1, 0, vec![put_xattr()]));
            let commits = scope.spawn(move || run(late));
            wait_until(|| waiting() == 1);
            // Commits in other terms do not wait, but the end of the term does.
            let put = Effect::PutInode(file(12));
            assert!(is_committed(&run(within(2, 0, vec![put]))));
            let ends = scope.spawn(move || run(within(2, 1, vec![begin(3, &[1])])));
            wait_until(|| waiting() == 2 || ends.is_finished());
            assert!(!ends.is_finished(), "the term ended while a commit in it was in flight");
            holder.query_drop("ROLLBACK").unwrap();
            assert!(is_committed(&commits.join().unwrap()) && is_committed(&ends.join().unwrap()));
        });
        hold(&mut holder);
        std::thread::scope(|scope| {
            let (run, held) = (&run, put_xattr());
            // The effects are applied in order.
            let ends = scope.spawn(move || run(within(3, 0, vec![begin(4, &[2]), held])));
            wait_until(|| waiting() == 1);
            let put = Effect::PutInode(file(13));
            let commits = scope.spawn(move || run(within(2, 2, vec![put])));
            wait_until(|| waiting() == 2 || commits.is_finished());
            holder.query_drop("ROLLBACK").unwrap();
            assert!(is_committed(&ends.join().unwrap()));
            let late = commits.join().unwrap();
            assert!(matches!(late, Outcome::Conflict(_)), "{late:?}");
        });
    }
}

/// Rows of an open term are kept, however old they are. After the term has ended, they are removed, and the
/// results with them.
#[test]
fn log_keeps_results_of_open_terms() {
    let (engine, place) = support::empty();
    let prefix = format!("{place:?}");
    let log = format!("limen.{}log", prefix.split('"').nth(1).unwrap());
    add_directory(&engine);
    let start = vec![Effect::PutSession(session(4, 7)), begin(1, &[]), begin(2, &[])];
    committed(&engine, txn(Vec::new(), start));
    let link = || Effect::AddLinks { ino: Ino(2), delta: 1 };
    for count in 0..30 {
        committed(&engine, within(1, count, vec![link()]));
    }
    let mut root = support::shared().root();
    let mut rows = |term: u8| -> u64 {
        let ops = format!("x'0000000000000004000000{term:02x}'");
        let sql = format!("SELECT COUNT(*) FROM {log} WHERE LEFT(op_id, 12) = {ops}");
        root.query_first(sql).unwrap().unwrap()
    };
    let mut other = support::shared().root();
    let mut trim = || {
        other.query_drop(format!("UPDATE {log} SET at = 1")).unwrap();
        let last: u64 = other.query_first(format!("SELECT MAX(id) FROM {log}")).unwrap().unwrap();
        other.query_drop(format!("ALTER TABLE {log} AUTO_INCREMENT = {}", last + 100_000)).unwrap();
        for _ in 0..11 {
            engine.commit(&std::array::from_fn::<_, 100, _>(|_| txn(Vec::new(), vec![link()]))).unwrap();
        }
    };
    trim();
    trim();
    assert_eq!(rows(1), 30);
    let (repeated, inodes) = match engine.commit(&[within(1, 0, vec![link()])]).unwrap().remove(0) {
        Outcome::Committed { seq, inodes } => (seq, inodes),
        Outcome::Conflict(snapshot) => panic!("{snapshot:?}"),
    };
    assert!(repeated.0 > 0 && inodes.is_empty(), "the repetition was recognised");
    committed(&engine, within(2, 0, vec![begin(3, &[1])]));
    trim();
    trim();
    assert_eq!((rows(1), rows(2)), (0, 1));
    assert!(matches!(engine.commit(&[within(1, 0, vec![link()])]).unwrap()[..], [Outcome::Conflict(_)]));
}

/// After a suspension, a client must learn that rows it has not read are gone. Its own clock cannot tell.
#[test]
fn a_stream_fails_if_rows_that_it_has_not_read_were_trimmed() {
    let (engine, place) = support::empty();
    let prefix = format!("{place:?}");
    let log = format!("limen.{}log", prefix.split('"').nth(1).unwrap());
    add_directory(&engine);
    let mut root = support::shared().root();
    // Each call makes so few commits that they alone do not trim the log.
    let add = || {
        let add = || txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
        engine.commit(&std::array::from_fn::<_, 400, _>(|_| add())).unwrap();
    };
    let mut age = || {
        root.query_drop(format!("UPDATE {log} SET at = 1")).unwrap();
        let last: u64 = root.query_first(format!("SELECT MAX(id) FROM {log}")).unwrap().unwrap();
        root.query_drop(format!("ALTER TABLE {log} AUTO_INCREMENT = {}", last + 100_000)).unwrap();
    };
    let wait = Duration::from_millis(30);
    let until = |changes: &mut dyn Changes, count: usize| {
        let mut found = 0;
        while found < count {
            found += changes.next(Duration::from_secs(60)).unwrap().len();
        }
        // Poll until the stream knows that the numbers skipped by `age` never appear.
        while !format!("{changes:?}").contains("delivered: {}") {
            assert_eq!(changes.next(wait).unwrap(), []);
        }
        assert_eq!(found, count);
    };
    let (mut reading, mut asleep) = (engine.watch().unwrap().unwrap(), engine.watch().unwrap().unwrap());
    add();
    until(&mut *reading, 400);
    // Trims rows that `reading` has read and `asleep` has not.
    age();
    for _ in 0..3 {
        add();
        until(&mut *reading, 400);
    }
    let mut missed = asleep.next(wait);
    while missed.as_ref().is_ok_and(|changes| !changes.is_empty()) {
        missed = asleep.next(wait);
    }
    missed.unwrap_err();
    asleep.next(wait).unwrap_err();
    // A stream that begins now has missed nothing, and remains valid while the log is idle.
    let mut fresh = engine.watch().unwrap().unwrap();
    age();
    assert_eq!(fresh.next(wait).unwrap(), []);
    for _ in 0..2 {
        add();
        until(&mut *fresh, 400);
        until(&mut *reading, 400);
    }
    let oldest: u64 = root.query_first(format!("SELECT MIN(at) FROM {log}")).unwrap().unwrap();
    assert!(oldest > 1, "the log was trimmed");
}

#[test]
fn trimming_the_log_does_not_scan_kept_rows() {
    let server = Server::fast();
    let engine = MysqlEngine::open(&server.url("table_prefix=t_"), true).unwrap();
    let mut root = server.root();
    root.query_drop("USE limen").unwrap();
    // Insert twice as many rows as are always kept. All of them are young.
    root.query_drop(
        "INSERT INTO t_log (op_id, at, invalidations) WITH RECURSIVE n (n) AS (
             SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 255)
         SELECT UNHEX(CONCAT('ff', LPAD(HEX(a.n * 128 + b.n), 30, '0'))), UNIX_TIMESTAMP(), ''
         FROM n AS a JOIN n AS b ON b.n < 128",
    )
    .unwrap();
    let scanned = |root: &mut mysql::Conn| -> u64 {
        let row: Option<(String, u64)> =
            root.query_first("SHOW GLOBAL STATUS LIKE 'Handler_read_rnd_next'").unwrap();
        row.unwrap().1
    };
    add_directory(&engine);
    let before = scanned(&mut root);
    for _ in 0..50 {
        let add = || txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
        engine.commit(&std::array::from_fn::<_, 50, _>(|_| add())).unwrap();
    }
    let scanned = scanned(&mut root) - before;
    assert!(scanned < 10_000, "{scanned} rows were read without an index");
}

#[test]
fn risky_server_settings_are_reported() {
    let (engine, _place) = support::empty();
    let warnings = engine.warnings();
    assert!(warnings.iter().any(|w| w.contains("innodb_flush_log_at_trx_commit is 0")), "{warnings:?}");
    let durable = Server::durable();
    let engine = MysqlEngine::open(&durable.url(""), true).unwrap();
    assert_eq!(engine.warnings(), Vec::<String>::new());
    durable.root().query_drop("SET GLOBAL read_only = 1").unwrap();
    assert!(engine.warnings().concat().contains("read-only"), "{:?}", engine.warnings());
    add_directory_is_refused(&engine);
}

/// A server that became read-only, as after a failover, has changed nothing.
fn add_directory_is_refused(engine: &MysqlEngine) {
    let put = txn(Vec::new(), vec![Effect::PutInode(file(2))]);
    let error = engine.commit(&[put]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: true }, "{error}");
}

#[test]
fn one_call_returns_the_changes_of_many_commits() {
    let (engine, _place) = support::empty();
    suite::conformance::changes_of_commits_are_returned_without_waiting(&engine, 1_100);
}
