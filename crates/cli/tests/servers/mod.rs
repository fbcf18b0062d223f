//! Real database servers, each on a loopback port and in its own directory, and a proxy between a server and
//! a mount. `kind.rs` has what is specific to a [`Kind`] of server.

#![allow(dead_code, reason = "each test program uses a part of it")]

mod kind;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) use kind::Kind;

/// How long a server may take to start; much longer than any server needs.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A database server. Drop kills it.
///
/// A separate shell process starts it, because the test process may have files of a mount open. A child of the
/// test process would close these files before exec. That needs the mount to answer, and the mount may be
/// waiting for the server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) port: u16,
    shell: Mutex<Child>,
    directory: TempDir,
}

/// Runs its arguments once for each line that it reads.
const SHELL: &str = r#"while read -r _; do "$@"; done"#;

impl Server {
    pub(crate) fn start(kind: Kind, durable: bool) -> Server {
        let port = free_port();
        let directory = tempfile::Builder::new().prefix("limen-server.").tempdir().unwrap();
        // Servers that refuse to run as root need access to the directory.
        fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        kind.prepare(directory.path());
        let command = kind.command(port, directory.path(), durable);
        let mut shell = Command::new("sh");
        shell.args(["-c", SHELL, "sh"]).arg(command.get_program()).args(command.get_args());
        let log =
            || fs::File::options().create(true).append(true).open(directory.path().join("output")).unwrap();
        shell.stdin(Stdio::piped()).stdout(log()).stderr(log()).current_dir(&directory);
        let shell = Mutex::new(shell.spawn().unwrap());
        let server = Server { kind, port, shell, directory };
        server.start_again();
        kind.set_up(port);
        server
    }

    pub(crate) fn url(&self) -> String {
        self.kind.url(self.port, "vol")
    }

    /// The names of all tables, functions, types or keys.
    pub(crate) fn everything(&self) -> BTreeSet<String> {
        self.kind.everything(self.port)
    }

    /// Client requests that the server has executed, which are the round trips. Excluded are those of the
    /// stream of changes and those that wait for the disk in the background.
    pub(crate) fn requests(&self) -> u64 {
        self.kind.requests(self.port)
    }

    /// Kills the server (SIGKILL). Unlike a power cut, this keeps what was handed to the kernel.
    pub(crate) fn kill(&self) {
        let processes = self.processes();
        for pid in &processes {
            // A process that ends with its parent may already be gone.
            let _ = kill_process(*pid, Signal::KILL);
        }
        let deadline = Instant::now() + START_TIMEOUT;
        while processes.iter().any(|pid| is_alive(*pid)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The process that the shell started, if it lives, and its children.
    fn processes(&self) -> Vec<Pid> {
        let shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner).id();
        let server = children(shell).into_iter().next();
        let of_server = server.map(|pid| children(pid.as_raw_nonzero().get() as u32)).unwrap_or_default();
        server.into_iter().chain(of_server).collect()
    }

    /// Starts the server again on its existing data.
    pub(crate) fn start_again(&self) {
        let mut shell = self.shell.lock().unwrap();
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        drop(shell);
        self.wait_until_up();
    }

    /// Stops (SIGSTOP) or continues the server. To clients, a stopped server is one that hangs.
    pub(crate) fn stop(&self, stop: bool) {
        let processes = self.processes();
        for pid in &processes {
            let _ = kill_process(*pid, if stop { Signal::STOP } else { Signal::CONT });
        }
        // The server may answer until all of its threads have stopped.
        while stop && !processes.iter().all(|pid| is_stopped(*pid)) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The server's standard output and error.
    fn output(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }

    fn wait_until_up(&self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.kind.is_up(self.port) {
            let hint = "does not start: is it installed (scripts/install-deps.sh test)?";
            assert!(Instant::now() < deadline, "{:?} {hint}\n{}", self.kind, self.output());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        // The shell exits at the end of its input.
        drop(shell.stdin.take());
        let _ = shell.wait();
    }
}

/// A free port outside of the range of ephemeral ports (`net.ipv4.ip_local_port_range` begins at 32,768).
/// While the server is down, a client with an ephemeral port could connect to itself, and keep the port.
fn free_port() -> u16 {
    let first = u16::try_from(std::process::id() % 10_000).unwrap() + 20_000;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..32_000).find(free).expect("no free port")
}

/// The children of a process that has one thread.
fn children(pid: u32) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// The state of a thread or process from its `stat` (proc(5)), where it follows the name in parentheses.
/// `None` if the thread or process is gone.
fn state(stat: &Path) -> Option<char> {
    let stat = fs::read_to_string(stat).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_alive(pid: Pid) -> bool {
    // A process that is not waited for stays as a zombie.
    state(Path::new(&format!("/proc/{}/stat", pid.as_raw_nonzero()))).is_some_and(|state| state != 'Z')
}

fn is_stopped(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.all(|task| state(&task.path().join("stat")).is_none_or(|state| "TZ".contains(state)))
}

/// Which traffic a [`Proxy`] holds back, in both directions. Connections stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Nothing = 0,
    /// The connections of the stream of changes.
    Stream = 1,
    Everything = 2,
}

/// A TCP proxy between a mount and its server.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    seen: Arc<Seen>,
}

/// What a proxy holds back, and counters of the stream of changes.
#[derive(Debug, Default)]
struct Seen {
    cut: AtomicU8,
    streams: AtomicU64,
    polls: AtomicU64,
}

/// A connection through a proxy.
#[derive(Debug, Default)]
struct Relayed {
    is_stream: AtomicBool,
    /// Whether the server was the last to send.
    is_answered: AtomicBool,
}

impl Proxy {
    pub(crate) fn to(server: &Server) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let (all, kind, server) = (Arc::clone(&seen), server.kind, server.port);
        // The thread, like those of its connections, ends with the test program.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                // Nagle's algorithm would delay messages that are sent in several pieces.
                for stream in [&client, &upstream] {
                    stream.set_nodelay(true).unwrap();
                }
                let connection = Arc::new(Relayed::default());
                for (from, to, marker) in [
                    (client.try_clone().unwrap(), upstream.try_clone().unwrap(), Some(kind.of_stream())),
                    (upstream, client, None),
                ] {
                    let (seen, connection) = (Arc::clone(&all), Arc::clone(&connection));
                    thread::spawn(move || relay(from, to, marker, &connection, &seen));
                }
            }
        });
        Proxy { port, seen }
    }

    pub(crate) fn cut(&self, cut: Cut) {
        self.seen.cut.store(cut as u8, Ordering::SeqCst);
    }

    /// How many streams of changes were started.
    pub(crate) fn streams(&self) -> u64 {
        self.seen.streams.load(Ordering::SeqCst)
    }

    /// How often the client has polled on a stream, each time after it received the previous answer. So when
    /// the client sends poll `n + 1`, it has applied what the server knew before poll `n`.
    pub(crate) fn polls(&self) -> u64 {
        self.seen.polls.load(Ordering::SeqCst)
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, marker: Option<&[u8]>, connection: &Relayed, seen: &Seen) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if marker.is_some_and(|marker| bytes[..len].windows(marker.len()).any(|part| part == marker))
            && !connection.is_stream.swap(true, Ordering::SeqCst)
        {
            seen.streams.fetch_add(1, Ordering::SeqCst);
        }
        let is_stream = connection.is_stream.load(Ordering::SeqCst);
        // The server sends, or the client sends for the first time after the server did.
        match marker {
            None => connection.is_answered.store(true, Ordering::SeqCst),
            Some(_) if connection.is_answered.swap(false, Ordering::SeqCst) && is_stream => {
                seen.polls.fetch_add(1, Ordering::SeqCst);
            }
            Some(_) => {}
        }
        loop {
            let cut = seen.cut.load(Ordering::SeqCst);
            let held = cut == Cut::Everything as u8 || cut == Cut::Stream as u8 && is_stream;
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
