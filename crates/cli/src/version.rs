//! `limen version`: the version of this program and of the formats that it supports.

use serde_json::json;

use crate::args::VersionArgs;
use crate::fault::Fault;
use crate::output::{self, Table};

pub(crate) fn run(args: &VersionArgs) -> Result<(), Fault> {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        return output::print_json(&json!({
            "version": version,
            "volume_format": meta::FORMAT_VERSION,
            "block_format": chunk::BLOCK_FORMAT,
            "sqlite_schema": engine_sqlite::VERSION,
            "engines": crate::url::engines(),
            "storages": chunk::STORAGES,
        }));
    }
    let mut table = Table::default();
    table.row("volume format", meta::FORMAT_VERSION);
    table.row("block format", chunk::BLOCK_FORMAT);
    table.row("SQLite schema", engine_sqlite::VERSION);
    table.row("metadata engines", crate::url::engines().join(", "));
    table.row("object stores", chunk::STORAGES.join(", "));
    output::print(&format!("limen {version}\n{}", table.render()))
}
