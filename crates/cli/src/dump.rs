//! `limen dump`: writes all records of a volume as one file.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output;
use command::units::show_size;
use dump::{DumpError, FirstLine, Form, LastLine};
use types::{Time, counted};

use crate::format::new_uuid;
use crate::records::usage;
use crate::target::volume_url;
use crate::url::{Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A dump has all metadata of a volume, with ACLs, extended attributes, SIDs, quotas, settings, and the data of files that are stored
in the metadata. It does not have the objects: they stay in the object store. limen load creates a volume from it, on any
kind of database.

The volume can be mounted and in use, and the dump shows one moment. Data that mounts have not stored yet is missing: a mount
stores data at close and fsync, and after about five seconds at most; sync(1) has no effect. On Redis, etcd and TiKV, records
that change during the dump are read again, until few are left to read at once. If more than 200,000 records have changed,
the dump fails. On Redis, it also fails if too many records, or a file of more than 255 GiB, keep changing. On Redis, etcd
and TiKV, a dump also needs a file for all records in TMPDIR or /tmp.

Examples:
  limen dump sqlite:///var/lib/limen/home.db home.dump
  limen dump --json redis://db.example.org/1 | zstd >home.json.zst
      lines of JSON, one record each; limen load reads them too, when unpacked")]
pub(crate) struct DumpArgs {
    /// Where the volume's metadata is, or a path on a mount of the volume
    #[arg(value_name = "META-URL|PATH")]
    url: String,
    /// The file to write; it is replaced when the dump is complete [default: standard output]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Write lines of JSON instead of compressed frames
    #[arg(long)]
    json: bool,
}

/// The name that stands for standard input or output.
pub(crate) const STANDARD: &str = "-";

pub(crate) fn run(args: &DumpArgs) -> Result<(), CliError> {
    let url = volume_url(&args.url)?;
    let form = if args.json { Form::Json } else { Form::Framed };
    let file = args.file.as_deref().filter(|file| *file != Path::new(STANDARD));
    if file.is_none() && form == Form::Framed && io::stdout().is_terminal() {
        return Err(CliError::usage("a dump is not text").advise("name a file, or use --json"));
    }
    let (database, volume) = url.open_volume()?;
    let name = &volume.name;
    let Some(file) = file else {
        let (_, tail) = write(&url, &database, io::stdout().lock(), form, None)?;
        output::note(format!("dumped volume '{name}': {}", counted(tail.inodes, "inode", "inodes")));
        return Ok(());
    };
    if let Ok(found) = fs::metadata(file) {
        require_replaceable(file, &found, &database)?;
    }
    // On Ctrl-C, the dump ends with an error, so that its incomplete file is removed. An existing file stays
    // as it is until the complete dump replaces it.
    let interrupt = Interrupt::install()?;
    let part = with_suffix(file, &format!(".{}.part", std::process::id()));
    let failed =
        |error: io::Error| CliError::new(format!("cannot write the dump: {error}")).at(file.display());
    let out = File::create_new(&part).map_err(failed)?;
    let done = write(&url, &database, BufWriter::new(out), form, Some(&interrupt)).and_then(|(out, tail)| {
        let out = out.into_inner().map_err(|error| failed(error.into_error()))?;
        out.sync_all().and_then(|()| fs::rename(&part, file)).map_err(failed)?;
        Ok((out.metadata().map_err(failed)?.len(), tail))
    });
    let (bytes, tail) = done.inspect_err(|_| {
        // If the removal fails too, only the error of the dump is reported.
        let _ = fs::remove_file(&part);
    })?;
    let inodes = counted(tail.inodes, "inode", "inodes");
    let (size, file) = (show_size(bytes), file.display());
    output::print(&format!("Dumped volume '{name}': {inodes}, {size} in {file}.\n"))
}

/// Checks that the rename at the end of a dump replaces an ordinary file. The rename must not replace the
/// database, nor a device or pipe, such as /dev/stdout, which other programs use.
fn require_replaceable(file: &Path, found: &Metadata, database: &Database) -> Result<(), CliError> {
    let wrong = |what: &str, advice: &str| Err(CliError::usage(what).at(file.display()).advise(advice));
    if !found.is_file() {
        return wrong("not a regular file", "omit FILE, and redirect the standard output there");
    }
    match database {
        Database::Sqlite(engine)
            if fs::metadata(engine.path())
                .is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino())) =>
        {
            wrong("this is the volume's database, which the dump would replace", "name another file")
        }
        _ => Ok(()),
    }
}

fn write<W: Write>(
    url: &MetaUrl,
    database: &Database,
    out: W,
    form: Form,
    interrupt: Option<&Interrupt>,
) -> Result<(W, LastLine), CliError> {
    let engine = database.engine();
    let bar = output::progress_of("inodes", usage(&*engine).at(url)?.inodes);
    let head = FirstLine { version: dump::VERSION, id: new_uuid()?, created: Time::now().nanos() };
    let mut progress = |inodes| {
        bar.set_position(inodes);
        if interrupt.is_some_and(Interrupt::is_set) { Err(DumpError::Stopped) } else { Ok(()) }
    };
    let written =
        dump::write(&engine, out, form, head, &mut progress).map_err(|error| dump_error(&error, url));
    bar.finish_and_clear();
    written
}

/// The error of a dump of the volume at `url`.
pub(crate) fn dump_error(error: &DumpError, url: &MetaUrl) -> CliError {
    let failed = CliError::new(format!("cannot dump the volume: {error}")).at(url);
    match error {
        DumpError::Stopped => CliError::new("interrupted: no dump was written").at(url),
        DumpError::TooFast | DumpError::BusyFile { .. } => {
            failed.advise("run it again when there are fewer changes, or unmount the volume")
        }
        DumpError::Copying => {
            failed.advise("run it again later; limen gc --delete removes what a killed limen clone left")
        }
        _ => failed,
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
