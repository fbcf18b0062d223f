//! A connection: one HTTP/2 connection, and the runtime that the thread which uses it drives.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meta::EngineError;
use pool::Connect;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;

use crate::config::Config;
use crate::error::{Asked, engine_error};
use crate::grpc::{CallError, Channel};
use crate::wire::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse};

#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) config: Config,
    /// The host that answered last.
    good: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Connection {
    runtime: Runtime,
    pub(crate) channel: Channel,
    op_timeout: Duration,
}

impl Connector {
    pub(crate) fn new(config: Config) -> Self {
        Connector { config, good: AtomicUsize::new(0) }
    }

    async fn open(&self, host: &str, port: u16) -> Result<Channel, EngineError> {
        let broken =
            |error: &dyn std::fmt::Display| EngineError::transient(format!("{host}:{port}: {error}"));
        let tcp = TcpStream::connect((host, port)).await.map_err(|error| broken(&error))?;
        tcp.set_nodelay(true).map_err(|error| broken(&error))?;
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut channel = match &self.config.tls {
            None => Channel::open(tcp, authority, "http").await.map_err(|error| broken(&error))?,
            Some(config) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|error| EngineError::permanent(format!("{host}: {error}")))?;
                let tls = TlsConnector::from(config.clone()).connect(name, tcp).await;
                let tls = tls.map_err(|error| EngineError::permanent(format!("{host}:{port}: {error}")))?;
                Channel::open(tls, authority, "https").await.map_err(|error| broken(&error))?
            }
        };
        if let Some((user, password)) = &self.config.login {
            let request = AuthenticateRequest { name: user.clone(), password: password.reveal().to_owned() };
            let answer: Result<AuthenticateResponse, CallError> = channel.call(AUTHENTICATE, &request).await;
            let token = answer.and_then(|answer| channel.set_token(&answer.token));
            token.map_err(|error| engine_error(Asked::Look, &error))?;
        }
        Ok(channel)
    }
}

impl Connect for Connector {
    type Connection = Connection;

    /// Tries the hosts in turn, from the one that answered last.
    fn connect(&self) -> Result<Connection, EngineError> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| EngineError::transient(format!("no runtime for a connection: {error}")))?;
        let params = &self.config.params;
        let count = self.config.hosts.len();
        let first = self.good.load(Ordering::Relaxed);
        let mut failure = EngineError::permanent("there is no host to connect to");
        for number in (0..count).map(|step| (first + step) % count) {
            let Some((host, port)) = self.config.hosts.get(number) else { continue };
            let opened = runtime.block_on(async {
                let limit = params.connect_timeout;
                tokio::time::timeout(limit, self.open(host, *port)).await.unwrap_or_else(|_| {
                    Err(EngineError::transient(format!("{host}:{port}: no answer within {limit:?}")))
                })
            });
            match opened {
                Ok(channel) => {
                    self.good.store(number, Ordering::Relaxed);
                    return Ok(Connection { runtime, channel, op_timeout: params.op_timeout });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

impl Connection {
    /// Runs requests on the connection, for as long as one may take.
    pub(crate) fn run<'a, T, F>(&'a mut self, work: impl FnOnce(&'a mut Channel) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>> + 'a,
    {
        let limit = self.op_timeout;
        let work = work(&mut self.channel);
        let lost = || CallError::Lost(format!("no answer within {limit:?}"));
        self.runtime
            .block_on(async { tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(lost())) })
    }

    pub(crate) fn into_parts(self) -> (Runtime, Channel, Duration) {
        (self.runtime, self.channel, self.op_timeout)
    }
}
