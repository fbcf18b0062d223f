//! Engines on a server of `tests/tikv`, or on the cluster that `LIMEN_TEST_TIKV` names.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use engine_tikv::{OpenError, TikvEngine};
use meta::Engine;
use pool::Url;
use servers::{Kind, ServerSettings};

/// The placement drivers, `host:port[,host:port...]`. If set, the suites run on that cluster, each test under
/// its own prefix.
const VARIABLE: &str = "LIMEN_TEST_TIKV";

/// Timeouts for tests that do not test them: a busy machine may be slow.
const LONG_TIMEOUTS: &str = "&op_timeout=60s&connect_timeout=60s";

/// Whether the server can be started. If not, skips the calling test.
#[track_caller]
pub(crate) fn is_there() -> bool {
    let missing = if cluster().is_some() { None } else { Kind::Tikv.missing() };
    missing.as_deref().map(skip::missing).is_none()
}

fn cluster() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// A server of these tests.
#[derive(Debug)]
pub(crate) struct Server(servers::Server);

impl Deref for Server {
    type Target = servers::Server;

    fn deref(&self) -> &servers::Server {
        &self.0
    }
}

impl Server {
    pub(crate) fn start(durable: bool) -> Self {
        Server(servers::Server::with(
            Kind::Tikv,
            ServerSettings { durable, in_memory: true, ..ServerSettings::default() },
        ))
    }

    pub(crate) fn url(&self, prefix: &str, more: &str) -> Url {
        url(&format!("127.0.0.1:{}", self.port), prefix, more)
    }

    pub(crate) fn open(&self, prefix: &str, create: bool) -> Result<TikvEngine, OpenError> {
        TikvEngine::open(&self.url(prefix, ""), create)
    }

    /// Sends a request for tests: see `tests/tikv/control.go`.
    pub(crate) fn ask(&self, path: &str) {
        let answer = self.http(&format!("GET {path} HTTP/1.0\r\n\r\n")).expect("an answer");
        assert!(answer.contains(" 200 "), "{path}: {answer}");
    }

    /// Makes the next requests of a method get lost (`what` is `request`), or their answers (`answer`).
    pub(crate) fn lose(&self, method: &str, what: &str, times: u32) {
        self.ask(&format!("/lose?method={method}&what={what}&times={times}"));
    }

    /// Divides the keys of a volume into regions, so that a transaction has keys in several.
    pub(crate) fn split(&self, prefix: &str) {
        for table in "celnu".chars() {
            self.ask(&format!("/split?at={prefix}/{table}"));
        }
    }

    /// The number of calls of each method since the server started.
    pub(crate) fn calls<const N: usize>(&self, methods: [&str; N]) -> [u64; N] {
        let counts = self.counts();
        methods.map(|method| counts.get(method).copied().unwrap_or_default())
    }
}

fn url(places: &str, prefix: &str, more: &str) -> Url {
    Url::parse(&format!("tikv://{places}/?table_prefix={prefix}&gc=off{more}")).expect("a URL")
}

/// The server that the tests of this binary share.
pub(crate) fn shared() -> Arc<Server> {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    server.upgrade().unwrap_or_else(|| {
        let new = Arc::new(Server::start(false));
        *server = Arc::downgrade(&new);
        new
    })
}

/// A prefix that no other volume uses. The server takes keys that begin with `t` for TiDB's.
pub(crate) fn prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("v{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Empties a volume of a cluster when the test is over.
#[derive(Debug)]
pub(crate) struct Emptied {
    engine: Option<TikvEngine>,
    _server: Option<Arc<Server>>,
}

impl Drop for Emptied {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.engine.as_ref().map(TikvEngine::wipe) {
            eprintln!("cannot remove the keys of a test: {error}");
        }
    }
}

/// An empty volume, on the shared server or the cluster.
pub(crate) fn empty() -> (TikvEngine, Emptied) {
    let prefix = prefix();
    let Some(places) = cluster() else {
        let server = shared();
        let engine = TikvEngine::open(&server.url(&prefix, LONG_TIMEOUTS), true).expect("a volume");
        return (engine, Emptied { engine: None, _server: Some(server) });
    };
    let open = |create| {
        TikvEngine::open(&url(&places, &prefix, LONG_TIMEOUTS), create).expect("a volume on the cluster")
    };
    (open(true), Emptied { engine: Some(open(false)), _server: None })
}

/// An empty volume on the shared server, in several regions.
pub(crate) fn divided() -> (TikvEngine, Arc<Server>) {
    let (server, prefix) = (shared(), prefix());
    server.split(&prefix);
    (TikvEngine::open(&server.url(&prefix, LONG_TIMEOUTS), true).expect("a volume"), server)
}
