//! Lets a database use an object store that another database of the same volume may have used.

use std::sync::Arc;

use check::Problem;
use chunk::{BlockStore, MEMORY};
use command::error::{CliError, ErrorAt};
use command::registry;
use meta::{Counter, Engine, Volume};
use ops::{Authority, Configure};

use crate::maintenance::{Exclusive, Tool};
use crate::marker;
use crate::records::next_slice;
use crate::store::{open_without_key, store_error};
use crate::url::{Database, MetaUrl};

/// How many slice numbers are skipped: more than mounts of another database can have used since the dump
/// from which this database was loaded.
const SKIPPED_SLICES: u64 = 1 << 40;

/// Blocks with this slice number or a higher one are ignored: no volume has so many slices, and a counter
/// above such a number might not fit into the databases.
const LAST_SLICE: u64 = 1 << 62;

/// Changes settings of a volume. Mounts read the settings again every few seconds, on the embedded engine
/// too.
pub(crate) fn configure(
    url: &MetaUrl,
    engine: Arc<dyn Engine>,
    change: &Configure,
) -> Result<Volume, CliError> {
    url.client(engine.clone(), 1)?.run(change, &Authority::Kernel { revisions: None }).at(url)?;
    engine.sync().at(url)?;
    url.volume(&*engine)
}

/// Marks the object store as this volume's, at the user's request. Unless `tool` is forced, no mount of this
/// machine may use the store through another database. Returns the volume's new settings.
///
/// # Errors
/// The storage is `memory`; the volume is mounted, through this database or another one; the store is another
/// volume's, or does not work; errors of the database.
pub(crate) fn adopt_store(
    url: &MetaUrl,
    database: &Database,
    volume: &Volume,
    tool: Tool,
) -> Result<Volume, CliError> {
    if volume.storage == MEMORY {
        return Err(CliError::usage("--adopt-store does not apply to --storage memory")
            .at(url)
            .advise("omit it"));
    }
    if tool.force != Some(true) {
        refuse_used_store(url, &volume.name, &volume.uuid)?;
    }
    let exclusive = Exclusive::begin(url, database, tool)?;
    let store = open_without_key(volume)?;
    marker::adopt(volume, &store, || match volume.loaded.is_empty() {
        true => Ok(()),
        false => skip_slices(url, exclusive.engine(), volume, &store),
    })?;
    let change = Configure { store_marker: Some(true), ..Configure::default() };
    configure(url, exclusive.engine(), &change)
}

/// Checks that no mount of this machine uses the objects of a volume through another database than that at
/// `url`. Such a mount could not store its data any more.
///
/// # Errors
/// There is such a mount, or the database of a mount of a volume with the same name cannot be read.
pub(crate) fn refuse_used_store(url: &MetaUrl, name: &str, uuid: &str) -> Result<(), CliError> {
    let own = url.to_string();
    for entry in registry::all() {
        if entry.volume != name || entry.url == own || !entry.process.is_alive() {
            continue;
        }
        let other = MetaUrl::parse(&entry.url).and_then(|url| url.open_volume());
        if other.is_ok_and(|(_, other)| other.uuid != uuid) {
            continue;
        }
        let (mountpoint, pid, by) = (entry.mountpoint.display(), entry.process.pid, &entry.url);
        let what = format!(
            "volume '{name}' is mounted at {mountpoint} by process {pid} from another database, {by}"
        );
        return Err(CliError::new(what).at(url).advise(format!(
            "run limen umount {mountpoint} first; with --force that mount loses the object store"
        )));
    }
    Ok(())
}

/// Raises the next slice number above those of all slices that mounts of another database can have stored
/// after the dump from which this database was loaded. An object must never be replaced by one with other
/// content. If a slice number were used again, a machine could serve the old block from its disk cache in
/// place of the new one, or a machine that was off could upload its staged block over the new one.
///
/// The blocks in the store show only some of those slice numbers, so many more are skipped.
fn skip_slices(
    url: &MetaUrl,
    engine: Arc<dyn Engine>,
    volume: &Volume,
    store: &BlockStore,
) -> Result<(), CliError> {
    let stored = next_slice(&*engine).at(url)?;
    let mut last = stored;
    let listed = store.for_each_block(&mut |block| {
        last = last.max(if block.id.0 < LAST_SLICE { block.id.0 } else { 0 });
        Ok(())
    });
    listed.map_err(|error| store_error(volume, &error))?;
    let problem =
        Problem::Counter { counter: Counter::Slice, stored, last: last.saturating_add(SKIPPED_SLICES) };
    match check::repair(&url.client(engine, 1)?, &problem).at(url)? {
        true => Ok(()),
        false => {
            Err(CliError::new("the slice numbers cannot be raised").at(url).advise("run the command again"))
        }
    }
}
