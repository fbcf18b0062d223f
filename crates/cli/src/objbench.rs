//! `limen objbench`: opens the object store to measure. The benchmark is in the crate `bench`.

use std::path::Path;

use bench::StoreOptions;
use chunk::{BareStore, FILE, MEMORY, StorageConfig};
use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use types::Time;

use crate::bucket::store_of;
use crate::format::storage_parser;
use crate::target::volume_url;
use crate::url::MetaUrl;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The store is first tested: objects are stored, replaced, read in whole and in part, listed and removed, and each answer is
compared. Then the requests that limenfs sends are measured: large objects (blocks), parts of them as random reads need them,
small objects, lists, and removals. No cache, compression or encryption takes part. All objects of the test are below
objbench/ in the bucket, and are removed at the end; a volume in the bucket is not touched, but its mounts share the
bandwidth.

Columns: requests per second of all threads, the bytes of these, and the median, 99th percentile and maximum of the latency.

Examples:
  limen objbench /mnt
      the store of a mounted volume
  limen objbench --storage s3 s3://mybucket/test --threads 16
  limen objbench --json sqlite:///var/lib/limen/home.db | jq '.phases[] | {name, bytes_per_s}'")]
pub(crate) struct ObjbenchArgs {
    /// The bucket, in the form that limen format --bucket takes; without --storage a META-URL, or a path on a
    /// mount: the store of this volume
    #[arg(value_name = "BUCKET|META-URL|PATH", value_hint = ValueHint::AnyPath)]
    bucket: String,
    /// The kind of object store
    #[arg(long, value_name = "KIND", value_parser = storage_parser())]
    storage: Option<String>,
    #[command(flatten)]
    options: StoreOptions,
}

pub(crate) fn run(args: &ObjbenchArgs) -> Result<(), CliError> {
    let config = match &args.storage {
        Some(storage) => StorageConfig { storage: storage.clone(), bucket: args.bucket.clone() },
        None => of_volume(&args.bucket)?,
    };
    if config.storage == MEMORY {
        return Err(CliError::usage("a store in memory has nothing to measure").at(&args.bucket));
    }
    let name = format!("{} {}", config.storage, config.bucket);
    let interrupt = Interrupt::install()?;
    let is_absent = |bucket: &String| !Path::new(bucket).exists();
    let is_new = config.storage == FILE && config.buckets().usage()?.iter().all(is_absent);
    let store = BareStore::open(&config, is_new).at(&config.bucket)?;
    let run = format!("{}-{}", Time::now().nanos(), std::process::id());
    bench::run_store(&store, &name, &run, &args.options, &interrupt).at(&config.bucket)
}

/// The store of the volume that an argument names.
fn of_volume(text: &str) -> Result<StorageConfig, CliError> {
    let url: MetaUrl = volume_url(text).map_err(|error| {
        error.advise(
            "name a bucket with --storage KIND BUCKET, or a volume by its META-URL or a path on its mount",
        )
    })?;
    let (_, volume) = url.open_volume()?;
    Ok(store_of(&volume))
}
