//! Opens a volume for a client: its lock, its database, and the client's view of its metadata.

use std::sync::Arc;
use std::time::Duration;

use client::Meta;
use command::error::{CliError, ErrorAt};
use engine_sqlite::{LockError, MountLock};
use meta::{Counting, Volume};
use vfs::process::process_has_ended;

use crate::format::volume_in_memory;
use crate::journals;
use crate::lock::{lock_error, take_lock};
use crate::maintenance;
use crate::network::Counted;
use crate::sessions::{list, living};
use crate::url::{Database, MetaUrl};

/// The bound of the record cache, in records of about 256 bytes.
const CACHED_RECORDS: usize = 400_000;

/// How long cached records are used while the client gets no notifications of other clients' changes.
const LIFETIME_WITHOUT_NOTIFICATIONS: Duration = Duration::from_secs(1);

/// Like [`take_lock`], but the error is for the user.
///
/// # Errors
/// Another process holds the lock; the message lists the mounts of the volume.
pub(crate) fn lock(url: &MetaUrl, database: &Database, shared: bool) -> Result<Option<MountLock>, CliError> {
    take_lock(database, shared).map_err(|error| match error {
        LockError::Io { path, error } => lock_error(&path, &error),
        LockError::AlreadyMounted { holder, .. } => in_use(url, database, shared, &holder),
    })
}

/// Locks the database of a volume that must not be mounted, if the database serves one process at a time.
///
/// Then commits the changes that a killed mount had answered and not committed.
///
/// # Errors
/// The volume is mounted: `advice` says what to do then; the lock file cannot be opened; the changes cannot
/// be committed.
pub(crate) fn lock_unmounted(
    url: &MetaUrl,
    database: &Database,
    advice: &str,
) -> Result<Option<MountLock>, CliError> {
    let lock = database.lock(false).map_err(|error| match error {
        LockError::Io { path, error } => lock_error(&path, &error),
        LockError::AlreadyMounted { .. } => {
            CliError::new("the volume is mounted, and its database serves one process at a time")
                .at(url)
                .advise(advice)
        }
    })?;
    if lock.is_some() {
        journals::replay(database.file(), &url.client(database.engine(), 1)?).at(url)?;
    }
    Ok(lock)
}

/// Opens the volume's database. For a volume in memory, creates the database with an empty volume.
///
/// # Errors
/// Those of [`MetaUrl::open`].
pub(crate) fn open(url: &MetaUrl) -> Result<Database, CliError> {
    let MetaUrl::Memory(name) = url else { return url.open(false) };
    let database = url.open(true)?;
    let volume: Volume = volume_in_memory(name)?;
    volume.format(&*database.engine()).map_err(|error| url.volume_error(error))?;
    Ok(database)
}

/// Opens the client's view of the volume's metadata, with a cache whose lifetime depends on whether other
/// clients can change the volume. Also returns the engine, which counts its requests.
///
/// # Errors
/// The database holds no volume, or one that this version of limen cannot read.
pub(crate) fn open_meta(
    url: &MetaUrl,
    database: &Database,
    shared: bool,
) -> Result<(Counted, Meta), CliError> {
    let engine = Arc::new(Counting::new(database.engine()));
    let meta = url.client(engine.clone(), CACHED_RECORDS)?;
    if let Database::Network(_) = database {
        meta.set_exclusive(false);
        // Without notifications, first this cache and then the kernel's cache use a record, each for half of
        // the time.
        meta.set_lifetime(LIFETIME_WITHOUT_NOTIFICATIONS / 2);
    } else {
        meta.set_exclusive(!shared);
        // A query to a database on this machine takes microseconds, so a shared mount uses no cached record.
        meta.set_lifetime(Duration::ZERO);
    }
    Ok((engine, meta))
}

/// The error of a mount of the embedded engine that cannot lock the database file.
fn in_use(url: &MetaUrl, database: &Database, shared: bool, holder: &str) -> CliError {
    let engine = database.engine();
    if let Ok(Some(tool)) = maintenance::announced(&*engine)
        && !process_has_ended(tool.pid, &tool.process)
    {
        return maintenance::under_maintenance(url, &tool);
    }
    let name = Volume::load(&*engine).map_or_else(|_| url.to_string(), |volume| volume.name);
    let what = format!("volume '{name}' is already in use");
    let alive = living(&*engine).unwrap_or_default();
    if alive.is_empty() {
        // The holder is a tool, or a mount that is just beginning or ending.
        return CliError::new(format!("{what} by process {holder}"))
            .advise("wait until that process has ended");
    }
    let error = CliError::new(what).at(list(&alive));
    // An exclusive holder writes its process id to the lock file; shared holders write nothing.
    match holder.parse::<u32>() {
        Err(_) if !shared => error.advise("mount it with -o shared here too, or unmount it there first"),
        _ => error.advise("unmount it there first, or mount it with -o shared everywhere"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_without_a_session_is_named_as_a_process() {
        let url = MetaUrl::parse("mem://v").unwrap();
        let error = in_use(&url, &open(&url).unwrap(), false, "7");
        let message = "volume 'v' is already in use by process 7: wait until that process has ended";
        assert_eq!(error.to_string(), message);
    }
}
