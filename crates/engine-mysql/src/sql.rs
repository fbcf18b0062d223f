//! Helpers to build statements. In statements, table names are in backquotes and begin with `@`, which a
//! connection replaces by the table prefix.

pub(crate) use tables::literal::{
    ColumnLiterals, XATTR_BLOCKS, bytes, each_literal, is, literals, or_null, row,
};
use types::{SessionId, Term};

/// The statements of a file in the directory `statements`; a missing file is a compile error. The file begins
/// with a comment and an empty line. After that, a semicolon at the end of a line ends a statement. A
/// statement that begins with IF runs if its variable, which an earlier statement has set, is not 0. `?1` is
/// the first of the given values.
macro_rules! statements {
    ($name:literal) => {
        include_str!(concat!("statements/", $name, ".sql"))
    };
}
pub(crate) use statements;

/// The key of a term in table `fence`.
pub(crate) fn ops(session: SessionId, term: Term) -> String {
    bytes(&term.key(session))
}

/// The condition that a row of table `fence` belongs to this session.
pub(crate) fn of_session(session: SessionId) -> String {
    format!("ops BETWEEN {} AND {}", ops(session, Term::NONE), ops(session, Term(u32::MAX)))
}
