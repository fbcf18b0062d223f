//! The tables (`schema.sql`) and functions (`functions.sql`), and the version that says which of them there are.

use crate::connection::Connection;
use crate::error::Failure;

/// The version of the tables that this code reads and writes; one row in table `layout`.
pub const VERSION: u64 = 2;

const TABLES: &str = include_str!("schema.sql");
const FUNCTIONS: &str = include_str!("functions.sql");

/// Part of the functions' names, so that what is on the server is what this code calls.
const SUFFIX: u32 = fnv(FUNCTIONS.as_bytes());

/// The texts of statements, for one table prefix.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Names { prefix: prefix.to_owned() }
    }

    /// A statement with the prefix for `@` and the functions' suffix for `#`.
    pub(crate) fn text(&self, sql: &str) -> String {
        sql.replace('@', &self.prefix).replace('#', &format!("_{SUFFIX:08x}"))
    }

    /// Makes the functions. Those of two clients at once would meet in the server's catalogue, so one waits.
    pub(crate) fn functions(&self) -> String {
        self.text(&format!("BEGIN; {LOCK}; {FUNCTIONS}; COMMIT"))
    }

    /// Removes all rows, and tells who watches that everything changed. The numbers go on.
    pub(crate) fn wipe(&self) -> String {
        self.text(&format!(
            "BEGIN; TRUNCATE @node, @edge, @slice, @xattr, @symlink, @acl, @setting, @counter, @usage, @session, @orphan, \
             @lock, @lock_wait, @garbage, @shared, @log; {ROWS}; \
             INSERT INTO @log VALUES (-1, -1, nextval('@seq'), pg_current_xact_id(), now(), NULL); COMMIT"
        ))
    }

    /// The version of the tables, in decimal digits; `None` where there are none.
    pub(crate) fn version(&self, connection: &mut Connection) -> Result<Option<String>, Failure> {
        let [there] = connection.texts(&self.text("SELECT (to_regclass('@layout') IS NOT NULL)::text"))?;
        if there != "true" {
            return Ok(None);
        }
        let [version] = connection.texts(&self.text("SELECT version::text FROM @layout"))?;
        Ok(Some(version))
    }

    /// Makes the tables, in `schema` if it is named.
    pub(crate) fn make(&self, connection: &mut Connection, schema: Option<&str>) -> Result<(), Failure> {
        let schema = schema.map(|schema| format!("CREATE SCHEMA IF NOT EXISTS {schema};"));
        let made = connection.batch(&self.text(&format!(
            "BEGIN; {LOCK}; {} {TABLES} {ROWS}; INSERT INTO @layout VALUES ({VERSION}); COMMIT",
            schema.unwrap_or_default()
        )));
        if made.is_err() {
            connection.batch("ROLLBACK")?;
            // Another client may have made them just now.
            if self.version(connection)?.is_none() {
                return made;
            }
        }
        Ok(())
    }
}

/// Two at once would make the same thing.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('limenfs @', 0))";

/// Rows that are always there.
const ROWS: &str = "INSERT INTO @counter VALUES ('next_ino', 0), ('next_slice', 0), ('next_session', 0); \
                    INSERT INTO @usage SELECT part, 0, 0 FROM generate_series(0, 63) part";

/// The hash FNV-1a (RFC 9923) in 32 bits.
const fn fnv(bytes: &[u8]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}
