//! Answers scans from the rows of a reply.

use std::collections::HashSet;

use meta::{Beside, Page, Record, Scan, Seq, Snapshot};
use types::{SessionId, SliceId};

use crate::found::{Found, sorted};
use crate::kind;
use crate::reply::{Malformed, ReplyRow, Row};

/// Builds the page from these rows. They are in the order of the scan, except those of a directory. An ACL
/// that several inodes have is returned once.
///
/// # Errors
/// [`Malformed`], also for rows that do not belong to the scan.
pub fn page<R: Row>(scan: &Scan, seq: Seq, rows: &[ReplyRow<R>]) -> Result<Page, Malformed> {
    let limit = scan.limit();
    let (mut records, more) = match scan {
        Scan::Dir { beside, .. } => entries(rows, limit, *beside)?,
        _ => {
            // Rows of one chunk, and locks on one inode, are one record.
            let together = |one: &ReplyRow<R>, next: &ReplyRow<R>| match one.kind {
                kind::SLICE => one.number(0) == next.number(0) && one.number(1) == next.number(1),
                kind::LOCK => one.number(0) == next.number(0),
                _ => false,
            };
            let mut records = rows.chunk_by(together).map(record).collect::<Result<Vec<_>, _>>()?;
            let more = records.len() > limit;
            records.truncate(limit);
            (records, more)
        }
    };
    records.shrink_to_fit();
    Ok(Page { snapshot: Snapshot { seq, records }, more })
}

fn entries<R: Row>(
    rows: &[ReplyRow<R>],
    limit: usize,
    beside: Beside,
) -> Result<(Vec<Record>, bool), Malformed> {
    let mut entries = Vec::with_capacity(rows.len());
    let mut found = Found::default();
    for row in rows {
        match row.kind {
            kind::DIRENT => entries.push(row.values().dirent()?),
            kind::DIRENT_WITH_INODE => {
                entries.push(row.values().dirent()?);
                found.take_joined(&row.values())?;
            }
            _ => found.take(row)?,
        }
    }
    entries.sort_unstable_by(|(_, one, _), (_, other, _)| one.cmp(other));
    let more = entries.len() > limit;
    entries.truncate(limit);
    let mut records = Vec::with_capacity(2 * entries.len());
    let mut seen = HashSet::new();
    for (parent, name, dirent) in entries {
        records.push(Record::Dirent(parent, name, Some(dirent)));
        if beside != Beside::Nothing {
            records.push(found.inode(dirent.ino));
        }
        if beside == Beside::InodesWithAcls {
            let acls = found.inodes.get(&dirent.ino).into_iter().flat_map(|inode| inode.acls());
            records.extend(acls.filter(|id| seen.insert(*id)).map(|id| found.acl(id)));
        }
    }
    Ok((records, more))
}

fn record<R: Row>(rows: &[ReplyRow<R>]) -> Result<Record, Malformed> {
    let Some(row) = rows.first() else { return Err(Malformed("no row")) };
    let values = row.values();
    Ok(match row.kind {
        kind::INODE => Record::Inode(values.ino(0)?, Some(values.inode()?)),
        kind::SLICE => {
            let ((ino, chunk), ..) = values.slice()?;
            let slices = rows.iter().map(|row| Ok(row.values().slice()?.2));
            Record::Slices(ino, chunk, slices.collect::<Result<_, _>>()?)
        }
        kind::ACL => {
            let (id, text) = values.acl()?;
            Record::Acl(id, Some(text))
        }
        kind::LOCK => {
            let locks = rows.iter().map(|row| row.values().lock()).collect::<Result<_, _>>()?;
            Record::Locks(values.ino(0)?, sorted(locks))
        }
        kind::SESSION => {
            let session = values.session()?;
            Record::Session(session.id, Some(session))
        }
        kind::ORPHAN => Record::Orphan(SessionId(values.number(0)?), values.ino(1)?),
        kind::GARBAGE => Record::Garbage(values.garbage()?),
        kind::SHARED => Record::Shared(SliceId(values.number(0)?), values.number(1)?),
        _ => return Err(Malformed("a row that does not belong to the scan")),
    })
}

#[cfg(test)]
mod tests {
    use meta::{Counter, RecordKey};
    use types::{ChunkIndex, FileType, Ino, Slice, SliceSource};

    use super::*;

    type Line = (Vec<Option<i64>>, Vec<Option<&'static str>>);

    fn reply_row(kind: i16, numbers: &[i64], strings: &[&'static str]) -> ReplyRow<Line> {
        let numbers = numbers.iter().copied().map(Some).collect();
        ReplyRow { kind, row: (numbers, strings.iter().copied().map(Some).collect()) }
    }

    #[test]
    fn entries_are_sorted_and_joined_and_an_extra_one_means_more() {
        let file = [7, 8, 0o644, 1, 2, 0, 1, 5, 10, 11, 12, 0, 3, 0];
        let joined = |name, ino: i64| {
            let numbers = [&[2, ino, 8][..], if ino == 7 { &file } else { &[] }].concat();
            reply_row(kind::DIRENT_WITH_INODE, &numbers, &[name])
        };
        let rows = [joined("b", 7), joined("c", 9), joined("a", 9)];
        let scan = Scan::Dir { parent: Ino(2), after: None, limit: 2, beside: Beside::Inodes };
        let Page { snapshot: Snapshot { records, .. }, more } = page(&scan, Seq(1), &rows).unwrap();
        assert!(more);
        let [
            Record::Dirent(_, first, _),
            Record::Inode(Ino(9), None),
            Record::Dirent(_, second, Some(dirent)),
            inode,
        ] = &records[..]
        else {
            panic!("{records:?}")
        };
        assert_eq!((first.as_bytes(), second.as_bytes()), (&b"a"[..], &b"b"[..]));
        assert_eq!((dirent.ino, dirent.kind), (Ino(7), FileType::Regular));
        assert!(
            matches!(inode, Record::Inode(Ino(7), Some(inode)) if inode.size == 5 && inode.access_rev == 3)
        );
    }

    #[test]
    fn rows_of_a_chunk_are_one_record_in_order_of_position() {
        let row = |chunk, pos, place| reply_row(kind::SLICE, &[7, chunk, pos, 1, 0, 0, 0, place], &["x"]);
        let rows = [row(0, 0, 2), row(0, 1, 1), row(3, 2, 1)];
        let scan = Scan::Slices { ino: Ino(7), from: ChunkIndex(0), limit: 1 };
        let found = page(&scan, Seq(1), &rows).unwrap();
        assert!(found.more);
        assert!(
            matches!(&found.snapshot.records[..], [Record::Slices(_, ChunkIndex(0), rows)] if rows.len() == 2)
        );
        let mut all = Found::default();
        rows.iter().for_each(|row| all.take(row).unwrap());
        let wants = [
            RecordKey::Slices(Ino(7), ChunkIndex(0)),
            RecordKey::Empty(Ino(7)),
            RecordKey::Counter(Counter::Ino),
        ];
        let slice = |pos| Slice { pos, len: 1, source: SliceSource::Inline(b"x"[..].into()) };
        let expected = [
            Record::Slices(Ino(7), ChunkIndex(0), [slice(1), slice(0)].into()),
            Record::Empty(Ino(7), true),
            Record::Counter(Counter::Ino, 0),
        ];
        assert_eq!(all.answer(&wants), expected);
    }

    #[test]
    fn invalid_rows_are_malformed() {
        let scan = Scan::Garbage { after: SliceId(0), limit: 10 };
        assert!(page(&scan, Seq(1), &[reply_row(kind::GARBAGE, &[1], &[])]).is_err(), "it has no size");
        assert!(
            page(&scan, Seq(1), &[reply_row(kind::GARBAGE, &[1, -1], &[])]).is_err(),
            "its size has 32 bits"
        );
        assert!(page(&scan, Seq(1), &[reply_row(99, &[1, 1], &[])]).is_err());
        let dir = Scan::Dir { parent: Ino(2), after: None, limit: 9, beside: Beside::Nothing };
        assert!(page(&dir, Seq(1), &[reply_row(kind::DIRENT, &[2, 3, 8], &["a/b"])]).is_err());
        assert!(
            page(&dir, Seq(1), &[reply_row(kind::DIRENT, &[2, 3, 3], &["a"])]).is_err(),
            "no kind of inode"
        );
    }
}
