//! `limen config`: shows a volume's settings, and changes those that can be changed.

use std::sync::Arc;

use chunk::MEMORY;
use clap::ValueEnum;
use client::Meta;
use command::fault::Fault;
use command::output::{self, Table};
use command::units::parse_size;
use command::units::show_size;
use meta::{AclKind, Engine, Volume};
use ops::{Authority, Configure};
use serde_json::json;

use crate::maintenance::{Exclusive, Tool};
use crate::marker;
use crate::parse::{parse_inline, parse_on_off};
use crate::records::{usage, used_bytes};
use crate::store::open_without_key;
use crate::url::{Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  limen config sqlite:///var/lib/limen/home.db
  limen config sqlite:///var/lib/limen/home.db --capacity 2T --inodes 0
      0 means no limit
  limen config sqlite:///var/lib/limen/home.db --abe on
      mounts apply a change within about ten seconds")]
pub(crate) struct ConfigArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    url: String,
    /// The maximum total size of all files, e.g. 500G; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// The maximum number of files and directories; 0 for no limit
    #[arg(long, value_name = "N")]
    inodes: Option<u64>,
    /// Store the data of files up to this size in the metadata when they are next written, at most 64K; 0 for
    /// never
    #[arg(long, value_name = "BYTES", value_parser = parse_inline)]
    inline: Option<u32>,
    /// How chmod changes an NFSv4 ACL
    #[arg(long, value_enum, value_name = "POLICY")]
    aclmode: Option<AclMode>,
    /// Which entries of a directory's NFSv4 ACL new files inherit
    #[arg(long, value_enum, value_name = "POLICY")]
    aclinherit: Option<AclInherit>,
    /// Whether listings show each caller only entries that it may read (access-based enumeration), on every
    /// mount
    #[arg(long, value_name = "on|off", value_parser = parse_on_off)]
    abe: Option<bool>,
    /// Mark the object store as this volume's; use it if limen says that the store is not this volume's and
    /// you know that it is
    #[arg(long)]
    adopt_store: bool,
    /// Settings that cannot change: accepted, so that the error message can say why.
    #[arg(long, hide = true)]
    acl: Option<String>,
    #[arg(long, hide = true)]
    storage: Option<String>,
    #[arg(long, hide = true)]
    bucket: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AclMode {
    /// Replace the ACL by entries that say the same as the new mode
    Discard,
    /// Keep entries for users and groups; if the group bits change, no entry allows more than the new group
    /// bits (default)
    #[value(name = "groupmask")]
    GroupMask,
    /// Keep entries for users and groups, without those of r, w and x that the new group bits lack
    Passthrough,
    /// Let chmod fail on files with an ACL that says more than a mode
    Restricted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AclInherit {
    /// No entries
    Discard,
    /// Only entries that deny
    #[value(name = "noallow")]
    NoAllow,
    /// All entries, without the permissions to change the ACL and the owner
    Restricted,
    /// All entries unchanged; entries for owner, group and everyone replace mode and umask
    Passthrough,
    /// Like passthrough, but a file is executable only if its create mode says so
    PassthroughX,
}

impl From<AclMode> for acl::nfs4::AclMode {
    fn from(policy: AclMode) -> Self {
        match policy {
            AclMode::Discard => Self::Discard,
            AclMode::GroupMask => Self::GroupMask,
            AclMode::Passthrough => Self::Passthrough,
            AclMode::Restricted => Self::Restricted,
        }
    }
}

impl From<AclInherit> for acl::nfs4::AclInherit {
    fn from(policy: AclInherit) -> Self {
        match policy {
            AclInherit::Discard => Self::Discard,
            AclInherit::NoAllow => Self::NoAllow,
            AclInherit::Restricted => Self::Restricted,
            AclInherit::Passthrough => Self::Passthrough,
            AclInherit::PassthroughX => Self::PassthroughX,
        }
    }
}

pub(crate) fn run(args: &ConfigArgs) -> Result<(), Fault> {
    let url = MetaUrl::parse(&args.url)?;
    let (database, mut volume) = url.open_volume()?;
    let change = Configure {
        capacity_bytes: args.capacity,
        max_inodes: args.inodes,
        inline_bytes: args.inline,
        aclmode: args.aclmode.map(Into::into),
        aclinherit: args.aclinherit.map(Into::into),
        abe: args.abe,
        store_marker: None,
    };
    refuse_fixed(args, &volume)?;
    if volume.acl != AclKind::Nfs4 && (args.aclmode.is_some() || args.aclinherit.is_some()) {
        return Err(Fault::usage("--aclmode and --aclinherit need a volume with NFSv4 ACLs").at(&url));
    }
    if !volume.encryption.is_empty() && args.inline.is_some_and(|bytes| bytes > 0) {
        return Err(Fault::usage("--inline stores data in the metadata, which is not encrypted").at(&url));
    }
    if args.adopt_store {
        adopt_store(&url, &database, &mut volume)?;
    }
    if change != Configure::default() {
        volume = configure(&url, database.engine(), &change)?;
        warn(&url, &database, &volume)?;
    }
    if args.json { output::print_json(&to_json(&volume)) } else { output::print(&to_text(&volume)) }
}

/// Refuses to change settings that are fixed. Naming their current value is allowed.
fn refuse_fixed(args: &ConfigArgs, volume: &Volume) -> Result<(), Fault> {
    let fixed = [
        (
            "acl",
            &args.acl,
            volume.acl.name(),
            "files have ACLs of this kind, and a change would grant access that they deny",
        ),
        ("storage", &args.storage, &volume.storage, "the volume's data is stored there"),
        ("bucket", &args.bucket, &volume.bucket, "the volume's data is stored there"),
    ];
    for (name, asked, is, why) in fixed {
        if let Some(asked) = asked
            && asked != is
        {
            return Err(Fault::usage(format!("{name} is '{is}' and cannot be changed: {why}"))
                .at(format!("--{name} {asked}"))
                .advise("create another volume with limen format and copy the files; nothing was changed"));
        }
    }
    Ok(())
}

/// Changes settings. Mounts, also those of the embedded engine, read the settings every few seconds.
fn configure(url: &MetaUrl, engine: Arc<dyn Engine>, change: &Configure) -> Result<Volume, Fault> {
    let meta = Meta::open(engine.clone(), 1).map_err(|error| url.volume_fault(error))?;
    meta.run(change, &Authority::Kernel { told: None }).map_err(|error| Fault::new(error).at(url))?;
    engine.sync().map_err(|error| Fault::new(error).at(url))?;
    Volume::load(&*engine).map_err(|error| url.volume_fault(error))
}

/// Marks the object store as this volume's, at the user's request.
fn adopt_store(url: &MetaUrl, database: &Database, volume: &mut Volume) -> Result<(), Fault> {
    if volume.storage == MEMORY {
        return Err(Fault::usage("--adopt-store does not apply to --storage memory")
            .at(url)
            .advise("omit it"));
    }
    let tool = Tool { name: "limen config --adopt-store", force: None };
    let exclusive = Exclusive::begin(url, database, tool)?;
    let store = open_without_key(volume)?;
    marker::adopt(volume, &store)?;
    let change = Configure { store_marker: Some(true), ..Configure::default() };
    *volume = configure(url, exclusive.engine(), &change)?;
    drop(exclusive);
    output::note(format!("the object store is now marked as that of volume '{}'", volume.name));
    Ok(())
}

fn warn(url: &MetaUrl, database: &Database, volume: &Volume) -> Result<(), Fault> {
    let usage = usage(&*database.engine()).map_err(|error| Fault::new(error).at(url))?;
    let beyond = |used: u64, limit: u64| limit != 0 && used > limit;
    let (bytes, inodes) = (used_bytes(&usage), usage.inodes);
    if beyond(bytes, volume.capacity_bytes) {
        output::note(format!("the files already use {}: no data can be added", show_size(bytes)));
    }
    if beyond(inodes, volume.max_inodes) {
        output::note(format!("there are {inodes} inodes already: no file can be created"));
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
    table.row("ACLs", format!("{} (fixed)", volume.acl.name()));
    if volume.acl == AclKind::Nfs4 {
        table.row("aclmode", volume.policy.mode.name());
        table.row("aclinherit", volume.policy.inherit.name());
    }
    table.row("storage", format!("{} (fixed)", volume.storage));
    if !volume.bucket.is_empty() {
        table.row("bucket", format!("{} (fixed)", volume.bucket));
    }
    table.render()
}

/// What listings show, as text.
pub(crate) fn shown(volume: &Volume) -> &'static str {
    if volume.abe { "show each caller only what it may read" } else { "show everything" }
}

fn to_json(volume: &Volume) -> serde_json::Value {
    json!({
        "name": volume.name,
        "capacity_bytes": volume.capacity_bytes,
        "max_inodes": volume.max_inodes,
        "inline_bytes": volume.inline_bytes,
        "abe": volume.abe,
        "acl": volume.acl.name(),
        "aclmode": volume.policy.mode.name(),
        "aclinherit": volume.policy.inherit.name(),
        "storage": volume.storage,
        "bucket": volume.bucket,
    })
}
