//! The tables (`schema.sql`), and the version that says which of them there are.

use crate::connect::Connection;
use crate::effect::SLOTS;
use crate::error::Fault;
use crate::rows::RowReader;
use crate::script;

/// The schema version this code reads and writes; `version` of table `layout`.
pub const VERSION: u64 = 1;

/// Each table, made unless it is there.
const TABLES: &str = include_str!("schema.sql");
const BEGINNING: &str = "CREATE TABLE IF NOT EXISTS `@";

/// The tables with records, in the order in which they are emptied.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    let names = TABLES.lines().filter_map(|line| line.strip_prefix(BEGINNING)?.split('`').next());
    names.filter(|name| !["usage", "layout"].contains(name))
}

/// The version of the tables in decimal digits, `None` where there are none.
pub(crate) fn version(conn: &mut Connection, p: &str) -> Result<Option<Vec<u8>>, Fault> {
    const NO_SUCH_TABLE: u16 = 1146;
    match conn.rows(&format!("SELECT version FROM `{p}layout` WHERE id = 0")) {
        Ok(rows) => rows.first().map(|row| Ok(RowReader(row).bytes(0)?.to_vec())).transpose(),
        Err(fault) if fault.code() == Some(NO_SUCH_TABLE) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Makes the tables that are not there. The version comes last, so that half of them are none.
pub(crate) fn create(conn: &mut Connection, p: &str) -> Result<(), Fault> {
    for statement in TABLES.split_inclusive(";\n") {
        conn.query(&statement.replace("`@", &format!("`{p}")))?;
    }
    let slots = crate::sql::list((0..SLOTS).map(|slot| format!("({slot}, 0, 0)")));
    conn.query(&format!("INSERT IGNORE INTO `{p}usage` (slot, inodes, blocks) VALUES {slots}"))?;
    conn.query(&format!("INSERT IGNORE INTO `{p}layout` (id, version, epoch) VALUES (0, {VERSION}, 1)"))?;
    Ok(())
}

/// Makes the stored procedure, if it is not there.
///
/// # Errors
/// Among others, without the privilege CREATE ROUTINE.
pub(crate) fn create_procedure(conn: &mut Connection, p: &str) -> Result<(), Fault> {
    const EXISTS: u16 = 1304;
    match conn.query(&script::procedure(p)) {
        Err(fault) if fault.code() != Some(EXISTS) => Err(fault),
        _ => Ok(()),
    }
}
