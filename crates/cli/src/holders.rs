//! Finds the processes on this machine that hold a mount. It reads `/proc` and sends no request to the mount,
//! which may hang.
//!
//! umount(8) removes a mount from one mount namespace. The file system stays alive as long as another mount
//! namespace has it, e.g. that of a container or of a service with `PrivateMounts=` (`mount_namespaces(7)`),
//! or a process has one of its files open.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use fuse::MountInfo;
use rustix::fs::{AtFlags, CWD, StatxFlags};

/// At most this many holders are named in a message.
const MAX_NAMED: usize = 5;

/// The processes that hold a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// The first process of each other mount namespace that has the mount.
    pub(crate) elsewhere: Vec<Holder>,
    /// Processes that use the mount, in any namespace.
    pub(crate) users: Vec<Holder>,
    /// Whether there are processes that this user has no permission to inspect.
    pub(crate) some_hidden: bool,
}

/// A process, and how it holds the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Its mount namespace has the mount, at this path.
    Namespace(PathBuf),
    WorkingDirectory,
    Root,
    Open(PathBuf),
    Mapped(PathBuf),
}

impl Holders {
    /// Searches all processes for those that hold the file system with this `st_dev`.
    pub(crate) fn find(device: u64) -> Holders {
        let mut found = Holders::default();
        let own = namespace(Path::new("/proc/self"));
        let mut namespaces: HashMap<OsString, Option<PathBuf>> = HashMap::new();
        for pid in processes() {
            let process = PathBuf::from(format!("/proc/{pid}"));
            let Some(namespace) = namespace(&process) else {
                found.some_hidden |= process.exists();
                continue;
            };
            let holder = |how| Holder { pid, name: name_of(&process), how };
            if own.as_ref() != Some(&namespace) && !namespaces.contains_key(&namespace) {
                let mounted = mounted_at(&process, device);
                found.elsewhere.extend(mounted.clone().map(|place| holder(How::Namespace(place))));
                namespaces.insert(namespace, mounted);
            }
            found.users.extend(use_of(&process, device).map(holder));
        }
        found
    }

    /// Whether any process is known to hold the mount.
    pub(crate) fn any(&self) -> bool {
        !self.elsewhere.is_empty() || !self.users.is_empty()
    }

    /// The processes in other namespaces that have the file system mounted; if there are none, those that use
    /// it.
    pub(crate) fn first(&self) -> &[Holder] {
        if self.elsewhere.is_empty() { &self.users } else { &self.elsewhere }
    }
}

/// Formats holders: `process 7 (bash) has its working directory there, process 9 (vi) has /mnt/f open`.
pub(crate) fn list(holders: &[Holder]) -> String {
    let mut texts: Vec<String> = holders.iter().take(MAX_NAMED).map(Holder::to_string).collect();
    if holders.len() > MAX_NAMED {
        texts.push(format!("and {} more", holders.len() - MAX_NAMED));
    }
    texts.join(", ")
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}) ", self.pid, self.name)?;
        match &self.how {
            How::Namespace(_) => f.write_str("still holds it in another mount namespace"),
            How::WorkingDirectory => f.write_str("has its working directory there"),
            How::Root => f.write_str("has its root directory there"),
            How::Open(path) => write!(f, "has {} open", path.display()),
            How::Mapped(path) => write!(f, "has {} mapped", path.display()),
        }
    }
}

/// All process ids in ascending order: the lowest one of a container usually is its first process.
fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Identifies the mount namespace of a process; `None` without permission to read it.
fn namespace(process: &Path) -> Option<OsString> {
    fs::read_link(process.join("ns/mnt")).ok().map(PathBuf::into_os_string)
}

fn name_of(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned()
}

/// The mount point of the file system in the namespace of a process.
fn mounted_at(process: &Path, device: u64) -> Option<PathBuf> {
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = MountInfo::all(process).ok()?;
    mounts.into_iter().find(|mount| mount.dev == device).map(|mount| mount.mount_point)
}

/// How a process uses the file system. If there are several ways, returns the first that is found.
fn use_of(process: &Path, device: u64) -> Option<How> {
    let is_there = |link: &Path| device_of(link) == Some(device);
    if is_there(&process.join("cwd")) {
        return Some(How::WorkingDirectory);
    }
    if is_there(&process.join("root")) {
        return Some(How::Root);
    }
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    let open = files.filter(|link| is_there(link)).find_map(|link| fs::read_link(link).ok());
    open.map(How::Open).or_else(|| mapped(process, device).map(How::Mapped))
}

/// The first file of the device that a process has mapped. A line of `proc_pid_maps(5)` is
/// `ADDRESS PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`, with the device in hexadecimal.
fn mapped(process: &Path, device: u64) -> Option<PathBuf> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let maps = fs::read_to_string(process.join("maps")).ok()?;
    maps.lines().find_map(|line| {
        let mut fields = line.splitn(6, ' ');
        (fields.nth(3)? == device).then(|| fields.nth(1).map(|path| PathBuf::from(path.trim_start())))?
    })
}

/// `st_dev` of the file at a path, without a request to the file system's server. With an empty mask, FUSE
/// answers this even to callers without access (`fuse_getattr` in `fs/fuse/dir.c`).
pub(crate) fn device_of(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn processes_that_use_a_file_system_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("open");
        let open = File::create(&file).unwrap();
        let device = open.metadata().unwrap().dev();
        assert_eq!(device_of(&file), Some(device));
        let of = |pid: u32| use_of(&PathBuf::from(format!("/proc/{pid}")), device);
        let this = std::process::id();
        let found = Holders::find(device);
        assert!(found.any() && found.users.iter().any(|user| user.pid == this), "{found:?}");

        let mut child = Command::new("sleep").arg("60").current_dir(dir.path()).spawn().unwrap();
        let how = of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(how, Some(How::WorkingDirectory));
        let mut child = Command::new("sleep").arg("60").current_dir("/proc").stdin(Stdio::from(open)).spawn();
        let child = child.as_mut().unwrap();
        // If the process's root directory is on the same file system, that use is found first.
        let how = of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(how == Some(How::Open(file)) || how == Some(How::Root), "{how:?}");
    }

    #[test]
    fn list_of_holders_is_bounded() {
        let holder = |pid| Holder { pid, name: "sh".into(), how: How::Namespace("/mnt".into()) };
        let holders: Vec<Holder> = (1..=7).map(holder).collect();
        let text = list(&holders);
        assert!(text.starts_with("process 1 (sh) still holds it in another mount namespace, "), "{text}");
        assert!(
            text.ends_with("process 5 (sh) still holds it in another mount namespace, and 2 more"),
            "{text}"
        );
        let open = Holder { how: How::Open("/mnt/f".into()), ..holder(9) };
        assert_eq!(list(&[open]), "process 9 (sh) has /mnt/f open");
    }
}
