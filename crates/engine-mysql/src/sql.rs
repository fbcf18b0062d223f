//! What statements are made of. Names of tables stand in backquotes with a `@` before them, for which a connection puts the
//! prefix.

pub(crate) use tables::literal::{Row, bytes, is, literals, or_null, row};
use types::{SessionId, Term};

/// The statements of a file in folder `statements`; one that is not there does not compile. Below what the file says of
/// itself, a semicolon at the end of a line ends a statement. One that begins with IF runs if that variable, which one before
/// it has set, is not 0. `?1` is the first value that it is given.
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

/// The condition that a row of table `fence` is of this session.
pub(crate) fn of_session(session: SessionId) -> String {
    format!("ops BETWEEN {} AND {}", ops(session, Term::NONE), ops(session, Term(u32::MAX)))
}
