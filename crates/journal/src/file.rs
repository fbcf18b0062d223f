//! Journals as files of a directory. A process holds a lock on its journal (`flock(2)`), so a journal without
//! a lock is one whose process has ended.
//!
//! Databases that were loaded from one dump have the same UUID, and may assign the same session number. A
//! restored database may assign a number again. So an existing journal with the name of a new one may belong
//! to another database. A new journal never replaces an existing one.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::Instant;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;
use types::SessionId;

use crate::{Abandoned, Journals, RESERVED_BYTES, Storage};

/// A directory of journals. It must belong to this user, and no other user may write to it, because a journal
/// is committed without further checks.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    /// The database file, if the directory holds the journals of one database only. Then the directory may
    /// also belong to the owner of that file, and it is removed with its last journal.
    database: Option<PathBuf>,
    stuck: Stuck,
}

/// The journals that could not be removed or renamed, and when that was tried last.
type Stuck = Arc<Mutex<HashMap<PathBuf, Instant>>>;

/// How long a journal that could not be removed is not looked at.
const RETRY_REMOVAL_AFTER: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    stuck: Stuck,
    /// Whether the directory is to be removed with the journal.
    is_of_database: bool,
    /// Whether it is the journal of a process that has ended.
    is_abandoned: bool,
    len: u64,
    /// Room on the disk is reserved for the file up to this length.
    reserved: u64,
}

/// Room is reserved in steps of this size.
const RESERVE_STEP_BYTES: u64 = 256 << 10;

impl Directory {
    pub fn new(path: PathBuf) -> Directory {
        Directory { path, database: None, stuck: Stuck::default() }
    }

    /// The journals of a database that is a file. Their directory is beside the file, and has its name with
    /// `.journals` appended.
    pub fn of_database(database: &Path) -> Directory {
        let mut path = database.as_os_str().to_owned();
        path.push(".journals");
        let database = Some(database.to_owned());
        Directory { path: path.into(), database, stuck: Stuck::default() }
    }

    pub fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Removes the directory with everything in it, because its database does not exist any more.
    ///
    /// # Errors
    /// Those of `unlink(2)` and `rmdir(2)`; it is no error if there is no directory.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the journal could not be removed or renamed a short time ago.
    fn is_stuck(&self, path: &Path) -> bool {
        let mut stuck = host::lock(&self.stuck);
        stuck.retain(|_, tried| tried.elapsed() < RETRY_REMOVAL_AFTER);
        stuck.contains_key(path)
    }

    /// Opens a journal whose process has ended; `None` as for [`try_open`].
    ///
    /// # Errors
    /// The journal cannot be opened or read; the error names it.
    fn open_abandoned(&self, path: &Path, session: SessionId) -> io::Result<Option<Abandoned>> {
        let opened = try_open(path).map_err(|error| named(path, error))?;
        let Some((file, bytes)) = opened else { return Ok(None) };
        let (is_of_database, stuck, len) =
            (self.database.is_some(), Arc::clone(&self.stuck), bytes.len() as u64);
        let path = path.to_owned();
        let is_abandoned = true;
        let storage =
            Box::new(Journal { path, file, stuck, is_of_database, is_abandoned, len, reserved: len });
        Ok(Some(Abandoned { session, bytes, storage }))
    }

    fn require_own(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.path)?;
        // The owner of the database may change the volume anyway.
        let is_of_owner = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.uid() == found.uid());
        let is_own = found.uid() == rustix::process::geteuid().as_raw()
            || self.database.as_ref().is_some_and(is_of_owner);
        if !found.is_dir() || !is_own || found.mode() & 0o022 != 0 {
            let error = "the directory belongs to another user, or others may write to it";
            return Err(named(&self.path, io::Error::new(io::ErrorKind::PermissionDenied, error)));
        }
        Ok(())
    }
}

impl Journals for Directory {
    fn create(&self, volume: &str, session: SessionId) -> io::Result<Box<dyn Storage>> {
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        self.require_own()?;
        let path = self.path.join(name(volume, session)?);
        let file = create_locked(&path, &[], 0, None)?;
        let (is_of_database, stuck) = (self.database.is_some(), Arc::clone(&self.stuck));
        Ok(Box::new(Journal { path, file, stuck, is_of_database, is_abandoned: false, len: 0, reserved: 0 }))
    }

    fn abandoned(&self, volume: &str) -> io::Result<Vec<io::Result<Abandoned>>> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(named(&self.path, error)),
        };
        self.require_own()?;
        let mut found = Vec::new();
        let prefix = format!("{volume}-");
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let session = name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(SUFFIX));
            if let Some(session) = session.and_then(|number| number.parse().ok())
                && !self.is_stuck(&path)
            {
                found.extend(self.open_abandoned(&path, SessionId(session)).transpose());
            }
        }
        Ok(found)
    }
}

/// The error with the name of its file; if access was denied, also with the owner and with advice.
fn named(path: &Path, error: io::Error) -> io::Error {
    let (kind, mut text) = (error.kind(), format!("{}: {error}", path.display()));
    if let (io::ErrorKind::PermissionDenied, Ok(found)) = (kind, fs::symlink_metadata(path)) {
        let (uid, mode) = (found.uid(), found.mode() & 0o7777);
        text += &match uid {
            uid if uid == rustix::process::geteuid().as_raw() => {
                format!("; it belongs to this user, and its mode is {mode:o}: correct the mode")
            }
            0 => "; it belongs to root: mount the volume once as root".to_owned(),
            uid => format!("; it belongs to the user with uid {uid}: mount the volume once as that user"),
        };
    }
    io::Error::new(kind, text)
}

const SUFFIX: &str = ".journal";

fn name(volume: &str, session: SessionId) -> io::Result<String> {
    let is_uuid = !volume.is_empty() && volume.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    match is_uuid {
        true => Ok(format!("{volume}-{session}{SUFFIX}")),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "the volume's UUID is malformed")),
    }
}

/// The path at which a journal is written before it gets its name.
fn draft(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Creates the file `path` with these bytes. An existing file is replaced only if it is `own`, a journal that
/// this process has locked. The new file is locked before it gets its name, so no other process takes it for
/// an abandoned journal. Only the process that has locked the draft renames it, so no file appears at `path`
/// between the check and the rename. `room` bytes are reserved after the others.
fn create_locked(path: &Path, bytes: &[u8], room: u64, own: Option<&File>) -> io::Result<File> {
    let draft = draft(path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&draft)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    if !is_at(&file, &draft)? {
        // Another process locked this file first, and has renamed or removed it since.
        return Err(io::Error::new(io::ErrorKind::WouldBlock, "another process creates the same journal"));
    }
    let written = file
        .set_len(0)
        .and_then(|()| if room > 0 { allocate(&file, 0, bytes.len() as u64 + room) } else { Ok(()) })
        .and_then(|()| file.write_all_at(bytes, 0))
        .and_then(|()| match own.map(|own| is_at(own, path)).transpose()? {
            Some(true) => Ok(()),
            _ => require_absent(path),
        })
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.map(|()| file)
}

/// Reserves room on the disk. It is no error if the file system cannot do this; an append may then fail.
fn allocate(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, from, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether this path names this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(fs::symlink_metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())))
}

fn require_absent(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!(
                "{} is kept for another database with the same UUID: mount that database once, or remove the file to give up its changes",
                path.display()
            ),
        )),
    }
}

/// Opens and locks a journal whose process has ended; `None` if the process is alive, or if the journal was
/// removed or replaced meanwhile.
fn try_open(path: &Path) -> io::Result<Option<(File, Vec<u8>)>> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    // The process may have replaced or removed the file after it was opened here, and then ended.
    if !is_at(&file, path)? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Some((file, bytes)))
}

impl Journal {
    fn note_stuck(&self) {
        host::lock(&self.stuck).insert(self.path.clone(), Instant::now());
    }
}

impl Storage for Journal {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let needed = self.len + bytes;
        if needed <= self.reserved {
            return Ok(());
        }
        // On a full disk, the room that the ended process reserved may suffice, but not for a whole step.
        let step = if self.is_abandoned { 1 } else { RESERVE_STEP_BYTES };
        let room = bytes.next_multiple_of(step);
        allocate(&self.file, self.len, room)?;
        self.reserved = self.len + room;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all_at(bytes, self.len);
        match &written {
            Ok(()) => self.len += bytes.len() as u64,
            // Cut off the part that was written before the disk was full. This also releases the reserved
            // room.
            Err(_) => {
                self.reserved = self.len;
                let _ = self.file.set_len(self.len);
            }
        }
        written
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        if len == self.len {
            // ftruncate(2) would release the reserved room.
            return Ok(());
        }
        self.file.set_len(len)?;
        (self.len, self.reserved) = (len, len);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file = create_locked(&self.path, bytes, RESERVED_BYTES, Some(&self.file))?;
        self.len = bytes.len() as u64;
        self.reserved = self.len + RESERVED_BYTES;
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        if !is_at(&self.file, &self.path)? {
            return Ok(());
        }
        let _ = fs::remove_file(draft(&self.path));
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.note_stuck();
                return Err(error);
            }
            _ => {}
        }
        if let Some(directory) = self.path.parent().filter(|_| self.is_of_database) {
            // It may have more journals.
            let _ = fs::remove_dir(directory);
        }
        Ok(())
    }

    fn set_aside(&mut self, suffix: &str) -> io::Result<String> {
        let numbered = |number: u32| {
            let mut path = self.path.as_os_str().to_owned();
            path.push(if number == 1 { format!(".{suffix}") } else { format!(".{suffix}.{number}") });
            PathBuf::from(path)
        };
        // Only the process that has locked the journal renames it, so no file appears at `free` before the
        // rename.
        let mut paths = (1..=u32::MAX).map(numbered);
        let free = paths.find(|path| path.symlink_metadata().is_err()).unwrap_or_else(|| numbered(1));
        fs::rename(&self.path, &free).inspect_err(|_| self.note_stuck())?;
        Ok(free.display().to_string())
    }
}
