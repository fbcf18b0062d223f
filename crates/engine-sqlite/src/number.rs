//! Numbers as SQLite stores them: signed, with 64 bits.

/// Converts a number to SQLite's signed form; [`uint`] converts it back. Numbers above `i64::MAX`, which
/// limenfs never creates but a forged request may contain, become negative and convert back unchanged.
pub(crate) fn int(n: u64) -> i64 {
    n as i64
}

pub(crate) fn uint(n: i64) -> u64 {
    n as u64
}
