//! Opens a store of each kind.

use std::path::Path;

use opendal::Operator;
use opendal::services::Memory;
use tokio::runtime::Handle;

use crate::ChunkError;
use crate::backend::Backend;
use crate::dir::Dir;
use crate::error::store_error;
use crate::kinds::{FILE, MEMORY, STORES};
use crate::remote::{Put, Remote};
use crate::sharded::{Shard, join};
use crate::shards::addresses;

/// The location of a volume's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// The kind of store, one of [`STORES`](crate::STORES).
    pub storage: String,
    /// The address of the store. It must not contain a secret, because settings are not secret. By kind:
    ///
    /// - `file`: the absolute path of a directory.
    /// - `memory`: ignored.
    /// - `s3`: `s3://BUCKET[/PREFIX]`, `https://HOST[:PORT]/BUCKET[/PREFIX]` (path-style), or
    ///   `https://BUCKET.s3.REGION.amazonaws.com[/PREFIX]`. Credentials come from `AWS_ACCESS_KEY_ID`,
    ///   `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, from the profile that `AWS_PROFILE` names, or from
    ///   the machine's role. The region comes from the host, `AWS_REGION` or `AWS_DEFAULT_REGION`; the host
    ///   of `s3://` from `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`.
    /// - `gcs`: `gs://BUCKET[/PREFIX]`, with Google's default credentials.
    /// - `azblob`: `https://ACCOUNT.blob.core.windows.net/CONTAINER[/PREFIX]`, with the key in
    ///   `AZURE_STORAGE_KEY`.
    /// - `webdav`: `https://HOST[:PORT]/PATH`, with `WEBDAV_USERNAME` and `WEBDAV_PASSWORD`.
    /// - `sftp`: `sftp://[USER@]HOST[:PORT]/PATH`, through the `ssh` command and its configuration.
    /// - `hdfs`: `webhdfs://[USER@]HOST[:PORT]/PATH`, or `swebhdfs://` with TLS. The user is in the address or
    ///   in `HADOOP_USER_NAME`; with Kerberos, a delegation token is in `HADOOP_TOKEN` instead.
    ///
    /// An address that begins with [`SHARDS`](crate::SHARDS) and contains a range such as `{0..15}` names
    /// several buckets.
    pub bucket: String,
}

impl StorageConfig {
    /// The addresses of the buckets: one, or all that the address names.
    ///
    /// # Errors
    /// [`ChunkError::Config`] if the address begins with [`SHARDS`](crate::SHARDS), but has no valid range of
    /// buckets.
    pub fn buckets(&self) -> Result<Vec<String>, ChunkError> {
        addresses(&self.bucket)
    }
}

pub(crate) fn open(
    config: &StorageConfig,
    create: bool,
    runtime: &Handle,
) -> Result<Box<dyn Backend>, ChunkError> {
    open_buckets(config, create, runtime).map(join)
}

/// Opens each bucket of a store.
pub(crate) fn open_buckets(
    config: &StorageConfig,
    create: bool,
    runtime: &Handle,
) -> Result<Vec<Shard>, ChunkError> {
    let open = |address: String| {
        let store = open_bucket(&config.storage, &address, create, runtime)?;
        Ok(Shard { address, store })
    };
    config.buckets()?.into_iter().map(open).collect()
}

fn open_bucket(
    storage: &str,
    bucket: &str,
    create: bool,
    runtime: &Handle,
) -> Result<Box<dyn Backend>, ChunkError> {
    match storage {
        FILE => open_dir(bucket, create),
        MEMORY => {
            let operator = Operator::new(Memory::default())
                .map_err(|error| ChunkError::Config(format!("cannot open a store in memory: {error}")))?;
            Ok(Box::new(Remote::new(operator, runtime.clone(), Put::Atomic)))
        }
        #[cfg(feature = "s3")]
        "s3" => {
            install_transport();
            remote(crate::s3::operator(bucket)?, Put::Atomic, runtime)
        }
        #[cfg(feature = "gcs")]
        "gcs" => {
            install_transport();
            remote(crate::others::gcs(bucket)?, Put::Atomic, runtime)
        }
        #[cfg(feature = "azblob")]
        "azblob" => {
            install_transport();
            remote(crate::others::azblob(bucket)?, Put::Atomic, runtime)
        }
        #[cfg(feature = "webdav")]
        "webdav" => {
            install_transport();
            remote(crate::others::webdav(bucket)?, Put::Renamed(Default::default()), runtime)
        }
        #[cfg(feature = "sftp")]
        "sftp" => remote(crate::others::sftp(bucket)?, Put::Renamed(Default::default()), runtime),
        #[cfg(feature = "hdfs")]
        "hdfs" => {
            install_transport();
            remote(crate::hdfs::hdfs(bucket)?, Put::Renamed(Default::default()), runtime)
        }
        other => {
            let known: Vec<&str> = STORES.iter().map(|store| store.name).collect();
            let known = known.join(", ");
            Err(ChunkError::Config(format!("unknown storage {other:?} (this build supports {known})")))
        }
    }
}

#[cfg(feature = "remote")]
fn remote(operator: Operator, put: Put, runtime: &Handle) -> Result<Box<dyn Backend>, ChunkError> {
    Ok(Box::new(Remote::new(crate::retry::with_retries(operator), runtime.clone(), put)))
}

/// Installs the HTTP client of opendal and the cryptography of rustls. Each accepts one installation per
/// process; an earlier installation is kept.
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
    Ok(Box::new(dir.map_err(|error| store_error("open", bucket, error))?))
}
