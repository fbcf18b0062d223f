//! Finds the master, connects to it, and sends it commands and scripts.

use std::sync::LazyLock;
use std::time::Duration;

use meta::EngineError;
use pool::{Connect, Intent, RequestError, first};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Cmd, Connection, ConnectionAddr, ConnectionInfo, ConnectionLike, FromRedisValue,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value,
};

use crate::code;
use crate::config::{Config, address};
use crate::error::Failure;
use crate::request::{Reply, Request, take};

/// The scripts. Each one starts with the common part.
static SCRIPTS: LazyLock<[String; 3]> = LazyLock::new(|| {
    [include_str!("lua/read.lua"), include_str!("lua/scan.lua"), include_str!("lua/commit.lua")]
        .map(|script| code::substituted(include_str!("lua/common.lua")) + &code::substituted(script))
});

/// An index into [`SCRIPTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Read = 0,
    Scan = 1,
    Commit = 2,
}

/// The maximum number of MOVED redirects that a new connection follows in a Cluster.
const MAX_MOVES: usize = 5;

/// Opens connections to the current master.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) config: Config,
}

/// A connection to the master, with its scripts loaded.
pub(crate) struct Conn {
    inner: Connection,
    /// The SHA-1 digests by which the server names the scripts.
    names: Vec<String>,
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

    fn address(&self) -> &str {
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
                // This fails only if a provider is already installed; that provider is then used.
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

    /// Connects to the master: this server, or the node to which a Cluster redirects.
    fn reach(&self, mut address: ConnectionAddr) -> Result<Conn, EngineError> {
        for _ in 0..=MAX_MOVES {
            let shown = format!("{} ({address})", self.config.shown);
            let mut inner = self.open(address, true).map_err(|error| refused_connection(&shown, &error))?;
            let failure = match self.greet(&mut inner) {
                Ok(names) => return Ok(Conn { inner, names }),
                Err(failure) => failure,
            };
            let next = self.moved(&failure);
            address = next.ok_or_else(|| failure.engine_error(&shown, Intent::Read))?;
        }
        Err(self.error("too many redirects between the nodes of the Cluster"))
    }

    /// Checks that the server is a master, loads the scripts, and returns their names.
    fn greet(&self, inner: &mut Connection) -> Result<Vec<String>, Failure> {
        let mut commands = redis::pipe();
        // In a Cluster, only the node that stores the key answers this command; the others return MOVED.
        commands.cmd("EXISTS").arg(self.config.key("state")).cmd("ROLE");
        for script in SCRIPTS.iter() {
            commands.cmd("SCRIPT").arg("LOAD").arg(script);
        }
        let mut answers = send(inner, &commands.get_packed_pipeline(), commands.len())?;
        let (exists, role) = (answers.next(), answers.next());
        // A Sentinel does not know EXISTS.
        if role.as_ref().is_some_and(|role| has_role(role, b"sentinel")) {
            return Err(Failure::Sentinel);
        }
        exists.transpose()?;
        if role.is_some_and(|role| is_replica(&role)) {
            return Err(Failure::Demoted);
        }
        answers.map(|name| Ok(take(name?)?)).collect()
    }

    /// The address in a redirect from a Cluster node: "MOVED 3999 host:port".
    fn moved(&self, failure: &Failure) -> Option<ConnectionAddr> {
        let Failure::Redis(error) = failure else { return None };
        let (node, _) = error.redirect_node().filter(|_| error.code() == Some("MOVED"))?;
        let (host, port) = node.rsplit_once(':')?;
        Some(address(self.config.tls.is_some(), host, port.parse().ok()?))
    }

    /// The master's address, from the first Sentinel that knows it.
    fn ask_sentinels(&self, name: &str) -> Result<ConnectionAddr, EngineError> {
        first(&self.config.hosts, self.error("no Sentinel answered"), |sentinel| {
            let address = format!("{} ({sentinel})", self.config.shown);
            let found = self.ask_sentinel(sentinel.clone(), name);
            found.map_err(|failure| failure.engine_error(&address, Intent::Read))?.ok_or_else(|| {
                EngineError::transient(format!("{address}: the Sentinel does not know a master '{name}'"))
            })
        })
    }

    fn ask_sentinel(&self, sentinel: ConnectionAddr, name: &str) -> Result<Option<ConnectionAddr>, Failure> {
        let mut inner = self.open(sentinel, false)?;
        if let Some(password) = &self.config.password {
            let user = self.config.user.as_deref().unwrap_or("default");
            // A Sentinel without a password rejects AUTH. The error is ignored.
            let _refused = redis::cmd("AUTH").arg(user).arg(password.reveal()).exec(&mut inner);
        }
        let mut command = redis::cmd("SENTINEL");
        let master: Option<(String, u16)> =
            command.arg("get-master-addr-by-name").arg(name).query(&mut inner)?;
        Ok(master.map(|(host, port)| address(self.config.tls.is_some(), &host, port)))
    }

    pub(crate) fn error(&self, what: &str) -> EngineError {
        EngineError::transient(format!("{}: {what}", self.config.shown))
    }
}

impl Conn {
    /// Runs a script. Loads it again if the server no longer has it.
    pub(crate) fn run(&mut self, script: Script, prefix: &[u8], request: &Request) -> Result<Reply, Failure> {
        let mut command = redis::cmd("EVALSHA");
        let name = self.names.get(script as usize).map_or("", String::as_str);
        command.arg(name).arg(1).arg(prefix);
        request.args().for_each(|arg| _ = command.arg(arg));
        let mut answer = self.ask_master(&command);
        if matches!(&answer, Err(Failure::Redis(error)) if error.code() == Some("NOSCRIPT")) {
            // The server lost its scripts, for example because it restarted. It did not run this request.
            self.ask::<()>(redis::pipe().cmd("SCRIPT").arg("LOAD").arg(&SCRIPTS[script as usize]))?;
            answer = self.ask_master(&command);
        }
        Ok(take(answer?)?)
    }

    /// Sends a command and checks in the same round trip that the server is still a master, because a replica
    /// may answer with old data.
    pub(crate) fn ask_master(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let mut both = command.get_packed_command();
        redis::cmd("ROLE").write_packed_command(&mut both);
        let mut answers = send(&mut self.inner, &both, 2)?;
        let answer = answers.next().transpose()?.unwrap_or_default();
        if answers.next().is_some_and(|role| is_replica(&role)) { Err(Failure::Demoted) } else { Ok(answer) }
    }

    /// Sends some commands and returns the answer to the last one, or the first error.
    pub(crate) fn ask<T: FromRedisValue>(&mut self, commands: &Pipeline) -> Result<T, Failure> {
        last(send(&mut self.inner, &commands.get_packed_pipeline(), commands.len())?)
    }

    /// Sets the read timeout of the connection.
    pub(crate) fn set_read_timeout(&mut self, timeout: Duration) -> RedisResult<()> {
        self.inner.set_read_timeout(Some(timeout))
    }
}

/// Sends commands in one request and returns one answer per command.
fn send(
    inner: &mut Connection,
    commands: &[u8],
    count: usize,
) -> RedisResult<impl Iterator<Item = RedisResult<Value>> + use<>> {
    Ok(inner.req_packed_commands(commands, 0, count)?.into_iter().map(Value::extract_error))
}

/// Converts the last answer. Fails if an earlier answer is an error, because a command may be useless without
/// those before it.
fn last<T: FromRedisValue>(mut answers: impl Iterator<Item = RedisResult<Value>>) -> Result<T, Failure> {
    Ok(take(answers.try_fold(Value::default(), |_, answer| answer)?)?)
}

/// True if the answer to ROLE says that the server is a replica. If the user is not permitted to run ROLE,
/// the server is assumed to be a master.
fn is_replica(role: &RedisResult<Value>) -> bool {
    has_role(role, b"slave")
}

/// True if the answer to ROLE begins with `name`.
fn has_role(role: &RedisResult<Value>, name: &[u8]) -> bool {
    matches!(role, Ok(Value::Array(parts)) if matches!(parts.first(), Some(Value::BulkString(r)) if r == name))
}

/// The error for a failed connection attempt. Nothing was executed. An authentication failure is permanent.
fn refused_connection(address: &str, error: &RedisError) -> EngineError {
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            EngineError::permanent(format!("{address}: the server rejected the user name or password"))
        }
        redis::ErrorKind::InvalidClientConfig => EngineError::permanent(format!("{address}: {error}")),
        _ if error.is_timeout() => {
            EngineError::transient(format!("{address}: timed out while connecting (connect_timeout)"))
        }
        _ => EngineError::transient(format!("{address}: {error}")),
    }
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn").field("open", &self.inner.is_open()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_before_the_last_answer_is_reported() {
        // `SET synced` was rejected, so WAITAOF waited for older writes only.
        let rejected = || RedisError::from((redis::ErrorKind::InvalidClientConfig, "OOM"));
        let answer = last::<i64>([Err(rejected()), Ok(Value::Int(1))].into_iter());
        assert!(matches!(answer, Err(Failure::Redis(_))));
        assert!(matches!(last::<i64>([Ok(Value::Okay), Ok(Value::Int(1))].into_iter()), Ok(1)));
    }
}
