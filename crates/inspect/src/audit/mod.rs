//! The permissions of a user on all names of a volume.
//!
//! The walk visits every name once, directory by directory, in pages of entries with their inodes. The next
//! page of a directory is read only when no directory of the previous page waits to be read. So memory grows
//! with the depth of the tree, not with the number of files. Access follows from ACL, owner, group and mode,
//! and most files share these with many others. So each thread decides each distinct combination once, as
//! long as its cache has room. An ACL is read when a combination first needs it, not with each inode that has
//! it.
//!
//! A name is *reached* if all directories above it may be searched. A directory that may not be searched
//! denies access to everything below it.
//!
//! For this reason the walk reads directories with their inodes, and does not scan inodes by number: only the
//! tree tells what is below a directory.

mod class;
mod model;
mod texts;
mod walk;

use meta::{Engine, Volume};
use types::{Ino, Name};

pub use model::{
    Audit, AuditError, AuditView, Counts, Difference, Kind, OnName, Progress, Rights, Seen, SeenEntry, Start,
    Totals, VisitedName,
};

/// Visits a directory and all names below it. `after` is the view with the planned change. With `each`, one
/// thread visits the names in the order of the tree and calls `each` for every name; otherwise `threads`
/// threads visit them. Each thread calls `progress` with the number of names visited since its last call.
///
/// # Errors
/// The database fails; the directory does not exist; the edit cannot be applied to one of the files; the
/// error of `each`.
pub fn audit<E: From<AuditError> + Send>(
    engine: &dyn Engine,
    volume: &Volume,
    start: &Start,
    (before, after): (&AuditView, Option<&AuditView>),
    threads: usize,
    each: Option<&mut OnName<'_, E>>,
    progress: &Progress<'_>,
) -> Result<Audit, E> {
    let audit = walk::Audited { engine, volume, before, after, progress };
    match each {
        Some(each) => audit.list(start, each),
        None => audit.count(start, threads).map_err(E::from),
    }
}

/// The names in a directory after `after`, at most `limit`, as the user of a view sees them; and whether
/// there are more. The rights are those that [`audit`] reports.
///
/// # Errors
/// The database fails; there is no such directory; the edit of the view cannot be applied.
pub fn list_as(
    engine: &dyn Engine,
    volume: &Volume,
    view: &AuditView,
    dir: Ino,
    (after, limit): (Option<Name>, usize),
) -> Result<(Vec<SeenEntry>, bool), AuditError> {
    walk::Audited { engine, volume, before: view, after: None, progress: &|_| {} }.entries(dir, after, limit)
}
