//! Records out of values.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use meta::{Beside, Garbage, Node, Record, Scan, Settings, Usage, Want, Xattrs};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, SliceId};

use crate::keys::{CTIME, Home, Keyspace, LINKS, MTIME, Span};
use crate::source::{Access, Held, Lookup, Presume, Source, Stop};
use crate::value::{
    Amount, Damaged, Entry, Place, Stored, decode_bytes, decode_entry, decode_lane, decode_links,
    decode_locks, decode_place, decode_row, decode_session, decode_text, decode_time, decode_u64,
    decode_wait, encode_place,
};

/// An answer, and what was looked at for it.
pub type Answer<T> = (Result<T, Stop>, BTreeSet<Access>);

/// An entry in a listing: its key and name, and the parts beside it: links, mtime, ctime.
type Listed = (Vec<u8>, Name, Entry, [Option<Held>; 3]);

/// Answers wants, in order. Beside the answer stands what was looked at: where the answer is [`Stop::Missing`], what has
/// to be read is among it.
pub fn answer(keys: &Keyspace, wants: &[Want], source: &dyn Source) -> Answer<Vec<Record>> {
    let mut reader = Reader { keys, look: Lookup::new(source) };
    let mut answers = Ok(Vec::with_capacity(wants.len() * 2));
    for want in wants {
        // Also after one that lacks something, to learn at once what the others lack.
        match (reader.want(want), &mut answers) {
            (Ok(records), Ok(all)) => all.extend(records),
            (Ok(_), Err(_)) | (Err(Stop::Missing), Err(_)) => {}
            (Err(stop), answers) => *answers = Err(stop),
        }
    }
    (answers, reader.look.accessed)
}

/// A part of a range, and whether more may follow; as [`answer`].
pub fn page(keys: &Keyspace, scan: &Scan, source: &dyn Source) -> Answer<(Vec<Record>, bool)> {
    let mut reader = Reader { keys, look: Lookup::new(source) };
    let page = reader.page(scan);
    (page, reader.look.accessed)
}

/// What an entry that is an inode's home says of that inode's place: the key and the value that stand there.
pub(crate) fn implied_place(keys: &Keyspace, key: &[u8], value: &[u8]) -> Option<(Vec<u8>, Bytes)> {
    let (parent, name, _) = keys.parse_entry(key).filter(|(_, _, part)| part.is_none())?;
    let stored = decode_entry(key, value).ok()?.stored?;
    Some((keys.place(stored.node.ino), encode_place(&Place::At(Home::At(parent, name)))))
}

/// Keys asked for at once where a whole range is read.
const PART: usize = 4096;

struct Reader<'a> {
    keys: &'a Keyspace,
    look: Lookup<'a>,
}

impl Reader<'_> {
    fn want(&mut self, want: &Want) -> Result<Vec<Record>, Stop> {
        let mut records = Vec::with_capacity(2);
        match want {
            Want::Node(ino) => self.node(*ino, &mut records)?,
            Want::Entry(parent, name) => {
                let key = self.keys.entry(*parent, name);
                let held = self.look.home(&key, Presume::Nothing)?;
                let entry = held.map(|held| decode_entry(&key, &held.value)).transpose()?;
                records.push(Record::Edge(*parent, name.clone(), entry.map(|entry| entry.edge)));
                if let Some(entry) = entry {
                    self.node_of(&key, &entry, &mut records)?;
                }
            }
            Want::Empty(ino) => {
                let span = Span { limit: 1, ..self.keys.entries(*ino) };
                records.push(Record::Empty(*ino, self.look.span(&span)?.is_empty()));
            }
            Want::Xattrs(ino) => {
                let mut xattrs = Xattrs::new();
                for (key, held) in self.look.span(&self.keys.xattrs(*ino))? {
                    let name = self.keys.parse_xattr(key);
                    let name = name.ok_or_else(|| Damaged::new("the name of an attribute", key))?;
                    xattrs.insert(name, decode_bytes(key, &held.value)?);
                }
                records.push(Record::Xattrs(*ino, Arc::new(xattrs)));
            }
            Want::Symlink(ino) => {
                let target = self.at(self.keys.symlink(*ino), decode_bytes)?;
                records.push(Record::Symlink(*ino, target));
            }
            Want::Slices(ino, chunk) => {
                let span = Span {
                    end: self.keys.row(*ino, *chunk, u64::MAX),
                    ..self.keys.rows(*ino, *chunk, *chunk)
                };
                let rows = self.look.span(&span)?;
                let rows: Result<Arc<[Slice]>, _> =
                    rows.iter().map(|(key, held)| decode_row(key, &held.value)).collect();
                records.push(Record::Slices(*ino, *chunk, rows?));
            }
            Want::Acl(id) => self.acl(*id, &mut records)?,
            Want::Settings => {
                let mut settings = Settings::new();
                for (key, held) in self.look.span(&self.keys.table(b't'))? {
                    let name = self.keys.rest(key, b't').and_then(|name| str::from_utf8(name).ok());
                    let name = name.ok_or_else(|| Damaged::new("the name of a setting", key))?;
                    settings.insert(name.to_owned(), decode_text(key, &held.value)?);
                }
                records.push(Record::Settings(Arc::new(settings)));
            }
            Want::Counter(counter) => {
                let value = self.at(self.keys.counter(*counter), decode_u64)?;
                records.push(Record::Counter(*counter, value.unwrap_or(0)));
            }
            Want::Usage => {
                let mut used = Amount::default();
                for (key, held) in self.look.span(&self.keys.lanes())? {
                    used = used.plus(decode_lane(key, &held.value)?.used);
                }
                let (inodes, blocks) = (used.inodes.max(0).unsigned_abs(), used.blocks.max(0).unsigned_abs());
                records.push(Record::Usage(Usage { inodes, blocks }));
            }
            Want::Locks(ino) => {
                let locks = self.at(self.keys.locks(*ino), decode_locks)?;
                records.push(Record::Locks(*ino, locks.unwrap_or_default().into()));
            }
            Want::Waits => {
                let waits = self.look.span(&self.keys.table(b'w'))?;
                let waits: Result<_, _> =
                    waits.iter().map(|(key, held)| decode_wait(key, &held.value)).collect();
                records.push(Record::Waits(waits?));
            }
            Want::Session(id) => {
                let session =
                    self.at(self.keys.session(*id), |key, value| decode_session(*id, key, value))?;
                records.push(Record::Session(*id, session));
            }
        }
        Ok(records)
    }

    fn at<T>(
        &mut self,
        key: Vec<u8>,
        decode: impl FnOnce(&[u8], &[u8]) -> Result<T, Damaged>,
    ) -> Result<Option<T>, Stop> {
        let held = self.look.key(&key, Presume::Nothing)?;
        Ok(held.map(|held| decode(&key, &held.value)).transpose()?)
    }

    fn acl(&mut self, id: AclId, records: &mut Vec<Record>) -> Result<(), Stop> {
        let text = self.at(self.keys.acl(id), decode_text)?;
        records.push(Record::Acl(id, text.map(Into::into)));
        Ok(())
    }

    /// An inode by its number.
    fn node(&mut self, ino: Ino, records: &mut Vec<Record>) -> Result<(), Stop> {
        let key = self.keys.place(ino);
        let held = self.look.home(&key, Presume::Nothing)?;
        match held.map(|held| decode_place(&key, &held.value)).transpose()? {
            Some(Place::Here(stored)) => self.whole(&key, stored, records),
            Some(Place::At(home)) => {
                let key = self.keys.home(&home);
                let held = self.look.home(&key, Presume::Nothing)?;
                let entry = held.map(|held| decode_entry(&key, &held.value)).transpose()?;
                let stored = entry.and_then(|entry| entry.stored).filter(|stored| stored.node.ino == ino);
                // Not there means that the two were not read at one moment.
                self.whole(&key, stored.ok_or(Stop::Missing)?, records)
            }
            None => {
                records.push(Record::Node(ino, None));
                Ok(())
            }
        }
    }

    /// The inode that an entry refers to.
    fn node_of(&mut self, key: &[u8], entry: &Entry, records: &mut Vec<Record>) -> Result<(), Stop> {
        match entry.stored {
            Some(stored) => self.whole(key, stored, records),
            None => self.node(entry.edge.ino, records),
        }
    }

    /// An inode with the parts that lie beside its home, and its ACLs.
    fn whole(&mut self, home: &[u8], stored: Stored, records: &mut Vec<Record>) -> Result<(), Stop> {
        let mut node = stored.node;
        if node.kind.is_dir() {
            let parts = [LINKS, MTIME, CTIME].map(|letter| self.look.part(home, letter));
            let [links, mtime, ctime] = parts;
            let there = |held: Option<Held>| {
                held.ok_or_else(|| Damaged::new("a part of a directory is not there", home))
            };
            set_parts(&mut node, home, &there(links?)?, &there(mtime?)?, &there(ctime?)?)?;
        }
        records.push(Record::Node(node.ino, Some(node)));
        for id in node.acls() {
            self.acl(id, records)?;
        }
        Ok(())
    }

    fn page(&mut self, scan: &Scan) -> Result<(Vec<Record>, bool), Stop> {
        match scan {
            Scan::Dir { parent, after, limit, beside } => {
                self.directory(*parent, after.as_ref(), *limit, *beside)
            }
            Scan::Nodes { after, limit } => self.nodes(*after, *limit),
            Scan::Slices { ino, from, limit } => self.slices(*ino, *from, *limit),
            Scan::Orphans { after: (session, ino), limit } => {
                let from = self.keys.orphan(*session, *ino);
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
                    Some(decode_text(key, value).map(|text| Record::Acl(id, Some(text.into()))))
                })
            }
        }
    }

    /// The rows of a table after the key `after`, one key each.
    fn rows(
        &mut self,
        table: u8,
        after: Vec<u8>,
        limit: usize,
        record: impl Fn(&[u8], &[u8], &[u8]) -> Option<Result<Record, Damaged>>,
    ) -> Result<(Vec<Record>, bool), Stop> {
        let keys = self.keys;
        let start = just_after(&after);
        let mut records = Vec::new();
        let more = self.visit(start, keys.table(table).end, limit, |_, key, held| {
            let row = keys.rest(key, table).and_then(|rest| record(rest, key, &held.value));
            records.push(row.ok_or_else(|| Damaged::new("a key that cannot be", key))??);
            Ok(true)
        })?;
        let more = more || records.len() > limit;
        records.truncate(limit);
        Ok((records, more))
    }

    /// Visits the keys of a range in order until `limit` of them counted, and says whether one more would have. The
    /// visitor says of each whether it counts as a row of its own; what does not belongs to the row before.
    fn visit(
        &mut self,
        mut start: Vec<u8>,
        end: Vec<u8>,
        limit: usize,
        mut visitor: impl FnMut(&mut Self, &[u8], &Held) -> Result<bool, Stop>,
    ) -> Result<bool, Stop> {
        let mut rows = 0usize;
        while start < end {
            // Some keys more, for those that are no rows of their own.
            let part =
                limit.saturating_sub(rows).saturating_mul(5).saturating_div(4).saturating_add(4).min(PART);
            let span = Span { start: start.clone(), end: end.clone(), limit: part };
            let found = self.look.span(&span)?;
            for (key, held) in found {
                if rows == limit && limit > 0 {
                    // The first key beyond: either a part of the last row, which the visitor takes, or a row too many.
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
        beside: Beside,
    ) -> Result<(Vec<Record>, bool), Stop> {
        let keys = self.keys;
        let span = keys.entries(parent);
        let start = after.map_or(span.start, |after| keys.after_entry(parent, after));
        // An entry is complete when the next one begins.
        let mut entries: Vec<Listed> = Vec::new();
        let mut more = self.visit(start, span.end, limit, |_, key, held| match keys.parse_entry(key) {
            Some((_, name, None)) => {
                entries.push((key.to_vec(), name, decode_entry(key, &held.value)?, Default::default()));
                Ok(true)
            }
            Some((_, _, Some(letter))) => {
                let place = [LINKS, MTIME, CTIME].iter().position(|known| *known == letter);
                let last = entries.last_mut().filter(|(home, ..)| key.starts_with(home));
                if let Some((_, _, _, parts)) = last
                    && let Some(part) = place.and_then(|place| parts.get_mut(place))
                {
                    *part = Some(held.clone());
                }
                Ok(false)
            }
            None => Err(Damaged::new("a key that cannot be", key).into()),
        })?;
        more |= entries.len() > limit;
        entries.truncate(limit);
        let mut records = Vec::with_capacity(entries.len() * 2);
        let mut missing = false;
        for (key, name, entry, parts) in entries {
            records.push(Record::Edge(parent, name, Some(entry.edge)));
            if beside == Beside::Nothing {
                continue;
            }
            let mut found = Vec::with_capacity(3);
            let done = match (entry.stored, &parts) {
                (Some(stored), [Some(links), Some(mtime), Some(ctime)]) => {
                    let mut node = stored.node;
                    set_parts(&mut node, &key, links, mtime, ctime)?;
                    self.with_acls(node, &mut found)
                }
                (Some(stored), _) if !stored.node.kind.is_dir() => self.with_acls(stored.node, &mut found),
                _ => self.node_of(&key, &entry, &mut found),
            };
            if beside == Beside::Nodes {
                found.truncate(1);
            }
            match done {
                // Only its ACLs were not at hand, and they are not asked for.
                Err(Stop::Missing) if beside == Beside::Nodes && !found.is_empty() => {}
                Err(Stop::Missing) => missing = true,
                other => other?,
            }
            records.extend(found);
        }
        if missing { Err(Stop::Missing) } else { Ok((records, more)) }
    }

    fn with_acls(&mut self, node: Node, records: &mut Vec<Record>) -> Result<(), Stop> {
        records.push(Record::Node(node.ino, Some(node)));
        let ids = node.acls();
        // All of them, to learn at once what is lacking.
        let answers: Vec<_> = ids.map(|id| self.acl(id, records)).collect();
        answers.into_iter().collect()
    }

    fn nodes(&mut self, after: Ino, limit: usize) -> Result<(Vec<Record>, bool), Stop> {
        let keys = self.keys;
        let mut inos = Vec::new();
        let mut more = self.visit(keys.after_place(after), keys.table(b'n').end, limit, |_, key, _| {
            let rest = keys.rest(key, b'n').unwrap_or_default();
            let ino = rest.first_chunk().map(|ino| Ino(u64::from_be_bytes(*ino)));
            let ino = ino.ok_or_else(|| Damaged::new("a key that cannot be", key))?;
            let is_row = rest.len() == 8;
            inos.extend(Some(ino).filter(|_| is_row));
            Ok(is_row)
        })?;
        more |= inos.len() > limit;
        inos.truncate(limit);
        let mut records = Vec::with_capacity(inos.len());
        let mut missing = false;
        for ino in inos {
            let mut node = Vec::with_capacity(1);
            match self.node(ino, &mut node) {
                // The ACLs are not asked for here.
                Ok(()) => records.extend(node.into_iter().take(1)),
                Err(Stop::Missing) if matches!(node.first(), Some(Record::Node(_, Some(_)))) => {
                    records.extend(node.into_iter().take(1));
                }
                Err(Stop::Missing) => missing = true,
                Err(stop) => return Err(stop),
            }
        }
        if missing { Err(Stop::Missing) } else { Ok((records, more)) }
    }

    fn slices(&mut self, ino: Ino, from: ChunkIndex, limit: usize) -> Result<(Vec<Record>, bool), Stop> {
        let keys = self.keys;
        let span = keys.rows(ino, from, ChunkIndex(u64::MAX));
        let mut chunks: Vec<(ChunkIndex, Vec<Slice>)> = Vec::new();
        let mut more = self.visit(span.start, span.end, limit, |_, key, held| {
            let (chunk, _) = keys.parse_row(key).ok_or_else(|| Damaged::new("a key that cannot be", key))?;
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

fn set_parts(node: &mut Node, home: &[u8], links: &Held, mtime: &Held, ctime: &Held) -> Result<(), Damaged> {
    (node.nlink, node.atime) = decode_links(home, &links.value)?;
    node.mtime = decode_time(home, &mtime.value)?;
    node.ctime = decode_time(home, &ctime.value)?;
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
