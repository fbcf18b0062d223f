//! Profilers. While one is attached, it records which processes and users send which requests, and on which
//! inodes.
//!
//! Without a profiler, this costs one relaxed load for each request. With a profiler, each request takes two
//! locks, and the name of its process is read from proc(5) at the first request of each thread.
//!
//! Lock order: the list of profilers before the table of one profiler.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuse_proto::{Opcode, Operation, Request};
use types::Ino;

/// The largest number of rows of a profiler between two calls of [`Profiler::take`]. Requests that need a
/// further row count as [`Profiled::left_out`].
const MAX_ROWS: usize = 10_000;
/// The largest number of threads whose processes are kept.
const MAX_PROCESSES: usize = 10_000;
const MAX_PROFILERS: usize = 4;

/// The attached profilers of a mount.
#[derive(Debug, Default)]
pub struct Profile {
    attached: AtomicUsize,
    profilers: Mutex<Vec<Arc<Mutex<Table>>>>,
}

/// Records requests until it is dropped.
#[derive(Debug)]
pub struct Profiler {
    profile: Arc<Profile>,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    rows: HashMap<ProfileKey, Sums>,
    left_out: u64,
    processes: HashMap<u32, NamedProcess>,
}

/// The properties by which requests are summed up: one row for each key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProfileKey {
    pub opcode: Opcode,
    pub uid: u32,
    pub process: NamedProcess,
    /// The inode of the operation: the directory, if the operation names an entry of it.
    pub ino: Ino,
}

/// A process by id and name; id 0 is the kernel, or a process in another PID namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NamedProcess {
    pub pid: u32,
    /// The name that the process has set; it may contain any bytes.
    pub name: Arc<[u8]>,
}

/// The requests of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub count: u64,
    pub time: Duration,
    pub longest: Duration,
    /// The time that the requests waited for the engine; `store` is that for the object store.
    pub engine: Duration,
    pub store: Duration,
    /// The number of bytes that READs and WRITEs requested.
    pub bytes: u64,
}

/// The requests that were recorded since the previous call of [`Profiler::take`].
#[derive(Clone, Debug, Default)]
pub struct Profiled {
    pub rows: Vec<(ProfileKey, Sums)>,
    /// Requests that are in no row, because there are too many rows.
    pub left_out: u64,
}

impl Profile {
    /// Attaches a profiler. `None` if there are too many.
    pub fn attach(self: &Arc<Self>) -> Option<Profiler> {
        let mut profilers = lock(&self.profilers);
        if profilers.len() >= MAX_PROFILERS {
            return None;
        }
        let table = Arc::<Mutex<Table>>::default();
        profilers.push(Arc::clone(&table));
        self.attached.store(profilers.len(), Ordering::Relaxed);
        Some(Profiler { profile: Arc::clone(self), table })
    }

    /// Records a request that this thread has just handled in `time`. `ino` is the inode of the request.
    pub(crate) fn record(&self, request: &Request<'_>, ino: Ino, time: Duration) {
        if self.attached.load(Ordering::Relaxed) == 0 {
            return;
        }
        let header = &request.header;
        let waited = metrics::waited();
        let bytes = match &request.operation {
            Operation::Read(read) => u64::from(read.size_bytes),
            Operation::Write(write) => write.data.len() as u64,
            _ => 0,
        };
        for table in &*lock(&self.profilers) {
            let mut table = lock(table);
            let process = table.process(header.pid);
            let key = ProfileKey { opcode: header.opcode, uid: header.uid, process, ino };
            if table.rows.len() >= MAX_ROWS && !table.rows.contains_key(&key) {
                table.left_out += 1;
                continue;
            }
            let sums = table.rows.entry(key).or_default();
            sums.count += 1;
            sums.time += time;
            sums.longest = sums.longest.max(time);
            sums.engine += waited.engine;
            sums.store += waited.store;
            sums.bytes += bytes;
        }
    }
}

impl Profiler {
    /// Takes the rows that were recorded since the previous call.
    pub fn take(&self) -> Profiled {
        let mut table = lock(&self.table);
        let rows = std::mem::take(&mut table.rows).into_iter().collect();
        Profiled { rows, left_out: std::mem::take(&mut table.left_out) }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        let mut profilers = lock(&self.profile.profilers);
        profilers.retain(|table| !Arc::ptr_eq(table, &self.table));
        self.profile.attached.store(profilers.len(), Ordering::Relaxed);
    }
}

impl Table {
    /// The process of a thread.
    fn process(&mut self, thread: u32) -> NamedProcess {
        if let Some(process) = self.processes.get(&thread) {
            return process.clone();
        }
        if self.processes.len() >= MAX_PROCESSES {
            self.processes.clear();
        }
        let process = find_process(thread).unwrap_or(NamedProcess { pid: thread, name: Arc::default() });
        self.processes.insert(thread, process.clone());
        process
    }
}

/// The process of a thread, read from `status` in proc(5); `None` if the thread has ended.
fn find_process(thread: u32) -> Option<NamedProcess> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let field = |label: &[u8]| {
        status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(label)).map(<[u8]>::trim_ascii)
    };
    let pid: u32 = str::from_utf8(field(b"Tgid:")?).ok()?.parse().ok()?;
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(NamedProcess { pid, name: name.strip_suffix(b"\n").unwrap_or(&name).into() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
