//! What is particular to each kind of server.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::PATIENCE;

/// A database server that limen knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    Postgres,
    Mariadb,
    Etcd,
}

impl Kind {
    /// Makes what the server wants to find in its directory, where it is started.
    pub(super) fn prepare(self, directory: &Path) {
        match self {
            Kind::Redis | Kind::Etcd => {}
            Kind::Postgres => {
                fs::create_dir(directory.join("data")).unwrap();
                run(Command::new("chown").arg("postgres").arg(directory.join("data")));
                run(postgres("initdb").current_dir(directory).args([
                    "--pgdata=data",
                    "--username=limen",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--no-sync",
                ]));
            }
            Kind::Mariadb => {
                fs::create_dir(directory.join("tmp")).unwrap();
                run(mariadb("mariadb-install-db", directory)
                    .args(["--auth-root-authentication-method=normal", "--skip-test-db"]));
            }
        }
    }

    /// The server; if `durable`, what it acknowledged is on the disk.
    pub(super) fn command(self, port: u16, directory: &Path, durable: bool) -> Command {
        match self {
            Kind::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
                command.args(["--appendonly", if durable { "yes" } else { "no" }, "--appendfsync", "always"]);
                command.args(["--logfile", "log", "--dir"]).arg(directory);
                command
            }
            Kind::Postgres => {
                let mut command = postgres("postgres");
                command.args(["-D", "data", "-p", &port.to_string()]);
                command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
                command.args(["-c", "shared_preload_libraries=pg_stat_statements"]);
                command.args(["-c", if durable { "fsync=on" } else { "fsync=off" }]);
                command
            }
            Kind::Mariadb => {
                let mut command = mariadb("mariadbd", directory);
                command.args([&format!("--port={port}"), "--bind-address=127.0.0.1", "--skip-name-resolve"]);
                // Counts statements by their text.
                command.arg("--performance-schema=on");
                let flush = if durable { "1" } else { "0" };
                command.arg(format!("--innodb-flush-log-at-trx-commit={flush}"));
                command
            }
            Kind::Etcd => {
                let mut command = Command::new("etcd");
                let client = format!("http://127.0.0.1:{port}");
                // Nobody else is in the cluster, so nobody connects to what it says.
                let peer = "http://127.0.0.1:1";
                command.args(["--data-dir", "data", "--listen-peer-urls", "http://127.0.0.1:0"]);
                command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
                command.args(["--initial-advertise-peer-urls", peer]);
                command.args(["--initial-cluster", &format!("default={peer}")]);
                command
            }
        }
    }

    /// What is done once, when the server runs for the first time.
    pub(super) fn set_up(self, port: u16) {
        match self {
            Kind::Redis | Kind::Etcd => {}
            Kind::Postgres => drop(self.ask(port, "CREATE EXTENSION pg_stat_statements")),
            Kind::Mariadb => drop(self.ask(port, "CREATE DATABASE limen")),
        }
    }

    pub(super) fn is_up(self, port: u16) -> bool {
        match self {
            // While it reads its log it answers with an error.
            Kind::Redis => redis(port, "PING").is_some_and(|line| line.starts_with("+PONG")),
            // While it recovers it refuses.
            Kind::Postgres => {
                let parameters = b"\0\x03\0\0user\0limen\0database\0postgres\0\0";
                let length = (parameters.len() as u32 + 4).to_be_bytes();
                first_bytes(port, &[&length, &parameters[..]].concat())
                    .is_some_and(|[first, ..]| first == b'R')
            }
            // A packet that begins with the version of the protocol.
            Kind::Mariadb => first_bytes(port, b"").is_some_and(|[.., version]| version == 10),
            Kind::Etcd => get(port, "/health").is_some_and(|answer| answer.contains("\"true\"")),
        }
    }

    pub(crate) fn url(self, port: u16, database: &str) -> String {
        let place = match self {
            Kind::Redis => format!("redis://127.0.0.1:{port}/?"),
            // What goes over the connection has to be read.
            Kind::Postgres => format!("postgres://limen@127.0.0.1:{port}/postgres?sslmode=disable&"),
            Kind::Mariadb => format!("mysql://root@127.0.0.1:{port}/limen?"),
            Kind::Etcd => format!("etcd://127.0.0.1:{port}/?"),
        };
        format!("{place}table_prefix={database}_&op_timeout=2s&connect_timeout=1s")
    }

    /// What the client sends over the connection by which it hears of changes, and over no other.
    pub(super) fn of_stream(self) -> &'static [u8] {
        match self {
            Kind::Redis => b"XREAD",
            Kind::Postgres => b"pg_snapshot_xmax",
            Kind::Mariadb => b"SELECT 0, epoch",
            // Where the keys of the log end, and that removals are not wanted: a watch begins.
            Kind::Etcd => b"/m*\x01\x01",
        }
    }

    /// The server's name as `limen status` begins it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Redis => "Redis ",
            Kind::Postgres => "PostgreSQL ",
            Kind::Mariadb => "MariaDB ",
            Kind::Etcd => "etcd ",
        }
    }

    /// Whether it can be told not to keep what it acknowledged.
    pub(crate) fn can_be_careless(self) -> bool {
        self != Kind::Etcd
    }

    /// Requests of clients that the server has carried out, as it counts them itself: the round trips, but for those by
    /// which a client hears of changes, or waits for the disk in the background.
    pub(super) fn requests(self, port: u16) -> u64 {
        match self {
            // Each of the engine's requests is one script.
            Kind::Redis => {
                let stats = redis(port, "INFO commandstats").unwrap();
                let calls = stats.lines().filter_map(|line| {
                    let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                    Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
                });
                let calls: BTreeMap<String, u64> = calls.collect();
                calls.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| calls).sum()
            }
            Kind::Postgres => {
                let counted = "SELECT sum(calls)::bigint FROM pg_stat_statements \
                               WHERE query !~ 'pg_snapshot_xmax|pg_logical_emit_message|pg_stat_statements'";
                self.ask(port, counted).parse().unwrap()
            }
            Kind::Mariadb => {
                let counted = "SELECT variable_value - COALESCE((SELECT SUM(count_star) \
                               FROM performance_schema.events_statements_summary_by_digest \
                               WHERE digest_text LIKE 'SELECT ? , `epoch`%'), 0) \
                               FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'";
                self.ask(port, counted).parse().unwrap()
            }
            Kind::Etcd => {
                let metrics = get(port, "/metrics").unwrap();
                let calls = metrics.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
                let calls = calls.filter(|line| line.contains("grpc_type=\"unary\""));
                calls.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
            }
        }
    }

    /// What the server's own client prints for a statement.
    pub(super) fn ask(self, port: u16, sql: &str) -> String {
        let port = port.to_string();
        match self {
            Kind::Postgres => {
                let place = ["--host=127.0.0.1", "--username=limen", "--dbname=postgres", "--port", &port];
                run(Command::new("psql").args(place).args(["--no-psqlrc", "-qAt", "-c", sql]))
            }
            Kind::Mariadb => {
                let place = ["--no-defaults", "--host=127.0.0.1", "--user=root", "--port", &port];
                run(Command::new("mariadb").args(place).args(["--batch", "--skip-column-names", "-e", sql]))
            }
            Kind::Redis | Kind::Etcd => unreachable!("they know no SQL"),
        }
    }
}

/// What a program prints, which has to succeed.
#[track_caller]
fn run(command: &mut Command) -> String {
    let hint = "install what tests need: scripts/install-deps.sh test";
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{error}: {hint}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// One of PostgreSQL's programs, the newest that is installed, as its user: it refuses to be root's.
fn postgres(program: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbers = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let version = numbers.max().expect("PostgreSQL is needed: scripts/install-deps.sh test");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    command.arg(format!("/usr/lib/postgresql/{version}/bin/{program}"));
    command
}

/// One of MariaDB's programs that work on a directory.
fn mariadb(program: &str, directory: &Path) -> Command {
    let places = ["/usr/sbin", "/usr/bin"].map(|place| Path::new(place).join(program));
    let found: Option<PathBuf> = places.into_iter().find(|path| path.exists());
    let mut command = Command::new(found.expect("MariaDB is needed: scripts/install-deps.sh test"));
    let at = |name: &str| directory.join(name).display().to_string();
    command.args(["--no-defaults", "--user=root", &format!("--datadir={}", at("data"))]);
    // A server that starts removes what it finds of others' temporary tables.
    command.args([format!("--tmpdir={}", at("tmp")), format!("--socket={}", at("sock"))]);
    command
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// How the server's answer begins.
fn first_bytes(port: u16, request: &[u8]) -> Option<[u8; 5]> {
    let mut stream = connect(port)?;
    stream.write_all(request).ok()?;
    let mut first = [0; 5];
    stream.read_exact(&mut first).ok()?;
    Some(first)
}

/// What a server of HTTP has under a path, with the headers.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = connect(port)?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The answer to one command: a line, or a bulk string as it is.
fn redis(port: u16, command: &str) -> Option<String> {
    let mut stream = connect(port)?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    let (mut answer, mut line) = (BufReader::new(stream), String::new());
    answer.read_line(&mut line).ok()?;
    let Some(len) = line.strip_prefix('$') else { return Some(line) };
    let mut text = vec![0; len.trim().parse().ok()?];
    answer.read_exact(&mut text).ok()?;
    String::from_utf8(text).ok()
}
