//! Rows of table `quota`.

use meta::{Page, Quota, QuotaKey, QuotaRule, QuotaState, Record, Seq, Snapshot};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, Error, OptionalExtension, Result, Row, params};
use types::{Ino, QuotaId};

use crate::number::{int, uint};

/// The columns, in the order in which [`quota_at`] reads them and [`put`] writes them.
macro_rules! columns {
    () => {
        "kind, number, inodes, blocks, next, max_inodes, max_blocks, soft_inodes, soft_blocks, root, state"
    };
}

/// The quotas after a key, in order.
pub(crate) fn page(conn: &Connection, seq: Seq, after: Option<QuotaKey>, limit: usize) -> Result<Page> {
    const SQL: &str = concat!(
        "SELECT ",
        columns!(),
        " FROM quota WHERE (kind, number) > (?1, ?2) ORDER BY kind, number LIMIT ?3"
    );
    let [kind, number] = after.map_or([-1, 0], id);
    let one_more = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let mut statement = conn.prepare_cached(SQL)?;
    let rows = statement.query_map([kind, number, one_more], quota_at)?;
    let mut records = rows
        .map(|row| row.map(|(key, quota)| Record::Quota(key, Some(quota))))
        .collect::<Result<Vec<Record>>>()?;
    let more = records.len() > limit;
    records.truncate(limit);
    Ok(Page { snapshot: Snapshot { seq, records }, more })
}

pub(crate) fn of(conn: &Connection, key: QuotaKey) -> Result<Option<Quota>> {
    const SQL: &str = concat!("SELECT ", columns!(), " FROM quota WHERE kind = ?1 AND number = ?2");
    conn.prepare_cached(SQL)?.query_row(id(key), |row| Ok(quota_at(row)?.1)).optional()
}

pub(crate) fn put(conn: &Connection, key: QuotaKey, rule: &QuotaRule) -> Result<()> {
    const SQL: &str = concat!(
        "INSERT INTO quota (",
        columns!(),
        ") VALUES (?1, ?2, 0, 0, ?3, ?4, ?5, ?6, ?7, ?8, ?9) \
         ON CONFLICT DO UPDATE SET next = ?3, max_inodes = ?4, max_blocks = ?5, soft_inodes = ?6, \
         soft_blocks = ?7, root = ?8, state = ?9"
    );
    let [kind, number] = id(key);
    conn.prepare_cached(SQL)?
        .execute(params![
            kind,
            number,
            int(rule.outer.0),
            int(rule.max_inodes),
            int(rule.max_blocks),
            int(rule.soft_inodes),
            int(rule.soft_blocks),
            int(rule.root.0),
            rule.state.to_number(),
        ])
        .map(std::mem::drop)
}

pub(crate) fn drop(conn: &Connection, key: QuotaKey) -> Result<()> {
    conn.prepare_cached("DELETE FROM quota WHERE kind = ?1 AND number = ?2")?
        .execute(id(key))
        .map(std::mem::drop)
}

pub(crate) fn charge(conn: &Connection, key: QuotaKey, inodes: i64, blocks: i64) -> Result<()> {
    const SQL: &str =
        "UPDATE quota SET inodes = inodes + ?3, blocks = blocks + ?4 WHERE kind = ?1 AND number = ?2";
    let [kind, number] = id(key);
    let params = [kind, number, inodes, blocks];
    if conn.prepare_cached(SQL)?.execute(params)? == 0 {
        put(conn, key, &QuotaRule::default())?;
        conn.prepare_cached(SQL)?.execute(params)?;
    }
    Ok(())
}

/// Decodes a row that has the columns of `columns!`.
fn quota_at(row: &Row<'_>) -> Result<(QuotaKey, Quota)> {
    let (kind, state) = (row.get(0)?, row.get(10)?);
    let out_of_range = |at, number: u8| {
        let error = FromSqlError::OutOfRange(number.into());
        Error::FromSqlConversionFailure(at, Type::Integer, Box::new(error))
    };
    let key = QuotaKey::from_numbers(kind, uint(row.get(1)?)).ok_or_else(|| out_of_range(0, kind))?;
    let rule = QuotaRule {
        outer: QuotaId(uint(row.get(4)?)),
        max_inodes: uint(row.get(5)?),
        max_blocks: uint(row.get(6)?),
        soft_inodes: uint(row.get(7)?),
        soft_blocks: uint(row.get(8)?),
        root: Ino(uint(row.get(9)?)),
        state: QuotaState::from_number(state).ok_or_else(|| out_of_range(10, state))?,
    };
    Ok((key, Quota { inodes: row.get(2)?, blocks: row.get(3)?, rule }))
}

fn id(key: QuotaKey) -> [i64; 2] {
    let (kind, number) = key.to_numbers();
    [kind.into(), int(number)]
}
