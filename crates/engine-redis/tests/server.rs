//! Tests that need a real server: round trips, crashes, hangs, passwords, TLS, Sentinels and Clusters.

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use engine_redis::{OpenError, RedisEngine, VERSION};
use meta::{
    Effect, Engine, ErrorKind, Guard, Invalidation, Outcome, Record, RecordKey, Scan, ScanInclude, Session,
    Txn,
};
use pool::Url;
use servers::{Proxy, free_port};
use suite::files::{
    add_directory, add_file, add_file_in_quotas, add_nested_quotas, committed, files,
    interrupted_wipes_leave_the_settings, name, persistently, survive_kills, txn, until_done,
};
use support::Server;
use types::{Errno, Ino, OpId, SessionId, Term, Time};

#[test]
fn each_request_is_one_round_trip() {
    let server = Server::start(&[]);
    let engine = server.open("");
    add_directory(&engine);
    add_nested_quotas(&engine);
    // From here on the pool has an idle connection.
    let before = server.calls_by_command();
    let batch: Vec<Txn> = (10..26).map(add_file).collect();
    engine.commit(&batch).unwrap();
    committed(&engine, add_file(9));
    let conflict = engine.commit(&[add_file(9)]).unwrap();
    assert!(matches!(conflict[..], [Outcome::Conflict(_)]));
    engine.commit(&[txn(vec![Guard::Empty { ino: Ino(9) }], Vec::new())]).unwrap();
    let keys: Vec<RecordKey> = (10..26).map(|ino| RecordKey::Dirent(Ino(2), name(ino))).collect();
    assert_eq!(engine.read(&keys).unwrap().records.len(), 32);
    for (include, count) in [(ScanInclude::Nothing, 17), (ScanInclude::InodesWithAcls, 34)] {
        let page = engine.scan(&Scan::Dir { parent: Ino(2), after: None, limit: 100, include }).unwrap();
        assert_eq!(page.snapshot.records.len(), count);
    }
    committed(&engine, add_file_in_quotas(8));
    let requests = 8;
    let after = server.calls_by_command();
    let more =
        |command: &str| after.get(command).copied().unwrap_or(0) - before.get(command).copied().unwrap_or(0);
    assert_eq!(more("evalsha"), requests);
    assert_eq!(more("role"), requests, "each request includes one");
    for command in ["eval", "script|load", "get", "multi", "select", "auth", "hello"] {
        assert_eq!(more(command), 0, "{command}");
    }
}

#[test]
fn term_is_read_once_per_request_and_keeps_results() {
    let server = Server::start(&[]);
    let engine = server.open("");
    add_directory(&engine);
    let session = Session::new(SessionId(4), Time::from_nanos(2));
    let begin = |term, ended: &[u32]| {
        let ended = ended.iter().map(|term| Term(*term)).collect();
        Effect::BeginTerm { session: SessionId(4), term: Term(term), ended }
    };
    committed(&engine, txn(Vec::new(), vec![Effect::PutSession(session), begin(1, &[])]));
    let guard = Guard::Term { session: SessionId(4), term: Term(1) };
    let mut batch: Vec<Txn> = (10..26).map(add_file).collect();
    for (count, txn) in (0..).zip(&mut batch) {
        txn.op_id = OpId::new(SessionId(4), Term(1), count);
        txn.guards.push(guard.clone());
    }
    let lookups = || server.calls_by_command().get("zscore").copied().unwrap_or(0);
    let before = lookups();
    let outcomes = engine.commit(&batch).unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })), "{outcomes:?}");
    assert_eq!(lookups() - before, 1);
    // The results of a term are removed with the term or the session.
    let results = |term: u8| {
        let key = [&b"{limen_}ops:"[..], &[0, 0, 0, 0, 0, 0, 0, 4], &[0, 0, 0, term]].concat();
        server.ask(&[&b"HLEN"[..], &key])
    };
    assert_eq!(results(1), redis::Value::Int(16));
    let mut last = add_file(26);
    last.op_id = OpId::new(SessionId(4), Term(2), 0);
    last.guards.push(Guard::Term { session: SessionId(4), term: Term(2) });
    committed(&engine, txn(vec![guard], vec![begin(2, &[1])]));
    committed(&engine, last);
    assert_eq!((results(1), results(2)), (redis::Value::Int(0), redis::Value::Int(1)));
    committed(&engine, txn(Vec::new(), vec![Effect::DropSession { session: SessionId(4) }]));
    assert_eq!(results(2), redis::Value::Int(0));
    assert_eq!(server.ask(&["EXISTS", "{limen_}terms"]), redis::Value::Int(0));
}

#[test]
fn killed_server_loses_and_repeats_nothing() {
    let server = Server::durable();
    let done = survive_kills(&server.open(""), 5, &|| server.restart());
    // Check once more after a restart.
    server.restart();
    assert_eq!(files(&server.open("")), done);
}

#[test]
fn hanging_server_times_out_and_recovers() {
    let server = Server::start(&[]);
    add_directory(&server.open(""));
    // Until the server hangs, requests that exceed these timeouts are repeated: the machine may be busy.
    let url = server.url("?op_timeout=500ms&connect_timeout=500ms");
    let engine = until_done(|| RedisEngine::open(&url, false));
    let mut changes = persistently(|| engine.watch()).unwrap();
    // An open connection is needed, because a request that cannot connect was certainly not sent.
    persistently(|| engine.read(&[RecordKey::Usage]));
    server.stop(true);
    let error = engine.commit(&[add_file(10)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    let error = engine.read(&[RecordKey::Usage]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: true }, "{error}");
    let error = changes.next(Duration::from_millis(10)).unwrap_err();
    assert!(error.message.contains("op_timeout"), "{error}");
    server.stop(false);
    assert!(changes.next(Duration::ZERO).is_err(), "changes may have been missed");
    // The retry has the same result whether or not the first commit was executed.
    let batch = [add_file(11)];
    persistently(|| engine.commit(&batch));
    let files = files(&engine);
    assert!(files == BTreeSet::from([10, 11]) || files == BTreeSet::from([11]), "{files:?}");
}

#[test]
fn passwords_are_checked_and_not_shown() {
    let server =
        Server::start(&["--requirepass", "s3cret", "--user", "ann", "on", ">pa55word", "~*", "&*", "+@all"]);
    for login in [":s3cret@", "ann:pa55word@"] {
        let url = Url::parse(&format!("redis://{login}127.0.0.1:{}", server.port)).unwrap();
        let engine = RedisEngine::open(&url, true).unwrap();
        engine.read(&[RecordKey::Usage]).unwrap();
        let debug = format!("{engine:?}");
        assert!(!debug.contains("s3cret") && !debug.contains("pa55word"), "{debug}");
    }
    for login in [":wr0ng@", "ann:wr0ng@", "bob:wr0ng@"] {
        let url = Url::parse(&format!("redis://{login}127.0.0.1:{}", server.port)).unwrap();
        let error = RedisEngine::open(&url, false).unwrap_err();
        let OpenError::Engine(engine) = &error else { panic!("{error}") };
        assert_eq!(engine.kind, ErrorKind::Determinate { transient: false });
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!format!("{error}{error:?}{url:?}").contains("wr0ng"), "{error:?}");
    }
    let error = RedisEngine::open(&server.url(""), false).unwrap_err().to_string();
    assert!(error.contains("NOAUTH"), "{error}");
}

#[test]
fn open_checks_existence_and_layout_version() {
    let server = support::shared();
    let open = |create| RedisEngine::open(&server.url("/7?table_prefix=layout_"), create);
    assert!(matches!(open(false), Err(OpenError::Missing(_))));
    drop(open(true).unwrap());
    drop(open(false).unwrap());
    let set = |value: &str| {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/7", server.port)).unwrap();
        let mut connection = client.get_connection().unwrap();
        redis::cmd("SET").arg("{layout_}schema").arg(value).exec(&mut connection).unwrap();
    };
    set(&(VERSION + 1).to_string());
    let error = open(true).unwrap_err().to_string();
    assert!(error.contains(&format!("version {}", VERSION + 1)), "{error}");
    set(&(VERSION - 1).to_string());
    assert!(matches!(open(false), Err(OpenError::Older { .. })));
    set("something else");
    assert!(matches!(open(true), Err(OpenError::NotLimenfs(_))));
}

#[test]
fn prefixes_and_databases_separate_volumes() {
    let server = support::shared();
    let engines = ["?table_prefix=a_", "?table_prefix=ab_", "/1?table_prefix=a_"].map(|url| server.open(url));
    for (number, engine) in engines.iter().enumerate() {
        add_directory(engine);
        committed(engine, add_file(10 + number as u64));
    }
    engines[0].wipe().unwrap();
    add_directory(&engines[0]);
    assert_eq!(files(&engines[0]), BTreeSet::new());
    assert_eq!(files(&engines[1]), BTreeSet::from([11]));
    assert_eq!(files(&engines[2]), BTreeSet::from([12]));
}

#[test]
fn interrupted_wipe_leaves_the_settings() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server);
    let url = Url::parse(&format!("redis://127.0.0.1:{}", proxy.port)).unwrap();
    let engine = RedisEngine::open(&server.url(""), true).unwrap();
    let through_proxy = RedisEngine::open(&url, false).unwrap();
    // The keys of so many symlinks are found in several steps.
    interrupted_wipes_leave_the_settings(&engine, 3000, |requests| {
        proxy.close_after(requests);
        through_proxy.wipe()
    });
}

#[test]
fn lost_scripts_are_reloaded_and_lost_volume_is_an_error() {
    let server = Server::start(&[]);
    let engine = server.open("");
    add_directory(&engine);
    server.ask(&["SCRIPT", "FLUSH"]);
    committed(&engine, add_file(10));
    assert_eq!(files(&engine), BTreeSet::from([10]));
    server.ask(&["FLUSHALL"]);
    for error in [engine.read(&[RecordKey::Usage]).unwrap_err(), engine.commit(&[add_file(11)]).unwrap_err()]
    {
        assert_eq!(error.kind, ErrorKind::Determinate { transient: false });
        assert!(error.message.contains("no longer exists"), "{error}");
    }
}

#[test]
fn full_memory_rejects_additions_and_permits_removals() {
    let server = Server::start(&["--maxmemory", "8mb"]);
    let engine = server.open("");
    add_directory(&engine);
    let mut next = 10;
    let error = loop {
        let batch: Vec<Txn> = (next..next + 100).map(add_file).collect();
        match engine.commit(&batch) {
            Ok(_) => next += 100,
            Err(error) => break error,
        }
        assert!(next < 1_000_000, "the memory does not fill up");
    };
    assert_eq!((error.kind, error.errno), (ErrorKind::Determinate { transient: false }, Errno::ENOSPC));
    assert_eq!(files(&engine), (10..next).collect(), "the failed transactions are not visible");
    let remove = |ino| {
        let dirent = Effect::DropDirent { parent: Ino(2), name: name(ino) };
        let links = Effect::AddLinks { ino: Ino(2), delta: -1 };
        txn(Vec::new(), vec![Effect::DropInode { ino: Ino(ino) }, dirent, links])
    };
    let batch: Vec<Txn> = (10..next).map(remove).collect();
    engine.commit(&batch).unwrap();
    assert_eq!(files(&engine), BTreeSet::new());
}

#[test]
fn watcher_that_missed_changes_gets_an_error() {
    let server = Server::start(&[]);
    let engine = server.open("");
    add_directory(&engine);
    let mut behind = engine.watch().unwrap().unwrap();
    let touch = |n: u64| {
        let links = Effect::AddLinks { ino: Ino(2), delta: (n % 3) as i32 - 1 };
        txn(Vec::new(), vec![links])
    };
    for _ in 0..150 {
        engine.commit(&(0..500).map(touch).collect::<Vec<_>>()).unwrap();
    }
    let kept = match server.ask(&["XLEN", "{limen_}changes"]) {
        redis::Value::Int(entries) => entries,
        other => panic!("{other:?}"),
    };
    assert!(kept < 150, "the stream is bounded: {kept} batches of 500");
    let error = behind.next(Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("before this client read them") && !error.contains("decode"), "{error}");
    assert!(behind.next(Duration::ZERO).is_err());
    // A wipe also ends a stream of changes.
    let mut changes = engine.watch().unwrap().unwrap();
    committed(&engine, add_file(10));
    let received = changes.next(Duration::from_secs(60)).unwrap();
    assert!(received[0].invalidations.contains(&Invalidation::Dirent(Ino(2), name(10))), "{received:?}");
    engine.wipe().unwrap();
    let error = changes.next(Duration::from_secs(60)).unwrap_err().to_string();
    assert!(error.contains("wiped") && !error.contains("decode"), "{error}");
}

#[test]
fn results_without_a_term_are_dropped_after_two_minutes() {
    let server = Server::start(&[]);
    let engine = server.open("");
    add_directory(&engine);
    let link = || txn(Vec::new(), vec![Effect::AddLinks { ino: Ino(2), delta: 1 }]);
    let commit = |batches| {
        for _ in 0..batches {
            engine.commit(&std::iter::repeat_with(link).take(512).collect::<Vec<_>>()).unwrap();
        }
    };
    let first = link();
    committed(&engine, first.clone());
    commit(40);
    // Simulates that two minutes have passed.
    server.ask(&["HSET", "{limen_}ops", "since", "1"]);
    commit(40);
    assert_eq!(server.ask(&["EXISTS", "{limen_}ops_before"]), redis::Value::Int(1));
    committed(&engine, first.clone());
    let links = |engine: &RedisEngine| match engine.read(&[RecordKey::Inode(Ino(2))]).unwrap().records[..] {
        [Record::Inode(_, Some(inode))] => inode.nlink,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(links(&engine), 1 + 80 * 512, "the result is still kept after 20,000 other commits");
    server.ask(&["HSET", "{limen_}ops", "since", "1"]);
    commit(40);
    committed(&engine, first);
    assert_eq!(links(&engine), 2 + 120 * 512, "the result was dropped");
}

#[test]
fn warnings_report_settings_that_can_lose_data() {
    let careless = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let warnings = careless.open("").warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("appendonly no") && warnings[1].contains("allkeys-lru"), "{warnings:?}");
    let usual = Server::start(&["--appendonly", "yes", "--appendfsync", "everysec"]).open("").warnings();
    assert!(matches!(&usual[..], [one] if one.contains("appendfsync everysec")), "{usual:?}");
    let durable = Server::durable();
    let engine = durable.open("");
    assert_eq!(engine.warnings(), [""; 0]);
    let name = engine.server().unwrap();
    assert!(name.starts_with("Redis ") || name.starts_with("Valkey "), "{name}");
    engine.sync().unwrap();
}

#[test]
fn unix_socket_works() {
    let server = Server::start(&["--unixsocket", "redis.sock"]);
    let path = server.directory().join("redis.sock");
    let url = Url::parse(&format!("redis+unix://{}?db=3", path.display())).unwrap();
    let engine = RedisEngine::open(&url, true).unwrap();
    add_directory(&engine);
    committed(&engine, add_file(10));
    assert_eq!(files(&engine), BTreeSet::from([10]));
}

#[test]
fn tls_trusts_only_the_given_authority() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=limenfs test", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", &key, "-out", &certificate])
        .output()
        .unwrap_or_else(|error| panic!("openssl cannot be run ({error}): install Debian's package openssl"));
    assert!(made.status.success(), "{made:?}");
    let port = free_port();
    let number = port.to_string();
    let arguments = [
        ["--port", "0"],
        ["--tls-port", &number],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &certificate],
    ];
    let _server = Server::start_at(port, arguments.concat().into_iter().map(str::to_owned).collect());
    let open = |more: &str| {
        let url = Url::parse(&format!("rediss://127.0.0.1:{port}?op_timeout=5s{more}")).unwrap();
        RedisEngine::open(&url, true)
    };
    // The server also verifies client certificates.
    let engine = open(&format!("&tls_ca={certificate}&tls_cert={certificate}&tls_key={key}")).unwrap();
    add_directory(&engine);
    committed(&engine, add_file(10));
    assert_eq!(files(&engine), BTreeSet::from([10]));
    assert!(open(&format!("&tls_ca={certificate}")).is_err(), "without a client certificate");
    let error = open(&format!("&tls_cert={certificate}&tls_key={key}")).unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn cluster_stores_a_volume_on_one_node() {
    // The default bus port, the port plus 10,000, may be in the range of ephemeral ports, which the kernel
    // gives to clients.
    let bus = [(); 2].map(|()| servers::free_port().to_string());
    let nodes = bus.each_ref().map(|bus| Server::start(&["--cluster-enabled", "yes", "--cluster-port", bus]));
    // All hash slots belong to the second node; the first one redirects to it.
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    let slots = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    nodes[1].ask(&slots.collect::<Vec<_>>());
    nodes[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port.to_string(), &bus[1]]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let engine = loop {
        match RedisEngine::open(&nodes[0].url("?table_prefix=on_a_cluster_"), true) {
            Ok(engine) => break engine,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    add_directory(&engine);
    let mut changes = engine.watch().unwrap().unwrap();
    committed(&engine, add_file(10));
    assert_eq!(files(&engine), BTreeSet::from([10]));
    assert_eq!(changes.next(Duration::from_secs(60)).unwrap().len(), 1);
    assert!(matches!(nodes[1].ask(&["DBSIZE"]), redis::Value::Int(keys) if keys > 0));
    engine.wipe().unwrap();
    assert_eq!(nodes[1].ask(&["DBSIZE"]), redis::Value::Int(3), "schema, state and changes");
}

fn master_and_replica() -> (Server, Server) {
    let master = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    (master, replica)
}

/// Returns when the replica has caught up with the master.
fn await_replica(master: &Server, replica: &Server) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let newest = |server: &Server| server.ask(&["HGET", "{limen_}state", "seq"]);
    while newest(replica) != newest(master) {
        assert!(Instant::now() < deadline, "the replica does not catch up");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn replica_and_demoted_master_are_rejected() {
    let (master, replica) = master_and_replica();
    let error = RedisEngine::open(&replica.url(""), false).unwrap_err().to_string();
    assert!(error.contains("is a replica"), "{error}");
    // With several hosts, the master is used.
    let both = format!("redis://127.0.0.1:{},127.0.0.1:{}", replica.port, master.port);
    let engine = RedisEngine::open(&Url::parse(&both).unwrap(), true).unwrap();
    add_directory(&engine);
    committed(&engine, add_file(10));
    await_replica(&master, &replica);
    replica.ask(&["REPLICAOF", "NO", "ONE"]);
    master.ask(&["REPLICAOF", "127.0.0.1", &replica.port.to_string()]);
    let error = engine.read(&[RecordKey::Usage]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: true }, "{error}");
    assert_eq!(files(&engine), BTreeSet::from([10]), "from the new master");
    committed(&engine, add_file(11));
}

#[test]
fn sentinels_locate_the_master_after_a_failover() {
    let (master, replica) = master_and_replica();
    let port = free_port();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sentinel.conf");
    let settings = format!(
        "port {port}\nsentinel monitor vol 127.0.0.1 {} 1\nsentinel down-after-milliseconds vol 600000\n\
         sentinel failover-timeout vol 2000\n",
        master.port
    );
    std::fs::write(&file, settings).unwrap();
    let sentinel = Server::start_at(port, vec![file.display().to_string(), "--sentinel".to_owned()]);
    let url = Url::parse(&format!("redis://127.0.0.1:{port}?master=vol")).unwrap();
    let engine = RedisEngine::open(&url, true).unwrap();
    add_directory(&engine);
    committed(&engine, add_file(10));
    let unknown = Url::parse(&format!("redis://127.0.0.1:{port}?master=other")).unwrap();
    let error = RedisEngine::open(&unknown, true).unwrap_err().to_string();
    assert!(error.contains("does not know a master 'other'"), "{error}");
    let without = Url::parse(&format!("redis://127.0.0.1:{port}")).unwrap();
    let error = RedisEngine::open(&without, true).unwrap_err().to_string();
    assert!(error.contains("is a Sentinel") && error.contains("master=NAME"), "{error}");
    await_replica(&master, &replica);
    // The Sentinel must know the replica before it can promote it.
    let deadline = Instant::now() + Duration::from_secs(60);
    let known = || {
        let replicas = sentinel.ask(&["SENTINEL", "replicas", "vol"]);
        matches!(replicas, redis::Value::Array(all) if !all.is_empty())
    };
    while !known() {
        assert!(Instant::now() < deadline, "the Sentinel does not discover the replica");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Do this only now, because the Sentinel would also replace a master that a busy machine delays.
    sentinel.ask(&["SENTINEL", "SET", "vol", "down-after-milliseconds", "500"]);
    master.kill();
    let batch = [add_file(11)];
    persistently(|| engine.commit(&batch));
    assert_eq!(files(&engine), BTreeSet::from([10, 11]));
    assert!(matches!(replica.ask(&["ROLE"]), redis::Value::Array(_)));
}

#[test]
fn one_call_returns_the_changes_of_many_commits() {
    let (engine, _server) = support::engine();
    suite::conformance::changes_of_commits_are_returned_without_waiting(&engine, 1_100);
}
