//! Addresses of object stores on the command line.

use std::path::absolute;

use chunk::{FILE, SHARDS, StorageConfig, has_range};
use command::error::{CliError, ErrorAt};
use meta::Volume;

/// The store that a command line names, with absolute paths of directories.
///
/// # Errors
/// The address of several buckets is wrong; a path is not UTF-8.
pub(crate) fn named_store(storage: &str, bucket: &str) -> Result<StorageConfig, CliError> {
    let (prefix, place) = bucket.strip_prefix(SHARDS).map_or(("", bucket), |place| (SHARDS, place));
    let place = match storage {
        FILE => {
            let path = absolute(place).usage().at(bucket)?;
            let text = path.to_str().map(str::to_owned);
            text.ok_or_else(|| CliError::usage("the bucket's path is not UTF-8").at(path.display()))?
        }
        _ => place.to_owned(),
    };
    let config = StorageConfig { storage: storage.to_owned(), bucket: format!("{prefix}{place}") };
    config.buckets().usage()?;
    Ok(config)
}

/// Fails if a new volume would be in one bucket whose name contains a range, because the user most likely
/// forgot the prefix of several buckets.
///
/// # Errors
/// `--bucket` contains a range, but not the prefix of several buckets.
pub(crate) fn refuse_range(bucket: &str) -> Result<(), CliError> {
    if bucket.starts_with(SHARDS) || !has_range(bucket) {
        return Ok(());
    }
    Err(CliError::usage("the bucket contains a range, but is the address of one bucket")
        .at(bucket)
        .advise(format!("write --bucket '{SHARDS}{bucket}' for several buckets")))
}

/// The store of a volume.
pub(crate) fn store_of(volume: &Volume) -> StorageConfig {
    StorageConfig { storage: volume.storage.clone(), bucket: volume.bucket.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_behind_the_prefix() {
        let named = |storage: &str, bucket: &str| named_store(storage, bucket).unwrap().bucket;
        let here = std::env::current_dir().unwrap();
        assert_eq!(named(FILE, "shards:d{0..2}/x"), format!("shards:{}/d{{0..2}}/x", here.display()));
        assert_eq!(named(FILE, "/d{0..2}"), "/d{0..2}");
        assert_eq!(named("s3", "shards:s3://b{0..2}"), "shards:s3://b{0..2}");
        for bad in ["shards:", "shards:/d", "shards:/d{1..1}"] {
            assert_eq!(named_store(FILE, bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn range_needs_the_prefix() {
        let error = refuse_range("s3://b{0..2}").unwrap_err().to_string();
        assert!(error.contains("--bucket 'shards:s3://b{0..2}'"), "{error}");
        refuse_range("shards:s3://b{0..2}").unwrap();
        refuse_range("/srv/{x}").unwrap();
    }
}
