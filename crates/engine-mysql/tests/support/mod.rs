//! A MariaDB server for each test program: Debian's binaries, a loopback port, a directory that is removed
//! with the process. If `LIMEN_TEST_MYSQLD` names a `mysqld`, it is a MySQL server.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use engine_mysql::MysqlEngine;
use meta::Engine;
use mysql::prelude::Queryable;
use pool::Url;

/// A server. It is stopped and removed when dropped, or when this process ends in any way.
pub(crate) struct Server {
    dir: PathBuf,
    port: u16,
    arguments: Vec<String>,
    server: Mutex<Option<Child>>,
    /// Waits for the end of its input, then kills the server and removes the directory.
    undertaker: Child,
}

/// Settings for tests that do not crash the server.
pub(crate) const FAST: &[&str] = &["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"];
/// Settings for tests in which data must survive a crash of the server.
#[allow(dead_code)]
pub(crate) const DURABLE: &[&str] = &["--innodb-flush-log-at-trx-commit=1"];

/// The password of the user that owns only the database `limen`.
pub(crate) const PASSWORD: &str = "s3cret-w0rd";

impl Server {
    pub(crate) fn start(settings: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("limen-mariadb-").tempdir().unwrap().keep();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.join("tmp")).unwrap();
        let undertaker = Command::new("sh")
            .args(["-c", r#"read -r _; kill -9 "$(cat "$1/pid")"; rm -rf "$1""#, "sh"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut arguments = vec![
            "--no-defaults".to_owned(),
            format!("--datadir={}", dir.join("data").display()),
            // A starting server removes the temporary tables of other servers in this directory.
            format!("--tmpdir={}", dir.join("tmp").display()),
            format!("--socket={}", dir.join("sock").display()),
            format!("--pid-file={}", dir.join("pid").display()),
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--innodb-buffer-pool-size=64M".to_owned(),
            "--performance-schema=off".to_owned(),
            "--skip-name-resolve".to_owned(),
            "--max-connections=300".to_owned(),
        ];
        if rustix::process::geteuid().is_root() {
            arguments.push("--user=root".to_owned());
        }
        let mut install = match mysqld() {
            Some(mysqld) => Command::new(mysqld),
            None => Command::new(program("mariadb-install-db")),
        };
        install.args(&arguments[..3]).args(match mysqld() {
            Some(_) => &["--initialize-insecure"][..],
            None => &["--auth-root-authentication-method=normal", "--skip-test-db"],
        });
        install.args(rustix::process::geteuid().is_root().then_some("--user=root"));
        let installed = install.output().unwrap();
        assert!(installed.status.success(), "{installed:?}");
        if mysqld().is_some() {
            arguments.extend(["--mysqlx=off", "--secure-file-priv=NULL"].map(str::to_owned));
        }
        arguments.extend(settings.iter().map(|setting| (*setting).to_owned()));
        let server = Server { dir, port, arguments, server: Mutex::new(None), undertaker };
        server.up();
        let mut root = server.root();
        root.query_drop("CREATE DATABASE limen").unwrap();
        for host in ["127.0.0.1", "localhost"] {
            root.query_drop(format!("CREATE USER limen@'{host}' IDENTIFIED BY '{PASSWORD}'")).unwrap();
            root.query_drop(format!("GRANT ALL ON limen.* TO limen@'{host}'")).unwrap();
        }
        server
    }

    /// Starts the server (again), and waits until it answers.
    pub(crate) fn up(&self) {
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let child = Command::new(mysqld().unwrap_or_else(|| program("mariadbd")))
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        *self.server.lock().unwrap() = Some(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        let port_answers = || TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        while !port_answers() || UnixStream::connect(self.socket()).is_err() {
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the server does not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the server like a power failure, except that the disk keeps its cache.
    #[allow(dead_code)]
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.server.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops or continues all its threads.
    #[allow(dead_code)]
    pub(crate) fn pause(&self, pause: bool) {
        let pid = self.server.lock().unwrap().as_ref().unwrap().id().to_string();
        let signal = if pause { "STOP" } else { "CONT" };
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        // Until its last thread has stopped, the server may answer.
        while pause && !all_threads_stopped(&pid) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A URL of the database with the parameters of `query`.
    #[allow(dead_code)]
    pub(crate) fn url(&self, query: &str) -> Url {
        self.url_as("limen", PASSWORD, query)
    }

    #[allow(dead_code)]
    pub(crate) fn url_as(&self, user: &str, password: &str, query: &str) -> Url {
        Url::parse(&format!("mysql://{user}:{password}@127.0.0.1:{}/limen?{query}", self.port)).unwrap()
    }

    #[allow(dead_code)]
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    #[allow(dead_code)]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A connection of the server's administrator.
    #[allow(dead_code)]
    pub(crate) fn root(&self) -> mysql::Conn {
        let socket = self.socket().to_str().map(str::to_owned);
        let opts = mysql::OptsBuilder::new().socket(socket).user(Some("root"));
        mysql::Conn::new(opts).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        drop(self.undertaker.stdin.take());
        let _ = self.undertaker.wait();
    }
}

/// The program of a MySQL server, if the tests are to run on one.
pub(crate) fn mysqld() -> Option<PathBuf> {
    std::env::var_os("LIMEN_TEST_MYSQLD").map(PathBuf::from)
}

fn program(name: &str) -> PathBuf {
    let found =
        ["/usr/sbin", "/usr/bin"].iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("there is no {name}: install Debian's package mariadb-server"))
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The server that the tests of this program share.
#[allow(dead_code)]
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(FAST))
}

/// An empty volume's tables on the shared server, until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    prefix: String,
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
#[allow(dead_code)]
pub(crate) fn empty() -> (MysqlEngine, Place) {
    empty_with("")
}

/// Like [`empty`], with more parameters.
#[allow(dead_code)]
pub(crate) fn empty_with(query: &str) -> (MysqlEngine, Place) {
    let used = FREE.lock().unwrap().pop();
    let prefix = used.clone().unwrap_or_else(|| format!("t{}_", NEXT.fetch_add(1, Ordering::Relaxed)));
    let url = shared().url(&format!("table_prefix={prefix}&max_idle_conns=2&{query}"));
    let engine = MysqlEngine::open(&url, true).unwrap();
    if used.is_some() {
        engine.wipe().unwrap();
    }
    (engine, Place { prefix })
}

/// Reads the state in `/proc/PID/task/TID/stat` (proc(5)), which follows the name in parentheses.
#[allow(dead_code)]
fn all_threads_stopped(pid: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    })
}
