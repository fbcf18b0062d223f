//! A program that changes a tree concurrently with other programs and records the result of each call.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::io::Errno;

use super::{Event, Outcome};
use crate::harness::Random;

/// The number of names that all programs create and remove.
const SHARED: u64 = 4;

/// The operations of one program, by register, and the lines that it appended to the shared file.
#[derive(Debug)]
pub(crate) struct Program {
    /// The index of the mount that the program uses, and its mount point.
    mount: usize,
    mnt: PathBuf,
    /// The program's name, which is also the name of its own directory.
    pub(crate) tag: String,
    pub(crate) events: BTreeMap<String, Vec<Event>>,
    pub(crate) lines: Vec<(String, Outcome)>,
    random: Random,
}

impl Program {
    pub(crate) fn new(mount: usize, mnt: PathBuf, tag: &str) -> Self {
        let random = Random(tag.bytes().fold(7, |seed, byte| seed * 257 + u64::from(byte)));
        Program { mount, mnt, tag: tag.to_owned(), events: BTreeMap::new(), lines: Vec::new(), random }
    }

    /// Creates what must exist before the programs run.
    pub(crate) fn prepare(mnt: &Path, tags: &[&str]) -> io::Result<()> {
        for dir in ["shared", "counter"].iter().chain(tags) {
            fs::create_dir(mnt.join(dir))?;
        }
        File::create_new(mnt.join("counter/0"))?;
        File::create_new(mnt.join("log")).map(drop)
    }

    /// Runs until `stop` is set. `steps` counts the rounds of all programs.
    ///
    /// # Errors
    /// An operation failed with an errno that it must not fail with.
    pub(crate) fn run(mut self, stop: &AtomicBool, steps: &AtomicU64) -> io::Result<Self> {
        for i in 0_u64.. {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            self.own_names(i)?;
            self.shared_name()?;
            if i % 4 == 0 {
                self.count_up()?;
                self.append(i)?;
            }
            steps.fetch_add(1, Ordering::SeqCst);
        }
        Ok(self)
    }

    /// Creates a file, renames it, links it, and removes the renamed file.
    fn own_names(&mut self, i: u64) -> io::Result<()> {
        let at = |end: &str| self.mnt.join(&self.tag).join(format!("{i}{end}"));
        let (new, renamed, linked) = (at(""), at(".r"), at(".l"));
        let (file, link) = (format!("{}/{i}", self.tag), format!("{}/{i}.l", self.tag));
        self.step(&file, [0, 1], || File::create_new(&new).map(drop))?;
        self.step(&file, [1, 2], || fs::rename(&new, &renamed))?;
        self.step(&link, [0, 1], || fs::hard_link(&renamed, &linked))?;
        self.step(&file, [2, 3], || fs::remove_file(&renamed))
    }

    /// Creates or removes a name that other programs also create and remove.
    fn shared_name(&mut self) -> io::Result<()> {
        let name = format!("shared/{}", self.random.below(SHARED));
        let path = self.mnt.join(&name);
        match self.random.below(2) {
            0 => self.step(&name, [0, 1], || File::create_new(&path).map(drop)),
            _ => self.step(&name, [1, 0], || fs::remove_file(&path)),
        }
    }

    /// Renames the file whose name begins with a number to the next number. The new name ends with the
    /// program's tag. Otherwise, another mount might just have given the file the same new name. The kernel,
    /// which still has the old name cached, would then find both names on one inode, do nothing and succeed
    /// (rename(2)).
    fn count_up(&mut self) -> io::Result<()> {
        let dir = self.mnt.join("counter");
        let numbers = match names_in(&dir) {
            Ok(names) => names,
            Err(error) => return unless_away(error),
        };
        // The listing may miss the file because it is being renamed.
        let Some((now, name)) = numbers.iter().filter_map(|name| Some((number(name)?, name))).max() else {
            return Ok(());
        };
        let (old, new) = (dir.join(name), dir.join(format!("{}.{}", now + 1, self.tag)));
        self.step("counter", [now, now + 1], || fs::rename(&old, &new))
    }

    fn append(&mut self, i: u64) -> io::Result<()> {
        let line = format!("{} {i}\n", self.tag);
        let mut file = match OpenOptions::new().append(true).open(self.mnt.join("log")) {
            Ok(file) => file,
            Err(error) => return unless_away(error),
        };
        let written = file.write_all(line.as_bytes());
        // An error while the data is stored at close would not be reported, so sync first.
        let outcome =
            if written.and_then(|()| file.sync_all()).is_ok() { Outcome::Done } else { Outcome::Maybe };
        self.lines.push((line, outcome));
        Ok(())
    }

    fn step(
        &mut self,
        register: &str,
        [from, to]: [u64; 2],
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let called = Instant::now();
        let done = work();
        let returned = Instant::now();
        let outcome = match done {
            Ok(()) => Outcome::Done,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::EXIST | Errno::NOENT) => Outcome::Refused,
                // Another mount has changed the name since the lookup, so nothing happened.
                Some(Errno::STALE) => return Ok(()),
                Some(Errno::IO) => Outcome::Maybe,
                _ => return Err(io::Error::new(error.kind(), format!("{register}: {error}"))),
            },
        };
        let event = Event { mount: self.mount, from, to, outcome, called, returned };
        self.events.entry(register.to_owned()).or_default().push(event);
        Ok(())
    }
}

/// Ignores EIO, which means that the database was unreachable for too long, and ESTALE.
fn unless_away(error: io::Error) -> io::Result<()> {
    match Errno::from_io_error(&error) {
        Some(Errno::IO | Errno::STALE) => Ok(()),
        _ => Err(error),
    }
}

/// The number that the counter file's name begins with.
fn number(name: &str) -> Option<u64> {
    name.split('.').next()?.parse().ok()
}

pub(crate) fn names_in(dir: &Path) -> io::Result<BTreeSet<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The values that a register may have, according to the tree.
///
/// # Errors
/// Those of reading the tree.
pub(crate) fn found(mnt: &Path, register: &str) -> io::Result<Vec<u64>> {
    let there = |end: &str| mnt.join(format!("{register}{end}")).symlink_metadata().is_ok();
    if register == "counter" {
        let names = names_in(&mnt.join(register))?;
        return Ok(names.iter().filter_map(|name| number(name)).collect());
    }
    let is_own_file = !register.starts_with("shared/") && !register.ends_with(".l");
    Ok(match (there(""), is_own_file && there(".r")) {
        (true, false) => vec![1],
        (false, true) => vec![2],
        (false, false) if is_own_file => vec![0, 3],
        (false, false) => vec![0],
        // Both names never exist at the same time.
        (true, true) => Vec::new(),
    })
}
