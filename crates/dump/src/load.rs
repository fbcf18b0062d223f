//! Stores the records of a dump in an empty database.

use meta::{Counter, Effect, Engine, EngineError, Guard, Outcome, Record, RecordKey, Settings, Txn, Volume};
use types::{Ino, OpId, SessionId, Term};

use crate::error::DumpError;
use crate::line::{LastLine, Line};
use crate::order::Order;
use crate::records::is_local;
use crate::stream::Reader;

/// The maximum number of effects of one transaction, and the maximum size of its lines, unless one line has
/// more. If an engine does not accept that many effects, the next transactions have fewer.
const MAX_EFFECTS: usize = 1024;
const MAX_BYTES: usize = 1 << 20;

/// The result of [`check`]: the dump is complete and undamaged.
#[derive(Debug)]
pub struct CheckedDump {
    pub volume: Volume,
    pub tail: LastLine,
    /// The counters with which the volume is loaded.
    counters: Vec<(Counter, u64)>,
    /// The id of the dump and its checksum.
    id: String,
}

/// Reads a dump as a whole. `progress` is called with the number of inodes.
///
/// # Errors
/// The dump is cut off or damaged, has a record that cannot be stored, that occurs twice or that is not in
/// order, has no root directory or not all counters, or is of a volume that this limen does not know.
pub fn check(mut dump: Reader, progress: &mut dyn FnMut(u64)) -> Result<CheckedDump, DumpError> {
    let (mut settings, mut order) = (Settings::new(), Order::default());
    while let Some(line) = dump.next()? {
        let added = line.effects().and_then(|_| order.add(&line));
        added.map_err(|what| dump.damaged(&what))?;
        progress(dump.tail().inodes);
        if let Line::Setting { name, value } = line {
            settings.insert(name, value);
        }
    }
    let volume = Volume::parse(&settings).map_err(|error| dump.damaged(&error.to_string()))?;
    let counters = order.end().map_err(|what| dump.damaged(&what))?;
    Ok(CheckedDump { volume, counters, tail: dump.tail(), id: id(&dump) })
}

/// The id of a dump that was read as a whole.
fn id(dump: &Reader) -> String {
    format!("{}-{:08x}", dump.head().id, dump.tail().checksum)
}

impl CheckedDump {
    /// Replaces the object store in the settings of the volume that will be loaded.
    pub fn move_objects(&mut self, storage: &str, bucket: &str) {
        self.volume.storage = storage.to_owned();
        self.volume.bucket = bucket.to_owned();
    }

    /// The value that a load stores for a setting of the dump.
    pub(crate) fn stored<'v>(&'v self, name: &str, value: &'v str) -> &'v str {
        match name {
            "storage" => &self.volume.storage,
            "bucket" => &self.volume.bucket,
            _ => value,
        }
    }

    /// Whether the volume was loaded from this dump.
    pub fn is_loaded_as(&self, volume: &Volume) -> bool {
        volume.loaded.split_once(' ').is_some_and(|(_, id)| id == self.id)
    }
}

/// Stores all records of `dump`, which is the dump that was [checked](check), in the database. Continues
/// where an earlier load of this dump ended. `random` becomes a part of [`Volume::loaded`]. `progress` is
/// called with the number of inodes that were read.
///
/// # Errors
/// [`DumpError::NotEmpty`], [`DumpError::OtherDump`] and [`DumpError::Discarded`] change nothing. After any
/// other error the load can be repeated, unless `dump` was not the dump that was checked: then what was stored
/// must be discarded.
pub fn load(
    engine: &dyn Engine,
    checked: &CheckedDump,
    mut dump: Reader,
    random: &str,
    progress: &mut dyn FnMut(u64),
) -> Result<(), DumpError> {
    let replaced = |dump: &Reader| dump.damaged("it was replaced while it was loaded");
    if !checked.id.starts_with(&format!("{}-", dump.head().id)) {
        return Err(replaced(&dump));
    }
    let mut load = Load::begin(engine, checked)?;
    let done = load.lines;
    let set = |(counter, value): &(Counter, u64)| Effect::SetCounter { counter: *counter, value: *value };
    let mut volume: Vec<Effect> = checked.counters.iter().map(set).collect();
    while let Some(line) = dump.next()? {
        if let Line::Setting { name, value } = &line
            && !is_local(name)
        {
            // The names are never freed. They are few, and the process ends after the load.
            let value = checked.stored(name, value).to_owned();
            let name: &'static str = String::leak(name.clone());
            volume.push(Effect::PutSetting { name, value });
        }
        let lines = dump.tail().lines;
        if lines <= done {
            continue;
        }
        let bytes = line.bytes();
        load.add(line.effects().map_err(|what| dump.damaged(&what))?, bytes, lines)?;
        progress(dump.tail().inodes);
    }
    if id(&dump) != checked.id {
        // A part of what was stored is perhaps wrong, so no load may continue there.
        load.commit_one(Vec::new(), DISCARDED.to_owned())?;
        return Err(replaced(&dump));
    }
    // A store in memory has no marker, because each mount creates its own.
    if checked.volume.storage != "memory" {
        volume.push(Effect::PutSetting { name: "store_marker", value: "on".to_owned() });
    }
    volume.push(Effect::PutSetting { name: Volume::LOADED, value: format!("{random} {}", checked.id) });
    load.finish(volume)
}

/// The value of [`Volume::LOADING`] while the records of an incomplete load are removed. No load stores this
/// value as its progress.
const DISCARDED: &str = "discarded";

/// Removes what an incomplete load has stored. If this is interrupted, it can be repeated, and until it is
/// complete, no load can continue.
///
/// # Errors
/// [`DumpError::NotLoading`] and [`DumpError::OtherProcess`] change nothing. After an error of the database,
/// a part may be removed.
pub fn discard(engine: &dyn Engine) -> Result<(), DumpError> {
    let value = Some(marker(engine)?.ok_or(DumpError::NotLoading)?);
    let guards = vec![Guard::Setting { name: Volume::LOADING, value }];
    let effects = vec![Effect::PutSetting { name: Volume::LOADING, value: DISCARDED.to_owned() }];
    let op_id = OpId::new(SessionId(0), Term(host::random() as u32), host::random() as u32);
    if let Some(Outcome::Conflict(_)) = engine.commit(&[Txn { op_id, guards, effects }])?.first() {
        return Err(DumpError::OtherProcess);
    }
    engine.wipe()?;
    Ok(engine.remove()?)
}

/// A load in progress.
#[derive(Debug)]
struct Load<'e> {
    engine: &'e dyn Engine,
    id: String,
    /// The number of lines that are stored.
    lines: u64,
    /// The effects of the next lines, and the numbers of these lines.
    next: Vec<(Vec<Effect>, u64)>,
    /// The number of effects in `next`, and the size of its lines.
    effects: usize,
    bytes: usize,
    /// [`MAX_EFFECTS`], or less if the engine does not accept that many.
    max_effects: usize,
    /// The present value of [`Volume::LOADING`].
    marker: String,
    /// The number of the last operation id. It begins at random, so that the ids of two loads differ.
    op: u64,
}

impl<'e> Load<'e> {
    fn begin(engine: &'e dyn Engine, checked: &CheckedDump) -> Result<Self, DumpError> {
        let id = checked.id.clone();
        let mut load = Load {
            engine,
            marker: format!("{id} 0"),
            id,
            lines: 0,
            next: Vec::new(),
            effects: 0,
            bytes: 0,
            max_effects: MAX_EFFECTS,
            op: host::random(),
        };
        match marker(engine)? {
            Some(marker) if marker == DISCARDED => return Err(DumpError::Discarded),
            Some(marker) => {
                let of = marker.split_once(' ').filter(|(id, _)| *id == load.id);
                load.lines = of.and_then(|(_, lines)| lines.parse().ok()).ok_or(DumpError::OtherDump)?;
                load.marker = marker;
            }
            None => {
                let absent = |name| Guard::Setting { name, value: None };
                let guards = vec![
                    absent("format_version"),
                    absent(Volume::LOADING),
                    Guard::InodeAbsent { ino: Ino::ROOT },
                ];
                let value = load.marker.clone();
                let effects = vec![Effect::PutSetting { name: Volume::LOADING, value }];
                let txn = Txn { op_id: load.next_op(), guards, effects };
                if let Some(Outcome::Conflict(_)) = engine.commit(&[txn])?.first() {
                    return Err(DumpError::NotEmpty);
                }
            }
        }
        Ok(load)
    }

    fn next_op(&mut self) -> OpId {
        self.op = self.op.wrapping_add(1);
        OpId::new(SessionId(0), Term((self.op >> 32) as u32), self.op as u32)
    }

    /// Adds the effects of the line with this number.
    fn add(&mut self, effects: Vec<Effect>, bytes: usize, line: u64) -> Result<(), DumpError> {
        if self.effects + effects.len() > self.max_effects || self.bytes + bytes > MAX_BYTES {
            self.commit()?;
        }
        self.effects += effects.len();
        self.bytes += bytes;
        self.next.push((effects, line));
        Ok(())
    }

    /// Commits the effects of all lines, with the position after them, in as few transactions as possible.
    fn commit(&mut self) -> Result<(), DumpError> {
        let next = std::mem::take(&mut self.next);
        (self.effects, self.bytes) = (0, 0);
        let mut rest = &next[..];
        while !rest.is_empty() {
            let mut count = 0;
            let fits = |(effects, _): &&(Vec<Effect>, u64)| {
                count += effects.len();
                count <= self.max_effects
            };
            let (part, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let line = part.last().map_or(self.lines, |(_, line)| *line);
            let effects: Vec<Effect> = part.iter().flat_map(|(effects, _)| effects).cloned().collect();
            let (size, marker) = (effects.len(), format!("{} {line}", self.id));
            match self.commit_one(effects, marker) {
                Ok(()) => (self.lines, rest) = (line, after),
                Err(DumpError::Engine(error)) if error.is_refusal() && part.len() > 1 && size > 1 => {
                    self.max_effects = size * 3 / 4;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Commits one transaction, if the load is still where it was, and replaces the marker.
    fn commit_one(&mut self, mut effects: Vec<Effect>, marker: String) -> Result<(), DumpError> {
        let guards = vec![Guard::Setting { name: Volume::LOADING, value: Some(self.marker.clone()) }];
        effects.push(Effect::PutSetting { name: Volume::LOADING, value: marker.clone() });
        let txn = Txn { op_id: self.next_op(), guards, effects };
        match self.engine.commit(&[txn])?.first() {
            Some(Outcome::Committed { .. }) => self.marker = marker,
            _ => return Err(DumpError::OtherProcess),
        }
        Ok(())
    }

    /// Commits the rest, and then the settings and counters, which make the records a volume.
    fn finish(mut self, effects: Vec<Effect>) -> Result<(), DumpError> {
        self.commit()?;
        self.commit_one(effects, String::new())?;
        Ok(self.engine.sync()?)
    }
}

/// The value of [`Volume::LOADING`] that an incomplete load has left.
///
/// # Errors
/// Those of the database.
fn marker(engine: &dyn Engine) -> Result<Option<String>, EngineError> {
    match engine.read(&[RecordKey::Settings])?.records.first() {
        Some(Record::Settings(settings)) => {
            Ok(settings.get(Volume::LOADING).filter(|marker| !marker.is_empty()).cloned())
        }
        _ => Ok(None),
    }
}

impl Line {
    /// The approximate size of the record that the line stores.
    fn bytes(&self) -> usize {
        match self {
            Line::Xattr { value, .. } => value.0.len() + 100,
            Line::Acl { text, .. } => text.len() + 100,
            Line::Rows { rows, .. } => rows.iter().map(|row| row.bytes() + 50).sum(),
            _ => 200,
        }
    }
}
