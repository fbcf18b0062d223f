//! `limen backup`: lists, makes and restores the backups of a volume's metadata in its object store.

use std::sync::Arc;

use backup::Manifest;
use chunk::{
    BackupId, BlockStore, Encryption, FILE, MARKER, MEMORY, StorageConfig, StoreOptions, StoredBackup,
};
use clap::{Subcommand, ValueHint};
use command::error::{CliError, ErrorAt};
use command::output::{self, Columns};
use command::units::show_size;
use dump::CheckedDump;
use meta::Volume;
use serde_json::{Value, json};
use types::{Time, counted};

use crate::adopt::{adopt_store, refuse_used_store};
use crate::bucket::named_store;
use crate::confirm::confirm;
use crate::dump::dump_error;
use crate::format::storage_parser;
use crate::load::{self, Input};
use crate::maintenance::Tool;
use crate::marker::{self, Marker};
use crate::records::usage;
use crate::status::rfc3339;
use crate::store::{KeyArgs, key_source, open_store, open_without_key, store_error, unlock};
use crate::target::volume_url;
use crate::url::MetaUrl;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mount of the volume writes all metadata to the volume's object store every hour, or as often as limen config
--backup-interval says. If the database is lost, the object store is enough to restore the volume.

The newest 24 backups are kept, and also one of each hour of the last day, one of each day of the last month, and one of each
month of the last year. Backups are compressed; those of an encrypted volume are encrypted.")]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the backups in an object store
    Ls(ListArgs),
    /// Make a backup now
    Create(CreateArgs),
    /// Restore a volume from a backup into an empty database
    Restore(RestoreArgs),
}

/// The location of an object store.
#[derive(Debug, clap::Args)]
struct StoreLocationArgs {
    /// The kind of object store
    #[arg(long, value_name = "KIND", value_parser = storage_parser(), default_value = FILE)]
    storage: String,
    /// Where the objects are, as for limen format
    #[arg(long, value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    bucket: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  limen backup ls sqlite:///var/lib/limen/home.db
  limen backup ls --storage s3 --bucket s3://mybucket/cloud
      if the database is lost")]
struct ListArgs {
    /// Where the volume's metadata is, or a path on a mount of it, instead of --bucket
    #[arg(value_name = "META-URL|PATH", required_unless_present = "bucket", conflicts_with = "bucket")]
    url: Option<String>,
    #[command(flatten)]
    place: StoreLocationArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  limen backup create sqlite:///var/lib/limen/home.db")]
struct CreateArgs {
    /// Where the volume's metadata is, or a path on a mount of the volume
    #[arg(value_name = "META-URL|PATH")]
    url: String,
    #[command(flatten)]
    keys: KeyArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The database must not hold a volume. The backup is checked as a whole before anything is stored. If the command is
interrupted, run it again: it goes on where it ended.

The restored volume is as it was when the backup was made. Later changes are lost: files that were created later do
not exist, and reads of files that were changed or removed later can fail with EIO. limen fsck --data names them, and
limen gc --delete removes objects that the volume does not use.

Only one database may use the objects. So from then on, no other database of the volume can be mounted, and no mount of one
may be running. With --no-adopt the objects stay with the other database, and the restored volume cannot be mounted.

Examples:
  limen backup restore postgres://limen@db.example.org/limen --storage s3 \\
      --bucket s3://mybucket/cloud --key-file cloud.key
  limen backup restore sqlite:///tmp/look.db --bucket /srv/home.data --id 1795472189123456789 \\
      --no-adopt")]
struct RestoreArgs {
    /// Where to store the metadata: a database without a volume
    #[arg(value_name = "META-URL")]
    url: String,
    #[command(flatten)]
    place: StoreLocationArgs,
    /// The backup, as limen backup ls shows it [default: the newest one of the database that uses the
    /// objects]
    #[arg(long, value_name = "ID", value_parser = parse_backup, allow_negative_numbers = true)]
    id: Option<u64>,
    #[command(flatten)]
    keys: KeyArgs,
    /// Read all records back, and compare them with the backup
    #[arg(long)]
    verify: bool,
    /// Leave the objects to the database that uses them now; limen config --adopt-store takes them over later
    #[arg(long)]
    no_adopt: bool,
    /// Do not ask for the volume's name as a confirmation
    #[arg(short, long)]
    yes: bool,
    /// Take the objects over although a mount of this machine uses them by another database; that mount can
    /// no longer store data. Also wait 90 seconds, and remove sessions that are not renewed in that time
    #[arg(long, conflicts_with = "no_adopt")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_backup(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not the number of a backup: limen backup ls shows the numbers"))
}

pub(crate) fn run(args: &BackupArgs) -> Result<(), CliError> {
    match &args.action {
        Action::Ls(args) => list(args),
        Action::Create(args) => create(args),
        Action::Restore(args) => restore(args),
    }
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let (store, bucket) = match &args.url {
        Some(url) => {
            let url = volume_url(url)?;
            let (_, volume) = url.open_volume()?;
            refuse_memory(&volume, &url)?;
            (open_without_key(&volume)?, volume.bucket)
        }
        None => {
            let place = StoreLocation::new(&args.place)?;
            (place.open(None)?, place.config.bucket)
        }
    };
    let marker = marker::of(&store, &bucket)?;
    let mut found = Vec::new();
    for backup in store.backups()? {
        let manifest = if backup.is_complete { Manifest::read(&store, backup.id) } else { Ok(None) };
        found.push((backup.id, manifest.map_err(|error| error.to_string())));
    }
    let marker = marker.as_ref();
    let json = || found.iter().map(|found| to_json(found, marker)).collect();
    output::result(args.json, json, || to_text(&found, marker))
}

/// A backup with its manifest. The manifest is `None` if the backup is not complete, and an error if it
/// cannot be read.
type Found = (BackupId, Result<Option<Manifest>, String>);

/// Whether the database that made the backup is the one to which the store belongs now. Without a marker,
/// that database is unknown, and the result is true.
fn is_of_owner(manifest: &Manifest, marker: Option<&Marker>) -> bool {
    marker.is_none_or(|marker| marker.loaded == manifest.loaded)
}

fn to_json((backup, manifest): &Found, marker: Option<&Marker>) -> Value {
    let (manifest, error) = match manifest {
        Ok(manifest) => (manifest.as_ref(), None),
        Err(error) => (None, Some(error)),
    };
    json!({
        "id": backup.0,
        "began": rfc3339(time(*backup)),
        "complete": manifest.is_some(),
        "error": error,
        "volume": manifest.map(|manifest| &manifest.name),
        "uuid": manifest.map(|manifest| &manifest.volume),
        "inodes": manifest.map(|manifest| manifest.inodes),
        "bytes": manifest.map(|manifest| manifest.bytes),
        "encrypted": manifest.map(|manifest| !manifest.encryption.is_empty()),
        "of_this_database": manifest.map(|manifest| is_of_owner(manifest, marker)),
    })
}

fn to_text(found: &[Found], marker: Option<&Marker>) -> String {
    if found.is_empty() {
        return "There are no backups.\n".to_owned();
    }
    let mut columns = Columns::new(3, &["ID", "BEGAN", "VOLUME", "INODES", "SIZE"]);
    for (backup, manifest) in found {
        let (id, began) = (backup.0.to_string(), time(*backup).to_string());
        columns.line(match manifest {
            Ok(Some(manifest)) => {
                let other = if is_of_owner(manifest, marker) { "" } else { " (another database)" };
                let name = format!("{}{other}", manifest.name);
                [id, began, name, manifest.inodes.to_string(), show_size(manifest.bytes)]
            }
            Ok(None) => [id, began, "(not complete)".to_owned(), String::new(), String::new()],
            Err(error) => [id, began, format!("(unusable: {error})"), String::new(), String::new()],
        });
    }
    columns.render()
}

fn create(args: &CreateArgs) -> Result<(), CliError> {
    let url = volume_url(&args.url)?;
    let (database, volume) = url.open_volume()?;
    refuse_memory(&volume, &url)?;
    let store = open_store(&volume, &args.keys, StoreOptions { cache_bytes: 0, ..StoreOptions::default() })?;
    let check_owner = || marker::verify(&volume, &store).map(drop).map_err(|failed| failed.to_string());
    marker::verify(&volume, &store)?;
    let engine = database.engine();
    let bar = output::progress_of("inodes", usage(&*engine).at(&url)?.inodes);
    let made = backup::create(&engine, &volume, &store, &check_owner, &mut |inodes| {
        bar.set_position(inodes);
        Ok(())
    });
    bar.finish_and_clear();
    let (backup, manifest) = made.map_err(|error| dump_error(&error, &url))?;
    let (name, size) = (&manifest.name, show_size(manifest.bytes));
    let inodes = counted(manifest.inodes, "inode", "inodes");
    let text = format!("Backed up volume '{name}': {inodes}, {size}, as backup {}.\n", backup.0);
    output::result(args.json, || to_json(&(backup, Ok(Some(manifest.clone()))), None), || text)?;
    if let Err(error) = backup::remove_old(&store, backup) {
        output::note(format!("cannot remove old backups: {}", store_error(&volume, &error)));
    }
    Ok(())
}

fn restore(args: &RestoreArgs) -> Result<(), CliError> {
    let url = MetaUrl::parse(&args.url)?;
    if let MetaUrl::Memory(_) = url {
        return Err(CliError::usage("a volume in memory exists only within its mount").at(&url));
    }
    let place = StoreLocation::new(&args.place)?;
    let store = place.open(None)?;
    let marker = marker::of(&store, &place.config.bucket)?;
    let (backup, manifest) = choose(&store, &place, args.id, marker.as_ref())?;
    let name = manifest.name.clone();
    if let Some(other) = marker.filter(|marker| marker.uuid != manifest.volume) {
        let other = other.name;
        let what =
            format!("the backup is of volume '{name}', but the object store belongs to volume '{other}'");
        return Err(CliError::new(what)
            .at(&place.config.bucket)
            .advise("check --bucket, or choose another backup with --id"));
    }
    let encryption = key(&manifest, &args.keys)?;
    let store = place.open(encryption)?;
    if !args.no_adopt && !args.force {
        refuse_used_store(&url, &name, &manifest.volume)?;
    }
    if !args.yes && !args.no_adopt {
        let began = time(backup);
        confirm(
            &name,
            &format!(
                "volume '{name}' would be restored as of {began}, and no other database could use its objects"
            ),
            &format!(
                "This restores volume '{name}' as of {began}. From then on, no other database can use its objects."
            ),
            "nothing was changed",
        )?;
    }
    let input = Input::Backup(store, backup, manifest.clone());
    let StorageConfig { storage, bucket } = &place.config;
    let (database, checked) = load::load(&url, &input, args.verify, |checked| {
        refuse_other(&manifest, checked)?;
        checked.move_objects(storage, bucket);
        Ok(())
    })?;
    let volume = url.volume(&*database.engine())?;
    if !args.no_adopt {
        adopt_store(
            &url,
            &database,
            &volume,
            Tool { name: "limen backup restore", force: Some(args.force) },
        )?;
    }
    let bare = place.open(None)?;
    let owner = marker::of(&bare, &place.config.bucket)?;
    let inodes = checked.tail.inodes;
    output::result(
        args.json,
        || {
            json!({
                "volume": name,
                "url": url.to_string(),
                "id": backup.0,
                "began": rfc3339(time(backup)),
                "inodes": inodes,
                "adopted": !args.no_adopt,
            })
        },
        || {
            let next = match args.no_adopt {
                true => match owner {
                    Some(owner) if owner.loaded == volume.loaded => {
                        format!(
                            "Its objects belong to this database, because of an earlier command. To check them:\n\
                                 limen fsck --data {url}\n"
                        )
                    }
                    Some(_) => format!(
                        "It cannot be mounted, because its objects belong to another database. When no mount uses \
                         that any more:\nlimen config --adopt-store {url}\n"
                    ),
                    None => format!(
                        "It cannot be mounted, because its object store is not marked as that of any database. To \
                         mark it:\nlimen config --adopt-store {url}\n"
                    ),
                },
                false => format!(
                    "Later changes are lost. To find files whose data is gone, and then remove objects of later data:\n\
                     limen fsck --data {url}\nlimen gc --delete {url}\n"
                ),
            };
            format!(
                "Restored volume '{name}' as of {}: {} in {url}.\n{next}",
                time(backup),
                counted(inodes, "inode", "inodes")
            )
        },
    )
}

/// Chooses a complete backup: the one with the number `id`; without `id`, the newest one made by the database
/// that owns the store. If that database has made none, chooses the backup from which it was restored. The
/// newest backup in the store is not always the right one, because mounts of another database of the volume
/// may have made it. Without a marker, the owner is unknown: chooses the newest backup if one database has
/// made all backups, and fails otherwise.
fn choose(
    store: &BlockStore,
    place: &StoreLocation,
    id: Option<u64>,
    marker: Option<&Marker>,
) -> Result<(BackupId, Manifest), CliError> {
    let all = store.backups()?;
    let bucket = &place.config.bucket;
    let error = |what: String| CliError::new(what).at(bucket);
    let manifest =
        |id: BackupId| Manifest::read(store, id).what(format!("cannot use backup {}", id.0)).at(bucket);
    if let Some(id) = id {
        let Some(found) = all.iter().find(|backup| backup.id.0 == id) else {
            return Err(none(error(format!("there is no backup {id}")), &all));
        };
        return match manifest(found.id)? {
            Some(manifest) => Ok((found.id, manifest)),
            None => Err(error(format!("backup {id} is not complete")).advise("choose another one")),
        };
    }
    let other = "limen backup ls shows those of other databases; choose one with --id";
    let (mut chosen, mut are_others): (Option<(BackupId, Manifest)>, bool) = (None, false);
    for backup in all.iter().filter(|backup| backup.is_complete) {
        // The backup may have been removed meanwhile.
        let Some(manifest) = manifest(backup.id)? else { continue };
        let is_candidate = match (marker, &chosen) {
            (Some(marker), _) if marker.loaded == manifest.loaded => return Ok((backup.id, manifest)),
            (Some(marker), _) => origin(&marker.loaded) == Some(backup.id),
            (None, Some((_, newest))) if newest.loaded != manifest.loaded => {
                let what = format!(
                    "the backups are of several databases, and the object {MARKER}, which names the right one, is missing"
                );
                return Err(error(what).advise(other));
            }
            (None, newest) => newest.is_none(),
        };
        match is_candidate {
            true => chosen = Some((backup.id, manifest)),
            false => are_others = true,
        }
    }
    match chosen {
        Some(chosen) => Ok(chosen),
        None if are_others => {
            let what = "no backup was made by the database that the object store belongs to".to_owned();
            Err(error(what).advise(other))
        }
        None => Err(none(error("there is no complete backup".to_owned()), &all)),
    }
}

/// Adds advice to an error about a missing backup.
fn none(error: CliError, all: &[StoredBackup]) -> CliError {
    match all.is_empty() {
        true => error.advise("check --storage and --bucket: there are no backups at all"),
        false => error.advise("limen backup ls shows what there is"),
    }
}

/// The backup from which the database with this [`Volume::loaded`] was restored. `loaded` is a random text, a
/// space, and the id of the dump. If the dump is a backup, its id begins with the number of the backup.
fn origin(loaded: &str) -> Option<BackupId> {
    let (_random, dump) = loaded.split_once(' ')?;
    dump.split_once('-')?.0.parse().ok().map(BackupId)
}

/// The key of an encrypted backup.
fn key(manifest: &Manifest, keys: &KeyArgs) -> Result<Option<Encryption>, CliError> {
    if manifest.encryption.is_empty()
        && let Some(source) = key_source(keys)
    {
        // Otherwise, somebody who can write to the object store, but does not have the key, could replace an
        // encrypted backup by one that is not encrypted.
        return Err(CliError::usage("the backup is not encrypted").at(source).advise(format!(
            "if the volume was encrypted, the object store was changed; if it never was, omit {source}"
        )));
    }
    let (name, encryption) = (manifest.name.clone(), manifest.encryption.clone());
    unlock(&Volume { encryption, ..Volume::in_memory(&name) }, keys)
}

/// Fails if the manifest is not that of the dump. Manifests are not encrypted, so anybody who can write to
/// the object store can change them.
fn refuse_other(manifest: &Manifest, checked: &CheckedDump) -> Result<(), CliError> {
    let Volume { uuid, encryption, .. } = &checked.volume;
    match *uuid == manifest.volume && *encryption == manifest.encryption {
        true => Ok(()),
        false => Err(CliError::new("the manifest of the backup was changed").advise("choose another backup")),
    }
}

fn refuse_memory(volume: &Volume, url: &MetaUrl) -> Result<(), CliError> {
    match volume.storage == MEMORY {
        true => Err(CliError::usage(
            "a volume with --storage memory has no backups: its objects end with its mount",
        )
        .at(url)),
        false => Ok(()),
    }
}

/// The location of an object store that the command line names.
#[derive(Debug)]
struct StoreLocation {
    config: StorageConfig,
}

impl StoreLocation {
    fn new(args: &StoreLocationArgs) -> Result<StoreLocation, CliError> {
        let Some(bucket) = &args.bucket else {
            return Err(CliError::usage("a restore needs the object store")
                .advise("name it with --storage and --bucket"));
        };
        if args.storage == MEMORY {
            return Err(CliError::usage("objects in memory end with their mount").at("--storage memory"));
        }
        Ok(StoreLocation { config: named_store(&args.storage, bucket)? })
    }

    fn open(&self, encryption: Option<Encryption>) -> Result<Arc<BlockStore>, CliError> {
        let options = StoreOptions { cache_bytes: 0, encryption, ..StoreOptions::default() };
        BlockStore::open_with(&self.config, options)
            .at(&self.config.bucket)
            .advise("check --storage and --bucket")
    }
}

/// When a backup began.
fn time(backup: BackupId) -> Time {
    Time::from_nanos(i64::try_from(backup.0).unwrap_or(i64::MAX))
}
