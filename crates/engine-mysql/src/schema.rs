//! The tables (`schema.sql`), and their version.

use crate::connect::{Connection, plain};
use crate::error::Failure;
use crate::script::{PROCEDURE, Script};

/// The version of the tables that this code reads and writes; stored in column `version` of table `layout`.
pub const VERSION: u64 = 4;

/// The statements that create each table that does not exist.
const TABLES: &str = include_str!("schema.sql");

/// The tables, in the order in which a wipe empties them.
pub(crate) fn tables() -> impl DoubleEndedIterator<Item = &'static str> {
    TABLES.lines().filter_map(|line| line.strip_prefix("CREATE TABLE IF NOT EXISTS `@")?.split('`').next())
}

/// The version of the tables in decimal digits; `None` if the tables do not exist.
pub(crate) fn version(conn: &mut Connection) -> Result<Option<Vec<u8>>, Failure> {
    match conn.texts("SELECT version FROM `@layout` WHERE id = 0") {
        Ok(versions) => Ok(versions.into_iter().next().map(String::into_bytes)),
        Err(failure) if failure.code() == Some(1146) => Ok(None), // no such table
        Err(failure) => Err(failure),
    }
}

/// Creates the tables that do not exist. The version is written last, so that an incomplete set of tables has
/// no version. Some of the tables may be those of version 3: a client of that version was killed while it
/// created them, or creates them at the same time. Such tables are converted.
pub(crate) fn create(conn: &mut Connection) -> Result<(), Failure> {
    create_tables(conn)?;
    convert(conn)?;
    let epoch = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)";
    conn.query(&format!("INSERT IGNORE INTO `@layout` VALUES (0, {VERSION}, {epoch})")).map(drop)
}

fn create_tables(conn: &mut Connection) -> Result<(), Failure> {
    TABLES.split_inclusive(";\n").try_for_each(|statement| conn.query(statement).map(drop))
}

/// The latest heartbeat of all sessions.
pub(crate) fn heartbeat(conn: &mut Connection) -> Result<Option<i64>, Failure> {
    let latest = conn.row("SELECT MAX(heartbeat) FROM `@session`")?;
    Ok(plain(&latest).optional(0)?.map(|nanos| nanos as i64))
}

/// Converts the tables from version 3, which had no quotas.
pub(crate) fn upgrade(conn: &mut Connection) -> Result<(), Failure> {
    convert(conn)?;
    create_tables(conn)?;
    conn.query(&format!("UPDATE `@layout` SET version = {VERSION} WHERE id = 0")).map(drop)
}

/// Converts the tables of version 3 that have changed since. Every commit of a client of that version writes
/// to the column that is renamed, and so fails from then on. The renaming comes last: if it does not happen,
/// such a client can continue.
fn convert(conn: &mut Connection) -> Result<(), Failure> {
    let column = TABLES.lines().find(|line| line.starts_with("    quota ")).unwrap_or_default();
    let add = format!("ALTER TABLE `@node` ADD COLUMN {column}");
    let rename = "ALTER TABLE `@log` RENAME COLUMN touched TO invalidations";
    // "Duplicate column name", "Unknown column": the change was made before.
    for (change, is_done) in [(&*add, 1060), (rename, 1054)] {
        match conn.query(change) {
            Err(failure) if failure.code() == Some(is_done) => {}
            changed => drop(changed?),
        }
    }
    Ok(())
}

/// Drops the tables and the procedures. If a volume was formatted there since the wipe, drops nothing. The
/// version is dropped first, so that an incomplete set of tables has no version.
pub(crate) fn remove(conn: &mut Connection) -> Result<(), Failure> {
    // An earlier call that failed may have dropped some of them.
    let (name, names) = ("CONCAT('`', table_name, '`')", tables().rev().map(|table| format!("'`@{table}`'")));
    let names = tables::list(names);
    let left = conn.texts(&format!(
        "SELECT {name} FROM information_schema.tables WHERE table_schema = DATABASE() AND {name} IN ({names}) \
         ORDER BY FIELD({name}, {names})"
    ))?;
    if !left.is_empty() {
        conn.query(&format!(
            "LOCK TABLES {}",
            tables::list(left.iter().map(|table| format!("{table} WRITE")))
        ))?;
        let has_settings = left.iter().any(|table| table.ends_with("setting`"));
        if has_settings && !conn.rows("SELECT 1 FROM `@setting` LIMIT 1")?.is_empty() {
            return conn.query("UNLOCK TABLES").map(drop);
        }
        // Dropping the last table also releases the locks.
        conn.query(&format!("DROP TABLE {}", tables::list(&left)))?;
    }
    // Drop the procedures of other versions too.
    let procedures = "SELECT routine_name FROM information_schema.routines WHERE routine_schema = DATABASE() \
                      AND CONCAT('`', routine_name) REGEXP '^`@run[0-9]+$'";
    let names = conn.texts(procedures)?;
    names.iter().try_for_each(|name| conn.query(&format!("DROP PROCEDURE IF EXISTS `{name}`")).map(drop))
}

/// Creates the stored procedure, if it is needed and does not exist.
///
/// # Errors
/// Among others, a missing privilege CREATE ROUTINE. The privilege is not needed if the procedure exists.
pub(crate) fn create_procedure(conn: &mut Connection) -> Result<(), Failure> {
    let missing = conn.procedure && conn.query(&Script::default().text(true)).is_err();
    match missing.then(|| conn.query(PROCEDURE)) {
        Some(Err(failure)) if failure.code() != Some(1304) => Err(failure),
        _ => Ok(()),
    }
}
