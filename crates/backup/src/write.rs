//! Makes a backup.

use std::io::{self, Write};
use std::sync::Arc;

use chunk::{BACKUP_PART_BYTES, BackupId, BlockStore};
use dump::{DumpError, FirstLine, Form};
use meta::{Engine, Volume};
use types::Time;

use crate::manifest::Manifest;

/// Writes a dump of the present moment to the store, which encrypts the parts like the volume's blocks. The
/// call holds a few parts in memory, and sends one request at a time. `check_owner` fails if the store does
/// not belong to this database any more; it is called before the first part, and before the backup is
/// completed. `progress` is called with the number of inodes; its error ends the backup.
///
/// # Errors
/// Those of [`dump::write`] and of `check_owner`; the store fails; a part was removed meanwhile. The stored
/// parts are removed again, as far as the store permits.
pub fn create(
    engine: &Arc<dyn Engine>,
    volume: &Volume,
    store: &Arc<BlockStore>,
    check_owner: &dyn Fn() -> Result<(), String>,
    progress: &mut dyn FnMut(u64) -> Result<(), DumpError>,
) -> Result<(BackupId, Manifest), DumpError> {
    check_owner().map_err(io::Error::other)?;
    let began = Time::now();
    let backup = BackupId(u64::try_from(began.nanos()).map_err(io::Error::other)?);
    let written = write(engine, volume, store, backup, began, progress).and_then(|(manifest, parts)| {
        // A mount on a machine whose clock is wrong may have considered this backup abandoned and removed
        // parts.
        store.check_backup_parts(backup, parts).map_err(io::Error::other)?;
        check_owner().map_err(io::Error::other)?;
        store.finish_backup(backup, manifest.encode()?).map_err(io::Error::other)?;
        Ok(manifest)
    });
    if written.is_err()
        && let Err(error) = store.remove_backup(backup)
    {
        tracing::warn!(backup = backup.0, %error, "parts of a backup that failed remain in the object store");
    }
    written.map(|manifest| (backup, manifest))
}

/// Stores the parts of a backup, and returns its manifest and their number.
fn write(
    engine: &Arc<dyn Engine>,
    volume: &Volume,
    store: &Arc<BlockStore>,
    backup: BackupId,
    began: Time,
    progress: &mut dyn FnMut(u64) -> Result<(), DumpError>,
) -> Result<(Manifest, u32), DumpError> {
    let out = PartWriter { store, backup, part: 0, bytes: 0, buffer: Vec::new() };
    let head = FirstLine { version: dump::VERSION, id: backup.0.to_string(), created: began.nanos() };
    let (out, tail) = dump::write(engine, out, Form::Framed, head, progress)?;
    let manifest = Manifest::new(volume, tail.inodes, out.bytes);
    // `progress` is called once more, because the session may have been lost during the last request to the
    // store.
    progress(tail.inodes)?;
    Ok((manifest, out.part))
}

/// Cuts a dump into parts.
#[derive(Debug)]
struct PartWriter<'a> {
    store: &'a BlockStore,
    backup: BackupId,
    /// The number of the next part.
    part: u32,
    /// The length of all stored parts.
    bytes: u64,
    buffer: Vec<u8>,
}

impl PartWriter<'_> {
    fn put(&mut self) -> io::Result<()> {
        self.store.put_backup_part(self.backup, self.part, &self.buffer).map_err(io::Error::other)?;
        self.part += 1;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for PartWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BACKUP_PART_BYTES as usize - self.buffer.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() == BACKUP_PART_BYTES as usize {
            self.put()?;
        }
        Ok(taken.len())
    }

    /// Stores the last part; called once, at the end of the dump.
    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.put() }
    }
}
