//! Helpers that build the text of SQL statements.

use std::fmt::{Display, Write};

/// The items, separated by commas.
pub fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    joined(items, ", ")
}

/// The items, separated by `between`.
pub fn joined<T: Display>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    let mut text = String::new();
    for (index, item) in items.into_iter().enumerate() {
        let before = if index > 0 { between } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{before}{item}");
    }
    text
}

/// Replaces `?1`, `?2` and so on by the values. There must be at most nine values.
pub fn fill<T: Display>(text: &str, values: &[T]) -> String {
    let put = |text: String, (place, value): (u8, &T)| text.replace(&format!("?{place}"), &value.to_string());
    (1..).zip(values).fold(text.to_owned(), put)
}

/// The bytes as two hexadecimal digits each.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    put_hex(&mut text, bytes);
    text
}

/// Appends the bytes as two hexadecimal digits each.
pub(crate) fn put_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    text.extend(digits.map(|digit| char::from(DIGITS[usize::from(digit)])));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_placeholders_and_hex_digits() {
        assert_eq!(list([1, 2, 3]), "1, 2, 3");
        assert_eq!(joined([] as [&str; 0], " OR "), "");
        assert_eq!(fill("(?2, ?1) ?2", &["a", "b"]), "(b, a) b");
        assert_eq!(hex(b"'\x00\xff"), "2700ff");
    }
}
