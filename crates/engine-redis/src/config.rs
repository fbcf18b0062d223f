//! What a person says about the server: `redis://[user[:password]@]host[:port][,host[:port]...][/db][?name=value[&...]]`.
//!
//! | scheme | what it says |
//! |---|---|
//! | `redis`, `valkey` | TCP |
//! | `rediss`, `valkeys` | TLS |
//! | `redis+unix`, `valkey+unix` | a socket: `redis+unix:///run/redis/redis.sock` |
//!
//! | parameter | what it says |
//! |---|---|
//! | `master` | the hosts are Sentinels, and this is the name of the master they watch |
//! | `db` | the database's number, also as the path: `/3`; 0 by default |
//! | `tls_ca` | a PEM file of the authorities that are trusted, in place of the system's |
//! | `tls_cert`, `tls_key` | PEM files of the client's certificate and its key |
//!
//! and those of [`Params`]. Of several hosts that are no Sentinels, the first that is a master is taken; any one node of
//! a Cluster is enough.

use std::fs;

use pool::{Params, Secret, Url};
use redis::{ClientTlsConfig, TlsCertificates};

use crate::error::OpenError;

#[derive(Debug)]
pub(crate) struct Config {
    /// The URL without its password.
    pub(crate) shown: String,
    pub(crate) hosts: Vec<Address>,
    pub(crate) sentinel_master: Option<String>,
    pub(crate) tls: Option<TlsCertificates>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: i64,
    /// What every key begins with. The braces make a Cluster keep all of them on one node.
    pub(crate) prefix: Vec<u8>,
    pub(crate) params: Params,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(String, u16),
    Socket(String),
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Config {
    pub(crate) fn new(url: &Url) -> Result<Self, OpenError> {
        let refuse = |what: String| Err(OpenError::Url(format!("{url}: {what}")));
        let (tls, socket) = match url.scheme.as_str() {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis+unix" | "valkey+unix" => (false, true),
            other => return refuse(format!("'{other}' is no scheme of Redis")),
        };
        let mut query = url.query.clone();
        let params = Params::take(&mut query).map_err(|e| OpenError::Url(format!("{url}: {e}")))?;
        let sentinel_master = query.remove("master");
        let mut db = query.remove("db");
        let hosts = if socket {
            if !url.hosts.is_empty() || sentinel_master.is_some() {
                return refuse("a socket has a path and no host: write redis+unix:///run/redis.sock".into());
            }
            vec![Address::Socket(format!("/{}", url.path))]
        } else {
            if !url.path.is_empty() && db.replace(url.path.clone()).is_some() {
                return refuse("the database's number stands there twice".into());
            }
            let port = if sentinel_master.is_some() { SENTINEL_PORT } else { PORT };
            url.hosts.iter().map(|h| Address::Tcp(h.name.clone(), h.port.unwrap_or(port))).collect()
        };
        if hosts.is_empty() {
            return refuse("there is no host".into());
        }
        let db = match db.as_deref().map(str::parse::<u16>) {
            None => 0,
            Some(Ok(db)) => i64::from(db),
            Some(Err(_)) => return refuse("the database's number is none between 0 and 65535".into()),
        };
        let mut file = |name: &str| -> Result<Option<Vec<u8>>, OpenError> {
            let Some(path) = query.remove(name) else { return Ok(None) };
            if !tls {
                return Err(OpenError::Url(format!("{url}: {name} is for rediss:// only")));
            }
            let bytes = fs::read(&path).map_err(|e| OpenError::Url(format!("{url}: {name}={path}: {e}")))?;
            Ok(Some(bytes))
        };
        let (root_cert, cert, key) = (file("tls_ca")?, file("tls_cert")?, file("tls_key")?);
        let client_tls = match (cert, key) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            (None, None) => None,
            _ => return refuse("tls_cert and tls_key go together".into()),
        };
        Params::refuse_rest(&query).map_err(|e| OpenError::Url(format!("{url}: {e}")))?;
        // Without anything between them, braces would say nothing to a Cluster.
        let tag = if params.table_prefix.is_empty() { "-" } else { &params.table_prefix };
        Ok(Config {
            shown: url.to_string(),
            hosts,
            sentinel_master,
            tls: tls.then_some(TlsCertificates { client_tls, root_cert }),
            user: url.user.clone(),
            password: url.password.clone(),
            db,
            prefix: format!("{{{tag}}}").into_bytes(),
            params,
        })
    }

    /// The name of a key.
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        [&self.prefix[..], name.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config, String> {
        Config::new(&Url::parse(url).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_url_is_understood() {
        let plain = config("redis://u:p@a,b:7/3?table_prefix=v_").unwrap();
        assert_eq!(plain.hosts, [Address::Tcp("a".into(), 6379), Address::Tcp("b".into(), 7)]);
        assert_eq!((plain.db, plain.tls.is_none(), &plain.prefix[..]), (3, true, &b"{v_}"[..]));
        assert!(!format!("{plain:?}").contains("\"p\""));
        let sentinel = config("rediss://s1,s2?master=m").unwrap();
        assert_eq!(sentinel.hosts[0], Address::Tcp("s1".into(), 26379));
        assert!(sentinel.tls.is_some());
        let socket = config("redis+unix:///run/r.sock?db=2&table_prefix=").unwrap();
        assert_eq!((&socket.hosts[..], socket.db), (&[Address::Socket("/run/r.sock".into())][..], 2));
        assert_eq!(socket.key("seq"), b"{-}seq");
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        for (url, reason) in [
            ("redus://h", "scheme"),
            ("redis://h/x", "number"),
            ("redis://h/1?db=2", "twice"),
            ("redis://h?tls_ca=/x", "rediss"),
            ("rediss://h?tls_ca=/nowhere/at/all", "/nowhere/at/all"),
            ("redis://h?colour=red", "colour"),
            ("redis+unix://h/x", "socket"),
            ("redis:///3", "no host"),
        ] {
            let error = config(url).unwrap_err();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
