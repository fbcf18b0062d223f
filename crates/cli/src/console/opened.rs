//! The volume, opened for one page.

use std::path::PathBuf;
use std::sync::Arc;

use ::console::Failure;
use command::error::CliError;
use inspect::{Operation, PathChecks, QueryError, VolumeTree};
use meta::{Engine, EngineError, Volume};
use types::Ino;

use crate::sessions::sessions;
use crate::sids::Sids;
use crate::status::mount_here;
use crate::target::{Target, show_name};
use crate::url::{Database, MetaUrl};
use crate::users::{Person, Users};

/// The database of the volume that the console shows, and the file of names of Windows identities.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) url: MetaUrl,
    pub(super) database: Database,
    pub(super) sid_names: Option<PathBuf>,
}

/// The volume with its settings and the names of users, as they are now.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    pub(super) place: &'a Place,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) volume: Volume,
    pub(super) users: Users,
}

impl Place {
    pub(super) fn open(&self) -> Result<Opened<'_>, Failure> {
        let engine = self.database.engine();
        let volume = self.url.volume(&*engine).map_err(failed)?;
        Ok(Opened { place: self, engine, volume, users: self.users().map_err(failed)? })
    }

    /// Names of users, groups and Windows identities.
    ///
    /// # Errors
    /// The file of names cannot be read.
    pub(super) fn users(&self) -> Result<Users, CliError> {
        let target = Target::Volume(self.url.clone(), b"/".to_vec());
        Ok(Users::with_sids(Sids::new(target, self.sid_names.as_deref())?))
    }
}

impl Opened<'_> {
    pub(super) fn tree(&self) -> VolumeTree<'_> {
        VolumeTree::of(&*self.engine, &self.volume)
    }

    /// A user by name, number or SID, with groups separated by commas if given.
    pub(super) fn person(&self, user: &str, groups: Option<&str>) -> Result<Person, Failure> {
        let groups: Option<Vec<String>> =
            groups.map(|groups| groups.split(',').map(|group| group.trim().to_owned()).collect());
        self.users.person(user, groups.as_deref()).map_err(wrong)
    }

    /// The inode at a path, and the path without symbolic links.
    pub(super) fn find(&self, path: &[u8]) -> Result<(Ino, Vec<u8>), Failure> {
        let path_checks = PathChecks::find(&self.tree(), path, Operation::Chmod).map_err(unanswered)?;
        match (path_checks.end, path_checks.target()) {
            (Ok(()), Some(check)) => Ok((Ino(check.access_attrs.ino), check.path.clone())),
            (Err(errno), _) => Err(Failure::Wrong(format!("{}: {errno}", show_name(path)))),
            (Ok(()), None) => Err(Failure::Wrong(format!("{}: there is no such file", show_name(path)))),
        }
    }

    /// Where the volume is mounted on this machine, if it is. Commands for the mount are shown with this
    /// path.
    pub(super) fn mountpoint(&self) -> Option<String> {
        let sessions = sessions(&*self.engine).ok()?;
        sessions.iter().find_map(mount_here).map(|mount| mount.mountpoint.to_string_lossy().into_owned())
    }

    /// A path of the volume as a word of a command: below the mount point if the volume is mounted here.
    pub(super) fn word(&self, path: &[u8]) -> String {
        let mountpoint = self.mountpoint().unwrap_or_default();
        let path = if path == b"/" && !mountpoint.is_empty() { b"" } else { path };
        quoted(&[mountpoint.trim_end_matches('/').as_bytes(), path].concat())
    }
}

/// A word for a shell.
pub(super) fn quoted(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:=@%".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return show_name(word);
    }
    if word.iter().any(|byte| byte.is_ascii_control()) || std::str::from_utf8(word).is_err() {
        // The form of bash(1), "QUOTING".
        let escape = |byte: &u8| match byte {
            b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
            b' '..=b'~' => char::from(*byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        };
        return format!("$'{}'", word.iter().map(escape).collect::<String>());
    }
    format!("'{}'", String::from_utf8_lossy(word).replace('\'', "'\\''"))
}

pub(super) fn failed(error: CliError) -> Failure {
    Failure::Failed(error.to_string())
}

pub(super) fn engine_failed(error: EngineError) -> Failure {
    Failure::Failed(error.to_string())
}

/// The failure of a request with an invalid field.
pub(super) fn wrong(error: CliError) -> Failure {
    Failure::Wrong(error.to_string())
}

/// The failure of a query: the database fails, or the path of the request is wrong.
pub(super) fn unanswered(error: QueryError) -> Failure {
    match error {
        QueryError::Engine(error) => engine_failed(error),
        error => Failure::Wrong(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_safe_in_a_shell() {
        for (word, shown) in [
            (&b"/a/b-c.txt"[..], "/a/b-c.txt"),
            (b"/a b", "'/a b'"),
            (b"/it's; rm -rf $HOME", "'/it'\\''s; rm -rf $HOME'"),
            (b"/a\n'\xff", "$'/a\\x0a\\'\\xff'"),
            (b"", "''"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
