//! Writes a dump of the present moment, in the way that the engine permits.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::{env, process};

use meta::Engine;

use crate::error::DumpError;
use crate::line::{FirstLine, LastLine, Line};
use crate::live::dump_live;
use crate::records::dump;
use crate::stream::{Form, Writer};

/// Writes a dump to `out`, and returns `out` and the totals. `progress` is called with the number of inodes
/// that were read; its error ends the dump. Unless the engine shows one moment for as long as the dump takes,
/// the dump needs a [`scratch`] file for all records.
///
/// # Errors
/// The volume changes too fast, or a copy of a tree is being made; those of the database, of `out` and of the
/// scratch file, and the first one of `progress`.
pub fn write<W: Write>(
    engine: &Arc<dyn Engine>,
    out: W,
    form: Form,
    head: FirstLine,
    progress: &mut dyn FnMut(u64) -> Result<(), DumpError>,
) -> Result<(W, LastLine), DumpError> {
    let mut writer = Writer::new(out, form, head)?;
    match engine.open_snapshot()?.filter(|snapshot| snapshot.is_lasting()) {
        Some(mut snapshot) => {
            let mut inodes = 0;
            dump::<DumpError>(&mut *snapshot, true, &mut |line| {
                if let Line::Inode(_) = line {
                    inodes += 1;
                    progress(inodes)?;
                }
                writer.put(&line)
            })?;
        }
        None => dump_live(engine, scratch()?, progress, &mut |line| writer.put(&line))?,
    }
    writer.finish()
}

/// A new file in TMPDIR or /tmp, with mode 0600. Its name is already removed.
///
/// # Errors
/// Those of the file system.
pub fn scratch() -> io::Result<File> {
    let path = env::temp_dir().join(format!("limen-{}-{:016x}", process::id(), host::random()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}
