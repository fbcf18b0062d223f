//! The reports of a process that serves a mount. They go to its log; in the background, they also go to the
//! command that waits for the process.
//!
//! To that command, each report is a line on standard output: `note TEXT` any number of times, then `ready`
//! or `error TEXT`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use command::error::CliError;

/// Where a process that serves a mount reports its start: in the foreground only to its log, in the
/// background also to the process that waits for it.
#[derive(Debug)]
pub(crate) struct Report {
    background: bool,
}

impl Report {
    pub(crate) fn foreground() -> Self {
        Report { background: false }
    }

    /// Reports also go to the process that waits. This process leaves the terminal's session, so that the
    /// terminal's signals do not reach it.
    pub(crate) fn background() -> Self {
        // Without this, ps(1) would show the name "exe", because the process was started through
        // /proc/self/exe.
        if let Err(error) = rustix::thread::set_name(c"limen") {
            tracing::debug!(%error, "cannot set the process name");
        }
        // This fails only if the process leads a process group already, e.g. if a shell started it with
        // --report.
        if let Err(error) = rustix::process::setsid() {
            tracing::debug!(%error, "cannot start a new session");
        }
        Report { background: true }
    }

    pub(crate) fn is_background(&self) -> bool {
        self.background
    }

    pub(crate) fn note(&self, text: &str) {
        tracing::info!("{text}");
        if self.background {
            // If the waiting process is gone, `ready` reports it.
            let _ = say("note", text);
        }
    }

    /// Reports why the mount does not serve or did not end cleanly.
    pub(crate) fn error(&self, error: CliError) -> CliError {
        if !self.background {
            return error;
        }
        tracing::error!("{error}");
        // After `ready`, no process waits any more; the log has the error.
        let _ = say("error", &error.to_string());
        error.mark_reported()
    }

    /// Reports that the mount serves requests.
    ///
    /// # Errors
    /// The process that waited is gone, so the user does not expect the mount.
    pub(crate) fn ready(&self) -> Result<(), CliError> {
        if !self.background {
            return Ok(());
        }
        let null = || -> io::Result<File> {
            say("ready", "")?;
            OpenOptions::new().write(true).open("/dev/null")
        };
        let quiet = null().and_then(|null| Ok(rustix::stdio::dup2_stdout(null)?));
        quiet
            .map_err(|error| CliError::new(format!("the command that waited for the mount is gone: {error}")))
    }
}

fn say(kind: &str, text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{kind} {}\n", text.replace('\n', " ")).as_bytes())?;
    out.flush()
}
