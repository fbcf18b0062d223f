//! Output on standard output; notes and progress on standard error.

use std::fmt;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::time::Duration;

use indicatif::{HumanCount, ProgressState, ProgressStyle};
pub use indicatif::{HumanDuration, ProgressBar};
use serde_json::Value;

use crate::error::CliError;

/// Prints `text` unchanged. A closed pipe, as in `limen status ... | head -1`, is not an error.
///
/// # Errors
/// Standard output cannot be written, e.g. because a disk is full.
pub fn print(text: &str) -> Result<(), CliError> {
    print_live(text).map(drop)
}

/// As [`print`], for a command that prints until it is stopped: returns whether the output is still read.
///
/// # Errors
/// Those of [`print`].
pub fn print_live(text: &str) -> Result<bool, CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(cannot_write(error)),
    }
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// Those of [`print`].
pub fn print_json(value: &Value) -> Result<(), CliError> {
    print(&format!("{value:#}\n"))
}

/// Many lines on standard output. If the output is a closed pipe, writing fails with an error that is not
/// shown ([`CliError::is_reported`]).
#[derive(Debug)]
pub struct Lines(BufWriter<io::Stdout>);

impl Default for Lines {
    fn default() -> Self {
        Lines(BufWriter::with_capacity(64 << 10, io::stdout()))
    }
}

impl Lines {
    /// # Errors
    /// Standard output cannot be written; the same holds for [`Lines::flush`].
    pub fn line(&mut self, line: impl AsRef<[u8]>) -> Result<(), CliError> {
        let written = self.0.write_all(line.as_ref()).and_then(|()| self.0.write_all(b"\n"));
        written.map_err(cannot_write)
    }

    /// # Errors
    /// See [`Lines::line`].
    pub fn flush(&mut self) -> Result<(), CliError> {
        self.0.flush().map_err(cannot_write)
    }
}

fn cannot_write(error: io::Error) -> CliError {
    let failed = CliError::new(format!("cannot write the output: {error}"));
    if error.kind() == ErrorKind::BrokenPipe { failed.mark_reported() } else { failed }
}

/// Prints the result of a command: as JSON if the user asked for that, otherwise as text.
///
/// # Errors
/// Those of [`print`].
pub fn result(
    as_json: bool,
    json: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    if as_json { print_json(&json()) } else { print(&text()) }
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

/// A heading and lines. The first columns are left-aligned text, the others are right-aligned figures.
#[derive(Debug)]
pub struct Columns {
    left_aligned: usize,
    lines: Vec<Vec<String>>,
}

impl Columns {
    pub fn new(left_aligned: usize, heading: &[&str]) -> Self {
        Columns { left_aligned, lines: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub fn line(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(cells.into_iter().collect());
    }

    pub fn render(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.lines {
            let cells = line.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, &width))| match column < self.left_aligned {
                true => format!("{cell:width$}"),
                false => format!("{cell:>width$}"),
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

const SPINNER: &str = "{spinner} {msg}: {human_pos} ({rate})";
const BAR: &str = "{msg:12} [{bar:30}] {human_pos} of {human_len} ({rate}, {eta} left)";
const STEPS: &str = "[{bar:30}] {msg}";

/// A progress display for an unknown amount of work; hidden if standard error is not a terminal.
pub fn progress(what: &'static str) -> ProgressBar {
    let bar = styled(ProgressBar::new_spinner(), SPINNER).with_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A progress display for a known amount of work; hidden if standard error is not a terminal.
pub fn progress_of(what: &'static str, parts: u64) -> ProgressBar {
    styled(ProgressBar::new(parts), BAR).with_message(what)
}

/// A progress bar of `steps` steps; hidden if standard error is not a terminal.
pub fn steps(steps: u64) -> ProgressBar {
    styled(ProgressBar::new(steps), STEPS)
}

/// The rate without the fractions that indicatif shows.
fn write_rate(state: &ProgressState, to: &mut dyn fmt::Write) {
    // If it cannot be written, the line has no rate.
    let _ = to.write_str(&show_rate(state.per_sec()));
}

fn show_rate(rate: f64) -> String {
    format!("{}/s", HumanCount(rate.max(0.0).round() as u64))
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ").with_key("rate", write_rate)),
        Err(_) => bar,
    }
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

    #[test]
    fn rates_have_no_fraction() {
        for (rate, shown) in [(140_975.301_5, "140,975/s"), (0.4, "0/s"), (-1.0, "0/s"), (f64::NAN, "0/s")] {
            assert_eq!(show_rate(rate), shown);
        }
    }

    #[test]
    fn templates_are_valid() {
        for template in [SPINNER, BAR, STEPS] {
            ProgressStyle::with_template(template).unwrap();
        }
    }

    #[test]
    fn figures_are_right_aligned() {
        let mut columns = Columns::new(1, &["op", "ops/s"]);
        columns.line(["create", "12.3"].map(str::to_owned));
        columns.line(["ls", "123457"].map(str::to_owned));
        assert_eq!(columns.render(), "op       ops/s\ncreate    12.3\nls      123457\n");
    }
}
