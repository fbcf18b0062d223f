//! What a mount has done since it serves: requests of the kernel by opcode, requests to the metadata engine, CPU time.
//!
//! Each mount answers at a socket beside its entry in the registry, with one line of JSON for each connection, and
//! reads nothing from it. Only its user and root may connect. `limen bench` takes the difference of two answers.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::{AddAssign, Sub};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use chunk::{BlockStore, Pending};
use fuse::RequestCounts;
use meta::{Counting, Counts, Engine};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use types::{SessionId, Time};
use vfs::{Coherence, SearchCounts, SessionLoss, Vfs};

use crate::fault::Fault;
use crate::registry::Entry;

/// Who connects and then does not read, or does not write, is left after this.
const PATIENCE: Duration = Duration::from_secs(2);
/// An answer is some 1,500 bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// The counters of a mount that serves; reading them disturbs nobody.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) requests: Arc<RequestCounts>,
    pub(crate) engine: Arc<Counting<Arc<dyn Engine>>>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) vfs: Arc<Vfs>,
}

/// What the counters said at one moment, or what lay between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    /// By the kernel's name for them.
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) engine: Counts,
    pub(crate) cpu: Duration,
    /// What waits for its upload at the later of the two moments; `None` without write-back.
    pub(crate) pending: Option<Pending>,
    /// Bytes written by programs that are in no store yet, at the later of the two moments.
    pub(crate) unstored_bytes: u64,
    /// Lookups whose check was skipped, and made, where it is the mount's to make.
    pub(crate) searches: SearchCounts,
    /// How it keeps up with other mounts at the later of the two moments; `None` where it does not say.
    pub(crate) coherence: Option<Coherence>,
    /// That it lost its session, if it ever did.
    pub(crate) session_loss: Option<SessionLoss>,
}

/// The endpoint; dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Answers at the socket of `entry`, which is registered, from a thread of its own.
    ///
    /// # Errors
    /// The socket cannot be made, or the thread.
    pub(crate) fn start(entry: &Entry, counters: Counters) -> io::Result<Endpoint> {
        let path = entry.socket().ok_or(ErrorKind::NotFound)?;
        // What is there is of a mount that is gone, or else the entry would not be this one's.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let incoming = listener.try_clone()?;
        let thread = thread::Builder::new().name("limen-stats".into()).spawn(move || {
            // It fails when the endpoint is dropped, and only then.
            while let Ok((stream, _)) = incoming.accept() {
                if let Err(error) = answer(stream, &counters) {
                    tracing::debug!(%error, "the statistics were not taken");
                }
            }
        })?;
        Ok(Endpoint { listener, thread: Some(thread) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Wakes the thread from accept(2).
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic is in the log.
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
            searches: self.vfs.search_counts(),
            coherence: Some(self.vfs.coherence()),
            session_loss: self.vfs.session_loss(),
        }
    }
}

impl Statistics {
    /// Asks the mount that is registered as `entry`.
    ///
    /// # Errors
    /// It is an older limen's, another user's, or it does not answer.
    pub(crate) fn ask(entry: &Entry) -> Result<Statistics, Fault> {
        let fail = |what: String| {
            Fault::new(format!("the mount does not tell what it does: {what}")).at(entry.mountpoint.display())
        };
        let path = entry.socket().ok_or_else(|| fail("it has no socket".to_owned()))?;
        let text = fetch(&path).map_err(|error| fail(error.to_string()))?;
        let value = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
        Statistics::from_json(&value).ok_or_else(|| fail("its answer is not understood".to_owned()))
    }

    pub(crate) fn all_requests(&self) -> u64 {
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
            // A mount of an older limen does not say.
            unstored_bytes: value["unstored_bytes"].as_u64().unwrap_or(0),
            searches: SearchCounts {
                skipped: value["searches"]["skipped"].as_u64().unwrap_or(0),
                checked: value["searches"]["checked"].as_u64().unwrap_or(0),
            },
            coherence: value["coherence"].as_str().and_then(Coherence::from_name),
            session_loss: session_loss(&value["session_loss"]),
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
    }
}

/// The CPU time that this process has used, all its threads together.
pub(crate) fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What waits for its upload, if anything is staged at all.
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

fn answer(mut stream: UnixStream, counters: &Counters) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{}\n", counters.read().to_json()).as_bytes())
}

fn fetch(path: &Path) -> io::Result<String> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut text)?;
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
        }
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let mut said = statistics(7, 3, 99);
        assert_eq!(Statistics::from_json(&said.to_json()).as_ref(), Some(&said));
        said.session_loss = Some(SessionLoss { session: SessionId(3), at: Time::from_nanos(5), files: 2 });
        let error = Some("no answer".to_owned());
        for kind in [Coherence::Alone, Coherence::Told, Coherence::Asks] {
            said.coherence = Some(kind);
            assert_eq!(Statistics::from_json(&said.to_json()).as_ref(), Some(&said));
        }
        said.pending = Some(Pending { blocks: 2, bytes: 9, uploaded: 1, failures: 4, error });
        assert_eq!(Statistics::from_json(&said.to_json()), Some(said));
        assert_eq!(Statistics::from_json(&json!({"requests": {}})), None);
    }

    #[test]
    fn a_difference_has_only_what_happened() {
        let between = &statistics(7, 3, 99) - &statistics(5, 3, 90);
        assert_eq!(between.requests, [("LOOKUP".to_owned(), 2)].into());
        assert_eq!((between.engine.round_trips(), between.cpu), (0, Duration::from_nanos(9)));
        let mut sum = statistics(7, 3, 99);
        sum += &between;
        assert_eq!(sum, statistics(9, 3, 108));
    }

    #[test]
    fn cpu_time_goes_on() {
        let before = own_cpu();
        let sum: u64 = (0..5_000_000_u64).map(std::hint::black_box).sum();
        assert!(sum > 0 && own_cpu() > before);
    }
}
