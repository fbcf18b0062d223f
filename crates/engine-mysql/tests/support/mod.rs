//! Engines on servers of the crate `servers`.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use engine_mysql::MysqlEngine;
use meta::Engine;
use mysql::prelude::Queryable;
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
const SETTINGS: &[&str] =
    &["--innodb-buffer-pool-size=64M", "--performance-schema=off", "--max-connections=300"];

/// The password of the user that owns only the database `limen`.
pub(crate) const PASSWORD: &str = "s3cret-w0rd";

impl Server {
    /// A server for tests that do not crash it.
    pub(crate) fn fast() -> Self {
        Server::start(false, &["--innodb-doublewrite=0"])
    }

    /// A server whose data survives a crash.
    pub(crate) fn durable() -> Self {
        Server::start(true, &[])
    }

    fn start(durable: bool, more: &[&str]) -> Self {
        let arguments = SETTINGS.iter().chain(more).map(|setting| (*setting).to_owned()).collect();
        let settings = ServerSettings { durable, arguments, ..ServerSettings::default() };
        let server = Server(servers::Server::with(Kind::Mariadb, settings));
        let mut root = server.root();
        for host in ["127.0.0.1", "localhost"] {
            root.query_drop(format!("CREATE USER limen@'{host}' IDENTIFIED BY '{PASSWORD}'")).unwrap();
            root.query_drop(format!("GRANT ALL ON limen.* TO limen@'{host}'")).unwrap();
        }
        server
    }

    /// A URL of the database with the parameters of `query`.
    pub(crate) fn url(&self, query: &str) -> Url {
        self.url_as("limen", PASSWORD, query)
    }

    pub(crate) fn url_as(&self, user: &str, password: &str, query: &str) -> Url {
        Url::parse(&format!("mysql://{user}:{password}@127.0.0.1:{}/limen?{query}", self.port)).unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory().join("sock")
    }

    /// A connection of the server's administrator.
    pub(crate) fn root(&self) -> mysql::Conn {
        let socket = self.socket().to_str().map(str::to_owned);
        let opts = mysql::OptsBuilder::new().socket(socket).user(Some("root"));
        mysql::Conn::new(opts).unwrap()
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

/// Prefixes whose tables exist and are not in use.
static FREE: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(mut free) = FREE.lock() {
            free.push(std::mem::take(&mut self.prefix));
        }
    }
}

/// An engine on the shared server, with empty tables that no other test uses.
pub(crate) fn empty() -> (MysqlEngine, Place) {
    empty_with("")
}

/// Like [`empty`], with more parameters.
pub(crate) fn empty_with(query: &str) -> (MysqlEngine, Place) {
    let used = FREE.lock().unwrap().pop();
    let prefix = used.clone().unwrap_or_else(|| format!("t{}_", NEXT.fetch_add(1, Ordering::Relaxed)));
    let url = shared().url(&format!("table_prefix={prefix}&max_idle_conns=2&{LONG_TIMEOUTS}&{query}"));
    let engine = MysqlEngine::open(&url, true).unwrap();
    if used.is_some() {
        engine.wipe().unwrap();
    }
    (engine, Place { prefix })
}
