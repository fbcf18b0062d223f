//! `limen config --bucket`: changes the address at which a volume finds its objects.
//!
//! | at the new address | the volume |
//! |---|---|
//! | the same store: an object that is written there is found at the old address | may be mounted; each mount uses the old address until it ends or is taken over |
//! | a copy | must not be mounted, because mounts would store new objects at the old address only; every object of the old store must be in the copy |
//!
//! If there are several buckets, both addresses lead to the same store only if they name the same buckets in
//! the same order. With another number or order, most objects must be in another bucket than before. The
//! comparison finds an object only in the bucket to which its key belongs. No new bucket may then be one of
//! the old buckets, because the markers of the new ones are written before the address is changed: if this
//! command is interrupted in between, the volume is still complete at the old address.
//!
//! On a database server, a mount may be suspended, or may just be starting, while the volume moves to a copy.
//! Afterwards, it cannot begin a session, because the number of moves differs ([`Volume::moves`]), so
//! programs change nothing through it.

use std::collections::HashSet;
use std::sync::Arc;

use chunk::{BareStore, ChunkError, MEMORY, StorageConfig};
use command::error::{CliError, ErrorAt};
use command::output;
use meta::{Engine, Volume};
use ops::{Authority, MoveStore};
use types::{Time, counted};

use crate::bucket::{named_store, store_of};
use crate::maintenance::{Exclusive, Tool};
use crate::marker;
use crate::staged;
use crate::store::open_without_key;
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
/// The store at the new address is not this volume's, or does not work. If the new store is a copy: the
/// volume is mounted; a process of this machine uploads blocks of the volume; the copy lacks objects; without
/// `is_old_lost`, the old store does not work. Errors of the database.
pub(crate) fn move_store(
    url: &MetaUrl,
    database: &Database,
    volume: &Volume,
    to: StorageConfig,
    force: bool,
    is_old_lost: bool,
) -> Result<Volume, CliError> {
    let StorageConfig { storage, bucket } = named_store(&to.storage, &to.bucket)?;
    if (&storage, &bucket) == (&volume.storage, &volume.bucket) {
        return Ok(volume.clone());
    }
    if [&storage, &volume.storage].iter().any(|kind| *kind == MEMORY) {
        return Err(CliError::usage("objects in memory cannot be moved").at(url));
    }
    let moved = Volume { storage, bucket, ..volume.clone() };
    // Nothing is written to the new store before it is known to belong to this volume.
    let store = open_without_key(&moved)?;
    if let Some(place) = marker::missing(&moved, &store)? {
        return Err(CliError::new(
            "there is no copy of the volume's objects: the object limen-volume is missing",
        )
        .at(place)
        .advise(COPY_FIRST));
    }
    let misplaced = marker::verify_copy(&moved, &store)?;
    let new = open(&moved)?;
    let old = match find_old(volume, &new).at(&moved.bucket)? {
        Ok(Old::Same) => {
            misplaced.map_or(Ok(()), Err)?;
            set(url, database.engine(), volume, &moved, false)?;
            output::note(
                "both addresses lead to the same objects; each mount uses the old one until it ends or is taken over",
            );
            return url.volume(&*database.engine());
        }
        Ok(Old::Overlaps) => {
            let what = "a bucket is also one of the volume's present buckets, at another place among them";
            return Err(CliError::new(what)
                .at(&moved.bucket)
                .advise("copy the objects to other buckets; nothing was changed"));
        }
        Ok(Old::Other(old)) => Ok(old),
        Err(error) => Err(error),
    };
    let exclusive =
        Exclusive::begin(url, database, Tool { name: "limen config --bucket", force: Some(force) })?;
    // Blocks that wait for upload are in neither store.
    let _staging = staged::hold(volume, "nothing was changed")?;
    match old {
        Ok(old) => {
            require_all(&old, &new, &moved)?;
            if misplaced.is_some() {
                marker::put(&moved, &store)?;
            }
        }
        Err(error) if is_old_lost => {
            // Without a comparison, only the markers show that each bucket is at its place.
            misplaced.map_or(Ok(()), Err)?;
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

fn open(volume: &Volume) -> Result<BareStore, CliError> {
    BareStore::open(&store_of(volume), false).at(&volume.bucket)
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
    if let Some(place) = marker::missing(volume, &store)? {
        return Err(CliError::new("the object limen-volume is missing in the volume's store").at(place));
    }
    marker::verify(volume, &store)?;
    open(volume)
}

/// The store at the old address.
enum Old {
    /// It is the store at the new address.
    Same,
    /// Both have a bucket, but at different places among their buckets, or among another number of buckets.
    Overlaps,
    Other(BareStore),
}

/// Opens the store at the old address. Both addresses lead to the same store if an object that is written at
/// either address is found at the other, in each bucket. One direction is not enough, because some stores
/// replicate new objects to another store.
///
/// # Errors
/// The new store does not work. The inner error is why the old store cannot be used.
fn find_old(volume: &Volume, new: &BareStore) -> Result<Result<Old, CliError>, ChunkError> {
    let run = |of: &str| format!("move-{of}.{}.{}", std::process::id(), Time::now().nanos());
    let (to_new, to_old) = (run("new"), run("old"));
    new.put_probes(&to_new)?;
    let old = open_marked(volume).and_then(|old| {
        let buckets = new.buckets();
        let found = old.find_probes(&to_new).at(&volume.bucket)?;
        if are_moved(&found, buckets) {
            return Ok(Old::Overlaps);
        }
        let is_same = are_same(&found, buckets) && {
            old.put_probes(&to_old).at(&volume.bucket)?;
            let found = new.find_probes(&to_old).at(&volume.bucket);
            old.remove_probes(&to_old).at(&volume.bucket)?;
            are_same(&found?, buckets)
        };
        Ok(if is_same { Old::Same } else { Old::Other(old) })
    });
    new.remove_probes(&to_new)?;
    Ok(old)
}

/// Whether each bucket of a store has exactly the probe of the bucket at the same place in the other store.
/// `found` has, for each bucket of the first store, the places of the buckets whose probes are in it.
/// `buckets` is the number of buckets of the other store.
fn are_same(found: &[Vec<usize>], buckets: usize) -> bool {
    found.len() == buckets && found.iter().enumerate().all(|(index, found)| found[..] == [index])
}

/// Whether a bucket has a probe of a bucket at another place, or of a store with another number of buckets.
/// The arguments are those of [`are_same`].
fn are_moved(found: &[Vec<usize>], buckets: usize) -> bool {
    let is_moved = |index: usize, other: usize| other != index || found.len() != buckets;
    found.iter().enumerate().any(|(index, others)| others.iter().any(|other| is_moved(index, *other)))
}

/// Checks that the new store has all objects of the old one.
///
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
            let what = format!(
                "the copy lacks {missing} of {}, for example {first}",
                counted(seen, "object", "objects")
            );
            Err(CliError::new(what).at(&moved.bucket).advise(COPY_FIRST))
        }
    }
}
