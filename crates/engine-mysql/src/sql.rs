//! SQL: values as literals, and what statements are made of. Bytes are written in hexadecimal, so that no value ever needs
//! an escape. Names of tables stand in backquotes with a `@` before them, for which a connection puts the prefix.

use std::fmt::Display;

use tables::{Line, hex, joined};

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
    format!("x'{}'", hex(bytes))
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

#[cfg(test)]
mod tests {
    use tables::list;

    use super::*;

    #[test]
    fn values_are_literals() {
        assert_eq!(bytes(b""), "x''");
        assert_eq!(bytes(b"'\x00\xff"), "x'2700ff'");
        let (ino, id) = (types::Ino(7), types::AclId::from_bytes([9; 16]));
        let key = [meta::Want::Xattrs(ino), meta::Want::Acl(id)].map(|want| row(&tables::wanted(&want)));
        assert_eq!(is(&key.concat(), "="), format!("ino = 7 AND id = x'{}'", "09".repeat(16)));
        let hole = types::Slice { pos: 1, len: 2, source: types::SliceSource::Hole };
        let hole = Line::slice(ino, types::ChunkIndex(3), &hole);
        assert_eq!(list(literals(&hole)), "7, 3, 1, 2, NULL, NULL, NULL, NULL");
        assert!(row(&hole).ends_with(&[("data", "NULL".to_owned())]));
    }
}
