//! Resolves a range of a chunk to the sources of its bytes.

use std::collections::BTreeMap;

use types::{Slice, SliceId, SliceSource};

use crate::sharing::MAX_SHARED_BYTES;

/// `len` bytes of a chunk from `pos` on, and their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub pos: u32,
    pub len: u32,
    pub source: PieceSource<'a>,
}

/// The source of the bytes of a [`Piece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceSource<'a> {
    Zeros,
    /// The piece's bytes; fewer than `len` only if the row is damaged.
    Inline(&'a [u8]),
    /// The bytes from `offset` on of slice `id`, which holds `size` bytes. `is_shared` is true if the row has
    /// only a small part of the slice: then the bytes that follow in the slice are probably elsewhere in the
    /// file.
    Blocks {
        id: SliceId,
        offset: u32,
        size: u32,
        is_shared: bool,
    },
}

impl Piece<'_> {
    /// The slice and the position in it, by which pieces are sorted to read each block once. Bytes that are
    /// in no block come first.
    pub fn place(&self) -> (SliceId, u32) {
        match self.source {
            PieceSource::Blocks { id, offset, .. } => (id, offset),
            PieceSource::Zeros | PieceSource::Inline(_) => (SliceId(0), 0),
        }
    }
}

/// Resolves `[pos, pos + len)` of a chunk to pieces, in order, without gaps or overlaps. `rows` are the
/// chunk's rows in commit order; the newest row that covers a byte wins, and bytes that no row covers are
/// zeros.
///
/// The rows are walked from the newest to the oldest; each fills what is left of the range, and the walk
/// stops when the range is complete. A chunk may have tens of thousands of rows, so each row visits only the
/// gaps that it overlaps.
pub fn resolve(rows: &[Slice], pos: u32, len: u32) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    // The end of each gap, by its start.
    let mut gaps = BTreeMap::from([(u64::from(pos), u64::from(pos) + u64::from(len))]);
    gaps.retain(|from, to| from < to);
    for row in rows.iter().rev() {
        if gaps.is_empty() {
            break;
        }
        let (start, end) = (u64::from(row.pos), u64::from(row.pos) + u64::from(row.len));
        while let Some((&from, &to)) = gaps.range(..end).next_back()
            && to > start
        {
            gaps.remove(&from);
            let (lo, hi) = (from.max(start), to.min(end));
            gaps.extend([(from, lo), (hi, to)].into_iter().filter(|(from, to)| from < to));
            if lo >= hi {
                break;
            }
            pieces.push(piece(row, lo as u32, (hi - lo) as u32));
        }
    }
    pieces.extend(gaps.iter().map(|(&from, &to)| Piece {
        pos: from as u32,
        len: (to - from) as u32,
        source: PieceSource::Zeros,
    }));
    pieces.sort_unstable_by_key(|piece| piece.pos);
    merge(pieces)
}

fn piece(row: &Slice, pos: u32, len: u32) -> Piece<'_> {
    let skip = pos - row.pos;
    let source = match &row.source {
        SliceSource::Hole => PieceSource::Zeros,
        SliceSource::Inline(bytes) => {
            let (from, to) = (skip as usize, skip as usize + len as usize);
            PieceSource::Inline(bytes.get(from..to.min(bytes.len())).unwrap_or_default())
        }
        SliceSource::Blocks { id, offset, size } => {
            let is_shared = row.len < *size && row.len <= MAX_SHARED_BYTES;
            PieceSource::Blocks { id: *id, offset: offset.saturating_add(skip), size: *size, is_shared }
        }
    };
    Piece { pos, len, source }
}

/// Merges adjacent pieces that can be read as one: zeros, and consecutive bytes of one slice.
fn merge(pieces: Vec<Piece<'_>>) -> Vec<Piece<'_>> {
    let mut merged: Vec<Piece<'_>> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        if let Some(last) = merged.last_mut()
            && continues(last, &piece)
        {
            last.len += piece.len;
        } else {
            merged.push(piece);
        }
    }
    merged
}

fn continues(last: &Piece<'_>, next: &Piece<'_>) -> bool {
    match (last.source, next.source) {
        (PieceSource::Zeros, PieceSource::Zeros) => true,
        (
            PieceSource::Blocks { id, offset, size, .. },
            PieceSource::Blocks { id: next_id, offset: next_offset, size: next_size, .. },
        ) => id == next_id && size == next_size && offset.checked_add(last.len) == Some(next_offset),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use proptest::prelude::*;

    /// The byte that slice `id` holds at `offset`.
    fn content(id: u64, offset: u32) -> u8 {
        (id as u32).wrapping_mul(31).wrapping_add(offset) as u8 | 1
    }

    fn row() -> impl Strategy<Value = Slice> {
        (0u32..200, 1u32..100, 0u8..3, 1u64..5, 0u32..50).prop_map(|(pos, len, kind, id, offset)| {
            let source = match kind {
                0 => SliceSource::Hole,
                1 => SliceSource::Inline((0..len).map(|i| content(id + 100, i)).collect()),
                _ => SliceSource::Blocks { id: SliceId(id), offset, size: 150 },
            };
            Slice { pos, len, source }
        })
    }

    fn paint(rows: &[Slice]) -> Vec<u8> {
        let mut bytes = vec![0; 400];
        for row in rows {
            for i in 0..row.len {
                bytes[(row.pos + i) as usize] = match &row.source {
                    SliceSource::Hole => 0,
                    SliceSource::Inline(data) => data[i as usize],
                    SliceSource::Blocks { id, offset, .. } => content(id.0, offset + i),
                };
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn resolving_equals_applying_the_rows_in_order(rows in prop::collection::vec(row(), 0..12), pos in 0u32..300, len in 0u32..100) {
            let pieces = resolve(&rows, pos, len);
            let mut got = Vec::new();
            for piece in &pieces {
                prop_assert_eq!(piece.pos as usize, pos as usize + got.len());
                prop_assert!(piece.len > 0);
                match piece.source {
                    PieceSource::Zeros => got.resize(got.len() + piece.len as usize, 0),
                    PieceSource::Inline(data) => {
                        prop_assert_eq!(data.len(), piece.len as usize);
                        got.extend_from_slice(data);
                    }
                    PieceSource::Blocks { id, offset, .. } => got.extend((0..piece.len).map(|i| content(id.0, offset + i))),
                }
            }
            prop_assert_eq!(&got[..], &paint(&rows)[pos as usize..(pos + len) as usize]);
            prop_assert!(pieces.windows(2).all(|pair| !continues(&pair[0], &pair[1])));
        }
    }

    #[test]
    fn adjacent_rows_of_one_slice_are_merged() {
        let blocks = |pos, len, offset| Slice {
            pos,
            len,
            source: SliceSource::Blocks { id: SliceId(7), offset, size: 100 },
        };
        let rows = [blocks(50, 50, 50), blocks(0, 50, 0)];
        let source = PieceSource::Blocks { id: SliceId(7), offset: 10, size: 100, is_shared: true };
        assert_eq!(resolve(&rows, 10, 80), [Piece { pos: 10, len: 80, source }]);
    }

    #[test]
    fn a_row_with_too_few_bytes_does_not_panic() {
        let rows = [Slice { pos: 0, len: 10, source: SliceSource::Inline(Arc::from(&b"abc"[..])) }];
        assert_eq!(resolve(&rows, 5, 5)[0].source, PieceSource::Inline(b""));
    }
}
