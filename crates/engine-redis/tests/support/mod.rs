//! Engines on servers of the crate `servers`.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use engine_redis::RedisEngine;
use pool::Url;
use servers::{Kind, ServerSettings};

/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Timeouts for tests that do not test them: a busy machine may be slow.
const LONG_TIMEOUTS: &str = "&op_timeout=60s&connect_timeout=60s";

/// A server of these tests.
#[derive(Debug)]
pub struct Server(servers::Server);

impl Deref for Server {
    type Target = servers::Server;

    fn deref(&self) -> &servers::Server {
        &self.0
    }
}

/// A new volume on a server that the tests of a binary share.
pub fn engine() -> (RedisEngine, Arc<Server>) {
    let server = shared();
    (server.volume(LONG_TIMEOUTS), server)
}

pub fn shared() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Server::start(&[]));
        *shared = Arc::downgrade(&server);
        server
    })
}

impl Server {
    /// A server that writes no log, unless the arguments say so.
    pub fn start(arguments: &[&str]) -> Server {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Server(servers::Server::with(Kind::Redis, ServerSettings { arguments, ..ServerSettings::default() }))
    }

    /// A server that syncs its log at every commit.
    pub fn durable() -> Server {
        Server(servers::Server::start(Kind::Redis, true))
    }

    /// Starts a server with exactly these arguments, which listens on `port`.
    pub fn start_at(port: u16, arguments: Vec<String>) -> Server {
        let settings = ServerSettings { arguments, port: Some(port), ..ServerSettings::default() };
        Server(servers::Server::with(Kind::Redis, settings))
    }

    /// A new empty volume with its own prefix. `more` are further parameters that begin with &.
    pub fn volume(&self, more: &str) -> RedisEngine {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("case{}_", NEXT.fetch_add(1, Ordering::Relaxed));
        self.open(&format!("?table_prefix={prefix}{more}"))
    }

    pub fn open(&self, after_port: &str) -> RedisEngine {
        RedisEngine::open(&self.url(after_port), true).unwrap()
    }

    pub fn url(&self, after_port: &str) -> Url {
        Url::parse(&format!("redis://127.0.0.1:{}{after_port}", self.port)).unwrap()
    }

    /// Runs a command on a new connection.
    pub fn ask<A: redis::ToRedisArgs + std::fmt::Debug>(&self, command: &[A]) -> redis::Value {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_connection_with_timeout(TIMEOUT).unwrap();
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        cmd.query(&mut connection).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }
}
