//! The engine: its connections, and the boundary it implements.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meta::{Changes, Engine, EngineError, Facts, Order, Outcome, Page, Scan, Seq, Txn, Want};
use pool::{OpenError, Pool, Pooled, Url, check_version};

use crate::commit::{self, Batch};
use crate::config::Config;
use crate::connect::{Connection, Connector};
use crate::error::{Fault, Stage, engine_error};
use crate::read::{self, Answers};
use crate::rows::RowReader;
use crate::watch::Stream;
use crate::{scan, schema};

/// How many of the newest rows of the log are kept, and for how many seconds all are.
const KEPT_OPS: u64 = 16_384;
pub(crate) const KEPT_SECONDS: u64 = 180;
/// After so many transactions of its own, a handle removes the oldest rows of the log, at most twice as many.
const TRIM_EVERY: u64 = 1024;
/// Rows removed by one statement of a wipe.
const WIPE_ROWS: u64 = 10_000;

/// A volume's metadata in the tables of a MySQL or MariaDB database.
#[derive(Debug)]
pub struct MysqlEngine {
    config: Config,
    pool: Pool<Connector>,
    order: Arc<Order>,
    /// Transactions since the log was last trimmed.
    logged: AtomicU64,
}

impl MysqlEngine {
    /// Connects, and checks the version of the tables; makes them if `create` and there are none.
    ///
    /// # Errors
    /// [`OpenError::Config`] for parameters that cannot be, [`OpenError::Missing`] where there is no volume, unless `create`,
    /// [`OpenError::Newer`] for tables of a later limenfs, [`OpenError::Engine`] for all else.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let pool = Pool::new(Connector(config.clone()), &config.params);
        let engine = MysqlEngine { config, pool, order: Arc::default(), logged: AtomicU64::new(0) };
        let p = &engine.config.params.table_prefix;
        let place = format!("at {}", engine.config.place);
        let found = engine.request(Stage::Connect, |conn| schema::version(conn, p))?;
        if check_version(found.as_deref(), schema::VERSION, &place, create)? {
            let made = engine.request(Stage::Connect, |conn| {
                schema::create(conn, p)?;
                schema::version(conn, p)
            })?;
            check_version(made.as_deref(), schema::VERSION, &place, false)?;
        }
        engine.request(Stage::Connect, |conn| {
            if conn.needs_procedure() { schema::create_procedure(conn, p) } else { Ok(()) }
        })?;
        Ok(engine)
    }

    /// The server's name and version, such as "MariaDB 10.11.6".
    ///
    /// # Errors
    /// Determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        self.request(Stage::Read, |conn| Ok(conn.server.name()))
    }

    /// What in the server's configuration can lose what was acknowledged, in whole sentences; empty if it cannot be asked.
    pub fn warnings(&self) -> Vec<String> {
        const SQL: &str = "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog, \
                           @@GLOBAL.read_only";
        let asked = self.request(Stage::Read, |conn| {
            let rows = conn.rows(SQL)?;
            let row = RowReader(rows.first().ok_or(Fault::malformed("no variables"))?);
            Ok([row.number::<u64>(0)?, row.number(1)?, row.number(2)?, row.number(3)?])
        });
        let [flush, binlog, sync, read_only] = match asked {
            Ok(variables) => variables,
            Err(error) => {
                tracing::warn!(%error, "the server's configuration cannot be asked for");
                return Vec::new();
            }
        };
        let mut warnings = Vec::new();
        if flush != 1 {
            warnings.push(format!(
                "innodb_flush_log_at_trx_commit is {flush}: a crash of the server's machine can lose the last second of \
                 acknowledged changes; set it to 1"
            ));
        }
        if binlog != 0 && sync != 1 {
            warnings.push(format!(
                "sync_binlog is {sync}: after a crash replicas can have changes that the server lost, or lack some; set it to 1"
            ));
        }
        if read_only != 0 {
            warnings.push(
                "the server is read-only: it is a replica, or about to be one; name the primary".to_owned(),
            );
        }
        warnings
    }

    /// Runs `work` on a connection. One that failed is closed.
    fn request<R>(
        &self,
        stage: Stage,
        work: impl FnOnce(&mut Connection) -> Result<R, Fault>,
    ) -> Result<R, EngineError> {
        let mut conn = self.pool.get()?;
        work(&mut conn).map_err(|fault| self.failed(&mut conn, fault, stage))
    }

    fn failed(&self, conn: &mut Pooled<'_, Connector>, fault: Fault, stage: Stage) -> EngineError {
        if !fault.leaves_connection() {
            conn.mark_broken();
            if fault.code().is_none() {
                // The server is gone, and with it most likely all other connections.
                self.pool.clear();
            }
        }
        engine_error(&self.config.place, fault, stage)
    }

    /// Commits what fits into one request; more of it in halves.
    fn commit_on(&self, conn: &mut Connection, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, Fault> {
        let p = &self.config.params.table_prefix;
        let mut batch = Batch::new(p, txns, false);
        let mut sets = conn.run(p, &batch.script);
        if sets.as_ref().is_err_and(commit::wants_care) {
            // A block has done that itself.
            if conn.needs_procedure() {
                conn.query("ROLLBACK")?;
            }
            batch = Batch::new(p, txns, true);
            sets = conn.run(p, &batch.script);
        }
        match sets {
            Ok(sets) => batch.outcomes(sets, label),
            Err(Fault::TooLong(_)) if txns.len() > 1 => {
                let (first, second) = txns.split_at(txns.len() / 2);
                let mut outcomes = self.commit_on(conn, first, label)?;
                let rest = self.commit_on(conn, second, label);
                outcomes.extend(rest.map_err(|fault| Fault::Partly(Box::new(fault)))?);
                Ok(outcomes)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Removes the oldest rows of the log now and then.
    fn trim(&self, newest: Seq, txns: usize) {
        let txns = u64::try_from(txns).unwrap_or(u64::MAX);
        let logged = self.logged.fetch_add(txns, Ordering::Relaxed).saturating_add(txns);
        if logged < TRIM_EVERY {
            return;
        }
        self.logged.store(0, Ordering::Relaxed);
        let spared = newest.0.saturating_sub(KEPT_OPS);
        // What stays is removed another time.
        if let Err(error) = self.request(Stage::Read, |conn| self.trim_on(conn, spared, 2 * logged)) {
            tracing::debug!(%error, "the log was not trimmed");
        }
    }

    /// Removes the oldest rows, up to number `spared` and about so many at most. Where they begin is asked first: only
    /// next to a number, not to an expression, do all servers look at no other rows, and wait for none that is being added.
    fn trim_on(&self, conn: &mut Connection, spared: u64, most: u64) -> Result<(), Fault> {
        let p = &self.config.params.table_prefix;
        let old = format!("at < UNIX_TIMESTAMP() - {KEPT_SECONDS}");
        let rows = conn.rows(&format!("SELECT id, {old} FROM `{p}log` ORDER BY id LIMIT 1"))?;
        let Some(oldest) = rows.first().map(RowReader) else { return Ok(()) };
        let last = spared.min(oldest.number::<u64>(0)?.saturating_add(most));
        if oldest.number::<u8>(1)? != 0 {
            conn.query(&format!("DELETE FROM `{p}log` WHERE id <= {last} AND {old}"))?;
        }
        Ok(())
    }
}

impl Engine for MysqlEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        let sql = read::statement(&self.config.params.table_prefix, wants);
        let mut conn = self.pool.get()?;
        let label = self.order.read();
        let facts = conn.rows(&sql).and_then(|rows| Answers::from_rows(rows)?.facts(label, wants));
        facts.map_err(|fault| self.failed(&mut conn, fault, Stage::Read))
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        if txns.is_empty() {
            return Ok(Vec::new());
        }
        let mut conn = self.pool.get()?;
        let writes = txns.iter().filter(|txn| !txn.effects.is_empty()).count();
        if writes == 0 {
            let outcomes = self.commit_on(&mut conn, txns, self.order.read());
            return outcomes.map_err(|fault| self.failed(&mut conn, fault, Stage::Read));
        }
        let outcomes = self.order.commit(|label| {
            let outcomes = self.commit_on(&mut conn, txns, label);
            outcomes.map_err(|fault| self.failed(&mut conn, fault, Stage::Commit))
        })?;
        drop(conn);
        self.trim(Outcome::newest(&outcomes).unwrap_or_default(), writes);
        Ok(outcomes)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        let sql = scan::statement(&self.config.params.table_prefix, scan);
        let mut conn = self.pool.get()?;
        let label = self.order.read();
        let page = conn.rows(&sql).and_then(|rows| scan::page(&rows, label, scan));
        page.map_err(|fault| self.failed(&mut conn, fault, Stage::Read))
    }

    /// Nothing is left to do: a commit is answered when it is as durable as the server's configuration makes it, and
    /// [`MysqlEngine::warnings`] says where that is less than on disk.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let p = &self.config.params.table_prefix;
        self.request(Stage::Read, |conn| {
            conn.query(&format!("UPDATE `{p}layout` SET epoch = epoch + 1 WHERE id = 0"))?;
            for table in schema::tables() {
                // A table of any size, in statements that each take little time.
                loop {
                    conn.query(&format!("DELETE FROM `{p}{table}` LIMIT {WIPE_ROWS}"))?;
                    if conn.affected_rows() < WIPE_ROWS {
                        break;
                    }
                }
            }
            conn.query(&format!("UPDATE `{p}usage` SET inodes = 0, blocks = 0"))?;
            Ok(())
        })
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        let stream = Stream::open(self.pool.connector(), Arc::clone(&self.order))?;
        Ok(Some(Box::new(stream)))
    }
}
