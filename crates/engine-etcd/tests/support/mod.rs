//! A real etcd on a loopback port, with its own data directory. It ends when the last test drops it.

#![allow(dead_code, reason = "not every test binary needs all of it")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use engine_etcd::{EtcdEngine, OpenError};
use pool::Url;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
    peer_port: u16,
    data: TempDir,
    process: Mutex<Child>,
}

/// The server that the tests of this binary share.
pub(crate) fn shared() -> Arc<Server> {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    server.upgrade().unwrap_or_else(|| {
        // These tests do not check durability across a power loss, so the data may be in memory.
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let new = Arc::new(Server::start(&place));
        *server = Arc::downgrade(&new);
        new
    })
}

/// An empty volume on the shared server.
pub(crate) fn empty() -> (EtcdEngine, Arc<Server>) {
    let server = shared();
    (server.open(&prefix(), true).expect("a volume"), server)
}

/// A prefix that no other volume uses.
pub(crate) fn prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("t{}_", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Server {
    /// Starts a server with its data directory below `place`.
    pub(crate) fn start(place: &std::path::Path) -> Self {
        let data = tempfile::tempdir_in(place).expect("a directory for the data");
        let (port, peer_port) = (free_port(), free_port());
        let process = Mutex::new(spawn(port, peer_port, &data));
        let server = Server { port, peer_port, data, process };
        server.wait();
        server
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.get("/health").is_none_or(|answer| !answer.contains("\"true\"")) {
            let ended = self.process.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            assert!(matches!(ended, Ok(None)), "etcd has ended: {ended:?}");
            assert!(Instant::now() < deadline, "etcd did not start within 60 s");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn url(&self, prefix: &str, more: &str) -> Url {
        self.url_as("", prefix, more)
    }

    /// The URL with the login `user:password@`.
    pub(crate) fn url_as(&self, login: &str, prefix: &str, more: &str) -> Url {
        let url = format!("etcd://{login}127.0.0.1:{}/?table_prefix={prefix}{more}", self.port);
        Url::parse(&url).expect("a URL")
    }

    pub(crate) fn open(&self, prefix: &str, create: bool) -> Result<EtcdEngine, OpenError> {
        EtcdEngine::open(&self.url(prefix, ""), create)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = Pid::from_child(&process);
        kill_process(pid, signal).expect("a signal to etcd");
        if signal == Signal::STOP {
            // The server may still answer until its last thread has stopped.
            waitpid(Some(pid), WaitOptions::UNTRACED).expect("etcd to stop");
        }
    }

    /// Kills the server and starts it again on the same data.
    pub(crate) fn restart(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill().expect("to kill etcd");
        process.wait().expect("etcd's end");
        *process = spawn(self.port, self.peer_port, &self.data);
        drop(process);
        self.wait();
    }

    /// The number of unary gRPC calls that the server has handled, so without watches.
    pub(crate) fn calls(&self) -> u64 {
        let metrics = self.get("/metrics").expect("etcd's metrics");
        let calls = metrics.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
        let calls = calls.filter(|line| line.contains("grpc_type=\"unary\""));
        calls
            .map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) as u64)
            .sum()
    }

    /// Sends a request to etcd's JSON gateway.
    pub(crate) fn post(&self, path: &str, body: &str) {
        let request = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = self.ask(&request).expect("an answer");
        assert!(answer.contains(" 200 "), "{path}: {answer}");
    }

    fn get(&self, path: &str) -> Option<String> {
        self.ask(&format!("GET {path} HTTP/1.0\r\n\r\n"))
    }

    fn ask(&self, request: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ended = process.kill();
        let _status = process.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

fn spawn(port: u16, peer_port: u16, data: &TempDir) -> Child {
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    let log = std::fs::File::create(data.path().join("log")).expect("a log");
    Command::new("etcd")
        .arg("--data-dir")
        .arg(data.path().join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .expect("etcd can be started: it is in Debian's package etcd-server (apt-get install etcd-server)")
}
