//! `mysql://user@host:port/database?parameters`, `mariadb://` likewise.
//!
//! Beside the parameters of every engine on a network:
//!
//! | parameter | meaning |
//! |---|---|
//! | `tls` | `off` (the default), `on` (the certificate must be valid for the host's name), `unverified` |
//! | `tls_ca` | a file of certificates (PEM) of authorities to trust instead of the usual ones |
//! | `socket` | the path of the server's Unix socket, instead of host and port |
//! | `routine` | `auto` (the default): a stored procedure where the server has no anonymous blocks; `always` |

use std::path::PathBuf;

use mysql::{Opts, OptsBuilder, SslOpts};
use pool::{Params, Url};

use crate::error::OpenError;

const PORT: u16 = 3306;
/// What an answer may have in bytes, the most that the protocol knows.
const MAX_ANSWER_BYTES: usize = 1 << 30;

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) params: Params,
    pub(crate) opts: Opts,
    /// Where this is, for messages.
    pub(crate) place: String,
    /// Scripts are run by the stored procedure, even where blocks would do.
    pub(crate) routine: bool,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without `opts`, which hold the password.
        f.debug_struct("Config")
            .field("place", &self.place)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// # Errors
    /// [`OpenError::Url`] says what to write instead.
    pub(crate) fn new(url: &Url) -> Result<Self, OpenError> {
        let place = url.to_string();
        let wrong = |why: &str| OpenError::Url(format!("{place}: {why}"));
        let mut query = url.query.clone();
        let params = Params::take(&mut query).map_err(|error| wrong(&error.to_string()))?;
        let tls = query.remove("tls").unwrap_or_else(|| "off".to_owned());
        let ca = query.remove("tls_ca").map(PathBuf::from);
        let socket = query.remove("socket");
        let routine = query.remove("routine").unwrap_or_else(|| "auto".to_owned());
        Params::refuse_rest(&query).map_err(|error| wrong(&error.to_string()))?;
        let roots = ca.map(|ca| SslOpts::default().with_root_cert_path(Some(ca))).unwrap_or_default();
        let ssl = match tls.as_str() {
            "off" => None,
            "on" => Some(roots),
            "unverified" => Some(roots.with_danger_accept_invalid_certs(true)),
            _ => return Err(wrong("tls is off, on or unverified")),
        };
        let routine = match routine.as_str() {
            "auto" => false,
            "always" => true,
            _ => return Err(wrong("routine is auto or always")),
        };
        if url.path.is_empty() || url.path.contains('/') {
            return Err(wrong("name one database: mysql://user@host/database"));
        }
        let [host] = &url.hosts[..] else { return Err(wrong("name one host: mysql://user@host/database")) };
        if ssl.is_some() {
            // Whichever is installed first stays; all that limenfs uses will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        // A request that is not read within the time of an operation counts as lost, as does an answer.
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
            .ssl_opts(ssl);
        Ok(Config { params, opts: opts.into(), place, routine })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config, OpenError> {
        Config::new(&Url::parse(url).unwrap())
    }

    #[test]
    fn a_url_says_where_the_database_is() {
        let config = config("mysql://u:s3cret@h:3307/db?op_timeout=2s&tls=on&routine=always").unwrap();
        assert_eq!((config.opts.get_tcp_port(), config.opts.get_db_name()), (3307, Some("db")));
        assert!(config.routine && config.opts.get_ssl_opts().is_some());
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (url, hint) in [
            ("mysql://h", "one database"),
            ("mysql://h/a/b", "one database"),
            ("mysql://a,b/db", "one host"),
            ("mysql://h/db?tls=maybe", "tls is"),
            ("mysql://h/db?routine=never", "routine is"),
            ("mysql://h/db?charset=latin1", "charset"),
        ] {
            let error = config(url).unwrap_err().to_string();
            assert!(error.contains(hint), "{url}: {error}");
        }
    }
}
