//! Changes of table `quota`.

use meta::{QuotaKey, QuotaRule};
use rusqlite::{Connection, Result};
use tables::Line;

use crate::sql::parameters;

/// Sets the rule of a quota, and keeps its counters.
pub(crate) fn put(conn: &Connection, key: QuotaKey, rule: &QuotaRule) -> Result<()> {
    const SQL: &str = "INSERT INTO quota (kind, number, next, max_inodes, max_blocks, soft_inodes, soft_blocks, \
                       root, state, inodes, blocks) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, 0) \
                       ON CONFLICT DO UPDATE SET next = ?3, max_inodes = ?4, max_blocks = ?5, soft_inodes = ?6, \
                       soft_blocks = ?7, root = ?8, state = ?9";
    conn.prepare_cached(SQL)?.execute(parameters(&Line::rule(key, rule))).map(drop)
}

/// Adds to the counters of a quota. Creates a quota that does not exist. SQLite computes a sum that does not
/// fit as a floating point number; `min` and `max` replace it by the nearest integer that fits. If the
/// arguments of `max` are equal, it returns the first one, which is the integer.
pub(crate) fn charge(conn: &Connection, key: QuotaKey, inodes: i64, blocks: i64) -> Result<()> {
    const SQL: &str = "UPDATE quota SET inodes = max(-9223372036854775807 - 1, min(inodes + ?3, 9223372036854775807)), \
                       blocks = max(-9223372036854775807 - 1, min(blocks + ?4, 9223372036854775807)) \
                       WHERE kind = ?1 AND number = ?2";
    let mut line = Line::quota(key);
    line.numbers.extend([inodes, blocks].map(|count| Some(count.into())));
    if conn.prepare_cached(SQL)?.execute(parameters(&line))? == 0 {
        put(conn, key, &QuotaRule::default())?;
        conn.prepare_cached(SQL)?.execute(parameters(&line))?;
    }
    Ok(())
}
