//! `limen mdtest`: its command line, and the volume to measure. The benchmark is in the crate `bench`.

use std::sync::Arc;

use bench::mdtest::{Counters, OpenVolume, Options, Shape};
use chunk::StoreOptions;
use command::fault::Fault;
use command::interrupt::Interrupt;
use command::output;
use command::units::parse_size;
use vfs::{Vfs, VfsOptions};

use crate::marker::{self, Use};
use crate::open::{lock, open, open_meta};
use crate::parse::parse_threads;
use crate::report::Report;
use crate::store::{KeyArgs, open_store};
use crate::url::{Database, MetaUrl};

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
    fn options(&self) -> Options {
        let Self { depth, dirs, files, spread, .. } = *self;
        Options {
            dir: self.dir.clone(),
            shape: Shape { depth, dirs, files, spread },
            threads: self.threads,
            write_bytes: self.write,
            keep: self.keep,
            json: self.json,
        }
    }
}

pub(crate) fn run(args: &MdtestArgs) -> Result<(), Fault> {
    let options = args.options();
    // An error of the command line is reported before anything is opened.
    options.shape.levels()?;
    let url = MetaUrl::parse(&args.url)?;
    let interrupt = Interrupt::install()?;
    let database = open(&url)?;
    // Held until this process ends.
    let _lock = lock(&url, &database, false)?;
    let (asked, meta) = open_meta(&url, &database, false)?;
    let store = open_store(meta.volume(), &args.keys, StoreOptions::default())?;
    let wanted = Use { read_only: false, writeback: false };
    marker::admit(&meta, &store, wanted, &Report::foreground())?;
    let vfs = Arc::new(Vfs::new(Arc::new(meta), store, VfsOptions::default()));
    let (server, sent) = match &database {
        Database::Network(network) => {
            network.warnings.iter().for_each(output::note);
            (Some(network.server.clone()), Some(Arc::clone(&network.sent)))
        }
        Database::Sqlite(_) | Database::Memory(_) => (None, None),
    };
    let counters = Counters { asked, sent };
    let volume = OpenVolume { vfs, url: url.to_string(), engine: url.engine(), server, counters };
    bench::mdtest::run(&volume, &options, &interrupt)
}
