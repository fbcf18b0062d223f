//! Engines on servers of the crate `servers`.

#![allow(dead_code, reason = "not every test binary needs all of it")]

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use engine_etcd::{EtcdEngine, OpenError};
use pool::Url;
use servers::{Kind, ServerSettings};

/// A server of these tests.
#[derive(Debug)]
pub(crate) struct Server(servers::Server);

impl Deref for Server {
    type Target = servers::Server;

    fn deref(&self) -> &servers::Server {
        &self.0
    }
}

/// The server that the tests of this binary share.
pub(crate) fn shared() -> Arc<Server> {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    server.upgrade().unwrap_or_else(|| {
        // These tests do not check durability across a power loss.
        let settings = ServerSettings { in_memory: true, ..ServerSettings::default() };
        let new = Arc::new(Server(servers::Server::with(Kind::Etcd, settings)));
        *server = Arc::downgrade(&new);
        new
    })
}

/// Timeouts for tests that do not test them: a busy machine may be slow.
const LONG_TIMEOUTS: &str = "&op_timeout=60s&connect_timeout=60s";

/// An empty volume on the shared server.
pub(crate) fn empty() -> (EtcdEngine, Arc<Server>) {
    let server = shared();
    (EtcdEngine::open(&server.url(&prefix(), LONG_TIMEOUTS), true).expect("a volume"), server)
}

/// A prefix that no other volume uses.
pub(crate) fn prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("t{}_", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Server {
    pub(crate) fn start() -> Self {
        Server(servers::Server::start(Kind::Etcd, true))
    }

    /// A cluster of three members.
    pub(crate) fn cluster() -> [Self; 3] {
        let peers = [(); 3].map(|()| format!("http://127.0.0.1:{}", servers::free_port()));
        let named = peers.iter().enumerate().map(|(number, peer)| format!("m{number}={peer}"));
        let cluster = named.collect::<Vec<_>>().join(",");
        let start = |number: usize| {
            let peer = &peers[number];
            // Later arguments replace earlier ones.
            let arguments = [
                ["--name", &format!("m{number}")],
                ["--listen-peer-urls", peer],
                ["--initial-advertise-peer-urls", peer],
                ["--initial-cluster", &cluster],
                ["--heartbeat-interval", "100"],
                ["--election-timeout", "1000"],
            ];
            let arguments = arguments.concat().into_iter().map(str::to_owned).collect();
            let settings = ServerSettings { in_memory: true, arguments, ..ServerSettings::default() };
            Server(servers::Server::with(Kind::Etcd, settings))
        };
        // No member is up before a second one runs.
        std::thread::scope(|scope| {
            let starts = [0, 1, 2].map(|number| {
                let start = &start;
                scope.spawn(move || start(number))
            });
            starts.map(|start| start.join().expect("a member that starts"))
        })
    }

    pub(crate) fn url(&self, prefix: &str, more: &str) -> Url {
        self.url_as("", prefix, more)
    }

    /// The URL with the login `user:password@`.
    pub(crate) fn url_as(&self, login: &str, prefix: &str, more: &str) -> Url {
        let url = format!("etcd://{login}127.0.0.1:{}/?table_prefix={prefix}{more}", self.port);
        Url::parse(&url).expect("a URL")
    }

    pub(crate) fn open(&self, prefix: &str, create: bool) -> Result<EtcdEngine, OpenError> {
        EtcdEngine::open(&self.url(prefix, ""), create)
    }

    /// Sends a request to etcd's JSON gateway.
    pub(crate) fn post(&self, path: &str, body: &str) {
        let request = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = self.http(&request).expect("an answer");
        assert!(answer.contains(" 200 "), "{path}: {answer}");
    }
}
