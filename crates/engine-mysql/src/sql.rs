//! SQL: values as literals, and what statements are made of. Bytes are written in hexadecimal, so that no value ever needs
//! an escape. Names of tables stand in backquotes with a `@` before them, for which a connection puts the prefix.

use std::fmt::{Display, Write};

use tables::values;
use types::AclId;

/// Columns, and the literals that stand in them.
pub(crate) type Row = Vec<(&'static str, String)>;

/// A [`Row`], as `row!(ino = 7, name = bytes(b"a"))`.
macro_rules! row {
    ($($column:ident = $value:expr),*) => { $crate::sql::Row::from([$((stringify!($column), $value.to_string())),*]) };
}
pub(crate) use row;

/// The statements of a file in folder `statements`; one that is not there does not compile. Below what the file says of
/// itself, a semicolon at the end of a line ends a statement. One that begins with IF runs if that variable, which one before
/// it has set, is not 0. `?1` is the first value that it is given.
macro_rules! statements {
    ($name:literal) => {
        include_str!(concat!("statements/", $name, ".sql"))
    };
}
pub(crate) use statements;

/// A string of bytes.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut literal = String::with_capacity(bytes.len() * 2 + 3);
    literal.push_str("x'");
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    literal.extend(digits.map(|digit| char::from(DIGITS[usize::from(digit)])));
    literal + "'"
}

/// A string of characters; the columns for them are utf8mb4.
pub(crate) fn text(text: &str) -> String {
    format!("_utf8mb4 {}", bytes(text.as_bytes()))
}

pub(crate) fn or_null<T: ToString>(value: Option<T>) -> String {
    value.map_or("NULL".to_owned(), |value| value.to_string())
}

pub(crate) fn acl(id: AclId) -> String {
    or_null(values::acl(id).map(|id| bytes(&id)))
}

/// The condition that each column has its value, by `=` or `<=>`.
pub(crate) fn is(row: &[(&str, String)], relation: &str) -> String {
    let each = row.iter().map(|(column, value)| format!("{column} {relation} {value}"));
    if row.is_empty() { "1".to_owned() } else { joined(each, " AND ") }
}

/// The text with these in the places of `?1`, `?2` and so on, of which there are at most nine.
pub(crate) fn fill<T: Display>(text: &str, values: &[T]) -> String {
    let mut pieces = text.split('?');
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for (place, rest) in pieces.filter_map(|piece| piece.split_at_checked(1)) {
        let value = place.parse::<usize>().ok().and_then(|place| values.get(place.checked_sub(1)?));
        // Writing to a string cannot fail.
        let _ = value.map(|value| write!(filled, "{value}"));
        filled.push_str(rest);
    }
    filled
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
        assert_eq!(text("a"), "_utf8mb4 x'61'");
        assert_eq!(acl(AclId::NONE), "NULL");
        assert_eq!(list([1, 2, 3]), "1, 2, 3");
        assert_eq!(is(&row!(ino = 7, name = bytes(b"a")), "="), "ino = 7 AND name = x'61'");
        assert_eq!(fill("(?2, ?1) ?2", &["a", "b"]), "(b, a) b");
    }
}
