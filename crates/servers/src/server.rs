//! A database server that tests start, kill, stop and start again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::kind::{Kind, START_TIMEOUT, ServerSettings, ask_http, redis_calls, unistore_counts};

/// A database server. It is killed and its directory is removed when this is dropped, or when this process
/// ends in any way.
///
/// A separate shell process starts it, because the test process may have files of a mount open. A child of
/// the test process would close these files before exec. That needs the mount to answer, and the mount may be
/// waiting for the server.
#[derive(Debug)]
pub struct Server {
    pub kind: Kind,
    pub port: u16,
    settings: ServerSettings,
    shell: Mutex<Child>,
    directory: PathBuf,
}

/// Runs a command in a directory once for each line that it reads, each time after the previous run has
/// ended. At the end of its input, kills the command and removes the directory. It tries that several times,
/// because children of the command may still write there for a moment. Signals that end the tests must not
/// end the shell.
const SHELL: &str = r#"trap '' HUP INT TERM
directory=$1; shift
while read -r _; do wait; "$@" </dev/null & done
kill -9 $! 2>/dev/null; wait
for _ in 1 2 3 4 5 6 7 8 9; do rm -rf "$directory" 2>/dev/null && break; sleep 0.3; done"#;

impl Server {
    pub fn start(kind: Kind, durable: bool) -> Server {
        Server::with(kind, ServerSettings { durable, ..ServerSettings::default() })
    }

    pub fn with(kind: Kind, settings: ServerSettings) -> Server {
        let port = settings.port.unwrap_or_else(free_port);
        let memory = PathBuf::from("/dev/shm");
        let parent = if settings.in_memory && memory.is_dir() { memory } else { std::env::temp_dir() };
        let directory = tempfile::Builder::new().prefix("limen-server.").tempdir_in(parent).unwrap().keep();
        // Servers that refuse to run as root need access to the directory.
        fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
        let output = || fs::File::options().create(true).append(true).open(directory.join("output")).unwrap();
        let command = kind.command(port, &directory, &settings);
        let mut shell = Command::new("sh");
        shell.args(["-c", SHELL, "sh"]).arg(&directory);
        shell.arg(command.get_program()).args(command.get_args());
        shell.stdin(Stdio::piped()).stdout(output()).stderr(output()).current_dir(&directory);
        let shell = Mutex::new(shell.spawn().unwrap());
        let server = Server { kind, port, settings, shell, directory };
        kind.prepare(&server.directory);
        server.start_again();
        kind.set_up(port);
        server
    }

    /// The server's working directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn url(&self) -> String {
        self.kind.url(self.port, "vol")
    }

    /// A URL with timeouts that even a busy machine does not exceed.
    pub fn url_with_long_timeouts(&self) -> String {
        self.kind.url_with_long_timeouts(self.port, "vol")
    }

    /// The names of all tables, functions, types or keys.
    pub fn everything(&self) -> BTreeSet<String> {
        self.kind.everything(self.port)
    }

    /// The number of client requests that the server has executed: the round trips. Requests of the stream of
    /// changes are left out, and so are those that wait for the disk in the background.
    pub fn requests(&self) -> u64 {
        self.kind.requests(self.port)
    }

    /// The number of calls of each command (Redis).
    pub fn calls_by_command(&self) -> BTreeMap<String, u64> {
        redis_calls(self.port)
    }

    /// The output of the server's own client for SQL statements: rows, with | between columns on PostgreSQL.
    pub fn sql(&self, sql: &str) -> String {
        self.kind.sql(self.port, sql)
    }

    /// The command that runs the server's own client for SQL.
    pub fn client(&self) -> Command {
        self.kind.client(self.port)
    }

    /// The number of calls of each method (TiKV).
    pub fn counts(&self) -> BTreeMap<String, u64> {
        unistore_counts(self.port)
    }

    /// The answer of the server to an HTTP request (etcd, TiKV).
    pub fn http(&self, request: &str) -> Option<String> {
        ask_http(self.port, request)
    }

    /// Kills the server (SIGKILL). Unlike a power cut, this keeps data that was handed to the kernel.
    pub fn kill(&self) {
        let processes = self.processes();
        for pid in &processes {
            // A process that ends with its parent may already be gone.
            let _ = kill_process(*pid, Signal::KILL);
        }
        let deadline = Instant::now() + START_TIMEOUT;
        while processes.iter().any(|pid| is_alive(*pid)) {
            assert!(Instant::now() < deadline, "{:?} survived SIGKILL", self.kind);
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
    pub fn start_again(&self) {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        drop(shell);
        self.wait_until_up();
    }

    /// Kills the server and starts it again on its existing data.
    pub fn restart(&self) {
        self.kill();
        self.start_again();
    }

    /// Stops (SIGSTOP) or continues the server. To clients, a stopped server is one that hangs.
    pub fn stop(&self, stop: bool) {
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
        fs::read_to_string(self.directory.join("output")).unwrap_or_default()
    }

    fn wait_until_up(&self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.kind.is_up(self.port, &self.settings) {
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

/// A free port that was not returned before, outside of the range of ephemeral ports
/// (`net.ipv4.ip_local_port_range` begins at 32,768). If the server's port were an ephemeral one, a client
/// that connects while the server is down could get the same port, connect to itself, and keep the port.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Test programs that run at the same time have neighbouring process ids. So each looks at its own ports
    // first.
    let first = u16::try_from(std::process::id() * 16 % 10_000).unwrap() + 20_000;
    let is_free = |port: &u16| !given.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (first..32_000).find(is_free).expect("no free port");
    given.insert(port);
    port
}

/// The children of a process that has one thread.
pub(crate) fn children(pid: u32) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// The state of a thread or process from its `stat` (proc(5)), where it follows the name in parentheses.
/// `None` if the thread or process is gone.
fn state(stat: &Path) -> Option<char> {
    let stat = fs::read_to_string(stat).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether any thread of the process lives. A process that is not waited for stays as a zombie. Its first
/// thread may be a zombie while other threads still hold the process's connections open.
fn is_alive(pid: Pid) -> bool {
    states(pid).any(|state| state != 'Z')
}

fn is_stopped(pid: Pid) -> bool {
    states(pid).all(|state| "TZ".contains(state))
}

/// The states of the threads of a process.
fn states(pid: Pid) -> impl Iterator<Item = char> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    tasks.into_iter().flatten().flatten().filter_map(|task| state(&task.path().join("stat")))
}
