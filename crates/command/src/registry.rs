//! Records the process of each mount on this machine.
//!
//! A mount has no special files in its tree. Instead, each process that serves a mount writes a small JSON
//! file outside the tree, named `DEVICE-PID` after the device number (`st_dev`) of the mount's files and the
//! process. `limen info` and `limen umount` read this file to find the volume and the process.
//!
//! The kernel gives the device number to the next mount while the process of an unmounted one still stores
//! data. So each process has an entry of its own, and no process writes or removes that of a live one.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::error::{CliError, ErrorAt};
use crate::paths;
use crate::process::Process;

/// The directory in which root's mounts are registered.
const OF_ROOT: &str = "/run/limen";

/// How often a request is sent again if the mount closes the connection before it is sent.
const MAX_RETRIES: u32 = 3;

/// Timeout of reads and writes on the socket of a mount.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// One mount, as its process registered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `st_dev` of the files on the mount.
    pub device: u64,
    pub mountpoint: PathBuf,
    /// The metadata URL, without its password.
    pub url: String,
    pub volume: String,
    pub process: Process,
    /// When the mount was registered, in nanoseconds after boot; 0 before that, and in entries of earlier versions.
    pub registered: u64,
    pub log: Option<PathBuf>,
    /// The options that map and squash users, in the form of `-o`. See [`ids`].
    pub ids: String,
    /// Why the process could not store all data; `None` if it could.
    pub failure: Option<String>,
}

impl Entry {
    /// Registers a mount, and removes entries that dead processes left: those for the same mount point, and those
    /// for the same device number that do not say why a mount failed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn register(&mut self) -> Result<(), CliError> {
        let directory = own_directory();
        let registered = Entry { registered: nanos_since_boot(), ..self.clone() };
        let written = fs::create_dir_all(&directory)
            .and_then(|()| registered.publish_ids(&directory))
            .and_then(|()| registered.write());
        written.what("cannot register the mount").at(directory.display())?;
        *self = registered;
        self.forget_predecessors();
        Ok(())
    }

    /// Adds to the entry why the process could not store all data. Does nothing if the mount is not
    /// registered.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_failure(&mut self, why: String) -> Result<(), CliError> {
        self.failure = Some(why);
        match self.registered {
            0 => Ok(()),
            _ => self.write().what("cannot record why the mount failed").at(self.mountpoint.display()),
        }
    }

    fn write(&self) -> io::Result<()> {
        let path = own_directory().join(self.name());
        let part = path.with_extension("new");
        fs::write(&part, format!("{:#}\n", self.to_json()))?;
        fs::rename(part, path)
    }

    fn name(&self) -> String {
        format!("{}-{}", self.device, self.process.pid)
    }

    /// Removes the entries of dead processes that had this mount point or device number. An entry that says
    /// why a mount at another mount point failed stays, because `limen umount` there reads it.
    fn forget_predecessors(&self) {
        let is_replaced = |other: &Entry| {
            other.mountpoint == self.mountpoint || other.device == self.device && other.failure.is_none()
        };
        let is_over = |other: &Entry| is_replaced(other) && !other.process.may_be_alive();
        all().iter().filter(|other| is_over(other)).for_each(Entry::remove);
    }

    /// Writes the options that map and squash users to a file that all users can read. Other users can
    /// neither list the directory nor read the other files in it, because the umask of `limen` is 077.
    ///
    /// The file is named after the device number only, because other users cannot list the directory. Its
    /// first line names the process and the time, so a file of a dead process or of an earlier mount has no
    /// effect. It stays until the next mount with this device number.
    fn publish_ids(&self, directory: &Path) -> io::Result<()> {
        let path = ids_of(directory, self.device);
        let part = directory.join(format!("{}.ids", self.name()));
        let Entry { process: Process { pid, started }, registered, ids, .. } = self;
        fs::write(&part, format!("{pid} {started} {registered}\n{ids}"))?;
        fs::set_permissions(&part, Permissions::from_mode(0o644))?;
        fs::rename(part, path)?;
        fs::set_permissions(directory, Permissions::from_mode(0o711))
    }

    /// Removes the entry, and those of dead processes that served the mount before.
    pub fn end(&self) {
        self.remove();
        self.forget_predecessors();
    }

    /// Removes the files of this process.
    pub fn remove(&self) {
        // A file that stays does no harm, because its process has ended.
        if let Some(path) = self.path() {
            let _ = fs::remove_file(socket_beside(&path));
            let _ = fs::remove_file(path);
        }
    }

    /// The socket at which the mount serves its statistics, in the same directory as its entry.
    pub fn socket(&self) -> Option<PathBuf> {
        self.path().map(|path| socket_beside(&path))
    }

    /// The file that holds this entry.
    fn path(&self) -> Option<PathBuf> {
        let names = [self.name(), self.device.to_string()];
        let mut paths =
            directories().into_iter().flat_map(|directory| names.each_ref().map(|name| directory.join(name)));
        paths.find(|path| read(path).is_some_and(|entry| entry.process == self.process))
    }

    /// Sends a line to the socket of the mount.
    ///
    /// # Errors
    /// The mount has no socket, belongs to another user, or does not accept the line.
    pub fn connect(&self, request: &str) -> Result<UnixStream, CliError> {
        let path = self.socket().ok_or(CliError::new("the mount has no socket"))?;
        let mut attempts = 0;
        loop {
            let mut stream = connect(&path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            match stream.write_all(format!("{request}\n").as_bytes()) {
                // On a busy machine, this process may have been suspended between the two calls for so long that
                // the mount does not wait for the request any more.
                Err(error) if error.kind() == ErrorKind::BrokenPipe && attempts < MAX_RETRIES => {
                    attempts += 1
                }
                sent => return Ok(sent.map(|()| stream)?),
            }
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "device": self.device,
            "mountpoint": self.mountpoint.to_string_lossy(),
            "url": self.url,
            "volume": self.volume,
            "pid": self.process.pid,
            "started": self.process.started,
            "registered": self.registered,
            "log": self.log.as_ref().map(|log| log.to_string_lossy()),
            "ids": self.ids,
            "failure": self.failure,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Some(Entry {
            device: value["device"].as_u64()?,
            mountpoint: text("mountpoint")?.into(),
            url: text("url")?,
            volume: text("volume")?,
            process: Process {
                pid: u32::try_from(value["pid"].as_u64()?).ok()?,
                started: value["started"].as_u64()?,
            },
            registered: value["registered"].as_u64().unwrap_or(0),
            log: text("log").map(PathBuf::from),
            ids: text("ids").unwrap_or_default(),
            failure: text("failure"),
        })
    }
}

/// Connects to a socket. Does not wait if the process there accepts no connections and its queue is full.
///
/// # Errors
/// EAGAIN if the queue is full; those of connect(2).
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The live mount with this device number.
pub fn by_device(device: u64) -> Option<Entry> {
    all().into_iter().find(|entry| entry.device == device && entry.process.is_alive())
}

/// The options that map and squash users on the mount with this device number, which must be live. If root
/// mounts, all users can read the options, but not the entry. Empty if there are none or they cannot be read.
pub fn ids(device: u64) -> String {
    let read = |directory: PathBuf| parse_ids(&paths::read_trusted(&ids_of(&directory, device))?);
    let latest = directories().into_iter().filter_map(read).max_by_key(|(registered, _)| *registered);
    latest.map(|(_, ids)| ids).unwrap_or_default()
}

/// When the mount was registered that such a file is about, and its options; `None` if its process is certainly
/// dead. Earlier versions wrote the options only.
fn parse_ids(text: &str) -> Option<(u64, String)> {
    let Some((header, ids)) = text.split_once('\n') else { return Some((0, text.to_owned())) };
    let mut numbers = header.split(' ').map(|number| number.parse::<u64>().ok());
    let (pid, started, registered) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let process = Process { pid: u32::try_from(pid).ok()?, started };
    process.may_be_alive().then(|| (registered, ids.to_owned()))
}

/// All entries for mounts at `mountpoint`, including those of dead processes.
pub fn by_mountpoint(mountpoint: &Path) -> Vec<Entry> {
    all().into_iter().filter(|entry| entry.mountpoint == mountpoint).collect()
}

/// All entries of this user and of root, including those of dead processes; the latest come first. So an
/// unmounted mount, whose process still stores data, comes after the mount that got its device number, and a
/// process that hands its mount over after the one that takes it.
pub fn all() -> Vec<Entry> {
    let mut all: Vec<Entry> = directories().iter().flat_map(|directory| entries_in(directory)).collect();
    all.sort_by_key(|entry| Reverse((entry.registered, entry.process.started)));
    all
}

/// The entries of a directory. Earlier versions named an entry after its device number only.
fn entries_in(directory: &Path) -> Vec<Entry> {
    let files = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    files.filter(|file| is_entry(&file.file_name())).filter_map(|file| read(&file.path())).collect()
}

/// Whether this is the name of an entry, and not of a socket, of the options of [`ids`], or of an entry that
/// was not completely written.
fn is_entry(name: &OsStr) -> bool {
    name.as_bytes().split(|&byte| byte == b'-').all(|number| number.iter().all(u8::is_ascii_digit))
}

/// Removes the entries that dead processes left for mounts at `mountpoint`.
pub fn forget_dead(mountpoint: &Path) {
    by_mountpoint(mountpoint).iter().filter(|entry| !entry.process.may_be_alive()).for_each(Entry::remove);
}

fn nanos_since_boot() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)).as_nanos() as u64
}

fn socket_beside(entry: &Path) -> PathBuf {
    entry.with_extension("sock")
}

fn ids_of(directory: &Path, device: u64) -> PathBuf {
    directory.join(format!("{device}.ids"))
}

fn read(path: &Path) -> Option<Entry> {
    Entry::from_json(&serde_json::from_str(&paths::read_trusted(path)?).ok()?)
}

/// The directory where this user's mounts are registered.
fn own_directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from(OF_ROOT);
    }
    let runtime = paths::from_environment("XDG_RUNTIME_DIR").map(|directory| directory.join("limen"));
    let or_state = || paths::state_directory().map(|directory| directory.join("mounts"));
    runtime.or_else(or_state).unwrap_or_else(|| PathBuf::from(OF_ROOT))
}

/// The directories to search for entries: this user's and root's.
fn directories() -> Vec<PathBuf> {
    let mut all = vec![own_directory(), PathBuf::from(OF_ROOT)];
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn sample() -> Entry {
        Entry {
            device: 57,
            mountpoint: "/mnt/a b".into(),
            url: "sqlite:///v.db".into(),
            volume: "v".into(),
            process: Process { pid: 7, started: 99 },
            registered: 12,
            log: Some("/var/log/limen-v.log".into()),
            ids: "root_squash".into(),
            failure: None,
        }
    }

    /// A process that was killed before the rename leaves a file with another name.
    #[test]
    fn an_entry_that_was_not_registered_is_not_found() {
        for own in ["57-7", "57"] {
            let directory = tempfile::tempdir().unwrap();
            for name in [own, "57-7.new", "57.7", "57-7.sock", "57.sock", "57.ids"] {
                fs::write(directory.path().join(name), sample().to_json().to_string()).unwrap();
            }
            assert_eq!(entries_in(directory.path()), [sample()]);
        }
    }

    /// The kernel gives the device number of an unmounted mount to the next one, while the process of the
    /// former still stores data.
    #[test]
    fn processes_with_one_device_number_keep_their_own_entries() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let started = vfs::process::start_time(sleeper.id()).unwrap();
        let sleeping = Process { pid: sleeper.id(), started };
        let device = u64::MAX - u64::from(sleeper.id());
        let of =
            |process, mountpoint: &str| Entry { device, process, mountpoint: mountpoint.into(), ..sample() };
        let (mut storing, mut next) = (of(Process::this(), "/mnt/storing"), of(sleeping, "/mnt/next"));
        storing.register().unwrap();
        next.register().unwrap();
        assert_eq!(by_device(device), Some(next.clone()));

        storing.write_failure("the disk is full".into()).unwrap();
        assert_eq!(by_device(device), Some(next.clone()));
        assert_eq!(by_mountpoint(&storing.mountpoint), [storing.clone()]);
        // The process that registered last has the device number, although the other one started later.
        storing.register().unwrap();
        assert_eq!(by_device(device), Some(storing.clone()));
        storing.end();
        assert_eq!(by_mountpoint(&storing.mountpoint), []);
        assert_eq!(by_device(device), Some(next.clone()));

        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        storing.register().unwrap();
        assert_eq!(by_mountpoint(&next.mountpoint), [], "its process has ended");
        storing.end();
        assert!(all().iter().all(|entry| entry.device != device));
    }

    #[test]
    fn options_of_a_dead_process_have_no_effect() {
        let Process { pid, started } = Process::this();
        let parsed = parse_ids(&format!("{pid} {started} 5\nroot_squash"));
        assert_eq!(parsed, Some((5, "root_squash".to_owned())));
        assert_eq!(parse_ids(&format!("{pid} {} 5\nroot_squash", started + 1)), None);
        assert_eq!(parse_ids("root_squash"), Some((0, "root_squash".to_owned())), "of an earlier version");
        assert_eq!(parse_ids("x\nroot_squash"), None);
    }

    #[test]
    fn entry_survives_writing_and_reading() {
        let entry = sample();
        assert_eq!(Entry::from_json(&entry.to_json()), Some(entry));
        assert_eq!(Entry::from_json(&json!({"device": 1})), None);
        assert_eq!(Entry::from_json(&json!([])), None);
    }
}
