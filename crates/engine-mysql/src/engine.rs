//! The engine: its connections, and the implementation of [`Engine`].

use std::sync::Arc;

use meta::{
    Changes, CommitNumbers, Engine, EngineError, Outcome, Page, RecordKey, Scan, Seq, Snapshot,
    SnapshotReader, Txn,
};
use pool::{
    CommitCounter, Connect, Intent, Layout, OpenError, Pool, SnapshotConnection, Url, ensure_version,
    in_halves,
};

use crate::commit::commit;
use crate::config::Config;
use crate::connect::{Connection, plain};
use crate::error::Failure;
use crate::script::Script;
use crate::sql::{bytes, statements};
use crate::{read, scan, schema, watch};

/// How many of the newest rows of the log are kept, and for how many seconds every row is kept.
const KEPT_OPS: u64 = 16_384;
const KEPT_SECONDS: u64 = 180;
/// Each time that a handle has committed this many transactions, it removes the oldest rows of the log, at
/// most twice this number.
const TRIM_EVERY: u64 = 1024;
/// The number of rows that one statement of a wipe removes.
const WIPE_ROWS: u64 = 10_000;

/// A volume's metadata in the tables of a MySQL or MariaDB database.
#[derive(Debug)]
pub struct MysqlEngine {
    pool: Pool<Config>,
    commit_numbers: Arc<CommitNumbers>,
    /// Decides when to trim the log.
    commits: CommitCounter,
}

impl MysqlEngine {
    /// Connects, and checks the version of the tables. If `create` is true and there are no tables, creates
    /// them. Converts tables of the previous version, unless a client of that version uses them.
    ///
    /// # Errors
    /// [`OpenError::Config`] for invalid parameters, [`OpenError::Missing`] if there is no volume and
    /// `create` is false, [`OpenError::Newer`] and [`OpenError::Older`] for a version of the tables that
    /// cannot be used, [`OpenError::InUse`] if a client of the previous version uses the volume,
    /// [`OpenError::Engine`] for everything else.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let params = config.params.clone();
        let pool = Pool::new(config, &params);
        let location = format!("at {}", pool.connector().address());
        // Use Intent::Read, because a creation or conversion whose result is unknown can be repeated.
        let layout = Layout {
            version: || pool.request(Intent::Read, schema::version),
            make: || pool.request(Intent::Read, schema::create),
            heartbeat: || pool.request(Intent::Read, schema::heartbeat),
            upgrade: || pool.request(Intent::Read, schema::upgrade),
        };
        ensure_version(schema::VERSION, &location, create, layout)?;
        pool.request(Intent::Read, schema::create_procedure)?;
        Ok(MysqlEngine { pool, commit_numbers: Arc::default(), commits: Default::default() })
    }

    /// The server's name and version, such as "MariaDB 10.11.6".
    ///
    /// # Errors
    /// Determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        let server =
            self.pool.request(Intent::Read, |conn| conn.texts(include_str!("statements/server.sql")));
        server.map(|server| server.concat())
    }

    /// The server settings that can lose acknowledged changes, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let said =
            self.pool.request(Intent::Read, |conn| conn.texts(include_str!("statements/warnings.sql")));
        said.unwrap_or_else(|error| vec![format!("cannot read the server's settings: {error}")])
    }

    /// Commits the transactions in one request, or in halves if they do not fit into one.
    fn commit_parts(&self, intent: Intent, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, EngineError> {
        in_halves(txns, &mut |txns| {
            self.pool.request(intent, |conn| match commit(conn, txns, label) {
                Err(Failure::TooLong(_)) if txns.len() > 1 => Ok(None),
                done => done.map(Some),
            })
        })
    }

    /// Occasionally removes the oldest rows of the log, except those of open terms.
    fn trim(&self, newest: Seq, txns: usize) {
        if !self.commits.is_due(txns, TRIM_EVERY) {
            return;
        }
        let (spared, most) = (newest.0.saturating_sub(KEPT_OPS), 2 * TRIM_EVERY);
        let trimmed = self.pool.request(Intent::Change, |conn| {
            // The ended terms are read before the range below. So all rows that earlier trims kept for these
            // terms are below the end of that range.
            let ended = "SELECT ops FROM `@pinned` WHERE ops NOT IN (SELECT ops FROM `@fence`) LIMIT 64";
            let ended = conn.rows(ended)?;
            let upto = plain(&conn.row("SELECT upto FROM `@trimmed` WHERE id = 0")?).number(0)?;
            // The rows are selected here, and then deleted by constant bounds. If the DELETE compared the
            // number with an expression, some servers would read other rows too, and wait for rows that are
            // being inserted.
            let rows = conn.rows(&format!(
                "SELECT id, at, UNIX_TIMESTAMP() FROM `@log` WHERE id > {upto} AND id <= {spared} \
                 ORDER BY id LIMIT {most}"
            ))?;
            let (mut last, mut before) = (0, 0);
            for row in rows.iter().map(plain) {
                before = row.number(2)?.saturating_sub(KEPT_SECONDS);
                if row.number(1)? >= before {
                    break;
                }
                last = row.number(0)?;
            }
            if last > 0 {
                let mut script = Script::default();
                // A row in this range that became visible after the SELECT is young: a later trim removes it.
                script.run(statements!("trim"), &[upto.saturating_sub(KEPT_OPS), last, before]);
                for row in ended.iter().map(plain) {
                    script.run(statements!("unpin"), &[bytes(row.bytes(0)?), last.to_string()]);
                }
                conn.query(&script.text(conn.procedure))?;
            }
            Ok::<_, Failure>(())
        });
        // Rows that remain are removed later.
        if let Err(error) = trimmed {
            tracing::debug!(%error, "the log was not trimmed");
        }
    }
}

impl Engine for MysqlEngine {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.pool.request(Intent::Read, |conn| {
            let label = self.commit_numbers.read();
            read::snapshot(&conn.rows(&read::statement(keys))?, label, keys)
        })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let writes = txns.iter().filter(|txn| !txn.effects.is_empty()).count();
        if writes == 0 {
            return self.commit_parts(Intent::Read, txns, self.commit_numbers.read());
        }
        let outcomes = self.commit_numbers.commit(|label| self.commit_parts(Intent::Change, txns, label))?;
        self.trim(Outcome::newest(&outcomes).unwrap_or_default(), writes);
        Ok(outcomes)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.pool.request(Intent::Read, |conn| scan::page(conn, scan, self.commit_numbers.read()))
    }

    fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        let label = self.commit_numbers.read();
        let begin = |conn: &mut Connection| {
            conn.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")?;
            conn.query("START TRANSACTION WITH CONSISTENT SNAPSHOT").map(drop)
        };
        let read = move |conn: &mut Connection, keys: &[RecordKey]| {
            read::snapshot(&conn.rows(&read::statement(keys))?, label, keys)
        };
        let scan = move |conn: &mut Connection, scan: &Scan| scan::page(conn, scan, label);
        SnapshotConnection::begin(self.pool.connector(), begin, read, scan)
    }

    /// Does nothing: a commit is acknowledged when it is as durable as the server's settings make it.
    /// [`MysqlEngine::warnings`] reports settings with which an acknowledged commit may not be on disk.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.pool.request(Intent::Change, |conn| {
            conn.query("UPDATE `@layout` SET epoch = epoch + 1 WHERE id = 0")?;
            let kept = ["usage", "setting", "layout", "trimmed"];
            for table in schema::tables().filter(|table| !kept.contains(table)) {
                // The table may be large, so delete its rows by statements that each take little time.
                let delete = format!("DELETE FROM `@{table}` LIMIT {WIPE_ROWS}");
                while conn.query(&delete).map(|_| conn.affected_rows())? >= WIPE_ROWS {}
            }
            conn.query("UPDATE `@usage` SET inodes = 0, blocks = 0")?;
            // The settings are deleted last, because a later wipe recognizes the volume by them.
            conn.query("DELETE FROM `@setting`").map(drop)
        })
    }

    fn remove(&self) -> Result<(), EngineError> {
        self.pool.request(Intent::Change, schema::remove)
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(Some(Box::new(watch::open(self.pool.connector(), Arc::clone(&self.commit_numbers))?)))
    }
}
