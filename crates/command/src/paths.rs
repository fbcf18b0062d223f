//! The directories for a user's files, the canonical path of a mount point, and paths as text.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::error::{CliError, ErrorAt};

/// The directory that an environment variable names. A relative path is ignored, as the XDG specification
/// requires.
pub fn from_environment(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The directory for logs and other state that is not file data: `limen` in `$XDG_STATE_HOME`, or in
/// `~/.local/state`.
pub fn state_directory() -> Option<PathBuf> {
    let state = from_environment("XDG_STATE_HOME");
    Some(state.or_else(|| Some(from_environment("HOME")?.join(".local/state")))?.join("limen"))
}

/// The directory in which root keeps files that outlive a mount.
pub const LASTING_OF_ROOT: &str = "/var/lib/limen";

/// This user's directory `name` for files that outlive a mount: below `/var/lib/limen` for root, and below
/// the user's state directory for others. `None` if neither XDG_STATE_HOME nor HOME is set.
pub fn lasting_directory(name: &str) -> Option<PathBuf> {
    let parent = match rustix::process::geteuid().is_root() {
        true => PathBuf::from(LASTING_OF_ROOT),
        false => state_directory()?,
    };
    Some(parent.join(name))
}

/// The absolute path of a mount point, without symbolic links. The file system that is mounted there may be
/// dead. So the path itself is resolved only if it is a symbolic link, and otherwise only its parent
/// directory is; an error of statx(2) on the mount point is ignored.
///
/// # Errors
/// The path is empty, or there is no current directory.
pub fn mountpoint(path: &Path) -> Result<PathBuf, CliError> {
    let path = absolute(path).usage().at(path.display())?;
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
        && let Ok(parent) = fs::canonicalize(parent)
    {
        let path = parent.join(name);
        // The kernel answers from its cache, so a mount that hangs is not asked.
        let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let is_link = statx(CWD, &path, how, StatxFlags::TYPE)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink);
        return Ok(if is_link { fs::canonicalize(&path).unwrap_or(path) } else { path });
    }
    Ok(path)
}

/// The text of a file that belongs to this user or to root; `None` for any other file, and if it cannot be
/// read. The content of another user's file is not trusted: it could make root wait for any process, or open
/// any file.
pub fn read_trusted(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let own = rustix::process::geteuid().as_raw();
    if !metadata.is_file() || metadata.uid() != own && metadata.uid() != 0 {
        return None;
    }
    let text = fs::read_to_string(path);
    text.inspect_err(|error| tracing::warn!(path = %path.display(), %error, "cannot read the file")).ok()
}

/// A name or path for a terminal: control characters, bytes that are not UTF-8, and backslashes are escaped.
pub fn show_name(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => shown.push_str("\\\\"),
                letter if letter.is_control() => shown.extend(letter.escape_default()),
                letter => shown.push(letter),
            }
        }
        shown.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    shown
}
