//! Opens the object store of a volume, and finds the key of an encrypted one.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use chunk::{BlockStore, ChunkError, Encryption, EncryptionSettings, Secret, StoreOptions};
use clap::ValueHint;
use command::error::CliError;
use meta::Volume;
use types::Errno;

use crate::bucket::store_of;
use crate::public::warn_if_public;
use crate::staged;

/// The key of an encrypted volume, if it is not in the environment as LIMEN_KEY or LIMEN_PASSPHRASE.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct KeyArgs {
    /// A file with the key of an encrypted volume: 32 bytes, or these in hexadecimal or base64 [default: the
    /// environment variable LIMEN_KEY or LIMEN_PASSPHRASE]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key_file: Option<PathBuf>,
}

/// The environment variables for a key and for a passphrase.
const KEY: &str = "LIMEN_KEY";
const PASSPHRASE: &str = "LIMEN_PASSPHRASE";

/// Opens a volume's store without a key, to write, remove or list blocks as they are. Data of an encrypted
/// volume cannot be read through it.
///
/// # Errors
/// The store cannot be reached, or this version of limen does not support its kind.
pub(crate) fn open_without_key(volume: &Volume) -> Result<Arc<BlockStore>, CliError> {
    open_with(volume, StoreOptions { cache_bytes: 0, ..StoreOptions::default() })
}

/// Opens a volume's store to read and write file data.
///
/// # Errors
/// Those of [`open_without_key`]; the key is missing or wrong.
pub(crate) fn open_store(
    volume: &Volume,
    keys: &KeyArgs,
    options: StoreOptions,
) -> Result<Arc<BlockStore>, CliError> {
    let compression = volume.compression.parse().map_err(|error| store_error(volume, &error))?;
    open_with(volume, StoreOptions { compression, encryption: unlock(volume, keys)?, ..options })
}

pub(crate) fn store_error(volume: &Volume, error: &ChunkError) -> CliError {
    let place = if volume.bucket.is_empty() { &volume.storage } else { &volume.bucket };
    let failed =
        CliError::new(format!("the object store of volume '{}' does not work: {error}", volume.name));
    let advice = match volume.storage.as_str() {
        // The bucket is known to be missing, so the credentials are not the cause.
        "s3" if error.to_string().contains("the bucket does not exist") => "",
        "s3" => {
            "check that the bucket exists, and that your credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
             AWS_PROFILE) let you read, write, list and delete there"
        }
        _ if matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT) => "free some space there",
        chunk::MEMORY => "its data is in the memory of this process: free some memory on this machine",
        kind if kind != chunk::FILE => {
            "check its address, and that your login lets you read, write, list and delete there"
        }
        _ => {
            "check that the directory exists, that its file system is mounted, and that you have permission to read and \
             write there"
        }
    };
    failed.at(place).advise(advice)
}

/// The key or passphrase of a volume: from the file of `--key-file`, or from the environment.
///
/// # Errors
/// No key or passphrase is given, or the key is not valid.
pub(crate) fn secret(keys: &KeyArgs) -> Result<Secret, CliError> {
    let found = match (&keys.key_file, env::var(PASSPHRASE)) {
        (Some(path), _) => {
            warn_if_public("key of the volume", path);
            Secret::key_from_file(path)
        }
        (None, Ok(passphrase)) => Ok(Secret::passphrase(passphrase)),
        (None, Err(_)) if env::var_os(KEY).is_some() => Secret::key_from_env(KEY),
        (None, Err(_)) => {
            return Err(CliError::new("an encrypted volume needs its key").advise(format!(
                "give it with --key-file FILE, or in the environment variable {KEY} (32 bytes in hexadecimal or base64) \
                 or {PASSPHRASE}"
            )));
        }
    };
    found.map_err(|error| CliError::new(error).advise("create a key with: openssl rand -hex 32 >FILE"))
}

/// The option or environment variable from which [`secret`] takes the key, if there is one.
pub(crate) fn key_source(keys: &KeyArgs) -> Option<&'static str> {
    let file = keys.key_file.is_some().then_some("--key-file");
    file.or_else(|| [PASSPHRASE, KEY].into_iter().find(|name| env::var_os(name).is_some()))
}

/// The key of a volume; `None` if the volume is not encrypted.
///
/// # Errors
/// The key is missing or wrong; the settings are damaged.
pub(crate) fn unlock(volume: &Volume, keys: &KeyArgs) -> Result<Option<Encryption>, CliError> {
    if volume.encryption.is_empty() {
        return Ok(None);
    }
    let settings: EncryptionSettings =
        volume.encryption.parse().map_err(|error: ChunkError| store_error(volume, &error))?;
    let encryption = settings.unlock(&secret(keys)?).map_err(|error| {
        let failed = CliError::new(format!("cannot decrypt volume '{}': {error}", volume.name));
        failed.advise("give the key or passphrase that it was formatted with")
    })?;
    Ok(Some(encryption))
}

fn open_with(volume: &Volume, options: StoreOptions) -> Result<Arc<BlockStore>, CliError> {
    let options = StoreOptions { staged: staged::places(volume), ..options };
    BlockStore::open_with(&store_of(volume), options).map_err(|error| store_error(volume, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_kind_of_store() {
        let advice = |storage: &str| {
            let volume = Volume { storage: storage.to_owned(), ..Volume::in_memory("v") };
            store_error(&volume, &ChunkError::Row { offset: 0, len: 1, size: 0 }).to_string()
        };
        assert!(advice(chunk::MEMORY).contains("free some memory"));
        assert!(advice(chunk::FILE).contains("the directory exists"));
        assert!(advice("webdav").contains("your login"));
    }
}
