//! A connection to etcd, over HTTP/2. It has a runtime of its own, which the thread that uses the connection
//! drives.

use std::fmt::Display;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meta::EngineError;
use pool::{Connect, Host, Intent, RequestError, first, tls};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;

use crate::config::{Config, PORT};
use crate::grpc::{CallError, Channel, code};
use crate::wire::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, STATUS, StatusRequest, StatusResponse,
};

#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) config: Config,
    /// The index of the host that answered last.
    good: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Connection {
    runtime: Runtime,
    pub(crate) channel: Channel,
    op_timeout: Duration,
    /// The address of the server, for messages.
    pub(crate) address: String,
}

impl Connector {
    pub(crate) fn new(config: Config) -> Self {
        Connector { config, good: AtomicUsize::new(0) }
    }

    async fn open(&self, host: &Host) -> Result<Channel, EngineError> {
        let address = host.address(PORT);
        let broken = |error: &dyn Display| EngineError::transient(format!("{address}: {error}"));
        let refused = |error: &dyn Display| EngineError::permanent(format!("{address}: {error}"));
        let tcp = TcpStream::connect(&address).await.map_err(|error| broken(&error))?;
        tcp.set_nodelay(true).map_err(|error| broken(&error))?;
        let opened = match &self.config.tls {
            None => Channel::open(tcp, address.clone(), "http").await,
            Some(config) => {
                let name = ServerName::try_from(host.name.clone()).map_err(|error| refused(&error))?;
                let stream = TlsConnector::from(config.clone()).connect(name, tcp).await;
                let failed = |error| if tls::is_rejected(&error) { refused(&error) } else { broken(&error) };
                Channel::open(stream.map_err(failed)?, address.clone(), "https").await
            }
        };
        let mut channel = opened.map_err(|error| broken(&error))?;
        if let Some((user, password)) = &self.config.login {
            let request = AuthenticateRequest { name: user.clone(), password: password.reveal().to_owned() };
            let answer: Result<AuthenticateResponse, CallError> = channel.call(AUTHENTICATE, &request).await;
            let token = answer.and_then(|answer| channel.set_token(&answer.token));
            token.map_err(|error| error.at(&address).engine_error(self.address(), Intent::Read))?;
        }
        // A member that has no leader cannot serve requests, but another member may have one.
        if self.config.hosts.len() > 1 {
            let answer: Result<StatusResponse, CallError> = channel.call(STATUS, &StatusRequest {}).await;
            match answer {
                Ok(_) => {}
                // Any other status is an answer of a member that has a leader.
                Err(CallError::Status(status, _)) if status != code::UNAVAILABLE => {}
                Err(error) => return Err(error.at(&address).engine_error(self.address(), Intent::Read)),
            }
        }
        Ok(channel)
    }
}

impl Connect for Connector {
    type Connection = Connection;

    /// Tries each host once, starting with the one that answered last.
    fn connect(&self) -> Result<Connection, EngineError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(|error| {
            EngineError::transient(format!("cannot create a runtime for a connection: {error}"))
        })?;
        let params = &self.config.params;
        let hosts = &self.config.hosts;
        let turn = hosts.iter().enumerate().cycle().skip(self.good.load(Ordering::Relaxed)).take(hosts.len());
        let none = EngineError::permanent("no host to connect to");
        let (number, channel) = first(turn, none, |(number, host)| {
            let limit = params.connect_timeout;
            let opened = runtime.block_on(async { tokio::time::timeout(limit, self.open(host)).await });
            let late = |_| format!("{}: no answer within {limit:?}", host.address(PORT));
            opened.map_err(|error| EngineError::transient(late(error)))?.map(|channel| (number, channel))
        })?;
        self.good.store(number, Ordering::Relaxed);
        let address = hosts.get(number).map_or_else(String::new, |host| host.address(PORT));
        Ok(Connection { runtime, channel, op_timeout: params.op_timeout, address })
    }

    /// The errors of requests name the server.
    fn address(&self) -> &str {
        "etcd"
    }
}

impl Connection {
    /// Runs requests on the connection, limited to `op_timeout` in total.
    pub(crate) fn run<'a, T, F>(&'a mut self, work: impl FnOnce(&'a mut Channel) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>> + 'a,
    {
        let limit = self.op_timeout;
        let work = work(&mut self.channel);
        let lost = || CallError::Lost(format!("no answer within {limit:?}"));
        self.runtime
            .block_on(async { tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(lost())) })
            .map_err(|error| error.at(&self.address))
    }

    /// The runtime, the channel, the timeout of a request, and the address of the server.
    pub(crate) fn into_parts(self) -> (Runtime, Channel, Duration, String) {
        (self.runtime, self.channel, self.op_timeout, self.address)
    }
}
