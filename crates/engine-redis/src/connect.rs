//! Finding the server that has the volume, and talking to it.

use std::time::Duration;

use meta::EngineError;
use pool::{Asked, Connect, Failed, first};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, ConnectionLike, FromRedisValue, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, Value, from_redis_value,
};

use crate::config::{Config, address};
use crate::error::{Failure, Malformed};

/// The scripts, each after what they share.
const SCRIPTS: [&str; 3] = [
    concat!(include_str!("lua/common.lua"), include_str!("lua/read.lua")),
    concat!(include_str!("lua/common.lua"), include_str!("lua/scan.lua")),
    concat!(include_str!("lua/common.lua"), include_str!("lua/commit.lua")),
];

/// Which of [`SCRIPTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Read = 0,
    Scan = 1,
    Commit = 2,
}

/// How often a Cluster may send a new connection on from one node to another.
const MOST_MOVES: usize = 5;

/// Makes connections to whatever server is the master at that time.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) config: Config,
}

/// A connection to the master, with its scripts loaded.
pub(crate) struct Conn {
    inner: Connection,
    /// The names that the server gave the scripts.
    names: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Connect for Connector {
    type Connection = Conn;

    fn connect(&self) -> Result<Conn, EngineError> {
        let config = &self.config;
        match &config.sentinel_master {
            Some(name) => self.reach(self.ask_sentinels(name)?),
            None => first(&config.hosts, self.error("no server was found"), |host| self.reach(host.clone())),
        }
    }

    fn place(&self) -> &str {
        &self.config.shown
    }
}

impl Connector {
    fn open(&self, address: ConnectionAddr, login: bool) -> RedisResult<Connection> {
        let config = &self.config;
        let mut redis = RedisConnectionInfo::default().set_skip_set_lib_name();
        if login {
            redis = redis.set_db(config.db);
            if let Some(password) = &config.password {
                redis = redis.set_password(password.reveal());
                if let Some(user) = &config.user {
                    redis = redis.set_username(user);
                }
            }
        }
        let info: ConnectionInfo = address.into_connection_info()?;
        let info = info.set_redis_settings(redis).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = match &config.tls {
            Some(certificates) => {
                // Fails only if there is a provider already, which is then used.
                drop(rustls::crypto::ring::default_provider().install_default());
                Client::build_with_tls(info, certificates.clone())?
            }
            None => Client::open(info)?,
        };
        let connection = client.get_connection_with_timeout(config.params.connect_timeout)?;
        connection.set_read_timeout(Some(config.params.op_timeout))?;
        connection.set_write_timeout(Some(config.params.op_timeout))?;
        Ok(connection)
    }

    /// A connection to the master: to this server, or to the one that a Cluster's node sends us to.
    fn reach(&self, mut address: ConnectionAddr) -> Result<Conn, EngineError> {
        for _ in 0..=MOST_MOVES {
            let shown = format!("{} ({address})", self.config.shown);
            let mut inner = self.open(address, true).map_err(|error| refused_connection(&shown, &error))?;
            let failure = match self.greet(&mut inner) {
                Ok(names) => return Ok(Conn { inner, names, buffer: Vec::new() }),
                Err(Failure::Demoted) => {
                    let message = format!("{shown}: the server is a replica: name its master in the URL");
                    return Err(EngineError::transient(message));
                }
                Err(failure) => failure,
            };
            match self.moved(&failure) {
                Some(next) => address = next,
                None => return Err(failure.engine_error(&shown, Asked::Look)),
            }
        }
        Err(self.error("the Cluster sends us in circles"))
    }

    /// Asks the server what it is, and loads the scripts; gives their names.
    fn greet(&self, inner: &mut Connection) -> Result<Vec<Vec<u8>>, Failure> {
        let mut commands = Vec::new();
        add_command(&mut commands, &[b"EXISTS", &self.config.key("state")]);
        add_command(&mut commands, &[b"ROLE"]);
        for script in SCRIPTS {
            add_command(&mut commands, &[b"SCRIPT", b"LOAD", script.as_bytes()]);
        }
        let mut answers = inner.req_packed_commands(&commands, 0, 2 + SCRIPTS.len())?.into_iter();
        said(answers.next().unwrap_or_default())?;
        if answers.next().is_some_and(|role| is_replica(&role)) {
            return Err(Failure::Demoted);
        }
        let names = answers.map(|answer| match said(answer)? {
            Value::BulkString(name) => Ok(name),
            _ => Ok(Vec::new()),
        });
        names.collect()
    }

    /// Where the error of a Cluster's node sends us: "MOVED 3999 host:port".
    fn moved(&self, failure: &Failure) -> Option<ConnectionAddr> {
        let Failure::Refused(error) = failure else { return None };
        let (host, port) = error.details()?.split(' ').nth(1)?.rsplit_once(':')?;
        (error.code() == "MOVED").then_some(address(self.config.tls.is_some(), host, port.parse().ok()?))
    }

    /// The master's address, by the first Sentinel that knows it.
    fn ask_sentinels(&self, name: &str) -> Result<ConnectionAddr, EngineError> {
        first(&self.config.hosts, self.error("no Sentinel answers"), |sentinel| {
            let place = format!("{} ({sentinel})", self.config.shown);
            let found = self.ask_sentinel(sentinel.clone(), name);
            found.map_err(|failure| failure.engine_error(&place, Asked::Look))?.ok_or_else(|| {
                EngineError::transient(format!("{place}: the Sentinel knows no master '{name}'"))
            })
        })
    }

    fn ask_sentinel(&self, sentinel: ConnectionAddr, name: &str) -> Result<Option<ConnectionAddr>, Failure> {
        let mut inner = self.open(sentinel, false)?;
        let mut commands = Vec::new();
        // A Sentinel without a password refuses ours, which is no harm.
        let login = self.config.password.as_ref().map(|password| {
            let user = self.config.user.as_deref().unwrap_or("default");
            add_command(&mut commands, &[b"AUTH", user.as_bytes(), password.reveal().as_bytes()]);
        });
        add_command(&mut commands, &[b"SENTINEL", b"get-master-addr-by-name", name.as_bytes()]);
        let count = 1 + usize::from(login.is_some());
        let answer = inner.req_packed_commands(&commands, 0, count)?.pop().unwrap_or_default();
        let master: Option<(String, u16)> = take(said(answer)?)?;
        Ok(master.map(|(host, port)| address(self.config.tls.is_some(), &host, port)))
    }

    fn error(&self, what: &str) -> EngineError {
        EngineError::transient(format!("{}: {what}", self.config.shown))
    }
}

impl Conn {
    /// Runs a script, and asks in the same round trip whether the server is still a master: a replica would answer
    /// with what was.
    pub(crate) fn run(&mut self, script: Script, prefix: &[u8], request: &[u8]) -> Result<Value, Failure> {
        let answer = self.try_run(script, prefix, request);
        match answer {
            Err(Failure::Refused(error)) if error.code() == "NOSCRIPT" => {
                // The server forgot its scripts. What it did not know it did not run.
                let mut command = Vec::new();
                add_command(&mut command, &[b"SCRIPT", b"LOAD", SCRIPTS[script as usize].as_bytes()]);
                self.ask(&command, 1)?;
                self.try_run(script, prefix, request)
            }
            answer => answer,
        }
    }

    fn try_run(&mut self, script: Script, prefix: &[u8], request: &[u8]) -> Result<Value, Failure> {
        let mut commands = std::mem::take(&mut self.buffer);
        commands.clear();
        let name = self.names.get(script as usize).map_or(&[][..], Vec::as_slice);
        add_command(&mut commands, &[b"EVALSHA", name, b"1", prefix, request]);
        let answer = self.ask_master(&mut commands);
        self.buffer = commands;
        answer
    }

    /// The answer to a command of somebody who would not take that of a replica.
    pub(crate) fn ask_master(&mut self, command: &mut Vec<u8>) -> Result<Value, Failure> {
        add_command(command, &[b"ROLE"]);
        let mut answers = self.inner.req_packed_commands(command, 0, 2)?.into_iter();
        let answer = said(answers.next().unwrap_or_default())?;
        if answers.next().is_some_and(|role| is_replica(&role)) { Err(Failure::Demoted) } else { Ok(answer) }
    }

    /// The answers to some commands, the last of which counts.
    pub(crate) fn ask(&mut self, commands: &[u8], count: usize) -> Result<Value, Failure> {
        said(self.inner.req_packed_commands(commands, 0, count)?.pop().unwrap_or_default())
    }

    /// How long to wait for an answer from now on.
    pub(crate) fn set_patience(&mut self, patience: Duration) -> RedisResult<()> {
        self.inner.set_read_timeout(Some(patience))
    }
}

/// A command in Redis's protocol.
pub(crate) fn add_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// Whether an answer to ROLE is a replica's. Where a user may not ask, the server counts as a master.
fn is_replica(role: &Value) -> bool {
    matches!(role, Value::Array(parts) if matches!(parts.first(), Some(Value::BulkString(r)) if r == b"slave"))
}

/// An answer in the form that a command has it.
pub(crate) fn take<T: FromRedisValue>(answer: Value) -> Result<T, Malformed> {
    from_redis_value(answer).map_err(|_| Malformed("it has another form than that of the command"))
}

/// An answer, unless it is that there is none.
fn said(answer: Value) -> Result<Value, Failure> {
    match answer {
        Value::ServerError(error) => Err(Failure::Refused(error)),
        answer => Ok(answer),
    }
}

/// Why there is no connection. Nothing happened; a wrong password stays wrong.
fn refused_connection(place: &str, error: &RedisError) -> EngineError {
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            EngineError::permanent(format!("{place}: the server refuses this user and password"))
        }
        redis::ErrorKind::InvalidClientConfig => EngineError::permanent(format!("{place}: {error}")),
        _ if error.is_timeout() => {
            EngineError::transient(format!("{place}: no connection in time (connect_timeout)"))
        }
        _ => EngineError::transient(format!("{place}: {error}")),
    }
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn").field("open", &self.inner.is_open()).finish_non_exhaustive()
    }
}
