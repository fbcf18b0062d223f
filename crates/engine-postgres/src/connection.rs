//! A connection to the server. The thread that uses it also drives it, so a request wakes no other thread.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use meta::EngineError;
use pool::{Connect, Intent, RequestError};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Error, NoTls, Row, Statement};

use crate::config::Target;
use crate::error::{Failure, Stage};

/// Parameters of a statement.
pub(crate) type Args<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A connection to the server, with the statements that were prepared on it.
pub(crate) struct Connection {
    statements: HashMap<String, Statement>,
    client: Client,
    socket: Socket,
    op_timeout: Duration,
    /// Declared last, so that it is dropped last: the fields above need it.
    runtime: Runtime,
}

/// Moves bytes between client and server when polled; `None` after the connection has ended.
type Socket = Option<Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>>;

impl Connection {
    /// Connects. This takes the round trips of TCP, TLS and the authentication, and no others.
    pub(crate) fn open(target: &Target) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
        let (client, socket) = runtime.block_on(async {
            let connect = async {
                Ok::<(_, Socket), Error>(match &target.tls {
                    None => {
                        let (client, connection) = target.config.connect(NoTls).await?;
                        (client, Some(Box::pin(connection)))
                    }
                    Some(tls) => {
                        let (client, connection) = target.config.connect(tls.clone()).await?;
                        (client, Some(Box::pin(connection)))
                    }
                })
            };
            match timeout(target.connect_timeout, connect).await {
                Ok(connected) => connected.map_err(|error| Failure::Postgres(Stage::Connect, error)),
                Err(_) => Err(Failure::Timeout(Stage::Connect, target.connect_timeout)),
            }
        })?;
        Ok(Connection { statements: HashMap::new(), client, socket, op_timeout: target.op_timeout, runtime })
    }

    /// Runs a statement that returns rows. Prepares it on its first use on this connection.
    pub(crate) fn query(&mut self, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Failure> {
        let statement = match self.statements.get(sql) {
            Some(prepared) => prepared.clone(),
            None => {
                let prepared = self.drive(Stage::Prepare, |client| client.prepare(sql))?;
                self.statements.insert(sql.to_owned(), prepared.clone());
                prepared
            }
        };
        self.drive(Stage::Sent, |client| client.query(&statement, args))
    }

    /// Runs a statement that returns one row, whose columns are all texts.
    pub(crate) fn texts<const N: usize>(&mut self, sql: &str) -> Result<[String; N], Failure> {
        let rows = self.query(sql, &[])?;
        let row = rows.first().filter(|row| row.len() == N).ok_or(Failure::Malformed("no row"))?;
        let texts = (0..N).map(|at| get(row, at)).collect::<Result<Vec<_>, _>>()?;
        texts.try_into().map_err(|_| Failure::Malformed("no row"))
    }

    /// Like [`Connection::query`]. If the statement calls a function that does not exist, creates it with
    /// `functions` first.
    pub(crate) fn call(&mut self, functions: &str, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Failure> {
        match self.query(sql, args) {
            Err(Failure::Postgres(Stage::Prepare, error)) if error.code().is_some_and(is_undefined) => {
                self.batch(functions)?;
                self.query(sql, args)
            }
            done => done,
        }
    }

    /// Runs several statements without results as one transaction, in one round trip.
    pub(crate) fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        self.drive(Stage::Sent, |client| client.batch_execute(sql))
    }

    /// Polls the request, and the socket while the request waits.
    fn drive<'c, T, W>(
        &'c mut self,
        stage: Stage,
        request: impl FnOnce(&'c Client) -> W,
    ) -> Result<T, Failure>
    where
        W: Future<Output = Result<T, Error>>,
    {
        let Connection { client, socket, op_timeout, runtime, .. } = self;
        let request = request(client);
        runtime.block_on(async {
            let mut request = pin!(request);
            let done = poll_fn(|cx| {
                if let Poll::Ready(done) = request.as_mut().poll(cx) {
                    return Poll::Ready(done);
                }
                if let Some(Poll::Ready(ended)) = socket.as_mut().map(|socket| socket.as_mut().poll(cx)) {
                    *socket = None;
                    ended?;
                }
                request.as_mut().poll(cx)
            });
            match timeout(*op_timeout, done).await {
                Ok(done) => done.map_err(|error| Failure::Postgres(stage, error)),
                Err(_) => Err(Failure::Timeout(stage, *op_timeout)),
            }
        })
    }
}

impl Connect for Target {
    type Connection = Connection;

    fn connect(&self) -> Result<Connection, EngineError> {
        Connection::open(self).map_err(|failure| failure.engine_error(&self.name, Intent::Read))
    }

    fn address(&self) -> &str {
        &self.name
    }
}

/// A column of a row, as the type that the statement gives it.
pub(crate) fn get<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, Failure> {
    row.try_get(at).map_err(|_| Failure::Malformed("a column has an unexpected type"))
}

fn is_undefined(code: &SqlState) -> bool {
    [SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_OBJECT].contains(code)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("statements", &self.statements.len()).finish_non_exhaustive()
    }
}
