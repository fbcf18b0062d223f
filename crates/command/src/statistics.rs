//! Statistics of a mount since it started: kernel requests by opcode, requests to the metadata engine, CPU
//! time.
//!
//! Each mount listens on a socket next to its registry entry. From each connection it reads one line that
//! names the request, and answers:
//!
//! | request | answer |
//! |---|---|
//! | `statistics` | one line of JSON |
//! | `metrics` | the Prometheus text |
//! | `profile` | a line of JSON each second, until the client closes the connection |
//! | `clone`, `quota` | see the modules `clone` and `quotas` |
//! | `compact`, `cached`, `evict` | see the module `file_requests` |
//! | `commit` | an empty line when all answered changes are committed; no answer if that fails |
//! | `hand-over` | the answer of the mount's [`OnHandOver`] |
//!
//! Only the mount's user and root can connect. `limen bench` uses the difference of two statistics.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::ops::{AddAssign, Sub};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use chunk::Pending;
use meta::Counts;
use metrics::Samples;
use serde_json::{Value, json};
use types::{SessionId, Time};
use vfs::{Coherence, SearchCounts, SessionLoss, Vfs};

use crate::clone;
use crate::counters::Counters;
use crate::error::{CliError, ErrorAt};
use crate::exported;
use crate::file_requests::{self, FileRequest};
pub use crate::process::own_cpu;
use crate::profile;
use crate::quotas;
use crate::registry::{Entry, TIMEOUT};
use crate::running::Running;

const UNANSWERED: &str = "cannot get the mount's statistics";
const UNKNOWN: &str = "its answer has an unknown format";

/// Timeout of the wait for a profiler's line. The mount sends a line each second.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for the request. A client of an older version sends none, and gets the statistics. Other
/// clients wait meanwhile; only this user and root can connect.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The statistics have about 1,500 bytes, the metrics up to 200,000.
const MAX_ANSWER_BYTES: u64 = 4 << 20;
const MAX_REQUEST_BYTES: u64 = 1024;
/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of commands that wait for a commit at the same time.
const MAX_COMMITS: usize = 64;
const RING: &str = "ring";

/// The counters at one moment, or the difference between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests by the kernel's name of the opcode.
    pub requests: BTreeMap<String, u64>,
    pub engine: Counts,
    pub cpu: Duration,
    /// Blocks that wait for upload at the later moment; `None` without write-back.
    pub pending: Option<Pending>,
    /// Bytes that programs have written and that are not stored yet, at the later moment.
    pub unstored_bytes: u64,
    /// Lookups for which the mount itself checks the search permission: how many checks it skipped and made.
    pub searches: SearchCounts,
    /// How the mount stays coherent with other mounts at the later moment; `None` if the mount does not
    /// report it.
    pub coherence: Option<Coherence>,
    /// The last time that the mount lost its session; `None` if it never did.
    pub session_loss: Option<SessionLoss>,
    /// Whether requests come through io_uring, not `/dev/fuse`; `None` if the mount does not report it.
    pub uses_ring: Option<bool>,
    /// The address at which the mount serves its metrics over HTTP.
    pub metrics: Option<SocketAddr>,
}

/// The function that is called with the connection of a process that wants to take the mount over. The
/// function must check the user of that process.
pub type OnHandOver = dyn Fn(UnixStream) + Send + Sync;

/// The request for which a mount calls its [`OnHandOver`].
pub const HAND_OVER: &str = "hand-over";
const COMMIT: &str = "commit";

/// The listening socket and its thread. Dropping it ends both.
#[derive(Debug)]
pub struct Endpoint {
    listener: UnixListener,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts a thread that answers at the socket of `entry`, which must be registered.
    ///
    /// # Errors
    /// The socket or the thread cannot be created.
    pub fn start(entry: &Entry, counters: Counters, hand_over: Arc<OnHandOver>) -> io::Result<Endpoint> {
        let path = entry.socket().ok_or(ErrorKind::NotFound)?;
        // This mount has the entry, so a socket that exists here was left by a dead mount.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let incoming = listener.try_clone()?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        let thread = thread::Builder::new().name("limen-stats".into()).spawn(move || {
            while !ending.load(Ordering::Acquire) {
                match incoming.accept() {
                    Ok((stream, _)) => {
                        if let Err(error) = answer(stream, &counters, &hand_over) {
                            tracing::debug!(%error, "cannot send the statistics");
                        }
                    }
                    // This process has too many open files, for example.
                    Err(error) if !ending.load(Ordering::Acquire) => {
                        tracing::debug!(%error, "cannot accept a connection of another command");
                        thread::sleep(PAUSE);
                    }
                    Err(_) => {}
                }
            }
        })?;
        Ok(Endpoint { listener, is_ending, thread: Some(thread) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        // Wakes the thread from accept(2).
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // If the thread panicked, the panic is in the log.
            let _ = thread.join();
        }
    }
}

impl Counters {
    fn read(&self) -> Statistics {
        Statistics {
            requests: self.requests.seen().collect(),
            engine: self.engine.counts(),
            cpu: own_cpu(),
            pending: self.store.pending(),
            unstored_bytes: self.vfs.unstored_bytes(),
            searches: self.vfs.access.search_counts(),
            coherence: Some(self.vfs.caches.coherence()),
            session_loss: self.vfs.session_loss(),
            uses_ring: Some(self.uses_ring),
            metrics: self.metrics,
        }
    }
}

/// Queries the mount that is registered as `entry` for its metrics.
///
/// # Errors
/// As for [`Statistics::query`].
pub fn query_metrics(entry: &Entry) -> Result<Samples, CliError> {
    let query = || Samples::parse(&fetch(entry, "metrics")?).ok_or(CliError::new(UNKNOWN));
    query().what(UNANSWERED).at(entry.mountpoint.display())
}

/// The answer of the mount that is registered as `entry` to one of the requests `statistics` and `metrics`,
/// as text.
///
/// # Errors
/// The mount has no socket, belongs to another user, or does not answer.
pub fn query_text(entry: &Entry, request: &str) -> Result<String, CliError> {
    fetch(entry, request).what(UNANSWERED).at(entry.mountpoint.display())
}

/// Makes the mount that is registered as `entry` commit the changes of directories that it holds, and waits
/// for at most two seconds. Data of open files is not stored. If the mount does not commit, for example
/// because it has an older version, the caller sees only what was committed before.
pub fn commit_answered(entry: &Entry) {
    let mut answer = fetch(entry, COMMIT);
    if answer.as_ref().is_ok_and(|answer| answer.starts_with('{')) {
        // The mount did not wait long enough for the request, or has an older version.
        answer = fetch(entry, COMMIT);
    }
    if answer.as_deref().ok() != Some("\n") {
        tracing::debug!(?answer, mountpoint = %entry.mountpoint.display(), "the mount has not committed what it has answered");
    }
}

impl Statistics {
    /// Queries the mount that is registered as `entry`.
    ///
    /// # Errors
    /// The mount has no socket, belongs to another user, does not answer, or answers in another format.
    pub fn query(entry: &Entry) -> Result<Statistics, CliError> {
        let query = || {
            let value = serde_json::from_str(&fetch(entry, "statistics")?)?;
            Statistics::from_json(&value).ok_or(CliError::new(UNKNOWN))
        };
        query().what(UNANSWERED).at(entry.mountpoint.display())
    }

    /// The transport of requests by its name in `-o transport`.
    pub fn transport(&self) -> Option<&'static str> {
        self.uses_ring.map(|ring| if ring { RING } else { "dev" })
    }

    pub fn all_requests(&self) -> u64 {
        self.requests.values().sum()
    }

    fn to_json(&self) -> Value {
        json!({
            "requests": self.requests,
            "engine": {
                "reads": self.engine.reads,
                "commits": self.engine.commits,
                "scans": self.engine.scans,
                "syncs": self.engine.syncs,
                "transactions": self.engine.txns,
            },
            "searches": { "skipped": self.searches.skipped, "checked": self.searches.checked },
            "cpu_ns": self.cpu.as_nanos() as u64,
            "writeback": self.pending.as_ref().map(|pending| json!({
                "blocks": pending.blocks,
                "bytes": pending.bytes,
                "uploaded": pending.uploaded,
                "failures": pending.failures,
                "error": pending.error,
            })),
            "unstored_bytes": self.unstored_bytes,
            "coherence": self.coherence.map(Coherence::name),
            "session_loss": self.session_loss.map(|loss| json!({
                "session": loss.session.0,
                "at_ns": loss.at.nanos(),
                "files": loss.files,
            })),
            "transport": self.transport(),
            "metrics": self.metrics.map(|address| address.to_string()),
        })
    }

    fn from_json(value: &Value) -> Option<Statistics> {
        let requests = value["requests"].as_object()?.iter();
        let requests = requests.map(|(name, count)| Some((name.clone(), count.as_u64()?)));
        let engine = &value["engine"];
        Some(Statistics {
            requests: requests.collect::<Option<_>>()?,
            engine: Counts {
                reads: engine["reads"].as_u64()?,
                commits: engine["commits"].as_u64()?,
                scans: engine["scans"].as_u64()?,
                syncs: engine["syncs"].as_u64()?,
                txns: engine["transactions"].as_u64()?,
            },
            cpu: Duration::from_nanos(value["cpu_ns"].as_u64()?),
            pending: pending(&value["writeback"]),
            // A mount by an older version of limen does not report this number.
            unstored_bytes: value["unstored_bytes"].as_u64().unwrap_or(0),
            searches: SearchCounts {
                skipped: value["searches"]["skipped"].as_u64().unwrap_or(0),
                checked: value["searches"]["checked"].as_u64().unwrap_or(0),
            },
            coherence: value["coherence"].as_str().and_then(Coherence::from_name),
            session_loss: session_loss(&value["session_loss"]),
            uses_ring: value["transport"].as_str().map(|transport| transport == RING),
            metrics: value["metrics"].as_str().and_then(|address| address.parse().ok()),
        })
    }
}

impl Sub for &Statistics {
    type Output = Statistics;

    fn sub(self, earlier: &Statistics) -> Statistics {
        let since = |(name, count): (&String, &u64)| {
            let count = count - earlier.requests.get(name).unwrap_or(&0).min(count);
            (count > 0).then(|| (name.clone(), count))
        };
        Statistics {
            requests: self.requests.iter().filter_map(since).collect(),
            engine: self.engine - earlier.engine,
            cpu: self.cpu.saturating_sub(earlier.cpu),
            pending: self.pending.clone(),
            unstored_bytes: self.unstored_bytes,
            searches: SearchCounts {
                skipped: self.searches.skipped.saturating_sub(earlier.searches.skipped),
                checked: self.searches.checked.saturating_sub(earlier.searches.checked),
            },
            coherence: self.coherence,
            session_loss: self.session_loss,
            uses_ring: self.uses_ring,
            metrics: self.metrics,
        }
    }
}

impl AddAssign<&Statistics> for Statistics {
    fn add_assign(&mut self, more: &Statistics) {
        for (name, count) in &more.requests {
            *self.requests.entry(name.clone()).or_default() += count;
        }
        self.engine.reads += more.engine.reads;
        self.engine.commits += more.engine.commits;
        self.engine.scans += more.engine.scans;
        self.engine.syncs += more.engine.syncs;
        self.engine.txns += more.engine.txns;
        self.cpu += more.cpu;
        self.pending.clone_from(&more.pending);
        self.unstored_bytes = more.unstored_bytes;
        self.searches.skipped += more.searches.skipped;
        self.searches.checked += more.searches.checked;
        self.coherence = more.coherence;
        self.session_loss = more.session_loss;
        self.uses_ring = more.uses_ring;
        self.metrics = more.metrics;
    }
}

/// Blocks that wait for upload; `None` without write-back.
fn pending(value: &Value) -> Option<Pending> {
    Some(Pending {
        blocks: value["blocks"].as_u64()?,
        bytes: value["bytes"].as_u64()?,
        uploaded: value["uploaded"].as_u64()?,
        failures: value["failures"].as_u64()?,
        error: value["error"].as_str().map(str::to_owned),
    })
}

fn session_loss(value: &Value) -> Option<SessionLoss> {
    Some(SessionLoss {
        session: SessionId(value["session"].as_u64()?),
        at: Time::from_nanos(value["at_ns"].as_i64()?),
        files: value["files"].as_u64()?,
    })
}

fn answer(mut stream: UnixStream, counters: &Counters, hand_over: &Arc<OnHandOver>) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = String::new();
    // If the client sends no request, reading fails.
    let _ = BufReader::new(&stream).take(MAX_REQUEST_BYTES).read_line(&mut request);
    if let Some(request) = request.strip_prefix(clone::REQUEST) {
        return clone::start(stream, request, &counters.vfs);
    }
    if let Some(request) = request.strip_prefix(quotas::REQUEST) {
        return quotas::start(stream, request, &counters.vfs);
    }
    if let Some(request) = FileRequest::from_line(request.trim_end()) {
        return file_requests::start(stream, request, &counters.vfs);
    }
    let answer = match request.trim_end() {
        "profile" => return start_profile(stream, counters),
        "metrics" => exported::text(counters),
        COMMIT => return start_commit(stream, &counters.vfs),
        HAND_OVER => {
            let hand_over = Arc::clone(hand_over);
            let work = move || hand_over(stream);
            return thread::Builder::new().name("limen-hand-over".into()).spawn(work).map(drop);
        }
        _ => format!("{}\n", counters.read().to_json()),
    };
    stream.write_all(answer.as_bytes())
}

/// Starts a thread that commits what the mount has answered. If too many do so, closes the connection.
fn start_commit(mut stream: UnixStream, vfs: &Arc<Vfs>) -> io::Result<()> {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    // Keep a weak reference, because the thread must not keep the mount's parts from being dropped.
    let vfs = Arc::downgrade(vfs);
    let work = move || {
        let (Some(_running), Some(vfs)) = (Running::begin(&RUNNING, MAX_COMMITS), vfs.upgrade()) else {
            return;
        };
        let done = vfs.meta().settle_held().map_err(|failure| failure.to_string());
        let sent = done.and_then(|()| stream.write_all(b"\n").map_err(|error| error.to_string()));
        if let Err(error) = sent {
            tracing::debug!(error, "cannot commit what is answered for another command");
        }
    };
    thread::Builder::new().name("limen-settle".into()).spawn(work).map(drop)
}

/// Serves a profiler on a thread of its own. If there are too many, closes the connection.
fn start_profile(stream: UnixStream, counters: &Counters) -> io::Result<()> {
    let Some(profiler) = counters.profile.attach() else { return Ok(()) };
    // Keep a weak reference, because the thread must not keep the mount's parts from being dropped.
    let vfs = Arc::downgrade(&counters.vfs);
    let work = move || {
        if let Err(error) = profile::serve(stream, &profiler, &vfs) {
            tracing::debug!(%error, "the profiler has ended");
        }
    };
    thread::Builder::new().name("limen-profile".into()).spawn(work).map(drop)
}

/// Attaches a profiler to the mount that is registered as `entry`.
///
/// # Errors
/// As for [`Statistics::query`]; too many profilers are attached.
pub fn profile(entry: &Entry) -> Result<ProfileLines, CliError> {
    let attach = || {
        let stream = entry.connect("profile")?;
        stream.set_read_timeout(Some(LINE_TIMEOUT))?;
        let mut lines = ProfileLines { reader: BufReader::new(stream), mountpoint: entry.mountpoint.clone() };
        lines.read().advise("at most 4 profilers can be attached to a mount")?;
        Ok::<_, CliError>(lines)
    };
    attach().what(UNANSWERED).at(entry.mountpoint.display())
}

/// The lines of a profiler.
#[derive(Debug)]
pub struct ProfileLines {
    reader: BufReader<UnixStream>,
    mountpoint: PathBuf,
}

impl ProfileLines {
    /// Waits for the next line, which describes the requests since the line before.
    ///
    /// # Errors
    /// The mount has ended, or does not answer.
    pub fn next_line(&mut self) -> Result<Value, CliError> {
        self.read().what(UNANSWERED).at(self.mountpoint.display())
    }

    fn read(&mut self) -> Result<Value, CliError> {
        let mut line = String::new();
        match (&mut self.reader).take(MAX_ANSWER_BYTES).read_line(&mut line)? {
            0 => Err(CliError::new("it has closed the connection")),
            _ => Ok(serde_json::from_str(&line)?),
        }
    }
}

fn fetch(entry: &Entry, request: &str) -> Result<String, CliError> {
    let mut text = String::new();
    entry.connect(request)?.take(MAX_ANSWER_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(lookups: u64, reads: u64, cpu_ns: u64) -> Statistics {
        Statistics {
            requests: [("LOOKUP".to_owned(), lookups), ("INIT".to_owned(), 1)].into(),
            engine: Counts { reads, ..Counts::default() },
            cpu: Duration::from_nanos(cpu_ns),
            pending: None,
            unstored_bytes: 0,
            searches: SearchCounts { skipped: lookups, checked: 1 },
            coherence: None,
            session_loss: None,
            uses_ring: Some(true),
            metrics: None,
        }
    }

    #[test]
    fn answer_survives_writing_and_reading() {
        let mut said = statistics(7, 3, 99);
        assert_eq!(Statistics::from_json(&said.to_json()).as_ref(), Some(&said));
        said.metrics = "127.0.0.1:9860".parse().ok();
        said.uses_ring = Some(false);
        said.session_loss = Some(SessionLoss { session: SessionId(3), at: Time::from_nanos(5), files: 2 });
        let error = Some("no answer".to_owned());
        for kind in [Coherence::Exclusive, Coherence::Notified, Coherence::Polling] {
            said.coherence = Some(kind);
            assert_eq!(Statistics::from_json(&said.to_json()).as_ref(), Some(&said));
        }
        said.pending = Some(Pending { blocks: 2, bytes: 9, uploaded: 1, failures: 4, error });
        assert_eq!(Statistics::from_json(&said.to_json()), Some(said));
        assert_eq!(Statistics::from_json(&json!({"requests": {}})), None);
    }

    #[test]
    fn difference_has_only_what_happened_between() {
        let between = &statistics(7, 3, 99) - &statistics(5, 3, 90);
        assert_eq!(between.requests, [("LOOKUP".to_owned(), 2)].into());
        assert_eq!((between.engine.round_trips(), between.cpu), (0, Duration::from_nanos(9)));
        let mut sum = statistics(7, 3, 99);
        sum += &between;
        assert_eq!(sum, statistics(9, 3, 108));
    }
}
