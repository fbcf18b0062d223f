//! Values as SQL literals. Bytes are written in hexadecimal, so that no value needs an escape.

use std::fmt::{Display, Write};

use crate::line::Line;
use crate::text::{hex, joined, put_hex};

/// Columns and their literals.
pub type ColumnLiterals = Vec<(&'static str, String)>;

/// The size of a row of table `xattr` in blocks, as [`meta::xattr_blocks`] computes it.
pub const XATTR_BLOCKS: &str = "GREATEST(1, (LENGTH(value) + 4095) DIV 4096)";

/// A byte string as a literal. It also serves for texts, because a text column reads the bytes as UTF-8.
pub fn bytes(bytes: &[u8]) -> String {
    format!("x'{}'", hex(bytes))
}

pub fn or_null<T: ToString>(value: Option<T>) -> String {
    value.map_or("NULL".to_owned(), |value| value.to_string())
}

/// The literals of the columns of a line, in their order, separated by commas.
pub fn literals(line: &Line<'_>) -> String {
    let mut text = String::with_capacity(256);
    for number in &line.numbers {
        // An `i64` is formatted faster than an `i128`. Writing to a string cannot fail.
        let _ = match number.map(|number| i64::try_from(number).map_err(|_| number)) {
            Some(Ok(short)) => write!(text, "{short}, "),
            Some(Err(long)) => write!(text, "{long}, "),
            None => write!(text, "NULL, "),
        };
    }
    for string in &line.strings {
        match string {
            Some(string) => {
                text.push_str("x'");
                put_hex(&mut text, string);
                text.push_str("', ");
            }
            None => text.push_str("NULL, "),
        }
    }
    text.truncate(text.len().saturating_sub(2));
    text
}

/// The literals of the columns of a line, in their order.
pub fn each_literal(line: &Line<'_>) -> Vec<String> {
    let numbers = line.numbers.iter().map(|number| or_null(*number));
    numbers.chain(line.strings.iter().map(|string| or_null(string.as_deref().map(bytes)))).collect()
}

pub fn row(line: &Line<'_>) -> ColumnLiterals {
    line.columns().zip(each_literal(line)).collect()
}

/// The condition that each column has its value, with `=` or `<=>`.
pub fn is<C: Display>(row: &[(C, String)], relation: &str) -> String {
    let each = row.iter().map(|(column, value)| format!("{column} {relation} {value}"));
    if row.is_empty() { "1".to_owned() } else { joined(each, " AND ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_literals() {
        assert_eq!(bytes(b""), "x''");
        assert_eq!(bytes(b"'\x00\xff"), "x'2700ff'");
        let (ino, id) = (types::Ino(7), types::AclId::from_bytes([9; 16]));
        let key =
            [meta::RecordKey::Xattrs(ino), meta::RecordKey::Acl(id)].map(|key| row(&crate::row_key(&key)));
        assert_eq!(is(&key.concat(), "="), format!("ino = 7 AND id = x'{}'", "09".repeat(16)));
        let hole = types::Slice { pos: 1, len: 2, source: types::SliceSource::Hole };
        let hole = Line::slice(ino, types::ChunkIndex(3), &hole);
        assert_eq!(literals(&hole), "7, 3, 1, 2, NULL, NULL, NULL, NULL");
        assert!(row(&hole).ends_with(&[("data", "NULL".to_owned())]));
    }
}
