//! `limen clone` on a mount: the mount's process makes the copy, because it knows what programs have written,
//! has a session, and may have the volume exclusively.
//!
//! The client sends a line with the request to the mount's socket ([`crate::statistics`]). The mount answers
//! with lines of JSON: the progress, several times a second, and at the end the result. If the client closes
//! the connection or only its sending side before the end, the mount removes the files that it has copied.
//!
//! The kernel may still have a negative entry for the new name, because a lookup was in flight when the name
//! was added. So the client looks the name up. If it does not find the copy, it sends a line, and the mount
//! makes the kernel forget the name again.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use client::{CloneError, CloneFailure, CloneProgress, CloneRequest, Failure};
use meta::Inode;
use serde_json::{Value, json};
use types::{Errno, Ino, Name};
use vfs::Vfs;

use crate::answers::{Answers, IDLE_EVERY};
use crate::error::CliError;
use crate::registry::Entry;
use crate::running::Running;

/// The beginning of each request.
pub(crate) const REQUEST: &str = "clone ";

/// How many copies one mount makes at the same time.
const MAX_RUNNING: usize = 8;
/// The pause before the client looks the name up again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// How often progress is sent.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// How long the mount and the client wait for each other's next line while the client looks the name up.
const LOOK_FOR: Duration = Duration::from_secs(10);
/// The largest number of times that the client looks the name up.
const MAX_LOOKS: u32 = 200;

/// The size of a copy, so far or in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub inodes: u64,
    pub directories: u64,
    /// The sum of the sizes of the files.
    pub bytes: u64,
}

impl Counted {
    pub fn of(progress: &CloneProgress) -> Counted {
        Counted {
            inodes: progress.inodes.load(Ordering::Relaxed),
            directories: progress.directories.load(Ordering::Relaxed),
            bytes: progress.bytes.load(Ordering::Relaxed),
        }
    }

    fn to_json(self) -> Value {
        json!({ "inodes": self.inodes, "directories": self.directories, "bytes": self.bytes })
    }

    fn from_json(value: &Value) -> Option<Counted> {
        Some(Counted {
            inodes: value["inodes"].as_u64()?,
            directories: value["directories"].as_u64()?,
            bytes: value["bytes"].as_u64()?,
        })
    }
}

/// The error of a copy for the user, which also says what became of the copied files.
pub fn failed(failure: &CloneFailure) -> CliError {
    let what = match &failure.error {
        CloneError::Failed(Failure::Operation(errno)) => errno.to_string(),
        error => error.to_string(),
    };
    refused(&what, &failure.error, failure.is_removed)
}

fn refused(what: &str, error: &CloneError, is_removed: bool) -> CliError {
    let left = match is_removed {
        true => "nothing was copied",
        false => "the copied part is invisible, and is removed by the next mount or limen gc --delete",
    };
    let advice = match error {
        CloneError::QuotaChanged => "run the command again",
        CloneError::Failed(Failure::Operation(Errno::EPERM)) => {
            "this mount maps callers to other users: name the volume as META-URL:/PATH"
        }
        CloneError::Failed(Failure::Operation(Errno::EIO)) => "the log tells more; see also limen fsck",
        _ => "",
    };
    CliError::new(what)
        .advise([left, advice].iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join("; "))
}

/// Starts a thread that makes the copy of a request.
pub(crate) fn start(stream: UnixStream, request: &str, vfs: &Arc<Vfs>) -> io::Result<()> {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    let Some(request) = parse(request.trim_end()) else { return Err(ErrorKind::InvalidData.into()) };
    // Keep a weak reference, because the thread must not keep the mount's parts from being dropped.
    let vfs = Arc::downgrade(vfs);
    let work = move || {
        let served = match Running::begin(&RUNNING, MAX_RUNNING) {
            Some(_running) => serve(&stream, &request, &vfs),
            None => send(&stream, &too_many()),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "the client of a copy does not answer");
        }
    };
    thread::Builder::new().name("limen-clone".into()).spawn(work).map(drop)
}

fn parse(request: &str) -> Option<CloneRequest> {
    let mut words = request.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (source, parent, threads) = (Ino(number()?), Ino(number()?), usize::try_from(number()?).ok()?);
    let name = Name::new(&from_hex(words.next()?)?).ok()?;
    Some(CloneRequest { source, parent, name, threads: threads.clamp(1, 64) })
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks_exact(2);
    if !digits.remainder().is_empty() {
        return None;
    }
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The events that a thread that serves a client waits for.
enum Event {
    /// The client looks for the copy and does not find it.
    Line,
    /// The client has closed the connection or its sending side.
    Closed,
    /// The copy has ended; `None` if its thread has panicked.
    Done(Option<Result<Inode, CloneFailure>>),
}

fn serve(stream: &UnixStream, request: &CloneRequest, vfs: &Weak<Vfs>) -> io::Result<()> {
    let Some(strong) = vfs.upgrade() else { return Ok(()) };
    stream.set_read_timeout(None)?;
    let (progress, stop) = (CloneProgress::default(), AtomicBool::new(false));
    let (send_event, events) = mpsc::channel();
    let (of_reader, of_clone) = (send_event.clone(), send_event);
    thread::scope(|scope| {
        scope.spawn(move || {
            let lines = BufReader::new(stream.take(u64::from(MAX_LOOKS))).lines();
            // After the last answer to the client, no event is received, and none is needed.
            lines.map_while(Result::ok).for_each(|_| _ = of_reader.send(Event::Line));
            let _ = of_reader.send(Event::Closed);
        });
        let (progress, stop) = (&progress, &stop);
        scope.spawn(move || {
            let clone = || strong.clone_tree(request, progress, &|| stop.load(Ordering::Acquire));
            // After a panic, the loop below would not end without this event. Other threads continue to use
            // the volume, as after a panic in the handler of a kernel request.
            let done = catch_unwind(AssertUnwindSafe(clone)).ok();
            let _ = of_clone.send(Event::Done(done));
        });
        let done = loop {
            match events.recv_timeout(PROGRESS_EVERY) {
                Ok(Event::Done(done)) => break done,
                Ok(Event::Line) => {}
                Ok(Event::Closed) => stop.store(true, Ordering::Release),
                Err(RecvTimeoutError::Timeout) => {
                    if send(stream, &json!({ "clone": Counted::of(progress).to_json() })).is_err() {
                        stop.store(true, Ordering::Release);
                    }
                }
                // Both threads have sent their last event.
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        let mut served = send(stream, &answer(done.as_ref(), Counted::of(progress)));
        if matches!(done, Some(Ok(_))) {
            served = served.and_then(|()| expire(stream, request, vfs, &events));
        }
        // This ends the thread that reads.
        let _ = stream.shutdown(Shutdown::Both);
        served
    })
}

/// The answer to a request beyond [`MAX_RUNNING`].
fn too_many() -> Value {
    let error =
        format!("the mount makes {MAX_RUNNING} copies already: run the command again when one has ended");
    json!({ "error": error, "kind": "failed", "errno": Errno::EAGAIN.raw(), "removed": true })
}

/// The last line for the client.
fn answer(done: Option<&Result<Inode, CloneFailure>>, counted: Counted) -> Value {
    let (error, is_removed) = match done {
        Some(Ok(inode)) => return json!({ "done": counted.to_json(), "ino": inode.ino.0 }),
        Some(Err(CloneFailure { error, is_removed })) => (error, *is_removed),
        None => {
            return json!({ "error": "a thread of the mount has panicked", "kind": "failed", "removed": false });
        }
    };
    let (kind, errno) = match error {
        CloneError::Interrupted => ("interrupted", None),
        CloneError::QuotaChanged => ("quota", None),
        CloneError::Failed(Failure::Operation(errno)) => ("failed", Some(errno.raw())),
        CloneError::Failed(_) => ("failed", None),
    };
    json!({ "error": error.to_string(), "kind": kind, "errno": errno, "removed": is_removed })
}

/// Makes the kernel forget the name each time that the client does not find the copy.
fn expire(
    stream: &UnixStream,
    request: &CloneRequest,
    vfs: &Weak<Vfs>,
    events: &mpsc::Receiver<Event>,
) -> io::Result<()> {
    loop {
        let event = events.recv_timeout(LOOK_FOR);
        // Do this once more at the end: the kernel may have read the attributes of the directory before the
        // copy appeared, and stored them after that.
        if let Some(vfs) = vfs.upgrade() {
            vfs.expire_entry(request.parent, &request.name);
        }
        if !matches!(event, Ok(Event::Line)) {
            return Ok(());
        }
        send(stream, &json!({ "again": true }))?;
    }
}

fn send(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}

/// Lets the mount that is registered as `entry` make a copy, which is to appear at `path`. `seen` gets the
/// progress. The copy is abandoned when `stop` returns true.
///
/// # Errors
/// The copy was not made, or the mount does not answer.
pub fn request(
    entry: &Entry,
    request: &CloneRequest,
    path: &Path,
    seen: &mut dyn FnMut(Counted),
    stop: &dyn Fn() -> bool,
) -> Result<Counted, CliError> {
    let CloneRequest { source, parent, name, threads } = request;
    let line = format!("{REQUEST}{source} {parent} {threads} {}", to_hex(name.as_bytes()));
    let stream = entry.connect(&line)?;
    stream.set_read_timeout(Some(IDLE_EVERY))?;
    let mut answers = Answers::new(BufReader::new(&stream));
    let mut is_stopped = false;
    let mut check = || {
        if stop() && !is_stopped {
            is_stopped = true;
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    };
    loop {
        check()?;
        let value = answers.next(&mut check)?;
        if let Some(counted) = Counted::from_json(&value["clone"]) {
            seen(counted);
        } else if let Some(counted) = Counted::from_json(&value["done"]) {
            let ino = value["ino"].as_u64().unwrap_or(0);
            look_up(&stream, &mut answers.reader, path, entry.device, ino);
            return Ok(counted);
        } else if let Some(error) = value["error"].as_str() {
            let errno = value["errno"].as_i64().and_then(|raw| i32::try_from(raw).ok());
            let of_kind = match (value["kind"].as_str(), errno) {
                (Some("interrupted"), _) => CloneError::Interrupted,
                (Some("quota"), _) => CloneError::QuotaChanged,
                (_, Some(raw)) => CloneError::Failed(Failure::Operation(Errno::from_raw(raw))),
                (_, None) => CloneError::Failed(Failure::Operation(Errno::EIO)),
            };
            return Err(refused(error, &of_kind, value["removed"] == true));
        } else {
            return Err(
                CliError::new("the mount belongs to an older version of limen").advise("mount it again")
            );
        }
    }
}

/// Looks the copy up, so that the kernel knows it when the command ends.
fn look_up(mut stream: &UnixStream, reader: &mut impl BufRead, path: &Path, device: u64, ino: u64) {
    for _ in 0..MAX_LOOKS {
        let is_there = |found: std::fs::Metadata| found.dev() == device && found.ino() == ino;
        // A copy that others have already removed or renamed is not found either, which is no error.
        if std::fs::symlink_metadata(path).is_ok_and(is_there) || stream.write_all(b"\n").is_err() {
            return;
        }
        let mut line = String::new();
        if stream.set_read_timeout(Some(LOOK_FOR)).is_err() || !matches!(reader.read_line(&mut line), Ok(1..))
        {
            return;
        }
        thread::sleep(LOOK_AGAIN_AFTER);
    }
}

/// The parent directory of a path, and the name in it.
///
/// # Errors
/// The path does not end in a name, or the name is too long.
pub fn split(path: &Path) -> Result<(&Path, Name), CliError> {
    let wrong = || {
        CliError::usage("the path does not end in a name")
            .at(path.display())
            .advise("name the copy itself, which must not exist")
    };
    let name =
        path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/.")).ok_or_else(wrong)?;
    let name = Name::new(name.as_bytes()).map_err(|errno| CliError::new(errno).at(path.display()))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_carry_any_name() {
        let request = parse("7 2 4 61ff0a20").unwrap();
        assert_eq!((request.source, request.parent, request.threads), (Ino(7), Ino(2), 4));
        assert_eq!(request.name.as_bytes(), b"a\xff\n ");
        assert_eq!(to_hex(request.name.as_bytes()), "61ff0a20");
        for wrong in ["", "7", "7 2 4", "7 2 4 6", "7 2 4 zz", "x 2 4 61", "7 2 4 2f", "7 2 4 "] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn paths_are_split_into_directory_and_name() {
        for (path, parent, name) in [("a", ".", "a"), ("a/b/", "a", "b"), ("/a", "/", "a")] {
            let (found, last) = split(Path::new(path)).unwrap();
            assert_eq!((found, last.as_bytes()), (Path::new(parent), name.as_bytes()), "{path}");
        }
        for path in ["/", ".", "..", "a/..", "a/."] {
            assert_eq!(split(Path::new(path)).unwrap_err().exit_code(), 2, "{path}");
        }
    }
}
