//! A PostgreSQL server for each test program: Debian's binaries, a loopback port, a directory that is removed
//! with the process.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use engine_postgres::PostgresEngine;
use pool::Url;

/// A server. It is stopped and removed when dropped, or when this process ends in any way.
pub(crate) struct Server {
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
    /// Waits for the end of its input, then kills the server and removes the directory.
    undertaker: Child,
}

/// Signals that end the tests must not end this process. The server's children end soon after the server, and
/// write until then.
const UNDERTAKER: &str = r#"trap '' TERM INT HUP
read -r _; kill -9 "$(head -n 1 "$1/data/postmaster.pid")"
for _ in 1 2 3 4 5 6 7 8 9; do rm -rf "$1" && break; sleep 0.3; done"#;

/// Settings for tests that do not crash the server.
pub(crate) const FAST: &str = "fsync = off\nsynchronous_commit = off\nfull_page_writes = off\n";
/// Settings for tests in which data must survive a crash of the server.
pub(crate) const DURABLE: &str = "fsync = on\nsynchronous_commit = on\nfull_page_writes = on\n";

impl Server {
    pub(crate) fn start(settings: &str) -> Self {
        let bin = binaries();
        let dir = tempfile::Builder::new().prefix("limen-postgres-").tempdir().unwrap().keep();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let undertaker = Command::new("sh")
            .args(["-c", UNDERTAKER, "sh"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let data = dir.join("data");
        fs::create_dir(&data).unwrap();
        if rustix::process::geteuid().is_root() {
            let owner = Command::new("chown").arg("postgres").arg(&data).status().unwrap();
            assert!(owner.success(), "there is no user postgres: install Debian's package postgresql");
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Server { bin, dir, port, undertaker };
        server.run(
            "initdb",
            &["-D", "data", "-U", "limen", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"],
        );
        let mut config = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
        write!(
            config,
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 60\n\
             shared_buffers = 64MB\nshared_preload_libraries = 'pg_stat_statements'\n\
             pg_stat_statements.track = top\npg_stat_statements.track_planning = off\n\
             autovacuum_naptime = 5s\nlog_statement = none\n{settings}",
        )
        .unwrap();
        let rules = "host all guarded 127.0.0.1/32 scram-sha-256\n\
                     host all guarded_of_old 127.0.0.1/32 md5\n\
                     host all all 127.0.0.1/32 trust\n";
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
        server.up();
        server
    }

    /// Starts the server (again), and waits until it answers.
    pub(crate) fn up(&self) {
        self.run("pg_ctl", &["-D", "data", "-l", "data/log", "-s", "-w", "-t", "60", "start"]);
    }

    /// Kills the server like a power failure, except that the disk keeps its cache.
    pub(crate) fn kill(&self) {
        let master = self.master();
        self.signal("KILL", &[master]);
        let gone = Instant::now() + Duration::from_secs(60);
        while Path::new(&format!("/proc/{master}")).exists() {
            assert!(Instant::now() < gone, "the server survived SIGKILL");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops or continues all its processes.
    pub(crate) fn pause(&self, pause: bool) {
        let master = self.master();
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
        let mut all: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        all.push(master);
        self.signal(if pause { "STOP" } else { "CONT" }, &all);
    }

    pub(crate) fn url(&self, query: &str) -> Url {
        Url::parse(&format!("postgres://limen@127.0.0.1:{}/postgres?{query}", self.port)).unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs the statements with psql, and returns its output: rows with | between columns.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let port = self.port.to_string();
        self.run(
            "psql",
            &["-h", "127.0.0.1", "-p", &port, "-U", "limen", "-d", "postgres", "-XqAt", "-c", sql],
        )
    }

    /// Starts psql with these statements; its connection stays open until its input is closed.
    pub(crate) fn hold(&self, sql: &str) -> Child {
        let mut child = Command::new(self.bin.join("psql"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "limen", "-d", "postgres", "-Xq"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "{sql}").unwrap();
        child
    }

    fn master(&self) -> u32 {
        let file = fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap();
        file.lines().next().unwrap().trim().parse().unwrap()
    }

    fn signal(&self, signal: &str, pids: &[u32]) {
        let pids = pids.iter().map(u32::to_string);
        // A process may have ended in the meantime.
        Command::new("kill").args(["-s", signal]).args(pids).stderr(Stdio::null()).status().unwrap();
    }

    /// Runs one of the server's programs as the server's user.
    fn run(&self, program: &str, args: &[&str]) -> String {
        let path = self.bin.join(program);
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        // The server that pg_ctl starts must not keep this process's pipes open.
        let out = self.dir.join(format!("out-{program}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let file = fs::File::create(&out).unwrap();
        let status = command
            .args(args)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .status()
            .unwrap();
        let printed = fs::read_to_string(&out).unwrap();
        let log = fs::read_to_string(self.dir.join("data/log")).unwrap_or_default();
        assert!(status.success(), "{program} {args:?}: {printed}\n{log}");
        printed.trim_end().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.undertaker.stdin.take());
        let _ = self.undertaker.wait();
    }
}

/// The directory of initdb and postgres: the newest of Debian's packages, unless `LIMEN_TEST_POSTGRES` names
/// another one.
fn binaries() -> PathBuf {
    if let Some(named) = std::env::var_os("LIMEN_TEST_POSTGRES") {
        return named.into();
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists())
        .collect();
    found.sort();
    found
        .pop()
        .expect("no PostgreSQL server under /usr/lib/postgresql: install Debian's package postgresql")
        .1
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The server that the tests of this program share.
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(FAST))
}

/// An empty volume's tables on the shared server, until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    prefix: String,
}

impl Place {
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// Prefixes whose tables exist and are not in use.
static FREE: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(mut free) = FREE.lock() {
            free.push(std::mem::take(&mut self.prefix));
        }
    }
}

/// An engine with its own empty tables on the shared server.
pub(crate) fn empty() -> (PostgresEngine, Place) {
    let used = FREE.lock().unwrap().pop();
    let prefix = used.clone().unwrap_or_else(|| format!("t{}_", NEXT.fetch_add(1, Ordering::Relaxed)));
    let url = shared().url(&format!("sslmode=disable&max_open_conns=6&table_prefix={prefix}"));
    let engine = PostgresEngine::open(&url, true).unwrap();
    if used.is_some() {
        meta::Engine::wipe(&engine).unwrap();
    }
    (engine, Place { prefix })
}
