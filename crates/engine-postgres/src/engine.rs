//! The engine: opens the volume, and implements [`Engine`].

use std::sync::Arc;

use meta::{Changes, Engine, EngineError, Outcome, Page, RecordKey, Scan, Snapshot, SnapshotReader, Txn};
use pool::{Intent, Layout, OpenError, Pool, SnapshotConnection, Url, ensure_version};
use tables::list;

use crate::config::Target;
use crate::connection::{Connection, get};
use crate::gather::Gathered;
use crate::schema::{Tables, VERSION};
use crate::shared::{Shared, Sql};
use crate::{changes, commit};

/// A volume's metadata in a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresEngine {
    shared: Arc<Shared>,
}

/// The oldest supported server, as in `server_version_num`.
const OLDEST: u32 = 130_000;

impl PostgresEngine {
    /// Opens the volume in the database that `url` names. Creates its tables if `create` is true and they do
    /// not exist. Converts tables of the previous version, unless a client of that version uses them.
    ///
    /// # Errors
    /// [`OpenError::Config`] if the URL is invalid, or the server or the encoding of its database is not
    /// supported; [`OpenError::Missing`] if there is no volume and `create` is false; [`OpenError::Newer`]
    /// and [`OpenError::Older`] for a version of the tables that cannot be used; [`OpenError::InUse`] if a
    /// client of the previous version uses them; [`OpenError::Engine`] for everything else.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let (target, params) = Target::parse(url)?;
        let tables = Tables::new(&params.table_prefix);
        let (name, schema) = (target.name.clone(), target.schema.clone());
        let pool = Pool::new(target, &params);
        let [version, version_num, encoding] = pool.request(Intent::Read, |connection| {
            connection.texts(
                "SELECT current_setting('server_version'), current_setting('server_version_num'), \
                 current_setting('server_encoding')",
            )
        })?;
        let refuse = |what: String| Err(OpenError::Config(format!("{name}: {what}")));
        if version_num.parse::<u32>().ok().is_none_or(|number| number < OLDEST) {
            return refuse(format!("the server runs PostgreSQL {version}: use version 13 or newer"));
        }
        if encoding != "UTF8" {
            return refuse(format!(
                "the database's encoding is {encoding}: create a database with ENCODING 'UTF8'"
            ));
        }
        let location = format!("at {name} with table_prefix={}", params.table_prefix);
        // Use Intent::Read, because a creation or conversion whose result is unknown can be repeated.
        let layout = Layout {
            version: || Ok(pool.request(Intent::Read, |on| tables.version(on))?.map(String::into_bytes)),
            make: || pool.request(Intent::Read, |on| tables.make(on, schema.as_deref())),
            heartbeat: || pool.request(Intent::Read, |on| tables.heartbeat(on)),
            upgrade: || pool.request(Intent::Read, |on| tables.upgrade(on)),
        };
        ensure_version(VERSION, &location, create, layout)?;
        let args = list((1..=Gathered::default().args().len()).map(|n| format!("${n}")));
        let call = |function: &str| tables.text(&format!("SELECT row_kind, numbers, bytes FROM {function}"));
        let sql = Sql {
            functions: tables.functions(),
            commit: call(&format!("@commit#(ROW({args})::@args#)")),
            claim: call("@claim#($1, $2, $3, $4, $5, $6, $7)"),
            read: call("@read#($1, $2, $3, $4)"),
        };
        let (numbers, commits) = Default::default();
        Ok(PostgresEngine { shared: Arc::new(Shared { pool, numbers, tables, sql, commits }) })
    }

    /// The server's name and version.
    ///
    /// # Errors
    /// Always determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        const VERSION: &str = "SELECT split_part(current_setting('server_version'), ' ', 1)";
        let [version] = self.shared.pool.request(Intent::Read, |connection| connection.texts(VERSION))?;
        Ok(format!("PostgreSQL {version}"))
    }

    /// Warnings about the server, one sentence each: settings that can lose acknowledged changes, or that it
    /// is a standby.
    pub fn warnings(&self) -> Vec<String> {
        let said = self.shared.pool.request(Intent::Read, |connection| {
            let risks = connection.query(include_str!("warnings.sql"), &[])?;
            risks.iter().map(|risk| get(risk, 0)).collect()
        });
        said.unwrap_or_else(|error| vec![format!("cannot read the server's settings: {error}")])
    }
}

impl Engine for PostgresEngine {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let seq = self.shared.numbers.read();
        self.shared.pool.request(Intent::Read, |connection| self.shared.read(connection, keys, seq))
    }

    fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        let (reads, scans, seq) = (self.shared.clone(), self.shared.clone(), self.shared.numbers.read());
        // The first read creates missing functions, because a read-only transaction cannot. The read inside
        // of the transaction is its first query, and takes the snapshot.
        let begin = |on: &mut Connection| {
            self.shared.read(on, &[], seq)?;
            on.batch("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")?;
            self.shared.read(on, &[], seq).map(drop)
        };
        let read = move |on: &mut Connection, keys: &[RecordKey]| reads.read(on, keys, seq);
        let scan = move |on: &mut Connection, scan: &Scan| scans.page(on, scan, seq);
        SnapshotConnection::begin(self.shared.pool.connector(), begin, read, scan)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        commit::commit(&self.shared, txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        let seq = self.shared.numbers.read();
        self.shared.pool.request(Intent::Read, |connection| self.shared.page(connection, scan, seq))
    }

    /// The server writes its log to disk before it acknowledges a commit, unless `synchronous_commit` is off.
    /// If it is off, this call commits a transaction with `synchronous_commit` on, which also makes all
    /// earlier commits durable.
    fn sync(&self) -> Result<(), EngineError> {
        const SYNC: &str = "SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN \
                            set_config('synchronous_commit', 'on', true) || \
                            pg_logical_emit_message(true, 'limenfs', '')::text END";
        self.shared.pool.request(Intent::Read, |connection| connection.query(SYNC, &[])).map(drop)
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.shared.pool.request(Intent::Change, |connection| connection.batch(&self.shared.tables.wipe()))
    }

    fn remove(&self) -> Result<(), EngineError> {
        self.shared.pool.request(Intent::Change, |connection| connection.batch(&self.shared.tables.remove()))
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(Some(Box::new(changes::open(&self.shared)?)))
    }
}
