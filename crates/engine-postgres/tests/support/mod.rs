//! Engines on servers of the crate `servers`.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::Write;
use std::ops::Deref;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use engine_postgres::PostgresEngine;
use pool::Url;
use servers::{Kind, ServerSettings};

/// Timeouts for tests that do not test them: a busy machine may be slow.
pub(crate) const LONG_TIMEOUTS: &str = "op_timeout=60s&connect_timeout=60s";

/// A server of these tests.
#[derive(Debug)]
pub(crate) struct Server(servers::Server);

impl Deref for Server {
    type Target = servers::Server;

    fn deref(&self) -> &servers::Server {
        &self.0
    }
}

/// Settings for all tests.
const SETTINGS: &[&str] = &[
    "max_connections=60",
    "shared_buffers=64MB",
    "pg_stat_statements.track=top",
    "pg_stat_statements.track_planning=off",
    "autovacuum_naptime=5s",
    "log_statement=none",
];

/// More settings for tests that do not crash the server.
const FAST: &[&str] = &["synchronous_commit=off", "full_page_writes=off"];

impl Server {
    /// A server for tests that do not crash it.
    pub(crate) fn fast() -> Self {
        Server::start(false, FAST)
    }

    /// A server whose data survives a crash.
    pub(crate) fn durable() -> Self {
        Server::start(true, &[])
    }

    fn start(durable: bool, more: &[&str]) -> Self {
        let arguments = SETTINGS.iter().chain(more).flat_map(|setting| ["-c", setting]).map(str::to_owned);
        let settings =
            ServerSettings { durable, arguments: arguments.collect(), ..ServerSettings::default() };
        Server(servers::Server::with(Kind::Postgres, settings))
    }

    pub(crate) fn url(&self, query: &str) -> Url {
        Url::parse(&format!("postgres://limen@127.0.0.1:{}/postgres?{query}", self.port)).unwrap()
    }

    /// Starts psql with these statements; its connection stays open until its input is closed.
    pub(crate) fn hold(&self, sql: &str) -> Child {
        let mut child = self.client().stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "{sql}").unwrap();
        child
    }
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The server that the tests of this program share.
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::fast)
}

/// The tables of a volume on the shared server. When this is dropped, another test may use them.
#[derive(Debug)]
pub(crate) struct Place {
    prefix: String,
}

impl Place {
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// Prefixes whose tables exist and are not in use.
static FREE: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(mut free) = FREE.lock() {
            free.push(std::mem::take(&mut self.prefix));
        }
    }
}

/// An engine with empty tables on the shared server, which no other test uses.
pub(crate) fn empty() -> (PostgresEngine, Place) {
    let used = FREE.lock().unwrap().pop();
    let prefix = used.clone().unwrap_or_else(|| format!("t{}_", NEXT.fetch_add(1, Ordering::Relaxed)));
    let url =
        shared().url(&format!("sslmode=disable&max_open_conns=6&table_prefix={prefix}&{LONG_TIMEOUTS}"));
    let engine = PostgresEngine::open(&url, true).unwrap();
    if used.is_some() {
        meta::Engine::wipe(&engine).unwrap();
    }
    (engine, Place { prefix })
}
