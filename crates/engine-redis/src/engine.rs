//! The engine: its connections, and the boundary it implements.

use meta::{Changes, Engine, EngineError, Facts, Outcome, Page, Scan, Txn, Want};
use pool::{Asked, Connect, OpenError, Pool, Url, check_version, in_parts};
use redis::{FromRedisValue, InfoDict, Value};

use crate::config::Config;
use crate::connect::{Conn, Connector, Script, add_command, take};
use crate::error::{Failure, Malformed};
use crate::request::{Answer, Request};
use crate::schema::VERSION;
use crate::watch::Watcher;
use crate::{commit, read, scan};

/// The most transactions that one script commits, for a server that runs a script does nothing else.
const MOST_TXNS: usize = 512;

/// Keys that a wipe looks at in one step.
const WIPE_STEP: &[u8] = b"1000";

/// A volume's metadata on a Redis server.
///
/// The server runs one script at a time, so a script is a transaction, and the number that it gives its commits is
/// their order.
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
    /// [`OpenError::Config`] for what the URL says; [`OpenError::Missing`] where there is none, unless `create`;
    /// [`OpenError::NotLimenfs`] and [`OpenError::Newer`] for what others stored there; [`OpenError::Engine`] where the
    /// server cannot be used.
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
        let place = self.place();
        let info = match self.info() {
            Ok(info) => info,
            Err(error) => return vec![format!("the server's configuration is not known: {error}")],
        };
        let field = |name: &str| info.get::<String>(name);
        let mut warnings = Vec::new();
        if field("aof_enabled").as_deref() != Some("1") {
            warnings.push(format!(
                "{place}: the server keeps no append-only file (appendonly no): \
                 it loses what it acknowledged when it ends or the machine loses power"
            ));
        } else {
            match self.setting("appendfsync") {
                Some(when) if when == "always" => {}
                Some(when) => warnings.push(format!(
                    "{place}: the server does not wait for its disk (appendfsync {when}): \
                     it loses a second or more of what it acknowledged when the machine loses power{}",
                    if self.waits_for_log { ", but for what was synced" } else { ", synced or not" }
                )),
                None => warnings.push(format!(
                    "{place}: the server does not say whether it waits for its disk (appendfsync)"
                )),
            }
        }
        match field("maxmemory_policy").as_deref() {
            Some("noeviction") => {}
            policy => warnings.push(format!(
                "{place}: the server may evict keys when its memory is full (maxmemory-policy {}): \
                 it then destroys the volume; set noeviction",
                policy.unwrap_or("unknown")
            )),
        }
        if field("role").is_some_and(|role| role != "master") {
            warnings.push(format!("{place}: the server is a replica"));
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
        let found: Option<Vec<u8>> = self.ask(&[&[b"GET", &schema]], Asked::Look)?;
        if check_version(found.as_deref(), VERSION, &place, create)? {
            // Whoever formats at the same time writes the same.
            let version = VERSION.to_string();
            let steps: &[&[&[u8]]] = &[
                &[b"HSETNX", &state, b"seq", b"0"],
                &[b"HSETNX", &state, b"inodes", &[0; 8]],
                &[b"HSETNX", &state, b"blocks", &[0; 8]],
                &[b"SETNX", &schema, version.as_bytes()],
            ];
            self.ask::<Value>(steps, Asked::Look)?;
        }
        Ok(())
    }

    fn info(&self) -> Result<InfoDict, EngineError> {
        self.ask(&[&[b"INFO"]], Asked::Look)
    }

    /// A setting of the server, if it tells.
    fn setting(&self, name: &str) -> Option<String> {
        let found: Result<(String, String), _> =
            self.ask(&[&[b"CONFIG", b"GET", name.as_bytes()]], Asked::Look);
        found.ok().map(|(_, value)| value)
    }

    /// The answer to the last of some commands.
    fn ask<T: FromRedisValue>(&self, commands: &[&[&[u8]]], asked: Asked) -> Result<T, EngineError> {
        let mut packed = Vec::new();
        commands.iter().for_each(|command| add_command(&mut packed, command));
        self.pool.request(asked, |conn: &mut Conn| -> Result<T, Failure> {
            Ok(take(conn.ask(&packed, commands.len())?)?)
        })
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
            let answer = conn.run(script, prefix, request.bytes())?;
            Ok(read(Answer::new(answer)?)?)
        })
    }

    fn commit_some(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let asked = if txns.iter().all(|txn| txn.effects.is_empty()) { Asked::Look } else { Asked::Change };
        self.run(Script::Commit, &commit::request(txns), asked, |answer| commit::outcomes(txns, answer))
    }
}

impl Engine for RedisEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.run(Script::Read, &read::request(wants), Asked::Look, |mut answer| {
            read::facts(wants.iter(), &mut answer)
        })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        in_parts(txns.chunks(MOST_TXNS), |some| self.commit_some(some))
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
        let (key, timeout) = (self.key("synced"), self.pool.connector().config.params.op_timeout);
        let millis = timeout.as_millis().max(1).to_string();
        let wait: &[&[u8]] = &[b"WAITAOF", b"1", b"0", millis.as_bytes()];
        match self.ask(&[&[b"SET", &key, b"1"], wait], Asked::Look) {
            Ok(Value::Array(parts)) if parts.first() == Some(&Value::Int(0)) => {
                Err(EngineError::transient(format!("{}: the log is not on the disk in time", self.place())))
            }
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
        let mut cursor = b"0".to_vec();
        loop {
            let step: &[&[u8]] = &[b"SCAN", &cursor, b"MATCH", &pattern, b"COUNT", WIPE_STEP];
            let (next, mut found): (Vec<u8>, Vec<Vec<u8>>) = self.ask(&[step], Asked::Look)?;
            found.retain(|key| !kept.contains(key));
            if !found.is_empty() {
                let mut unlink: Vec<&[u8]> = vec![b"UNLINK"];
                unlink.extend(found.iter().map(Vec::as_slice));
                self.ask::<Value>(&[&unlink], Asked::Change)?;
            }
            if next == b"0" {
                break;
            }
            cursor = next;
        }
        let wipe: &[&[u8]] = &[b"EVAL", include_str!("lua/wipe.lua").as_bytes(), b"1", prefix];
        self.ask::<Value>(&[wipe], Asked::Change).map(drop)
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
