//! The tables (`schema.sql`), and the version that says which of them there are.

use crate::connect::Connection;
use crate::error::Fault;
use crate::script::{PROCEDURE, Script};

/// The schema version this code reads and writes; `version` of table `layout`.
pub const VERSION: u64 = 2;

/// Each table, made unless it is there.
const TABLES: &str = include_str!("schema.sql");
const BEGINNING: &str = "CREATE TABLE IF NOT EXISTS `@";

/// The tables with records, in the order in which they are emptied.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    let names = TABLES.lines().filter_map(|line| line.strip_prefix(BEGINNING)?.split('`').next());
    names.filter(|name| !["usage", "layout", "trimmed"].contains(name))
}

/// The version of the tables in decimal digits, `None` where there are none.
pub(crate) fn version(conn: &mut Connection) -> Result<Option<Vec<u8>>, Fault> {
    const NO_SUCH_TABLE: u16 = 1146;
    match conn.texts("SELECT version FROM `@layout` WHERE id = 0") {
        Ok(versions) => Ok(versions.into_iter().next().map(String::into_bytes)),
        Err(fault) if fault.code() == Some(NO_SUCH_TABLE) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Makes the tables that are not there. The version comes last, so that half of them are none.
pub(crate) fn create(conn: &mut Connection) -> Result<(), Fault> {
    for statement in TABLES.split_inclusive(";\n") {
        conn.query(statement)?;
    }
    conn.query(&format!("INSERT IGNORE INTO `@layout` (id, version, epoch) VALUES (0, {VERSION}, 1)"))?;
    Ok(())
}

/// Makes the stored procedure, where it is needed and not there.
///
/// # Errors
/// Among others, without the privilege CREATE ROUTINE, which is not needed where it is there.
pub(crate) fn create_procedure(conn: &mut Connection) -> Result<(), Fault> {
    const EXISTS: u16 = 1304;
    let missing = conn.procedure && conn.query(&Script::default().text(true)).is_err();
    match missing.then(|| conn.query(PROCEDURE)) {
        Some(Err(fault)) if fault.code() != Some(EXISTS) => Err(fault),
        _ => Ok(()),
    }
}
