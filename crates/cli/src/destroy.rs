//! `limen destroy`: removes a volume's objects, then its records, then its database file or its tables on the
//! server.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chunk::{BlockStore, MARKER};
use command::error::{CliError, ErrorAt};
use command::output;
use command::units::show_size;
use meta::Volume;
use types::counted;

use crate::confirm::confirm;
use crate::maintenance::{DESTROY, Exclusive, Tool};
use crate::marker;
use crate::records::{usage, used_bytes};
use crate::staged;
use crate::store::{open_without_key, store_error};
use crate::url::{self, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  limen destroy sqlite:///var/lib/limen/home.db")]
pub(crate) struct DestroyArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    url: String,
    /// Do not ask for the volume's name as a confirmation
    #[arg(short, long)]
    yes: bool,
    /// Wait 90 seconds, and remove sessions that are not renewed in that time, because their machines are
    /// gone. A session that is still renewed keeps the volume in use. Also continues a removal that was
    /// interrupted on another machine
    #[arg(long)]
    force: bool,
    /// Remove the metadata only and leave the object store as it is: for a store that no longer exists
    #[arg(long)]
    keep_objects: bool,
}

/// How often to check, while objects are removed, that the maintenance of this tool is still announced.
const CHECK_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &DestroyArgs) -> Result<(), CliError> {
    let url = MetaUrl::parse(&args.url)?;
    let (database, volume) = url.open_volume()?;
    let engine = database.engine();
    let usage = usage(&*engine).at(&url)?;
    if !args.yes {
        let (name, data) = (&volume.name, show_size(used_bytes(&usage)));
        let inodes = counted(usage.inodes, "inode", "inodes");
        confirm(
            name,
            &format!("volume '{name}' with {inodes} and {data} would be removed"),
            &format!("This deletes volume '{name}' with {inodes} and {data} permanently."),
            "nothing was removed",
        )?;
    }
    let mut exclusive = Exclusive::begin(&url, &database, Tool { name: DESTROY, force: Some(args.force) })?;
    let places = staged::places(&volume);
    let _staging = staged::hold(&volume, "nothing was removed")?;
    // The objects are removed first: if this command is interrupted, the volume still exists and can be
    // destroyed again.
    let mut removed = 0;
    let store = if args.keep_objects { None } else { Some(store_of(&volume)?) };
    if let Some(store) = &store {
        let bar = output::progress("objects removed");
        // Requests to the store carry no guard, so the announcement is checked every second.
        let mut checked: Option<Instant> = None;
        let destroyed = store.remove_blocks::<Box<dyn Error>>(&mut |count| {
            removed = count;
            bar.set_position(count);
            if checked.is_none_or(|checked| checked.elapsed() >= CHECK_EVERY) {
                exclusive.check()?;
                checked = Some(Instant::now());
            }
            Ok(())
        });
        bar.finish_and_clear();
        destroyed.map_err(|error| match error.downcast_ref() {
            Some(error) => {
                store_error(&volume, error).advise("no metadata was removed; run limen destroy again")
            }
            None => CliError::new(&error).at(&url),
        })?;
    }
    exclusive.make_final().at(&url)?;
    exclusive.engine().wipe().at(&url)?;
    if !args.keep_objects {
        // The staging directories contain only empty directories now.
        places.iter().for_each(|place| drop(fs::remove_dir_all(place)));
    }
    staged::forget(&volume);
    let lock = exclusive.release();
    if let Err(error) = engine.remove() {
        output::note(format!(
            "the volume is gone, but its empty tables or keys stay in the database: {error}"
        ));
    }
    drop(engine);
    drop(database);
    if let MetaUrl::Sqlite(path) = &url {
        url::remove_database(path)?;
    }
    drop(lock);
    // The marker is removed last, because a volume is not served or destroyed without its marker.
    if let Some(Err(error)) = store.map(|store| store.remove_markers()) {
        let failed = store_error(&volume, &error);
        return Err(failed.advise(format!("the volume is removed; remove the object {MARKER} there by hand")));
    }
    output::print(&format!(
        "Volume '{}' and {} are removed.\n",
        volume.name,
        counted(removed, "object", "objects")
    ))
}

/// Opens the object store, and verifies that it is this volume's.
fn store_of(volume: &Volume) -> Result<Arc<BlockStore>, CliError> {
    let store = open_without_key(volume).and_then(|store| marker::verify(volume, &store).map(|_| store));
    store.advise(
        "nothing was removed; correct this, or remove only the metadata with limen destroy --keep-objects",
    )
}
