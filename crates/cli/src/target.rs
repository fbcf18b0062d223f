//! Arguments that name a file: a path on this machine, or a path in a volume that need not be mounted.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use command::error::{CliError, ErrorAt};
pub(crate) use command::paths::show_name;
use command::registry::{self, Entry};
use inspect::{Operation, PathChecks, QueryError, VolumeTree};
use meta::Volume;
use types::{Errno, Ino};

use crate::url::{Database, MetaUrl};

/// The type of a mount of limenfs, as mountinfo(5) shows it.
const MOUNTED_TYPE: &str = "fuse.limen";

/// A file or directory that an argument names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A path on this machine.
    Local(PathBuf),
    /// A path in a volume, from its root.
    Volume(MetaUrl, Vec<u8>),
}

impl Target {
    /// Parses a path, or a metadata URL with an optional `:/PATH`.
    ///
    /// # Errors
    /// The text looks like a URL but is not a valid metadata URL.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, CliError> {
        let bytes = text.as_bytes();
        let Some((scheme, rest)) = split_at(bytes, b"://").filter(|(scheme, _)| is_scheme(scheme)) else {
            return Ok(Target::Local(text.into()));
        };
        let (url_end, path) = match split_at(rest, b":/") {
            Some((place, _)) => (scheme.len() + 3 + place.len(), &rest[place.len() + 1..]),
            None => (bytes.len(), &b"/"[..]),
        };
        let url = std::str::from_utf8(&bytes[..url_end])
            .map_err(|_| CliError::usage("the metadata URL is not UTF-8").at(text.display()))?;
        Ok(Target::Volume(MetaUrl::parse(url)?, path.to_vec()))
    }

    /// Opens the volume of the target, and finds the file in it. A symbolic link is followed.
    ///
    /// # Errors
    /// The file does not exist; the errors of [`volume_behind`] and [`MetaUrl::open_volume`].
    pub(crate) fn open(&self) -> Result<(Database, Volume, Ino), CliError> {
        match self {
            Target::Local(path) => {
                let found = fs::metadata(path).map_err(|error| CliError::new(error).at(self.show()))?;
                let (database, volume) = volume_behind(path, found.dev())?;
                commit_changes(path);
                Ok((database, volume, Ino(found.ino())))
            }
            Target::Volume(url, path) => {
                let (database, volume) = url.open_volume()?;
                let engine = database.engine();
                let failed = |error: QueryError| CliError::new(error).at(self.show());
                let tree = VolumeTree::new(&*engine, volume.acl);
                let path_checks = PathChecks::find(&tree, path, Operation::Chmod).map_err(failed)?;
                match (path_checks.end, path_checks.target()) {
                    (Ok(()), Some(check)) => Ok((database, volume, Ino(check.access_attrs.ino))),
                    (end, _) => Err(CliError::new(end.err().unwrap_or(Errno::ENOENT)).at(self.show())),
                }
            }
        }
    }

    /// The text for messages, without a password and without control characters.
    pub(crate) fn show(&self) -> String {
        match self {
            Target::Local(path) => show_path(path),
            Target::Volume(url, path) => format!("{url}:{}", show_name(path)),
        }
    }
}

/// Makes the mount of a file commit the changes that it has answered, so that the database has them. An fsync
/// of any directory of the mount does this.
fn commit_changes(path: &Path) {
    let directory = if path.is_dir() { Some(path) } else { path.parent() };
    let opened =
        directory.map(|path| File::open(if path.as_os_str().is_empty() { Path::new(".") } else { path }));
    if let Some(Ok(directory)) = opened {
        // If the fsync fails, the command sees only the changes that are committed.
        let _ = directory.sync_all();
    }
}

/// Opens the volume that is mounted with this device number.
///
/// # Errors
/// The device is not a limenfs mount of this user or root; the volume is in the memory of its mount; its
/// database cannot be opened.
pub(crate) fn volume_behind(path: &Path, device: u64) -> Result<(Database, Volume), CliError> {
    let entry = registered(path, device)?;
    let url = MetaUrl::parse(&entry.url)?;
    if let MetaUrl::Memory(_) = url {
        return Err(CliError::new(format!("the volume is in the memory of process {}", entry.process.pid))
            .at(show_path(path))
            .advise("this command works only on volumes in a database"));
    }
    url.open_volume()
}

/// The mount that a path is on.
///
/// # Errors
/// The path does not exist, or is not on a limenfs mount of this user or root.
pub(crate) fn mount_of(path: &Path) -> Result<Entry, CliError> {
    let metadata = fs::metadata(path).map_err(|error| CliError::new(error).at(show_path(path)))?;
    registered(path, metadata.dev())
}

/// The metadata URL of a volume, from an argument that is the URL itself or a path on a mount.
///
/// # Errors
/// The argument is neither a metadata URL nor a path on a limenfs mount.
pub(crate) fn volume_url(text: &str) -> Result<MetaUrl, CliError> {
    if !text.contains("://")
        && let Ok(metadata) = fs::metadata(text)
        && let Some(entry) = registry::by_device(metadata.dev())
    {
        return MetaUrl::parse(&entry.url);
    }
    MetaUrl::parse(text)
}

/// The mount with this device number. If there is none that this user can use, the error says whether the
/// path is on a limenfs mount of another user.
fn registered(path: &Path, device: u64) -> Result<Entry, CliError> {
    registry::by_device(device).ok_or_else(|| match kind_of_mount(device).as_deref() {
        Some(MOUNTED_TYPE) => {
            CliError::new("the database of this mount is known only to root and to the user that mounted it")
                .at(show_path(path))
                .advise("run the command as that user or as root, or name the volume as META-URL:/PATH")
        }
        kind => not_on_limen(kind, path),
    })
}

/// Requires that a file is on a mount of limenfs, of any user. Messages name `path`.
///
/// # Errors
/// The file does not exist, or is on another file system.
pub(crate) fn require_limen(file: &Path, path: &Path) -> Result<Metadata, CliError> {
    let metadata = fs::symlink_metadata(file).at(show_path(path))?;
    match kind_of_mount(metadata.dev()).as_deref() {
        Some(MOUNTED_TYPE) => Ok(metadata),
        kind => Err(not_on_limen(kind, path)),
    }
}

fn not_on_limen(kind: Option<&str>, path: &Path) -> CliError {
    let what = match kind {
        Some(kind) => format!("not on a limenfs volume, but on {kind}"),
        None => "not on a limenfs volume".to_owned(),
    };
    CliError::new(what).at(show_path(path))
}

/// The attributes of the file that an argument names, for a command that takes no metadata URL. A symbolic
/// link is not followed.
///
/// # Errors
/// The file does not exist. If the text is a metadata URL, the message says that a path is needed.
pub(crate) fn attributes_of(path: &Path) -> Result<Metadata, CliError> {
    fs::symlink_metadata(path).map_err(|error| match Target::parse(path.as_os_str()) {
        Ok(Target::Volume(url, _)) => {
            CliError::usage("a metadata URL, but this command needs a path on a mount").at(url)
        }
        _ => CliError::new(error).at(show_path(path)),
    })
}

/// The type of the file system with this device number, as mountinfo(5) shows it.
fn kind_of_mount(device: u64) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    line.split_once(" - ")?.1.split(' ').next().map(str::to_owned)
}

/// A path for JSON: as text, and as hexadecimal bytes if it is not UTF-8.
pub(crate) fn path_to_json(path: &[u8]) -> (String, Option<String>) {
    let text = String::from_utf8_lossy(path).into_owned();
    let bytes =
        std::str::from_utf8(path).is_err().then(|| path.iter().map(|byte| format!("{byte:02x}")).collect());
    (text, bytes)
}

fn show_path(path: &Path) -> String {
    show_name(path.as_os_str().as_bytes())
}

/// The path of a name in a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}

fn split_at<'a>(text: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let index = text.windows(at.len()).position(|window| window == at)?;
    Some((&text[..index], &text[index + at.len()..]))
}

/// Whether the text is a URL scheme (RFC 3986 section 3.1).
fn is_scheme(text: &[u8]) -> bool {
    let is_of = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    text.first().is_some_and(u8::is_ascii_alphabetic) && text.iter().all(is_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, CliError> {
        Target::parse(OsStr::new(text)).map(|target| match target {
            Target::Local(path) => format!("local {}", path.display()),
            Target::Volume(url, path) => format!("{url} {}", String::from_utf8(path).unwrap()),
        })
    }

    #[test]
    fn paths_and_volume_urls_are_distinguished() {
        for (text, expected) in [
            ("/mnt/a", "local /mnt/a"),
            ("a:/b", "local a:/b"),
            ("./sqlite:///v.db", "local ./sqlite:///v.db"),
            ("sqlite:///v.db", "sqlite:///v.db /"),
            ("sqlite:///v.db:/", "sqlite:///v.db /"),
            ("sqlite:///v.db:/a/c:/d", "sqlite:///v.db /a/c:/d"),
            ("redis://:secret@h:7/1:/a@b", "redis://h:7/1 /a@b"),
            ("redis+unix:///run/r.sock:/x", "redis+unix:///run/r.sock /x"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
        }
        for text in ["oracle://h:/a", "sqlite://v.db:/a", "nothing://"] {
            assert_eq!(parse(text).unwrap_err().exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        assert_eq!(show_name(b"a\x1b[2J\n\\\xff b"), "a\\u{1b}[2J\\n\\\\\\xff b");
        assert_eq!(path_to_json(b"a\xff").1.as_deref(), Some("61ff"));
        assert_eq!(path_to_json("ä".as_bytes()), ("ä".to_owned(), None));
        for (text, shown) in
            [(&b"/a\n\xff"[..], "/a\\n\\xff"), (b"sqlite:///v.db:/\x1b[2J", "sqlite:///v.db:/\\u{1b}[2J")]
        {
            assert_eq!(
                Target::parse(OsStr::from_bytes(text)).map(|target| target.show()).as_deref(),
                Ok(shown)
            );
        }
    }
}
