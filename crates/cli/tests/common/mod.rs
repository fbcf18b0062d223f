//! A temporary directory with a volume, and the `limen` command.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use engine_sqlite::{Options, SqliteEngine};
use meta::{Engine, Record, RecordKey, Volume};
use tempfile::TempDir;

pub(crate) const LIMEN: &str = env!("CARGO_BIN_EXE_limen");

/// The exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Panics with the whole output unless the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Panics unless the command failed with `code` and its error output contains each of `parts`.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is missing: {self:?}");
        }
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The socket of the mount that this process serves.
pub(crate) fn socket_of(pid: u32) -> PathBuf {
    let end = format!("-{pid}.sock");
    let mut entries = fs::read_dir("/run/limen").unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.to_string_lossy().ends_with(&end)).unwrap()
}

/// Runs `limen` with these arguments and without a terminal.
pub(crate) fn limen(args: &[&str]) -> Said {
    command(args).output().unwrap().into()
}

/// Unmounts, and repeats this while the mount is in use: between fork and exec, a child that another test
/// starts holds all files that are open here.
pub(crate) fn until_unused(umount: impl Fn() -> Said) -> Said {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let said = umount();
        if !said.err.contains("in use") || Instant::now() >= until {
            return said;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Parses the output of a command that prints one JSON value per line.
pub(crate) fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(LIMEN);
    command.args(args).stdin(Stdio::null()).env_remove("LIMEN_LOG");
    command
}

/// Creates files with objects, and then many empty files. A dump has the files with objects first, and a load
/// that continues must not store their rows twice.
pub(crate) fn make_many(place: &Place) {
    let mdtest = |top, files, bytes| {
        let tree = ["--depth", "1", "--dirs", "9", "--files", files, "--write", bytes, "--keep"];
        limen(&[&["mdtest", &place.url(), top], &tree[..]].concat()).ok();
    };
    mdtest("/data", "20", "5000");
    mdtest("/empty", "1000", "0");
}

/// Runs `limen`, which stores much in the embedded database at `database`, until the kernel kills it because
/// the database's log would exceed `bytes` bytes (RLIMIT_FSIZE). This happens at the same place on a slow and
/// on a fast machine.
pub(crate) fn killed_at(bytes: u64, database: &Path, args: &[&str]) {
    // The reserve would exceed the limit before the log does. limen does not allocate it if it exists.
    fs::write(database.with_added_extension("reserve"), "x").unwrap();
    let mut prlimit = Command::new("prlimit");
    prlimit.args([&format!("--fsize={bytes}"), "--core=0", LIMEN]).args(args);
    let output = prlimit.stdin(Stdio::null()).env_remove("LIMEN_LOG").output().unwrap();
    assert_eq!(output.status.signal(), Some(rustix::process::Signal::XFSZ.as_raw()), "{output:?}");
}

/// The number of lines of a dump that an incomplete load has stored in the embedded database at `database`.
pub(crate) fn loaded_lines(database: &Path) -> u64 {
    let engine = SqliteEngine::open(database, &Options::default()).unwrap();
    let records = engine.read(&[RecordKey::Settings]).unwrap().records;
    let [Record::Settings(settings)] = &records[..] else { panic!("{records:?}") };
    let (_dump, lines) = settings[Volume::LOADING].split_once(' ').unwrap();
    lines.parse().unwrap()
}

/// A server that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Server(pub(crate) Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A temporary directory. Dropping it unmounts the volume that is mounted in it, and removes it.
#[derive(Debug)]
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("limen-cli.").tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Place { dir }
    }

    /// A place with a volume named `vol`.
    pub(crate) fn formatted() -> Self {
        let place = Place::new();
        place.format(&[]).ok();
        place
    }

    pub(crate) fn format(&self, more: &[&str]) -> Said {
        let url = self.url();
        limen(&[&["format", &url, "vol"], more].concat())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.text("vol.db"))
    }

    /// The mount point.
    pub(crate) fn mnt(&self) -> String {
        self.text("mnt")
    }

    /// Mounts in the background; the log file is next to the volume.
    pub(crate) fn mount(&self, more: &[&str]) -> Said {
        self.mount_url(&self.url(), more)
    }

    pub(crate) fn mount_url(&self, url: &str, more: &[&str]) -> Said {
        let (log, mnt) = (self.text("log"), self.mnt());
        limen(&[&["mount", "-d", "--log", &log], more, &[url, &mnt]].concat())
    }

    /// Calls umount without retries, for tests of a mount that is in use.
    pub(crate) fn umount_once(&self, more: &[&str]) -> Said {
        limen(&[&["umount"], more, &[&self.mnt()]].concat())
    }

    pub(crate) fn umount(&self, more: &[&str]) -> Said {
        until_unused(|| self.umount_once(more))
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&limen(&["status", "--json", &self.url()]).ok()).unwrap()
    }

    /// The statistics of the mount so far.
    pub(crate) fn statistics(&self) -> serde_json::Value {
        serde_json::from_str(&self.ask("statistics")).unwrap()
    }

    /// The answer of the mount to a request at its socket.
    pub(crate) fn ask(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// The socket at which the mount answers.
    pub(crate) fn socket(&self) -> PathBuf {
        socket_of(self.server())
    }

    /// The process ID of the mount, from the volume's only session.
    pub(crate) fn server(&self) -> u32 {
        let status = self.status();
        assert_eq!(status["sessions"].as_array().unwrap().len(), 1, "{status}");
        status["sessions"][0]["pid"].as_u64().unwrap() as u32
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mountinfo.lines().any(|line| line.split(' ').nth(4) == Some(&self.mnt()))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for _ in 0..8 {
            if !self.is_mounted() {
                return;
            }
            // Force the unmount, so that a file left open by a failed test does not keep the mount.
            self.umount(&["--force"]);
            let _ = Command::new("umount").args(["-l", &self.mnt()]).stderr(Stdio::null()).status();
        }
    }
}
