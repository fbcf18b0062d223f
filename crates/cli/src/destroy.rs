//! `limen destroy`: removes a volume's objects, then its records, then its database.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chunk::{BlockStore, ChunkError, HeldStaging, MARKER};
use meta::{EngineError, Volume};

use crate::args::DestroyArgs;
use crate::fault::Fault;
use crate::maintenance::{DESTROY, Exclusive, Tool};
use crate::marker;
use crate::output;
use crate::staged;
use crate::status::{usage, used_bytes};
use crate::store::{open_closed, store_fault};
use crate::units::show_size;
use crate::url::{self, MetaUrl};

/// How often it is looked whether the volume is still reserved, while objects are removed.
const CHECK_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &DestroyArgs) -> Result<(), Fault> {
    let url = MetaUrl::parse(&args.url)?;
    let (database, volume) = url.open_volume()?;
    let engine = database.engine();
    let failed = |error: EngineError| Fault::new(error).at(&url);
    let usage = usage(&*engine).map_err(failed)?;
    if !args.yes {
        confirm(&volume, usage.inodes, &show_size(used_bytes(&usage)))?;
    }
    let mut exclusive = Exclusive::begin(&url, &database, Tool { name: DESTROY, force: Some(args.force) })?;
    let places = staged::places(&volume);
    let _staging = hold_staging(&volume, &places)?;
    // The objects first: should this be interrupted, the volume is still there to be destroyed again.
    let mut removed = 0;
    let store = if args.keep_objects { None } else { Some(store_of(&volume)?) };
    if let Some(store) = &store {
        let bar = output::progress("objects removed");
        // No request to the store is guarded, so the announcement is looked at again and again.
        let mut checked: Option<Instant> = None;
        let destroyed = store.remove_blocks::<Stop>(&mut |count| {
            removed = count;
            bar.set_position(count);
            if checked.is_none_or(|checked| checked.elapsed() >= CHECK_EVERY) {
                exclusive.check()?;
                checked = Some(Instant::now());
            }
            Ok(())
        });
        bar.finish_and_clear();
        destroyed.map_err(|stop| match stop {
            Stop::Store(error) => {
                store_fault(&volume, &error).advise("nothing else was removed; run it again")
            }
            Stop::Engine(error) => failed(error),
        })?;
    }
    exclusive.make_final().map_err(|fault| fault.at(&url))?;
    exclusive.engine().wipe().map_err(failed)?;
    if !args.keep_objects {
        // Nothing is left there but empty directories.
        places.iter().for_each(|place| drop(fs::remove_dir_all(place)));
    }
    staged::forget(&volume);
    drop(engine);
    let lock = exclusive.release();
    drop(database);
    if let MetaUrl::Sqlite(path) = &url {
        url::remove_database(path)?;
    }
    drop(lock);
    // Last, because a volume is not served or destroyed without its marker.
    if let Some(Err(error)) = store.map(|store| store.remove_marker()) {
        let fault = store_fault(&volume, &error);
        return Err(fault.advise(format!("the volume is gone; remove what is left there by hand ({MARKER})")));
    }
    output::print(&format!("Volume '{}' is gone, and {removed} objects with it.\n", volume.name))
}

/// Why the removal of objects ends.
enum Stop {
    Store(ChunkError),
    Engine(EngineError),
}

impl From<ChunkError> for Stop {
    fn from(error: ChunkError) -> Self {
        Stop::Store(error)
    }
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Self {
        Stop::Engine(error)
    }
}

/// Keeps other processes of this machine from uploading what they have staged: a process may do that without a session.
fn hold_staging(volume: &Volume, places: &[PathBuf]) -> Result<HeldStaging, Fault> {
    let name = &volume.name;
    match HeldStaging::take(places) {
        Ok(Ok(held)) => Ok(held),
        Ok(Err(area)) => {
            Err(Fault::new(format!("a process still uploads blocks of volume '{name}'")).at(area.display()).advise(
                "nothing was removed; wait until its limen umount returns, or end that process (fuser names it)",
            ))
        }
        Err(error) => Err(Fault::new(format!("cannot lock the blocks of volume '{name}' that wait: {error}"))),
    }
}

/// The volume's object store, once it is clear that it is this volume's.
fn store_of(volume: &Volume) -> Result<Arc<BlockStore>, Fault> {
    let store = open_closed(volume).and_then(|store| marker::verify(volume, &store).map(|_| store));
    store.map_err(|fault| {
        fault.advise(
            "nothing was removed; put it right, or remove the records alone with limen destroy --keep-objects",
        )
    })
}

/// Lets the person type the volume's name.
fn confirm(volume: &Volume, inodes: u64, data: &str) -> Result<(), Fault> {
    let fail = |error: io::Error| Fault::new(format!("cannot ask: {error}"));
    let name = &volume.name;
    if !io::stdin().is_terminal() {
        return Err(Fault::usage(format!(
            "volume '{name}' with {inodes} inodes and {data} would be removed"
        ))
        .advise("say --yes if that is meant"));
    }
    let mut terminal = io::stderr();
    write!(
        terminal,
        "This removes volume '{name}' with {inodes} inodes and {data} for good.\nType its name: "
    )
    .and_then(|()| terminal.flush())
    .map_err(fail)?;
    let mut typed = String::new();
    io::stdin().read_line(&mut typed).map_err(fail)?;
    match typed.trim() == name {
        true => Ok(()),
        false => Err(Fault::new("that is not its name: nothing was removed").at(name)),
    }
}
