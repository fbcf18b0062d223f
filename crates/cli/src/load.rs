//! `limen load`: creates a volume from a dump.

use std::env;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backup::Manifest;
use chunk::{BackupId, BlockStore};
use clap::ValueHint;
use command::error::CliError;
use command::output;
use dump::{CheckedDump, DumpError, Live, Reader};
use meta::{Engine, Volume, VolumeError};
use types::counted;

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
        "Loaded volume '{name}': {} in {url}.\n\
         Its objects still belong to the database that the dump was made from. When no mount uses that any more:\n\
         limen config --adopt-store {url}\n",
        counted(inodes, "inode", "inodes")
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
    let failed = |stage| move |error: DumpError| load_error(error, url, input, stage);
    let bar = output::progress("inodes checked");
    let checked = input.open().and_then(|dump| dump::check(dump, &mut |inodes| bar.set_position(inodes)));
    bar.finish_and_clear();
    let mut checked = checked.map_err(failed(Stage::Checking))?;
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
        loaded.map_err(failed(Stage::Storing))?;
    }
    if verify {
        let bar = output::progress_of("compared", inodes);
        let same = input.open().and_then(|mut dump| {
            let mut stored = Live(database.engine());
            dump::compare(&checked, &mut dump, &mut stored, &mut |inodes| bar.set_position(inodes))
        });
        bar.finish_and_clear();
        same.map_err(failed(Stage::Comparing))?;
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
    /// A copy of standard input, which can be read only once.
    Copy(File),
    /// A backup in an object store.
    Backup(Arc<BlockStore>, BackupId, Manifest),
}

impl Input {
    fn new(path: Option<&Path>) -> Result<Input, CliError> {
        if let Some(path) = path.filter(|path| *path != Path::new(STANDARD)) {
            return Ok(Input::Path(path.to_owned()));
        }
        let copied = copy(io::stdin().lock()).map_err(|error| {
            CliError::new(format!("cannot keep a copy of standard input: {error}"))
                .at(env::temp_dir().display())
                .advise("write the dump to a file first, and name it")
        })?;
        Ok(Input::Copy(copied))
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

/// Copies all input to a file without a name.
fn copy(mut input: impl Read) -> io::Result<File> {
    let mut file = dump::scratch()?;
    io::copy(&mut input, &mut file)?;
    Ok(file)
}

/// Each stage of a load reads the whole dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is changed.
    Checking,
    Storing,
    /// The volume is loaded.
    Comparing,
}

fn load_error(error: DumpError, url: &MetaUrl, input: &Input, stage: Stage) -> CliError {
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
    let is_of_dump = matches!(
        error,
        DumpError::Newer { .. }
            | DumpError::NotADump
            | DumpError::CutOff { .. }
            | DumpError::Damaged { .. }
            | DumpError::DamagedManifest { .. }
            | DumpError::Io(_)
    );
    // The dump was whole when it was checked, so it has changed since then.
    match stage {
        Stage::Storing if is_of_dump => {
            return failed.at(input).advise(format!(
                "the dump has changed or cannot be read any more, and a part of it may be stored: load the same dump \
                 again, or remove that part with limen load --discard {url}"
            ));
        }
        Stage::Comparing if is_of_dump => {
            return failed.at(input).advise(
                "the dump has changed or cannot be read any more; the volume is loaded, but not compared with it",
            );
        }
        _ => {}
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use dump::{FirstLine, Form, Live, VERSION, Writer};
    use meta::{Effect, Inode, MemEngine, Txn};
    use types::{FileType, Ino, Mode, Name, OpId, Time};

    use super::*;

    /// A dump of a volume with many files, as text.
    fn text(id: &str) -> String {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("vol").format(&*engine).unwrap();
        let files = (10..3000).map(Ino).flat_map(|ino| {
            let inode = Inode::new(ino, FileType::Regular, Mode::new(0o644), Time::from_nanos(7));
            let name = Name::new(ino.to_string().as_bytes()).unwrap();
            [
                Effect::PutInode(Inode { nlink: 1, ..inode }),
                Effect::PutDirent { parent: Ino::ROOT, name, ino, kind: FileType::Regular },
            ]
        });
        engine.commit(&[Txn { op_id: OpId(1 << 90), guards: Vec::new(), effects: files.collect() }]).unwrap();
        let head = FirstLine { version: VERSION, id: id.to_owned(), created: 1 };
        let mut writer = Writer::new(Vec::new(), Form::Json, head).unwrap();
        dump::dump::<DumpError>(&mut Live(engine), true, &mut |line| writer.put(&line)).unwrap();
        String::from_utf8(writer.finish().unwrap().0).unwrap()
    }

    /// Another program writes to the file of a dump between its check and its load.
    #[test]
    fn a_dump_that_changes_while_it_is_loaded_leaves_a_part() {
        let whole = text("a");
        let half = whole.len() / 2;
        let damaged = format!("{}{{\n{}", &whole[..half], &whole[half..]);
        for (at, changed) in [text("b"), damaged, whole[..half].to_owned()].into_iter().enumerate() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("dump");
            fs::write(&path, &whole).unwrap();
            let database = directory.path().join("vol.db").display().to_string();
            let url = MetaUrl::parse(&format!("sqlite://{database}")).unwrap();
            let input = Input::Path(path.clone());
            let failed = load(&url, &input, false, |_| Ok(fs::write(&path, changed)?)).unwrap_err();
            let message = failed.to_string();
            assert!(!message.contains("nothing was changed"), "{at}: {message}");
            assert!(message.contains("limen load --discard sqlite://"), "{at}: {message}");
            if at > 0 {
                let opened = url.open(false).unwrap();
                assert!(matches!(Volume::load(&*opened.engine()), Err(VolumeError::Loading)), "{at}");
            }
            // The same dump can be loaded again.
            fs::write(&path, &whole).unwrap();
            let (_, checked) = load(&url, &input, false, |_| Ok(())).unwrap();
            assert_eq!(checked.tail.inodes, 2991);
            // The check finds a damaged dump before the volume, which is loaded now, is compared with it.
            fs::write(&path, &whole[..half]).unwrap();
            let failed = load(&url, &input, true, |_| Ok(())).unwrap_err().to_string();
            assert!(failed.contains("nothing was changed"), "{at}: {failed}");
        }
    }

    #[test]
    fn a_dump_that_changes_while_it_is_compared_was_loaded() {
        let whole = text("a");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dump");
        fs::write(&path, &whole).unwrap();
        let url = MetaUrl::parse(&format!("sqlite://{}", directory.path().join("vol.db").display())).unwrap();
        let input = Input::Path(path.clone());
        load(&url, &input, false, |_| Ok(())).unwrap();
        let cut = whole[..whole.len() / 2].to_owned();
        let failed = load(&url, &input, true, |_| Ok(fs::write(&path, cut)?)).unwrap_err().to_string();
        assert!(failed.contains("the volume is loaded"), "{failed}");
    }
}
