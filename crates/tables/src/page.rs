//! Builds, from the rows of a reply, the page that answers a scan.

use std::collections::HashSet;

use meta::{Dirent, Inode, Page, Record, RecordKey, Scan, ScanInclude, Seq, Snapshot};
use types::{Ino, Name, SessionId, SliceId};

use crate::content::ReplyContent;
use crate::kind;
use crate::reply::{Malformed, ReplyRow, RowValues};

/// The inode that came in the row of its dirent.
type Joined = Option<Inode>;

/// The answer to a scan, built row by row.
#[derive(Debug)]
pub struct PageBuilder<'s> {
    scan: &'s Scan,
    dirents: Vec<(Ino, Name, Dirent, Joined)>,
    /// The keys of records that consist of several rows (the rows of a chunk, the locks on an inode), in
    /// order.
    keys: Vec<RecordKey>,
    /// The content of the records of `keys`, and the ACLs and other inodes of `dirents`.
    found: ReplyContent,
    /// All other records.
    records: Vec<Record>,
}

impl<'s> PageBuilder<'s> {
    pub fn new(scan: &'s Scan) -> Self {
        let (dirents, keys, records) = Default::default();
        PageBuilder { scan, dirents, keys, found: ReplyContent::default(), records }
    }

    /// Takes the next row. The rows are in the order of the scan, except those of a directory.
    ///
    /// # Errors
    /// [`Malformed`]; this includes a row of a kind that answers no scan.
    pub fn take<R: RowValues>(&mut self, row: &ReplyRow<R>) -> Result<(), Malformed> {
        let key = match row.kind {
            kind::DIRENT | kind::DIRENT_WITH_INODE => {
                let (parent, name, dirent) = row.dirent()?;
                let joined =
                    if row.kind == kind::DIRENT { None } else { self.found.take_joined_acls(row)? };
                self.dirents.push((parent, name, dirent, joined));
                return Ok(());
            }
            kind::INODE | kind::ACL if matches!(self.scan, Scan::Dir { .. }) => return self.found.take(row),
            kind::SLICE => {
                let (ino, chunk) = row.chunk()?;
                RecordKey::Slices(ino, chunk)
            }
            kind::LOCK => RecordKey::Locks(row.ino(0)?),
            _ => {
                self.records.push(record(row)?);
                return Ok(());
            }
        };
        if self.keys.last() != Some(&key) {
            self.keys.push(key);
        }
        self.found.take(row)
    }

    /// Returns the page. An ACL that several inodes have is in it once.
    pub fn finish(mut self, seq: Seq) -> Page {
        let limit = self.scan.limit();
        let more = self.dirents.len() > limit || self.keys.len() > limit || self.records.len() > limit;
        self.dirents.sort_unstable_by(|(_, one, ..), (_, other, ..)| one.cmp(other));
        self.dirents.truncate(limit);
        self.keys.truncate(limit);
        self.records.truncate(limit);
        let PageBuilder { scan, dirents, keys, found, mut records } = self;
        records.extend(found.answer(&keys));
        let include = if let Scan::Dir { include, .. } = scan { *include } else { ScanInclude::Nothing };
        let mut seen = HashSet::new();
        records.reserve(dirents.len() * 2);
        for (parent, name, dirent, joined) in dirents {
            records.push(Record::Dirent(parent, name, Some(dirent)));
            let inode = joined.or_else(|| found.inodes.get(&dirent.ino).copied());
            if include != ScanInclude::Nothing {
                records.push(Record::Inode(dirent.ino, inode));
            }
            if include == ScanInclude::InodesWithAcls {
                let acls = inode.iter().flat_map(Inode::acls);
                records.extend(acls.filter(|id| seen.insert(*id)).map(|id| found.acl(id)));
            }
        }
        records.shrink_to_fit();
        Page { snapshot: Snapshot { seq, records }, more }
    }
}

fn record<R: RowValues>(row: &ReplyRow<R>) -> Result<Record, Malformed> {
    Ok(match row.kind {
        kind::INODE => Record::Inode(row.ino(0)?, Some(row.inode()?)),
        kind::ACL => {
            let (id, text) = row.acl()?;
            Record::Acl(id, Some(text))
        }
        kind::SESSION => {
            let session = row.session()?;
            Record::Session(session.id, Some(session))
        }
        kind::ORPHAN => Record::Orphan(SessionId(row.number(0)?), row.ino(1)?),
        kind::GARBAGE => Record::Garbage(row.garbage()?),
        kind::QUOTA => {
            let (key, quota) = row.quota()?;
            Record::Quota(key, Some(quota))
        }
        kind::SHARED => Record::Shared(SliceId(row.number(0)?), row.number(1)?),
        _ => return Err(Malformed("a row that does not belong to the scan")),
    })
}

#[cfg(test)]
mod tests {
    use meta::Counter;
    use types::{ChunkIndex, FileType, Slice, SliceSource};

    use super::*;

    type Values = (Vec<Option<i64>>, Vec<Option<&'static str>>);

    fn page(scan: &Scan, seq: Seq, rows: &[ReplyRow<Values>]) -> Result<Page, Malformed> {
        let mut page = PageBuilder::new(scan);
        rows.iter().try_for_each(|row| page.take(row))?;
        Ok(page.finish(seq))
    }

    fn reply_row(kind: i16, numbers: &[i64], strings: &[&'static str]) -> ReplyRow<Values> {
        let numbers = numbers.iter().copied().map(Some).collect();
        ReplyRow { kind, row: (numbers, strings.iter().copied().map(Some).collect()) }
    }

    #[test]
    fn entries_are_sorted_and_joined_and_an_extra_one_means_more() {
        let file = [7, 8, 0o644, 1, 2, 0, 1, 5, 10, 11, 12, 0, 3, 0, 0];
        let joined = |name, ino: i64| {
            let numbers = [&[2, ino, 8][..], if ino == 7 { &file } else { &[] }].concat();
            reply_row(kind::DIRENT_WITH_INODE, &numbers, &[name])
        };
        let rows = [joined("b", 7), joined("c", 9), joined("a", 9)];
        let scan = Scan::Dir { parent: Ino(2), after: None, limit: 2, include: ScanInclude::Inodes };
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
        let mut all = ReplyContent::default();
        rows.iter().for_each(|row| all.take(row).unwrap());
        let keys = [
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
        assert_eq!(all.answer(&keys), expected);
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
        let dir = Scan::Dir { parent: Ino(2), after: None, limit: 9, include: ScanInclude::Nothing };
        assert!(page(&dir, Seq(1), &[reply_row(kind::DIRENT, &[2, 3, 8], &["a/b"])]).is_err());
        assert!(
            page(&dir, Seq(1), &[reply_row(kind::DIRENT, &[2, 3, 3], &["a"])]).is_err(),
            "no kind of inode"
        );
    }
}
