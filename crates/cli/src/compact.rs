//! `limen compact`: rewrites the data of files that have many rows, so that they have few. The mount's
//! process does the work.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueHint;
use command::error::CliError;
use command::file_requests::FileRequest;
use command::interrupt::Interrupt;
use command::output;
use command::units::{parse_threads, show_size};
use serde_json::{Value, json};
use types::counted;

use crate::each_file::{EachFile, Failures};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each write that is stored adds a row to the chunk of 64 MiB that it is in. Overwritten data of an earlier row stays stored
until the whole row is overwritten. A mount compacts chunks with many rows by itself, after it has read or written them. This
command compacts all chunks that have more rows than runs of data, at once: reads of the files then need fewer requests, and
limen gc and the mounts remove data that no file refers to any more.

It is safe while programs use the files, here and on other mounts: a chunk that is changed meanwhile is tried again, and
stays as it is after three attempts. Only root and the user that runs the mount can use this command.

Examples:
  limen compact /mnt/database
  limen compact --json /mnt/log/app.log | jq .rows_after")]
pub(crate) struct CompactArgs {
    /// Files or directories on a mount; symbolic links are not followed
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "2")]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default)]
struct Sum {
    files: AtomicU64,
    compacted: AtomicU64,
    rows_before: AtomicU64,
    rows_after: AtomicU64,
    bytes: AtomicU64,
}

impl Sum {
    fn add(&self, answer: &Value) {
        let of = |field: &str| answer[field].as_u64().unwrap_or(0);
        let add = |count: &AtomicU64, value: u64| count.fetch_add(value, Ordering::Relaxed);
        let (before, after) = (of("rows_before"), of("rows_after"));
        add(&self.files, 1);
        add(&self.compacted, u64::from(after < before));
        add(&self.rows_before, before);
        add(&self.rows_after, after);
        add(&self.bytes, of("bytes"));
    }
}

pub(crate) fn run(args: &CompactArgs) -> Result<(), CliError> {
    let interrupt = Interrupt::install()?;
    let bar = output::progress("compacted");
    let (sum, failures) = (Sum::default(), Failures::new("compact"));
    for path in &args.paths {
        let walk = EachFile::new(Path::new(path), FileRequest::Compact, &interrupt, &bar, &failures)?;
        walk.require_writable()?;
        walk.run(args.threads, &|answer| sum.add(answer))?;
    }
    bar.finish_and_clear();
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (files, compacted, bytes) = (value(&sum.files), value(&sum.compacted), value(&sum.bytes));
    let (before, after) = (value(&sum.rows_before), value(&sum.rows_after));
    failures.show();
    output::result(
        args.json,
        || {
            json!({
                "files": files, "compacted": compacted, "rows_before": before, "rows_after": after, "bytes": bytes,
                "failed": failures.count(),
            })
        },
        || {
            format!(
                "Compacted {compacted} of {}: {} became {after}, and {} were stored again.\n",
                counted(files, "file", "files"),
                counted(before, "row", "rows"),
                show_size(bytes)
            )
        },
    )?;
    interrupt.check()?;
    failures.result()
}
