//! Requests of tools about single files of a mount: to compact a file, to say how much of it is cached, and
//! to remove it from the cache. The mount's process serves them, because it has a session and the caches.
//!
//! The first line that the client sends names the request ([`FileRequest`]), and the mount answers that it is
//! ready. Each further line is the number of an inode, which the mount answers with a line of JSON.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use serde_json::{Value, json};
use types::{Errno, Ino};
use vfs::{CachedBytes, Compacted, Vfs};

use crate::answers::{Answers, IDLE_EVERY};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::registry::Entry;
use crate::running::Running;

/// Connections that one mount serves at the same time. It refuses further ones.
pub const MAX_CONNECTIONS: usize = 64;
/// The longest line of a client: a number.
const MAX_LINE_BYTES: u64 = 32;

/// The request for each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRequest {
    /// Rewrites the chunks that have several rows, so that they have fewer.
    Compact,
    /// Returns how much of the file is cached.
    Cached,
    /// Removes the file from the caches, and returns how much of it was cached.
    Evict,
}

impl FileRequest {
    fn line(self) -> &'static str {
        match self {
            FileRequest::Compact => "compact",
            FileRequest::Cached => "cached",
            FileRequest::Evict => "evict",
        }
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        [FileRequest::Compact, FileRequest::Cached, FileRequest::Evict]
            .into_iter()
            .find(|request| request.line() == line)
    }

    fn serve(self, vfs: &Vfs, ino: Ino) -> Result<Value, Errno> {
        let cached = |CachedBytes { stored, cached }| json!({ "stored": stored, "cached": cached });
        match self {
            FileRequest::Compact => {
                let Compacted { rows_before, rows_after, bytes } = vfs.compact(ino)?;
                Ok(json!({ "rows_before": rows_before, "rows_after": rows_after, "bytes": bytes }))
            }
            FileRequest::Cached => vfs.cached_bytes(ino).map(cached),
            FileRequest::Evict => vfs.evict(ino).map(cached),
        }
    }
}

/// Starts a thread that serves a client.
pub(crate) fn start(stream: UnixStream, request: FileRequest, vfs: &Arc<Vfs>) -> io::Result<()> {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    // Keep a weak reference, because the thread must not keep the mount's parts from being dropped.
    let vfs = Arc::downgrade(vfs);
    let work = move || {
        let served = match Running::begin(&RUNNING, MAX_CONNECTIONS) {
            Some(_running) => serve(&stream, request, &vfs),
            None => send(&stream, &too_many()),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "the client of a tool does not answer");
        }
    };
    thread::Builder::new().name("limen-tool".into()).spawn(work).map(drop)
}

/// The answer to a connection beyond [`MAX_CONNECTIONS`].
fn too_many() -> Value {
    let error = format!(
        "the mount serves {MAX_CONNECTIONS} connections of tools already: run the command again when others have ended"
    );
    json!({ "error": error, "errno": Errno::EAGAIN.raw() })
}

fn send(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}

fn serve(stream: &UnixStream, request: FileRequest, vfs: &Weak<Vfs>) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    // The client waits for this line before it sends inode numbers. Otherwise the buffered reader that read
    // its first line could have consumed some of them.
    send(stream, &json!({ "ready": true }))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        (&mut reader).take(MAX_LINE_BYTES).read_line(&mut line)?;
        let (Ok(ino), Some(vfs)) = (line.trim_end().parse(), vfs.upgrade()) else { return Ok(()) };
        let answer = request
            .serve(&vfs, Ino(ino))
            .unwrap_or_else(|errno| json!({ "error": errno.to_string(), "errno": errno.raw() }));
        drop(vfs);
        send(stream, &answer)?;
    }
}

/// Connections to the mount that is registered as `entry`, one for each thread that asks.
#[derive(Debug)]
pub struct FileRequests<'a> {
    entry: &'a Entry,
    request: FileRequest,
    interrupt: &'a Interrupt,
    idle: Mutex<Vec<UnixStream>>,
}

impl<'a> FileRequests<'a> {
    pub fn new(entry: &'a Entry, request: FileRequest, interrupt: &'a Interrupt) -> Self {
        FileRequests { entry, request, interrupt, idle: Mutex::default() }
    }

    /// Opens the first connection.
    ///
    /// # Errors
    /// The mount belongs to an older version, or does not answer.
    pub fn connect_first(&self) -> Result<(), CliError> {
        let stream = self.connect()?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(())
    }

    /// The mount's answer for a file. For [`FileRequest::Compact`] it has `rows_before`, `rows_after` and
    /// `bytes`, for the other requests `stored` and `cached`.
    ///
    /// # Errors
    /// The mount refuses the request, or does not answer; the user has interrupted the command.
    pub fn ask(&self, ino: u64) -> Result<Value, CliError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let stream = match idle {
            Some(stream) => stream,
            None => self.connect()?,
        };
        (&stream).write_all(format!("{ino}\n").as_bytes())?;
        let value = self.answer(&stream)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        match value["error"].as_str() {
            Some(error) => Err(CliError::new(error)),
            None => Ok(value),
        }
    }

    fn connect(&self) -> Result<UnixStream, CliError> {
        let stream = self.entry.connect(self.request.line())?;
        stream.set_read_timeout(Some(IDLE_EVERY))?;
        let answer = self.answer(&stream)?;
        match answer["error"].as_str() {
            _ if answer["ready"] == true => Ok(stream),
            Some(error) => Err(CliError::new(error)),
            // An older version ignores the request and sends its statistics.
            None => {
                Err(CliError::new("the mount belongs to an older version of limen").advise("mount it again"))
            }
        }
    }

    fn answer(&self, stream: &UnixStream) -> Result<Value, CliError> {
        Answers::new(BufReader::new(stream)).next(|| self.interrupt.check())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_by_their_lines() {
        for request in [FileRequest::Compact, FileRequest::Cached, FileRequest::Evict] {
            assert_eq!(FileRequest::from_line(request.line()), Some(request));
        }
        assert_eq!(FileRequest::from_line("statistics"), None);
    }
}
