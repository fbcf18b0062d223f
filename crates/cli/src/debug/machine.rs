//! Parts of the archive about this machine: the system, the kernel, its FUSE connections, free space.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::limited::{limen, space};

/// The kernel and the system, memory and load.
pub(super) fn system() -> Result<String, String> {
    let files = ["/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo"];
    let mut text: String = files.map(|path| section(Path::new(path))).concat();
    text.push_str(&format!("cpus: {}\n", std::thread::available_parallelism().map_or(0, usize::from)));
    Ok(text)
}

/// The settings of the kernel on which a mount depends.
pub(super) fn kernel() -> Result<String, String> {
    let mut text = String::new();
    for directory in ["/sys/module/fuse/parameters", "/proc/sys/fs/fuse"] {
        let found = fs::read_dir(directory).map(|entries| entries.flatten().map(|entry| entry.path()));
        let mut files: Vec<PathBuf> = found.map(Iterator::collect).unwrap_or_default();
        files.sort();
        text.extend(files.iter().map(|path| section(path)));
    }
    for path in [
        "/proc/sys/kernel/io_uring_disabled",
        "/proc/sys/fs/file-nr",
        "/proc/sys/fs/file-max",
        "/etc/fuse.conf",
    ] {
        text.push_str(&section(Path::new(path)));
    }
    Ok(text)
}

/// The mounts of limenfs that this process sees.
pub(super) fn mounts() -> Result<String, String> {
    let all = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
    let lines = all.lines().filter(|line| line.contains(" - fuse.limen "));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

/// The kernel's side of a mount, with the number of requests that wait for it.
pub(super) fn connection(device: u64) -> Result<String, String> {
    // The kernel names the directory after its internal device number. The major number of a FUSE mount is 0,
    // so that is the minor number.
    let place = PathBuf::from(format!("/sys/fs/fuse/connections/{}", rustix::fs::minor(device)));
    if !place.exists() {
        return Err(format!("there is no {}: is fusectl mounted?", place.display()));
    }
    let files = ["waiting", "max_background", "congestion_threshold"];
    Ok(files.map(|name| section(&place.join(name))).concat())
}

/// The free space of a volume's object store, if that is a directory.
pub(super) fn space_of_store(url: &str) -> Result<String, String> {
    let settings: Value =
        serde_json::from_str(&limen(&["config", "--json", url])?).map_err(|error| error.to_string())?;
    match (settings["storage"].as_str(), settings["bucket"].as_str()) {
        (Some(storage @ chunk::FILE), Some(bucket)) => {
            let store = chunk::StorageConfig { storage: storage.to_owned(), bucket: bucket.to_owned() };
            let buckets = store.buckets().map_err(|error| error.to_string())?;
            space(&buckets.iter().map(String::as_str).collect::<Vec<_>>())
        }
        (kind, _) => Err(format!("the objects are in {}, not in a directory", kind.unwrap_or("no store"))),
    }
}

/// The name and the text of a file, or the reason why it cannot be read.
fn section(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
    let text = text.trim_end();
    let gap = if text.contains('\n') { "\n" } else { " " };
    format!("{}:{gap}{text}\n", path.display())
}
