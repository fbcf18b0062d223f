//! `limen load`: creates a volume from a dump.

use std::env;
use std::fs::File;
use std::io::{self, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backup::Manifest;
use chunk::{BackupId, BlockStore};
use clap::ValueHint;
use command::error::CliError;
use command::output;
use dump::{CheckedDump, DumpError, Live, Reader};
use meta::{Engine, Volume, VolumeError};

use crate::dump::STANDARD;
use crate::format::new_uuid;
use crate::url::{self, Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The database must not hold a volume. The dump is checked as a whole before anything is stored. If a load is interrupted, the
same command goes on where it ended; until it is complete, nothing can be mounted there.

The objects stay where they are, and only one database may use them. So the loaded volume cannot be mounted at first: if no
mount uses the database that the dump was made from, run limen config --adopt-store META-URL. From then on, the other database
cannot be mounted or change the objects any more; limen destroy --keep-objects removes it.

Examples:
  limen load postgres://limen@db.example.org/limen home.dump
  limen load --verify sqlite:///var/lib/limen/home.db home.dump
      also reads everything back; if the dump was loaded there before, it only does that")]
pub(crate) struct LoadArgs {
    /// Where to store the metadata: a database without a volume
    #[arg(value_name = "META-URL")]
    url: String,
    /// The dump [default: standard input]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Read all records back, and compare them with the dump; the volume must not have been mounted since
    #[arg(long)]
    verify: bool,
    /// Remove what an interrupted load has stored; objects are not touched
    #[arg(long, conflicts_with_all = ["verify", "file"])]
    discard: bool,
}

pub(crate) fn run(args: &LoadArgs) -> Result<(), CliError> {
    let url = MetaUrl::parse(&args.url)?;
    if let MetaUrl::Memory(_) = url {
        return Err(CliError::usage("a volume in memory exists only within its mount").at(&url));
    }
    if args.discard {
        return discard(&url);
    }
    let input = Input::new(args.file.as_deref())?;
    let (_, checked) = load(&url, &input, args.verify, |_| Ok(()))?;
    let (name, inodes) = (&checked.volume.name, checked.tail.inodes);
    output::print(&format!(
        "Loaded volume '{name}': {inodes} inodes in {url}.\n\
         Its objects still belong to the database that the dump was made from. When no mount uses that any more:\n\
         limen config --adopt-store {url}\n"
    ))
}

/// Checks a dump, and stores it at `url`, where there must be no volume. Goes on where an earlier load of the
/// same dump ended. `accept` is called after the check, before anything is stored.
///
/// # Errors
/// Those of the dump, of the database and of `accept`.
pub(crate) fn load(
    url: &MetaUrl,
    input: &Input,
    verify: bool,
    accept: impl FnOnce(&mut CheckedDump) -> Result<(), CliError>,
) -> Result<(Database, CheckedDump), CliError> {
    let failed = |error: DumpError| load_error(error, url, input);
    let bar = output::progress("inodes checked");
    let checked = input.open().and_then(|dump| dump::check(dump, &mut |inodes| bar.set_position(inodes)));
    bar.finish_and_clear();
    let mut checked = checked.map_err(failed)?;
    accept(&mut checked)?;
    let database = url.open(true)?;
    let engine = database.engine();
    let inodes = checked.tail.inodes;
    let name = &checked.volume.name;
    let before = Volume::load(&*engine).ok();
    if before.is_some_and(|volume| checked.is_loaded_as(&volume)) {
        output::note(format!("this dump of volume '{name}' was loaded here before"));
    } else {
        let bar = output::progress_of("inodes", inodes);
        let loaded = input.open().and_then(|dump| store(&*engine, &checked, dump, &bar));
        bar.finish_and_clear();
        loaded.map_err(failed)?;
    }
    if verify {
        let bar = output::progress_of("compared", inodes);
        let same = input.open().and_then(|mut dump| {
            let mut stored = Live(database.engine());
            dump::compare(&checked, &mut dump, &mut stored, &mut |inodes| bar.set_position(inodes))
        });
        bar.finish_and_clear();
        same.map_err(failed)?;
        output::note("the volume agrees with the dump");
    }
    Ok((database, checked))
}

fn store(
    engine: &dyn Engine,
    checked: &CheckedDump,
    dump: Reader,
    bar: &output::ProgressBar,
) -> Result<(), DumpError> {
    let random = new_uuid().map_err(|error| io::Error::other(error.to_string()))?;
    dump::load(engine, checked, dump, &random, &mut |inodes| bar.set_position(inodes))
}

/// Removes what an interrupted load has stored.
fn discard(url: &MetaUrl) -> Result<(), CliError> {
    let database = url.open(false)?;
    let engine = database.engine();
    match Volume::load(&*engine) {
        Err(VolumeError::Loading) => {}
        Ok(volume) => {
            return Err(CliError::new(format!("volume '{}' is complete", volume.name)).at(url).advise(
                "remove it with limen destroy, with --keep-objects if another database uses its objects",
            ));
        }
        Err(error) => return Err(url.volume_error(error)),
    }
    dump::discard(&*engine)
        .map_err(|error| CliError::new(error).at(url).advise("run limen load --discard again"))?;
    drop(engine);
    drop(database);
    if let MetaUrl::Sqlite(path) = url {
        url::remove_database(path)?;
    }
    output::print("Removed the loaded records.\n")
}

/// A dump that is read several times.
#[derive(Debug)]
pub(crate) enum Input {
    Path(PathBuf),
    /// A copy of standard input.
    Copy(File),
    /// A backup in an object store.
    Backup(Arc<BlockStore>, BackupId, Manifest),
}

impl Input {
    fn new(path: Option<&Path>) -> Result<Input, CliError> {
        match path.filter(|path| *path != Path::new(STANDARD)) {
            Some(path) => Ok(Input::Path(path.to_owned())),
            None => copy().map(Input::Copy).map_err(|error| {
                CliError::new(format!("cannot keep a copy of standard input: {error}"))
                    .at(env::temp_dir().display())
                    .advise("write the dump to a file first, and name it")
            }),
        }
    }

    fn open(&self) -> Result<Reader, DumpError> {
        let file = match self {
            Input::Path(path) => File::open(path)?,
            Input::Copy(file) => {
                let mut file = file.try_clone()?;
                file.rewind()?;
                file
            }
            Input::Backup(store, backup, manifest) => return backup::open(store, *backup, manifest),
        };
        Reader::open(Box::new(BufReader::with_capacity(1 << 20, file)))
    }
}

/// Copies standard input to a file without a name.
fn copy() -> io::Result<File> {
    let mut file = dump::scratch()?;
    io::copy(&mut io::stdin().lock(), &mut file)?;
    Ok(file)
}

fn load_error(error: DumpError, url: &MetaUrl, input: &Input) -> CliError {
    let failed = CliError::new(&error);
    let is_empty = match input {
        Input::Path(path) => path.metadata().is_ok_and(|metadata| metadata.len() == 0),
        Input::Copy(file) => file.metadata().is_ok_and(|metadata| metadata.len() == 0),
        Input::Backup(..) => false,
    };
    let input = match input {
        Input::Path(path) => path.display().to_string(),
        Input::Copy(_) => "standard input".to_owned(),
        Input::Backup(_, backup, _) => format!("backup {}", backup.0),
    };
    match error {
        DumpError::Newer { .. } => failed.at(input).advise("use that version of limen; nothing was changed"),
        DumpError::CutOff { line: 0 } if is_empty => CliError::new("the file is empty, so it is not a dump")
            .at(input)
            .advise("name a file that limen dump wrote"),
        DumpError::NotADump => failed.at(input).advise("name a file that limen dump wrote"),
        DumpError::CutOff { .. } | DumpError::Damaged { .. } => {
            failed.at(input).advise("copy the dump again, or load another one; nothing was changed")
        }
        DumpError::DamagedManifest { .. } => failed.advise("load another backup; nothing was changed"),
        DumpError::Io(error) => CliError::new(format!("cannot read the dump: {error}")).at(input),
        DumpError::NotEmpty => {
            failed.at(url).advise("name an empty database, or another table_prefix; nothing was changed")
        }
        DumpError::OtherDump => failed.at(url).advise(format!(
            "load that one to the end, or remove what it stored with limen load --discard {url}; nothing was changed"
        )),
        DumpError::Discarded => {
            failed.at(url).advise(format!("run limen load --discard {url} again; nothing was changed"))
        }
        DumpError::OtherProcess => failed.at(url).advise("wait until it is done"),
        DumpError::Differs(_) => failed
            .at(url)
            .advise("if the volume was mounted since the load, that can be the reason; otherwise load the dump again"),
        DumpError::NotLoading | DumpError::Copying | DumpError::TooFast | DumpError::BusyFile { .. } | DumpError::Stopped => failed,
        DumpError::Engine(_) => failed.at(url).advise("run the command again: it goes on where it ended"),
    }
}
