//! `limen version`: the version of this program and of the formats that it supports.

use command::error::CliError;
use command::output::{self, Table};
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &VersionArgs) -> Result<(), CliError> {
    let version = env!("CARGO_PKG_VERSION");
    let stores: Vec<&str> = chunk::STORES.iter().map(|store| store.name).collect();
    let json = || {
        json!({
            "version": version,
            "volume_format": meta::FORMAT_VERSION,
            "block_format": chunk::BLOCK_FORMAT,
            "sqlite_schema": engine_sqlite::VERSION,
            "engines": crate::schemes::engines(),
            "storages": stores,
        })
    };
    let text = || {
        let mut table = Table::default();
        table.row("volume format", meta::FORMAT_VERSION);
        table.row("block format", chunk::BLOCK_FORMAT);
        table.row("SQLite schema", engine_sqlite::VERSION);
        table.row("metadata engines", crate::schemes::engines().join(", "));
        table.row("object stores", stores.join(", "));
        format!("limen {version}\n{}", table.render())
    };
    output::result(args.json, json, text)
}
