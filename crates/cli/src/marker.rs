//! Whether an object store is the one of this volume, and whether it works: asked before anything is served from it,
//! removed from it or judged by it.
//!
//! `limen format` leaves one object in the store, [`MARKER`], with a line of JSON that names the volume. A volume of before
//! there were markers gets one from its next mount, if the store plainly is the volume's.

use std::fmt::Display;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use chunk::{BlockStore, ChunkError, MARKER};
use meta::{Configure, Meta, Volume, Vouch};
use serde_json::{Value, json};
use types::Errno;

use crate::daemon::Report;
use crate::fault::Fault;
use crate::fsck::next_slice;
use crate::store::store_fault;

/// The kind of store that is made new by each mount, and so is nobody else's.
pub(crate) const MEMORY: &str = "memory";

/// How long a store may take for all that it is asked before a mount serves.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What the store says of whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This volume's.
    Ours,
    /// It says nothing, and this volume is from before stores did.
    Unmarked,
}

/// What a mount means to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) read_only: bool,
    /// Blocks can wait on a local disk for a store that does not work at the moment.
    pub(crate) writeback: bool,
}

/// Whose store it is.
///
/// # Errors
/// It is another volume's; it should be marked and is not; it cannot be read.
pub(crate) fn verify(volume: &Volume, store: &BlockStore) -> Result<Owner, Fault> {
    check_owner(volume, store).map_err(|wrong| wrong.fault(volume))
}

/// Looks at the store of a volume that is to be mounted, and marks it if it is older than markers.
///
/// # Errors
/// As [`verify`]; the store does not do what the mount needs. With write-back that is said and no error.
pub(crate) fn admit(meta: &Meta, store: &Arc<BlockStore>, wanted: Use, report: &Report) -> Result<(), Fault> {
    let volume = meta.volume();
    match admit_or_why(meta, store, wanted, ANSWER_WITHIN, report) {
        Err(wrong @ (Wrong::Fails(_) | Wrong::Silent(_))) if wanted.writeback => {
            let fault = wrong.fault(volume);
            report.note(&format!("{fault}; until it works, what is written waits on the local disk"));
            Ok(())
        }
        done => done.map_err(|wrong| wrong.fault(volume)),
    }
}

/// Marks the store as this volume's.
///
/// # Errors
/// It is another volume's, or it does not work.
pub(crate) fn adopt(volume: &Volume, store: &BlockStore) -> Result<(), Fault> {
    match check_owner(volume, store) {
        Ok(Owner::Ours) => Ok(()),
        Ok(Owner::Unmarked) | Err(Wrong::Absent | Wrong::Damaged) => put(volume, store),
        Err(wrong) => Err(wrong.fault(volume)),
    }
}

/// Writes the marker.
///
/// # Errors
/// The store does not take it.
pub(crate) fn put(volume: &Volume, store: &BlockStore) -> Result<(), Fault> {
    let line = json!({ "volume": volume.uuid, "name": volume.name, "format": meta::FORMAT_VERSION });
    store.put_marker(&format!("{line}\n")).map_err(|error| store_fault(volume, &error))
}

/// A new volume cannot go where another one is.
///
/// # Errors
/// There is one, or the store cannot be read.
pub(crate) fn refuse_marked(volume: &Volume, store: &BlockStore) -> Result<(), Fault> {
    match store.marker().map_err(|error| store_fault(volume, &error))? {
        Some(text) => Err(taken(&text, &volume.bucket)),
        None => Ok(()),
    }
}

/// Why a new volume cannot go to `place`, which has this marker.
pub(crate) fn taken(text: &[u8], place: impl Display) -> Fault {
    let whose = match read(text) {
        Some((uuid, name)) => format!("volume '{name}' ({uuid})"),
        None => "another volume".to_owned(),
    };
    Fault::new(format!("the object store belongs to {whose}")).at(place).advise(format!(
        "choose another place with --bucket; if that volume is no more, remove the object {MARKER} there first"
    ))
}

/// Why a store is not fit for a volume.
#[derive(Debug)]
enum Wrong {
    /// It is another volume's, with this UUID and name.
    Other(String, String),
    Absent,
    Damaged,
    /// It holds nothing, though the volume has stored something.
    Empty,
    /// It does not work.
    Fails(ChunkError),
    /// It has not answered for so long.
    Silent(Duration),
    Failed(Fault),
}

fn check_owner(volume: &Volume, store: &BlockStore) -> Result<Owner, Wrong> {
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

fn admit_or_why(
    meta: &Meta,
    store: &Arc<BlockStore>,
    wanted: Use,
    limit: Duration,
    report: &Report,
) -> Result<(), Wrong> {
    let volume = meta.volume();
    let next = next_slice(&**meta.engine()).map_err(|error| Wrong::Failed(Fault::new(error)))?;
    let (looker, looked) = mpsc::channel();
    let (of, to_look_at) = (volume.clone(), Arc::clone(store));
    let look = move || drop(looker.send(look(&of, &to_look_at, next > 1, wanted.read_only)));
    let thread = thread::Builder::new().name("limen-check".into()).spawn(look);
    thread.map_err(|error| Wrong::Failed(Fault::new(format!("cannot start a thread: {error}"))))?;
    // The store's own patience is for blocks on slow links, which is minutes in all. A look that is given up goes on for so
    // long, and takes back what it wrote.
    let (owner, full) = looked.recv_timeout(limit).unwrap_or(Err(Wrong::Silent(limit)))?;
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
    meta.run(&change, &Vouch::Kernel { told: None }).map_err(|error| Wrong::Failed(Fault::new(error)))
}

/// Whose the store is, and whether it does what a mount needs; if it is full, that is said beside.
fn look(
    volume: &Volume,
    store: &BlockStore,
    has_stored: bool,
    read_only: bool,
) -> Result<(Owner, Option<ChunkError>), Wrong> {
    let owner = check_owner(volume, store)?;
    if owner == Owner::Unmarked && has_stored && store.is_empty().map_err(Wrong::Fails)? {
        return Err(Wrong::Empty);
    }
    let checked = if read_only { store.check_readable() } else { store.check() };
    match checked {
        Ok(()) => Ok((owner, None)),
        // It can still be read, and files can be removed.
        Err(error) if matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT) => Ok((owner, Some(error))),
        Err(error) => Err(Wrong::Fails(error)),
    }
}

impl Wrong {
    fn fault(self, volume: &Volume) -> Fault {
        let name = &volume.name;
        let adopt = "if it is the right place, mark it with limen config --adopt-store";
        let fault = match self {
            Wrong::Fails(error) => return store_fault(volume, &error),
            Wrong::Failed(fault) => return fault,
            Wrong::Silent(limit) => Fault::new(format!(
                "the object store of volume '{name}' does not answer within {} s",
                limit.as_secs()
            ))
            .advise("check that the place exists, and that this machine reaches it"),
            Wrong::Other(uuid, other) => Fault::new(format!(
                "the object store holds volume '{other}' ({uuid}), not '{name}' ({})",
                volume.uuid
            ))
            .advise("check where the volume's bucket leads to"),
            Wrong::Absent => Fault::new(format!(
                "the object store is not that of volume '{name}': it has no object {MARKER}"
            ))
            .advise(format!("check that its file system is mounted, or its bucket the right one; {adopt}")),
            Wrong::Empty => {
                Fault::new(format!("the object store holds nothing, though volume '{name}' has stored data"))
                    .advise(format!(
                        "check that its file system is mounted, or its bucket the right one; {adopt}"
                    ))
            }
            Wrong::Damaged => {
                Fault::new(format!("the object {MARKER} of the object store is damaged")).advise(adopt)
            }
        };
        fault.at(&volume.bucket)
    }
}

/// The UUID and the name that a marker gives.
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
    fn a_store_that_does_not_answer_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = dir.path().to_str().unwrap().to_owned();
        let (storage, store_marker) = ("file".to_owned(), true);
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
    fn markers_are_read_and_damaged_ones_are_not() {
        let read = |text: &str| read(text.as_bytes());
        assert_eq!(read("{\"volume\":\"u\",\"name\":\"n\"}\n"), Some(("u".into(), "n".into())));
        for damaged in ["", "{}", "{\"volume\":7}", "[]", "{\"volume\":\"u\""] {
            assert_eq!(read(damaged), None, "{damaged}");
        }
    }
}
