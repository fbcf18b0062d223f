//! SQL: values as literals, and what statements are made of. Bytes are written in hexadecimal, so that no value ever needs
//! an escape. Names of tables stand in backquotes with a `@` before them, for which a connection puts the prefix.

use std::fmt::{Display, Write};

use tables::Line;

/// Columns, and the literals that stand in them.
pub(crate) type Row = Vec<(&'static str, String)>;

/// The statements of a file in folder `statements`; one that is not there does not compile. Below what the file says of
/// itself, a semicolon at the end of a line ends a statement. One that begins with IF runs if that variable, which one before
/// it has set, is not 0. `?1` is the first value that it is given.
macro_rules! statements {
    ($name:literal) => {
        include_str!(concat!("statements/", $name, ".sql"))
    };
}
pub(crate) use statements;

/// A string of bytes, or of characters: columns for those take the bytes for UTF-8.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("x'");
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    literal.extend(digits.map(|digit| char::from(DIGITS[usize::from(digit)])));
    literal + "'"
}

pub(crate) fn or_null<T: ToString>(value: Option<T>) -> String {
    value.map_or("NULL".to_owned(), |value| value.to_string())
}

/// What stands in the columns of a line, in their order.
pub(crate) fn literals(line: &Line<'_>) -> Vec<String> {
    let numbers = line.numbers.iter().map(|number| or_null(*number));
    numbers.chain(line.strings.iter().map(|string| or_null(string.as_deref().map(bytes)))).collect()
}

pub(crate) fn row(line: &Line<'_>) -> Row {
    line.columns().zip(literals(line)).collect()
}

/// The condition that each column has its value, by `=` or `<=>`.
pub(crate) fn is<C: Display>(row: &[(C, String)], relation: &str) -> String {
    let each = row.iter().map(|(column, value)| format!("{column} {relation} {value}"));
    if row.is_empty() { "1".to_owned() } else { joined(each, " AND ") }
}

/// The text with these in the places of `?1`, `?2` and so on, of which there are at most nine.
pub(crate) fn fill<T: Display>(text: &str, values: &[T]) -> String {
    let put = |text: String, (place, value): (u8, &T)| text.replace(&format!("?{place}"), &value.to_string());
    (1..).zip(values).fold(text.to_owned(), put)
}

/// The items with commas between.
pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    joined(items, ", ")
}

/// The items with `between` between.
pub(crate) fn joined<T: Display>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    let mut text = String::new();
    for (index, item) in items.into_iter().enumerate() {
        let before = if index > 0 { between } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{before}{item}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_literals() {
        assert_eq!(bytes(b""), "x''");
        assert_eq!(bytes(b"'\x00\xff"), "x'2700ff'");
        assert_eq!(list([1, 2, 3]), "1, 2, 3");
        assert_eq!(fill("(?2, ?1) ?2", &["a", "b"]), "(b, a) b");
        let (ino, id) = (types::Ino(7), types::AclId::from_bytes([9; 16]));
        let key = [meta::Want::Xattrs(ino), meta::Want::Acl(id)].map(|want| row(&tables::wanted(&want)));
        assert_eq!(is(&key.concat(), "="), format!("ino = 7 AND id = x'{}'", "09".repeat(16)));
        let hole = types::Slice { pos: 1, len: 2, source: types::SliceSource::Hole };
        let hole = Line::slice(ino, types::ChunkIndex(3), &hole);
        assert_eq!(list(literals(&hole)), "7, 3, 1, 2, NULL, NULL, NULL, NULL");
        assert!(row(&hole).ends_with(&[("data", "NULL".to_owned())]));
    }
}
