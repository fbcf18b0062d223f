//! Maps PostgreSQL's errors to engine errors.

use std::error::Error;
use std::io;
use std::time::Duration;

use meta::EngineError;
use pool::{ConnectionState, Intent, RequestError, tls};
use tables::Malformed;
use tokio_postgres::error::{DbError, Severity, SqlState};
use types::Errno;

/// The step in which a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Connect,
    Prepare,
    /// The server may have received the request.
    Sent,
}

/// A request that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Postgres(Stage, tokio_postgres::Error),
    Timeout(Stage, Duration),
    Runtime(io::Error),
    /// The reply contains data that limenfs never writes.
    Malformed(&'static str),
    /// The log lost rows that a stream of changes had not read.
    Missed,
    /// The records were removed while a stream of changes was open.
    Wiped,
}

/// The SQLSTATE that `functions.sql` raises to ask for a group in smaller parts, or for a single transaction
/// with `careful`.
const IN_PARTS: &str = "LM001";

impl Failure {
    /// The SQLSTATE, if the server reported the error.
    fn code(&self) -> Option<&SqlState> {
        match self {
            Failure::Postgres(_, error) => error.code(),
            _ => None,
        }
    }

    /// Whether the server ended the connection with this error.
    fn ends_connection(&self) -> bool {
        let Failure::Postgres(_, error) = self else { return false };
        let severity = error.as_db_error().and_then(DbError::parsed_severity);
        matches!(severity, Some(Severity::Fatal | Severity::Panic))
    }

    /// Whether the request failed because a row that it inserts already exists.
    pub(crate) fn found_row(&self) -> bool {
        self.code() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    pub(crate) fn wants_parts(&self) -> bool {
        self.code().is_some_and(|code| code.code() == IN_PARTS)
    }

    fn text(&self) -> String {
        match self {
            Failure::Timeout(Stage::Connect, limit) => {
                format!("no connection within {limit:?} (connect_timeout)")
            }
            Failure::Timeout(_, limit) => format!("no answer within {limit:?} (op_timeout)"),
            Failure::Runtime(error) => format!("cannot create an event loop: {error}"),
            Failure::Malformed(what) => format!("malformed reply from the server: {what}"),
            Failure::Wiped => "the volume was wiped".to_owned(),
            Failure::Missed => "changes were removed from the log before this client read them".to_owned(),
            Failure::Postgres(_, error) => match (error.as_db_error(), error.source()) {
                (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
                (None, Some(source)) => format!("{error}: {source}"),
                (None, None) => error.to_string(),
            },
        }
    }
}

impl RequestError for Failure {
    /// The connection stays usable if the server rejected only this request and rolled it back. If the disk
    /// of the server's log is full, the server ends the connection.
    fn connection_after(&self) -> ConnectionState {
        use ConnectionState::{ServerLost, Usable};
        let clean = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::UNIQUE_VIOLATION,
            SqlState::QUERY_CANCELED,
            SqlState::DISK_FULL,
        ];
        let is_clean = self.wants_parts() || self.code().is_some_and(|code| clean.contains(code));
        if is_clean && !self.ends_connection() { Usable } else { ServerLost }
    }

    /// Maps a failure to an [`EngineError`].
    ///
    /// | failure | kind |
    /// |---|---|
    /// | no answer after the request was sent; the server ended the connection (FATAL, PANIC, 57P), or a pooler reports a lost connection (08): each may happen after a commit | indeterminate if the request changes anything, else transient |
    /// | a malformed reply | indeterminate if the request changes anything, else permanent |
    /// | the disk is full (53100) | permanent, ENOSPC |
    /// | a conflict (40), a unique key that another transaction took (23505), a timeout (57014), too many connections (53), a server that stops or starts (57P), a standby (25006), a lock that is not available (55P03), a function or statement that no longer exists (42883, 42704, 26000), no connection | transient |
    /// | everything else: a wrong password, a missing privilege, rows that limenfs never writes | permanent |
    fn engine_error(self, address: &str, intent: Intent) -> EngineError {
        let message = format!("{address}: {}", self.text());
        let (stage, error) = match &self {
            Failure::Malformed(_) => return intent.malformed_reply(message),
            Failure::Runtime(_) | Failure::Missed | Failure::Wiped => return EngineError::permanent(message),
            Failure::Timeout(stage, _) => (*stage, None),
            Failure::Postgres(stage, error) => (*stage, Some(error)),
        };
        let Some(code) = self.code() else {
            return match stage {
                Stage::Sent => intent.unanswered(message),
                Stage::Connect if error.is_some_and(|error| !is_io(error)) => EngineError::permanent(message),
                Stage::Connect | Stage::Prepare => EngineError::transient(message),
            };
        };
        let (code, class) = (code.code(), code.code().get(..2));
        let may_have_committed =
            self.ends_connection() || class == Some("08") || class == Some("57") && code != "57014";
        match class {
            _ if may_have_committed && stage == Stage::Sent => intent.unanswered(message),
            _ if code == "53100" => EngineError::permanent(message).with_errno(Errno::ENOSPC),
            Some("08" | "40" | "53" | "57") => EngineError::transient(message),
            _ if ["23505", "25006", "42883", "42704", "26000", "55P03", IN_PARTS].contains(&code) => {
                EngineError::transient(message)
            }
            _ => EngineError::permanent(message),
        }
    }
}

impl From<Malformed> for Failure {
    fn from(Malformed(what): Malformed) -> Self {
        Failure::Malformed(what)
    }
}

/// Whether this is a network failure, which may be temporary.
fn is_io(error: &tokio_postgres::Error) -> bool {
    let is_network =
        |source: &(dyn Error + 'static)| source.downcast_ref().is_some_and(|error| !tls::is_rejected(error));
    error.is_closed() || error.source().is_none_or(is_network)
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio_postgres::config::SslMode;
    use tokio_postgres::tls::{NoTlsStream, TlsConnect};

    use super::*;

    /// A handshake that fails with this error.
    struct Fails(io::Error);

    impl TlsConnect<DuplexStream> for Fails {
        type Stream = NoTlsStream;
        type Error = io::Error;
        type Future = Ready<io::Result<NoTlsStream>>;

        fn connect(self, _: DuplexStream) -> Self::Future {
            ready(Err(self.0))
        }
    }

    #[test]
    fn an_untrusted_certificate_is_permanent_and_a_reset_handshake_is_not() {
        let untrusted = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        for (error, is_permanent) in [
            (io::Error::new(io::ErrorKind::InvalidData, untrusted), true),
            (io::ErrorKind::ConnectionReset.into(), false),
        ] {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let failed = runtime.block_on(async {
                let (ours, mut server) = tokio::io::duplex(64);
                // The answer to the request for TLS.
                server.write_all(b"S").await.unwrap();
                let mut config = tokio_postgres::Config::new();
                config.user("limen").ssl_mode(SslMode::Require);
                let failed = config.connect_raw(ours, Fails(error)).await.err().unwrap();
                server.read_u8().await.unwrap();
                failed
            });
            let failed = Failure::Postgres(Stage::Connect, failed).engine_error("here", Intent::Read);
            assert_eq!(failed.kind, meta::ErrorKind::Determinate { transient: !is_permanent }, "{failed}");
        }
    }
}
