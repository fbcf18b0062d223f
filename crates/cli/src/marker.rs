//! Checks that an object store belongs to this volume and works, before a mount serves data from it, or a
//! command removes objects from it or reports on it.
//!
//! `limen format` writes one object to each bucket of the store, [`MARKER`], with a line of JSON that names
//! the volume. If there are several buckets, the line also has the place of the bucket among them, because
//! objects would not be found if buckets were exchanged, or if their number were another one. A volume that
//! was formatted by a version without markers gets its markers at the next mount, unless the store is empty
//! although the volume has stored data.
//!
//! The marker is written after the volume's settings and removed after them. If two `limen format` run at the
//! same time, only one stores its settings, and only that one writes a marker. If a crash loses the marker,
//! `limen config --adopt-store` writes it again. If a crash leaves a marker without a volume, the store
//! contains no blocks.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use chunk::{BlockStore, BucketMarker, ChunkError, DirectStore, FILE, MARKER, MEMORY, StoreCheck};
use client::Meta;
use command::error::{CliError, ErrorAt};
use meta::Volume;
use ops::{Authority, Configure};
use serde_json::{Value, json};
use types::Errno;

use crate::bucket::store_of;
use crate::records::next_slice;
use crate::report::Report;
use crate::store::{open_without_key, store_error};

/// Timeout of all checks of a store before a mount serves.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Timeout of the check of a store that a command only reports on.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// The owner of a store, by its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This volume.
    Ours,
    /// The store has no marker, and a version without markers has formatted this volume.
    Unmarked,
}

/// How a mount uses the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) read_only: bool,
    /// Whether blocks can be staged on a local disk while the store does not work.
    pub(crate) writeback: bool,
}

/// Checks that the store belongs to the volume.
///
/// # Errors
/// A bucket is another volume's, or was exchanged with another bucket of this volume; its marker is missing
/// or damaged; it cannot be read.
pub(crate) fn verify(volume: &Volume, store: &BlockStore) -> Result<Owner, CliError> {
    check_owner(volume, store.direct()).map_err(Wrong::error)
}

/// Checks that all buckets belong to the volume, in any order and number. Returns the error of the first
/// bucket whose marker names another place.
///
/// # Errors
/// A bucket is another volume's; its marker is missing or damaged; it cannot be read.
pub(crate) fn verify_copy(volume: &Volume, store: &BlockStore) -> Result<Option<CliError>, CliError> {
    let found = find(volume, store.direct()).map_err(Wrong::error)?;
    found.unmarked.map_or(Ok(found.misplaced), Err)
}

/// Why the store cannot be used for a volume. A store that does not answer within [`LOOK_WITHIN`] counts as
/// unusable.
pub(crate) fn store_problem(volume: &Volume) -> Option<CliError> {
    if volume.storage == MEMORY {
        return None;
    }
    if volume.storage == FILE {
        let buckets = store_of(volume).buckets().unwrap_or_default();
        let markers: Vec<PathBuf> = buckets.iter().map(|bucket| Path::new(bucket).join(MARKER)).collect();
        if is_hung(&markers) {
            return Some(silent(volume, LOOK_WITHIN));
        }
    }
    let (sender, receiver) = mpsc::channel();
    let own = volume.clone();
    let check =
        move || drop(sender.send(open_without_key(&own).and_then(|store| verify(&own, &store)).map(drop)));
    thread::Builder::new().name("limen-check".into()).spawn(check).ok()?;
    receiver.recv_timeout(LOOK_WITHIN).unwrap_or_else(|_| Err(silent(volume, LOOK_WITHIN))).err()
}

/// Whether reads of these files do not return within [`LOOK_WITHIN`]. A read of a disk or file system that
/// does not answer cannot be interrupted, and a process cannot exit while one of its threads is in such a
/// read. So a child process reads, and this process does not wait for it after the timeout. The child
/// inherits no pipe, because a caller that reads this command's output would wait until the child closes it.
fn is_hung(files: &[PathBuf]) -> bool {
    let mut reader = Command::new("cat");
    reader.arg("--").args(files).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut reader) = reader.spawn() else { return false };
    let until = Instant::now() + LOOK_WITHIN;
    while let Ok(None) = reader.try_wait() {
        if Instant::now() >= until {
            let _ = reader.kill();
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

/// The error if the store does not answer in time.
fn silent(volume: &Volume, limit: Duration) -> CliError {
    let (name, limit) = (&volume.name, limit.as_secs());
    CliError::new(format!("the object store of volume '{name}' does not answer within {limit} s"))
        .at(&volume.bucket)
        .advise("check that it exists and that this machine can reach it")
}

/// Checks the store of a volume before a mount, and writes the marker if a version without markers has
/// formatted the volume. Then starts to upload staged blocks.
///
/// # Errors
/// Those of [`verify`]; the store does not work. With write-back, a store that does not work is only
/// reported, and checked again before anything is written to it.
pub(crate) fn admit(
    meta: &Meta,
    store: &Arc<BlockStore>,
    wanted: Use,
    report: &Report,
) -> Result<(), CliError> {
    let volume = meta.volume();
    let check = match admit_or_why(meta, store, wanted, ANSWER_WITHIN, report) {
        Err(Wrong::Unreachable(error)) if wanted.writeback => {
            report.note(&format!("{error}; until it works, written data stays on the local disk"));
            Some(later_check(volume.clone()))
        }
        done => {
            done.map_err(Wrong::error)?;
            None
        }
    };
    Ok(store.begin_uploads(check)?)
}

/// The check of a store that did not answer when the volume was mounted.
fn later_check(volume: Volume) -> StoreCheck {
    StoreCheck::new(move |store| {
        find_owner(&volume, *store, true).map(drop).map_err(|wrong| wrong.error().to_string())
    })
}

/// The address of the first bucket of the store that has no marker.
///
/// # Errors
/// The store does not work.
pub(crate) fn missing(volume: &Volume, store: &BlockStore) -> Result<Option<String>, CliError> {
    let markers = store.direct().markers().map_err(|error| store_error(volume, &error))?;
    let missing = markers.iter().find(|marker| marker.text.is_none());
    Ok(missing.map(|marker| address(marker, &volume.bucket).to_owned()))
}

/// Marks the store as this volume's. Calls `before` first, unless the store has this volume's mark already.
/// So if this process is killed during `before`, the store has no mark, and the next call does that work
/// again.
///
/// # Errors
/// The store is another volume's, or does not work; the errors of `before`.
pub(crate) fn adopt(
    volume: &Volume,
    store: &BlockStore,
    before: impl FnOnce() -> Result<(), CliError>,
) -> Result<(), CliError> {
    match check_owner(volume, store.direct()) {
        Ok(Owner::Ours) => Ok(()),
        Ok(Owner::Unmarked) | Err(Wrong::Unmarked(_)) => {
            before()?;
            put(volume, store)
        }
        Err(wrong) => Err(wrong.error()),
    }
}

/// Writes the marker of each bucket.
///
/// # Errors
/// The store fails to write it.
pub(crate) fn put(volume: &Volume, store: &BlockStore) -> Result<(), CliError> {
    let mut line = json!({ "volume": volume.uuid, "name": volume.name, "format": meta::FORMAT_VERSION });
    if !volume.loaded.is_empty() {
        line["loaded"] = volume.loaded.as_str().into();
    }
    let text = |index, buckets| {
        let mut line = line.clone();
        if buckets > 1 {
            (line["bucket"], line["buckets"]) = (json!(index + 1), json!(buckets));
        }
        format!("{line}\n")
    };
    store.put_markers(&text).map_err(|error| store_error(volume, &error))
}

/// Checks that no volume has marked the store, before a new volume uses it.
///
/// # Errors
/// The store has a marker, or cannot be read.
pub(crate) fn refuse_marked(volume: &Volume, store: &BlockStore) -> Result<(), CliError> {
    let markers = store.direct().markers().map_err(|error| store_error(volume, &error))?;
    match markers.iter().find_map(|marker| Some((marker, marker.text.as_ref()?))) {
        Some((marker, text)) => Err(taken(text, address(marker, &volume.bucket))),
        None => Ok(()),
    }
}

/// The first marker that the store has and that can be read. `bucket` is the store's address. A bucket
/// without a marker is not an error, because backups must be found even if only a part of the store is left.
///
/// # Errors
/// The store does not work; its buckets belong to different volumes, or are not all buckets of a volume in
/// their order.
pub(crate) fn of(store: &BlockStore, bucket: &str) -> Result<Option<Marker>, CliError> {
    let markers = store.direct().markers()?;
    let mut first: Option<Marker> = None;
    for (index, marker) in markers.iter().enumerate() {
        let Some(own) = marker.text.as_deref().and_then(read) else { continue };
        let at = address(marker, bucket);
        own.check_place(index, markers.len()).map_err(|failed| failed.at(at))?;
        let first = first.get_or_insert_with(|| own.clone());
        if first.uuid != own.uuid {
            let what = format!("the buckets do not belong to the same volume, by their objects {MARKER}");
            return Err(CliError::new(what)
                .at(at)
                .advise("check the address, and that its file system is mounted"));
        }
    }
    Ok(first)
}

/// The address of a bucket of a store whose address is `bucket`.
fn address<'a>(marker: &'a BucketMarker, bucket: &'a str) -> &'a str {
    if marker.address.is_empty() { bucket } else { &marker.address }
}

/// The error if a new volume is to use `place`, which has this marker.
pub(crate) fn taken(text: &[u8], place: impl Display) -> CliError {
    let whose = match read(text) {
        Some(Marker { uuid, name, .. }) => format!("volume '{name}' ({uuid})"),
        None => "another volume".to_owned(),
    };
    CliError::new(format!("the object store belongs to {whose}")).at(place).advise(format!(
        "choose another place with --bucket; if that volume no longer exists, remove the object {MARKER} there first"
    ))
}

/// Why a store cannot be used for a volume.
#[derive(Debug)]
enum Wrong {
    /// The marker is missing or damaged, or names another database of this volume. The user can have it
    /// written again with `limen config --adopt-store`.
    Unmarked(CliError),
    /// The store fails, or does not answer. It may work later.
    Unreachable(CliError),
    Other(CliError),
}

impl Wrong {
    fn error(self) -> CliError {
        match self {
            Wrong::Unmarked(error) | Wrong::Unreachable(error) | Wrong::Other(error) => error,
        }
    }

    fn fails(volume: &Volume, error: &ChunkError) -> Self {
        Wrong::Unreachable(store_error(volume, error))
    }
}

const CHECK_MOUNTED: &str = "check that its file system is mounted, or that the bucket is the right one; if it is the \
                             right store, mark it with limen config --adopt-store";

/// What the markers of the buckets say, if none names another volume.
struct Found {
    owner: Owner,
    /// The error of the first bucket whose marker does not name the volume.
    unmarked: Option<CliError>,
    /// The error of the first bucket whose marker names another place among the buckets.
    misplaced: Option<CliError>,
}

/// A bucket of another volume, and an exchanged one, are reported before one without a marker, because
/// `limen config --adopt-store` must not mark them.
fn check_owner(volume: &Volume, store: DirectStore<'_>) -> Result<Owner, Wrong> {
    match find(volume, store)? {
        Found { misplaced: Some(error), .. } => Err(Wrong::Other(error)),
        Found { unmarked: Some(error), .. } => Err(Wrong::Unmarked(error)),
        Found { owner, .. } => Ok(owner),
    }
}

fn find(volume: &Volume, store: DirectStore<'_>) -> Result<Found, Wrong> {
    let mut found = Found { owner: Owner::Ours, unmarked: None, misplaced: None };
    // Each mount creates a new store in memory, which has no marker.
    if volume.storage == MEMORY {
        return Ok(found);
    }
    let markers = store.markers().map_err(|error| Wrong::fails(volume, &error))?;
    for (index, marker) in markers.iter().enumerate() {
        let at = address(marker, &volume.bucket);
        let own = marker.text.as_deref().and_then(read).filter(|own| own.uuid == volume.uuid);
        if let Some(Err(error)) = own.map(|own| own.check_place(index, markers.len())) {
            found.misplaced.get_or_insert(error.at(at));
        }
        match owner_of(volume, at, marker.text.as_deref()) {
            Ok(Owner::Ours) => {}
            Ok(Owner::Unmarked) => found.owner = Owner::Unmarked,
            Err(Wrong::Unmarked(error)) => drop(found.unmarked.get_or_insert(error)),
            Err(wrong) => return Err(wrong),
        }
    }
    Ok(found)
}

/// The owner of the bucket at `bucket` by the text of its marker.
fn owner_of(volume: &Volume, bucket: &str, marker: Option<&[u8]>) -> Result<Owner, Wrong> {
    let Volume { name, uuid, .. } = volume;
    match marker.map(read) {
        Some(Some(marker)) if marker.uuid == *uuid && marker.loaded == volume.loaded => Ok(Owner::Ours),
        Some(Some(marker)) if marker.uuid == *uuid => {
            let what = format!(
                "the object store belongs to another database of volume '{name}': one of the two was loaded from a dump"
            );
            let advice = "if no mount uses the other one, take the store over with limen config --adopt-store; never use \
                          both, because each would remove objects of the other";
            Err(Wrong::Unmarked(CliError::new(what).at(bucket).advise(advice)))
        }
        Some(Some(Marker { uuid: marked, name: other, .. })) => {
            let what = format!("the object store holds volume '{other}' ({marked}), not '{name}' ({uuid})");
            Err(Wrong::Other(
                CliError::new(what).at(bucket).advise("check what the volume's bucket points to"),
            ))
        }
        Some(None) => {
            let failed =
                CliError::new(format!("the object {MARKER} in the object store is damaged")).at(bucket);
            let advice = "if it is the right store, mark it with limen config --adopt-store";
            Err(Wrong::Unmarked(failed.advise(advice)))
        }
        None if volume.store_marker || !volume.loaded.is_empty() => {
            let what =
                format!("the object store does not belong to volume '{name}': it has no object {MARKER}");
            Err(Wrong::Unmarked(CliError::new(what).at(bucket).advise(CHECK_MOUNTED)))
        }
        None => Ok(Owner::Unmarked),
    }
}

/// As [`check_owner`], but a store without a marker must contain blocks if the volume has stored some.
fn find_owner(volume: &Volume, store: DirectStore<'_>, has_stored: bool) -> Result<Owner, Wrong> {
    let owner = check_owner(volume, store)?;
    let is_empty = || store.is_empty().map_err(|error| Wrong::fails(volume, &error));
    if owner == Owner::Unmarked && has_stored && is_empty()? {
        let what = format!("the object store is empty, but volume '{}' has stored data", volume.name);
        return Err(Wrong::Other(CliError::new(what).at(&volume.bucket).advise(CHECK_MOUNTED)));
    }
    Ok(owner)
}

fn admit_or_why(
    meta: &Meta,
    store: &Arc<BlockStore>,
    wanted: Use,
    limit: Duration,
    report: &Report,
) -> Result<(), Wrong> {
    let volume = meta.volume();
    let next = next_slice(&**meta.engine()).map_err(|error| Wrong::Other(error.into()))?;
    let (sender, receiver) = mpsc::channel();
    let (own_volume, own_store) = (volume.clone(), Arc::clone(store));
    let check = move || drop(sender.send(inspect(&own_volume, &own_store, next > 1, wanted.read_only)));
    let thread = thread::Builder::new().name("limen-check".into()).spawn(check);
    thread.what("cannot start a thread").map_err(Wrong::Other)?;
    // The store's own timeouts are for blocks on slow links, minutes in total. A check that exceeds `limit`
    // continues in its thread until they expire, and removes its test object.
    let (owner, full) =
        receiver.recv_timeout(limit).unwrap_or_else(|_| Err(Wrong::Unreachable(silent(volume, limit))))?;
    if let Some(error) = full {
        report.note(&format!("the object store is full: {error}"));
    }
    if wanted.read_only || owner == Owner::Ours && volume.store_marker || volume.storage == MEMORY {
        return Ok(());
    }
    if owner == Owner::Unmarked {
        put(volume, store).map_err(Wrong::Other)?;
    }
    let change = Configure { store_marker: Some(true), ..Configure::default() };
    meta.run(&change, &Authority::Kernel { revisions: None }).map_err(|error| Wrong::Other(error.into()))
}

/// Checks the owner of the store, and that the store can be read and, unless `read_only`, written. Returns
/// the error of a full store separately, because such a store can be used.
fn inspect(
    volume: &Volume,
    store: &BlockStore,
    has_stored: bool,
    read_only: bool,
) -> Result<(Owner, Option<ChunkError>), Wrong> {
    let owner = find_owner(volume, store.direct(), has_stored)?;
    let checked = if read_only { store.check_readable() } else { store.check() };
    match checked {
        Ok(()) => Ok((owner, None)),
        // A full store can still be read, and files can be removed.
        Err(error) if matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT) => Ok((owner, Some(error))),
        Err(error) => Err(Wrong::fails(volume, &error)),
    }
}

/// The content of a marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// [`Volume::loaded`].
    pub(crate) loaded: String,
    /// The place of the bucket among those of the volume, from 1 on, and their number.
    place: (u64, u64),
}

impl Marker {
    /// Checks that this is the marker of the bucket with this index.
    fn check_place(&self, index: usize, buckets: usize) -> Result<(), CliError> {
        let ((found, of), (right, buckets)) = (self.place, (index as u64 + 1, buckets as u64));
        if (found, of) == (right, buckets) {
            return Ok(());
        }
        let name = &self.name;
        let what = format!(
            "the bucket is number {} of {} of volume '{}', not number {} of {}",
            found, of, name, right, buckets
        );
        Err(CliError::new(what)
            .advise("check the address, and that each file system is mounted at its own mount point"))
    }
}

fn read(text: &[u8]) -> Option<Marker> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let [name, loaded] = ["name", "loaded"].map(|key| text(key).unwrap_or_default());
    let [place, buckets] = ["bucket", "buckets"].map(|key| value[key].as_u64().unwrap_or(1));
    Some(Marker { uuid: text("volume")?, name, loaded, place: (place, buckets) })
}

#[cfg(test)]
mod tests {
    use chunk::{Faults, StorageConfig, StoreCall, StoreOptions};
    use meta::MemEngine;

    use super::*;
    use crate::format::volume_in_memory;

    #[test]
    fn check_of_a_silent_store_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = dir.path().to_str().unwrap().to_owned();
        let (storage, store_marker) = (chunk::FILE.to_owned(), true);
        let volume = Volume { storage, bucket, store_marker, ..volume_in_memory("v").unwrap() };
        let engine = Arc::new(MemEngine::default());
        volume.format(&*engine).unwrap();
        let meta = Meta::open(engine, 10).unwrap();
        let faults = Faults::new(1);
        let config = StorageConfig { storage: volume.storage.clone(), bucket: volume.bucket.clone() };
        let options =
            StoreOptions { create: true, faults: Some(Arc::clone(&faults)), ..StoreOptions::default() };
        let store = BlockStore::open_with(&config, options).unwrap();
        put(&volume, &store).unwrap();
        faults.add(StoreCall::Get, chunk::Fault::Slow(Duration::from_secs(1)), 1000);
        let wanted = Use { read_only: false, writeback: false };
        let admit = |limit| admit_or_why(&meta, &store, wanted, limit, &Report::foreground());
        let wrong = admit(Duration::from_millis(10)).unwrap_err();
        assert!(matches!(wrong, Wrong::Unreachable(_)), "{wrong:?}");
        assert!(wrong.error().to_string().contains("does not answer"));
        faults.clear();
        admit(ANSWER_WITHIN).unwrap();
    }

    #[test]
    fn markers_are_parsed_and_damaged_ones_are_not() {
        let read = |text: &str| read(text.as_bytes());
        let (uuid, name) = ("u".to_owned(), "n".to_owned());
        let marker = Marker { uuid, name, loaded: String::new(), place: (1, 1) };
        assert_eq!(read("{\"volume\":\"u\",\"name\":\"n\"}\n"), Some(marker));
        for damaged in ["", "{}", "{\"volume\":7}", "[]", "{\"volume\":\"u\""] {
            assert_eq!(read(damaged), None, "{damaged}");
        }
    }
}
