//! The rows of file chunks, and references to slices.

use std::collections::BTreeMap;

use rusqlite::{Connection, Result, params};
use tables::Line;
use types::{ChunkIndex, Ino, Slice};

use crate::number::int;
use crate::sql::{parameters, put};

/// Adds a row that is newer than all other rows of its chunk.
pub(crate) fn append(conn: &Connection, ino: Ino, chunk: ChunkIndex, slice: &Slice) -> Result<()> {
    const NEXT: &str = "SELECT coalesce(max(seq), 0) + 1 FROM slice WHERE ino = ?1 AND chunk = ?2";
    let seq = conn.prepare_cached(NEXT)?.query_row([int(ino.0), int(chunk.0)], |row| row.get(0))?;
    insert(conn, ino, chunk, seq, slice)
}

/// Removes the rows of the chunks `from..to` and releases their slices.
pub(crate) fn drop_chunks(conn: &Connection, ino: Ino, from: ChunkIndex, to: ChunkIndex) -> Result<()> {
    // No chunk index is above i64::MAX, so clamping the bounds loses nothing.
    let bound = |chunk: ChunkIndex| i64::try_from(chunk.0).unwrap_or(i64::MAX);
    let gone = [int(ino.0), bound(from), bound(to)];
    const UNSHARED: &str = "REPLACE INTO garbage (slice, size) SELECT slice, slice_size FROM slice \
                            WHERE ino = ?1 AND chunk >= ?2 AND chunk < ?3 AND slice IS NOT NULL \
                            AND slice NOT IN (SELECT slice FROM shared)";
    const SHARED: &str = "SELECT slice, max(slice_size), count(*) FROM slice \
                          WHERE ino = ?1 AND chunk >= ?2 AND chunk < ?3 AND slice IN (SELECT slice FROM shared) \
                          GROUP BY slice";
    conn.prepare_cached(UNSHARED)?.execute(gone)?;
    let mut statement = conn.prepare_cached(SHARED)?;
    let shared = statement.query_map(gone, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    for (slice, size, rows) in shared.collect::<Result<Vec<(i64, u32, i64)>>>()? {
        release(conn, slice, size, rows)?;
    }
    const DELETE: &str = "DELETE FROM slice WHERE ino = ?1 AND chunk >= ?2 AND chunk < ?3";
    conn.prepare_cached(DELETE)?.execute(gone)?;
    Ok(())
}

/// Replaces the chunk's `count` oldest rows with `rows`.
pub(crate) fn replace(
    conn: &Connection,
    ino: Ino,
    chunk: ChunkIndex,
    count: u32,
    rows: &[Slice],
) -> Result<()> {
    const OLDEST: &str =
        "SELECT seq, slice, slice_size FROM slice WHERE ino = ?1 AND chunk = ?2 ORDER BY seq LIMIT ?3";
    let mut statement = conn.prepare_cached(OLDEST)?;
    let oldest = statement.query_map(params![int(ino.0), int(chunk.0), count], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    let oldest: Vec<(i64, Option<i64>, Option<u32>)> = oldest.collect::<Result<_>>()?;
    // The size of each slice, and the number of its rows.
    let mut gone: BTreeMap<i64, (u32, i64)> = BTreeMap::new();
    for (seq, slice, size) in &oldest {
        const DELETE: &str = "DELETE FROM slice WHERE ino = ?1 AND chunk = ?2 AND seq = ?3";
        conn.prepare_cached(DELETE)?.execute([int(ino.0), int(chunk.0), *seq])?;
        if let (Some(slice), Some(size)) = (slice, size) {
            gone.entry(*slice).or_insert((*size, 0)).1 += 1;
        }
    }
    for (slice, (size, rows)) in gone {
        release(conn, slice, size, rows)?;
    }
    for ((seq, ..), slice) in oldest.iter().zip(rows) {
        insert(conn, ino, chunk, *seq, slice)?;
    }
    Ok(())
}

/// Drops the references of `rows` removed rows to the slice. If no reference is left, the slice becomes
/// garbage.
fn release(conn: &Connection, slice: i64, size: u32, rows: i64) -> Result<()> {
    const LESS: &str = "UPDATE shared SET extra = extra - ?2 WHERE slice = ?1 AND extra >= ?2";
    if conn.prepare_cached(LESS)?.execute([slice, rows])? == 0 {
        conn.prepare_cached("DELETE FROM shared WHERE slice = ?1")?.execute([slice])?;
        const GARBAGE: &str = "REPLACE INTO garbage (slice, size) VALUES (?1, ?2)";
        conn.prepare_cached(GARBAGE)?.execute((slice, size))?;
    }
    Ok(())
}

/// Adds a row with the number `seq`, which no other row of the chunk has.
fn insert(conn: &Connection, ino: Ino, chunk: ChunkIndex, seq: i64, slice: &Slice) -> Result<()> {
    const NUMBERS: &[&str] = &["ino", "chunk", "pos", "len", "slice", "slice_off", "slice_size", "seq"];
    let mut line = Line::slice(ino, chunk, slice);
    line.table.numbers = NUMBERS;
    line.numbers.push(Some(seq.into()));
    conn.prepare_cached(put(line.table))?.execute(parameters(&line)).map(drop)
}
