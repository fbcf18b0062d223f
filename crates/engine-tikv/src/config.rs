//! The parameters of the URL `tikv://pd[:2379][,pd...][/PREFIX]`; each `pd` is the address of a placement
//! driver.

use std::path::PathBuf;
use std::time::Duration;

use pool::{Host, OpenError, Query, Url};

const PORT: u16 = 2379;

/// A cluster, and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The placement drivers, each as `host:port`.
    pub pds: Vec<String>,
    /// The prefix of all keys; a slash follows it.
    pub prefix: String,
    /// PEM files: the trusted certificates, the client's certificate, and its key.
    pub tls: Option<[PathBuf; 3]>,
    pub connect_timeout: Duration,
    /// A request that the servers do not answer fails after this time.
    pub op_timeout: Duration,
    /// Whether this client deletes old versions.
    pub gc: bool,
}

impl Config {
    /// The prefix is the path or the parameter `table_prefix`. The other parameters, besides
    /// `connect_timeout` and `op_timeout`, are: `cacert`, `cert` and `key`, which name PEM files and turn on
    /// TLS; and `gc=off`, if another program, such as TiDB, deletes old versions. The parameters of the
    /// connection pool do not apply, because the client keeps one connection to each server.
    ///
    /// # Errors
    /// [`OpenError::Config`].
    pub fn new(url: &Url) -> Result<Self, OpenError> {
        let mut query = Query::new(url);
        for name in ["max_open_conns", "max_idle_conns", "max_idle_time", "max_life_time"] {
            if url.query.contains_key(name) {
                return Err(query.wrong(format!(
                    "{name} does not apply to TiKV: its client keeps one connection to each server"
                )));
            }
        }
        match (url.path.trim_end_matches('/'), url.query.contains_key("table_prefix")) {
            ("", _) => {}
            (_, true) => {
                return Err(query.wrong("the path and table_prefix both name the prefix: remove one of them"));
            }
            (path, false) => query.put("table_prefix", path),
        }
        let params = query.params()?;
        let tls = match ["cacert", "cert", "key"].map(|name| query.take(name).map(PathBuf::from)) {
            [None, None, None] => None,
            [Some(roots), Some(certificate), Some(key)] => Some([roots, certificate, key]),
            _ => return Err(query.wrong("cacert, cert and key must be given together")),
        };
        let gc = query.one_of("gc", true, &[("on", true), ("off", false)])?;
        query.end()?;
        if url.user.is_some() {
            return Err(query.wrong("TiKV has no users: access is controlled by certificates"));
        }
        if url.hosts.is_empty() {
            return Err(query.wrong("the URL names no placement driver: write tikv://host:port"));
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
    fn placement_drivers_prefix_and_files_are_parsed() {
        let found = config("tikv://pd1,[::1]:2380/home?op_timeout=3s&cacert=a&cert=b&key=c&gc=off").unwrap();
        assert_eq!(found.pds, ["pd1:2379", "[::1]:2380"]);
        assert_eq!((found.prefix.as_str(), found.gc, found.op_timeout.as_secs()), ("home", false, 3));
        assert_eq!(found.tls, Some(["a", "b", "c"].map(PathBuf::from)));
        let found = config("tikv://pd1").unwrap();
        assert_eq!((found.prefix.as_str(), found.gc, found.tls), ("limen_", true, None));
        assert_eq!(config("tikv://pd1/?table_prefix=x_").unwrap().prefix, "x_");
    }

    #[test]
    fn invalid_urls_are_rejected() {
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
