//! The kinds of stores, and how each is opened.

use std::path::Path;

use opendal::Operator;
use opendal::services::Memory;
use tokio::runtime::Handle;

use crate::ChunkError;
use crate::backend::Backend;
use crate::dir::Dir;
use crate::remote::{Put, Remote};
use crate::store::{StorageConfig, store_error};

/// The kinds of stores in this build.
pub const STORAGES: &[&str] = &[
    "file",
    "memory",
    #[cfg(feature = "s3")]
    "s3",
    #[cfg(feature = "gcs")]
    "gcs",
    #[cfg(feature = "azblob")]
    "azblob",
    #[cfg(feature = "webdav")]
    "webdav",
    #[cfg(feature = "sftp")]
    "sftp",
];

pub(crate) fn open(
    config: &StorageConfig,
    create: bool,
    runtime: &Handle,
) -> Result<Box<dyn Backend>, ChunkError> {
    match config.storage.as_str() {
        "file" => open_dir(&config.bucket, create),
        "memory" => {
            let operator = Operator::new(Memory::default())
                .map_err(|error| ChunkError::Config(format!("cannot open a store in memory: {error}")))?;
            Ok(Box::new(Remote::new(operator, runtime.clone(), Put::Atomic)))
        }
        #[cfg(feature = "s3")]
        "s3" => {
            install_transport();
            remote(crate::s3::operator(&config.bucket)?, Put::Atomic, runtime)
        }
        #[cfg(feature = "gcs")]
        "gcs" => {
            install_transport();
            remote(crate::others::gcs(&config.bucket)?, Put::Atomic, runtime)
        }
        #[cfg(feature = "azblob")]
        "azblob" => {
            install_transport();
            remote(crate::others::azblob(&config.bucket)?, Put::Atomic, runtime)
        }
        #[cfg(feature = "webdav")]
        "webdav" => {
            install_transport();
            remote(crate::others::webdav(&config.bucket)?, Put::Renamed(Default::default()), runtime)
        }
        #[cfg(feature = "sftp")]
        "sftp" => remote(crate::others::sftp(&config.bucket)?, Put::Renamed(Default::default()), runtime),
        other => {
            let known = STORAGES.join(", ");
            Err(ChunkError::Config(format!("unknown storage {other:?} (this build supports {known})")))
        }
    }
}

#[cfg(feature = "remote")]
fn remote(operator: Operator, put: Put, runtime: &Handle) -> Result<Box<dyn Backend>, ChunkError> {
    Ok(Box::new(Remote::new(crate::patience::patient(operator), runtime.clone(), put)))
}

/// opendal and rustls each accept one installation per process; if another one came first, it is kept.
#[cfg(feature = "http")]
fn install_transport() {
    drop(rustls::crypto::ring::default_provider().install_default());
    opendal_http_transport_reqwest::install_default();
}

fn open_dir(bucket: &str, create: bool) -> Result<Box<dyn Backend>, ChunkError> {
    let path = Path::new(bucket);
    if !path.is_absolute() {
        return Err(ChunkError::Config(format!(
            "the bucket of a file storage must be an absolute path, not {bucket:?}"
        )));
    }
    let dir = if create { Dir::create(path) } else { Dir::existing(path) };
    Ok(Box::new(dir.map_err(|refusal| store_error("open", bucket, refusal))?))
}
