//! The tables (`schema.sql`) and functions (`functions.sql`), and the version that says which of them there are.

use pool::{Asked, Failed, OpenError, check_version};

use crate::connection::Connection;
use crate::error::Failure;

/// The version of the tables that this code reads and writes; one row in table `layout`.
pub const VERSION: u64 = 1;

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

    /// Brings the database to [`VERSION`], from nothing if `create`.
    ///
    /// # Errors
    /// [`OpenError::Missing`] where there are no tables unless `create`, [`OpenError::Newer`] for a version above
    /// [`VERSION`].
    pub(crate) fn prepare(
        &self,
        connection: &mut Connection,
        name: &str,
        schema: Option<&str>,
        create: bool,
    ) -> Result<(), OpenError> {
        let fail = |failure: Failure| OpenError::Engine(failure.engine_error(name, Asked::Look));
        let place = format!("at {name} with table_prefix={}", self.prefix);
        let known = "SELECT to_regclass('@layout') IS NOT NULL AS there";
        let there = |connection: &mut Connection| -> Result<bool, Failure> {
            let rows = connection.query(&self.text(known), &[])?;
            rows.first().and_then(|row| row.try_get(0).ok()).ok_or(Failure::Malformed("no table name"))
        };
        if !there(connection).map_err(fail)? {
            check_version(None, VERSION, &place, create)?;
            let schema =
                schema.map(|schema| format!("CREATE SCHEMA IF NOT EXISTS {schema};")).unwrap_or_default();
            let tables = self.text(&format!(
                "BEGIN; {LOCK}; {schema} {TABLES} {ROWS}; INSERT INTO @layout VALUES ({VERSION}); COMMIT"
            ));
            // Another client may have made them just now.
            if let Err(failure) = connection.batch(&tables) {
                connection.batch("ROLLBACK").map_err(fail)?;
                if !there(connection).map_err(fail)? {
                    return Err(fail(failure));
                }
            }
        }
        let rows = connection.query(&self.text("SELECT version::text FROM @layout"), &[]).map_err(fail)?;
        let found: Option<&str> = rows.first().and_then(|row| row.try_get(0).ok());
        let found = found.ok_or_else(|| fail(Failure::Malformed("no version in table layout")))?;
        check_version(Some(found.as_bytes()), VERSION, &place, create).map(drop)
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
