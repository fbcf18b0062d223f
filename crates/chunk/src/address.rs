//! The address of a bucket.

use crate::ChunkError;

/// `SCHEME://AUTHORITY/SEGMENT/SEGMENT...`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: String,
    /// `HOST[:PORT]` or the name of a bucket; for SFTP, `USER@` may precede the host.
    pub(crate) authority: String,
    pub(crate) segments: Vec<String>,
}

impl Address {
    /// # Errors
    /// [`ChunkError::Config`] if `text` is not such an address, or if it contains a query, a fragment or a
    /// password. A password is refused because the address is stored in the volume's settings, which anyone
    /// may read.
    pub(crate) fn parse(text: &str) -> Result<Self, ChunkError> {
        let fail = |what: &str| Err(ChunkError::Config(format!("the bucket {what}")));
        let Some((scheme, rest)) = text.split_once("://") else {
            return fail(&format!("must be an address such as https://HOST/BUCKET, not {text:?}"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
            return fail("contains a password, which the volume's settings would expose; remove it");
        }
        if authority.is_empty() || text.contains(['?', '#']) || text.contains(char::is_whitespace) {
            return fail(&format!(
                "{text:?} is not a plain address: it has no host, or contains '?', '#' or white space"
            ));
        }
        let segments: Vec<String> =
            path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if segments.iter().any(|part| part == "." || part == "..") {
            return fail(&format!("{text:?} contains . or .."));
        }
        Ok(Address { scheme: scheme.to_ascii_lowercase(), authority: authority.to_owned(), segments })
    }

    /// The host, without a port. An IPv6 address keeps its brackets.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once('@').map_or(self.authority.as_str(), |(_, host)| host);
        // The last colon may belong to an IPv6 address, which ends with a bracket.
        let end = host.rfind([':', ']']).filter(|&at| host.as_bytes()[at] == b':');
        end.map_or(host, |at| &host[..at])
    }

    /// `SCHEME://AUTHORITY`
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

/// A path in the form that opendal expects for its root.
pub(crate) fn root_of(segments: &[String]) -> String {
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_invalid_ones_are_refused() {
        let address = Address::parse("HTTPS://host:9000/bucket//a/b/").unwrap();
        assert_eq!((address.origin().as_str(), address.host()), ("https://host:9000", "host"));
        assert_eq!((address.segments.len(), root_of(&address.segments[1..])), (3, "/a/b".to_owned()));
        assert_eq!(Address::parse("sftp://me@host/x").unwrap().host(), "host");
        for text in ["http://[fd00::1]/b", "http://[fd00::1]:9000/b", "sftp://me@[fd00::1]/b"] {
            assert_eq!(Address::parse(text).unwrap().host(), "[fd00::1]", "{text}");
        }
        for bad in ["", "/a/b", "https://", "https:///b", "s3://b/../c", "https://h/b?x=1", "s3://b c"] {
            assert!(matches!(Address::parse(bad), Err(ChunkError::Config(_))), "{bad}");
        }
        let error = Address::parse("https://me:hunter2@host/b").unwrap_err().to_string();
        assert!(error.contains("password") && !error.contains("hunter2"), "{error}");
    }
}
