//! Checks that an object store belongs to this volume and works, before a command serves from it, removes
//! objects from it, or reports on it.
//!
//! `limen format` writes one object to the store, [`MARKER`], with a line of JSON that names the volume. A
//! volume from before there were markers gets one at its next mount, unless the store is empty although the
//! volume has stored data.
//!
//! The marker is written after the volume's settings and removed after them. If two `limen format` run at
//! the same time, only one stores its settings, and the marker is that of the winner. If a crash loses the
//! marker, `limen config --adopt-store` writes it again. If a crash leaves a marker without a volume, no
//! blocks are left below it.

use std::fmt::Display;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use chunk::{BlockStore, ChunkError, MARKER, MEMORY, StoreCheck, StoreLook};
use client::Meta;
use command::fault::Fault;
use meta::Volume;
use ops::{Authority, Configure};
use serde_json::{Value, json};
use types::Errno;

use crate::records::next_slice;
use crate::report::Report;
use crate::store::store_fault;

/// Timeout of all checks of a store before a mount serves.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The owner of a store, by its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This volume.
    Ours,
    /// The store has no marker, and this volume is from before there were markers.
    Unmarked,
}

/// How a mount uses the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) read_only: bool,
    /// Blocks can be staged on a local disk while the store does not work.
    pub(crate) writeback: bool,
}

/// Checks that the store belongs to the volume.
///
/// # Errors
/// The store is another volume's; its marker is missing or damaged; it cannot be read.
pub(crate) fn verify(volume: &Volume, store: &BlockStore) -> Result<Owner, Fault> {
    check_owner(volume, store.look()).map_err(|wrong| wrong.fault(volume))
}

/// Checks the store of a volume before a mount, and writes the marker if the volume is from before there were
/// markers. Then starts to upload staged blocks.
///
/// # Errors
/// Those of [`verify`]; the store does not work. With write-back, a store that does not work is only
/// reported, and checked again before anything is written to it.
pub(crate) fn admit(meta: &Meta, store: &Arc<BlockStore>, wanted: Use, report: &Report) -> Result<(), Fault> {
    let volume = meta.volume();
    let check = match admit_or_why(meta, store, wanted, ANSWER_WITHIN, report) {
        Err(wrong @ (Wrong::Fails(_) | Wrong::Silent(_))) if wanted.writeback => {
            let fault = wrong.fault(volume);
            report.note(&format!("{fault}; until it works, written data stays on the local disk"));
            Some(later_check(volume.clone()))
        }
        done => {
            done.map_err(|wrong| wrong.fault(volume))?;
            None
        }
    };
    store.begin_uploads(check).map_err(Fault::new)
}

/// For a store that did not answer when the volume was mounted.
fn later_check(volume: Volume) -> StoreCheck {
    StoreCheck::new(move |look| match find_owner(&volume, *look, true) {
        Ok(_) => Ok(()),
        Err(wrong) => Err(wrong.fault(&volume).to_string()),
    })
}

/// Marks the store as this volume's.
///
/// # Errors
/// The store is another volume's, or does not work.
pub(crate) fn adopt(volume: &Volume, store: &BlockStore) -> Result<(), Fault> {
    match check_owner(volume, store.look()) {
        Ok(Owner::Ours) => Ok(()),
        Ok(Owner::Unmarked) | Err(Wrong::Absent | Wrong::Damaged) => put(volume, store),
        Err(wrong) => Err(wrong.fault(volume)),
    }
}

/// Writes the marker.
///
/// # Errors
/// The store fails to write it.
pub(crate) fn put(volume: &Volume, store: &BlockStore) -> Result<(), Fault> {
    let line = json!({ "volume": volume.uuid, "name": volume.name, "format": meta::FORMAT_VERSION });
    store.put_marker(&format!("{line}\n")).map_err(|error| store_fault(volume, &error))
}

/// Checks that no volume has marked the store, before a new volume uses it.
///
/// # Errors
/// The store has a marker, or cannot be read.
pub(crate) fn refuse_marked(volume: &Volume, store: &BlockStore) -> Result<(), Fault> {
    match store.look().marker().map_err(|error| store_fault(volume, &error))? {
        Some(text) => Err(taken(&text, &volume.bucket)),
        None => Ok(()),
    }
}

/// The error if a new volume is to use `place`, which has this marker.
pub(crate) fn taken(text: &[u8], place: impl Display) -> Fault {
    let whose = match read(text) {
        Some((uuid, name)) => format!("volume '{name}' ({uuid})"),
        None => "another volume".to_owned(),
    };
    Fault::new(format!("the object store belongs to {whose}")).at(place).advise(format!(
        "choose another place with --bucket; if that volume no longer exists, remove the object {MARKER} there first"
    ))
}

/// Why a store cannot be used for a volume.
#[derive(Debug)]
enum Wrong {
    /// The store is another volume's, with this UUID and name.
    Other(String, String),
    /// The marker is missing.
    Absent,
    /// The marker is damaged.
    Damaged,
    /// The store is empty, but the volume has stored data.
    Empty,
    /// A request to the store failed.
    Fails(ChunkError),
    /// The store did not answer within this time.
    Silent(Duration),
    /// Something other than the store failed.
    Failed(Fault),
}

fn check_owner(volume: &Volume, store: StoreLook<'_>) -> Result<Owner, Wrong> {
    // Each mount creates such a store for itself.
    if volume.storage == MEMORY {
        return Ok(Owner::Ours);
    }
    match store.marker().map_err(Wrong::Fails)? {
        Some(text) => match read(&text) {
            Some((uuid, _)) if uuid == volume.uuid => Ok(Owner::Ours),
            Some((uuid, name)) => Err(Wrong::Other(uuid, name)),
            None => Err(Wrong::Damaged),
        },
        None if volume.store_marker => Err(Wrong::Absent),
        None => Ok(Owner::Unmarked),
    }
}

/// As [`check_owner`]. A store without a marker has to hold blocks if the volume has stored some.
fn find_owner(volume: &Volume, store: StoreLook<'_>, has_stored: bool) -> Result<Owner, Wrong> {
    let owner = check_owner(volume, store)?;
    match owner == Owner::Unmarked && has_stored && store.is_empty().map_err(Wrong::Fails)? {
        true => Err(Wrong::Empty),
        false => Ok(owner),
    }
}

fn admit_or_why(
    meta: &Meta,
    store: &Arc<BlockStore>,
    wanted: Use,
    limit: Duration,
    report: &Report,
) -> Result<(), Wrong> {
    let volume = meta.volume();
    let next = next_slice(&**meta.engine()).map_err(|error| Wrong::Failed(Fault::new(error)))?;
    let (sender, receiver) = mpsc::channel();
    let (own_volume, own_store) = (volume.clone(), Arc::clone(store));
    let check = move || drop(sender.send(inspect(&own_volume, &own_store, next > 1, wanted.read_only)));
    let thread = thread::Builder::new().name("limen-check".into()).spawn(check);
    thread.map_err(|error| Wrong::Failed(Fault::new(format!("cannot start a thread: {error}"))))?;
    // The store's own timeouts are for blocks on slow links, minutes in total. A check that exceeds `limit`
    // continues in its thread until they expire, and removes its test object.
    let (owner, full) = receiver.recv_timeout(limit).unwrap_or(Err(Wrong::Silent(limit)))?;
    if let Some(error) = full {
        report.note(&format!("the object store is full: {error}"));
    }
    if wanted.read_only || owner == Owner::Ours && volume.store_marker || volume.storage == MEMORY {
        return Ok(());
    }
    if owner == Owner::Unmarked {
        put(volume, store).map_err(Wrong::Failed)?;
    }
    let change = Configure { store_marker: Some(true), ..Configure::default() };
    meta.run(&change, &Authority::Kernel { told: None }).map_err(|error| Wrong::Failed(Fault::new(error)))
}

/// Checks the owner of the store, and that it works as a mount needs it. Returns the error of a full store
/// separately.
fn inspect(
    volume: &Volume,
    store: &BlockStore,
    has_stored: bool,
    read_only: bool,
) -> Result<(Owner, Option<ChunkError>), Wrong> {
    let owner = find_owner(volume, store.look(), has_stored)?;
    let checked = if read_only { store.check_readable() } else { store.check() };
    match checked {
        Ok(()) => Ok((owner, None)),
        // A full store can still be read, and files can be removed.
        Err(error) if matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT) => Ok((owner, Some(error))),
        Err(error) => Err(Wrong::Fails(error)),
    }
}

impl Wrong {
    fn fault(self, volume: &Volume) -> Fault {
        let name = &volume.name;
        let adopt = "if it is the right store, mark it with limen config --adopt-store";
        let fault = match self {
            Wrong::Fails(error) => return store_fault(volume, &error),
            Wrong::Failed(fault) => return fault,
            Wrong::Silent(limit) => Fault::new(format!(
                "the object store of volume '{name}' does not answer within {} s",
                limit.as_secs()
            ))
            .advise("check that it exists and that this machine can reach it"),
            Wrong::Other(uuid, other) => Fault::new(format!(
                "the object store holds volume '{other}' ({uuid}), not '{name}' ({})",
                volume.uuid
            ))
            .advise("check what the volume's bucket points to"),
            Wrong::Absent => Fault::new(format!(
                "the object store does not belong to volume '{name}': it has no object {MARKER}"
            ))
            .advise(format!(
                "check that its file system is mounted, or that the bucket is the right one; {adopt}"
            )),
            Wrong::Empty => Fault::new(format!(
                "the object store is empty, but volume '{name}' has stored data"
            ))
            .advise(format!(
                "check that its file system is mounted, or that the bucket is the right one; {adopt}"
            )),
            Wrong::Damaged => {
                Fault::new(format!("the object {MARKER} in the object store is damaged")).advise(adopt)
            }
        };
        fault.at(&volume.bucket)
    }
}

/// The UUID and the name of the volume that a marker names.
fn read(text: &[u8]) -> Option<(String, String)> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    Some((text("volume")?, text("name").unwrap_or_default()))
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
        assert!(matches!(wrong, Wrong::Silent(_)), "{wrong:?}");
        assert!(wrong.fault(&volume).to_string().contains("does not answer"));
        faults.clear();
        admit(ANSWER_WITHIN).unwrap();
    }

    #[test]
    fn markers_are_parsed_and_damaged_ones_are_not() {
        let read = |text: &str| read(text.as_bytes());
        assert_eq!(read("{\"volume\":\"u\",\"name\":\"n\"}\n"), Some(("u".into(), "n".into())));
        for damaged in ["", "{}", "{\"volume\":7}", "[]", "{\"volume\":\"u\""] {
            assert_eq!(read(damaged), None, "{damaged}");
        }
    }
}
