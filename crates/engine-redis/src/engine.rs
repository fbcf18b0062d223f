//! The engine: opens a volume, holds its connections, and implements [`Engine`].

use meta::{Changes, Engine, EngineError, Outcome, Page, RecordKey, Scan, Snapshot, Txn};
use pool::{Connect, Intent, OpenError, Pool, Url, check_version, in_parts};
use redis::{FromRedisValue, InfoDict, Pipeline};

use crate::config::Config;
use crate::connect::{Conn, Connector, Script};
use crate::error::{Failure, Malformed};
use crate::request::{Reply, Request};
use crate::schema::VERSION;
use crate::watch::Watcher;
use crate::{commit, read, scan};

/// The maximum number of transactions in one script call. The server executes nothing else while a script
/// runs.
const MAX_TXNS: usize = 512;

/// The number of keys that one step of a wipe scans.
const WIPE_STEP: usize = 1000;

/// A volume's metadata on a Redis server.
///
/// The server runs one script at a time, so each script is one transaction. Commits are numbered in the order
/// of execution.
#[derive(Debug)]
pub struct RedisEngine {
    pool: Pool<Connector>,
    /// True if the server supports `WAITAOF` (7.2 and later), which waits until its log is on disk.
    waits_for_log: bool,
}

impl RedisEngine {
    /// Connects to the server. Creates an empty volume if `create` is set and none exists.
    ///
    /// # Errors
    /// [`OpenError::Config`] if the URL is invalid; the errors of [`check_version`] for the stored version;
    /// [`OpenError::Engine`] if the server cannot be used.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let params = config.params.clone();
        let mut engine = RedisEngine { pool: Pool::new(Connector { config }, &params), waits_for_log: false };
        engine.check_schema(create)?;
        let info = engine.info()?;
        let version: String = info.get("redis_version").unwrap_or_default();
        if !at_least(&version, (6, 2)) {
            let message = format!("{}: Redis {version} is too old: 6.2 or later is needed", engine.address());
            return Err(EngineError::permanent(message).into());
        }
        engine.waits_for_log = at_least(&version, (7, 2));
        Ok(engine)
    }

    /// The server's name and version, e.g. `Redis 7.0.15`.
    ///
    /// # Errors
    /// Determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        let info = self.info()?;
        let field = |name: &str| info.get::<String>(name);
        Ok(match field("valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", field("redis_version").as_deref().unwrap_or("(unknown version)")),
        })
    }

    /// Describes server settings with which acknowledged data can be lost.
    pub fn warnings(&self) -> Vec<String> {
        let info = match self.info() {
            Ok(info) => info,
            Err(error) => return vec![format!("cannot read the server's configuration: {error}")],
        };
        let is = |field: &str, value: &str| info.get::<String>(field).map(|found| found == value);
        let mut warnings = Vec::new();
        let mut warn = |what: &str| warnings.push(format!("{}: the server {what}", self.address()));
        if is("aof_enabled", "1") != Some(true) {
            warn(
                "keeps no append-only file (appendonly no): \
                 acknowledged changes are lost when the server stops or the machine loses power",
            );
        } else {
            let synced = if self.waits_for_log { "except those that were synced" } else { "synced or not" };
            let found = self.ask(redis::pipe().cmd("CONFIG").arg("GET").arg("appendfsync"), Intent::Read);
            match found.as_ref().map(|(_, value): &(String, String)| &value[..]) {
                Ok("always") => {}
                Ok(when) => warn(&format!(
                    "does not wait for its disk (appendfsync {when}): a second or more of acknowledged changes is \
                     lost when the machine loses power, {synced}"
                )),
                Err(_) => warn("does not report whether it waits for its disk (appendfsync)"),
            }
        }
        if is("maxmemory_policy", "noeviction") != Some(true) {
            let policy: String = info.get("maxmemory_policy").unwrap_or_else(|| "unknown".to_owned());
            warn(&format!(
                "may evict keys when its memory is full (maxmemory-policy {policy}): \
                 eviction destroys the volume; set noeviction"
            ));
        }
        if is("role", "master") == Some(false) {
            warn("is a replica");
        }
        warnings
    }

    fn address(&self) -> &str {
        &self.pool.connector().config.shown
    }

    fn key(&self, name: &str) -> Vec<u8> {
        self.pool.connector().config.key(name)
    }

    fn check_schema(&self, create: bool) -> Result<(), OpenError> {
        let location = format!("at {}", self.address());
        let found: Option<Vec<u8>> =
            self.ask(redis::pipe().cmd("GET").arg(self.key("schema")), Intent::Read)?;
        if check_version(found.as_deref(), VERSION, &location, create)? {
            self.eval(include_str!("lua/format.lua"))?;
        }
        Ok(())
    }

    /// Runs a script that is not loaded.
    fn eval(&self, script: &str) -> Result<(), EngineError> {
        self.ask(redis::pipe().cmd("EVAL").arg(script).arg(1).arg(self.key("")).arg(VERSION), Intent::Change)
    }

    fn info(&self) -> Result<InfoDict, EngineError> {
        self.ask(redis::pipe().cmd("INFO"), Intent::Read)
    }

    /// Sends some commands and returns the answer to the last one, or the first error.
    fn ask<T: FromRedisValue>(&self, commands: &Pipeline, intent: Intent) -> Result<T, EngineError> {
        self.pool.request(intent, |conn: &mut Conn| conn.ask(commands))
    }

    /// Runs a script in one round trip and decodes its answer.
    fn run<T>(
        &self,
        script: Script,
        request: &Request,
        intent: Intent,
        read: impl FnOnce(Reply) -> Result<T, Malformed>,
    ) -> Result<T, EngineError> {
        let prefix = &self.pool.connector().config.prefix;
        self.pool.request(intent, |conn: &mut Conn| -> Result<T, Failure> {
            Ok(read(conn.run(script, prefix, request)?)?)
        })
    }
}

impl Engine for RedisEngine {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.run(Script::Read, &read::request(keys), Intent::Read, |mut answer| {
            read::snapshot(keys, &mut answer)
        })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let parts = txns.chunk_by(|one, next| one.kept_by() == next.kept_by());
        in_parts(parts.flat_map(|part| part.chunks(MAX_TXNS)), |some| {
            let intent =
                if some.iter().all(|txn| txn.effects.is_empty()) { Intent::Read } else { Intent::Change };
            self.run(Script::Commit, &commit::request(some), intent, |answer| commit::outcomes(some, answer))
        })
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.run(Script::Scan, &scan::request(scan), Intent::Read, |answer| scan::page(scan, answer))
    }

    /// With `appendfsync always` all acknowledged data is already on disk. With `everysec`, a server of
    /// version 7.2 or later is asked to wait for its log. An older server has no such command, and
    /// [`RedisEngine::warnings`] reports this.
    fn sync(&self) -> Result<(), EngineError> {
        if !self.waits_for_log {
            return Ok(());
        }
        // WAITAOF covers the writes of the same connection. The log is ordered, so it covers all earlier
        // commits too. If the server rejects the write, for example because its memory is full, nothing
        // proves that the commits of other connections are on disk.
        //
        // The wait ends before the connection's own timeout, which would look as if the server were lost.
        let timeout = (self.pool.connector().config.params.op_timeout * 9 / 10).as_millis().max(1);
        let mut wait = redis::pipe();
        wait.cmd("SET").arg(self.key("synced")).arg(1);
        wait.cmd("WAITAOF").arg(1).arg(0).arg(timeout.to_string());
        match self.ask::<(i64, i64)>(&wait, Intent::Read) {
            Ok((0, _)) => Err(self
                .pool
                .connector()
                .error("timed out while waiting for the log to reach the disk (op_timeout)")),
            Ok(_) => Ok(()),
            // Without a log there is nothing to wait for; `warnings` reports this.
            Err(error) if error.message.contains("appendonly is disabled") => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let pattern = self.key("*");
        // The last step removes the settings, because a later wipe recognizes the volume by them.
        let kept = ["schema", "state", "settings"].map(|name| self.key(name));
        let mut cursor = 0_u64;
        loop {
            let mut step = redis::pipe();
            step.cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(WIPE_STEP);
            let (next, mut found): (u64, Vec<Vec<u8>>) = self.ask(&step, Intent::Read)?;
            found.retain(|key| !kept.contains(key));
            if !found.is_empty() {
                self.ask::<()>(redis::pipe().cmd("UNLINK").arg(&found), Intent::Change)?;
            }
            if next == 0 {
                return self.eval(include_str!("lua/wipe.lua"));
            }
            cursor = next;
        }
    }

    fn remove(&self) -> Result<(), EngineError> {
        self.eval(include_str!("lua/remove.lua"))
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        let connector = self.pool.connector();
        // The stream needs its own connection, because XREAD blocks the connection most of the time.
        Ok(Some(Box::new(Watcher::new(connector.connect()?, &connector.config)?)))
    }
}

/// True if a version such as "7.0.15" is at least `least`.
fn at_least(version: &str, least: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= least
}
