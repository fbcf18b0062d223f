//! Where a bucket is, as people write it.

use crate::ChunkError;

/// `SCHEME://AUTHORITY/SEGMENT/SEGMENT...`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: String,
    /// `HOST[:PORT]`, or a bucket's name, or for SFTP also `USER@` before it.
    pub(crate) authority: String,
    pub(crate) segments: Vec<String>,
}

impl Address {
    /// # Errors
    /// [`ChunkError::Config`] for what is no such address, or carries a query, a fragment or a password: it is kept in the
    /// volume's settings, where anyone may read it.
    pub(crate) fn parse(text: &str) -> Result<Self, ChunkError> {
        let fail = |what: &str| Err(ChunkError::Config(format!("the bucket {what}")));
        let Some((scheme, rest)) = text.split_once("://") else {
            return fail(&format!("is an address such as https://HOST/BUCKET, not {text:?}"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
            return fail("holds a password, which would be kept in the volume's settings; take it out");
        }
        if authority.is_empty() || text.contains(['?', '#']) || text.contains(char::is_whitespace) {
            return fail(&format!("{text:?} is no plain address"));
        }
        let segments: Vec<String> =
            path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if segments.iter().any(|part| part == "." || part == "..") {
            return fail(&format!("{text:?} goes through . or .."));
        }
        Ok(Address { scheme: scheme.to_ascii_lowercase(), authority: authority.to_owned(), segments })
    }

    /// The host, without a port.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once('@').map_or(self.authority.as_str(), |(_, host)| host);
        host.rsplit_once(':').map_or(host, |(host, _)| host)
    }

    /// `SCHEME://AUTHORITY`
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

/// A path as opendal wants its root.
pub(crate) fn root_of(segments: &[String]) -> String {
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_and_bad_ones_refused() {
        let address = Address::parse("HTTPS://host:9000/bucket//a/b/").unwrap();
        assert_eq!((address.origin().as_str(), address.host()), ("https://host:9000", "host"));
        assert_eq!((address.segments.len(), root_of(&address.segments[1..])), (3, "/a/b".to_owned()));
        assert_eq!(Address::parse("sftp://me@host/x").unwrap().host(), "host");
        for bad in ["", "/a/b", "https://", "https:///b", "s3://b/../c", "https://h/b?x=1", "s3://b c"] {
            assert!(matches!(Address::parse(bad), Err(ChunkError::Config(_))), "{bad}");
        }
        let error = Address::parse("https://me:hunter2@host/b").unwrap_err().to_string();
        assert!(error.contains("password") && !error.contains("hunter2"), "{error}");
    }
}
