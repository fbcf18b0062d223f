//! `limen mdtest`: the metadata benchmark, on the engine and the object store themselves, without a mount.
//!
//! | module | what it holds |
//! |---|---|
//! | `tree` | what is worked on, and each operation |
//! | `load`, `histogram` | many threads, timed |
//! | `phase` | one kind of operation on the whole tree, between two looks at the counters |
//! | `report` | for people, and for programs |

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

/// How long the engine may take to tell of other clients' changes before the benchmark begins without that.
const WATCH_PATIENCE: Duration = Duration::from_secs(2);
/// Deeper trees than this have paths that no program can open.
const MAX_DEPTH: i64 = 256;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It is one client with the caches of a mount and no kernel before it. On a volume of files on this machine it has to be
the only one, as a mount; a database server may have others.

Phases: mkdir makes DIRS directories in each directory, DEPTH levels deep; create makes FILES files in each directory,
DIR included, and writes and closes them; stat looks each up by its name; readdirplus lists each directory with the
attributes of what is in it; rename gives each file another name in its directory; unlink and rmdir remove all. All
threads work on neighbouring files at once, so mostly in the same directories, or with --spread in as many as there
are; --depth 0 is one directory for all.

The figures: operations a second over all threads; times that half and 99 % of them did not exceed, to 3 %; CPU time of
this process, an operation; requests an operation to the metadata engine, reads, scans and commits; and round trips,
which are fewer where a server is sent the requests of several threads at once. What housekeeping syncs is not counted.
stat is mostly answered from memory, as on a mount.

Examples:
  limen mdtest redis://127.0.0.1/1 /mdtest --threads 50
  limen mdtest mem:// / --depth 0 --files 100000
      a new volume in memory: what the client itself costs
  limen mdtest sqlite:///var/lib/limen/home.db /mdtest --write 4K --json")]
pub(crate) struct MdtestArgs {
    /// Where the volume's metadata is, or mem:// for a new, empty volume in memory
    #[arg(value_name = "META-URL")]
    url: String,
    /// A directory of the volume, as a path from its top: made and removed again, or else empty
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
    /// Work on files of all directories by turns, instead of one directory after the other
    #[arg(long)]
    spread: bool,
    /// Threads that work at once
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    threads: usize,
    /// How much is written into each file
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    write: u64,
    /// Leave the tree there, without the phases unlink and rmdir
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

/// Runs `work` in a session such as a mount has, with its housekeeping and its ear for other clients.
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
        wait_for_word(vfs);
        work()
    });
    let ended = vfs.end().map_err(|errno| broken("cannot end the session", &errno));
    for thread in started.unwrap_or_default() {
        // It has no result.
        let _ = thread.join();
    }
    let done = done?;
    ended.map(|()| done)
}

/// Waits until the engine tells what other clients change, so that what is remembered serves from the beginning.
fn wait_for_word(vfs: &Vfs) {
    let begun = Instant::now();
    while vfs.coherence() == Coherence::Asks {
        if begun.elapsed() > WATCH_PATIENCE {
            return output::note(
                "nothing is heard of other clients' changes: what is known serves half a second",
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Makes the tree, works on it, and removes it, also after a failure.
fn work(
    vfs: &Vfs,
    args: &MdtestArgs,
    levels: Vec<u64>,
    counters: &Counters,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, Fault> {
    // Whoever may use the database may do anything.
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
        output::note(format!("the tree is not all removed: {fault}"));
        return samples;
    }
    let removed = top.remove(vfs, &caller);
    let samples = samples?;
    removed.map(|()| samples)
}

/// Nothing is remembered but by the client itself.
#[derive(Debug)]
struct NoKernel;

impl Kernel for NoKernel {
    fn forget_attributes(&self, _: Ino) {}

    fn forget_content(&self, _: Ino) {}

    fn expire_name(&self, _: Ino, _: &[u8]) {}

    fn expire_all(&self) {}

    fn can_expire_all(&self) -> bool {
        true
    }
}
