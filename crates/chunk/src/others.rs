//! Google Cloud Storage, Azure Blob Storage, WebDAV and SFTP: translates a bucket's address to opendal's
//! settings.

use opendal::{Operator, services};

use crate::ChunkError;
use crate::address::root_of;
use crate::kinds::address as address_of;

/// Opens a bucket `gs://BUCKET[/PREFIX]`. As in Google's own clients, `STORAGE_EMULATOR_HOST` is the address
/// of an emulator, which gets no credentials.
#[cfg(feature = "gcs")]
pub(crate) fn gcs(bucket: &str) -> Result<Operator, ChunkError> {
    let address = address_of("gcs", bucket)?;
    let mut builder = services::Gcs::default().bucket(&address.authority).root(&root_of(&address.segments));
    if let Ok(emulator) = std::env::var("STORAGE_EMULATOR_HOST") {
        let endpoint = if emulator.contains("://") { emulator } else { format!("http://{emulator}") };
        builder = builder.endpoint(&endpoint).skip_signature();
    }
    finish(bucket, builder)
}

/// Opens a bucket `https://ACCOUNT.blob.core.windows.net/CONTAINER[/PREFIX]`. If the host is an IP address, as
/// it is for an emulator or for Azure Stack, the account is the first part of the path.
#[cfg(feature = "azblob")]
pub(crate) fn azblob(bucket: &str) -> Result<Operator, ChunkError> {
    let address = address_of("azblob", bucket)?;
    let is_ip = address.host().starts_with('[') || address.host().parse::<std::net::Ipv4Addr>().is_ok();
    let (account, endpoint, path) = match address.segments.split_first() {
        Some((account, path)) if is_ip => (account.as_str(), format!("{}/{account}", address.origin()), path),
        _ => {
            let account = address.host().split('.').next().unwrap_or_default();
            (account, address.origin(), &address.segments[..])
        }
    };
    let Some((container, prefix)) = path.split_first() else {
        return Err(ChunkError::Config(format!("{bucket:?} names an account, but no container")));
    };
    let mut builder = services::Azblob::default()
        .endpoint(&endpoint)
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
    Operator::new(builder)
        .map_err(|error| ChunkError::Config(format!("cannot use bucket {bucket:?}: {error}")))
}
