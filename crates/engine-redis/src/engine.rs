//! The engine: its connections, and the boundary it implements.

use std::collections::BTreeMap;

use meta::{Changes, Engine, EngineError, ErrorKind, Facts, Outcome, Page, Scan, Seq, Txn, Want};
use pool::{Connect, Pool, Pooled, Url};
use redis::Value;

use crate::config::Config;
use crate::connect::{Connector, Failure, Script, add_command};
use crate::error::{Intent, OpenError, malformed};
use crate::request::{Answer, Malformed, Request};
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
    /// [`OpenError::Url`] for what the URL says; [`OpenError::Missing`] where there is none, unless `create`;
    /// [`OpenError::NotLimenfs`] and [`OpenError::Newer`] for what others stored there; [`OpenError::Engine`] where the
    /// server cannot be used.
    pub fn open(url: &Url, create: bool) -> Result<Self, OpenError> {
        let config = Config::new(url)?;
        let params = config.params.clone();
        let mut engine = RedisEngine { pool: Pool::new(Connector { config }, &params), waits_for_log: false };
        engine.check_schema(create)?;
        let info = engine.info()?;
        let version = info.get("redis_version").map(String::as_str).unwrap_or_default();
        if !at_least(version, (6, 2)) {
            let message = format!("{}: Redis {version} is too old: 6.2 or later is needed", engine.place());
            return Err(EngineError::permanent(message).into());
        }
        engine.waits_for_log = at_least(version, (7, 2));
        Ok(engine)
    }

    /// The server's name and version, e.g. `Redis 7.0.15`.
    ///
    /// # Errors
    /// Determinate.
    pub fn server(&self) -> Result<String, EngineError> {
        let info = self.info()?;
        let field = |name: &str| info.get(name).map_or("of an unknown version", String::as_str);
        Ok(match info.get("valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", field("redis_version")),
        })
    }

    /// What in the server's configuration can lose data that was acknowledged.
    pub fn warnings(&self) -> Vec<String> {
        let place = self.place();
        let info = match self.info() {
            Ok(info) => info,
            Err(error) => return vec![format!("the server's configuration is not known: {error}")],
        };
        let mut warnings = Vec::new();
        if info.get("aof_enabled").is_none_or(|enabled| enabled != "1") {
            warnings.push(format!(
                "{place}: the server keeps no append-only file (appendonly no): \
                 it loses what it acknowledged when it ends or the machine loses power"
            ));
        } else {
            match self.setting("appendfsync") {
                Ok(Some(when)) if when == "always" => {}
                Ok(Some(when)) => warnings.push(format!(
                    "{place}: the server does not wait for its disk (appendfsync {when}): \
                     it loses a second or more of what it acknowledged when the machine loses power{}",
                    if self.waits_for_log { ", but for what was synced" } else { ", synced or not" }
                )),
                Ok(None) | Err(_) => warnings.push(format!(
                    "{place}: the server does not say whether it waits for its disk (appendfsync)"
                )),
            }
        }
        match info.get("maxmemory_policy").map(String::as_str) {
            Some("noeviction") => {}
            policy => warnings.push(format!(
                "{place}: the server may evict keys when its memory is full (maxmemory-policy {}): \
                 it then destroys the volume; set noeviction",
                policy.unwrap_or("unknown")
            )),
        }
        if info.get("role").is_some_and(|role| role != "master") {
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
        let place = self.place().to_owned();
        let (schema, state) = (self.key("schema"), self.key("state"));
        let found = self.ask(&[&[b"GET", &schema]], Intent::Look)?;
        let found = match found {
            Value::BulkString(digits) => digits,
            Value::Nil if create => {
                // Whoever formats at the same time writes the same.
                let version = VERSION.to_string();
                let steps: &[&[&[u8]]] = &[
                    &[b"HSETNX", &state, b"seq", b"0"],
                    &[b"HSETNX", &state, b"inodes", &[0; 8]],
                    &[b"HSETNX", &state, b"blocks", &[0; 8]],
                    &[b"SETNX", &schema, version.as_bytes()],
                ];
                self.ask(steps, Intent::Look)?;
                return Ok(());
            }
            Value::Nil => return Err(OpenError::Missing(place)),
            _ => return Err(OpenError::NotLimenfs(place)),
        };
        let found = str::from_utf8(&found).ok().and_then(|digits| digits.parse::<u64>().ok());
        match found {
            None => Err(OpenError::NotLimenfs(place)),
            Some(found) if found > VERSION => Err(OpenError::Newer { url: place, found, known: VERSION }),
            Some(_) => Ok(()),
        }
    }

    /// The fields of INFO.
    fn info(&self) -> Result<BTreeMap<String, String>, EngineError> {
        let text = match self.ask(&[&[b"INFO"]], Intent::Look)? {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Value::VerbatimString { text, .. } => text,
            _ => return Err(malformed(self.place(), "INFO gives no text", Intent::Look)),
        };
        let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// A setting of the server, if it tells.
    fn setting(&self, name: &str) -> Result<Option<String>, EngineError> {
        match self.ask(&[&[b"CONFIG", b"GET", name.as_bytes()]], Intent::Look)? {
            Value::Array(parts) => match &parts[..] {
                [_, Value::BulkString(value)] => Ok(Some(String::from_utf8_lossy(value).into_owned())),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// The answer to the last of some commands.
    fn ask(&self, commands: &[&[&[u8]]], intent: Intent) -> Result<Value, EngineError> {
        let mut packed = Vec::new();
        commands.iter().for_each(|command| add_command(&mut packed, command));
        let mut conn = self.pool.get()?;
        let answer = conn.ask(&packed, commands.len());
        self.finish(conn, answer, intent)
    }

    /// The answer of a script, in one round trip.
    fn run<T>(
        &self,
        script: Script,
        request: &Request,
        intent: Intent,
        take: impl FnOnce(Answer) -> Result<T, Malformed>,
    ) -> Result<T, EngineError> {
        let mut conn = self.pool.get()?;
        let answer = conn.run(script, &self.pool.connector().config.prefix, request.bytes());
        let answer = self.finish(conn, answer, intent)?;
        Answer::new(answer).and_then(take).map_err(|Malformed(what)| malformed(self.place(), what, intent))
    }

    /// Gives the connection back, or closes it and all others if it failed: they go to the same server.
    fn finish(
        &self,
        mut conn: Pooled<'_, Connector>,
        answer: Result<Value, Failure>,
        intent: Intent,
    ) -> Result<Value, EngineError> {
        answer.map_err(|failure| {
            if failure.ends_connection() {
                conn.mark_broken();
                drop(conn);
                self.pool.clear();
            }
            failure.into_error(self.place(), intent)
        })
    }

    fn commit_some(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let intent =
            if txns.iter().all(|txn| txn.effects.is_empty()) { Intent::Look } else { Intent::Change };
        self.run(Script::Commit, &commit::request(txns), intent, |answer| commit::outcomes(txns, answer))
    }
}

impl Engine for RedisEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.run(Script::Read, &read::request(wants), Intent::Look, |mut answer| {
            read::facts(wants.iter(), &mut answer)
        })
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let mut outcomes = Vec::with_capacity(txns.len());
        for some in txns.chunks(MOST_TXNS) {
            match self.commit_some(some) {
                Ok(more) => outcomes.extend(more),
                // Some happened, so it is not known of all that they did not.
                Err(error) if !outcomes.is_empty() => {
                    return Err(EngineError { kind: ErrorKind::Indeterminate, ..error });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcomes)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.run(Script::Scan, &scan::request(scan), Intent::Look, |answer| scan::page(scan, answer))
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
        match self.ask(&[&[b"SET", &key, b"1"], wait], Intent::Look) {
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
        let pattern = [&self.pool.connector().config.prefix[..], b"*"].concat();
        let kept = [self.key("schema"), self.key("state")];
        let mut cursor = b"0".to_vec();
        loop {
            let step: &[&[u8]] = &[b"SCAN", &cursor, b"MATCH", &pattern, b"COUNT", WIPE_STEP];
            let damaged = |Malformed(what)| malformed(self.place(), what, Intent::Look);
            let mut answer = Answer::new(self.ask(&[step], Intent::Look)?).map_err(damaged)?;
            cursor = answer.present().map_err(damaged)?;
            let found: Result<Vec<_>, _> = answer.array().map_err(damaged)?.strings().collect();
            let mut found = found.map_err(damaged)?;
            found.retain(|key| !kept.contains(key));
            if !found.is_empty() {
                let mut unlink: Vec<&[u8]> = vec![b"UNLINK"];
                unlink.extend(found.iter().map(Vec::as_slice));
                self.ask(&[&unlink], Intent::Change)?;
            }
            if cursor == b"0" {
                break;
            }
        }
        let prefix = &self.pool.connector().config.prefix;
        self.ask(&[&[b"EVAL", include_str!("lua/wipe.lua").as_bytes(), b"1", prefix]], Intent::Change)?;
        Ok(())
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        let connector = self.pool.connector();
        let (config, place) = (&connector.config, self.place());
        // A connection of its own, for it is mostly waiting.
        let mut conn = connector.connect()?;
        let answer = conn.run(Script::Read, &config.prefix, read::request(&[]).bytes());
        let answer = answer.map_err(|failure| failure.into_error(place, Intent::Look))?;
        let seen = Answer::new(answer).and_then(|mut answer| answer.decimal());
        let seen = seen.map_err(|Malformed(what)| malformed(place, what, Intent::Look))?;
        let key = config.key("changes");
        let watcher = Watcher::new(conn, place.to_owned(), key, config.params.op_timeout, Seq(seen));
        Ok(Some(Box::new(watcher)))
    }
}

/// Whether a version such as "7.0.15" is this one or a later one.
fn at_least(version: &str, least: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= least
}
