//! Counts all quotas again, exactly, while the volume is in use.
//!
//! Every transaction that changes the usage of an inode changes the counters by the same amount. So the
//! difference between a counter and the sum over its inodes does not depend on the moment, and a correction
//! can be applied at any later moment ([`ops::CorrectQuotas`]). To find the difference, the counter and all
//! inodes must be known as of one moment. Some engines have snapshots that last as long as the count takes
//! ([`Engine::open_snapshot`]).
//!
//! On the other engines, all inodes are read one page after another, and the usage of each of them is kept in
//! a file. Meanwhile the stream of changes tells which inodes change. The changed inodes are read again, and
//! the new counts replace the old ones. If the engine has snapshots that last a short time, the last changed
//! inodes and the counters are read from a snapshot. If not, one request reads the last few changed inodes
//! together with the counters. The result is correct for the moment of this request if no other inode had
//! changed before it. To verify that, the stream is polled once more; if the answer names another inode, the
//! last request is repeated. The stream does not name a new inode, but it names the new directory entry. A
//! file that is created without a name has no entry: such files are in the list of unlinked files, which is
//! read before the last poll.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use meta::{
    ChangedKeys, Engine, EngineError, Inode, Invalidation, Page, Quota, QuotaKey, QuotaTag, Record,
    RecordKey, Scan, Snapshot, SnapshotReader,
};
use types::{Ino, Name, SessionId};

use crate::quotas::{Counts, Difference, InodeUsage, compare};
use crate::walk::PAGE;

/// Why quotas were not counted.
#[derive(Debug, thiserror::Error)]
pub enum RecountError {
    #[error("the volume changes faster than it can be counted")]
    TooFast,
    #[error("cannot keep counts in a file: {0}")]
    Spool(#[from] io::Error),
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The quotas at one moment.
#[derive(Debug)]
pub struct Recount {
    pub quotas: BTreeMap<QuotaKey, Quota>,
    /// The quotas whose counters are wrong.
    pub differences: Vec<Difference>,
    /// [`Quota::NEXT_SETTING`] at that moment.
    pub next: Option<String>,
}

/// The maximum number of changed records that are held in memory.
const MAX_CHANGED: usize = 200_000;

/// How often the last request is repeated before the count gives up.
const MAX_ROUNDS: u32 = 1_000;

/// The maximum number of counters that one request reads.
const MAX_COUNTERS: usize = 4_096;

/// Called with the number of inodes counted so far; `false` ends the count.
type Progress<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Counts all quotas again. `spool` creates an empty file, which gets 32 bytes for each inode that counts in
/// a quota.
///
/// # Errors
/// [`RecountError`].
pub fn recount(
    engine: &Arc<dyn Engine>,
    spool: impl FnOnce() -> io::Result<File>,
    progress: Progress<'_>,
) -> Result<Recount, RecountError> {
    match engine.open_snapshot()?.filter(|snapshot| snapshot.is_lasting()) {
        Some(mut snapshot) => recount_snapshot(&mut *snapshot, progress),
        None => Live::new(engine, spool()?)?.recount(progress),
    }
}

fn recount_snapshot(
    snapshot: &mut dyn SnapshotReader,
    progress: Progress<'_>,
) -> Result<Recount, RecountError> {
    let (mut counts, mut seen) = (Counts::default(), 0);
    for_each_inode(&mut |scan| snapshot.scan(scan), |inodes| {
        inodes.iter().for_each(|inode| counts.add(inode));
        seen += inodes.len() as u64;
        if progress(seen) { Ok(()) } else { Err(RecountError::Interrupted) }
    })?;
    Ok(compare_with_snapshot(&counts, snapshot)?)
}

/// Compares all counters in a snapshot with the counts as of the same moment.
fn compare_with_snapshot(counts: &Counts, snapshot: &mut dyn SnapshotReader) -> Result<Recount, EngineError> {
    let quotas = all_quotas(&mut |scan| snapshot.scan(scan))?;
    let next = next_of(&snapshot.read(&[RecordKey::Settings])?.records);
    Ok(Recount { differences: compare(counts, &quotas), quotas, next })
}

type Read<'a> = &'a mut dyn FnMut(&[RecordKey]) -> Result<Snapshot, EngineError>;

type ScanPage<'a> = &'a mut dyn FnMut(&Scan) -> Result<Page, EngineError>;

fn for_each_inode(
    scan: ScanPage<'_>,
    mut each: impl FnMut(&[Inode]) -> Result<(), RecountError>,
) -> Result<(), RecountError> {
    for page in (Scan::Inodes { after: Ino(0), limit: PAGE }).pages(scan) {
        let inodes: Vec<Inode> = page?
            .iter()
            .filter_map(|record| match record {
                Record::Inode(_, inode) => *inode,
                _ => None,
            })
            .collect();
        each(&inodes)?;
    }
    Ok(())
}

fn all_quotas(scan: ScanPage<'_>) -> Result<BTreeMap<QuotaKey, Quota>, EngineError> {
    let mut quotas = BTreeMap::new();
    for page in (Scan::Quotas { after: None, limit: PAGE }).pages(scan) {
        quotas.extend(page?.iter().filter_map(quota_of));
    }
    Ok(quotas)
}

fn quota_of(record: &Record) -> Option<(QuotaKey, Quota)> {
    match record {
        Record::Quota(key, Some(quota)) => Some((*key, *quota)),
        _ => None,
    }
}

fn next_of(records: &[Record]) -> Option<String> {
    records.iter().find_map(|record| match record {
        Record::Settings(settings) => settings.get(Quota::NEXT_SETTING).cloned(),
        _ => None,
    })
}

/// A record that may have changed since it was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Inode(Ino),
    Dirent(Ino, Name),
}

fn key_of_change(invalidation: Invalidation) -> Option<Key> {
    match invalidation {
        Invalidation::Inode(ino) => Some(Key::Inode(ino)),
        Invalidation::Dirent(dir, name) => Some(Key::Dirent(dir, name)),
        Invalidation::Data(_)
        | Invalidation::Names(..)
        | Invalidation::Xattrs(_)
        | Invalidation::Locks(_) => None,
    }
}

struct Live {
    engine: Arc<dyn Engine>,
    spool: Spool,
    counts: Counts,
    changed: ChangedKeys<Key>,
    /// The usage of the inodes that were read again.
    read_again: BTreeMap<Ino, InodeUsage>,
}

impl Live {
    fn new(engine: &Arc<dyn Engine>, spool: File) -> Result<Live, RecountError> {
        Ok(Live {
            engine: Arc::clone(engine),
            spool: Spool { file: spool, len: 0 },
            counts: Counts::default(),
            changed: ChangedKeys::new(&**engine, key_of_change)?,
            read_again: BTreeMap::new(),
        })
    }

    fn recount(mut self, progress: Progress<'_>) -> Result<Recount, RecountError> {
        let engine = Arc::clone(&self.engine);
        let mut seen = 0;
        let mut out = BufWriter::new(self.spool.file.try_clone()?);
        for_each_inode(&mut |scan| engine.scan(scan), |inodes| {
            for inode in inodes.iter().filter(|inode| inode.quota != QuotaTag::NONE) {
                self.counts.add(inode);
                out.write_all(&to_bytes(inode.ino, &inode.into()))?;
                self.spool.len += 1;
            }
            self.poll()?;
            seen += inodes.len() as u64;
            if progress(seen) { Ok(()) } else { Err(RecountError::Interrupted) }
        })?;
        out.flush()?;
        self.poll()?;
        self.read_until_few()?;
        if let Some(mut moment) = self.engine.open_snapshot()? {
            return self.recount_as_of(&mut *moment);
        }
        for _ in 0..MAX_ROUNDS {
            if let Some(recount) = self.compare_all()? {
                return Ok(recount);
            }
            if !progress(seen) {
                return Err(RecountError::Interrupted);
            }
        }
        Err(RecountError::TooFast)
    }

    /// Reads the inodes that have changed up to a moment, as of that moment, and compares all counters.
    fn recount_as_of(&mut self, moment: &mut dyn SnapshotReader) -> Result<Recount, RecountError> {
        // The stream also names inodes that change after the moment. It does no harm to read these as of the
        // moment.
        self.poll()?;
        self.find_unnamed(&mut |scan| moment.scan(scan))?;
        while !self.changed.keys.is_empty() {
            let some = self.changed.take_few();
            self.read(&some, &[], &mut |keys| moment.read(keys))?;
        }
        Ok(compare_with_snapshot(&self.counts, moment)?)
    }

    /// Compares all counters; `None` if a quota was created, or its rule changed, meanwhile.
    fn compare_all(&mut self) -> Result<Option<Recount>, RecountError> {
        let engine = Arc::clone(&self.engine);
        let next = next_of(&engine.read(&[RecordKey::Settings])?.records);
        let mut keys: BTreeSet<QuotaKey> = all_quotas(&mut |scan| engine.scan(scan))?.into_keys().collect();
        keys.extend(self.counts.keys());
        let keys: Vec<QuotaKey> = keys.into_iter().collect();
        // The counter of a directory quota contains the counters of the quotas inside it. So all directory
        // quotas are read together: if one were left out, the counts of the quotas around it would be too
        // low.
        let directories = keys.iter().filter(|key| matches!(key, QuotaKey::Directory(_))).count();
        let (directories, owners) = keys.split_at(directories);
        let mut recount = self.count_at_one_moment(directories)?;
        for some in owners.chunks(MAX_COUNTERS) {
            let more = self.count_at_one_moment(some)?;
            if more.next != recount.next {
                return Ok(None);
            }
            recount.quotas.extend(more.quotas);
            recount.differences.extend(more.differences);
        }
        Ok((recount.next == next).then_some(recount))
    }

    /// Compares the counters of `keys`, which are sorted, with the usage of the inodes at the moment at which
    /// the counters are read.
    fn count_at_one_moment(&mut self, keys: &[QuotaKey]) -> Result<Recount, RecountError> {
        let engine = Arc::clone(&self.engine);
        self.poll()?;
        for _ in 0..MAX_ROUNDS {
            self.read_until_few()?;
            let last = std::mem::take(&mut self.changed.keys);
            let records = self.read(&last, keys, &mut |keys| engine.read(keys))?;
            let quotas: BTreeMap<QuotaKey, Quota> = records.iter().filter_map(quota_of).collect();
            let mut differences = compare(&self.counts, &quotas);
            differences.retain(|difference| keys.binary_search(&difference.key).is_ok());
            self.find_unnamed(&mut |scan| engine.scan(scan))?;
            let news = self.poll()?;
            if self.changed.keys.iter().all(|key| news.contains(key) && last.contains(key)) {
                return Ok(Recount { quotas, differences, next: next_of(&records) });
            }
        }
        Err(RecountError::TooFast)
    }

    /// Takes all changes from the stream. Returns the keys that changed.
    fn poll(&mut self) -> Result<BTreeSet<Key>, RecountError> {
        let most = MAX_CHANGED.saturating_sub(self.read_again.len());
        self.changed.poll(most)?.ok_or(RecountError::TooFast)
    }

    /// Reads changed inodes again until few are left.
    fn read_until_few(&mut self) -> Result<(), RecountError> {
        let engine = Arc::clone(&self.engine);
        while !self.changed.are_few() {
            let some = self.changed.take_few();
            self.read(&some, &[], &mut |keys| engine.read(keys))?;
            self.poll()?;
        }
        Ok(())
    }

    /// Reads inodes again, and counters, with one request.
    fn read(
        &mut self,
        keys: &BTreeSet<Key>,
        quotas: &[QuotaKey],
        read: Read<'_>,
    ) -> Result<Vec<Record>, RecountError> {
        let inodes = keys.iter().map(|key| match key {
            Key::Inode(ino) => RecordKey::Inode(*ino),
            Key::Dirent(dir, name) => RecordKey::Dirent(*dir, name.clone()),
        });
        let keys = [RecordKey::Settings].into_iter().chain(inodes);
        let keys: Vec<RecordKey> = keys.chain(quotas.iter().map(|key| RecordKey::Quota(*key))).collect();
        let records = read(&keys)?.records;
        for record in &records {
            if let Record::Inode(ino, inode) = record {
                self.count_again(*ino, inode.as_ref().map(InodeUsage::from).unwrap_or_default())?;
            }
        }
        Ok(records)
    }

    fn count_again(&mut self, ino: Ino, usage: InodeUsage) -> Result<(), RecountError> {
        let before = match self.read_again.insert(ino, usage) {
            Some(before) => before,
            None => self.spool.find(ino)?.unwrap_or_default(),
        };
        self.counts.add_usage(&before, -1);
        self.counts.add_usage(&usage, 1);
        Ok(())
    }

    /// Marks as changed each file without a name that was not read yet.
    fn find_unnamed(&mut self, scan: ScanPage<'_>) -> Result<(), RecountError> {
        for page in (Scan::Orphans { after: (SessionId(0), Ino(0)), limit: PAGE }).pages(scan) {
            for record in page? {
                if let Record::Orphan(_, ino) = record
                    && !self.read_again.contains_key(&ino)
                    && self.spool.find(ino)?.is_none()
                {
                    self.changed.keys.insert(Key::Inode(ino));
                }
            }
        }
        Ok(())
    }
}

/// A file with the usage of each inode that counts in a quota, in the order of inode numbers.
struct Spool {
    file: File,
    /// The number of inodes.
    len: u64,
}

const SPOOLED_BYTES: usize = 32;

fn to_bytes(ino: Ino, usage: &InodeUsage) -> [u8; SPOOLED_BYTES] {
    let mut bytes = [0; SPOOLED_BYTES];
    bytes[..8].copy_from_slice(&ino.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&usage.tag.to_number().to_le_bytes());
    bytes[16..20].copy_from_slice(&usage.uid.to_le_bytes());
    bytes[20..24].copy_from_slice(&usage.gid.to_le_bytes());
    bytes[24..].copy_from_slice(&usage.blocks.to_le_bytes());
    bytes
}

impl Spool {
    fn find(&self, ino: Ino) -> io::Result<Option<InodeUsage>> {
        let (mut from, mut to) = (0, self.len);
        while from < to {
            let middle = from + (to - from) / 2;
            let mut bytes = [0; SPOOLED_BYTES];
            self.file.read_exact_at(&mut bytes, middle * SPOOLED_BYTES as u64)?;
            let [at, tag, owners, blocks] = [0, 8, 16, 24]
                .map(|at| bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk)));
            match at.cmp(&ino.0) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Greater => to = middle,
                std::cmp::Ordering::Equal => {
                    let (uid, gid) = (owners as u32, (owners >> 32) as u32);
                    return Ok(Some(InodeUsage { tag: QuotaTag::from_number(tag), uid, gid, blocks }));
                }
            }
        }
        Ok(None)
    }
}
