//! The order of the lines of a dump, and what they must contain. Each line has a greater position than the
//! one before, except lines that continue the rows of a chunk or the count of a slice. So no record occurs
//! twice, and a check needs memory for the last position only.

use std::collections::BTreeMap;

use meta::Counter;
use types::{FileType, Ino};

use crate::line::{Line, counter};

/// The maximum number of settings of a volume, and the maximum size of all their names and values. They are
/// bounded because they are held in memory, and the memory of the names is never freed.
const MAX_SETTINGS: usize = 256;
const MAX_SETTING_BYTES: usize = 16 << 20;

/// The greatest value of a counter. The numbers of all inodes and slices are below it, so that numbers remain
/// for new ones.
const MAX_NUMBERS: u64 = 1 << 62;

/// The part of a dump, the number of the record in it, the kind of the line of an inode, and a name.
type Position = (u8, u128, u8, Vec<u8>);

/// The state of a check after the lines that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Order {
    last: Position,
    /// The last inode.
    inode: Option<(Ino, FileType)>,
    /// The greatest number of an inode that a counter has given out.
    last_ino: u64,
    settings: usize,
    setting_bytes: usize,
    counters: BTreeMap<&'static str, u64>,
    /// The greatest number of a slice.
    last_slice: u64,
}

impl Order {
    /// Checks the next line. [`Line::effects`] has found that its values can be stored.
    ///
    /// # Errors
    /// The line must not follow the earlier lines; the text says why.
    pub(crate) fn add(&mut self, line: &Line) -> Result<(), String> {
        let position = position(line)?;
        let is_continued = matches!(line, Line::Rows { .. } | Line::Shared { .. });
        if position < self.last || position == self.last && !is_continued {
            return Err(match position == self.last {
                true => format!("{} occurs twice", show(line)),
                false => format!("{} is not in order", show(line)),
            });
        }
        self.last = position;
        match line {
            Line::Setting { name, value } => {
                self.settings += 1;
                self.setting_bytes = self.setting_bytes.saturating_add(name.len() + value.len());
                if self.settings > MAX_SETTINGS || self.setting_bytes > MAX_SETTING_BYTES {
                    return Err("it has too many settings, or too long ones".to_owned());
                }
            }
            Line::Counter { name, next } => {
                if !(1..=MAX_NUMBERS).contains(next) {
                    return Err(format!("{} cannot be {next}", show(line)));
                }
                self.counters.insert(counter(name)?.name(), *next);
            }
            Line::Inode(inode) => {
                let inode = inode.inode()?;
                if self.inode.is_none() {
                    let is_root =
                        (inode.ino, inode.kind, inode.parent) == (Ino::ROOT, FileType::Directory, Ino::ROOT);
                    if !is_root {
                        return Err(format!("it has no root directory: its first inode is {}", inode.ino));
                    }
                }
                if inode.ino.0 >= MAX_NUMBERS {
                    return Err(format!("the number of inode {} is too large", inode.ino));
                }
                if inode.nlink == 0 {
                    return Err(format!("inode {} has no link", inode.ino));
                }
                if inode.ino != Ino::TRASH {
                    self.last_ino = inode.ino.0;
                }
                self.inode = Some((inode.ino, inode.kind));
            }
            Line::Xattr { ino, .. } => self.check_inode(line, *ino, None)?,
            Line::Symlink { ino, .. } => self.check_inode(line, *ino, Some(FileType::Symlink))?,
            Line::Rows { ino, .. } => self.check_inode(line, *ino, Some(FileType::Regular))?,
            Line::Entry { dir, .. } => self.check_inode(line, *dir, Some(FileType::Directory))?,
            Line::Dump(_) | Line::Acl { .. } | Line::Shared { .. } | Line::Quota(_) | Line::End(_) => {}
        }
        for slice in line.slices() {
            if slice.0 >= MAX_NUMBERS {
                return Err(format!("the number of slice {slice} is too large"));
            }
            self.last_slice = self.last_slice.max(slice.0);
        }
        Ok(())
    }

    /// Checks that the line may follow the last inode, which must have this number and kind.
    fn check_inode(&self, line: &Line, ino: u64, kind: Option<FileType>) -> Result<(), String> {
        match self.inode {
            Some((last, _)) if last.0 != ino => Err(format!("{} follows inode {last}", show(line))),
            Some((_, found)) if kind.is_some_and(|kind| kind != found) => {
                Err(format!("{} cannot belong to an inode of type {found:?}", show(line)))
            }
            Some(_) => Ok(()),
            None => Err(format!("{} precedes all inodes", show(line))),
        }
    }

    /// Ends the dump. Returns the next number that each counter must give out.
    ///
    /// # Errors
    /// Something is missing; the text says what.
    pub(crate) fn end(self) -> Result<Vec<(Counter, u64)>, String> {
        if self.inode.is_none() {
            return Err("it has no root directory".to_owned());
        }
        let next = |counter: Counter| {
            let next = self.counters.get(counter.name()).copied();
            let next = next.ok_or_else(|| format!("it has no counter '{}'", counter.name()))?;
            // A counter that is too low is damage, which limen fsck repairs in the same way.
            let last = match counter {
                Counter::Ino => self.last_ino,
                Counter::Slice => self.last_slice,
                Counter::Session => 0,
            };
            Ok((counter, next.max(last + 1)))
        };
        Counter::ALL.into_iter().map(next).collect()
    }
}

fn position(line: &Line) -> Result<Position, String> {
    Ok(match line {
        Line::Dump(_) => (0, 0, 0, Vec::new()),
        Line::Setting { name, .. } => (1, 0, 0, name.as_bytes().to_vec()),
        Line::Counter { name, .. } => {
            let named = counter(name)?;
            let at = Counter::ALL.into_iter().position(|counter| counter == named);
            (2, at.unwrap_or_default() as u128, 0, Vec::new())
        }
        Line::Acl { id, .. } => (3, 0, 0, id.as_bytes().to_vec()),
        Line::Inode(inode) => (4, inode.ino.into(), 0, Vec::new()),
        Line::Xattr { ino, name, .. } => (4, (*ino).into(), 1, name.0.to_vec()),
        Line::Symlink { ino, .. } => (4, (*ino).into(), 2, Vec::new()),
        Line::Rows { ino, chunk, .. } => (4, (*ino).into(), 3, chunk.to_be_bytes().to_vec()),
        Line::Entry { dir, name, .. } => (4, (*dir).into(), 4, name.0.to_vec()),
        Line::Shared { slice, .. } => (5, (*slice).into(), 0, Vec::new()),
        Line::Quota(quota) => {
            let (kind, number) = quota.key()?.to_numbers();
            (6, u128::from(kind) << 64 | u128::from(number), 0, Vec::new())
        }
        Line::End(_) => (7, 0, 0, Vec::new()),
    })
}

/// Names the record of a line, for an error message.
fn show(line: &Line) -> String {
    match line {
        Line::Dump(_) => "its first line".to_owned(),
        Line::Setting { name, .. } => format!("setting '{}'", name.escape_debug()),
        Line::Counter { name, .. } => format!("counter '{name}'"),
        Line::Acl { id, .. } => format!("ACL {id}"),
        Line::Inode(inode) => format!("inode {}", inode.ino),
        Line::Xattr { ino, name, .. } => format!("extended attribute {name:?} of inode {ino}"),
        Line::Symlink { ino, .. } => format!("the target of symlink {ino}"),
        Line::Rows { ino, chunk, .. } => format!("chunk {chunk} of inode {ino}"),
        Line::Entry { dir, name, .. } => format!("entry {name:?} of directory {dir}"),
        Line::Shared { slice, .. } => format!("the count of slice {slice}"),
        Line::Quota(_) => "a quota".to_owned(),
        Line::End(_) => "its last line".to_owned(),
    }
}
