//! The engine: its connections, and the boundary it implements.

use meta::{Changes, Engine, EngineError, Facts, Outcome, Page, Scan, Txn, Want};
use pool::{Asked, Connect, OpenError, Pool, Url, check_version, in_parts};
use redis::{FromRedisValue, InfoDict, Pipeline};

use crate::config::Config;
use crate::connect::{Conn, Connector, Script};
use crate::error::{Failure, Malformed};
use crate::request::{Answer, Request};
use crate::schema::VERSION;
use crate::watch::Watcher;
use crate::{commit, read, scan};

/// The most transactions that one script commits, for a server that runs a script does nothing else.
const MOST_TXNS: usize = 512;

/// Keys that a wipe looks at in one step.
const WIPE_STEP: usize = 1000;

/// A volume's metadata on a Redis server.
///
/// The server runs one script at a time, so a script is a transaction, and its commits have numbers in their order.
#[derive(Debug)]
pub struct RedisEngine {
    pool: Pool<Connector>,
    /// Whether the server can tell when its log is on the disk (`WAITAOF`, since 7.2).
    waits_for_log: bool,
}

impl RedisEngine {
    /// Connects, and makes an empty volume if `create` and there is none.
    ///
    /// # Errors
    /// [`OpenError::Config`] for what the URL says; those of [`check_version`] for what is stored there;
    /// [`OpenError::Engine`] where the server cannot be used.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let params = config.params.clone();
        let mut engine = RedisEngine { pool: Pool::new(Connector { config }, &params), waits_for_log: false };
        engine.check_schema(create)?;
        let info = engine.info()?;
        let version: String = info.get("redis_version").unwrap_or_default();
        if !at_least(&version, (6, 2)) {
            let message = format!("{}: Redis {version} is too old: 6.2 or later is needed", engine.place());
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
            None => format!("Redis {}", field("redis_version").as_deref().unwrap_or("of an unknown version")),
        })
    }

    /// What in the server's configuration can lose data that was acknowledged.
    pub fn warnings(&self) -> Vec<String> {
        let info = match self.info() {
            Ok(info) => info,
            Err(error) => return vec![format!("the server's configuration is not known: {error}")],
        };
        let is = |field: &str, value: &str| info.get::<String>(field).map(|found| found == value);
        let mut warnings = Vec::new();
        let mut warn = |what: &str| warnings.push(format!("{}: the server {what}", self.place()));
        if is("aof_enabled", "1") != Some(true) {
            warn(
                "keeps no append-only file (appendonly no): \
                 it loses what it acknowledged when it ends or the machine loses power",
            );
        } else {
            let synced = if self.waits_for_log { "but for what was synced" } else { "synced or not" };
            let found = self.ask(redis::pipe().cmd("CONFIG").arg("GET").arg("appendfsync"), Asked::Look);
            match found.as_ref().map(|(_, value): &(String, String)| &value[..]) {
                Ok("always") => {}
                Ok(when) => warn(&format!(
                    "does not wait for its disk (appendfsync {when}): it loses a second or more of what it \
                     acknowledged when the machine loses power, {synced}"
                )),
                Err(_) => warn("does not say whether it waits for its disk (appendfsync)"),
            }
        }
        if is("maxmemory_policy", "noeviction") != Some(true) {
            let policy: String = info.get("maxmemory_policy").unwrap_or_else(|| "unknown".to_owned());
            warn(&format!(
                "may evict keys when its memory is full (maxmemory-policy {policy}): \
                 it then destroys the volume; set noeviction"
            ));
        }
        if is("role", "master") == Some(false) {
            warn("is a replica");
        }
        warnings
    }

    fn place(&self) -> &str {
        &self.pool.connector().config.shown
    }

    fn key(&self, name: &str) -> Vec<u8> {
        self.pool.connector().config.key(name)
    }

    fn check_schema(&self, create: bool) -> Result<(), OpenError> {
        let place = format!("at {}", self.place());
        let (schema, state) = (self.key("schema"), self.key("state"));
        let found: Option<Vec<u8>> = self.ask(redis::pipe().cmd("GET").arg(&schema), Asked::Look)?;
        if check_version(found.as_deref(), VERSION, &place, create)? {
            // Whoever formats at the same time writes the same.
            let mut format = redis::pipe();
            for (field, value) in [("seq", &b"0"[..]), ("inodes", &[0; 8]), ("blocks", &[0; 8])] {
                format.cmd("HSETNX").arg(&state).arg(field).arg(value);
            }
            format.cmd("SETNX").arg(&schema).arg(VERSION);
            self.ask::<()>(&format, Asked::Look)?;
        }
        Ok(())
    }

    fn info(&self) -> Result<InfoDict, EngineError> {
        self.ask(redis::pipe().cmd("INFO"), Asked::Look)
    }

    /// The answer to the last of some commands.
    fn ask<T: FromRedisValue>(&self, commands: &Pipeline, asked: Asked) -> Result<T, EngineError> {
        self.pool.request(asked, |conn: &mut Conn| conn.ask(commands))
    }

    /// The answer of a script, in one round trip.
    fn run<T>(
        &self,
        script: Script,
        request: &Request,
        asked: Asked,
        read: impl FnOnce(Answer) -> Result<T, Malformed>,
    ) -> Result<T, EngineError> {
        let prefix = &self.pool.connector().config.prefix;
        self.pool.request(asked, |conn: &mut Conn| -> Result<T, Failure> {
            Ok(read(conn.run(script, prefix, request)?)?)
        })
    }
}

impl Engine for RedisEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.run(Script::Read, &read::request(wants), Asked::Look, |mut answer| {
            read::facts(wants, &mut answer)
        })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let parts = txns.chunk_by(|one, next| one.kept_by() == next.kept_by());
        in_parts(parts.flat_map(|part| part.chunks(MOST_TXNS)), |some| {
            let asked =
                if some.iter().all(|txn| txn.effects.is_empty()) { Asked::Look } else { Asked::Change };
            self.run(Script::Commit, &commit::request(some), asked, |answer| commit::outcomes(some, answer))
        })
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.run(Script::Scan, &scan::request(scan), Asked::Look, |answer| scan::page(scan, answer))
    }

    /// With `appendfsync always` all that was acknowledged is on the disk already. With `everysec` a server of 7.2 or
    /// later is asked to wait for it; an older one has no such request, and [`RedisEngine::warnings`] says so.
    fn sync(&self) -> Result<(), EngineError> {
        if !self.waits_for_log {
            return Ok(());
        }
        // The server waits for what the same connection wrote, and its log is in order.
        let timeout = self.pool.connector().config.params.op_timeout.as_millis().max(1);
        let mut wait = redis::pipe();
        wait.cmd("SET").arg(self.key("synced")).arg(1);
        wait.cmd("WAITAOF").arg(1).arg(0).arg(timeout.to_string());
        match self.ask::<(i64, i64)>(&wait, Asked::Look) {
            Ok((0, _)) => Err(self.pool.connector().error("the log is not on the disk in time")),
            Ok(_) => Ok(()),
            // Without a log there is nothing to wait for; `warnings` says so.
            Err(error) if error.message.contains("appendonly is disabled") => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let prefix = &self.pool.connector().config.prefix;
        let pattern = [&prefix[..], b"*"].concat();
        let kept = [self.key("schema"), self.key("state")];
        let mut cursor = 0_u64;
        loop {
            let mut step = redis::pipe();
            step.cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(WIPE_STEP);
            let (next, mut found): (u64, Vec<Vec<u8>>) = self.ask(&step, Asked::Look)?;
            found.retain(|key| !kept.contains(key));
            if !found.is_empty() {
                self.ask::<()>(redis::pipe().cmd("UNLINK").arg(&found), Asked::Change)?;
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let script = include_str!("lua/wipe.lua");
        self.ask(redis::pipe().cmd("EVAL").arg(script).arg(1).arg(prefix), Asked::Change)
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        let connector = self.pool.connector();
        // A connection of its own, for it is mostly waiting.
        Ok(Some(Box::new(Watcher::new(connector.connect()?, &connector.config)?)))
    }
}

/// Whether a version such as "7.0.15" is this one or a later one.
fn at_least(version: &str, least: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= least
}
