//! Records the directories on this machine where blocks wait for upload, even after the mount that staged
//! them has ended.
//!
//! Commands that read a volume's objects without its mount (`limen fsck --data`, `limen gc`, a mount without
//! `-o writeback`) must know the blocks that are not in the store yet. So each mount with `-o writeback`
//! writes the directory's path to a file named after the volume's UUID: below `/var/lib/limen` for root,
//! otherwise below the user's state directory. A path of a directory that no longer exists, or is empty, has
//! no effect.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use chunk::HeldStaging;
use command::error::{CliError, ErrorAt};
use command::paths;
use meta::Volume;

const NOTES: &str = "staging";

/// Records that blocks of the volume are staged at `place`.
///
/// # Errors
/// The file cannot be written, or this user has no state directory.
pub(crate) fn note(volume: &Volume, place: &Path) -> Result<(), CliError> {
    if places(volume).iter().any(|known| known == place) {
        return Ok(());
    }
    let directory = paths::lasting_directory(NOTES).ok_or_else(|| {
        CliError::new("cannot record where blocks are staged: neither XDG_STATE_HOME nor HOME is set")
    })?;
    let path = directory.join(&volume.uuid);
    append(&directory, &path, place).what("cannot record where blocks are staged").at(path.display())
}

/// The directories on this machine where blocks of the volume may be staged, as far as this user has access.
/// `limen destroy` removes these directories, so only records that this user or root has written count.
pub(crate) fn places(volume: &Volume) -> Vec<PathBuf> {
    let of_root = Path::new(paths::LASTING_OF_ROOT).join(NOTES);
    let directories = paths::lasting_directory(NOTES).into_iter().chain([of_root]);
    let notes = directories.filter_map(|directory| paths::read_trusted(&directory.join(&volume.uuid)));
    let mut places: Vec<PathBuf> =
        notes.flat_map(|note| note.lines().map(PathBuf::from).collect::<Vec<_>>()).collect();
    places.sort();
    places.dedup();
    places
}

/// Locks the staging directories of this machine, so that no other process uploads staged blocks. A process
/// needs no session to upload them. `outcome` says in messages that nothing has happened.
///
/// # Errors
/// A process uploads blocks; a directory cannot be locked.
pub(crate) fn hold(volume: &Volume, outcome: &str) -> Result<HeldStaging, CliError> {
    let name = &volume.name;
    match HeldStaging::take(&places(volume)) {
        Ok(Ok(held)) => Ok(held),
        Ok(Err(area)) => {
            Err(CliError::new(format!("a process is still uploading blocks of volume '{name}'"))
                .at(area.display())
                .advise(format!(
                    "{outcome}; wait until its limen umount returns, or end that process (fuser shows it)"
                )))
        }
        Err(error) => {
            Err(error).what(format!("cannot lock the blocks of volume '{name}' that wait for upload"))
        }
    }
}

/// Removes the record of a volume that was destroyed.
pub(crate) fn forget(volume: &Volume) {
    if let Some(directory) = paths::lasting_directory(NOTES) {
        // A record that stays does no harm.
        let _ = fs::remove_file(directory.join(&volume.uuid));
    }
}

fn append(directory: &Path, path: &Path, place: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(format!("{}\n", place.display()).as_bytes())?;
    file.sync_all()?;
    File::open(directory)?.sync_all()
}
