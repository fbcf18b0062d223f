//! The parameters of `mysql://user@host:port/database?parameters`; `mariadb://` has the same ones.
//!
//! In addition to the parameters of every engine on a network there are:
//!
//! | parameter | meaning |
//! |---|---|
//! | `tls` | `off` (the default), `on` (the certificate must be valid for the host's name), `unverified` |
//! | `tls_ca` | a PEM file with the certificates of trusted authorities, instead of the usual ones |
//! | `socket` | the path of the server's Unix socket, instead of host and port |
//! | `routine` | `auto` (the default): a stored procedure if the server has no anonymous blocks; `always` |

use std::fmt;
use std::path::PathBuf;

use mysql::{Opts, OptsBuilder, SslOpts};
use pool::{OpenError, Params, Query, Url};

const PORT: u16 = 3306;
/// The maximum size of a reply in bytes, which is the maximum of the protocol.
const MAX_ANSWER_BYTES: usize = 1 << 30;

pub(crate) struct Config {
    pub(crate) params: Params,
    pub(crate) opts: Opts,
    /// The URL without its password, for messages.
    pub(crate) address: String,
    /// Whether the stored procedure always runs the scripts, even if the server has anonymous blocks.
    pub(crate) routine: bool,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `opts` are left out, because they hold the password.
        f.debug_struct("Config").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Config {
    /// # Errors
    /// [`OpenError::Config`], whose message says how to correct the URL.
    pub(crate) fn new(url: &Url) -> Result<Self, OpenError> {
        let mut query = Query::new(url);
        let params = query.params()?;
        let ca = query.take("tls_ca").map(PathBuf::from);
        let roots = ca.map(|ca| SslOpts::default().with_root_cert_path(Some(ca))).unwrap_or_default();
        let unverified = roots.clone().with_danger_accept_invalid_certs(true);
        let tls = [("off", None), ("on", Some(&roots)), ("unverified", Some(&unverified))];
        let ssl = query.one_of("tls", None, &tls)?.cloned();
        let socket = query.take("socket");
        let routine = query.one_of("routine", false, &[("auto", false), ("always", true)])?;
        query.end()?;
        if url.path.is_empty() || url.path.contains('/') {
            return Err(query.wrong("name one database: mysql://user@host/database"));
        }
        let [host] = &url.hosts[..] else {
            return Err(query.wrong("name one host: mysql://user@host/database"));
        };
        if ssl.is_some() {
            // If another provider was installed before, it is kept; limenfs works with any of them.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        // The log's numbers must be consecutive, because a stream of changes waits for missing ones. A
        // negative difference must not be an error (NO_UNSIGNED_SUBTRACTION). On MariaDB, the server ends a
        // statement that runs too long; only MariaDB reads comments that begin with /*M!.
        let seconds = params.op_timeout.as_secs().max(1);
        let settings = format!(
            "SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}, autocommit = 1, \
             auto_increment_increment = 1, auto_increment_offset = 1, \
             sql_mode = 'STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION,NO_AUTO_VALUE_ON_ZERO' \
             /*M!, max_statement_time = {seconds} */"
        );
        // If a request is not written within `op_timeout`, or its reply does not arrive within `op_timeout`,
        // the connection is lost.
        let opts = OptsBuilder::new()
            .ip_or_hostname(Some(&host.name))
            .tcp_port(host.port.unwrap_or(PORT))
            .user(url.user.as_deref())
            .pass(url.password.as_ref().map(|password| password.reveal()))
            .db_name(Some(&url.path))
            .socket(socket)
            .prefer_socket(false)
            .tcp_connect_timeout(Some(params.connect_timeout))
            .read_timeout(Some(params.op_timeout))
            .write_timeout(Some(params.op_timeout))
            .tcp_nodelay(true)
            .max_allowed_packet(Some(MAX_ANSWER_BYTES))
            .stmt_cache_size(Some(0))
            .init(vec!["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(), settings])
            .ssl_opts(ssl);
        Ok(Config { params, opts: opts.into(), address: url.to_string(), routine })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config, OpenError> {
        Config::new(&Url::parse(url).unwrap())
    }

    #[test]
    fn url_parameters_are_parsed() {
        let config = config("mysql://u:s3cret@h:3307/db?op_timeout=2s&tls=on&routine=always").unwrap();
        assert_eq!((config.opts.get_tcp_port(), config.opts.get_db_name()), (3307, Some("db")));
        assert!(config.routine && config.opts.get_ssl_opts().is_some());
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for (url, hint) in [
            ("mysql://h", "one database"),
            ("mysql://h/a/b", "one database"),
            ("mysql://a,b/db", "one host"),
            ("mysql://h/db?tls=maybe", "tls=maybe is"),
            ("mysql://h/db?routine=never", "routine=never is"),
            ("mysql://h/db?charset=latin1", "charset"),
        ] {
            let error = config(url).unwrap_err().to_string();
            assert!(error.contains(hint), "{url}: {error}");
        }
    }
}
