//! Optional kinds of stores: translates a bucket's address to opendal's settings.

use opendal::{Operator, services};

use crate::ChunkError;
use crate::address::root_of;
use crate::kinds::address as address_of;

/// Opens a bucket `gs://BUCKET[/PREFIX]`.
#[cfg(feature = "gcs")]
pub(crate) fn gcs(bucket: &str) -> Result<Operator, ChunkError> {
    let address = address_of("gcs", bucket)?;
    finish(bucket, services::Gcs::default().bucket(&address.authority).root(&root_of(&address.segments)))
}

/// Opens a bucket `https://ACCOUNT.blob.core.windows.net/CONTAINER[/PREFIX]`.
#[cfg(feature = "azblob")]
pub(crate) fn azblob(bucket: &str) -> Result<Operator, ChunkError> {
    let address = address_of("azblob", bucket)?;
    let account = address.host().split('.').next().unwrap_or_default();
    let Some((container, prefix)) = address.segments.split_first() else {
        return Err(ChunkError::Config(format!("{bucket:?} names an account, but no container")));
    };
    let mut builder = services::Azblob::default()
        .endpoint(&address.origin())
        .account_name(account)
        .container(container)
        .root(&root_of(prefix));
    if let Ok(key) = std::env::var("AZURE_STORAGE_KEY") {
        builder = builder.account_key(&key);
    }
    finish(bucket, builder)
}

/// Opens a bucket `https://HOST[:PORT]/PATH`.
#[cfg(feature = "webdav")]
pub(crate) fn webdav(bucket: &str) -> Result<Operator, ChunkError> {
    let address = address_of("webdav", bucket)?;
    let mut builder =
        services::Webdav::default().endpoint(&address.origin()).root(&root_of(&address.segments));
    if let (Ok(user), Ok(password)) = (std::env::var("WEBDAV_USERNAME"), std::env::var("WEBDAV_PASSWORD")) {
        builder = builder.username(&user).password(&password);
    }
    finish(bucket, builder)
}

/// Opens a bucket `sftp://[USER@]HOST[:PORT]/PATH`.
#[cfg(feature = "sftp")]
pub(crate) fn sftp(bucket: &str) -> Result<Operator, ChunkError> {
    let address = address_of("sftp", bucket)?;
    let endpoint = format!("ssh://{}", address.authority);
    finish(bucket, services::Sftp::default().endpoint(&endpoint).root(&root_of(&address.segments)))
}

fn finish(bucket: &str, builder: impl opendal::Builder) -> Result<Operator, ChunkError> {
    Operator::new(builder).map_err(|error| ChunkError::Config(format!("bucket {bucket:?}: {error}")))
}
