//! `limen mount -d`: starts a background process that serves, and returns when it does.
//!
//! limen executes itself again instead of forking, because a program with threads cannot fork safely. The new
//! process reports to the command that waits, one line each on its standard output: any number of
//! `note TEXT`, then `ready` or `fault TEXT`. Its standard error is the log.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::absolute;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::args::MountArgs;
use crate::fault::Fault;
use crate::log;
use crate::network::PASSWORD_VARIABLE;
use crate::options::Options;
use crate::output;
use crate::paths;
use crate::url::MetaUrl;

/// Longer messages from the new process are truncated.
const MAX_LINE_BYTES: u64 = 4096;

/// Starts the process that serves, and returns when the mount serves requests.
///
/// # Errors
/// The reason why the mount does not serve.
pub(crate) fn start(args: &MountArgs) -> Result<(), Fault> {
    // Report errors that can be found now before a log file is created.
    let options = Options::parse(&args.options, rustix::process::geteuid().is_root())?;
    let rights = args.rights.with(&options.rights)?;
    rights.traversers(&rights.ids()?)?;
    let url = MetaUrl::parse(&args.url)?;
    let volume = match &url {
        MetaUrl::Memory(name) => name.clone(),
        MetaUrl::Sqlite(_) | MetaUrl::Network(_) => url.open_volume()?.1.name,
    };
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let log_path = match &args.log {
        Some(path) => absolute(path).map_err(|error| Fault::usage(error).at(path.display()))?,
        None => log::default_path(&volume)?,
    };
    let log_file = log::open(&log_path)?;

    let mut command = Command::new("/proc/self/exe");
    command.arg0("limen").args(["mount", "--report", "--log"]).arg(&log_path);
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    args.rights.pass_to(&mut command)?;
    if let Some(path) = &args.keys.key_file {
        let path = absolute(path).map_err(|error| Fault::usage(error).at(path.display()))?;
        command.arg("--key-file").arg(path);
    }
    if let MetaUrl::Network(url) = &url
        && let Some(password) = url.password()
    {
        command.env(PASSWORD_VARIABLE, password.reveal());
    }
    command.arg("--").arg(url.to_string()).arg(&mountpoint);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    let child = command
        .spawn()
        .map_err(|error| Fault::new(format!("cannot start the background process: {error}")))?;
    let log_path = log_path.display();
    follow(child, &log_path.to_string())?;
    output::print(&format!(
        "Volume '{volume}' is mounted at {}; its log is {log_path}.\n",
        mountpoint.display()
    ))
}

/// Prints the notes of the new process, until it serves or fails.
fn follow(mut child: Child, log: &str) -> Result<(), Fault> {
    let mut lines = child.stdout.take().map(BufReader::new);
    let mut next = || -> Option<String> {
        let mut line = Vec::new();
        let reader = lines.as_mut()?;
        reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut line).ok()?;
        (!line.is_empty()).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())
    };
    while let Some(line) = next() {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("note", text) => output::note(text),
            ("fault", text) => return Err(Fault::new(text)),
            ("ready", _) => return Ok(()),
            _ => {}
        }
    }
    let how = child.wait().map_or_else(|error| error.to_string(), describe);
    Err(Fault::new(format!("the background process ended before it served: {how}"))
        .advise(format!("see its log {log}")))
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("by signal {signal}"),
        None => format!("with exit code {}", status.code().unwrap_or(0)),
    }
}

/// Where a process that serves reports its start: in the foreground to its log only, in the background also
/// to the process that waits for it.
#[derive(Debug)]
pub(crate) struct Report {
    background: bool,
}

impl Report {
    pub(crate) fn foreground() -> Self {
        Report { background: false }
    }

    /// Also leaves the terminal's session, so that the terminal's signals do not reach this process.
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
    pub(crate) fn fault(&self, fault: Fault) -> Fault {
        if !self.background {
            return fault;
        }
        tracing::error!("{fault}");
        // After `ready`, no process waits any more; the log has the error.
        let _ = say("fault", &fault.to_string());
        fault.told()
    }

    /// Reports that the mount serves requests.
    ///
    /// # Errors
    /// The process that waited is gone, so the mount is not wanted.
    pub(crate) fn ready(&self) -> Result<(), Fault> {
        if !self.background {
            return Ok(());
        }
        let null = || -> io::Result<File> {
            say("ready", "")?;
            OpenOptions::new().write(true).open("/dev/null")
        };
        let quiet = null().and_then(|null| Ok(rustix::stdio::dup2_stdout(null)?));
        quiet.map_err(|error| Fault::new(format!("the command that waited for the mount is gone: {error}")))
    }
}

fn say(kind: &str, text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{kind} {}\n", text.replace('\n', " ")).as_bytes())?;
    out.flush()
}
