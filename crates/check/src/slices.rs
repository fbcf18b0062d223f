//! The rows of files, and the slices that they refer to.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use meta::{Engine, EngineError, Inode};
use types::{CHUNK_BYTES, ChunkIndex, Ino, Slice, SliceId, SliceSource};

use super::scope::{Entry, Step, walk_below};
use super::totals::Run;
use super::{CheckScope, Problem, WINDOW, walk};

/// The references to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceUse {
    /// The number of rows that refer to the slice.
    pub rows: u64,
    /// The size of the slice in bytes.
    pub size: u32,
    /// Whether the slice is listed as garbage.
    pub garbage: bool,
    /// A file with one of the rows.
    pub ino: Ino,
    /// Whether more than one row has ever referred to the slice. If so and no row was found, the slice may be
    /// in use: its rows may have moved from one inode to another during the scan.
    pub shared: bool,
}

/// All slices with numbers from `first` to `last` that any record refers to.
#[derive(Debug)]
pub struct SliceWindow {
    pub first: SliceId,
    pub last: SliceId,
    limit: usize,
    slices: BTreeMap<SliceId, SliceUse>,
}

impl SliceWindow {
    fn new(first: SliceId, limit: usize) -> Self {
        SliceWindow { first, last: SliceId(u64::MAX), limit, slices: BTreeMap::new() }
    }

    pub fn holds(&self, slice: SliceId) -> bool {
        self.first <= slice && slice <= self.last
    }

    pub fn get(&self, slice: SliceId) -> Option<&SliceUse> {
        self.slices.get(&slice)
    }

    /// The numbers from the lowest to the highest slice in the window.
    fn held(&self) -> Option<RangeInclusive<SliceId>> {
        let (lowest, highest) = (self.slices.first_key_value()?.0, self.slices.last_key_value()?.0);
        Some(*lowest..=*highest)
    }

    fn range(&self) -> RangeInclusive<SliceId> {
        self.first..=self.last
    }

    pub fn iter(&self) -> impl Iterator<Item = (SliceId, &SliceUse)> {
        self.slices.iter().map(|(slice, used)| (*slice, used))
    }

    /// Returns the entry of a slice, and creates it if needed; `None` if the slice is outside the window. If
    /// the window would get too large, this function shortens it.
    fn entry(&mut self, slice: SliceId, ino: Ino, size: u32) -> Option<&mut SliceUse> {
        if !self.holds(slice) {
            return None;
        }
        if self.slices.len() >= self.limit
            && !self.slices.contains_key(&slice)
            && let Some((&highest, _)) = self.slices.last_key_value()
        {
            if slice > highest {
                self.last = highest;
                return None;
            }
            self.slices.pop_last();
            self.last = self.slices.last_key_value().map_or(slice, |(last, _)| (*last).max(slice));
        }
        let unused = SliceUse { rows: 0, size, garbage: false, ino, shared: false };
        Some(self.slices.entry(slice).or_insert(unused))
    }
}

/// Calls `each` with all slices that rows, share counts or garbage records refer to, in order, with a bounded
/// number of slices in each call. The windows cover all numbers. A slice that had a row when the scan began
/// is included even if the volume changes meanwhile: either its row stays in one inode, or its share count,
/// which is read last, shows that the row may have moved.
///
/// # Errors
/// Those of the database, and the first one of `each`.
pub fn for_each_slice_window<E: From<EngineError>>(
    engine: &dyn Engine,
    mut each: impl FnMut(&SliceWindow) -> Result<(), E>,
) -> Result<(), E> {
    let mut first = SliceId(0);
    loop {
        let mut window = SliceWindow::new(first, WINDOW);
        gather(engine, &CheckScope::Volume, &mut window, &mut |_, _, _, _, _| {}, &mut |_| {})?;
        walk::shared(engine, window.range(), |slice, _| {
            if let Some(used) = window.entry(slice, Ino(0), 0) {
                used.shared = true;
            }
        })?;
        each(&window)?;
        if window.last == SliceId(u64::MAX) {
            return Ok(());
        }
        first = SliceId(window.last.0 + 1);
    }
}

/// Calls `each` with the rows of every chunk of every file: of the whole volume by inode number, below a path
/// in the order of the walk.
///
/// # Errors
/// Those of the database, and the first one of `each`.
pub fn for_each_chunk<E: From<EngineError>>(
    engine: &dyn Engine,
    scope: &CheckScope,
    mut each: impl FnMut(&Inode, ChunkIndex, &[Slice]) -> Result<(), E>,
) -> Result<(), E> {
    chunks_in(engine, scope, |inode, _, chunk, rows| each(inode, chunk, rows))
}

/// As [`for_each_chunk`]; also tells `each` whether this is surely the only call for the chunk.
fn chunks_in<E: From<EngineError>>(
    engine: &dyn Engine,
    scope: &CheckScope,
    mut each: impl FnMut(&Inode, bool, ChunkIndex, &[Slice]) -> Result<(), E>,
) -> Result<(), E> {
    match scope {
        CheckScope::Volume => walk::inode_pages(engine, Ino(0), |inodes| {
            walk::chunks_of_all(engine, inodes, |inode, chunk, rows| each(inode, true, chunk, rows))?;
            Ok(true)
        }),
        CheckScope::Below(top) => walk_below(engine, top, |step| match step {
            Step::Entries(entries) => {
                let reached: Vec<Inode> = entries.iter().filter_map(Entry::reached).copied().collect();
                let unsure = entries.iter().filter(|entry| !entry.is_only()).filter_map(Entry::reached);
                let unsure: HashSet<Ino> = unsure.map(|inode| inode.ino).collect();
                walk::chunks_of_all(engine, &reached, |inode, chunk, rows| {
                    each(inode, !unsure.contains(&inode.ino), chunk, rows)
                })
            }
            _ => Ok(()),
        }),
    }
}

/// Called for each row: its file, chunk and position in the chunk, and the function that reports problems.
type EachRow<'a> = &'a mut dyn FnMut(Ino, ChunkIndex, usize, &Slice, &mut dyn FnMut(Problem));

fn gather(
    engine: &dyn Engine,
    scope: &CheckScope,
    window: &mut SliceWindow,
    each_row: EachRow<'_>,
    report: &mut dyn FnMut(Problem),
) -> Result<(), EngineError> {
    chunks_in(engine, scope, |inode, is_only, chunk, rows| {
        let ino = inode.ino;
        for (at, row) in rows.iter().enumerate() {
            each_row(ino, chunk, at, row, report);
            let SliceSource::Blocks { id, size, .. } = row.source else { continue };
            let Some(used) = window.entry(id, ino, size) else { continue };
            // Rows that are met twice must not look like two rows.
            used.rows += u64::from(is_only);
            if used.size != size {
                report(Problem::SliceSize { ino, slice: id, one: size, other: used.size });
            }
        }
        Ok::<_, EngineError>(())
    })?;
    let range = match scope {
        CheckScope::Volume => window.range(),
        CheckScope::Below(_) => match window.held() {
            Some(range) => range,
            None => return Ok(()),
        },
    };
    walk::garbage(engine, range, |garbage| {
        let used = match scope {
            CheckScope::Volume => window.entry(garbage.slice, Ino(0), garbage.size),
            CheckScope::Below(_) => window.slices.get_mut(&garbage.slice),
        };
        if let Some(used) = used {
            used.garbage = true;
        }
    })
}

pub(super) fn check(run: &mut Run<'_>) -> Result<(), EngineError> {
    let Run { engine, scope, totals, report, progress, .. } = run;
    let mut first = SliceId(0);
    loop {
        let begins = first == SliceId(0);
        let mut window = SliceWindow::new(first, run.window);
        let mut each_row = |ino, chunk, row: usize, slice: &Slice, report: &mut dyn FnMut(Problem)| {
            if !begins {
                return;
            }
            totals.checked.rows += 1;
            if totals.checked.rows.is_multiple_of(walk::PAGE as u64) {
                progress("rows", totals.checked.rows);
            }
            if let Some(fault) = fault_of(slice) {
                report(Problem::Row { ino, chunk, row, fault });
            }
        };
        gather(*engine, scope, &mut window, &mut each_row, *report)?;
        match scope {
            CheckScope::Volume => check_shared(*engine, &window, *report)?,
            CheckScope::Below(_) => {
                totals.checked.shared_elsewhere += check_shared_below(*engine, &window, *report)?;
            }
        }
        for (slice, used) in window.iter().filter(|(_, used)| used.garbage && used.rows > 0) {
            report(Problem::GarbageInUse { slice, ino: used.ino });
        }
        let highest = window.slices.last_key_value().map_or(SliceId(0), |(slice, _)| *slice);
        totals.last_slice = totals.last_slice.max(highest);
        if window.last == SliceId(u64::MAX) {
            return Ok(());
        }
        first = SliceId(window.last.0 + 1);
    }
}

fn check_shared(
    engine: &dyn Engine,
    window: &SliceWindow,
    report: &mut dyn FnMut(Problem),
) -> Result<(), EngineError> {
    let actual = |slice| window.get(slice).map_or(0, |used| used.rows.saturating_sub(1));
    // Counts and slices are both sorted, so merging them finds the slices without a count.
    let mut without = window.iter().filter(|(_, used)| used.rows > 1).map(|(slice, _)| slice).peekable();
    walk::shared(engine, window.range(), |slice, stored| {
        while let Some(missing) = without.next_if(|without| *without < slice) {
            report(Problem::Shared { slice: missing, stored: 0, actual: actual(missing) });
        }
        without.next_if_eq(&slice);
        if stored != actual(slice) {
            report(Problem::Shared { slice, stored, actual: actual(slice) });
        }
    })?;
    for missing in without {
        report(Problem::Shared { slice: missing, stored: 0, actual: actual(missing) });
    }
    Ok(())
}

/// Reports share counts that are too low for the rows below a path. Returns how many are higher: other rows
/// may be elsewhere.
fn check_shared_below(
    engine: &dyn Engine,
    window: &SliceWindow,
    report: &mut dyn FnMut(Problem),
) -> Result<u64, EngineError> {
    let Some(range) = window.held() else { return Ok(0) };
    let mut stored = BTreeMap::new();
    walk::shared(engine, range, |slice, rows| {
        if window.get(slice).is_some() {
            stored.insert(slice, rows);
        }
    })?;
    let mut elsewhere = 0;
    for (slice, used) in window.iter() {
        let (stored, actual) = (stored.get(&slice).copied().unwrap_or(0), used.rows.saturating_sub(1));
        if stored < actual {
            report(Problem::Shared { slice, stored, actual });
        }
        elsewhere += u64::from(stored > actual);
    }
    Ok(elsewhere)
}

/// Why a row is invalid; `None` if it is valid.
fn fault_of(row: &Slice) -> Option<&'static str> {
    let len = u64::from(row.len);
    if u64::from(row.pos) + len > CHUNK_BYTES {
        return Some("it extends beyond the end of its chunk");
    }
    if len == 0 {
        return Some("it is empty");
    }
    match &row.source {
        SliceSource::Hole => None,
        SliceSource::Inline(bytes) => {
            (bytes.len() as u64 != len).then_some("its recorded length differs from the number of its bytes")
        }
        SliceSource::Blocks { size, .. } if u64::from(*size) > CHUNK_BYTES => {
            Some("its slice is longer than a chunk")
        }
        SliceSource::Blocks { offset, size, .. } => {
            (u64::from(*offset) + len > u64::from(*size)).then_some("it extends beyond the end of its slice")
        }
    }
}
