//! `limen config --bucket`: changes the address at which a volume finds its objects.
//!
//! | at the new address | the volume |
//! |---|---|
//! | the same store: an object that is written there is found at the old address | may be mounted; each mount uses the old address until it ends or is taken over |
//! | a copy | must not be mounted, because mounts would store new objects at the old address only; every object of the old store must be in the copy |
//!
//! On a database server, a mount may be suspended, or may just be starting, while the volume moves to a copy.
//! It cannot begin a session afterwards, because the number of moves differs ([`Volume::moves`]), so programs
//! change nothing through it.

use std::collections::HashSet;
use std::path::absolute;
use std::sync::Arc;

use chunk::{BareStore, ChunkError, FILE, MEMORY, StorageConfig};
use command::error::{CliError, ErrorAt};
use command::output;
use meta::{Engine, Volume};
use ops::{Authority, MoveStore};
use types::Time;

use crate::maintenance::{Exclusive, Tool};
use crate::marker;
use crate::staged;
use crate::store::{open_without_key, store_error};
use crate::url::{Database, MetaUrl};

const COPY_FIRST: &str = "copy all objects there first, for example with rclone sync, and run this command again; nothing was \
                          changed";

/// The prefixes of all objects of a volume except its marker.
const PREFIXES: [&str; 2] = ["chunks/", "backups/"];

/// Changes the address of the objects. Returns the volume's new settings. With `is_old_lost`, an old store
/// that does not work is no error, and the copy is then not compared with it. With `force`, sessions that are
/// not renewed are removed.
///
/// # Errors
/// The store at the new address is not this volume's, or does not work. If it is not the store at the old
/// address: the volume is mounted; a process of this machine uploads to it; the copy lacks objects; without
/// `is_old_lost`, the old store does not work. Errors of the database.
pub(crate) fn move_store(
    url: &MetaUrl,
    database: &Database,
    volume: &Volume,
    to: StorageConfig,
    force: bool,
    is_old_lost: bool,
) -> Result<Volume, CliError> {
    let StorageConfig { storage, bucket } = place_of(to)?;
    if (&storage, &bucket) == (&volume.storage, &volume.bucket) {
        return Ok(volume.clone());
    }
    if [&storage, &volume.storage].iter().any(|kind| *kind == MEMORY) {
        return Err(CliError::usage("objects in memory cannot be moved").at(url));
    }
    let moved = Volume { storage, bucket, ..volume.clone() };
    // Nothing is written there before it is known to be this volume's.
    let store = open_without_key(&moved)?;
    if store.direct().marker().map_err(|error| store_error(&moved, &error))?.is_none() {
        return Err(CliError::new(
            "there is no copy of the volume's objects: the object limen-volume is missing",
        )
        .at(&moved.bucket)
        .advise(COPY_FIRST));
    }
    marker::verify(&moved, &store)?;
    let new = open(&moved)?;
    let old = find_old(volume, &new).at(&moved.bucket)?;
    if let Ok(Old::Same) = old {
        set(url, database.engine(), volume, &moved, false)?;
        output::note(
            "both addresses lead to the same objects; each mount uses the old one until it ends or is taken over",
        );
        return url.volume(&*database.engine());
    }
    let exclusive =
        Exclusive::begin(url, database, Tool { name: "limen config --bucket", force: Some(force) })?;
    // Blocks that wait for upload are in neither store.
    let _staging = staged::hold(volume, "nothing was changed")?;
    match old {
        Ok(Old::Same) => {}
        Ok(Old::Other(old)) => require_all(&old, &new, &moved)?,
        Err(error) if is_old_lost => {
            output::note(format!("{error}; so the copy is not compared with it: see limen fsck --data"));
        }
        Err(error) => {
            return Err(error.advise(
                "the copy cannot be compared with this store; if it is lost, give --old-store-lost; nothing was changed",
            ));
        }
    }
    set(url, exclusive.engine(), volume, &moved, true)?;
    url.volume(&*database.engine())
}

fn place_of(config: StorageConfig) -> Result<StorageConfig, CliError> {
    if config.storage != FILE {
        return Ok(config);
    }
    let path = absolute(&config.bucket).usage().at(&config.bucket)?;
    let text = path.to_str().ok_or_else(|| CliError::usage("the path is not UTF-8").at(path.display()))?;
    Ok(StorageConfig { bucket: text.to_owned(), ..config })
}

fn open(volume: &Volume) -> Result<BareStore, CliError> {
    let config = StorageConfig { storage: volume.storage.clone(), bucket: volume.bucket.clone() };
    BareStore::open(&config, false).at(&volume.bucket)
}

fn set(
    url: &MetaUrl,
    engine: Arc<dyn Engine>,
    from: &Volume,
    to: &Volume,
    is_copy: bool,
) -> Result<(), CliError> {
    let place = |volume: &Volume| (volume.storage.clone(), volume.bucket.clone());
    let change = MoveStore { from: place(from), to: place(to), is_copy };
    url.client(Arc::clone(&engine), 1)?.run(&change, &Authority::Kernel { revisions: None }).at(url)?;
    engine.sync().at(url)
}

/// Opens the store at the old address. An empty directory, such as one whose file system is not mounted, is
/// not that store.
fn open_marked(volume: &Volume) -> Result<BareStore, CliError> {
    let store = open_without_key(volume)?;
    if store.direct().marker().map_err(|error| store_error(volume, &error))?.is_none() {
        return Err(
            CliError::new("the object limen-volume is missing in the volume's store").at(&volume.bucket)
        );
    }
    marker::verify(volume, &store)?;
    open(volume)
}

/// The store at the old address.
enum Old {
    /// It is the store at the new address.
    Same,
    Other(BareStore),
}

/// Opens the store at the old address. Both addresses lead to the same store if an object that is written at
/// either address is found at the other. One direction is not enough, because some stores replicate new
/// objects to another store.
///
/// # Errors
/// The new store does not work. The inner error is why the old store cannot be used.
fn find_old(volume: &Volume, new: &BareStore) -> Result<Result<Old, CliError>, ChunkError> {
    let key = |of: &str| format!("tmp/move-{of}.{}.{}", std::process::id(), Time::now().nanos());
    let (to_new, to_old) = (key("new"), key("old"));
    let data = || b"limen".as_slice().into();
    new.put(&to_new, data())?;
    let old = open_marked(volume).and_then(|old| {
        let is_found = old.get(&to_new, 0, 1).at(&volume.bucket)?.is_some();
        let is_same = is_found && {
            old.put(&to_old, data()).at(&volume.bucket)?;
            let found = new.get(&to_old, 0, 1).at(&volume.bucket);
            old.delete(&to_old).at(&volume.bucket)?;
            found?.is_some()
        };
        Ok(if is_same { Old::Same } else { Old::Other(old) })
    });
    new.delete(&to_new)?;
    Ok(old)
}

/// # Errors
/// An object of the old store is not in the new one; a store does not work.
fn require_all(old: &BareStore, new: &BareStore, moved: &Volume) -> Result<(), CliError> {
    let bar = output::progress("objects compared");
    let (mut seen, mut missing, mut first) = (0, 0, None);
    let mut waiting: Vec<String> = PREFIXES.iter().map(|prefix| (*prefix).to_owned()).collect();
    // Keys have two levels of directories with a bounded number of entries each, so few names are in memory.
    while let Some(prefix) = waiting.pop() {
        let names = old.list(&prefix)?;
        let copied: HashSet<String> = new.list(&prefix)?.into_iter().collect();
        for name in names {
            let key = format!("{prefix}{name}");
            if name.ends_with('/') {
                waiting.push(key);
                continue;
            }
            seen += 1;
            if !copied.contains(&name) {
                missing += 1;
                first.get_or_insert(key);
            }
        }
        bar.set_position(seen);
    }
    bar.finish_and_clear();
    match first {
        None => Ok(()),
        Some(first) => {
            let what = format!("the copy lacks {missing} of {seen} objects, for example {first}");
            Err(CliError::new(what).at(&moved.bucket).advise(COPY_FIRST))
        }
    }
}
