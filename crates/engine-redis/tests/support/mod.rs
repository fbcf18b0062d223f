//! A real Redis server from Debian's package redis-server, on a loopback port and in its own directory.

// Each test binary uses only a part of this module.
#![allow(dead_code, unreachable_pub)]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use engine_redis::RedisEngine;
use pool::Url;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

/// How long a server may take to start or stop. Normally it takes far less.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments for a server that syncs its log at every commit.
pub const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A server, killed on drop.
#[derive(Debug)]
pub struct Server {
    child: Mutex<Child>,
    pub port: u16,
    directory: TempDir,
    arguments: Vec<String>,
}

/// A new volume on a server that the tests of a binary share.
pub fn engine() -> (RedisEngine, Arc<Server>) {
    let server = shared();
    (server.volume(""), server)
}

pub fn shared() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Server::start(&["--appendonly", "no"]));
        *shared = Arc::downgrade(&server);
        server
    })
}

impl Server {
    pub fn start(arguments: &[&str]) -> Server {
        let port = free_port();
        let mut all = vec!["--port".to_owned(), port.to_string()];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Self::start_at(port, all)
    }

    /// Starts a server with exactly these arguments, which listens on `port`.
    pub fn start_at(port: u16, arguments: Vec<String>) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let child = Mutex::new(run(&arguments, directory.path()));
        let server = Server { child, port, directory, arguments };
        server.wait_until_up();
        server
    }

    /// A new empty volume with its own prefix. `more` are further parameters that begin with &.
    pub fn volume(&self, more: &str) -> RedisEngine {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("case{}_", NEXT.fetch_add(1, Ordering::Relaxed));
        self.open(&format!("?table_prefix={prefix}{more}"))
    }

    pub fn open(&self, after_port: &str) -> RedisEngine {
        RedisEngine::open(&self.url(after_port), true).unwrap()
    }

    pub fn url(&self, after_port: &str) -> Url {
        Url::parse(&format!("redis://127.0.0.1:{}{after_port}", self.port)).unwrap()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a command on a new connection.
    pub fn ask<A: redis::ToRedisArgs + std::fmt::Debug>(&self, command: &[A]) -> redis::Value {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_connection_with_timeout(TIMEOUT).unwrap();
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        cmd.query(&mut connection).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// The number of calls of each command on the server.
    pub fn calls(&self) -> std::collections::BTreeMap<String, u64> {
        let stats = match self.ask(&["INFO", "commandstats"]) {
            redis::Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
            other => panic!("{other:?}"),
        };
        let line = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        stats.lines().filter_map(line).collect()
    }

    /// The server's log file.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Kills the server. Unlike in a power cut, data that was passed to the kernel survives.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Kills the server and starts it again on the data on disk.
    pub fn restart(&self) {
        self.kill();
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) =
            run(&self.arguments, self.directory.path());
        self.wait_until_up();
    }

    /// Sends a signal. With SIGSTOP the server hangs until SIGCONT.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = Pid::from_child(&child);
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            // The server may still answer until its last thread has stopped.
            waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        }
    }

    fn wait_until_up(&self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // If its port is taken, the server exits immediately and another process answers on the port.
            let ended = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait().unwrap();
            assert!(ended.is_none(), "redis-server ended: {}", self.log());
            if self.arguments.iter().any(|argument| argument == "--tls-port") {
                match TcpStream::connect(("127.0.0.1", self.port)) {
                    Ok(_) => return,
                    Err(error) => assert!(Instant::now() < deadline, "redis-server does not start: {error}"),
                }
            }
            let up = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))
                .and_then(|client| client.get_connection_with_timeout(Duration::from_secs(1)))
                .and_then(|mut connection| redis::cmd("PING").query::<redis::Value>(&mut connection));
            match up {
                Ok(_) => return,
                // The server requires a password, so it is up.
                Err(error) if error.code() == Some("NOAUTH") => return,
                Err(error) => assert!(Instant::now() < deadline, "redis-server does not start: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped server.
        self.kill();
    }
}

fn run(arguments: &[String], directory: &Path) -> Child {
    Command::new("redis-server")
        .args(arguments)
        .args(["--bind", "127.0.0.1", "--save", "", "--logfile", "log", "--dir"])
        .arg(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("redis-server cannot be run ({error}): install Debian's package redis-server")
        })
}

/// A port on which nothing listens and which was not returned before.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // A Cluster node also listens on the port 10,000 higher.
        if port < 55_000 && !given.contains(&port) {
            given.push(port);
            return port;
        }
    }
}
