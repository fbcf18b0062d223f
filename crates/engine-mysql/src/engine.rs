//! The engine: its connections, and the boundary it implements.

use std::sync::Arc;

use meta::{Changes, Engine, EngineError, Facts, Order, Outcome, Page, Scan, Seq, Txn, Want};
use pool::{Asked, Connect, OpenError, Pool, Turns, Url, ensure_version, in_halves};

use crate::commit::commit;
use crate::config::Config;
use crate::connect::plain;
use crate::error::Fault;
use crate::script::Script;
use crate::sql::{bytes, statements};
use crate::{read, scan, schema, watch};

/// How many of the newest rows of the log are kept, and for how many seconds all are.
const KEPT_OPS: u64 = 16_384;
const KEPT_SECONDS: u64 = 180;
/// After so many transactions of its own, a handle removes the oldest rows of the log, at most twice as many.
const TRIM_EVERY: u64 = 1024;
/// Rows removed by one statement of a wipe.
const WIPE_ROWS: u64 = 10_000;

/// A volume's metadata in the tables of a MySQL or MariaDB database.
#[derive(Debug)]
pub struct MysqlEngine {
    pool: Pool<Config>,
    order: Arc<Order>,
    /// Of trimming the log.
    turns: Turns,
}

impl MysqlEngine {
    /// Connects, and checks the version of the tables; makes them if `create` and there are none.
    ///
    /// # Errors
    /// [`OpenError::Config`] for parameters that cannot be, [`OpenError::Missing`] where there is no volume, unless `create`,
    /// [`OpenError::Newer`] for tables of a later limenfs, [`OpenError::Engine`] for all else.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let params = config.params.clone();
        let pool = Pool::new(config, &params);
        let place = format!("at {}", pool.connector().place());
        let version = || pool.request(Asked::Look, schema::version);
        ensure_version(schema::VERSION, &place, create, version, || {
            pool.request(Asked::Look, schema::create)
        })?;
        pool.request(Asked::Look, schema::create_procedure)?;
        Ok(MysqlEngine { pool, order: Arc::default(), turns: Turns::default() })
    }

    /// The server's name and version, such as "MariaDB 10.11.6".
    ///
    /// # Errors
    /// Determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        // It says such as `10.11.6-MariaDB-1`.
        const SERVER: &str = "SELECT CONCAT(IF(VERSION() LIKE '%MariaDB%', 'MariaDB ', 'MySQL '), \
                              SUBSTRING_INDEX(VERSION(), '-', 1))";
        self.pool.request(Asked::Look, |conn| conn.texts(SERVER)).map(|server| server.concat())
    }

    /// What in the server's configuration can lose what was acknowledged, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let said = self.pool.request(Asked::Look, |conn| conn.texts(include_str!("statements/warnings.sql")));
        said.unwrap_or_else(|error| vec![format!("the server's settings are unknown: {error}")])
    }

    /// Commits what fits into one request; more of it in halves.
    fn commit_parts(&self, asked: Asked, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, EngineError> {
        in_halves(txns, &mut |txns| {
            self.pool.request(asked, |conn| match commit(conn, txns, label) {
                Err(Fault::TooLong(_)) if txns.len() > 1 => Ok(None),
                done => done.map(Some),
            })
        })
    }

    /// Removes the oldest rows of the log now and then, but for those of terms that are open.
    fn trim(&self, newest: Seq, txns: usize) {
        if !self.turns.has_come(txns, TRIM_EVERY) {
            return;
        }
        let spared = newest.0.saturating_sub(KEPT_OPS);
        let most = 2 * TRIM_EVERY;
        let trimmed = self.pool.request(Asked::Look, |conn| {
            // First, so that what was passed over of them is not beyond what is read next.
            let ended = "SELECT ops FROM `@pinned` WHERE ops NOT IN (SELECT ops FROM `@fence`) LIMIT 64";
            let ended = conn.rows(ended)?;
            let upto = plain(&conn.row("SELECT upto FROM `@trimmed` WHERE id = 0")?).number(0)?;
            // Which they are is asked first: only next to a number, not to an expression, do all servers look at no other
            // rows, and wait for none that is being added.
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
                // One that has become visible since is young, and goes another time.
                script.run(statements!("trim"), &[upto.saturating_sub(KEPT_OPS), last, before]);
                for row in ended.iter().map(plain) {
                    script.run(statements!("unpin"), &[bytes(row.bytes(0)?), last.to_string()]);
                }
                conn.query(&script.text(conn.procedure))?;
            }
            Ok::<_, Fault>(())
        });
        // What stays is removed another time.
        if let Err(error) = trimmed {
            tracing::debug!(%error, "the log was not trimmed");
        }
    }
}

impl Engine for MysqlEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.pool.request(Asked::Look, |conn| {
            let label = self.order.read();
            read::facts(&conn.rows(&read::statement(wants))?, label, wants)
        })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let writes = txns.iter().filter(|txn| !txn.effects.is_empty()).count();
        if writes == 0 {
            return self.commit_parts(Asked::Look, txns, self.order.read());
        }
        let outcomes = self.order.commit(|label| self.commit_parts(Asked::Change, txns, label))?;
        self.trim(Outcome::newest(&outcomes).unwrap_or_default(), writes);
        Ok(outcomes)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.pool.request(Asked::Look, |conn| scan::page(conn, scan, self.order.read()))
    }

    /// Nothing is left to do: a commit is answered when it is as durable as the server's configuration makes it, and
    /// [`MysqlEngine::warnings`] says where that is less than on disk.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.pool.request(Asked::Look, |conn| {
            conn.query("UPDATE `@layout` SET epoch = epoch + 1 WHERE id = 0")?;
            for table in schema::tables() {
                // A table of any size, in statements that each take little time.
                loop {
                    conn.query(&format!("DELETE FROM `@{table}` LIMIT {WIPE_ROWS}"))?;
                    if conn.affected_rows() < WIPE_ROWS {
                        break;
                    }
                }
            }
            conn.query("UPDATE `@usage` SET inodes = 0, blocks = 0").map(drop)
        })
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(Some(Box::new(watch::open(self.pool.connector(), Arc::clone(&self.order))?)))
    }
}
