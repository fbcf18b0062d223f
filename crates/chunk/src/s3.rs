//! S3 and compatible servers: translates a bucket's address to opendal's settings.

use std::env;

use opendal::Operator;
use opendal::services::S3;

use crate::ChunkError;
use crate::address::root_of;
use crate::kinds::address as address_of;

/// The region if neither the host nor the environment names one. Amazon's host names without a region are in
/// this region, and other servers expect it unless they are configured otherwise.
const DEFAULT_REGION: &str = "us-east-1";

/// The address of a bucket, in parts.
#[derive(Debug, PartialEq, Eq)]
struct BucketAddress {
    /// `None` if the address has no host: then the environment names the endpoint, or it is Amazon's.
    endpoint: Option<String>,
    bucket: String,
    root: String,
    region: Option<String>,
    /// Whether requests name the bucket in the host, and not in the path.
    is_virtual_host: bool,
}

pub(crate) fn operator(bucket: &str) -> Result<Operator, ChunkError> {
    let bucket_address = BucketAddress::parse(bucket)?;
    let from_env =
        |names: &[&str]| names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()));
    let region = bucket_address.region.or_else(|| from_env(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
    let mut builder = S3::default()
        .bucket(&bucket_address.bucket)
        .root(&bucket_address.root)
        .region(region.as_deref().unwrap_or(DEFAULT_REGION));
    // opendal reads AWS_ENDPOINT_URL by itself; the S3-specific variable takes precedence.
    if let Some(endpoint) = bucket_address.endpoint.or_else(|| from_env(&["AWS_ENDPOINT_URL_S3"])) {
        builder = builder.endpoint(&endpoint);
    }
    if bucket_address.is_virtual_host {
        builder = builder.enable_virtual_host_style();
    }
    if let Some(profile) = from_env(&["AWS_PROFILE"]) {
        builder = builder.profile(&profile);
    }
    Operator::new(builder)
        .map_err(|error| ChunkError::Config(format!("cannot use bucket {bucket:?}: {error}")))
}

impl BucketAddress {
    fn parse(bucket: &str) -> Result<Self, ChunkError> {
        let address = address_of("s3", bucket)?;
        let (root, segments) = (root_of, address.segments.as_slice());
        if address.scheme == "s3" {
            let (bucket, root) = (address.authority.clone(), root(segments));
            return Ok(BucketAddress { endpoint: None, bucket, root, region: None, is_virtual_host: false });
        }
        let (in_host, region) = amazon(address.host());
        if let Some(name) = in_host {
            let rest = address.authority.split_at(name.len() + 1).1;
            // An older host name, `s3-REGION`, is replaced by the present one.
            let rest = match region.as_ref().map(|region| format!("s3-{region}.")) {
                Some(old) if rest.starts_with(&old) => rest.replacen("s3-", "s3.", 1),
                _ => rest.to_owned(),
            };
            let endpoint = format!("{}://{rest}", address.scheme);
            // Amazon's certificates do not cover a host name that begins with a bucket name with dots.
            let is_virtual_host = !name.contains('.');
            return Ok(BucketAddress {
                endpoint: Some(endpoint),
                bucket: name,
                root: root(segments),
                region,
                is_virtual_host,
            });
        }
        let Some((bucket, prefix)) = segments.split_first() else {
            return Err(ChunkError::Config(format!("{bucket:?} names a host, but no bucket")));
        };
        let endpoint = Some(address.origin());
        Ok(BucketAddress {
            endpoint,
            bucket: bucket.clone(),
            root: root(prefix),
            region,
            is_virtual_host: false,
        })
    }
}

/// The bucket and the region in a host name of Amazon: `[BUCKET.]s3[.REGION].amazonaws.com[.cn]`. Older host
/// names have `s3-REGION` instead of `s3.REGION`. Other names that begin with `s3-` are kinds of endpoints,
/// such as `s3-fips.REGION` and `s3-accelerate`.
fn amazon(host: &str) -> (Option<String>, Option<String>) {
    let suffix =
        [".amazonaws.com", ".amazonaws.com.cn"].into_iter().find_map(|suffix| host.strip_suffix(suffix));
    let labels: Vec<&str> = suffix.map(|rest| rest.split('.').collect()).unwrap_or_default();
    let Some(at) = labels.iter().rposition(|label| *label == "s3" || label.starts_with("s3-")) else {
        return (None, None);
    };
    let bucket = (at > 0).then(|| labels[..at].join("."));
    // Such as us-west-2 and us-gov-east-1.
    let is_region = |text: &&str| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.len() >= 3 && parts[0].len() == 2 && parts[parts.len() - 1].parse::<u8>().is_ok()
    };
    let region =
        labels[at].strip_prefix("s3-").filter(is_region).or_else(|| labels[at + 1..].last().copied());
    (bucket, region.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_addresses_parse() {
        let place =
            |endpoint: Option<&str>, bucket: &str, root: &str, region: Option<&str>, is_virtual_host| {
                BucketAddress {
                    endpoint: endpoint.map(str::to_owned),
                    bucket: bucket.to_owned(),
                    root: root.to_owned(),
                    region: region.map(str::to_owned),
                    is_virtual_host,
                }
            };
        for (text, wanted) in [
            ("s3://b", place(None, "b", "/", None, false)),
            ("s3://b/x/y/", place(None, "b", "/x/y", None, false)),
            ("http://127.0.0.1:9000/b", place(Some("http://127.0.0.1:9000"), "b", "/", None, false)),
            ("https://minio.lan/b/vol", place(Some("https://minio.lan"), "b", "/vol", None, false)),
            (
                "https://s3.eu-west-1.amazonaws.com/b/p",
                place(Some("https://s3.eu-west-1.amazonaws.com"), "b", "/p", Some("eu-west-1"), false),
            ),
            (
                "https://b.s3.eu-west-1.amazonaws.com/p",
                place(Some("https://s3.eu-west-1.amazonaws.com"), "b", "/p", Some("eu-west-1"), true),
            ),
            (
                "https://my.b.s3.cn-north-1.amazonaws.com.cn",
                place(Some("https://s3.cn-north-1.amazonaws.com.cn"), "my.b", "/", Some("cn-north-1"), false),
            ),
            (
                "https://b.s3-us-west-2.amazonaws.com",
                place(Some("https://s3.us-west-2.amazonaws.com"), "b", "/", Some("us-west-2"), true),
            ),
            (
                "https://b.s3-fips.us-east-2.amazonaws.com",
                place(Some("https://s3-fips.us-east-2.amazonaws.com"), "b", "/", Some("us-east-2"), true),
            ),
            (
                "https://b.s3-accelerate.amazonaws.com",
                place(Some("https://s3-accelerate.amazonaws.com"), "b", "/", None, true),
            ),
            ("https://b.s3.amazonaws.com", place(Some("https://s3.amazonaws.com"), "b", "/", None, true)),
        ] {
            assert_eq!(BucketAddress::parse(text).unwrap(), wanted, "{text}");
        }
        for bad in ["https://minio.lan", "https://s3.amazonaws.com/", "ftp://h/b", "bucket"] {
            assert!(matches!(BucketAddress::parse(bad), Err(ChunkError::Config(_))), "{bad}");
        }
    }
}
