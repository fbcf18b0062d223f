//! Formats listings as text and JSON.

use command::error::CliError;
use command::output::Lines;
use serde_json::json;
use types::{FileType, Time};

use super::source::{AclText, Attr, Row};
use crate::modes;
use crate::target::{join, path_to_json, show_name};
use crate::users::Users;

/// The number of lines that are held back to compute the widths of their columns.
const PAGE: usize = 1024;

pub(super) struct Printer {
    long: bool,
    numeric: bool,
    json: bool,
    users: Users,
    out: Lines,
    /// The columns of lines not yet written, and the widths of the columns since the last heading.
    lines: Vec<([String; 6], String)>,
    widths: [usize; 6],
    begun: bool,
}

impl Printer {
    pub(super) fn new(long: bool, numeric: bool, json: bool) -> Self {
        let (users, out) = (Users::default(), Lines::default());
        Printer { long, numeric, json, users, out, lines: Vec::new(), widths: [0; 6], begun: false }
    }

    /// Prints the heading of a directory.
    pub(super) fn head(&mut self, path: &[u8]) -> Result<(), CliError> {
        if self.json {
            return Ok(());
        }
        let blank = if self.begun { "\n" } else { "" };
        self.begun = true;
        self.widths = [0; 6];
        self.out.line(format!("{blank}{}:", show_name(path)))
    }

    /// Prints a name in the directory `dir`.
    pub(super) fn row(&mut self, row: Row, dir: &[u8]) -> Result<(), CliError> {
        self.begun = true;
        if self.json {
            return self.json_line(&row, dir);
        }
        if !self.long {
            return self.out.line(show_name(&row.name));
        }
        let (cells, name) = self.cells(&row);
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(cell.chars().count());
        }
        self.lines.push((cells, name));
        if self.lines.len() >= PAGE { self.end_of_page() } else { Ok(()) }
    }

    /// Writes the lines that are held back.
    pub(super) fn end_of_page(&mut self) -> Result<(), CliError> {
        let [mode, links, owner, group, size, time] = self.widths;
        for ([a, b, c, d, e, f], name) in self.lines.drain(..) {
            let line = format!("{a:mode$} {b:>links$} {c:owner$} {d:group$} {e:>size$} {f:time$} {name}");
            self.out.line(line)?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<(), CliError> {
        self.end_of_page()?;
        self.out.flush()
    }

    fn cells(&self, row: &Row) -> ([String; 6], String) {
        let mut name = show_name(&row.name);
        let Some(attr) = &row.attr else {
            let initial = &modes::show(row.kind, types::Mode::new(0), false)[..1];
            let unknown = || "?".to_owned();
            let cells =
                [format!("{initial}?????????"), unknown(), unknown(), unknown(), unknown(), unknown()];
            return (cells, name);
        };
        if let Some(target) = &attr.target {
            name.push_str(" -> ");
            name.push_str(&show_name(target));
        }
        let has_acl = attr.access != AclText::None || attr.default != AclText::None;
        let size = match row.kind {
            FileType::CharDevice | FileType::BlockDevice => {
                format!("{}, {}", rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev))
            }
            _ => attr.size.to_string(),
        };
        let cells = [
            modes::show(row.kind, attr.mode, has_acl),
            attr.links.to_string(),
            self.owner(attr),
            self.group(attr),
            size,
            minute(attr.mtime),
        ];
        (cells, name)
    }

    fn owner(&self, attr: &Attr) -> String {
        if self.numeric { attr.uid.to_string() } else { self.users.user(attr.uid) }
    }

    fn group(&self, attr: &Attr) -> String {
        if self.numeric { attr.gid.to_string() } else { self.users.group(attr.gid) }
    }

    fn json_line(&mut self, row: &Row, dir: &[u8]) -> Result<(), CliError> {
        let whole = if row.is_operand { row.name.clone() } else { join(dir, &row.name) };
        let (path, bytes) = path_to_json(&whole);
        let mut line = json!({
            "path": path,
            "name": path_to_json(&row.name).0,
            "inode": row.ino,
            "type": modes::kind_name(row.kind),
        });
        if let Some(bytes) = bytes {
            line["path_bytes"] = bytes.into();
        }
        if let Some(attr) = &row.attr {
            line["mode"] = attr.mode.to_string().into();
            line["links"] = attr.links.into();
            line["uid"] = attr.uid.into();
            line["gid"] = attr.gid.into();
            if !self.numeric {
                line["user"] = self.owner(attr).into();
                line["group"] = self.group(attr).into();
            }
            line["size"] = attr.size.into();
            line["rdev"] = attr.rdev.into();
            for (key, time) in [("atime_ns", attr.atime), ("mtime_ns", attr.mtime), ("ctime_ns", attr.ctime)]
            {
                line[key] = time.nanos().into();
            }
            for (key, acl) in [("access_acl", &attr.access), ("default_acl", &attr.default)] {
                line[key] = match acl {
                    AclText::None => serde_json::Value::Null,
                    AclText::Entries(text) => text.split(',').collect(),
                    AclText::Damaged => "missing or damaged".into(),
                };
            }
            if let Some(target) = &attr.target {
                line["target"] = path_to_json(target).0.into();
            }
        }
        self.out.line(line.to_string())
    }
}

/// A time in UTC to the minute: `2026-11-20 18:52`.
fn minute(time: Time) -> String {
    let whole = time.to_string();
    whole.rsplit_once(':').map_or(whole.clone(), |(minute, _)| minute.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_to_the_minute() {
        assert_eq!(minute(Time::new(951_782_399, 5)), "2000-02-28 23:59");
    }
}
