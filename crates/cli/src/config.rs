//! `limen config`: shows a volume's settings, and changes those that can be changed.

use std::time::Duration;

use acl::nfs4::{AclInherit, AclMode};
use chunk::{MEMORY, StorageConfig};
use command::error::{CliError, ErrorAt};
use command::output::{self, HumanDuration, Table};
use command::units::{parse_size, parse_whole, show_size};
use meta::{AclKind, Engine, EngineError, Record, RecordKey, Volume};
use ops::Configure;
use serde_json::json;
use types::{Errno, Ino, counted, plural};

use crate::adopt::{adopt_store, configure};
use crate::maintenance::Tool;
use crate::move_store::move_store;
use crate::open::lock_unmounted;
use crate::parse::{Choice, one_of, parse_inline, parse_on_off, parse_span};
use crate::records::{usage, used_bytes};
use crate::target::volume_url;
use crate::url::{Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  limen config sqlite:///var/lib/limen/home.db
  limen config sqlite:///var/lib/limen/home.db --capacity 2T --inodes 0
      0 means no limit
  limen config sqlite:///var/lib/limen/home.db --acl posix
      turns ACLs on; each mount shows files that get an ACL as closed to
      all but their owner until it is unmounted and mounted again
  limen config sqlite:///var/lib/limen/home.db --abe on
      mounts apply a change within about ten seconds
  limen config redis://db.example/ --bucket https://s3-new.example/mybucket/home
      docs/stores.md says how to move a volume to another store")]
pub(crate) struct ConfigArgs {
    /// Where the volume's metadata is, or a path on a mount of the volume
    #[arg(value_name = "META-URL|PATH")]
    url: String,
    /// The maximum total size of all files, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    capacity: Option<u64>,
    /// The maximum number of files and directories; 0 for no limit
    #[arg(long, value_name = "N", value_parser = parse_whole, allow_negative_numbers = true)]
    inodes: Option<u64>,
    /// Store the data of files up to this size in the metadata when they are next written, at most 64K; 0 for
    /// never
    #[arg(long, value_name = "BYTES", value_parser = parse_inline)]
    inline: Option<u32>,
    /// How chmod changes an NFSv4 ACL
    #[arg(long, value_name = "POLICY", value_parser = one_of(ACL_MODES, AclMode::name))]
    aclmode: Option<AclMode>,
    /// Which entries of a directory's NFSv4 ACL new files inherit
    #[arg(long, value_name = "POLICY", value_parser = one_of(ACL_INHERITS, AclInherit::name))]
    aclinherit: Option<AclInherit>,
    /// Whether listings show each caller only entries that it may read (access-based enumeration), on every
    /// mount
    #[arg(long, value_name = "on|off", value_parser = parse_on_off)]
    abe: Option<bool>,
    /// Whether every mount commits all changes before it answers them, as with -o sync_metadata
    #[arg(long, value_name = "on|off", value_parser = parse_on_off)]
    sync_metadata: Option<bool>,
    /// The time between two automatic backups of the metadata to the object store, e.g. 30m, 1h or 1d; 0 for
    /// no automatic backups
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    backup_interval: Option<Duration>,
    /// Keep removed and overwritten files in the trash for this many days; 0 deletes them at once, and
    /// empties the trash
    #[arg(long, value_name = "N", value_parser = parse_whole, allow_negative_numbers = true)]
    trash_days: Option<u64>,
    /// Mark the object store as this volume's; use it if limen says that the store is not this volume's and
    /// you know that it is
    #[arg(long)]
    adopt_store: bool,
    /// The new address of the volume's objects: another address of the same store or, on SQLite, a complete
    /// copy of the objects; for a copy, the volume must not be mounted
    #[arg(long, value_name = "PLACE", conflicts_with = "adopt_store")]
    bucket: Option<String>,
    /// With --bucket, the kind of the new store [default: that of the present one]
    #[arg(long, value_name = "KIND", requires = "bucket")]
    storage: Option<String>,
    /// With --adopt-store, take the store over although a mount of this machine uses it by another database;
    /// that mount can no longer store data. Also, and with --bucket, wait 90 seconds, and remove sessions
    /// that are not renewed in that time
    #[arg(long)]
    force: bool,
    /// With --bucket, take the copy without a comparison if the old store cannot be read
    #[arg(long, requires = "bucket")]
    old_store_lost: bool,
    /// Turn POSIX ACLs on, on a volume without ACLs; they cannot be turned off
    #[arg(long, value_name = "posix")]
    acl: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const ACL_MODES: &[Choice<AclMode>] = &[
    (AclMode::Discard, "Replace the ACL by entries that say the same as the new mode"),
    (
        AclMode::GroupMask,
        "Keep entries for users and groups; if the group bits change, no entry allows more than the new group bits \
         (default)",
    ),
    (
        AclMode::Passthrough,
        "Keep entries for users and groups, without those of r, w and x that the new group bits lack",
    ),
    (AclMode::Restricted, "Let chmod fail on files with an ACL that says more than a mode"),
];

const ACL_INHERITS: &[Choice<AclInherit>] = &[
    (AclInherit::Discard, "No entries"),
    (AclInherit::NoAllow, "Only entries that deny"),
    (AclInherit::Restricted, "All entries, without the permissions to change the ACL and the owner"),
    (
        AclInherit::Passthrough,
        "All entries unchanged; entries for owner, group and everyone replace mode and umask",
    ),
    (AclInherit::PassthroughX, "Like passthrough, but a file is executable only if its create mode says so"),
];

pub(crate) fn run(args: &ConfigArgs) -> Result<(), CliError> {
    let url = volume_url(&args.url)?;
    let (database, mut volume) = url.open_volume()?;
    if args.force && !args.adopt_store && args.bucket.is_none() {
        return Err(CliError::usage("--force needs --adopt-store or --bucket").at(&url));
    }
    let change = Configure {
        capacity_bytes: args.capacity,
        max_inodes: args.inodes,
        inline_bytes: args.inline,
        aclmode: args.aclmode,
        aclinherit: args.aclinherit,
        abe: args.abe,
        sync_metadata: args.sync_metadata,
        backup_secs: args.backup_interval.map(|interval| interval.as_secs()),
        trash_days: args.trash_days,
        store_marker: None,
        posix_acls: volume.acl == AclKind::Off && args.acl.as_deref() == Some(AclKind::Posix.name()),
    };
    refuse_fixed(args, &volume, &change)?;
    if volume.acl != AclKind::Nfs4 && (args.aclmode.is_some() || args.aclinherit.is_some()) {
        return Err(CliError::usage("--aclmode and --aclinherit need a volume with NFSv4 ACLs").at(&url));
    }
    if !volume.encryption.is_empty() && args.inline.is_some_and(|bytes| bytes > 0) {
        return Err(CliError::usage("--inline stores data in the metadata, which is not encrypted").at(&url));
    }
    if args.adopt_store {
        let tool = Tool { name: "limen config --adopt-store", force: Some(args.force) };
        volume = adopt_store(&url, &database, &volume, tool)?;
        output::note(format!("the object store is now marked as that of volume '{}'", volume.name));
    }
    // The root of the trash is a new inode. A mount on the embedded engine would neither learn of it nor
    // count it.
    let lock = match args.trash_days {
        Some(1..) if !has_trash(&database).at(&url)? => {
            let advice = "unmount it to give it a trash; the days can be changed at any time";
            Some(lock_unmounted(&url, &database, advice)?)
        }
        _ => None,
    };
    if change != Configure::default() {
        volume = configure(&url, database.engine(), &change).map_err(|error| explain(error, args, &url))?;
        warn(&url, &database, &volume)?;
    }
    drop(lock);
    if let Some(bucket) = &args.bucket {
        let storage = args.storage.as_ref().unwrap_or(&volume.storage).clone();
        let to = StorageConfig { storage, bucket: bucket.clone() };
        volume = move_store(&url, &database, &volume, to, args.force, args.old_store_lost)?;
    }
    output::result(args.json, || to_json(&volume), || to_text(&volume))
}

fn has_trash(database: &Database) -> Result<bool, EngineError> {
    let records = database.engine().read(&[RecordKey::Inode(Ino::TRASH)])?.records;
    Ok(matches!(records.first(), Some(Record::Inode(_, Some(_)))))
}

/// Replaces an error of [`Configure`] that does not tell the user the cause.
fn explain(error: CliError, args: &ConfigArgs, url: &MetaUrl) -> CliError {
    if args.trash_days.is_none_or(|days| days == 0) || !error.to_string().contains(&Errno::EEXIST.to_string())
    {
        return error;
    }
    CliError::new("the root directory has an entry '.trash', which would be the name of the trash")
        .at(url)
        .advise("rename it; nothing was changed")
}

/// Refuses to change the kind of the ACLs, except to turn POSIX ACLs on. Naming the present kind is allowed.
fn refuse_fixed(args: &ConfigArgs, volume: &Volume, change: &Configure) -> Result<(), CliError> {
    let is = volume.acl.name();
    let Some(asked) = args.acl.as_deref().filter(|asked| *asked != is && !change.posix_acls) else {
        return Ok(());
    };
    let why = match volume.acl {
        AclKind::Off => "only POSIX ACLs can be turned on, by --acl posix",
        _ => "files have ACLs of this kind, and a change would grant access that they deny",
    };
    Err(CliError::usage(format!("acl is '{is}' and cannot be changed: {why}"))
        .at(format!("--acl {asked}"))
        .advise("create another volume with limen format and copy the files; nothing was changed"))
}

fn warn(url: &MetaUrl, database: &Database, volume: &Volume) -> Result<(), CliError> {
    let usage = usage(&*database.engine()).at(url)?;
    let beyond = |used: u64, limit: u64| limit != 0 && used > limit;
    let (bytes, inodes) = (used_bytes(&usage), usage.inodes);
    if beyond(bytes, volume.capacity_bytes) {
        output::note(format!("the files already use {}: no data can be added", show_size(bytes)));
    }
    if beyond(inodes, volume.max_inodes) {
        output::note(format!(
            "there {} {} already: no file can be created",
            plural(inodes, "is", "are"),
            counted(inodes, "inode", "inodes")
        ));
    }
    Ok(())
}

fn to_text(volume: &Volume) -> String {
    let limit = |limit: u64, shown: String| if limit == 0 { "unlimited".to_owned() } else { shown };
    let mut table = Table::default();
    table.row("volume", &volume.name);
    table.row("capacity", limit(volume.capacity_bytes, show_size(volume.capacity_bytes)));
    table.row("inodes", limit(volume.max_inodes, volume.max_inodes.to_string()));
    table.row("inline up to", show_size(volume.inline_bytes.into()));
    table.row("listings", shown(volume));
    table.row("changes", commits(volume));
    table.row("backups", backups(volume));
    table.row("trash", trash(volume));
    let fixed = if volume.acl == AclKind::Off { "--acl posix turns them on" } else { "fixed" };
    table.row("ACLs", format!("{} ({fixed})", volume.acl.name()));
    if volume.acl == AclKind::Nfs4 {
        table.row("aclmode", volume.policy.mode.name());
        table.row("aclinherit", volume.policy.inherit.name());
    }
    table.row("storage", &volume.storage);
    if !volume.bucket.is_empty() {
        table.row("bucket", &volume.bucket);
    }
    table.render()
}

/// Describes as text which entries listings show.
pub(crate) fn shown(volume: &Volume) -> &'static str {
    if volume.abe { "show each caller only what it may read" } else { "show everything" }
}

/// Describes as text when changes are committed.
fn commits(volume: &Volume) -> &'static str {
    match volume.sync_metadata {
        true => "are committed before they are answered",
        false => {
            "in directories that a mount has created are answered before they are committed (--sync-metadata)"
        }
    }
}

/// Describes as text how long removed files are kept.
pub(crate) fn trash(volume: &Volume) -> String {
    match volume.trash_days {
        0 => "none: removed files are deleted at once (--trash-days)".to_owned(),
        days => format!("keeps removed files for {}", counted(days, "day", "days")),
    }
}

/// Describes as text how often the metadata is backed up.
pub(crate) fn backups(volume: &Volume) -> String {
    match (volume.storage.as_str(), volume.backup_secs) {
        (MEMORY, _) => "none, because the objects are in memory".to_owned(),
        (_, 0) => "none (--backup-interval)".to_owned(),
        (_, secs) => format!("of the metadata every {}", HumanDuration(Duration::from_secs(secs))),
    }
}

fn to_json(volume: &Volume) -> serde_json::Value {
    json!({
        "name": volume.name,
        "capacity_bytes": volume.capacity_bytes,
        "max_inodes": volume.max_inodes,
        "inline_bytes": volume.inline_bytes,
        "abe": volume.abe,
        "sync_metadata": volume.sync_metadata,
        "backup_secs": volume.backup_secs,
        "trash_days": volume.trash_days,
        "acl": volume.acl.name(),
        "aclmode": volume.policy.mode.name(),
        "aclinherit": volume.policy.inherit.name(),
        "storage": volume.storage,
        "bucket": volume.bucket,
    })
}
