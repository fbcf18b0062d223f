//! `limen mount -d`: starts a process in the background, and returns when that process serves requests.
//!
//! limen executes itself again instead of forking, because a program with threads cannot fork safely. The
//! first process waits for reports of the new process (see `report`). The standard error of the new process
//! is the log.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::absolute;
use std::process::{Child, Command, ExitStatus, Stdio};

use command::error::{CliError, ErrorAt};
use command::output;
use command::paths;

use crate::log;
use crate::network::PASSWORD_VARIABLE;
use crate::options::{MountArgs, Options};
use crate::public::warn_if_public;
use crate::take_over;
use crate::url::MetaUrl;

/// The maximum length of a report. A longer one is truncated.
const MAX_LINE_BYTES: u64 = 4096;

/// The message if no process could be started.
pub(crate) const CANNOT_START: &str = "cannot start the background process";

/// Starts the background process, and waits until it serves requests. Returns the message for the user.
///
/// # Errors
/// The arguments are invalid; the volume cannot be opened; the log file cannot be created; the background
/// process reports an error, or ends without a report.
pub(crate) fn start(args: &MountArgs) -> Result<String, CliError> {
    // Before a log file is created, report the errors that this process can already find.
    let mut options = Options::parse(&args.options, rustix::process::geteuid().is_root())?;
    options.apply(args)?;
    let rights = args.rights.with(&options.rights)?;
    rights.traversers(&rights.ids()?)?;
    let url = MetaUrl::parse(&args.url)?;
    let volume = match &url {
        MetaUrl::Memory(name) => name.clone(),
        MetaUrl::Sqlite(_) | MetaUrl::Network(_) => url.open_volume()?.1.name,
    };
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let previous = args.take_over.then(|| take_over::find(&url, &mountpoint)).transpose()?;
    let log_path = match (&options.log, previous.and_then(|entry| entry.log)) {
        (Some(path), _) => absolute(path).usage().at(path.display())?,
        (None, Some(path)) => path,
        (None, None) => log::default_path(&volume)?,
    };
    let log_file = log::open(&log_path)?;

    let mut command = Command::new("/proc/self/exe");
    command.arg0("limen").args(["mount", "--report", "--log"]).arg(&log_path);
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    let own = [
        ("metrics", args.metrics.map(|place| place.to_string())),
        ("slow_ops", args.slow_ops.map(|ms| ms.to_string())),
    ];
    for (option, value) in own {
        if let Some(value) = value {
            // This comes after the lists, because a later option takes precedence.
            command.arg("-o").arg(format!("{option}={value}"));
        }
    }
    if let Some(path) = &options.subdir {
        command.arg("--subdir").arg(path);
    }
    if args.take_over {
        command.arg("--take-over");
    }
    args.rights.pass_to(&mut command)?;
    if let Some(path) = &options.keys.key_file {
        let path = absolute(path).usage().at(path.display())?;
        // The background process would write the warning only to its log.
        warn_if_public("key of the volume", &path);
        command.arg("--key-file").arg(path);
    }
    if let MetaUrl::Network(url) = &url
        && let Some(password) = url.password()
    {
        command.env(PASSWORD_VARIABLE, password.reveal());
    }
    command.arg("--").arg(url.to_string()).arg(&mountpoint);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    let child = command.spawn().what(CANNOT_START)?;
    let log_path = log_path.display();
    follow(child, &log_path.to_string())?;
    let mountpoint = mountpoint.display();
    Ok(match args.take_over {
        true => {
            format!("The mount of volume '{volume}' at {mountpoint} was taken over; its log is {log_path}.\n")
        }
        false => format!("Volume '{volume}' is mounted at {mountpoint}; its log is {log_path}.\n"),
    })
}

/// Prints the notes that the background process reports, until it serves requests or fails.
fn follow(mut child: Child, log: &str) -> Result<(), CliError> {
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
            ("error", text) => return Err(CliError::new(text)),
            ("ready", _) => return Ok(()),
            _ => {}
        }
    }
    let how = child.wait().map_or_else(|error| error.to_string(), describe);
    Err(CliError::new(format!("the background process ended before it served: {how}"))
        .advise(format!("see its log {log}")))
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("by signal {signal}"),
        None => format!("with exit code {}", status.code().unwrap_or(0)),
    }
}
