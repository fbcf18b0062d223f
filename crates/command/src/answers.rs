//! Reads the lines of JSON with which a mount answers a request that may take long.

use std::io::{BufRead, ErrorKind};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::CliError;

/// The timeout of reads on the connection, after which `idle` is called.
pub(crate) const IDLE_EVERY: Duration = Duration::from_millis(200);

/// How long to wait for the next line. One step, such as the removal of an interrupted copy, may take long.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Reads the lines of a connection whose timeout is [`IDLE_EVERY`].
#[derive(Debug)]
pub(crate) struct Answers<R> {
    pub(crate) reader: R,
    line: Vec<u8>,
}

impl<R: BufRead> Answers<R> {
    pub(crate) fn new(reader: R) -> Self {
        Answers { reader, line: Vec::new() }
    }

    /// Waits for the next line. While there is none, calls `idle`, whose error ends the wait.
    ///
    /// # Errors
    /// The mount has closed the connection, or does not answer; those of `idle`.
    pub(crate) fn next(&mut self, mut idle: impl FnMut() -> Result<(), CliError>) -> Result<Value, CliError> {
        let began = Instant::now();
        loop {
            match self.reader.read_until(b'\n', &mut self.line) {
                Ok(_) if self.line.last() == Some(&b'\n') => {
                    return Ok(serde_json::from_slice(&std::mem::take(&mut self.line))?);
                }
                Ok(_) => {
                    return Err(CliError::new("the mount has closed the connection")
                        .advise("it serves too many of these requests, or its log tells why"));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if began.elapsed() > TIMEOUT {
                        return Err(CliError::new("the mount does not answer"));
                    }
                    idle()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
