//! The kinds of stores, and the forms of their buckets: one table for the parser and for the help texts.

#[cfg(feature = "remote")]
use crate::ChunkError;
#[cfg(feature = "remote")]
use crate::address::Address;

/// The kind of a store that is a directory.
pub const FILE: &str = "file";
/// The kind of a store that is the memory of a mount.
pub const MEMORY: &str = "memory";

/// A kind of object store.
#[derive(Debug)]
pub struct StoreKind {
    pub name: &'static str,
    pub about: &'static str,
    /// The forms of a bucket's address, each with its scheme and an example. The scheme of a directory is
    /// empty.
    pub buckets: &'static [(&'static str, &'static str)],
}

/// The kinds of stores in this build.
pub const STORES: &[StoreKind] = &[
    StoreKind {
        name: FILE,
        about: "a local directory, or one on a mounted file system",
        buckets: &[("", "/srv/limen/home")],
    },
    StoreKind {
        name: MEMORY,
        about: "the memory of the mount, lost when it is unmounted: for trials",
        buckets: &[],
    },
    #[cfg(feature = "s3")]
    StoreKind {
        name: "s3",
        about: "S3 or a compatible server; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                from the profile AWS_PROFILE",
        buckets: &[
            ("s3", "s3://mybucket/home"),
            ("https", "https://s3.example.org/mybucket/home"),
            ("http", "http://127.0.0.1:9000/mybucket/home"),
        ],
    },
    #[cfg(feature = "gcs")]
    StoreKind {
        name: "gcs",
        about: "Google Cloud Storage, with Google's default credentials",
        buckets: &[("gs", "gs://mybucket/home")],
    },
    #[cfg(feature = "azblob")]
    StoreKind {
        name: "azblob",
        about: "Azure Blob Storage; the key comes from AZURE_STORAGE_KEY",
        buckets: &[
            ("https", "https://account.blob.core.windows.net/mycontainer/home"),
            ("http", "http://account.blob.example/mycontainer/home"),
        ],
    },
    #[cfg(feature = "webdav")]
    StoreKind {
        name: "webdav",
        about: "a WebDAV server; the login comes from WEBDAV_USERNAME and WEBDAV_PASSWORD",
        buckets: &[("https", "https://dav.example.org/home"), ("http", "http://127.0.0.1:8080/home")],
    },
    #[cfg(feature = "sftp")]
    StoreKind {
        name: "sftp",
        about: "an SSH server, through the ssh command and its configuration",
        buckets: &[("sftp", "sftp://user@files.example.org/srv/home")],
    },
    #[cfg(feature = "hdfs")]
    StoreKind {
        name: "hdfs",
        about: "HDFS, through WebHDFS; the user is in the address or in HADOOP_USER_NAME",
        buckets: &[
            ("webhdfs", "webhdfs://user@namenode.example.org:9870/home"),
            ("swebhdfs", "swebhdfs://namenode.example.org:9871/home"),
        ],
    },
];

/// Parses the address of a bucket. Its scheme must be one that stores of this kind use.
#[cfg(feature = "remote")]
pub(crate) fn address(kind: &str, bucket: &str) -> Result<Address, ChunkError> {
    let address = Address::parse(bucket)?;
    let buckets = STORES.iter().find(|store| store.name == kind).map_or(&[][..], |store| store.buckets);
    if buckets.iter().any(|(scheme, _)| *scheme == address.scheme) {
        return Ok(address);
    }
    let schemes: Vec<String> = buckets.iter().map(|(scheme, _)| format!("{scheme}://")).collect();
    Err(ChunkError::Config(format!(
        "the bucket of a store of kind {kind} must begin with {}, not {}://",
        schemes.join(" or "),
        address.scheme
    )))
}
