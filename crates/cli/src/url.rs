//! Metadata URLs: parses them and opens the engine. Only this module, `schemes` and `network` choose an
//! engine. Other modules of this crate use only parts of `engine_sqlite`: its lock, its schema version and,
//! in `journals`, its open engine.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::Meta;
use command::error::{CliError, ErrorAt};
use command::registry;
use command::statistics::commit_answered;
use engine_sqlite::{LockError, MountLock, OpenError, Options, SqliteEngine};
use journal::Directory;
use meta::{Engine, MemEngine, Volume, VolumeError};

use crate::journals;
use crate::network::{Network, NetworkUrl, without_password};
use crate::parse::parse_name;
use crate::schemes::{EngineKind, Scheme};

const KNOWN: &str =
    "write sqlite:///absolute/path.db, mem:// for a trial, or the URL of a server such as redis://HOST/";

/// The URL of a volume's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetaUrl {
    Sqlite(PathBuf),
    /// The name of a volume in the memory of its mount.
    Memory(String),
    Network(NetworkUrl),
}

/// An open engine.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Sqlite(Arc<SqliteEngine>),
    Memory(Arc<MemEngine>),
    Network(Network),
}

impl MetaUrl {
    /// # Errors
    /// The URL is invalid. The message says what to write instead, and contains no password.
    pub(crate) fn parse(text: &str) -> Result<Self, CliError> {
        let error = |what: String| CliError::usage(what).at(without_password(text)).advise(KNOWN);
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(match text.starts_with('/') {
                true => CliError::usage("this is a path, not a metadata URL")
                    .at(text)
                    .advise(format!("write sqlite://{text}")),
                false => error("this is not a metadata URL".to_owned()),
            });
        };
        match Scheme::find(scheme).map(|scheme| scheme.engine) {
            Some(EngineKind::Sqlite) => {
                engine_sqlite::parse_url(text).map(MetaUrl::Sqlite).map_err(CliError::usage)
            }
            Some(EngineKind::Memory) if rest.is_empty() => Ok(MetaUrl::Memory("mem".to_owned())),
            Some(EngineKind::Memory) => parse_name(rest).map(MetaUrl::Memory).map_err(error),
            Some(EngineKind::Server(server)) => NetworkUrl::parse(server, text).map(MetaUrl::Network),
            None => Err(error(format!("this build of limen has no metadata engine '{scheme}'"))),
        }
    }

    pub(crate) fn engine(&self) -> &'static str {
        let kind = match self {
            MetaUrl::Sqlite(_) => EngineKind::Sqlite,
            MetaUrl::Memory(_) => EngineKind::Memory,
            MetaUrl::Network(url) => EngineKind::Server(url.server()),
        };
        kind.name()
    }

    /// Opens the database. With `create`, creates it if it does not exist; without, mounts of this user and this URL on this
    /// machine first commit the changes that they have answered.
    ///
    /// # Errors
    /// The database does not exist, is not a limenfs database, has a newer version, or cannot be read.
    pub(crate) fn open(&self, create: bool) -> Result<Database, CliError> {
        if !create {
            self.commit_answered();
        }
        match self {
            MetaUrl::Sqlite(path) => {
                let options = Options { create, ..Options::default() };
                let engine = SqliteEngine::open(path, &options).map_err(|error| self.open_error(&error))?;
                let engine = Arc::new(engine);
                if !create {
                    journals::replay_unmounted(&engine);
                }
                Ok(Database::Sqlite(engine))
            }
            MetaUrl::Memory(_) => Ok(Database::Memory(Arc::default())),
            MetaUrl::Network(url) => url.open(create).map(Database::Network),
        }
    }

    /// A program changes a file on a mount, and then a command reads the database: it must see the change.
    fn commit_answered(&self) {
        let shown = self.to_string();
        let mounts =
            registry::all().into_iter().filter(|entry| entry.url == shown && entry.process.is_alive());
        mounts.for_each(|entry| commit_answered(&entry));
    }

    /// Opens the database of an existing volume and reads the volume's settings.
    ///
    /// # Errors
    /// Those of [`MetaUrl::open`]; the volume is in the memory of another process; the database holds no
    /// volume, or one that this version of limen cannot read.
    pub(crate) fn open_volume(&self) -> Result<(Database, Volume), CliError> {
        if let MetaUrl::Memory(_) = self {
            return Err(CliError::new("a volume in memory exists only within its mount")
                .at(self)
                .advise("mount it with limen mount, or use sqlite:///absolute/path.db"));
        }
        let database = self.open(false)?;
        let volume = self.volume(&*database.engine())?;
        Ok((database, volume))
    }

    /// The settings of the volume in a database.
    ///
    /// # Errors
    /// The database holds no volume, or one that this version of limen cannot read.
    pub(crate) fn volume(&self, engine: &dyn Engine) -> Result<Volume, CliError> {
        Volume::load(engine).map_err(|error| self.volume_error(error))
    }

    /// A client of the volume in a database, with a cache for this number of records.
    ///
    /// # Errors
    /// Those of [`MetaUrl::volume`].
    pub(crate) fn client(&self, engine: Arc<dyn Engine>, cached_records: usize) -> Result<Meta, CliError> {
        Meta::open(engine, cached_records).map_err(|error| self.volume_error(error))
    }

    /// Turns an error of loading or formatting a volume into a message with advice.
    pub(crate) fn volume_error(&self, error: VolumeError) -> CliError {
        let failed = match &error {
            VolumeError::NotFormatted => return self.not_formatted(),
            VolumeError::Exists { name, created } => {
                return CliError::new(format!("there is a volume here already, '{name}', created {created}"))
                    .at(self)
                    .advise("mount it, or remove it first with limen destroy");
            }
            _ => CliError::new(&error).at(self),
        };
        match error {
            VolumeError::Loading => failed.advise(format!(
                "complete it with limen load {self} FILE, or remove what is there with limen load --discard {self}"
            )),
            VolumeError::Newer { .. } => {
                failed.advise("use the version of limen that wrote it, or a newer one")
            }
            VolumeError::Damaged { .. } => {
                failed.advise("restore the database from a backup")
            }
            _ => failed,
        }
    }

    fn not_formatted(&self) -> CliError {
        CliError::new("there is no volume here yet")
            .at(self)
            .advise(format!("create one with limen format {self} NAME"))
    }

    fn open_error(&self, error: &OpenError) -> CliError {
        match error {
            OpenError::Missing(_) => self.not_formatted(),
            OpenError::NotLimenfs(_) => {
                CliError::new("this file is not a limenfs database").at(self).advise("name another file")
            }
            OpenError::Newer { found, known, .. } => CliError::new(format!(
                "the database has schema version {found}, and this limen supports versions up to {known}"
            ))
            .at(self)
            .advise("use the version of limen that wrote it, or a newer one"),
            OpenError::Io { error, .. } => {
                CliError::new(format!("cannot open the database: {error}")).at(self)
            }
            OpenError::Sqlite { error, .. } => CliError::new(format!("cannot open the database: {error}"))
                .at(self)
                .advise("check that its directory exists and is writable"),
        }
    }
}

/// The URL in its normal form, without a password.
impl fmt::Display for MetaUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetaUrl::Sqlite(path) => write!(f, "sqlite://{}", path.display()),
            MetaUrl::Memory(name) => write!(f, "mem://{name}"),
            MetaUrl::Network(url) => write!(f, "{url}"),
        }
    }
}

impl Database {
    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        match self {
            Database::Sqlite(engine) => Arc::clone(engine) as Arc<dyn Engine>,
            Database::Memory(engine) => Arc::clone(engine) as Arc<dyn Engine>,
            Database::Network(network) => Arc::clone(&network.engine),
        }
    }

    /// The file of an embedded database.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Database::Sqlite(engine) => Some(engine.path()),
            Database::Memory(_) | Database::Network(_) => None,
        }
    }

    /// Locks the database file, exclusively or `shared`. `None` for engines without such a lock.
    ///
    /// # Errors
    /// Another process holds a lock that excludes this one.
    pub(crate) fn lock(&self, shared: bool) -> Result<Option<MountLock>, LockError> {
        match self {
            Database::Sqlite(engine) if shared => engine.lock_shared().map(Some),
            Database::Sqlite(engine) => engine.lock_exclusive().map(Some),
            // On a database server, mounts find each other by their sessions. No other process sees a volume
            // in memory.
            Database::Memory(_) | Database::Network(_) => Ok(None),
        }
    }

    /// Continues to hold the exclusive lock of another process, which passed its file.
    pub(crate) fn take_over_lock(&self, file: File) -> Result<Option<MountLock>, LockError> {
        match self {
            Database::Sqlite(engine) => engine.take_over_lock(file).map(Some),
            Database::Memory(_) | Database::Network(_) => Ok(None),
        }
    }
}

/// Removes the database at `path`, which no process has open.
///
/// # Errors
/// The files cannot be removed.
pub(crate) fn remove_database(path: &Path) -> Result<(), CliError> {
    // Another volume may be created at this path as soon as the database is removed, so the journals are
    // removed first.
    let removed = Directory::of_database(path).remove().and_then(|()| SqliteEngine::remove_files(path));
    removed.what("cannot remove the database").at(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_known_engines_are_parsed_and_shown() {
        for (text, shown) in [
            ("sqlite:///a/b.db", "sqlite:///a/b.db"),
            ("sqlite3:///a/b.db", "sqlite:///a/b.db"),
            ("mem://", "mem://mem"),
            ("mem://x", "mem://x"),
        ] {
            assert_eq!(MetaUrl::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn errors_for_other_urls_say_what_to_write() {
        for text in ["oracle://h/1", "/a/b.db", "b.db", "", "sqlite://a.db", "mem://A B", "://"] {
            let error = MetaUrl::parse(text).unwrap_err();
            assert!(error.to_string().contains("write sqlite:///"), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn errors_do_not_contain_passwords() {
        for (text, shown) in [
            ("oracle://u:secret@h/1", "oracle://u@h/1"),
            ("x://:secret@h", "x://h"),
            ("x://u:sec/ret@h", "x://u@h"),
            ("x://u:s@ecret@h", "x://u@h"),
        ] {
            let error = MetaUrl::parse(text).unwrap_err().to_string();
            assert!(!error.contains("ecret") && !error.contains("ret@"), "{error}");
            assert!(error.contains(shown), "{error}");
        }
    }
}
