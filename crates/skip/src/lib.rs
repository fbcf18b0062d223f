//! How a test says that it cannot run here.
//!
//! A test that merely returns counts as passed. So each test that returns early calls a function of this crate, which writes
//! one line with the test's name and the reason. `scripts/test.sh` counts these lines, takes them off the tests that passed,
//! and prints them at the end. A test of something that can be provided, such as root or a server, fails instead, unless
//! [`ALLOW`] is set.
//!
//! The lines go to the process's standard error itself: `eprintln!` is captured by the test harness if the test passes.

use std::env;
use std::io::{self, Write};
use std::thread;

/// The environment variable that allows tests to be skipped, if it is not empty.
pub const ALLOW: &str = "LIMEN_ALLOW_SKIPS";

/// The test that calls this does not run, because `what` is missing, which can be provided: a right, a program, a server.
///
/// # Panics
/// Unless [`ALLOW`] is set.
#[track_caller]
pub fn missing(what: &str) {
    let is_allowed = env::var_os(ALLOW).is_some_and(|value| !value.is_empty());
    if let Err(message) = judge(is_allowed, what) {
        panic!("{message}");
    }
    say("SKIPPED", what);
}

/// The test that calls this does not run, because the kernel cannot do `what`.
pub fn unsupported(what: &str) {
    say("SKIPPED", what);
}

/// The test that calls this runs but for a part, because the kernel cannot do `what`.
pub fn unsupported_in_part(what: &str) {
    say("SKIPPED IN PART", what);
}

/// The test that calls this does not run in this step of `make test`, but in another one.
pub fn later(step: &str) {
    say("LATER", step);
}

/// Whether this process is root's. If not, the test that calls this is skipped as by [`missing`].
///
/// # Panics
/// As [`missing`].
#[track_caller]
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        missing("root: it mounts file systems or acts as several users");
    }
    is_root
}

fn judge(is_allowed: bool, what: &str) -> Result<(), String> {
    if is_allowed {
        return Ok(());
    }
    Err(format!("this test cannot run without {what}; provide it, or set {ALLOW}=1 to skip what cannot run"))
}

fn say(how: &str, why: &str) {
    let line = line(how, &test_name(), why);
    // One write, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// It begins on a line of its own, after the dots of `cargo test --quiet`.
fn line(how: &str, test: &str, why: &str) -> String {
    format!("\n{how}: {test}: {}\n", why.replace('\n', " "))
}

/// The program and the test in it. The harness names the thread of a test after it, unless it runs one test at a time.
fn test_name() -> String {
    let path = env::current_exe().unwrap_or_default();
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = file.rsplit_once('-').map_or(file.as_str(), |(program, _)| program).to_owned();
    format!("{program}::{}", thread::current().name().unwrap_or("a test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_thing_fails_unless_it_is_allowed() {
        assert_eq!(judge(true, "a server"), Ok(()));
        let message = judge(false, "a server").unwrap_err();
        assert!(message.contains("a server") && message.contains(ALLOW), "{message}");
    }

    #[test]
    fn a_line_names_the_test_and_the_reason() {
        assert_eq!(test_name(), "skip::tests::a_line_names_the_test_and_the_reason");
        assert_eq!(line("SKIPPED", "a::b", "c\nd"), "\nSKIPPED: a::b: c d\n");
    }
}
