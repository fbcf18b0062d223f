//! `limen mdtest`: the metadata benchmark, directly on the engine and the object store, without a mount.
//!
//! | module | what it holds |
//! |---|---|
//! | `tree` | the directories and files, and each operation on them |
//! | `load`, `histogram` | many threads, and their times |
//! | `phase` | one kind of operation on the whole tree, with its counters |
//! | `report` | the results as text and JSON |

mod histogram;
mod load;
mod phase;
mod report;
mod tree;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use acl::credential::Credentials;
use chunk::StoreOptions;
use rustix::process::{getegid, geteuid};
use types::{Caps, Cred, Ino};
use vfs::{Caller, Coherence, Identity, Kernel, SessionInfo, Vfs, VfsOptions};

use self::phase::{Counters, Sample};
use self::report::Report;
use self::tree::{Shape, Top, Tree, join};
use crate::args::{KeyArgs, parse_threads};
use crate::daemon;
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::marker::{self, Use};
use crate::mount::{lock, open, open_meta};
use crate::output;
use crate::process::host_name;
use crate::store::open_store;
use crate::units::parse_size;
use crate::url::{Database, MetaUrl};

/// How long to wait for the engine's stream of other clients' changes; then the benchmark begins without it.
const WATCH_TIMEOUT: Duration = Duration::from_secs(2);
/// The paths of deeper trees would be too long to open.
const MAX_DEPTH: i64 = 256;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The benchmark is one client with the caches of a mount, but without the kernel. A volume on SQLite must not be mounted at the
same time; a volume on a database server can have other clients.

Phases: mkdir creates DIRS directories in each directory, DEPTH levels deep; create creates FILES files in each directory,
DIR included, and writes and closes them; stat looks up each file by its name; readdirplus lists each directory with
attributes; rename renames each file within its directory; unlink and rmdir remove everything. The threads work on adjacent
files, so mostly in the same directories; with --spread in different directories. With --depth 0 all files are in one
directory.

Columns: operations per second of all threads; median and 99th percentile of the latency, with an error of up to 3 %; CPU
time of this process per operation; requests to the metadata engine per operation (reads, scans and commits); and round
trips per operation, which are fewer than requests if requests of several threads are sent to a server together. Syncs of
housekeeping are not counted. stat is mostly answered from the cache, as on a mount.

Examples:
  limen mdtest redis://127.0.0.1/1 /mdtest --threads 50
  limen mdtest mem:// / --depth 0 --files 100000
      a new volume in memory: measures the client alone
  limen mdtest sqlite:///var/lib/limen/home.db /mdtest --write 4K --json")]
pub(crate) struct MdtestArgs {
    /// Where the volume's metadata is, or mem:// for a new, empty volume in memory
    #[arg(value_name = "META-URL")]
    url: String,
    /// A directory of the volume, as a path from its root: if it does not exist, it is created and removed
    /// afterwards; otherwise it must be empty
    #[arg(value_name = "DIR")]
    dir: String,
    /// Levels of directories below DIR
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(0..=MAX_DEPTH), default_value = "2")]
    depth: u32,
    /// Directories in each directory
    #[arg(long, value_name = "N", default_value_t = 3)]
    dirs: u64,
    /// Files in each directory
    #[arg(long, value_name = "N", default_value_t = 100)]
    files: u64,
    /// Alternate between the files of all directories, instead of working on one directory after the other
    #[arg(long)]
    spread: bool,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    threads: usize,
    /// How many bytes to write to each file
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    write: u64,
    /// Keep the tree, and skip the phases unlink and rmdir
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    keys: KeyArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl MdtestArgs {
    fn shape(&self) -> Shape {
        Shape { depth: self.depth, dirs: self.dirs, files: self.files, spread: self.spread }
    }
}

pub(crate) fn run(args: &MdtestArgs) -> Result<(), Fault> {
    let levels = args.shape().levels()?;
    let url = MetaUrl::parse(&args.url)?;
    let interrupt = Interrupt::install()?;
    let database = open(&url)?;
    // Held until this process ends.
    let _lock = lock(&url, &database, false)?;
    let (engine, meta) = open_meta(&url, &database, false)?;
    let store = open_store(meta.volume(), &args.keys, StoreOptions::default())?;
    let wanted = Use { read_only: false, writeback: false };
    marker::admit(&meta, &store, wanted, &daemon::Report::foreground())?;
    let vfs = Arc::new(Vfs::new(Arc::new(meta), store, VfsOptions::default()));
    let sent = match &database {
        Database::Network(network) => {
            network.warnings.iter().for_each(output::note);
            Some(Arc::clone(&network.sent))
        }
        Database::Sqlite(_) | Database::Memory(_) => None,
    };
    let counters = Counters { asked: engine, sent };
    let samples = in_session(&vfs, &url, args, || work(&vfs, args, levels, &counters, &interrupt))?;
    Report { args, url: &url, database: &database, volume: vfs.meta().volume(), samples: &samples }.print()
}

/// Runs `work` in a session like that of a mount, with its housekeeping and its stream of other clients'
/// changes.
fn in_session<T>(
    vfs: &Arc<Vfs>,
    url: &MetaUrl,
    args: &MdtestArgs,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let broken = |what: &str, error: &dyn std::fmt::Display| Fault::new(format!("{what}: {error}")).at(url);
    let session = SessionInfo {
        host: host_name(),
        pid: std::process::id(),
        mountpoint: join("limen mdtest ", args.dir.trim_start_matches('/')),
    };
    vfs.begin(&session).map_err(|errno| broken("cannot begin the session", &errno))?;
    let started = vfs.start_housekeeping(session).and_then(|()| vfs.start_watching(Arc::new(NoKernel)));
    let done = started.as_ref().map_err(|error| broken("cannot start a thread", error)).and_then(|_| {
        wait_for_watch(vfs);
        work()
    });
    let ended = vfs.end().map_err(|errno| broken("cannot end the session", &errno));
    for thread in started.unwrap_or_default() {
        // The thread returns no result.
        let _ = thread.join();
    }
    let done = done?;
    ended.map(|()| done)
}

/// Waits until the stream of other clients' changes works, so that cached records are valid from the start.
fn wait_for_watch(vfs: &Vfs) {
    let begun = Instant::now();
    while vfs.coherence() == Coherence::Polling {
        if begun.elapsed() > WATCH_TIMEOUT {
            return output::note(
                "no notifications of other clients' changes: cached records are used for half a second only",
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Creates the tree, runs the phases, and removes the tree, also after a failure.
fn work(
    vfs: &Vfs,
    args: &MdtestArgs,
    levels: Vec<u64>,
    counters: &Counters,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, Fault> {
    // A user with access to the database can change everything, so no permission is checked.
    let cred = Cred::new(geteuid().as_raw(), getegid().as_raw(), &[], Caps::ALL);
    let credential = Credentials::new(1).intern(&cred, &[]);
    let caller = Caller::known(Identity { credential, caps: Caps::ALL });
    let top = Top::make(vfs, &caller, &args.dir)?;
    let tree = Tree::new(vfs, &caller, &top, args.shape(), levels, args.write);
    let samples = phase::all(&tree, args.threads, args.keep, counters, interrupt);
    if args.keep {
        return samples;
    }
    if samples.is_err()
        && let Err(fault) = phase::clear(&tree, args.threads)
    {
        output::note(format!("the tree is not removed completely: {fault}"));
        return samples;
    }
    let removed = top.remove(vfs, &caller);
    let samples = samples?;
    removed.map(|()| samples)
}

/// A kernel without caches.
#[derive(Debug)]
struct NoKernel;

impl Kernel for NoKernel {
    fn forget_attributes(&self, _: Ino) {}

    fn forget_content(&self, _: Ino) {}

    fn forget_range(&self, _: Ino, _: u64, _: u64) {}

    fn expire_name(&self, _: Ino, _: &[u8]) {}

    fn expire_all(&self) {}

    fn can_expire_all(&self) -> bool {
        true
    }
}
