//! File locks, and the requests that wait for one.

use meta::{Lock, LockKind, LockOwner, LockWait};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, Error, Result, Row, params};
use types::{Ino, SessionId};

use crate::number::{int, uint};

/// All locks on an inode, in order.
pub(crate) fn of(conn: &Connection, ino: Ino) -> Result<Vec<Lock>> {
    const SQL: &str = "SELECT session, owner, kind, first, last, exclusive, pid FROM lock WHERE ino = ?1";
    let mut statement = conn.prepare_cached(SQL)?;
    let mut locks = statement.query_map([int(ino.0)], |row| lock_at(row, 0))?.collect::<Result<Vec<_>>>()?;
    // The order is that of unsigned numbers, which differs from the order in the table.
    locks.sort_unstable();
    Ok(locks)
}

/// Replaces all locks on the inode.
pub(crate) fn put(conn: &Connection, ino: Ino, locks: &[Lock]) -> Result<()> {
    conn.prepare_cached("DELETE FROM lock WHERE ino = ?1")?.execute([int(ino.0)])?;
    const SQL: &str = "REPLACE INTO lock (session, owner, kind, ino, first, last, exclusive, pid) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    locks.iter().try_for_each(|lock| write(conn, SQL, ino, lock))
}

pub(crate) fn waits(conn: &Connection) -> Result<Vec<LockWait>> {
    const SQL: &str = "SELECT session, owner, kind, first, last, exclusive, pid, ino FROM lock_wait";
    let mut statement = conn.prepare_cached(SQL)?;
    let wait = |row: &Row<'_>| Ok(LockWait { lock: lock_at(row, 0)?, ino: Ino(uint(row.get(7)?)) });
    let mut waits = statement.query_map([], wait)?.collect::<Result<Vec<_>>>()?;
    waits.sort_unstable_by_key(|wait| wait.lock.owner);
    Ok(waits)
}

pub(crate) fn put_wait(conn: &Connection, wait: &LockWait) -> Result<()> {
    const SQL: &str = "REPLACE INTO lock_wait (session, owner, kind, ino, first, last, exclusive, pid) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    write(conn, SQL, wait.ino, &wait.lock)
}

pub(crate) fn drop_wait(conn: &Connection, owner: LockOwner) -> Result<()> {
    const SQL: &str = "DELETE FROM lock_wait WHERE session = ?1 AND owner = ?2 AND kind = ?3";
    let params = params![int(owner.session.0), int(owner.owner), owner.kind.number()];
    conn.prepare_cached(SQL)?.execute(params).map(drop)
}

fn write(conn: &Connection, sql: &str, ino: Ino, lock: &Lock) -> Result<()> {
    let owner = lock.owner;
    conn.prepare_cached(sql)?.execute(params![
        int(owner.session.0),
        int(owner.owner),
        owner.kind.number(),
        int(ino.0),
        int(lock.start),
        int(lock.end),
        lock.exclusive,
        lock.pid,
    ])?;
    Ok(())
}

fn lock_at(row: &Row<'_>, at: usize) -> Result<Lock> {
    let number: u8 = row.get(at + 2)?;
    let kind = LockKind::of(number).ok_or_else(|| {
        let error = FromSqlError::OutOfRange(number.into());
        Error::FromSqlConversionFailure(at + 2, Type::Integer, Box::new(error))
    })?;
    let owner = LockOwner { session: SessionId(uint(row.get(at)?)), owner: uint(row.get(at + 1)?), kind };
    Ok(Lock {
        start: uint(row.get(at + 3)?),
        end: uint(row.get(at + 4)?),
        owner,
        exclusive: row.get(at + 5)?,
        pid: row.get(at + 6)?,
    })
}
