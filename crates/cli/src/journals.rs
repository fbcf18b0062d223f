//! The journals of mounts on this machine: they have the changes that a killed mount had answered and not committed.

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

/// The journals of the mounts of a database. `file` is the file of an embedded database: its journals are beside it. Those of
/// other databases are in the directory of this user's journals; `None` if the user has no state directory.
pub(crate) fn directory(file: Option<&Path>) -> Option<Arc<dyn Journals>> {
    match file {
        Some(file) => Some(Arc::new(Directory::of_database(file))),
        None => Some(Arc::new(Directory::new(paths::lasting_directory(JOURNALS)?))),
    }
}

/// Commits the changes that killed mounts on this machine had only answered, and removes their sessions: those of this user,
/// or, if the database is embedded, those of its owner. `file` is as for [`directory`].
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

/// As [`replay`], before anything reads or changes an embedded database. Does nothing if the volume is mounted. If the replay
/// fails, a message says so, and commands that change the volume try it again.
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
