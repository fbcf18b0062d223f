//! Where a user's files go, and what a mount point is called.

use std::env;
use std::fs;
use std::path::{Path, PathBuf, absolute};

use crate::fault::Fault;

/// The directory that an environment variable names; a relative one is to be ignored, says the XDG specification.
pub(crate) fn from_environment(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Where limen keeps what outlives a process but is no data: `limen` in `$XDG_STATE_HOME`, else in `~/.local/state`.
pub(crate) fn state_directory() -> Option<PathBuf> {
    let state = from_environment("XDG_STATE_HOME");
    Some(state.or_else(|| Some(from_environment("HOME")?.join(".local/state")))?.join("limen"))
}

/// A mount point's absolute path without symbolic links, found without asking what is mounted there, for that may be
/// dead or hang.
///
/// # Errors
/// The path is empty, or there is no current directory.
pub(crate) fn mountpoint(path: &Path) -> Result<PathBuf, Fault> {
    let path = absolute(path).map_err(|error| Fault::usage(error).at(path.display()))?;
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
        && let Ok(parent) = fs::canonicalize(parent)
    {
        let path = parent.join(name);
        let is_link = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink());
        return Ok(if is_link { fs::canonicalize(&path).unwrap_or(path) } else { path });
    }
    Ok(path)
}
