//! Parts of the archive about the process of a mount.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::redact::Secrets;

/// The number of bytes at the end of a log that the archive gets.
const LOG_BYTES: u64 = 1 << 20;

/// A key file is not longer than this.
const MAX_KEY_BYTES: u64 = 4096;

fn place(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// A file of a process below `/proc`.
pub(super) fn file(pid: u32, name: &str) -> Result<String, String> {
    let path = place(pid).join(name);
    fs::read(&path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Adds the secrets of the process: those in its environment, and its key.
pub(super) fn add_secrets(pid: u32, secrets: &mut Secrets) {
    if let Ok(environment) = file(pid, "environ") {
        let variables = environment.split('\0').filter_map(|variable| variable.split_once('='));
        secrets.merge(Secrets::of(variables));
    }
    let Ok(line) = file(pid, "cmdline") else { return };
    let args: Vec<&str> = line.split('\0').collect();
    let after = args.windows(2).filter(|pair| pair[0] == "--key-file").map(|pair| pair[1]);
    let joined = args.iter().filter_map(|arg| arg.strip_prefix("--key-file="));
    let listed = args.iter().flat_map(|arg| arg.split(',')).filter_map(|arg| arg.strip_prefix("key_file="));
    for path in after.chain(joined).chain(listed) {
        let mut key = String::new();
        let read = File::open(path).and_then(|file| file.take(MAX_KEY_BYTES).read_to_string(&mut key));
        // A key that is not UTF-8 cannot occur in the archive, whose parts are UTF-8.
        if read.is_ok() {
            secrets.add_all([key]);
        }
    }
}

/// The command line, one argument a line.
pub(super) fn command_line(pid: u32) -> Result<String, String> {
    file(pid, "cmdline").map(|line| line.trim_end_matches('\0').replace('\0', "\n") + "\n")
}

/// The names of the variables that are set, without their values.
pub(super) fn environment(pid: u32) -> Result<String, String> {
    let variables = file(pid, "environ")?;
    let mut names: Vec<&str> =
        variables.split('\0').filter_map(|variable| Some(variable.split_once('=')?.0)).collect();
    names.sort_unstable();
    Ok(format!("The names of the variables that are set:\n{}\n", names.join("\n")))
}

/// How many descriptors of each kind are open.
pub(super) fn descriptors(pid: u32) -> Result<String, String> {
    let path = place(pid).join("fd");
    let entries = fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for entry in entries.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        let kind = match target.split_once(':') {
            _ if target.starts_with("/dev/") => target.as_ref(),
            _ if target.starts_with('/') => "file",
            Some(("anon_inode", kind)) => kind,
            Some((kind, _)) => kind,
            None => "unknown",
        };
        *counts.entry(kind.to_owned()).or_default() += 1;
    }
    let all: u64 = counts.values().sum();
    let lines = counts.iter().map(|(kind, count)| format!("{count} {kind}\n"));
    Ok(format!("{all} open\n{}", lines.collect::<String>()))
}

/// The state of each thread, the kernel function in which it waits, and its kernel stack.
pub(super) fn threads(pid: u32) -> Result<String, String> {
    let path = place(pid).join("task");
    let entries = fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut text = String::new();
    for entry in entries.flatten() {
        let task = entry.path();
        let read = |name: &str| match fs::read_to_string(task.join(name)) {
            Ok(text) => text.trim_end().to_owned(),
            // The thread may have ended, or may belong to another user.
            Err(error) => format!("({error})"),
        };
        let status = read("status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
        let (id, name) = (entry.file_name(), read("comm"));
        text.push_str(&format!(
            "thread {} {name}\n  state {}, waits in {}, system call {}\n  voluntary switches {}, involuntary {}\n",
            id.display(),
            field("State:"),
            read("wchan"),
            read("syscall"),
            field("voluntary_ctxt_switches:"),
            field("nonvoluntary_ctxt_switches:"),
        ));
        text.extend(read("stack").lines().map(|line| format!("    {line}\n")));
    }
    Ok(text)
}

/// The end of a log.
pub(super) fn end_of(path: &Path) -> Result<String, String> {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut bytes)?;
        // The first line is incomplete, so it is left out.
        let start = if length > LOG_BYTES {
            bytes.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1)
        } else {
            0
        };
        Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
    };
    read().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(end_of(&path).as_deref(), Ok("one\ntwo\n"));
        let lines = "0123456789\n".repeat(200_000);
        fs::write(&path, &lines).unwrap();
        let end = end_of(&path).unwrap();
        assert!(end.starts_with("0123456789\n") && end.len() as u64 > LOG_BYTES - 20, "{}", end.len());
        assert!(end_of(&dir.path().join("none")).unwrap_err().contains("none"));
    }

    #[test]
    fn this_process_is_described() {
        let pid = std::process::id();
        assert!(threads(pid).unwrap().contains("state R"));
        assert!(descriptors(pid).unwrap().contains(" open\n"));
        assert!(environment(pid).unwrap().contains("\nPATH\n"));
        assert!(command_line(pid).unwrap().ends_with('\n'));
        assert!(file(u32::MAX, "status").is_err());
    }
}
