//! The journals of this user's mounts on this machine: they have the changes that a killed mount had answered
//! and not committed.

use std::sync::Arc;

use client::{Failure, MakeDurable, Meta};
use command::paths;
use journal::{Directory, Journals};

/// The directory of the journals, below `/var/lib/limen` for root, otherwise below the user's state
/// directory.
const JOURNALS: &str = "journals";

/// The directory of this user's journals; `None` if the user has no state directory.
pub(crate) fn directory() -> Option<Arc<dyn Journals>> {
    Some(Arc::new(Directory::new(paths::lasting_directory(JOURNALS)?)))
}

/// Commits the changes that killed mounts of this user on this machine had only answered, and removes their
/// sessions.
///
/// # Errors
/// A journal cannot be read; errors of the database.
pub(crate) fn replay(meta: &Meta) -> Result<(), Failure> {
    let Some(journals) = directory() else { return Ok(()) };
    // This process has not opened the volume's object store. Only blocks in local files may not be durable
    // yet, and sync(2) makes them durable.
    let make_durable: MakeDurable = Arc::new(|_| {
        rustix::fs::sync();
        Ok(())
    });
    meta.replay(&*journals, &make_durable).map(drop)
}
