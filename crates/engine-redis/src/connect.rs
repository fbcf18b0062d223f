//! Finding the server that has the volume, and talking to it.

use std::collections::VecDeque;
use std::time::Duration;

use meta::EngineError;
use pool::Connect;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, ConnectionLike, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, ServerError, Value,
};

use crate::config::{Address, Config};
use crate::error::{Intent, broken, is_elsewhere, refused};

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

/// How often a Cluster may send a new connection on to another node.
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

/// What came back instead of an answer.
pub(crate) enum Failure {
    /// The connection broke or was silent for too long; the request may have been heard.
    Broken(RedisError),
    /// The server refused the request, or failed in it.
    Refused(ServerError),
    /// The server answered, but is no master any more, so what it said may be old.
    Demoted,
}

impl Failure {
    pub(crate) fn into_error(self, place: &str, intent: Intent) -> EngineError {
        match self {
            Failure::Broken(error) => broken(place, &error, intent),
            Failure::Refused(error) => refused(place, &error, intent),
            Failure::Demoted => {
                let message = format!("{place}: the server became a replica");
                match intent {
                    Intent::Look => EngineError::transient(message),
                    Intent::Change => EngineError::indeterminate(message),
                }
            }
        }
    }

    /// Whether the next request needs another connection.
    pub(crate) fn ends_connection(&self) -> bool {
        match self {
            Failure::Broken(_) | Failure::Demoted => true,
            Failure::Refused(error) => is_elsewhere(error),
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Failure::Broken(error)
    }
}

impl Connect for Connector {
    type Connection = Conn;

    fn connect(&self) -> Result<Conn, EngineError> {
        let config = &self.config;
        let mut places: VecDeque<Address> = match &config.sentinel_master {
            Some(name) => VecDeque::from([self.ask_sentinels(name)?]),
            None => config.hosts.clone().into(),
        };
        let mut moves = 0;
        let mut why = EngineError::transient(format!("{}: no server was found", config.shown));
        while let Some(address) = places.pop_front() {
            let shown = format!("{} ({address})", config.shown);
            match self.open(&address, true).map_err(|e| refused_connection(&shown, &e)).and_then(
                |mut inner| {
                    let found = self.greet(&mut inner).map_err(|e| e.into_error(&shown, Intent::Look))?;
                    Ok((inner, found))
                },
            ) {
                Ok((inner, Greeting::Master(names))) => {
                    return Ok(Conn { inner, names, buffer: Vec::new() });
                }
                Ok((_, Greeting::Replica)) => {
                    let message = format!("{shown}: the server is a replica: name its master in the URL");
                    why = EngineError::transient(message);
                }
                Ok((_, Greeting::Moved(next))) if moves < MOST_MOVES => {
                    moves += 1;
                    places.push_front(next);
                }
                Ok((_, Greeting::Moved(_))) => {
                    why = EngineError::transient(format!("{shown}: the Cluster sends us in circles"));
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

/// What a server turns out to be.
enum Greeting {
    /// The one; its names of the scripts.
    Master(Vec<Vec<u8>>),
    Replica,
    /// A node of a Cluster that says which one has the volume.
    Moved(Address),
}

impl Connector {
    fn open(&self, address: &Address, login: bool) -> RedisResult<Connection> {
        let config = &self.config;
        let address = match address {
            Address::Socket(path) => ConnectionAddr::Unix(path.into()),
            Address::Tcp(host, port) if config.tls.is_none() => ConnectionAddr::Tcp(host.clone(), *port),
            Address::Tcp(host, port) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
        };
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

    /// Asks the server what it is, and loads the scripts.
    fn greet(&self, inner: &mut Connection) -> Result<Greeting, Failure> {
        let mut commands = Vec::new();
        add_command(&mut commands, &[b"EXISTS", &self.config.key("state")]);
        add_command(&mut commands, &[b"ROLE"]);
        for script in SCRIPTS {
            add_command(&mut commands, &[b"SCRIPT", b"LOAD", script.as_bytes()]);
        }
        let mut answers = inner.req_packed_commands(&commands, 0, 2 + SCRIPTS.len())?.into_iter();
        if let Some(Value::ServerError(error)) = answers.next() {
            return moved(&error).map(Greeting::Moved).ok_or(Failure::Refused(error));
        }
        if answers.next().is_some_and(|role| is_replica(&role)) {
            return Ok(Greeting::Replica);
        }
        let names = answers.map(|answer| match answer {
            Value::BulkString(name) => Ok(name),
            Value::ServerError(error) => Err(Failure::Refused(error)),
            _ => Ok(Vec::new()),
        });
        Ok(Greeting::Master(names.collect::<Result<_, _>>()?))
    }

    /// The master's address, by the first Sentinel that knows it.
    fn ask_sentinels(&self, name: &str) -> Result<Address, EngineError> {
        let shown = &self.config.shown;
        let mut why = EngineError::transient(format!("{shown}: no Sentinel answers"));
        for sentinel in &self.config.hosts {
            match self.ask(sentinel, name) {
                Ok(Some(address)) => return Ok(address),
                Ok(None) => {
                    let message = format!("{shown} ({sentinel}): the Sentinel knows no master '{name}'");
                    why = EngineError::transient(message);
                }
                Err(failure) => {
                    why = failure.into_error(&format!("{shown} ({sentinel})"), Intent::Look);
                }
            }
        }
        Err(why)
    }

    fn ask(&self, sentinel: &Address, name: &str) -> Result<Option<Address>, Failure> {
        let mut inner = self.open(sentinel, false)?;
        let mut commands = Vec::new();
        // A Sentinel without a password refuses ours, which is no harm.
        let login = self.config.password.as_ref().map(|password| {
            let user = self.config.user.as_deref().unwrap_or("default");
            add_command(&mut commands, &[b"AUTH", user.as_bytes(), password.reveal().as_bytes()]);
        });
        let skipped = usize::from(login.is_some());
        add_command(&mut commands, &[b"SENTINEL", b"get-master-addr-by-name", name.as_bytes()]);
        let mut answers = inner.req_packed_commands(&commands, 0, skipped + 1)?.into_iter();
        match answers.nth(skipped) {
            Some(Value::ServerError(error)) => Err(Failure::Refused(error)),
            Some(Value::Array(parts)) => match &parts[..] {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let port = str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                    let host = String::from_utf8(host.clone()).ok();
                    Ok(host.zip(port).map(|(host, port)| Address::Tcp(host, port)))
                }
                _ => Ok(None),
            },
            _ => Ok(None),
        }
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
        let (answer, role) = (answers.next(), answers.next());
        match answer {
            Some(Value::ServerError(error)) => Err(Failure::Refused(error)),
            Some(_) if role.is_some_and(|role| is_replica(&role)) => Err(Failure::Demoted),
            answer => Ok(answer.unwrap_or_default()),
        }
    }

    /// The answers to some commands, the last of which counts.
    pub(crate) fn ask(&mut self, commands: &[u8], count: usize) -> Result<Value, Failure> {
        match self.inner.req_packed_commands(commands, 0, count)?.pop() {
            Some(Value::ServerError(error)) => Err(Failure::Refused(error)),
            answer => Ok(answer.unwrap_or_default()),
        }
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

/// Where the error of a Cluster's node sends us: "MOVED 3999 host:port".
fn moved(error: &ServerError) -> Option<Address> {
    if error.code() != "MOVED" {
        return None;
    }
    let (host, port) = error.details()?.split(' ').nth(1)?.rsplit_once(':')?;
    Some(Address::Tcp(host.to_owned(), port.parse().ok()?))
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

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Socket(path) => f.write_str(path),
        }
    }
}
