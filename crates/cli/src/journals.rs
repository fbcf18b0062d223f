//! The journals of mounts on this machine: they have the changes that a killed mount had answered and not committed.

use std::sync::Arc;

use client::{Failure, MakeDurable, Meta};
use command::paths;
use journal::{Directory, Journals};

use crate::url::MetaUrl;

/// The directory of the journals, below `/var/lib/limen` for root, otherwise below the user's state
/// directory.
const JOURNALS: &str = "journals";

/// The journals of the mounts of a database: beside the database if it is a file, otherwise in the directory of this user's
/// journals. `None` if the user has no state directory, or if the database is in memory.
pub(crate) fn directory(url: &MetaUrl) -> Option<Arc<dyn Journals>> {
    match url {
        MetaUrl::Sqlite(path) => Some(Arc::new(Directory::of_database(path))),
        MetaUrl::Memory(_) => None,
        _ => Some(Arc::new(Directory::new(paths::lasting_directory(JOURNALS)?))),
    }
}

/// Commits the changes that killed mounts on this machine had only answered, and removes their sessions: those of this user,
/// or, if the database is a file, those of its owner.
///
/// # Errors
/// A journal cannot be read; errors of the database.
pub(crate) fn replay(url: &MetaUrl, meta: &Meta) -> Result<(), Failure> {
    let Some(journals) = directory(url) else { return Ok(()) };
    // This process has not opened the volume's object store. Only blocks in local files may not be durable
    // yet, and sync(2) makes them durable.
    let make_durable: MakeDurable = Arc::new(|_| {
        rustix::fs::sync();
        Ok(())
    });
    meta.replay(&*journals, &make_durable).map(drop)
}
