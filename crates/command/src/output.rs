//! Output on standard output; notes and progress on standard error.

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

pub use indicatif::ProgressBar;
use indicatif::ProgressStyle;
use serde_json::Value;

use crate::fault::Fault;

/// Prints `text` unchanged. A closed pipe, as in `limen status ... | head -1`, is not an error.
///
/// # Errors
/// Standard output cannot be written, e.g. because a disk is full.
pub fn print(text: &str) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Fault::new(format!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// Those of [`print`].
pub fn print_json(value: &Value) -> Result<(), Fault> {
    print(&format!("{value:#}\n"))
}

/// Prints a message for the user on standard error.
pub fn note(text: impl std::fmt::Display) {
    // If standard error is closed, the message cannot be shown anywhere else.
    let _ = writeln!(io::stderr(), "limen: {text}");
}

/// Lines of a label and a value; the values are aligned.
#[derive(Debug, Default)]
pub struct Table(Vec<(String, String)>);

impl Table {
    pub fn row(&mut self, label: impl Into<String>, value: impl ToString) {
        self.0.push((label.into(), value.to_string()));
    }

    pub fn render(&self) -> String {
        let width = self.0.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        self.0.iter().map(|(label, value)| format!("{label:width$}  {value}\n")).collect()
    }
}

/// A progress display for an unknown amount of work; hidden if standard error is not a terminal.
pub fn progress(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}: {pos} ({per_sec})");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A progress display for a known amount of work; hidden if standard error is not a terminal.
pub fn progress_of(what: &'static str, parts: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:12} [{bar:30}] {pos} of {len} ({per_sec})");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(parts).with_style(style.progress_chars("=> ")).with_message(what)
}

/// A progress bar of `steps` steps; hidden if standard error is not a terminal.
pub fn steps(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("[{bar:30}] {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_in_one_column() {
        let mut table = Table::default();
        table.row("name", "a");
        table.row("format version", 1);
        assert_eq!(table.render(), "name            a\nformat version  1\n");
    }
}
