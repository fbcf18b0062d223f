//! The records of one moment, from an engine that cannot show a moment for as long as a dump takes, while
//! mounts change the volume.
//!
//! 1. All records are read into a file. Meanwhile, the stream of changes names the records that change.
//! 2. These records are read again, and so are the records that change meanwhile, until few are left.
//! 3. If the engine can show one moment for a short time ([`Engine::open_snapshot`]), the dump shows the
//!    present moment. The stream names the records that have changed up to that moment, and these are read as
//!    of that moment.
//!
//! Other engines continue with these steps instead:
//!
//! 3. The few that are left are read with one request, so they are of one moment. Then the stream is read
//!    once more. If it names only records of that request, this is the moment of the dump: every other record
//!    has not changed between its last read and that moment.
//! 4. If it names another record, steps 2 and 3 are repeated with the records that it names.
//!
//! Reading the stream takes about as long as one request. So steps 3 and 4 end soon, unless further records
//! change during every two requests. A record that changes all the time does not matter, because the request
//! of step 3 reads it.
//!
//! The request of step 3 also reads the rows of large files, one key for each chunk up to the end of the
//! file, for as many chunks as one request may read. Only the rows of a file with more chunks than that take
//! several requests, so this file must not change during these requests.
//!
//! The stream does not name a new inode, but it names the directory entry of the inode. The rows that share a
//! slice are counted in the result. All such slices are known: a slice that is shared at that moment was
//! shared before the dump began, or a file with one of its rows has changed since.
//!
//! The inodes of quotas are counted in the result too. Each change of a rule changes a setting, which is read
//! with the few records of step 3: if the setting has changed since the rules were read, the rules are read
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek};
use std::sync::Arc;

use meta::{
    ChangedKeys, Engine, EngineError, ErrorKind, Inode, Invalidation, Quota, Record, RecordKey,
    SnapshotReader,
};
use types::{FileType, Ino, Name};

use crate::counts::Counts;
use crate::error::DumpError;
use crate::line::{Bytes, FirstLine, Line, acl_text};
use crate::records::{self, Live};
use crate::stream::{Form, Reader, Writer};

/// The maximum number of records that change during a dump and are held in memory.
const MAX_CHANGED: usize = 200_000;

/// How often step 3 is tried before the dump fails.
const MAX_ROUNDS: u32 = 1_000;

/// How many moments are tried if the engine drops the records of a moment before all of them were read.
const MAX_MOMENTS: u32 = 3;

/// The maximum number of chunks of large files whose rows are read with one request: 256 GiB.
const MAX_CHUNKS: u64 = 4096;

/// The number of chunks of a large file that are read beyond its last known end, because it may have grown.
const MORE_CHUNKS: u64 = 16;

/// How often step 3 is tried with a file that has too many chunks for one request. Each try reads all its
/// rows.
const MAX_SCANS: u32 = 20;

/// The number of lines after which the stream is read.
const LINES_PER_POLL: u64 = 1_000;

/// A group of lines that are read and replaced together. Keys sort in the order of a dump.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Acl(String),
    /// An inode with its xattrs, target and rows; with a name, the entry of that name in this directory.
    Inode(u64, Option<Bytes>),
}

/// Calls `each` with every line between the first and the last one. `spool` is an empty file, which will hold
/// as much as a dump. `progress` is called with the number of inodes that were read.
///
/// # Errors
/// The volume changes too fast, or a copy of a tree is being made; those of the database, of `spool`, and the
/// first one of `progress` and `each`.
pub fn dump_live(
    engine: &Arc<dyn Engine>,
    spool: File,
    progress: &mut dyn FnMut(u64) -> Result<(), DumpError>,
    each: &mut dyn FnMut(Line) -> Result<(), DumpError>,
) -> Result<(), DumpError> {
    let mut live = LiveDump {
        engine: Arc::clone(engine),
        source: Box::new(Live(Arc::clone(engine))),
        changed: ChangedKeys::new(&**engine, key_of_change)?,
        scanned: Vec::new(),
        large: BTreeMap::new(),
        scanned_file: None,
        scans: 0,
        found: BTreeMap::new(),
        volume: Vec::new(),
    };
    // If an unfinished copy is completed meanwhile, the files below its root cannot be told from other files.
    // The records of later copies are in the stream.
    if !records::roots_of_copies(&mut *live.source)?.is_empty() {
        return Err(DumpError::Copying);
    }
    let mut counts = Counts::read(&mut *live.source)?;
    let spool = live.scan(spool, progress)?;
    live.catch_up(&mut counts)?;
    if live.has_unfinished_copy() {
        return Err(DumpError::Copying);
    }
    for line in live.found.values().flatten() {
        counts.shared.extend(line.slices().map(|slice| (slice, 0)));
    }
    live.merge(spool, &mut counts, each)
}

#[derive(Debug)]
struct LiveDump {
    engine: Arc<dyn Engine>,
    /// Shows the present moment, or that of the dump.
    source: Box<dyn SnapshotReader>,
    /// The keys that have changed since they were read.
    changed: ChangedKeys<Key>,
    /// The inodes in the file, in order.
    scanned: Vec<u64>,
    /// Files that [`records::is_large`], with the number of their chunks.
    large: BTreeMap<u64, u64>,
    /// The last file whose rows were read by a scan in this round.
    scanned_file: Option<u64>,
    /// The number of rounds with such a file.
    scans: u32,
    /// The lines of the keys that were read again; none if the record does not exist any more.
    found: BTreeMap<Key, Vec<Line>>,
    /// Settings and counters.
    volume: Vec<Line>,
}

impl LiveDump {
    /// Reads all records into the file.
    fn scan(
        &mut self,
        spool: File,
        progress: &mut dyn FnMut(u64) -> Result<(), DumpError>,
    ) -> Result<Reader, DumpError> {
        let head = FirstLine { version: crate::VERSION, id: "spool".to_owned(), created: 0 };
        let mut writer = Writer::new(BufWriter::new(spool), Form::Framed, head)?;
        let (mut lines, mut source) = (0, Live(Arc::clone(&self.engine)));
        records::dump::<DumpError>(&mut source, false, &mut |line| {
            if let Line::Inode(inode) = &line {
                self.scanned.push(inode.ino);
                progress(self.scanned.len() as u64)?;
            }
            lines += 1;
            if lines % LINES_PER_POLL == 0 {
                self.look()?;
            }
            writer.put(&line)
        })?;
        let (out, _) = writer.finish()?;
        let mut spool = out.into_inner().map_err(|error| error.into_error())?;
        spool.rewind()?;
        Reader::open(Box::new(BufReader::new(spool)))
    }

    /// Takes all changes from the stream, and returns the changed keys, which are also added to `changed`.
    fn look(&mut self) -> Result<BTreeSet<Key>, DumpError> {
        let most = MAX_CHANGED.saturating_sub(self.found.len());
        self.changed.poll(most)?.ok_or(DumpError::TooFast)
    }

    /// Reads changed records until everything is of one moment: all steps after step 1.
    fn catch_up(&mut self, counts: &mut Counts) -> Result<(), DumpError> {
        self.look()?;
        self.read_until_few()?;
        for attempt in 1..=MAX_MOMENTS {
            let Some(moment) = self.engine.open_snapshot()? else { break };
            self.source = moment;
            self.look()?;
            // The stream also names changes after the moment. So if another moment is tried, all these keys
            // are read again.
            let named = self.changed.keys.clone();
            match self.catch_up_to_moment(counts) {
                Err(DumpError::Engine(EngineError {
                    kind: ErrorKind::Determinate { transient: true },
                    ..
                })) if attempt < MAX_MOMENTS => self.changed.keys.extend(named),
                done => return done,
            }
        }
        self.catch_up_by_stream(counts)
    }

    /// Reads the changed records as of the moment of `source`.
    fn catch_up_to_moment(&mut self, counts: &mut Counts) -> Result<(), DumpError> {
        counts.read_rules(&mut *self.source)?;
        // The settings and counters are read even if nothing else has changed.
        self.read_some()?;
        while !self.changed.keys.is_empty() {
            self.read_some()?;
        }
        Ok(())
    }

    /// Reads changed records until few are left: step 2.
    fn read_until_few(&mut self) -> Result<(), DumpError> {
        while !self.changed.are_few() {
            self.read_some()?;
            self.look()?;
        }
        Ok(())
    }

    /// Reads a few changed records. If that fails, they remain in `changed`.
    fn read_some(&mut self) -> Result<(), DumpError> {
        let some = self.changed.take_few();
        if let Err(error) = self.read(&some) {
            self.changed.keys.extend(some);
            return Err(error);
        }
        Ok(())
    }

    /// Steps 3 and 4 of an engine that shows only the present moment.
    fn catch_up_by_stream(&mut self, counts: &mut Counts) -> Result<(), DumpError> {
        let mut rules_of = None;
        for _ in 0..MAX_ROUNDS {
            self.read_until_few()?;
            if rules_of.is_none() {
                rules_of = Some(self.rules_setting()?);
                counts.read_rules(&mut *self.source)?;
                self.look()?;
            }
            let last = std::mem::take(&mut self.changed.keys);
            self.scanned_file = None;
            let whole = self.read(&last)?;
            let news = self.look()?;
            if rules_of.as_ref().is_some_and(|before| *before != self.read_setting()) {
                rules_of = None;
                self.changed.keys.extend(last);
                continue;
            }
            // A key that the stream has named is of that moment if this request read it as a whole. All other
            // keys in `changed` must be read again.
            if self.changed.keys.iter().all(|key| news.contains(key) && whole.contains(key)) {
                return Ok(());
            }
            if let Some(ino) = self.scanned_file {
                self.scans += 1;
                if self.scans >= MAX_SCANS {
                    return Err(DumpError::BusyFile { ino });
                }
            }
        }
        Err(DumpError::TooFast)
    }

    /// Whether an entry was added to a directory that is not in the dump: the root of an unfinished copy of a
    /// tree.
    fn has_unfinished_copy(&self) -> bool {
        let is_known = |dir: &u64| {
            let found = self.found.get(&Key::Inode(*dir, None));
            self.scanned.binary_search(dir).is_ok() || found.is_some_and(|lines| !lines.is_empty())
        };
        self.found.iter().any(|(key, lines)| match key {
            Key::Inode(dir, Some(_)) => !lines.is_empty() && !is_known(dir),
            _ => false,
        })
    }

    /// The setting that changes with each change of a quota's rule.
    fn rules_setting(&mut self) -> Result<Option<String>, DumpError> {
        let records = self.source.read(&[RecordKey::Settings])?.records;
        let Some(Record::Settings(settings)) = records.first() else { return Ok(None) };
        Ok(settings.get(Quota::NEXT_SETTING).cloned())
    }

    /// The value of [`Self::rules_setting`], as it was read with the last records.
    fn read_setting(&self) -> Option<String> {
        self.volume.iter().find_map(|line| match line {
            Line::Setting { name, value } if name == Quota::NEXT_SETTING => Some(value.clone()),
            _ => None,
        })
    }

    /// Reads records with one request, except the rows of large files for which [`MAX_CHUNKS`] leaves no
    /// room: each of these files takes several more. Returns the keys that the one request read completely.
    /// Adds the keys that must be read later to `changed`.
    fn read(&mut self, keys: &BTreeSet<Key>) -> Result<BTreeSet<Key>, DumpError> {
        let mut whole = keys.clone();
        let (mut room, mut chunks, mut many) = (MAX_CHUNKS, BTreeMap::new(), BTreeMap::new());
        for key in keys {
            if let Key::Inode(ino, None) = key
                && let Some(known) = self.large.get(ino)
            {
                let wanted = known + MORE_CHUNKS;
                if let Some(left) = room.checked_sub(wanted) {
                    room = left;
                    chunks.insert(*ino, wanted);
                    continue;
                }
                self.scanned_file = Some(*ino);
                let mut lines = Vec::new();
                records::many_chunks(&mut *self.source, Ino(*ino), &mut |line| {
                    lines.push(line);
                    Ok::<_, EngineError>(())
                })?;
                many.insert(*ino, lines);
                whole.remove(key);
            }
        }
        let mut record_keys = records::volume_keys();
        for key in keys {
            match key {
                Key::Inode(dir, Some(entry)) => {
                    let name =
                        Name::new(&entry.0).map_err(|error| EngineError::permanent(error.to_string()))?;
                    record_keys.push(RecordKey::Dirent(Ino(*dir), name));
                }
                Key::Inode(ino, None) => {
                    let chunks = chunks.get(ino).copied().unwrap_or(0);
                    record_keys.extend(records::inode_keys(Ino(*ino), chunks));
                }
                Key::Acl(_) => {}
            }
        }
        let mut records = self.source.read(&record_keys)?.records;
        self.volume.clear();
        records::volume_lines(&records, &mut |line| {
            self.volume.push(line);
            Ok::<_, EngineError>(())
        })?;
        for record in &records {
            match record {
                Record::Acl(id, Some(text)) => {
                    let (id, text) = (acl_text(*id), text.to_string());
                    self.found.insert(Key::Acl(id.clone()), vec![Line::Acl { id, text }]);
                }
                Record::Dirent(dir, name, dirent) => {
                    let name = Bytes(name.as_bytes().into());
                    let key = Key::Inode(dir.0, Some(name.clone()));
                    let line = |dirent: &meta::Dirent| Line::Entry {
                        dir: dir.0,
                        name: name.clone(),
                        ino: dirent.ino.0,
                        kind: dirent.kind.into(),
                    };
                    self.found.insert(key, dirent.iter().map(line).collect());
                }
                _ => {}
            }
        }
        let inodes: BTreeMap<Ino, Option<Inode>> = records
            .iter()
            .filter_map(|record| match record {
                Record::Inode(ino, inode) => Some((*ino, *inode)),
                _ => None,
            })
            .collect();
        records
            .retain(|record| matches!(record, Record::Xattrs(..) | Record::Symlink(..) | Record::Slices(..)));
        let stored = records::InodeContents::of(records);
        for (ino, inode) in inodes {
            let key = Key::Inode(ino.0, None);
            let is_read = keys.contains(&key);
            let Some(inode) = inode.filter(|inode| inode.nlink > 0) else {
                if is_read {
                    self.found.insert(key, Vec::new());
                }
                continue;
            };
            if !is_read {
                // The inode was read with a directory entry. If it is not known yet, it is new.
                let is_known = self.found.contains_key(&key) || self.scanned.binary_search(&ino.0).is_ok();
                match is_known {
                    true => {}
                    false if is_bare(&inode) => {
                        self.found.insert(key, vec![Line::Inode(Box::new((&inode).into()))]);
                    }
                    false => _ = self.changed.keys.insert(key),
                }
                continue;
            }
            let mut lines = Vec::new();
            let mut add = |line| {
                lines.push(line);
                Ok::<_, EngineError>(())
            };
            stored.lines(&inode, &mut add)?;
            let count = records::chunks_of(&inode);
            let was_large = self.large.remove(&ino.0).is_some();
            if records::is_large(&inode) {
                self.large.insert(ino.0, count);
                match (many.remove(&ino.0), chunks.get(&ino.0)) {
                    (Some(rows), _) => lines.extend(rows),
                    (None, Some(read)) if count <= *read => stored.chunk_lines(ino, count, &mut add)?,
                    // The file was not known to be large, or it has grown by many chunks.
                    (None, _) => {
                        self.changed.keys.insert(key.clone());
                        whole.remove(&key);
                    }
                }
            } else if was_large && many.remove(&ino.0).is_some() {
                // The file was truncated after its rows were read.
                self.changed.keys.insert(key.clone());
            }
            self.found.insert(key, lines);
        }
        Ok(whole)
    }

    /// Writes the lines of the file, with those that were read again in place of the old ones.
    fn merge(
        self,
        mut spool: Reader,
        counts: &mut Counts,
        each: &mut dyn FnMut(Line) -> Result<(), DumpError>,
    ) -> Result<(), DumpError> {
        let mut counted = |line: Line| {
            counts.add(&line);
            each(line)
        };
        self.volume.into_iter().try_for_each(&mut counted)?;
        let mut found = self.found.into_iter().peekable();
        while let Some(line) = spool.next()? {
            let Some(key) = key_of(&line) else { continue };
            while let Some((_, lines)) = found.next_if(|(again, _)| *again < key) {
                lines.into_iter().try_for_each(&mut counted)?;
            }
            if found.peek().is_none_or(|(again, _)| *again != key) {
                counted(line)?;
            }
        }
        found.flat_map(|(_, lines)| lines).try_for_each(&mut counted)?;
        counts.lines(each)
    }
}

fn key_of_change(invalidation: Invalidation) -> Option<Key> {
    match invalidation {
        Invalidation::Inode(ino) | Invalidation::Data(ino) | Invalidation::Xattrs(ino) => {
            Some(Key::Inode(ino.0, None))
        }
        Invalidation::Dirent(dir, name) => Some(Key::Inode(dir.0, Some(Bytes(name.as_bytes().into())))),
        // Locks are left out. A take also has an `Invalidation::Inode` of the directory.
        Invalidation::Locks(_) | Invalidation::Names(..) => None,
    }
}

/// Whether nothing is stored with the inode.
fn is_bare(inode: &Inode) -> bool {
    let has_data = inode.kind == FileType::Symlink || inode.kind == FileType::Regular && inode.size > 0;
    inode.xattr_blocks == 0 && !has_data
}

fn key_of(line: &Line) -> Option<Key> {
    match line {
        Line::Acl { id, .. } => Some(Key::Acl(id.clone())),
        Line::Inode(inode) => Some(Key::Inode(inode.ino, None)),
        Line::Xattr { ino, .. } | Line::Symlink { ino, .. } | Line::Rows { ino, .. } => {
            Some(Key::Inode(*ino, None))
        }
        Line::Entry { dir, name, .. } => Some(Key::Inode(*dir, Some(name.clone()))),
        Line::Dump(_)
        | Line::Setting { .. }
        | Line::Counter { .. }
        | Line::Shared { .. }
        | Line::Quota(_)
        | Line::End(_) => None,
    }
}
