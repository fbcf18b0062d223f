//! Compares a volume with a dump.

use meta::SnapshotReader;

use crate::error::DumpError;
use crate::line::Line;
use crate::load::CheckedDump;
use crate::records;
use crate::stream::Reader;

/// Compares all records of a volume, in the order of a dump, with the lines of `dump`, which is the dump
/// `checked`. `progress` is called with the number of inodes that are equal.
///
/// # Errors
/// [`DumpError::Differs`], which names the first difference; those of reading the dump and the volume.
pub fn compare(
    checked: &CheckedDump,
    dump: &mut Reader,
    source: &mut dyn SnapshotReader,
    progress: &mut dyn FnMut(u64),
) -> Result<(), DumpError> {
    records::dump(source, true, &mut |line: Line| {
        if !is_compared(&line) {
            return Ok(());
        }
        progress(dump.tail().inodes);
        let expected = next_compared(dump)?.map(|line| match line {
            Line::Setting { name, value } => {
                let value = checked.stored(&name, &value).to_owned();
                Line::Setting { name, value }
            }
            line => line,
        });
        match (expected, line) {
            // A mount of the loaded volume may have allocated numbers.
            (Some(Line::Counter { name: expected, next: least }), Line::Counter { name, next })
                if name == expected && next >= least =>
            {
                Ok(())
            }
            (Some(expected), line) if expected == line => Ok(()),
            (Some(expected), line) => {
                let (expected, line) = (show(&expected), show(&line));
                Err(DumpError::Differs(format!("it has {line}, and the dump has {expected}")))
            }
            (None, line) => Err(DumpError::Differs(format!("only the volume has {}", show(&line)))),
        }
    })?;
    match next_compared(dump)? {
        None => Ok(()),
        Some(line) => Err(DumpError::Differs(format!("only the dump has {}", show(&line)))),
    }
}

fn next_compared(dump: &mut Reader) -> Result<Option<Line>, DumpError> {
    while let Some(line) = dump.next()? {
        if is_compared(&line) {
            return Ok(Some(line));
        }
    }
    Ok(None)
}

/// Whether the line must be the same on both sides. A load sets `store_marker` itself, and a dump has no
/// local settings.
fn is_compared(line: &Line) -> bool {
    !matches!(line, Line::Setting { name, .. } if name == "store_marker" || records::is_local(name))
}

/// The first 200 characters of a line, for an error message.
fn show(line: &Line) -> String {
    serde_json::to_string(line).unwrap_or_default().chars().take(200).collect()
}
