//! The configuration of the database: the URL, and how to connect.
//!
//! `postgres://[user[:password]@]host[:port][,...]/database[?...]`. A host that begins with `/` (written
//! `%2F`) is the directory of a Unix socket. In addition to the parameters of every engine there are:
//! `sslmode` (`disable`, `prefer`, `require`, `verify-ca`, `verify-full`; the default is `prefer`, as in
//! libpq), `sslrootcert` (a file of trusted certificate authorities; the default is the system's), and
//! `schema` (the schema of the tables; the default is the first of the user's `search_path`).

use std::fmt;
use std::time::Duration;

use pool::tls::{self, Verification};
use pool::{OpenError, Params, Query, Url};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::tls::Tls;

/// The servers to connect to, and the options of the connection.
pub(crate) struct Target {
    /// The URL without its password, for messages.
    pub(crate) name: String,
    pub(crate) schema: Option<String>,
    pub(crate) config: tokio_postgres::Config,
    pub(crate) tls: Option<Tls>,
    pub(crate) connect_timeout: Duration,
    pub(crate) op_timeout: Duration,
}

impl Target {
    pub(crate) fn parse(url: &Url) -> Result<(Self, Params), OpenError> {
        let mut query = Query::new(url);
        if !["postgres", "postgresql"].contains(&url.scheme.as_str()) {
            let scheme = &url.scheme;
            return Err(query
                .wrong(format!("{scheme}:// is not a PostgreSQL URL: write postgres://user@host/database")));
        }
        let params = query.params()?;
        let roots = query.file("sslrootcert");
        // If an authority is given, libpq verifies against it in these modes too.
        let lax = if roots.path().is_none() { Verification::Nothing } else { Verification::Authority };
        let prefer = (SslMode::Prefer, Some(lax));
        let modes = [
            ("disable", (SslMode::Disable, None)),
            ("prefer", prefer),
            ("require", (SslMode::Require, Some(lax))),
            ("verify-ca", (SslMode::Require, Some(Verification::Authority))),
            ("verify-full", (SslMode::Require, Some(Verification::Host))),
        ];
        let (mode, verification) = query.one_of("sslmode", prefer, &modes)?;
        let schema = query.take("schema");
        query.end()?;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if let Some(schema) =
            schema.as_deref().filter(|s| s.is_empty() || s.len() > 63 || !s.chars().all(fits))
        {
            return Err(query.wrong(format!("schema={schema} is not 1 to 63 of a-z, 0-9 and _")));
        }
        let tls = verification.map(|verification| tls::client(verification, &roots, None)).transpose();
        let tls = tls.map_err(|what| query.wrong(what))?.map(Tls::new);

        let mut config = tokio_postgres::Config::new();
        for host in &url.hosts {
            config.host(&host.name).port(host.port.unwrap_or(5432));
        }
        if let Some(user) = &url.user {
            config.user(user);
        }
        if let Some(password) = &url.password {
            config.password(password.reveal());
        }
        if !url.path.is_empty() {
            config.dbname(&url.path);
        }
        if url.hosts.len() > 1 {
            // After a failover, another host accepts writes.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        config
            .application_name("limen")
            .ssl_mode(mode)
            .connect_timeout(params.connect_timeout)
            .tcp_user_timeout(params.op_timeout)
            .options(session_options(&params, schema.as_deref()));
        let hosts = u32::try_from(url.hosts.len()).unwrap_or(u32::MAX).max(1);
        let connect_timeout = params.connect_timeout.saturating_mul(hosts);
        let target = Target {
            name: url.to_string(),
            schema,
            config,
            tls,
            connect_timeout,
            op_timeout: params.op_timeout,
        };
        Ok((target, params))
    }
}

/// Settings of the session. Every statement of this engine finds its rows by a key. The settings enforce
/// that, because the planner may have seen a table only when it was empty.
fn session_options(params: &Params, schema: Option<&str>) -> String {
    // The server gives up a little earlier than the client, so that the client usually learns that nothing
    // happened.
    let statement_timeout_ms = (params.op_timeout.as_millis() * 7 / 8).max(1);
    let mut options = format!(
        "-c default_transaction_isolation=read\\ committed -c statement_timeout={statement_timeout_ms} -c enable_seqscan=off \
         -c enable_hashjoin=off -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan -c jit=off"
    );
    if let Some(schema) = schema {
        options.push_str(" -c search_path=");
        options.push_str(schema);
    }
    options
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.name).finish_non_exhaustive()
    }
}
