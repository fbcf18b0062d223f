//! What goes to standard output, and progress on standard error.

use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::fault::Fault;

/// Prints `text` as it is. A reader that has gone away, as in `limen status ... | head -1`, is no error.
///
/// # Errors
/// Standard output cannot be written, e.g. because a disk is full.
pub(crate) fn print(text: &str) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Fault::new(format!("cannot write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints `value` in the form that a program reads and a person can.
///
/// # Errors
/// Those of [`print`].
pub(crate) fn print_json(value: &Value) -> Result<(), Fault> {
    print(&format!("{value:#}\n"))
}

/// Something the person may want to know, on standard error.
pub(crate) fn note(text: impl std::fmt::Display) {
    // If nobody listens any more, there is nobody to tell.
    let _ = writeln!(io::stderr(), "limen: {text}");
}

/// Lines of a label and a value, the values in one column.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<(String, String)>);

impl Table {
    pub(crate) fn row(&mut self, label: impl Into<String>, value: impl ToString) {
        self.0.push((label.into(), value.to_string()));
    }

    pub(crate) fn render(&self) -> String {
        let width = self.0.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        self.0.iter().map(|(label, value)| format!("{label:width$}  {value}\n")).collect()
    }
}

/// Counts work of an amount that is not known; hidden where standard error is no terminal.
pub(crate) fn progress(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}: {pos} ({per_sec})");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Counts the parts of work of a known amount; hidden where standard error is no terminal.
pub(crate) fn progress_of(what: &'static str, parts: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:12} [{bar:30}] {pos} of {len} ({per_sec})");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(parts).with_style(style.progress_chars("=> ")).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_one_column() {
        let mut table = Table::default();
        table.row("name", "a");
        table.row("format version", 1);
        assert_eq!(table.render(), "name            a\nformat version  1\n");
    }
}
