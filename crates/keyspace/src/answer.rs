//! Builds records from values.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use meta::{
    CONDEMNED, Counter, Garbage, Inode, Record, RecordKey, Scan, ScanInclude, Settings, Usage, Xattrs,
};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, SliceId};

use crate::keys::{CTIME, InodeLocation, Keyspace, LINKS, MTIME, Span};
use crate::source::{Assume, KeyQuery, Lookup, ReadStop, Source, StoredValue};
use crate::value::{
    Amount, Damaged, InodeRow, Stored, StoredDirent, decode_bytes, decode_dirent, decode_inode_row,
    decode_links, decode_locks, decode_quota, decode_row, decode_session, decode_shard, decode_text,
    decode_time, decode_u64, decode_wait, encode_inode_row,
};

/// An answer, and the keys and ranges that it queried.
pub type Answer<T> = (Result<T, ReadStop>, BTreeSet<KeyQuery>);

/// An entry of a listing: its key, name and value. If it is the location of a directory, also the parts of
/// the directory: links, mtime, ctime.
type Listed = (Vec<u8>, Name, StoredDirent, [Option<StoredValue>; 3]);

/// Answers record keys, in order. If the answer is [`ReadStop::Missing`], the queries include everything that
/// is known so far to be needed; after the queries are answered, more may be needed.
pub fn answer(keys: &Keyspace, record_keys: &[RecordKey], source: &dyn Source) -> Answer<Vec<Record>> {
    let mut reader = Reader { keys, lookup: Lookup::new(source) };
    let mut answers = Ok(Vec::with_capacity(record_keys.len() * 2));
    for key in record_keys {
        // Continue after a record key with missing values, to collect the queries of all missing values at
        // once.
        match (reader.record(key), &mut answers) {
            (Ok(records), Ok(all)) => all.extend(records),
            (Ok(_), Err(_)) | (Err(ReadStop::Missing), Err(_)) => {}
            (Err(stop), answers) => *answers = Err(stop),
        }
    }
    (answers, reader.lookup.queried)
}

/// Answers a scan as [`answer`] does: returns a page, and whether more may follow.
pub fn page(keys: &Keyspace, scan: &Scan, source: &dyn Source) -> Answer<(Vec<Record>, bool)> {
    let mut reader = Reader { keys, lookup: Lookup::new(source) };
    let page = reader.page(scan);
    (page, reader.lookup.queried)
}

/// If the dirent with this key and value stores an inode, returns the key and value of the inode's location
/// record, which names this dirent.
pub(crate) fn implied_inode_row(keys: &Keyspace, key: &[u8], value: &[u8]) -> Option<(Vec<u8>, Bytes)> {
    let (parent, name, _) = keys.parse_dirent(key).filter(|(_, _, part)| part.is_none())?;
    let stored = decode_dirent(key, value).ok()?.stored?;
    Some((keys.inode_row(stored.inode.ino), encode_inode_row(&InodeRow::At(InodeLocation::At(parent, name)))))
}

/// The maximum number of keys that are requested at once when a range is read in parts.
const PART: usize = 4096;

/// A page of inodes first reads a range of this many inode numbers for each inode of its limit: more than
/// one, because some numbers are unused or belonged to inodes that were removed.
const INODE_NUMBERS: u64 = 2;
const MIN_INODE_NUMBERS: u64 = 64;

struct Reader<'a> {
    keys: &'a Keyspace,
    lookup: Lookup<'a>,
}

impl Reader<'_> {
    fn record(&mut self, key: &RecordKey) -> Result<Vec<Record>, ReadStop> {
        let mut records = Vec::with_capacity(2);
        match key {
            RecordKey::Inode(ino) => self.inode(*ino, true, &mut records)?,
            RecordKey::Dirent(parent, name) => {
                let key = self.keys.dirent(*parent, name);
                let held = self.lookup.location(&key, Assume::Nothing)?;
                let entry = held.map(|held| decode_dirent(&key, &held.value)).transpose()?;
                records.push(Record::Dirent(*parent, name.clone(), entry.map(|entry| entry.dirent)));
                if let Some(entry) = entry {
                    self.inode_of(&key, &entry, true, &mut records)?;
                }
            }
            RecordKey::Empty(ino) => {
                let span = Span { limit: 1, ..self.keys.dirents(*ino) };
                records.push(Record::Empty(*ino, self.lookup.span(&span)?.is_empty()));
            }
            RecordKey::Xattrs(ino) => {
                let mut xattrs = Xattrs::new();
                for (key, held) in self.lookup.span(&self.keys.xattrs(*ino))? {
                    let name = self.keys.parse_xattr(key);
                    let name = name.ok_or_else(|| Damaged::new("the name of an attribute", key))?;
                    xattrs.insert(name, decode_bytes(key, &held.value)?);
                }
                records.push(Record::Xattrs(*ino, Arc::new(xattrs)));
            }
            RecordKey::Symlink(ino) => {
                let target = self.at(self.keys.symlink(*ino), decode_bytes)?;
                records.push(Record::Symlink(*ino, target));
            }
            RecordKey::Slices(ino, chunk) => {
                let rows = self.lookup.span(&self.keys.chunk(*ino, *chunk))?;
                let rows: Result<Arc<[Slice]>, _> =
                    rows.iter().map(|(key, held)| decode_row(key, &held.value)).collect();
                records.push(Record::Slices(*ino, *chunk, rows?));
            }
            RecordKey::Acl(id) => self.acl(*id, &mut records)?,
            RecordKey::Settings => {
                let mut settings = Settings::new();
                for (key, held) in self.lookup.span(&self.keys.table(b't'))? {
                    let name = self.keys.rest(key, b't').and_then(|name| str::from_utf8(name).ok());
                    let name = name.ok_or_else(|| Damaged::new("the name of a setting", key))?;
                    settings.insert(name.to_owned(), decode_text(key, &held.value)?);
                }
                records.push(Record::Settings(Arc::new(settings)));
            }
            RecordKey::Counter(counter) => {
                let value = self.at(self.keys.counter(*counter), decode_u64)?;
                records.push(Record::Counter(*counter, value.unwrap_or(0)));
            }
            RecordKey::Usage => {
                let mut used = Amount::default();
                for (key, held) in self.lookup.span(&self.keys.usage_shards())? {
                    used = used.plus(decode_shard(key, &held.value)?.used);
                }
                let (inodes, blocks) = (used.inodes.max(0).unsigned_abs(), used.blocks.max(0).unsigned_abs());
                records.push(Record::Usage(Usage { inodes, blocks }));
            }
            RecordKey::Locks(ino) => {
                let locks = self.at(self.keys.locks(*ino), decode_locks)?;
                records.push(Record::Locks(*ino, locks.unwrap_or_default().into()));
            }
            RecordKey::Waits => {
                let waits = self.lookup.span(&self.keys.table(b'w'))?;
                let waits: Result<_, _> =
                    waits.iter().map(|(key, held)| decode_wait(key, &held.value)).collect();
                records.push(Record::Waits(waits?));
            }
            RecordKey::Session(id) => {
                let session =
                    self.at(self.keys.session(*id), |key, value| decode_session(*id, key, value))?;
                records.push(Record::Session(*id, session));
            }
            RecordKey::Quota(quota_key) => {
                let quota = self.at(self.keys.quota(*quota_key), decode_quota)?;
                records.push(Record::Quota(*quota_key, quota));
            }
        }
        Ok(records)
    }

    fn at<T>(
        &mut self,
        key: Vec<u8>,
        decode: impl FnOnce(&[u8], &[u8]) -> Result<T, Damaged>,
    ) -> Result<Option<T>, ReadStop> {
        let held = self.lookup.key(&key, Assume::Nothing)?;
        Ok(held.map(|held| decode(&key, &held.value)).transpose()?)
    }

    fn acl(&mut self, id: AclId, records: &mut Vec<Record>) -> Result<(), ReadStop> {
        let text = self.at(self.keys.acl(id), decode_text)?;
        records.push(Record::Acl(id, text.map(|text| acl_text(&text).into())));
        Ok(())
    }

    /// An inode by its number; `acls`: with the texts of its ACLs.
    fn inode(&mut self, ino: Ino, acls: bool, records: &mut Vec<Record>) -> Result<(), ReadStop> {
        let key = self.keys.inode_row(ino);
        let held = self.lookup.location(&key, Assume::Nothing)?;
        match held.map(|held| decode_inode_row(&key, &held.value)).transpose()? {
            Some(InodeRow::Here(stored)) => self.whole(&key, stored, acls, records),
            Some(InodeRow::At(location)) => {
                let key = self.keys.location(&location);
                let held = self.lookup.location(&key, Assume::Nothing)?;
                let entry = held.map(|held| decode_dirent(&key, &held.value)).transpose()?;
                let stored = entry.and_then(|entry| entry.stored).filter(|stored| stored.inode.ino == ino);
                // If the dirent does not store the inode, the dirent and the location record were not read as
                // of the same moment.
                self.whole(&key, stored.ok_or(ReadStop::Missing)?, acls, records)
            }
            None => {
                records.push(Record::Inode(ino, None));
                Ok(())
            }
        }
    }

    /// The inode that a dirent refers to.
    fn inode_of(
        &mut self,
        key: &[u8],
        entry: &StoredDirent,
        acls: bool,
        records: &mut Vec<Record>,
    ) -> Result<(), ReadStop> {
        match entry.stored {
            Some(stored) => self.whole(key, stored, acls, records),
            None => self.inode(entry.dirent.ino, acls, records),
        }
    }

    /// Answers with a stored inode. The links and times of a directory are read from the keys next to its
    /// location.
    fn whole(
        &mut self,
        location: &[u8],
        stored: Stored,
        acls: bool,
        records: &mut Vec<Record>,
    ) -> Result<(), ReadStop> {
        let mut inode = stored.inode;
        if inode.kind.is_dir() {
            let parts = [LINKS, MTIME, CTIME].map(|letter| self.lookup.part(location, letter));
            let [links, mtime, ctime] = parts;
            let there = |held: Option<StoredValue>| {
                held.ok_or_else(|| Damaged::new("a part of a directory is missing", location))
            };
            set_parts(&mut inode, location, &there(links?)?, &there(mtime?)?, &there(ctime?)?)?;
        }
        self.push(inode, acls, records)
    }

    fn push(&mut self, inode: Inode, acls: bool, records: &mut Vec<Record>) -> Result<(), ReadStop> {
        records.push(Record::Inode(inode.ino, Some(inode)));
        // Try all, to collect the queries of all missing values at once.
        let ids = inode.acls().filter(|_| acls);
        let answers: Vec<_> = ids.map(|id| self.acl(id, records)).collect();
        answers.into_iter().collect()
    }

    fn page(&mut self, scan: &Scan) -> Result<(Vec<Record>, bool), ReadStop> {
        match scan {
            Scan::Dir { parent, after, limit, include } => {
                self.directory(*parent, after.as_ref(), *limit, *include)
            }
            Scan::Inodes { after, limit } => self.inodes(*after, *limit),
            Scan::Slices { ino, from, limit } => self.slices(*ino, *from, *limit),
            Scan::Orphans { after: (session, ino), limit } => {
                let from = self.keys.unlinked(*session, *ino);
                self.rows(b'o', from, *limit, |rest, _, _| {
                    let (session, ino) = rest.split_first_chunk()?;
                    Some(Ok(Record::Orphan(SessionId(u64::from_be_bytes(*session)), Ino(number(ino)?))))
                })
            }
            Scan::Sessions { after, limit } => {
                self.rows(b's', self.keys.session(*after), *limit, |rest, key, value| {
                    let id = SessionId(number(rest)?);
                    Some(decode_session(id, key, value).map(|session| Record::Session(id, Some(session))))
                })
            }
            Scan::Locks { after, limit } => {
                self.rows(b'k', self.keys.locks(*after), *limit, |rest, key, value| {
                    let ino = Ino(number(rest)?);
                    Some(decode_locks(key, value).map(|locks| Record::Locks(ino, locks.into())))
                })
            }
            Scan::Garbage { after, limit } => {
                self.rows(b'g', self.keys.garbage(*after), *limit, |rest, key, value| {
                    let slice = SliceId(number(rest)?);
                    // The size of a slice has 32 bits.
                    let size = decode_u64(key, value).map(|size| size as u32);
                    Some(size.map(|size| Record::Garbage(Garbage { slice, size })))
                })
            }
            Scan::Shared { after, limit } => {
                self.rows(b'h', self.keys.shared(*after), *limit, |rest, key, value| {
                    let slice = SliceId(number(rest)?);
                    Some(decode_u64(key, value).map(|rows| Record::Shared(slice, rows)))
                })
            }
            Scan::Acls { after, limit } => {
                self.rows(b'a', self.keys.acl(*after), *limit, |rest, key, value| {
                    let id = AclId::from_bytes(rest.try_into().ok()?);
                    Some(decode_text(key, value).map(|text| Record::Acl(id, Some(acl_text(&text).into()))))
                })
            }
            Scan::Quotas { after, limit } => {
                let after = after.map_or_else(|| self.keys.table(b'q').start, |after| self.keys.quota(after));
                self.rows(b'q', after, *limit, |rest, key, value| {
                    let quota = Keyspace::parse_quota(rest)?;
                    Some(decode_quota(key, value).map(|found| Record::Quota(quota, Some(found))))
                })
            }
        }
    }

    /// The rows of a table after the key `after`, which need not exist. Each row of the table is one key.
    fn rows(
        &mut self,
        table: u8,
        after: Vec<u8>,
        limit: usize,
        record: impl Fn(&[u8], &[u8], &[u8]) -> Option<Result<Record, Damaged>>,
    ) -> Result<(Vec<Record>, bool), ReadStop> {
        let keys = self.keys;
        let start = just_after(&after);
        let mut records = Vec::new();
        let more = self.visit(start, keys.table(table).end, limit, |_, key, held| {
            let row = keys.rest(key, table).and_then(|rest| record(rest, key, &held.value));
            records.push(row.ok_or_else(|| Damaged::new("a key that is not valid", key))??);
            Ok(true)
        })?;
        let more = more || records.len() > limit;
        records.truncate(limit);
        Ok((records, more))
    }

    /// Visits the keys of a range in order, and returns whether the range has more than `limit` rows. The
    /// visitor returns whether a key starts a row; a key that starts none belongs to the previous row. If
    /// there are more rows, the key that starts the first one beyond the limit is visited too, so the caller
    /// must drop that row.
    fn visit(
        &mut self,
        mut start: Vec<u8>,
        end: Vec<u8>,
        limit: usize,
        mut visitor: impl FnMut(&mut Self, &[u8], &StoredValue) -> Result<bool, ReadStop>,
    ) -> Result<bool, ReadStop> {
        let mut rows = 0usize;
        while start < end {
            // Read a quarter more than the rows that are left, because some keys start no row.
            let part =
                limit.saturating_sub(rows).saturating_mul(5).saturating_div(4).saturating_add(4).min(PART);
            let span = Span { start: start.clone(), end: end.clone(), limit: part };
            let found = self.lookup.span(&span)?;
            for (key, held) in found {
                if rows == limit && limit > 0 {
                    // After the last row within the limit: either a further key of that row, or the start of
                    // a row too many.
                    if visitor(self, key, held)? {
                        return Ok(true);
                    }
                    continue;
                }
                if limit == 0 {
                    return Ok(true);
                }
                rows += usize::from(visitor(self, key, held)?);
            }
            match found.last() {
                Some((last, _)) if found.len() == part => start = just_after(last),
                _ => break,
            }
        }
        Ok(false)
    }

    fn directory(
        &mut self,
        parent: Ino,
        after: Option<&Name>,
        limit: usize,
        include: ScanInclude,
    ) -> Result<(Vec<Record>, bool), ReadStop> {
        let keys = self.keys;
        let span = keys.dirents(parent);
        let start = after.map_or(span.start, |after| keys.after_dirent(parent, after));
        let mut entries: Vec<Listed> = Vec::new();
        let mut more = self.visit(start, span.end, limit, |_, key, held| match keys.parse_dirent(key) {
            Some((_, name, None)) => {
                entries.push((key.to_vec(), name, decode_dirent(key, &held.value)?, Default::default()));
                Ok(true)
            }
            Some((_, _, Some(letter))) => {
                let place = [LINKS, MTIME, CTIME].iter().position(|known| *known == letter);
                let last = entries.last_mut().filter(|(location, ..)| key.starts_with(location));
                if let Some((_, _, _, parts)) = last
                    && let Some(part) = place.and_then(|place| parts.get_mut(place))
                {
                    *part = Some(held.clone());
                }
                Ok(false)
            }
            None => Err(Damaged::new("a key that is not valid", key).into()),
        })?;
        more |= entries.len() > limit;
        entries.truncate(limit);
        let mut records = Vec::with_capacity(entries.len() * 2);
        let (mut missing, acls) = (false, include == ScanInclude::InodesWithAcls);
        for (key, name, entry, parts) in entries {
            records.push(Record::Dirent(parent, name, Some(entry.dirent)));
            if include == ScanInclude::Nothing {
                continue;
            }
            let done = match (entry.stored, &parts) {
                (Some(stored), [Some(links), Some(mtime), Some(ctime)]) => {
                    let mut inode = stored.inode;
                    set_parts(&mut inode, &key, links, mtime, ctime)?;
                    self.push(inode, acls, &mut records)
                }
                (Some(stored), _) if !stored.inode.kind.is_dir() => {
                    self.push(stored.inode, acls, &mut records)
                }
                _ => self.inode_of(&key, &entry, acls, &mut records),
            };
            match done {
                Err(ReadStop::Missing) => missing = true,
                other => other?,
            }
        }
        if missing { Err(ReadStop::Missing) } else { Ok((records, more)) }
    }

    /// A page of inodes by number. etcd visits all keys of a range, to count them, although it returns only a
    /// few (`treeIndex.Revisions` in server/storage/mvcc). If each page read up to the end of the table, the
    /// time of a whole scan would grow with the square of the number of inodes. So after the first page, a
    /// range ends where the page probably does.
    fn inodes(&mut self, after: Ino, limit: usize) -> Result<(Vec<Record>, bool), ReadStop> {
        let keys = self.keys;
        let mut inos = Vec::new();
        let visitor = |inos: &mut Vec<Ino>, key: &[u8]| {
            let rest = keys.rest(key, b'n').unwrap_or_default();
            let ino = rest.first_chunk().map(|ino| Ino(u64::from_be_bytes(*ino)));
            let ino = ino.ok_or_else(|| Damaged::new("a key that is not valid", key))?;
            let is_row = rest.len() == 8;
            inos.extend(Some(ino).filter(|_| is_row));
            Ok(is_row)
        };
        // Almost all inode numbers are below the counter, so the range that reaches it extends to the end of
        // the table.
        let used = match after.0 {
            0 => Ok(Some(0)),
            _ => self.at(keys.counter(Counter::Ino), decode_u64),
        };
        let used = match used {
            Err(ReadStop::Missing) => u64::MAX,
            used => used?.unwrap_or(0),
        };
        let (mut start, mut from) = (keys.after_inode_row(after), after.0);
        let mut width = (limit as u64).saturating_mul(INODE_NUMBERS).max(MIN_INODE_NUMBERS);
        let mut more = loop {
            let until = from.saturating_add(width);
            let is_last = until >= used;
            let end = if is_last { keys.table(b'n').end } else { keys.inode_row(Ino(until)) };
            let left = limit.saturating_sub(inos.len());
            let more = self.visit(start, end.clone(), left, |_, key, _| visitor(&mut inos, key))?;
            if more || is_last {
                break more;
            }
            (start, from) = (end, until);
            width = width.saturating_mul(4);
        };
        more |= inos.len() > limit;
        inos.truncate(limit);
        let mut records = Vec::with_capacity(inos.len());
        let mut missing = false;
        for ino in inos {
            match self.inode(ino, false, &mut records) {
                Err(ReadStop::Missing) => missing = true,
                other => other?,
            }
        }
        if missing { Err(ReadStop::Missing) } else { Ok((records, more)) }
    }

    fn slices(&mut self, ino: Ino, from: ChunkIndex, limit: usize) -> Result<(Vec<Record>, bool), ReadStop> {
        let keys = self.keys;
        let span = keys.rows(ino, from, ChunkIndex(u64::MAX));
        let mut chunks: Vec<(ChunkIndex, Vec<Slice>)> = Vec::new();
        let mut more = self.visit(span.start, span.end, limit, |_, key, held| {
            let (chunk, _) =
                keys.parse_row(key).ok_or_else(|| Damaged::new("a key that is not valid", key))?;
            let row = decode_row(key, &held.value)?;
            match chunks.last_mut().filter(|(last, _)| *last == chunk) {
                Some((_, rows)) => rows.push(row),
                None => {
                    chunks.push((chunk, vec![row]));
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
        more |= chunks.len() > limit;
        chunks.truncate(limit);
        let records =
            chunks.into_iter().map(|(chunk, rows)| Record::Slices(ino, chunk, rows.into())).collect();
        Ok((records, more))
    }
}

fn set_parts(
    inode: &mut Inode,
    location: &[u8],
    links: &StoredValue,
    mtime: &StoredValue,
    ctime: &StoredValue,
) -> Result<(), Damaged> {
    (inode.nlink, inode.atime) = decode_links(location, &links.value)?;
    inode.mtime = decode_time(location, &mtime.value)?;
    inode.ctime = decode_time(location, &ctime.value)?;
    Ok(())
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn just_after(key: &[u8]) -> Vec<u8> {
    let mut after = key.to_vec();
    after.push(0);
    after
}

/// The text of an ACL without the mark of a condemned one.
fn acl_text(stored: &str) -> &str {
    stored.strip_prefix(CONDEMNED).unwrap_or(stored)
}
