//! Reports that a test cannot run here.
//!
//! A test that merely returns counts as passed. So each test that returns early calls a function of this
//! crate, which prints one line with the test's name and the reason. `scripts/test.sh` subtracts the tests
//! that did not run from the passed ones, and prints the lines of skipped tests at its end. A test that lacks
//! something that can be provided, such as root or a server, fails instead, unless [`ALLOW`] is set.
//!
//! The lines go to the process's standard error directly, because the test harness captures `eprintln!` of
//! tests that pass.

use std::env;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

/// The environment variable that, if not empty, allows tests to be skipped.
pub const ALLOW: &str = "LIMEN_ALLOW_SKIPS";

/// Reports that the calling test is skipped because `what` is missing; the test must then return. This is for
/// things that can be provided: root, a program, a server.
///
/// # Panics
/// If [`ALLOW`] is not set.
#[track_caller]
pub fn missing(what: &str) {
    let allowed = env::var_os(ALLOW).is_some_and(|value| !value.is_empty());
    if let Err(message) = check(allowed, what) {
        panic!("{message}");
    }
    say("SKIPPED", what);
}

/// Reports that the calling test is skipped because the kernel does not support `what`; the test must then
/// return.
pub fn unsupported(what: &str) {
    say("SKIPPED", what);
}

/// Reports that the calling test leaves a part out because the kernel does not support `what`.
pub fn unsupported_in_part(what: &str) {
    say("SKIPPED IN PART", what);
}

/// Reports that the calling test does not run in this step of `make test`, because the later step `step` runs
/// it; the test must then return.
pub fn later(step: &str) {
    say("LATER", step);
}

/// Whether the calling test runs in `make test-long`, which sets `LIMEN_LONG`. If not, reports that the test
/// is skipped; it must then return.
pub fn is_long() -> bool {
    let is_long = env::var_os("LIMEN_LONG").is_some();
    if !is_long {
        say("SKIPPED", "it is a part of `make test-long`");
    }
    is_long
}

/// The time for which a test of `make test-long` runs if it has no end of its own: ten minutes, or as many
/// seconds as `LIMEN_LONG_SECONDS` says. If the calling test does not run in `make test-long`, returns `None`
/// and reports that the test is skipped, like [`is_long`].
///
/// # Panics
/// If `LIMEN_LONG_SECONDS` is not a number.
pub fn long_time() -> Option<Duration> {
    const SECONDS: &str = "LIMEN_LONG_SECONDS";
    is_long().then(|| {
        let seconds = env::var(SECONDS).unwrap_or_else(|_| "600".to_owned());
        let seconds =
            seconds.parse().unwrap_or_else(|_| panic!("{SECONDS}={seconds} is not a number of seconds"));
        Duration::from_secs(seconds)
    })
}

/// Whether this process runs as root. If not, reports that the calling test is skipped, like [`missing`].
///
/// # Panics
/// Like [`missing`].
#[track_caller]
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        missing("root: it mounts file systems or acts as several users");
    }
    is_root
}

fn check(allowed: bool, what: &str) -> Result<(), String> {
    if allowed {
        return Ok(());
    }
    Err(format!(
        "this test cannot run without {what}; provide it, or set {ALLOW}=1 to skip tests that cannot run"
    ))
}

fn say(how: &str, why: &str) {
    let line = line(how, &test_name(), why);
    // Use a single write, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Starts with a line break, because `cargo test --quiet` prints dots.
fn line(how: &str, test: &str, why: &str) -> String {
    format!("\n{how}: {test}: {}\n", why.replace('\n', " "))
}

/// The test program and the test. The harness names each test's thread after the test, unless it runs one
/// test at a time.
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
    fn missing_requirement_fails_unless_skips_are_allowed() {
        assert_eq!(check(true, "a server"), Ok(()));
        let message = check(false, "a server").unwrap_err();
        assert!(message.contains("a server") && message.contains(ALLOW), "{message}");
    }

    #[test]
    fn skip_line_names_the_test_and_the_reason() {
        assert_eq!(test_name(), "skip::tests::skip_line_names_the_test_and_the_reason");
        assert_eq!(line("SKIPPED", "a::b", "c\nd"), "\nSKIPPED: a::b: c d\n");
    }
}
