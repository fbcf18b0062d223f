//! `limen config`: shows a volume's settings, and changes those that can be changed.

use std::sync::Arc;

use meta::{AclKind, Authority, Configure, Engine, Meta, Volume};
use serde_json::json;

use crate::args::ConfigArgs;
use crate::fault::Fault;
use crate::maintenance::{Exclusive, Tool};
use crate::marker::{self, MEMORY};
use crate::output::{self, Table};
use crate::status::{usage, used_bytes};
use crate::store::open_without_key;
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
