//! Targets of requests, and links to pages.
//!
//! A path in a volume may have any bytes. A link has the path as the field `path`, percent-encoded byte by
//! byte. A form cannot send such a field unchanged, because a browser sends text. So a form has the path in
//! hexadecimal digits as the field `hex`, which is used if `path` is missing or empty.

use std::collections::BTreeMap;

/// The path of a request, and the fields of its query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    page: String,
    fields: BTreeMap<String, Vec<u8>>,
}

impl Query {
    /// Parses the target of a request. If a field is given several times, the last one counts. Returns `None`
    /// if an escape is invalid, or the name of a field is not UTF-8.
    pub fn parse(target: &str) -> Option<Query> {
        let (page, query) = target.split_once('?').unwrap_or((target, ""));
        let mut fields = BTreeMap::new();
        for field in query.split('&').filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            let name = String::from_utf8(decode(name)?).ok()?;
            fields.insert(name, decode(value)?);
        }
        Some(Query { page: page.to_owned(), fields })
    }

    pub fn page(&self) -> &str {
        &self.page
    }

    /// A field that is text and not empty, without spaces around it.
    pub fn text(&self, name: &str) -> Option<&str> {
        let text = std::str::from_utf8(self.fields.get(name)?).ok()?.trim();
        (!text.is_empty()).then_some(text)
    }

    /// Whether the field is present. A browser sends the field of a checkbox only if the box is checked.
    pub fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// The path, normalized: it begins with a slash, and except for the root it ends without one.
    pub fn path(&self) -> Option<Vec<u8>> {
        let given = self.fields.get("path").filter(|path| !path.is_empty()).cloned();
        let path = given.or_else(|| from_hex(self.fields.get("hex")?))?;
        let mut whole = Vec::with_capacity(path.len() + 1);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            whole.push(b'/');
            whole.extend_from_slice(name);
        }
        if whole.is_empty() {
            whole.push(b'/');
        }
        Some(whole)
    }

    /// The bytes of a field that is not empty.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.fields.get(name).map(Vec::as_slice).filter(|bytes| !bytes.is_empty())
    }

    /// The same target without this field.
    pub fn without(&self, name: &str) -> String {
        let fields = self.fields.iter().filter(|(field, _)| *field != name);
        fields.fold(Link::to(&self.page), |link, (field, value)| link.bytes(field, value)).into_text()
    }
}

/// A link to a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link(String);

impl Link {
    /// A link to a page, whose path begins with a slash.
    pub fn to(page: &str) -> Link {
        let path: String = page.split('/').map(|name| encode(name.as_bytes())).collect::<Vec<_>>().join("/");
        // Two slashes at the beginning would name another server.
        Link(format!("/{}", path.trim_start_matches('/')))
    }

    #[must_use]
    pub fn bytes(mut self, name: &str, value: &[u8]) -> Link {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(&encode(name.as_bytes()));
        self.0.push('=');
        self.0.push_str(&encode(value));
        self
    }

    /// As [`Link::bytes`], for text that may be missing.
    #[must_use]
    pub fn text(self, name: &str, value: Option<&str>) -> Link {
        match value {
            Some(value) => self.bytes(name, value.as_bytes()),
            None => self,
        }
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

impl AsRef<str> for Link {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Percent-encodes all bytes except slashes and those that need no escape anywhere in a URL (RFC 3986 section
/// 2.3).
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Decodes a field of a query, in which a plus is a space.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                bytes.extend(from_hex(digits)?);
                rest = after;
            }
            byte => bytes.push(*byte),
        }
    }
    Some(bytes)
}

/// Bytes as hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_a_link() {
        let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let path = [b"/", &all[..]].concat();
        let link = Link::to("/access").bytes("path", &path).text("user", Some("D\\ann & <b>"));
        let query = Query::parse(link.as_ref()).unwrap();
        assert_eq!((query.page(), query.path()), ("/access", Some(path.clone())));
        assert_eq!(query.text("user"), Some("D\\ann & <b>"));
        let form = format!("/access?path=&hex={}", to_hex(&path));
        assert_eq!(Query::parse(&form).unwrap().path(), Some(path));
    }

    #[test]
    fn paths_are_made_regular() {
        for (target, path) in [
            ("/x?path=", None),
            ("/x", None),
            ("/x?path=%2F", Some("/")),
            ("/x?path=a//b/", Some("/a/b")),
            ("/x?path=/a+b%20c", Some("/a b c")),
            ("/x?hex=2f61&path=/b", Some("/b")),
            ("/x?hex=2f6", None),
        ] {
            assert_eq!(Query::parse(target).unwrap().path().as_deref(), path.map(str::as_bytes), "{target}");
        }
        for wrong in ["/x?path=%2", "/x?path=%zz", "/x?%ff=1", "/x?a=%+1"] {
            assert_eq!(Query::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn target_without_the_token_stays_on_this_server() {
        let of = |target| Query::parse(target).unwrap().without("token");
        assert_eq!(of("/?token=1"), "/");
        assert_eq!(of("//evil.example/x?token=1&a=%ff"), "/evil.example/x?a=%FF");
        assert_eq!(of("/a\r\nX: y?token=1"), "/a%0D%0AX%3A%20y");
    }
}
