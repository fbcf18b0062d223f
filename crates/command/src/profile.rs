//! Sends the records of a mount's profilers as lines of JSON with paths.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

use client::Meta;
use fuse::{ProfileKey, Profiled, Profiler, Sums};
use serde_json::{Value, json};
use types::{Ino, Name};
use vfs::Vfs;

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// The maximum length of a line up to the end of its rows. Clients accept longer lines.
const MAX_LINE_BYTES: usize = 3 << 20;

/// The maximum number of names that are kept for the next line.
const MAX_NAMES: usize = 20_000;

/// The maximum number of names on a path.
const MAX_DEPTH: usize = 1000;

/// Sends a line at once, and one each second, until the client closes the connection or the mount ends.
pub(crate) fn serve(mut stream: UnixStream, profiler: &Profiler, vfs: &Weak<Vfs>) -> io::Result<()> {
    let mut paths = Paths::default();
    loop {
        let began = Instant::now();
        let profiled = profiler.take();
        let line = {
            let Some(vfs) = vfs.upgrade() else { return Ok(()) };
            paths.add_missing(vfs.meta(), &profiled);
            to_line(&profiled, &paths)
        };
        stream.write_all(line.as_bytes())?;
        thread::sleep(EVERY.saturating_sub(began.elapsed()));
    }
}

/// A line of JSON. The requests of rows for which it has no room count as left out.
fn to_line(profiled: &Profiled, paths: &Paths) -> String {
    let (mut line, mut left_out) = ("{\"rows\":[".to_owned(), profiled.left_out);
    let mut comma = "";
    for (key, sums) in &profiled.rows {
        let row = to_json(key, sums, paths).to_string();
        if line.len() + row.len() > MAX_LINE_BYTES {
            left_out += sums.count;
            continue;
        }
        line += comma;
        line += &row;
        comma = ",";
    }
    line + &format!("],\"left_out\":{left_out}}}\n")
}

fn to_json(key: &ProfileKey, sums: &Sums, paths: &Paths) -> Value {
    json!({
            "op": key.opcode.to_string().to_lowercase(),
            "uid": key.uid,
            "pid": key.process.pid,
            "process": String::from_utf8_lossy(&key.process.name),
            "inode": key.ino.0,
            "path": paths.of(key.ino).map(|path| String::from_utf8_lossy(&path).into_owned()),
            "count": sums.count,
            "time_ns": nanos(sums.time),
            "longest_ns": nanos(sums.longest),
            "engine_ns": nanos(sums.engine),
            "store_ns": nanos(sums.store),
            "bytes": sums.bytes,
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The known names of inodes, each with its directory. A name that was known before a rename remains.
#[derive(Debug, Default)]
struct Paths(BTreeMap<Ino, (Ino, Name)>);

impl Paths {
    /// Looks up the names of the inodes and of their directories in the cache of the mount.
    fn add_missing(&mut self, meta: &Meta, profiled: &Profiled) {
        if self.0.len() > MAX_NAMES {
            self.0.clear();
        }
        let mut missing: BTreeSet<Ino> = profiled.rows.iter().map(|(key, _)| key.ino).collect();
        loop {
            missing.retain(|ino| *ino != Ino::ROOT && !self.0.contains_key(ino));
            if missing.is_empty() {
                return;
            }
            let found = meta.cached_names(&missing);
            missing = found.values().map(|(parent, _)| *parent).collect();
            self.0.extend(found);
        }
    }

    /// The path from the volume's root; `None` if a name is not known.
    fn of(&self, ino: Ino) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let (parent, name) = self.0.get(&at).filter(|_| names.len() < MAX_DEPTH)?;
            names.push(name.as_bytes());
            at = *parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_if_all_its_names_are() {
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let (dir, file, other, looped) = (Ino(10), Ino(11), Ino(12), Ino(13));
        let names = [(dir, (Ino::ROOT, name("d"))), (file, (dir, name("f"))), (looped, (looped, name("x")))];
        let paths = Paths(names.into());
        let text = |ino| paths.of(ino).map(|path| String::from_utf8(path).unwrap());
        assert_eq!(text(Ino::ROOT).as_deref(), Some("/"));
        assert_eq!((text(dir).as_deref(), text(file).as_deref()), (Some("/d"), Some("/d/f")));
        assert_eq!((text(other), text(looped)), (None, None));
    }
}
