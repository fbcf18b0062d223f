//! Server URLs: `redis://[user[:password]@]host[:port][,host[:port]...][/db][?name=value[&...]]`.
//!
//! | scheme | meaning |
//! |---|---|
//! | `redis`, `valkey` | TCP |
//! | `rediss`, `valkeys` | TLS |
//! | `redis+unix`, `valkey+unix` | a Unix socket: `redis+unix:///run/redis/redis.sock` |
//!
//! | parameter | meaning |
//! |---|---|
//! | `master` | the hosts are Sentinels, and this is the name of the master that they monitor |
//! | `db` | the database number, which can also be given as the path: `/3`; default 0 |
//! | `tls_ca` | a PEM file of trusted certificate authorities, used instead of the system's |
//! | `tls_cert`, `tls_key` | PEM files of the client certificate and its key |
//!
//! The parameters of [`Params`] are also accepted. If there are several hosts and they are not Sentinels, the
//! engine uses the first one that is a master. For a Cluster, the address of any one node is enough.

use pool::{OpenError, Params, Query, Secret, Url};
use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};

#[derive(Debug)]
pub(crate) struct Config {
    /// The URL without its password.
    pub(crate) shown: String,
    pub(crate) hosts: Vec<ConnectionAddr>,
    pub(crate) sentinel_master: Option<String>,
    pub(crate) tls: Option<TlsCertificates>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: i64,
    /// The prefix of every key, in braces. The braces make a Cluster store all keys of the volume on one
    /// node.
    pub(crate) prefix: Vec<u8>,
    pub(crate) params: Params,
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Config {
    pub(crate) fn new(url: &Url) -> Result<Self, OpenError> {
        let mut query = Query::new(url);
        let (tls, socket) = match url.scheme.as_str() {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis+unix" | "valkey+unix" => (false, true),
            other => {
                return Err(query.wrong(format!("unknown scheme '{other}': use redis, rediss or redis+unix")));
            }
        };
        let params = query.params()?;
        let sentinel_master = query.take("master");
        let hosts = if socket {
            if !url.hosts.is_empty() || sentinel_master.is_some() {
                return Err(
                    query.wrong("a socket URL has a path but no host: write redis+unix:///run/redis.sock")
                );
            }
            vec![ConnectionAddr::Unix(format!("/{}", url.path).into())]
        } else {
            if !url.path.is_empty() {
                if query.take("db").is_some() {
                    return Err(query.wrong(
                        "the database number is given twice, as the path and as db: remove one of them",
                    ));
                }
                query.put("db", &url.path);
            }
            let port = if sentinel_master.is_some() { SENTINEL_PORT } else { PORT };
            url.hosts.iter().map(|host| address(tls, &host.name, host.port.unwrap_or(port))).collect()
        };
        if hosts.is_empty() {
            return Err(query.wrong("no host is given: write redis://host:port"));
        }
        let db = query.number("db", 0, 0..=65535)?;
        let mut file = |name| {
            let file = query.file(name);
            if file.path().is_some() && !tls {
                return Err(query.wrong(format!("{name} is valid only with rediss://")));
            }
            file.read().map_err(|what| query.wrong(what))
        };
        let (root_cert, cert, key) = (file("tls_ca")?, file("tls_cert")?, file("tls_key")?);
        let client_tls = match (cert, key) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            (None, None) => None,
            _ => return Err(query.wrong("tls_cert and tls_key must be given together")),
        };
        query.end()?;
        // A Cluster ignores empty braces, so they must enclose something.
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

    /// The key with this name: the prefix and the name.
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        [&self.prefix[..], name.as_bytes()].concat()
    }
}

/// The address of a server, with or without TLS.
pub(crate) fn address(tls: bool, host: &str, port: u16) -> ConnectionAddr {
    match tls {
        false => ConnectionAddr::Tcp(host.to_owned(), port),
        true => ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config, String> {
        Config::new(&Url::parse(url).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_url_is_parsed() {
        let plain = config("redis://u:p@a,b:7/3?table_prefix=v_").unwrap();
        assert_eq!(plain.hosts, [address(false, "a", 6379), address(false, "b", 7)]);
        assert_eq!((plain.db, plain.tls.is_none(), &plain.prefix[..]), (3, true, &b"{v_}"[..]));
        assert!(!format!("{plain:?}").contains("\"p\""));
        let sentinel = config("rediss://s1,s2?master=m").unwrap();
        assert_eq!(sentinel.hosts[0], address(true, "s1", 26379));
        assert!(sentinel.tls.is_some());
        let socket = config("redis+unix:///run/r.sock?db=2&table_prefix=").unwrap();
        assert_eq!((&socket.hosts[..], socket.db), (&[ConnectionAddr::Unix("/run/r.sock".into())][..], 2));
        assert_eq!(socket.key("seq"), b"{-}seq");
    }

    #[test]
    fn invalid_urls_are_rejected_with_the_reason() {
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
