//! The tables (`schema.sql`), the functions (`functions.sql`), and the version of the tables.

use std::sync::LazyLock;

use crate::code;
use crate::connection::{Connection, get};
use crate::error::Failure;

/// The version of the tables that this code reads and writes; stored in the one row of table `layout`.
pub const VERSION: u64 = 4;

const TABLES: &str = concat!(include_str!("schema.sql"), include_str!("quota.sql"));

/// Converts the tables from version 3, which had no quotas. Every commit of a client of that version writes
/// to the column that is renamed, and so fails from then on.
const UPGRADE: &str = concat!(
    "ALTER TABLE @log RENAME COLUMN touched TO invalidations; ",
    "ALTER TABLE @node ADD COLUMN quota bigint NOT NULL DEFAULT 0; ",
    include_str!("quota.sql")
);

/// The text of the functions, and the suffix of their names, which is a hash of the text. So this code calls
/// exactly the functions that it was built with.
static FUNCTIONS: LazyLock<(String, String)> = LazyLock::new(|| {
    let sql = code::substituted(include_str!("functions.sql"));
    let suffix = format!("_{:08x}", fnv(sql.as_bytes()));
    (sql, suffix)
});

/// The tables and functions of a volume, which have its prefix: makes statements for them.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    prefix: String,
}

impl Tables {
    pub(crate) fn new(prefix: &str) -> Self {
        Tables { prefix: prefix.to_owned() }
    }

    /// Replaces `@` by the table prefix and `#` by the suffix of the functions.
    pub(crate) fn text(&self, sql: &str) -> String {
        sql.replace('@', &self.prefix).replace('#', &FUNCTIONS.1)
    }

    /// The statements that create the functions. They take a lock first, because two clients that create the
    /// functions at the same time would conflict in the server's catalogue.
    pub(crate) fn functions(&self) -> String {
        self.text(&format!("{LOCK}; {}", FUNCTIONS.0))
    }

    /// The statements that remove all rows, and make open streams of changes fail ([`Failure::Wiped`]). The
    /// sequence numbers continue.
    pub(crate) fn wipe(&self) -> String {
        self.text(&format!(
            "TRUNCATE @node, @edge, @slice, @xattr, @symlink, @acl, @setting, @counter, @usage, @session, @orphan, \
             @lock, @lock_wait, @garbage, @shared, @quota, @log; {ROWS}"
        ))
    }

    /// The statements that drop the tables and functions. They drop nothing if the tables hold a volume.
    pub(crate) fn remove(&self) -> String {
        self.text(&format!("{LOCK}; {}", include_str!("remove.sql")))
    }

    /// The version of the tables, in decimal digits; `None` if the tables do not exist.
    pub(crate) fn version(&self, connection: &mut Connection) -> Result<Option<String>, Failure> {
        let [there] = connection.texts(&self.text("SELECT (to_regclass('@layout') IS NOT NULL)::text"))?;
        if there != "true" {
            return Ok(None);
        }
        let [version] = connection.texts(&self.text("SELECT version::text FROM @layout"))?;
        Ok(Some(version))
    }

    /// Creates the tables, in `schema` if it is given.
    pub(crate) fn make(&self, connection: &mut Connection, schema: Option<&str>) -> Result<(), Failure> {
        let schema = schema.map(|schema| format!("CREATE SCHEMA IF NOT EXISTS {schema};"));
        connection.batch(&self.text(&format!(
            "{LOCK}; {} {TABLES} {ROWS}; INSERT INTO @layout VALUES ({VERSION})",
            schema.unwrap_or_default()
        )))
    }

    /// The latest heartbeat of all sessions.
    pub(crate) fn heartbeat(&self, connection: &mut Connection) -> Result<Option<i64>, Failure> {
        let rows = connection.query(&self.text("SELECT max(heartbeat) FROM @session"), &[])?;
        rows.first().map_or(Ok(None), |row| get(row, 0))
    }

    pub(crate) fn upgrade(&self, connection: &mut Connection) -> Result<(), Failure> {
        connection.batch(&self.text(&format!("{LOCK}; {UPGRADE} UPDATE @layout SET version = {VERSION}")))
    }
}

/// The lock that serializes clients which create the same tables or functions; they would conflict otherwise.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('limenfs @', 0))";

/// Rows that always exist, and a row of the log that makes open streams of changes fail.
const ROWS: &str = "INSERT INTO @counter VALUES ('next_ino', 0), ('next_slice', 0), ('next_session', 0); \
                    INSERT INTO @usage SELECT part, 0, 0 FROM generate_series(0, 63) part; \
                    INSERT INTO @log VALUES (-1, -1, nextval('@seq'), pg_current_xact_id(), now(), NULL)";

/// The hash FNV-1a (RFC 9923) in 32 bits.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    /// The list in `remove.sql` also has the functions of earlier versions, so it is not derived from
    /// `functions.sql`.
    #[test]
    fn every_function_is_dropped_with_the_volume() {
        let (_, listed) = include_str!("remove.sql").split_once("'^@(").unwrap();
        let listed: Vec<&str> = listed.split_once(')').unwrap().0.split('|').collect();
        let created = include_str!("functions.sql").split("CREATE OR REPLACE FUNCTION @").skip(1);
        let created: Vec<&str> = created.map(|text| text.split_once('#').unwrap().0).collect();
        assert!(created.len() > 10);
        assert_eq!(created.iter().find(|name| !listed.contains(name)), None);
    }
}
