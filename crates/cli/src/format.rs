//! `limen format`: creates a volume, after it has checked everything that could fail.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use acl::sid_rules::SidRules;
use chunk::{
    Cipher, Compression, EncryptionSettings, FILE, MARKER, MEMORY, STORES, StorageConfig, StoreOptions,
};
use clap::ValueHint;
use clap::builder::{PossibleValue, PossibleValuesParser};
use command::error::{CliError, ErrorAt};
use command::output;
use command::units::{parse_size, parse_whole};
use meta::{AclKind, DEFAULT_BACKUP_SECS, DEFAULT_INLINE_BYTES, Engine, Volume, VolumeError};
use ops::{Authority, SetAttr};
use types::{Ino, Time};

use crate::bucket::{named_store, refuse_range};
use crate::marker;
use crate::parse::{Choice, one_of, parse_inline, parse_name};
use crate::store::{self, KeyArgs, open_store, store_error};
use crate::url::MetaUrl;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  limen format sqlite:///var/lib/limen/home.db home
      objects go to /var/lib/limen/home.data
  limen format sqlite:///srv/big.db big --bucket /data/big --capacity 10T --inodes 50000000
  limen format sqlite:///srv/plain.db plain --acl off
  limen format sqlite:///srv/cloud.db cloud --storage s3 --bucket s3://mybucket/cloud \\
      --compress zstd --encrypt aes-256-gcm --key-file cloud.key
  limen format redis://db.example/ disks --bucket 'shards:/mnt/disk{0..3}/limen'
      objects are spread over four directories")]
pub(crate) struct FormatArgs {
    /// Where to store the metadata, e.g. sqlite:///var/lib/limen/home.db; limen --help lists the kinds of
    /// URLs
    #[arg(value_name = "META-URL")]
    url: String,
    /// The volume's name: 1 to 63 characters of a-z, 0-9, - and _
    #[arg(value_parser = parse_name)]
    name: String,
    /// The kind of object store for the file data
    #[arg(long, value_name = "KIND", value_parser = storage_parser(), default_value = FILE)]
    storage: String,
    /// Where to store the objects; must be empty. With --storage file a directory [default: the database's
    /// path with the suffix .data instead of .db], with --storage s3 s3://BUCKET/PREFIX or
    /// https://HOST:PORT/BUCKET/PREFIX; limen --help has an example of each form. To spread the objects over several
    /// buckets, write shards: before the address, and a range such as {0..15} in it
    #[arg(long, value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    bucket: Option<String>,
    /// How to compress data before it is stored in the object store
    #[arg(long, value_parser = one_of(COMPRESSIONS, Compression::name), default_value = "none")]
    compress: Compression,
    /// Encrypt data before it is stored in the object store; needs a key. Names and attributes are not
    /// encrypted
    #[arg(long, value_name = "CIPHER", value_parser = one_of(CIPHERS, Cipher::name))]
    encrypt: Option<Cipher>,
    #[command(flatten)]
    keys: KeyArgs,
    /// The kind of ACLs that files can have; cannot be changed later, except from off to posix
    #[arg(long, value_parser = one_of(ACLS, AclKind::name), default_value = "posix")]
    acl: AclKind,
    /// Store the data of files up to this size in the metadata, at most 64K; 0 for never [default: 4096; 0
    /// with --encrypt and on Redis]
    #[arg(long, value_name = "BYTES", value_parser = parse_inline)]
    inline: Option<u32>,
    /// The maximum total size of all files, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0", allow_negative_numbers = true)]
    capacity: u64,
    /// The maximum number of files and directories; 0 for no limit
    #[arg(long, value_name = "N", value_parser = parse_whole, default_value = "0", allow_negative_numbers = true)]
    inodes: u64,
    /// Keep removed and overwritten files in the trash for this many days; 0 to delete them at once
    #[arg(long, value_name = "N", value_parser = parse_whole, default_value = "0", allow_negative_numbers = true)]
    trash_days: u64,
}

const COMPRESSIONS: &[Choice<Compression>] =
    &[(Compression::None, "No compression"), (Compression::Lz4, "Fast"), (Compression::Zstd, "Small")];

const CIPHERS: &[Choice<Cipher>] = &[
    (Cipher::Aes256Gcm, "Faster on processors with AES instructions"),
    (Cipher::XChaCha20Poly1305, "Faster without such instructions"),
];

const ACLS: &[Choice<AclKind>] = &[
    (AclKind::Posix, "POSIX ACLs, like ext4 and XFS"),
    (AclKind::Nfs4, "NFSv4 ACLs, like NFS and Windows; for nfs4_setfacl and Samba"),
    (AclKind::Off, "Mode bits only"),
];

/// The directories that an object store creates. A format that was interrupted leaves them empty.
const STORE_DIRECTORIES: [&str; 2] = ["chunks", "tmp"];

pub(crate) fn run(args: &FormatArgs) -> Result<(), CliError> {
    let url = MetaUrl::parse(&args.url)?;
    let file = match &url {
        MetaUrl::Sqlite(path) => Some(path.as_path()),
        MetaUrl::Network(_) => None,
        MetaUrl::Memory(_) => {
            return Err(CliError::usage("a volume in memory is created by its mount, new each time")
                .at(&url)
                .advise(format!("run limen mount {url} MOUNTPOINT")));
        }
    };
    let store = store(args, file)?;
    refuse_existing(&url, file)?;
    let volume = Volume {
        name: args.name.clone(),
        uuid: new_uuid()?,
        storage: store.storage.clone(),
        bucket: store.bucket.clone(),
        compression: args.compress.name().to_owned(),
        encryption: encryption(args)?,
        acl: args.acl,
        policy: Default::default(),
        inline_bytes: inline_bytes(args, &url)?,
        capacity_bytes: args.capacity,
        max_inodes: args.inodes,
        abe: false,
        sid_rules: SidRules::default(),
        sync_metadata: false,
        backup_secs: DEFAULT_BACKUP_SECS,
        trash_days: args.trash_days,
        store_marker: args.storage != MEMORY,
        loaded: String::new(),
        moves: 0,
        created: Time::now(),
    };
    let directories = if args.storage == FILE { store.buckets()? } else { Vec::new() };
    directories.iter().try_for_each(|bucket| check_bucket(Path::new(bucket)))?;
    let made = create_volume(&url, args, &volume);
    if made.is_err() {
        directories.iter().for_each(|bucket| remove_empty(Path::new(bucket)));
    }
    made?;
    if args.storage == MEMORY {
        output::note(
            "file data will be in the memory of the mount and lost when it is unmounted; names and attributes are kept",
        );
    }
    let objects = if volume.bucket.is_empty() { "in memory" } else { &volume.bucket };
    output::print(&format!(
        "Created volume '{}': metadata in {url}, objects in {objects}.\nMount it: limen mount -d {url} MOUNTPOINT\n",
        volume.name
    ))
}

/// A volume in memory, with the defaults of `limen format`.
///
/// # Errors
/// The kernel provides no UUID.
pub(crate) fn volume_in_memory(name: &str) -> Result<Volume, CliError> {
    let storage = MEMORY.to_owned();
    Ok(Volume { storage, uuid: new_uuid()?, created: Time::now(), ..Volume::in_memory(name) })
}

/// The maximum size of a file whose data is stored in the metadata. It is 0 on an encrypted volume, because
/// metadata is not encrypted, and by default on a database that keeps all its data in memory.
fn inline_bytes(args: &FormatArgs, url: &MetaUrl) -> Result<u32, CliError> {
    match (args.inline, args.encrypt) {
        (Some(1..), Some(_)) => {
            Err(CliError::usage("--inline stores data in the metadata, which is not encrypted")
                .advise("omit --inline or --encrypt"))
        }
        (Some(bytes), _) => Ok(bytes),
        (None, Some(_)) => Ok(0),
        (None, None) if matches!(url, MetaUrl::Network(url) if url.is_in_memory()) => Ok(0),
        (None, None) => Ok(DEFAULT_INLINE_BYTES),
    }
}

/// The encryption settings that are stored with the volume.
fn encryption(args: &FormatArgs) -> Result<String, CliError> {
    let Some(cipher) = args.encrypt else { return Ok(String::new()) };
    let (settings, _) = EncryptionSettings::new(cipher, &store::secret(&args.keys)?)?;
    Ok(settings.to_string())
}

/// Fails if the database already holds a volume. This runs before anything is created, so that a second
/// format changes nothing.
fn refuse_existing(url: &MetaUrl, file: Option<&Path>) -> Result<(), CliError> {
    // An empty file is not a database yet.
    if file.is_some_and(|path| fs::metadata(path).map_or(true, |metadata| metadata.len() == 0)) {
        return Ok(());
    }
    match Volume::load(&*url.open(true)?.engine()) {
        Err(VolumeError::NotFormatted) => Ok(()),
        Ok(Volume { name, created, .. }) => {
            Err(url.volume_error(VolumeError::Exists { name, created: created.to_string() }))
        }
        Err(error) => Err(url.volume_error(error)),
    }
}

fn create_volume(url: &MetaUrl, args: &FormatArgs, volume: &Volume) -> Result<(), CliError> {
    let options = StoreOptions { cache_bytes: 0, create: true, ..StoreOptions::default() };
    let store = open_store(volume, &args.keys, options)?;
    if ![FILE, MEMORY].contains(&args.storage.as_str()) {
        // If the bucket held another volume's objects, they would be overwritten (see `check_bucket`).
        marker::refuse_marked(volume, &store)?;
        let empty = store.direct().is_empty().map_err(|error| store_error(volume, &error))?;
        if !empty {
            let failed = CliError::new("the bucket already contains objects").at(&volume.bucket);
            return Err(failed.advise("choose an empty bucket or prefix with --bucket"));
        }
    }
    store.check().map_err(|error| store_error(volume, &error))?;
    let engine = url.open(true)?.engine();
    volume.format(&*engine).map_err(|error| url.volume_error(error))?;
    // The marker is written after the volume's record. Only one of two concurrent formats can write the
    // record, so the marker names the volume that exists.
    let marked = if volume.store_marker { marker::put(volume, &store) } else { Ok(()) };
    // The volume exists now, even if the store could not be marked.
    if !rustix::process::geteuid().is_root() {
        give_root_directory(url, Arc::clone(&engine))?;
    }
    engine.sync().at(url)?;
    marked.map_err(|failed| {
        failed.advise(format!("the volume is created; run limen config --adopt-store {url}"))
    })
}

/// Makes this user the owner of the root directory, so that a user other than root can write in it.
fn give_root_directory(url: &MetaUrl, engine: Arc<dyn Engine>) -> Result<(), CliError> {
    let owner = SetAttr {
        ino: Ino::ROOT,
        uid: Some(rustix::process::geteuid().as_raw()),
        gid: Some(rustix::process::getegid().as_raw()),
        ..SetAttr::default()
    };
    url.client(engine, 1)?.run(&owner, &Authority::Kernel { revisions: None }).map(drop).at(url)
}

fn store(args: &FormatArgs, database: Option<&Path>) -> Result<StorageConfig, CliError> {
    let bucket = match (&args.bucket, args.storage.as_str()) {
        (Some(_), MEMORY) => {
            return Err(CliError::usage("--bucket does not apply to --storage memory").advise("omit it"));
        }
        (None, MEMORY) => String::new(),
        (None, FILE) => match database.map(|database| database.with_extension("data")) {
            Some(path) => path
                .to_str()
                .map(str::to_owned)
                .ok_or_else(|| CliError::usage("the bucket's path is not UTF-8").at(path.display()))?,
            None => {
                return Err(CliError::usage("a volume on a database server needs a place for its file data")
                    .advise(
                        "write --bucket DIRECTORY with a directory that all machines share, or --storage s3",
                    ));
            }
        },
        (None, kind) => {
            let store = STORES.iter().find(|store| store.name == kind);
            let buckets = store.map_or(&[][..], |store| store.buckets);
            let examples: Vec<String> =
                buckets.iter().map(|(_, example)| format!("--bucket {example}")).collect();
            return Err(CliError::usage(format!("--storage {kind} needs a bucket"))
                .advise(format!("write for example {}", examples.join(" or "))));
        }
        (Some(bucket), storage) => {
            refuse_range(bucket)?;
            return named_store(storage, bucket);
        }
    };
    Ok(StorageConfig { storage: args.storage.clone(), bucket })
}

/// Accepts a directory that does not exist, is empty, or has only the empty directories of a failed format.
/// Slice numbers start at 1 in every volume, so a second volume in the same directory would overwrite the
/// first one's objects.
fn check_bucket(bucket: &Path) -> Result<(), CliError> {
    let fail = |error: std::io::Error| {
        CliError::new(format!("cannot read the bucket: {error}")).at(bucket.display())
    };
    let advice = "choose an empty or new directory with --bucket";
    if let Ok(text) = fs::read(bucket.join(MARKER)) {
        return Err(marker::taken(&text, bucket.display()));
    }
    let entries = match fs::read_dir(bucket) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error).advise(advice)),
    };
    for entry in entries {
        let path = entry.map_err(fail)?.path();
        if !is_empty_store_directory(&path) {
            return Err(CliError::new("the bucket is not empty").at(path.display()).advise(advice));
        }
    }
    Ok(())
}

fn is_empty_store_directory(path: &PathBuf) -> bool {
    let ours = STORE_DIRECTORIES.iter().any(|name| path.ends_with(name));
    ours && fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Removes the directories that a failed format created, if they are empty. If a directory stays, the next
/// format ignores it.
fn remove_empty(bucket: &Path) {
    for name in STORE_DIRECTORIES {
        let _ = fs::remove_dir(bucket.join(name));
    }
    let _ = fs::remove_dir(bucket);
}

pub(crate) fn storage_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(STORES.iter().map(|store| PossibleValue::new(store.name).help(store.about)))
}

/// A random UUID.
///
/// # Errors
/// The kernel provides none.
pub(crate) fn new_uuid() -> Result<String, CliError> {
    const SOURCE: &str = "/proc/sys/kernel/random/uuid";
    let uuid = fs::read_to_string(SOURCE).what("cannot get a UUID").at(SOURCE)?;
    Ok(uuid.trim().to_owned())
}
