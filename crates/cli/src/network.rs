//! Engines on database servers: their URLs, and how they are opened.

use std::fmt::{self, Display};
use std::sync::Arc;

use command::error::CliError;
use engine_etcd::EtcdEngine;
use engine_mysql::MysqlEngine;
use engine_postgres::PostgresEngine;
use engine_redis::RedisEngine;
use engine_tikv::TikvEngine;
use meta::{Batching, Counting, Engine};
use pool::{Secret, Url, userinfo_end};

use crate::public;

/// A supported database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Redis,
    Postgres,
    /// MySQL or MariaDB.
    Mysql,
    Etcd,
    Tikv,
}

/// Batches of commits in flight at the same time; while they run, callers join the next batch.
const MAX_IN_FLIGHT: usize = 2;

/// The environment variable with the password, for URLs without one. Every user can read a command line, so
/// this program also moves a password from its own command line to this variable, for itself and for the
/// background process.
pub(crate) const PASSWORD_VARIABLE: &str = "LIMEN_META_PASSWORD";

/// A metadata URL of a database server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkUrl {
    server: Server,
    url: Url,
    /// Whether the password is in the text of the URL.
    has_own_password: bool,
    /// The URL as the user wrote it, without a password.
    shown: String,
}

/// An engine whose requests are counted.
pub(crate) type Counted = Arc<Counting<Arc<dyn Engine>>>;

/// An open engine on a network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// The engine to use: it batches the requests of concurrent callers.
    pub(crate) engine: Arc<dyn Engine>,
    /// The engine below `engine`: it counts the requests that are sent to the server.
    pub(crate) sent: Counted,
    /// The server's name and version.
    pub(crate) server: String,
    /// Warnings about settings with which the server can lose acknowledged commits.
    pub(crate) warnings: Vec<String>,
}

impl NetworkUrl {
    /// # Errors
    /// The URL is invalid.
    pub(crate) fn parse(server: Server, text: &str) -> Result<Self, CliError> {
        let shown = without_password(text);
        public::check_password_file(text);
        match Url::parse(text) {
            Ok(url) => Ok(NetworkUrl { server, url, has_own_password: shown != text, shown }),
            Err(error) => Err(CliError::usage(error).at(shown)),
        }
    }

    pub(crate) fn server(&self) -> Server {
        self.server
    }

    pub(crate) fn password(&self) -> Option<&Secret> {
        self.url.password.as_ref()
    }

    /// The password, if it is in the text of the URL.
    pub(crate) fn own_password(&self) -> Option<&Secret> {
        self.password().filter(|_| self.has_own_password)
    }

    /// Whether the URL names a file with the password.
    pub(crate) fn names_password_file(&self) -> bool {
        self.shown.split_once('?').is_some_and(|(_, query)| {
            query.split('&').any(|parameter| parameter.starts_with("password_file="))
        })
    }

    /// Whether the server holds all metadata in memory, so that file data should not be stored in it.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.server == Server::Redis
    }

    /// Opens the engine. With `create`, creates its schema if there is none.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn open(&self, create: bool) -> Result<Network, CliError> {
        macro_rules! open {
            ($engine:ident) => {
                self.opened($engine::open(&self.url, create), $engine::server, $engine::warnings)
            };
        }
        match self.server {
            Server::Redis => open!(RedisEngine),
            Server::Postgres => open!(PostgresEngine),
            Server::Mysql => open!(MysqlEngine),
            Server::Etcd => open!(EtcdEngine),
            Server::Tikv => open!(TikvEngine),
        }
    }

    fn open_error(&self, text: &str) -> CliError {
        open_error(text, self.url.password.is_some())
    }

    fn opened<E: Engine + 'static, O: Display, S: Display>(
        &self,
        engine: Result<E, O>,
        server: impl FnOnce(&E) -> Result<String, S>,
        warnings: impl FnOnce(&E) -> Vec<String>,
    ) -> Result<Network, CliError> {
        let engine = engine.map_err(|error| self.open_error(&error.to_string()))?;
        let server = server(&engine).map_err(|error| self.open_error(&error.to_string()))?;
        let warnings = warnings(&engine);
        let sent: Counted = Arc::new(Counting::new(Arc::new(engine)));
        let engine = Arc::new(Batching::new(Arc::clone(&sent), MAX_IN_FLIGHT));
        Ok(Network { engine, sent, server, warnings })
    }
}

/// The error of a server, without names of types of its client library, and with advice.
fn open_error(text: &str, has_password: bool) -> CliError {
    let mut text = text.to_owned();
    for (raw, plain) in RAW {
        text = text.replace(raw, plain);
    }
    let advice = ADVICE.iter().find(|(parts, _)| parts.iter().any(|part| text.contains(part)));
    let error = CliError::new(&text);
    match advice {
        Some((_, Advice::Login)) if has_password => {
            error.advise("check the user and the password: the first line of ?password_file=FILE in the URL, or LIMEN_META_PASSWORD")
        }
        Some((_, Advice::Login)) => error.advise(
            "a password is needed: name a file with ?password_file=FILE in the URL, or set LIMEN_META_PASSWORD",
        ),
        Some((_, Advice::Text(advice))) => error.advise(advice),
        None => error,
    }
}

/// Texts of client libraries, and the text that replaces each.
const RAW: &[(&str, &str)] = &[
    ("NOAUTH Authentication required.", "the server needs a password"),
    ("Redis server refused to switch database - ", ""),
    ("Server(ResponseError): ", ""),
    ("DB index is out of range", "the server has no database with this number"),
    ("failed to lookup address information: ", "cannot find the host: "),
];

#[derive(Clone, Copy, Debug)]
enum Advice {
    /// Depends on whether a password was given.
    Login,
    Text(&'static str),
}

/// Parts of errors, each with advice.
const ADVICE: &[(&[&str], Advice)] = &[
    (
        &[
            "needs a password",
            "rejected the user name or password",
            "password authentication failed",
            "password missing",
            "Access denied for user",
            "authentication failed",
            "user name is empty",
        ],
        Advice::Login,
    ),
    (
        &["no database with this number"],
        Advice::Text("use a lower number, or raise `databases` in redis.conf"),
    ),
    (
        &["Connection refused", "connection refused"],
        Advice::Text("check that the server runs and listens at this address and port"),
    ),
    (
        &["cannot find the host", "Name or service not known"],
        Advice::Text("check the name of the host in the URL"),
    ),
];

/// The URL as the user wrote it, without a password.
impl Display for NetworkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Removes the password from a URL. If it is not clear which `@` ends the password, removes everything
/// between the user's name and the last `@`.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let Some(end) = userinfo_end(rest).unwrap_or_else(|_| rest.rfind('@')) else { return url.to_owned() };
    match rest[..end].split_once(':') {
        None => url.to_owned(),
        Some(("", _)) => format!("{scheme}://{}", &rest[end + 1..]),
        Some((user, _)) => format!("{scheme}://{user}{}", &rest[end..]),
    }
}

#[cfg(test)]
mod tests {
    use pool::UrlError;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_of_servers_say_what_to_do() {
        let said = |text, has_password| open_error(text, has_password).to_string();
        let needed = said("redis://h (h:1): NOAUTH Authentication required.", false);
        assert!(
            needed.contains("the server needs a password") && needed.contains("LIMEN_META_PASSWORD"),
            "{needed}"
        );
        assert!(said("x: the server rejected the user name or password", true).contains("check the user"));
        let number = said(
            "h: Redis server refused to switch database - Server(ResponseError): DB index is out of range",
            true,
        );
        assert!(
            number.contains("no database with this number") && !number.contains("ResponseError"),
            "{number}"
        );
        assert!(said("h: Connection refused (os error 111)", true).contains("the server runs"));
        assert_eq!(said("h: something else", true), "h: something else");
    }

    #[test]
    fn url_is_shown_without_its_password_and_parses_again() {
        for (server, text, shown) in [
            (Server::Redis, "redis://:s3c/ret@h:1/2?table_prefix=a_", "redis://h:1/2?table_prefix=a_"),
            (Server::Postgres, "postgres://u:p@ss@h/db", "postgres://u@h/db"),
            (Server::Postgres, "postgresql://h/db?sslmode=require", "postgresql://h/db?sslmode=require"),
            (Server::Postgres, "postgres://u@h/db?x=/run/a:b@c", "postgres://u@h/db?x=/run/a:b@c"),
            (Server::Redis, "redis+unix:///run/a:b@c.sock?db=1", "redis+unix:///run/a:b@c.sock?db=1"),
        ] {
            let url = NetworkUrl::parse(server, text).unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(NetworkUrl::parse(server, shown).is_ok());
        }
    }

    /// A part of the password that neither begins a parameter nor is in the other parts of the URLs below.
    const MARK: &str = "S3CRET";

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn url_without_a_password_is_shown_as_it_is(
            user in "([a-z]{1,3}@)?",
            host in "(h|h:1|h:1,i:2|\\[::1\\]:2)?",
            path in "(/[a-z]{1,2}){0,2}",
            query in "(\\?password_file=/[a-z]/[a-z:@/#]{0,8}(&a=[b@:]{0,2})?)?",
        ) {
            let url = format!("postgres://{user}{host}{path}{query}");
            // A URL that also can be read as one with a password is refused, and shown without it.
            if !matches!(Url::parse(&url), Err(UrlError::Ambiguous)) {
                prop_assert_eq!(without_password(&url), url);
            }
        }

        #[test]
        fn password_is_never_shown(
            user in "[a-z]{0,3}",
            before in "[a-z:/?@#=%&,.]{0,6}",
            after in "[a-z:/?@#=%&,.]{0,6}",
            place in "(h|h:1|h:1,i:2|\\[::1\\]:2)(/[a-z]{1,2})?(\\?sslmode=require)?",
        ) {
            let url = format!("postgres://{user}:{before}{MARK}{after}@{place}");
            let shown = without_password(&url);
            prop_assert!(!shown.contains(MARK), "{} shows {}", url, shown);
            prop_assert!(shown.ends_with(&place), "{} shows {}", url, shown);
        }
    }
}
