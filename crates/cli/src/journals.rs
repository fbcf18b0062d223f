//! The journals of mounts on this machine. The journal of a mount holds the changes that the mount has
//! answered and not yet committed, so that they can be committed later if the mount is killed.

use std::path::Path;
use std::sync::Arc;

use client::{Failure, MakeDurable, Meta};
use command::{output, paths};
use engine_sqlite::SqliteEngine;
use journal::{Directory, Journals};
use meta::Engine;

/// The directory of the journals, below `/var/lib/limen` for root, otherwise below the user's state
/// directory.
const JOURNALS: &str = "journals";

/// The journals of the mounts of a database. `file` is the file of an embedded database, whose journals are
/// beside it. The journals of other databases are in a directory of this user; `None` if the user has no
/// state directory.
pub(crate) fn directory(file: Option<&Path>) -> Option<Arc<dyn Journals>> {
    match file {
        Some(file) => Some(Arc::new(Directory::of_database(file))),
        None => Some(Arc::new(Directory::new(paths::lasting_directory(JOURNALS)?))),
    }
}

/// Commits the changes that killed mounts on this machine had answered and not committed, and removes the
/// sessions of these mounts. They are the mounts of this user; if the database is embedded, also those of the
/// owner of its file. `file` is as for [`directory`].
///
/// # Errors
/// A journal cannot be read; errors of the database.
pub(crate) fn replay(file: Option<&Path>, meta: &Meta) -> Result<(), Failure> {
    let Some(journals) = directory(file) else { return Ok(()) };
    // This process has not opened the volume's object store. Only blocks in local files may not be durable
    // yet, and sync(2) makes them durable.
    let make_durable: MakeDurable = Arc::new(|_| {
        rustix::fs::sync();
        Ok(())
    });
    meta.replay(&*journals, &make_durable).map(drop)
}

/// Calls [`replay`] before a command reads or changes an embedded database, unless the volume is mounted. If
/// the replay fails, a message says so, and commands that change the volume try it again.
pub(crate) fn replay_unmounted(engine: &Arc<SqliteEngine>) {
    let file = engine.path();
    if !Directory::of_database(file).exists() {
        return;
    }
    let Ok(_lock) = engine.lock_exclusive() else { return };
    // The caller reports why the volume cannot be opened.
    let Ok(meta) = Meta::open(Arc::clone(engine) as Arc<dyn Engine>, 1) else { return };
    if let Err(error) = replay(Some(file), &meta) {
        output::note(format!("cannot commit the answered changes of a killed mount: {error}"));
    }
}
