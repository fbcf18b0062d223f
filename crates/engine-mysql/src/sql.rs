//! Values as SQL literals. Bytes are written in hexadecimal, so that no value ever needs an escape.

use std::fmt::{self, Display, Formatter, Write};

use types::AclId;

/// A string of bytes.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

/// A string of characters; the columns for them are utf8mb4.
pub(crate) struct Text<'a>(pub(crate) &'a str);

/// A value, or NULL.
pub(crate) struct Nullable<T>(pub(crate) Option<T>);

impl Display for Bytes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = String::with_capacity(self.0.len() * 2 + 3);
        hex.push_str("x'");
        for byte in self.0 {
            hex.push(char::from(DIGITS[usize::from(byte >> 4)]));
            hex.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        hex.push('\'');
        f.write_str(&hex)
    }
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "_utf8mb4 {}", Bytes(self.0.as_bytes()))
    }
}

impl<T: Display> Display for Nullable<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("NULL"),
        }
    }
}

/// An ACL id as columns hold it: NULL for none.
pub(crate) fn acl_id(id: AclId) -> String {
    if id.is_none() { "NULL".to_owned() } else { Bytes(&id.to_bytes()).to_string() }
}

/// The items with commas between.
pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    joined(items, ", ")
}

/// The items with `between` between.
pub(crate) fn joined<T: Display>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    let mut text = String::new();
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            text.push_str(between);
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{item}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_literals() {
        assert_eq!(Bytes(b"").to_string(), "x''");
        assert_eq!(Bytes(b"'\x00\xff").to_string(), "x'2700ff'");
        assert_eq!(Text("a").to_string(), "_utf8mb4 x'61'");
        assert_eq!(Nullable(None::<u8>).to_string(), "NULL");
        assert_eq!(list([1, 2, 3]), "1, 2, 3");
    }
}
