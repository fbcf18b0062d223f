//! Real database servers on loopback ports and in directories of their own, one [`Kind`] each, and what stands between
//! them and a mount.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to start; far longer than any does.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database server that limen knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
}

impl Kind {
    /// The server; if `durable`, what it acknowledged is on the disk.
    fn command(self, port: u16, directory: &Path, durable: bool) -> Command {
        match self {
            Kind::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
                command.args(["--appendonly", if durable { "yes" } else { "no" }, "--appendfsync", "always"]);
                command.args(["--logfile", "log", "--dir"]).arg(directory);
                command
            }
        }
    }

    fn is_up(self, port: u16) -> bool {
        match self {
            // While it reads its log it answers with an error.
            Kind::Redis => redis(port, "PING").is_some_and(|line| line.starts_with("+PONG")),
        }
    }

    pub(crate) fn url(self, port: u16, database: &str) -> String {
        match self {
            Kind::Redis => {
                format!("redis://127.0.0.1:{port}/?table_prefix={database}_&op_timeout=2s&connect_timeout=1s")
            }
        }
    }

    /// What the client sends over the connection by which it hears of changes, and over no other.
    fn of_stream(self) -> &'static [u8] {
        match self {
            Kind::Redis => b"XREAD",
        }
    }

    /// The server's name as `limen status` begins it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Redis => "Redis ",
        }
    }
}

/// A server, until dropped.
///
/// A shell of its own starts it. A process that has files of a mount open cannot: whatever it starts closes these first,
/// for which the mount needs its server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) port: u16,
    shell: Mutex<Child>,
    _directory: TempDir,
}

/// Runs its arguments once for each line that it reads.
const SHELL: &str = r#"while read -r _; do "$@"; done"#;

impl Server {
    pub(crate) fn start(kind: Kind, durable: bool) -> Server {
        let port = free_port();
        let directory = tempfile::Builder::new().prefix("limen-server.").tempdir().unwrap();
        let command = kind.command(port, directory.path(), durable);
        let mut shell = Command::new("sh");
        shell.args(["-c", SHELL, "sh"]).arg(command.get_program()).args(command.get_args());
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = Mutex::new(shell.spawn().unwrap());
        let server = Server { kind, port, shell, _directory: directory };
        server.start_again();
        server
    }

    pub(crate) fn url(&self) -> String {
        self.kind.url(self.port, "vol")
    }

    /// Requests of clients that the server has carried out: the round trips, but for those by which a client hears of
    /// changes, or waits for the disk in the background.
    pub(crate) fn requests(&self) -> u64 {
        match self.kind {
            // Each of the engine's requests is one script.
            Kind::Redis => {
                let stats = redis(self.port, "INFO commandstats").unwrap();
                let calls = stats.lines().filter_map(|line| {
                    let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                    Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
                });
                let calls: BTreeMap<String, u64> = calls.collect();
                calls.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| calls).sum()
            }
        }
    }

    /// As a power cut would, but that what was handed to the kernel is kept.
    pub(crate) fn kill(&self) {
        if let Some(pid) = self.pid() {
            kill_process(pid, Signal::KILL).unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        while self.pid().is_some() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The process that the shell has started, if it lives.
    fn pid(&self) -> Option<Pid> {
        let shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner).id();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
        children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?))
    }

    /// Begins again with what is on the disk.
    pub(crate) fn start_again(&self) {
        let mut shell = self.shell.lock().unwrap();
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        drop(shell);
        self.wait_until_up();
    }

    /// To clients a server that is stopped is one that hangs.
    pub(crate) fn stop(&self, stop: bool) {
        let signal = if stop { Signal::STOP } else { Signal::CONT };
        if let Some(pid) = self.pid() {
            kill_process(pid, signal).unwrap();
        }
    }

    fn wait_until_up(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.kind.is_up(self.port) {
            let hint = "does not start: is it installed (scripts/install-deps.sh test)?";
            assert!(Instant::now() < deadline, "{:?} {hint}", self.kind);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        // It ends with its input.
        drop(shell.stdin.take());
        let _ = shell.wait();
    }
}

/// A port that no client is given by chance: while the server is away, one that asks for it might else connect to itself,
/// and keep it (`net.ipv4.ip_local_port_range` begins at 32,768).
fn free_port() -> u16 {
    let first = u16::try_from(std::process::id() % 10_000).unwrap() + 20_000;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..32_000).find(free).expect("no port is free")
}

/// The answer to one command: a line, or a bulk string as it is.
fn redis(port: u16, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    let (mut answer, mut line) = (BufReader::new(stream), String::new());
    answer.read_line(&mut line).ok()?;
    let Some(len) = line.strip_prefix('$') else { return Some(line) };
    let mut text = vec![0; len.trim().parse().ok()?];
    answer.read_exact(&mut text).ok()?;
    String::from_utf8(text).ok()
}

/// What does not go through a [`Proxy`] any more, in either direction. It is held, not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Nothing = 0,
    /// What connections say over which changes are heard.
    Stream = 1,
    Everything = 2,
}

/// Stands between a mount and its server.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    cut: Arc<AtomicU8>,
}

impl Proxy {
    pub(crate) fn to(server: &Server) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicU8::new(Cut::Nothing as u8));
        let (all, kind, server) = (Arc::clone(&cut), server.kind, server.port);
        // It ends with the test program, as do its connections.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let is_stream = Arc::new(AtomicBool::new(false));
                for (from, to, marker) in [
                    (client.try_clone().unwrap(), upstream.try_clone().unwrap(), Some(kind.of_stream())),
                    (upstream, client, None),
                ] {
                    let (cut, is_stream) = (Arc::clone(&all), Arc::clone(&is_stream));
                    thread::spawn(move || relay(from, to, marker, &is_stream, &cut));
                }
            }
        });
        Proxy { port, cut }
    }

    pub(crate) fn cut(&self, cut: Cut) {
        self.cut.store(cut as u8, Ordering::SeqCst);
    }
}

fn relay(
    mut from: TcpStream,
    mut to: TcpStream,
    marker: Option<&[u8]>,
    is_stream: &AtomicBool,
    cut: &AtomicU8,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if marker.is_some_and(|marker| bytes[..len].windows(marker.len()).any(|part| part == marker)) {
            is_stream.store(true, Ordering::SeqCst);
        }
        loop {
            let cut = cut.load(Ordering::SeqCst);
            let held =
                cut == Cut::Everything as u8 || cut == Cut::Stream as u8 && is_stream.load(Ordering::SeqCst);
            if !held {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
