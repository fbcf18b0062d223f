//! What the URL says: `tikv://pd[:2379][,pd...][/PREFIX]`, the addresses of the placement drivers.

use std::path::PathBuf;
use std::time::Duration;

use pool::{Host, OpenError, Query, Url};

const PORT: u16 = 2379;

/// A cluster, and how to talk to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of the placement drivers, `host:port` each.
    pub pds: Vec<String>,
    /// What the names of keys begin with, before a slash.
    pub prefix: String,
    /// PEM files: the certificates that are trusted, the client's own, and its key.
    pub tls: Option<[PathBuf; 3]>,
    pub connect_timeout: Duration,
    /// How long a request may take before the servers count as lost.
    pub op_timeout: Duration,
    /// Whether old versions are dropped from here.
    pub gc: bool,
}

impl Config {
    /// The prefix is the path, or the parameter `table_prefix`. Beside `connect_timeout` and `op_timeout`: `cacert`,
    /// `cert` and `key` name PEM files, and with them TLS is used; `gc=off` where somebody else, TiDB for one, has old
    /// versions dropped. The client keeps one connection to each server, so there is nothing to say of a pool.
    ///
    /// # Errors
    /// [`OpenError::Config`].
    pub fn new(url: &Url) -> Result<Self, OpenError> {
        let mut query = Query::new(url);
        for name in ["max_open_conns", "max_idle_conns", "max_idle_time", "max_life_time"] {
            if url.query.contains_key(name) {
                return Err(query.wrong(format!(
                    "there is no {name} on TiKV: its client keeps one connection to each server"
                )));
            }
        }
        match (url.path.trim_end_matches('/'), url.query.contains_key("table_prefix")) {
            ("", _) => {}
            (_, true) => return Err(query.wrong("the path and table_prefix both name the prefix")),
            (path, false) => query.put("table_prefix", path),
        }
        let params = query.params()?;
        let tls = match ["cacert", "cert", "key"].map(|name| query.take(name).map(PathBuf::from)) {
            [None, None, None] => None,
            [Some(roots), Some(certificate), Some(key)] => Some([roots, certificate, key]),
            _ => return Err(query.wrong("cacert, cert and key come together")),
        };
        let gc = query.one_of("gc", true, &[("on", true), ("off", false)])?;
        query.end()?;
        if url.user.is_some() {
            return Err(query.wrong("TiKV knows no users: who may connect is decided by certificates"));
        }
        if url.hosts.is_empty() {
            return Err(query.wrong("a TiKV URL names at least one placement driver"));
        }
        Ok(Config {
            pds: url.hosts.iter().map(|host: &Host| host.address(PORT)).collect(),
            prefix: params.table_prefix,
            tls,
            connect_timeout: params.connect_timeout,
            op_timeout: params.op_timeout,
            gc,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        Config::new(&Url::parse(text).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn placement_drivers_prefix_and_files_are_read() {
        let found = config("tikv://pd1,[::1]:2380/home?op_timeout=3s&cacert=a&cert=b&key=c&gc=off").unwrap();
        assert_eq!(found.pds, ["pd1:2379", "[::1]:2380"]);
        assert_eq!((found.prefix.as_str(), found.gc, found.op_timeout.as_secs()), ("home", false, 3));
        assert_eq!(found.tls, Some(["a", "b", "c"].map(PathBuf::from)));
        let found = config("tikv://pd1").unwrap();
        assert_eq!((found.prefix.as_str(), found.gc, found.tls), ("limen_", true, None));
        assert_eq!(config("tikv://pd1/?table_prefix=x_").unwrap().prefix, "x_");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, word) in [
            ("tikv://pd1/a/b", "table_prefix"),
            ("tikv://pd1/a?table_prefix=b", "both"),
            ("tikv://pd1/a?max_idle_conns=3", "max_idle_conns"),
            ("tikv://pd1/a?cert=b", "together"),
            ("tikv://pd1/a?gc=maybe", "maybe"),
            ("tikv://u:p@pd1/a", "certificates"),
            ("tikv:///a", "placement driver"),
            ("tikv://pd1/a?colour=red", "colour"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
