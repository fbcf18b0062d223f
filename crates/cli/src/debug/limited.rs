//! Runs commands in child processes with a time limit.
//!
//! A thread cannot be used for a request to a mount: if the mount hangs, a process with a pending request
//! cannot end, not even by SIGKILL. So a child sends the request, and is abandoned if it hangs.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// The limit for a command of limen. The command itself gives up on a database after 20 seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The limit for a request to a file system.
const SPACE_LIMIT: Duration = Duration::from_secs(5);

/// The output of a command of this program.
pub(super) fn limen(args: &[&str]) -> Result<String, String> {
    run("/proc/self/exe", args, LIMIT)
}

/// The free space of the file systems at these paths.
pub(super) fn space(paths: &[&str]) -> Result<String, String> {
    run("df", &[&["-kP", "--"], paths].concat(), SPACE_LIMIT)
}

fn run(program: &str, args: &[&str], limit: Duration) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let until = Instant::now() + limit;
    let (out, err) = (child.stdout.take().map(read), child.stderr.take().map(read));
    let text = |from: Option<Receiver<String>>| {
        let left = until.saturating_duration_since(Instant::now());
        from.and_then(|from| from.recv_timeout(left).ok())
    };
    let (Some(out), Some(err)) = (text(out), text(err)) else {
        // A child that hangs in the kernel ends when its request returns. Nothing waits for that.
        let _ = child.kill();
        return Err(format!("no answer within {} s", limit.as_secs()));
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(out + &err) } else { Err(err) }
}

/// Reads a stream to its end in a thread.
fn read(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // The bytes that were read before an error are the output. After the time limit, sending them fails,
        // because the receiver is gone.
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_abandoned() {
        let begun = Instant::now();
        let error = run("sleep", &["60"], Duration::from_secs(1)).unwrap_err();
        assert_eq!(error, "no answer within 1 s");
        assert!(begun.elapsed() < Duration::from_secs(50));
        assert_eq!(run("echo", &["x"], LIMIT).as_deref(), Ok("x\n"));
        assert!(run("ls", &["/no/such"], LIMIT).unwrap_err().contains("/no/such"));
        assert!(run("/no/such", &[], LIMIT).unwrap_err().contains("/no/such"));
        assert!(space(&["/"]).unwrap().contains('%'));
    }
}
