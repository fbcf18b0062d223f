//! A real server of Debian's package redis-server, on a loopback port and in a directory of its own.

// Each test binary uses a part of it.
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

/// How long a server may take to start or to stop; far longer than any does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps its log on the disk at every commit.
pub const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A server, until dropped.
#[derive(Debug)]
pub struct Server {
    child: Mutex<Child>,
    pub port: u16,
    directory: TempDir,
    arguments: Vec<String>,
}

/// A volume of its own on the server that the cases of a test binary share while there are any.
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

    /// A server with just these arguments that listens on `port`.
    pub fn start_at(port: u16, arguments: Vec<String>) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let child = Mutex::new(run(&arguments, directory.path()));
        let server = Server { child, port, directory, arguments };
        server.wait_until_up();
        server
    }

    /// An empty volume with a prefix of its own; `more` are parameters that begin with &.
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

    /// The answer to a command, by a connection of its own.
    pub fn ask<A: redis::ToRedisArgs + std::fmt::Debug>(&self, command: &[A]) -> redis::Value {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_connection_with_timeout(PATIENCE).unwrap();
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        cmd.query(&mut connection).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// How often the server ran a command, and how often each other one.
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

    /// What the server has to say.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// As a power cut would, but that what was handed to the kernel is kept.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Begins again with what is on the disk.
    pub fn restart(&self) {
        self.kill();
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) =
            run(&self.arguments, self.directory.path());
        self.wait_until_up();
    }

    /// Stops or lets go on: to clients a stopped server is one that hangs.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = Pid::from_child(&child);
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            // Until the last of its threads stands still, it may answer.
            waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        }
    }

    fn wait_until_up(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // One that found its port taken ends at once, and somebody else answers there.
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
                // It asks for a password, so it is there.
                Err(error) if error.code() == Some("NOAUTH") => return,
                Err(error) => assert!(Instant::now() < deadline, "redis-server does not start: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that was stopped would not die of a mere signal to end.
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

/// A port that nobody listens on, and that no other server of this process was given.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // A node of a Cluster listens 10,000 ports further up, too.
        if port < 55_000 && !given.contains(&port) {
            given.push(port);
            return port;
        }
    }
}
