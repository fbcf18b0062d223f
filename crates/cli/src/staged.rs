//! Where on this machine blocks wait for their upload, beyond the life of the mount that staged them.
//!
//! Whoever looks at a volume's objects without its mount (`limen fsck --data`, `limen gc`, a mount without the option) has to
//! know of the blocks that are not in the store yet. So each mount with `-o writeback` notes the directory, in a file named
//! after the volume: below `/var/lib/limen` for root, else below the user's state directory. A note of a directory that is
//! gone, or empty, says nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use meta::Volume;

use crate::fault::Fault;
use crate::paths;

const OF_ROOT: &str = "/var/lib/limen";
const NOTES: &str = "staging";

/// Notes that blocks of the volume are staged at `place`.
///
/// # Errors
/// Of the file system, or this user has no state directory.
pub(crate) fn note(volume: &Volume, place: &Path) -> Result<(), Fault> {
    if places(volume).iter().any(|known| known == place) {
        return Ok(());
    }
    let directory = own_directory().ok_or_else(|| {
        Fault::new(
            "there is no place to note where blocks are staged: neither XDG_STATE_HOME nor HOME is set",
        )
    })?;
    let path = directory.join(&volume.uuid);
    append(&directory, &path, place).map_err(|error| {
        Fault::new(format!("cannot note where blocks are staged: {error}")).at(path.display())
    })
}

/// Where blocks of the volume may be staged on this machine, as far as this user may know.
pub(crate) fn places(volume: &Volume) -> Vec<PathBuf> {
    let directories = own_directory().into_iter().chain([Path::new(OF_ROOT).join(NOTES)]);
    let notes = directories.filter_map(|directory| read(&directory.join(&volume.uuid)));
    let mut places: Vec<PathBuf> =
        notes.flat_map(|note| note.lines().map(PathBuf::from).collect::<Vec<_>>()).collect();
    places.sort();
    places.dedup();
    places
}

/// The volume is no more.
pub(crate) fn forget(volume: &Volume) {
    if let Some(directory) = own_directory() {
        // A note that stays does no harm.
        let _ = fs::remove_file(directory.join(&volume.uuid));
    }
}

fn own_directory() -> Option<PathBuf> {
    let parent = match rustix::process::geteuid().is_root() {
        true => PathBuf::from(OF_ROOT),
        false => paths::state_directory()?,
    };
    Some(parent.join(NOTES))
}

/// A note of somebody else is not believed: what it names is read, and removed with the volume's objects.
fn read(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let own = rustix::process::geteuid().as_raw();
    let trusted = metadata.is_file() && (metadata.uid() == own || metadata.uid() == 0);
    if trusted { fs::read_to_string(path).ok() } else { None }
}

fn append(directory: &Path, path: &Path, place: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(format!("{}\n", place.display()).as_bytes())?;
    file.sync_all()?;
    File::open(directory)?.sync_all()
}
