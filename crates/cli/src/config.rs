//! `limen config`: shows the settings that a volume was given, and changes those that may change.

use std::sync::Arc;

use meta::{AclKind, Configure, Engine, Meta, Volume, Vouch};
use serde_json::json;

use crate::args::ConfigArgs;
use crate::fault::Fault;
use crate::maintenance::{Exclusive, Tool};
use crate::marker::{self, MEMORY};
use crate::output::{self, Table};
use crate::status::{usage, used_bytes};
use crate::store::open_closed;
use crate::units::show_size;
use crate::url::{Database, MetaUrl};

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
        return Err(Fault::usage("--aclmode and --aclinherit are for volumes with NFSv4 ACLs").at(&url));
    }
    if !volume.encryption.is_empty() && args.inline.is_some_and(|bytes| bytes > 0) {
        return Err(Fault::usage("--inline puts data into the metadata, which is not encrypted").at(&url));
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

/// What is laid down for good may be named, as long as it is as it is.
fn refuse_fixed(args: &ConfigArgs, volume: &Volume) -> Result<(), Fault> {
    let fixed = [
        (
            "acl",
            &args.acl,
            volume.acl.name(),
            "files have ACLs by it, and what was refused before would be granted",
        ),
        ("storage", &args.storage, &volume.storage, "all data that the volume has is there"),
        ("bucket", &args.bucket, &volume.bucket, "all data that the volume has is there"),
    ];
    for (name, asked, is, why) in fixed {
        if let Some(asked) = asked
            && asked != is
        {
            return Err(Fault::usage(format!("{name} is '{is}' for good: {why}"))
                .at(format!("--{name} {asked}"))
                .advise("make another volume with limen format and copy the files; nothing was changed"));
        }
    }
    Ok(())
}

/// Mounts, also those of the embedded engine, read the settings again every few seconds.
fn configure(url: &MetaUrl, engine: Arc<dyn Engine>, change: &Configure) -> Result<Volume, Fault> {
    let meta = Meta::open(engine.clone(), 1).map_err(|error| url.volume_fault(error))?;
    meta.run(change, &Vouch::Kernel { told: None }).map_err(|error| Fault::new(error).at(url))?;
    engine.sync().map_err(|error| Fault::new(error).at(url))?;
    Volume::load(&*engine).map_err(|error| url.volume_fault(error))
}

/// Marks the object store as this volume's, because the person says that it is.
fn adopt_store(url: &MetaUrl, database: &Database, volume: &mut Volume) -> Result<(), Fault> {
    if volume.storage == MEMORY {
        return Err(Fault::usage("--adopt-store is not for --storage memory").at(url).advise("leave it out"));
    }
    let tool = Tool { name: "limen config --adopt-store", force: None };
    let exclusive = Exclusive::begin(url, database, tool)?;
    let store = open_closed(volume)?;
    marker::adopt(volume, &store)?;
    let change = Configure { store_marker: Some(true), ..Configure::default() };
    *volume = configure(url, exclusive.engine(), &change)?;
    drop(exclusive);
    output::note(format!("the object store is marked as that of volume '{}'", volume.name));
    Ok(())
}

fn warn(url: &MetaUrl, database: &Database, volume: &Volume) -> Result<(), Fault> {
    let usage = usage(&*database.engine()).map_err(|error| Fault::new(error).at(url))?;
    let beyond = |used: u64, limit: u64| limit != 0 && used > limit;
    let (bytes, inodes) = (used_bytes(&usage), usage.inodes);
    if beyond(bytes, volume.capacity_bytes) {
        output::note(format!("the files hold {} already: nothing can be added", show_size(bytes)));
    }
    if beyond(inodes, volume.max_inodes) {
        output::note(format!("there are {inodes} inodes already: nothing can be made"));
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
    table.row("ACLs", format!("{} (for good)", volume.acl.name()));
    if volume.acl == AclKind::Nfs4 {
        table.row("aclmode", volume.policy.mode.name());
        table.row("aclinherit", volume.policy.inherit.name());
    }
    table.row("storage", format!("{} (for good)", volume.storage));
    if !volume.bucket.is_empty() {
        table.row("bucket", format!("{} (for good)", volume.bucket));
    }
    table.render()
}

/// What listings show, in words.
pub(crate) fn shown(volume: &Volume) -> &'static str {
    if volume.abe { "show a caller what he may read" } else { "show everything" }
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
