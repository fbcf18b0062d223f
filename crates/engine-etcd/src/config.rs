//! URLs: `etcd://[user:password@]host[:2379][,host...]`, or `etcds://` for TLS.

use std::sync::Arc;

use pool::tls::{self, Verification};
use pool::{Host, OpenError, Params, Query, Secret, Url};
use rustls::ClientConfig;

/// The default port.
pub(crate) const PORT: u16 = 2379;

/// The address of a cluster and the connection options.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) hosts: Vec<Host>,
    pub(crate) login: Option<(String, Secret)>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) params: Params,
    /// The maximum number of operations in a transaction; must not exceed the server's `--max-txn-ops`.
    pub(crate) max_txn_ops: usize,
    /// Whether this client compacts old revisions.
    pub(crate) compaction: bool,
}

impl Config {
    /// Parameters in addition to those of all engines: `cacert`, `cert` and `key` name PEM files for TLS;
    /// `max_txn_ops`; `compaction=off` if something else compacts the cluster.
    pub(crate) fn new(url: &Url) -> Result<Self, OpenError> {
        let mut query = Query::new(url);
        let params = query.params()?;
        let tls = match url.scheme.as_str() {
            "etcds" => {
                let [roots, cert, key] = ["cacert", "cert", "key"].map(|name| query.file(name));
                let made = tls::client(Verification::Host, &roots, Some([&cert, &key]));
                let mut config = made.map_err(|what| query.wrong(what))?;
                config.alpn_protocols = vec![b"h2".to_vec()];
                Some(Arc::new(config))
            }
            _ => None,
        };
        let max_txn_ops = query.number("max_txn_ops", 128, 100..=100_000)?;
        let compaction = query.one_of("compaction", true, &[("on", true), ("off", false)])?;
        query.end()?;
        if url.hosts.is_empty() {
            return Err(query.wrong("an etcd URL needs at least one host"));
        }
        let login = match (&url.user, &url.password) {
            (Some(user), Some(password)) => Some((user.clone(), password.clone())),
            (Some(user), None) => {
                return Err(query.wrong(format!("the password of user '{user}' is missing")));
            }
            _ => None,
        };
        Ok(Config { hosts: url.hosts.clone(), login, tls, params, max_txn_ops, compaction })
    }
}
