//! `limen mdtest`: opens the volume to measure. The benchmark is in the crate `bench`.

use std::sync::Arc;

use bench::mdtest::{Counters, OpenVolume, Options};
use chunk::StoreOptions;
use command::error::CliError;
use command::interrupt::Interrupt;
use command::output;
use vfs::{Vfs, VfsOptions};

use crate::journals;
use crate::marker::{self, Use};
use crate::open::{lock, open, open_meta};
use crate::report::Report;
use crate::store::{KeyArgs, open_store};
use crate::url::{Database, MetaUrl};

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
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    keys: KeyArgs,
}

pub(crate) fn run(args: &MdtestArgs) -> Result<(), CliError> {
    // An error of the command line is reported before anything is opened.
    args.options.check()?;
    let url = MetaUrl::parse(&args.url)?;
    let interrupt = Interrupt::install()?;
    let database = open(&url)?;
    // The lock is held until this process ends.
    let _lock = lock(&url, &database, false)?;
    let (asked, meta) = open_meta(&url, &database, false)?;
    let store = open_store(meta.volume(), &args.keys, StoreOptions::default())?;
    let wanted = Use { read_only: false, writeback: false };
    marker::admit(&meta, &store, wanted, &Report::foreground())?;
    let journals = database.file().and_then(|file| journals::directory(Some(file)));
    let options = VfsOptions { journals, ..VfsOptions::default() };
    let vfs = Arc::new(Vfs::new(Arc::new(meta), store, options));
    let (server, sent) = match &database {
        Database::Network(network) => {
            network.warnings.iter().for_each(output::note);
            (Some(network.server.clone()), Some(Arc::clone(&network.sent)))
        }
        Database::Sqlite(_) | Database::Memory(_) => (None, None),
    };
    let counters = Counters { asked, sent };
    let volume = OpenVolume { vfs, url: url.to_string(), engine: url.engine(), server, counters };
    bench::mdtest::run(&volume, &args.options, &interrupt)
}
