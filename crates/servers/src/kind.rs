//! The kinds of servers: how each is started and queried, and how its requests are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::geteuid;

/// How long a server may take to start; much longer than any server needs.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// Acknowledged data is on the disk.
    pub durable: bool,
    /// The directory is in memory, if the machine has such a file system.
    pub in_memory: bool,
    /// More arguments of the server, after those of its kind.
    pub arguments: Vec<String>,
    /// The port on which `arguments` make the server listen (Redis). If it is set, the server gets none of
    /// the usual arguments for its port and durability.
    pub port: Option<u16>,
}

/// A database server that limen supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Postgres,
    Mariadb,
    Etcd,
    /// Unistore (`tests/tikv`).
    Tikv,
}

impl Kind {
    /// Builds the server if it is one that this repository builds (TiKV) and is not built yet. Returns why
    /// that failed, for example the tools that this machine lacks.
    pub fn missing(self) -> Option<String> {
        if self == Kind::Tikv { unistore().err() } else { None }
    }

    /// Creates the files that the server expects in its directory, which is its working directory.
    pub(crate) fn prepare(self, directory: &Path) {
        match self {
            Kind::Redis | Kind::Etcd | Kind::Tikv => {}
            Kind::Postgres => {
                let data = directory.join("data");
                fs::create_dir(&data).unwrap();
                if geteuid().is_root() {
                    run(Command::new("chown").arg("postgres").arg(&data));
                }
                run(postgres("initdb").current_dir(directory).args([
                    "--pgdata=data",
                    "--username=limen",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--no-sync",
                ]));
                // Roles of these names need a password.
                let rules = "host all guarded 127.0.0.1/32 scram-sha-256\n\
                             host all guarded_of_old 127.0.0.1/32 md5\n\
                             host all all 127.0.0.1/32 trust\n";
                fs::write(data.join("pg_hba.conf"), rules).unwrap();
            }
            Kind::Mariadb => {
                fs::create_dir(directory.join("tmp")).unwrap();
                fs::write(directory.join("init.sql"), "CREATE DATABASE IF NOT EXISTS limen;\n").unwrap();
                run(&mut match mysqld() {
                    Some(_) => {
                        let mut install = mariadb("mariadbd", directory);
                        install.arg("--initialize-insecure");
                        install
                    }
                    None => {
                        let mut install = mariadb("mariadb-install-db", directory);
                        install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
                        install
                    }
                });
            }
        }
    }

    /// The command that runs the server.
    pub(crate) fn command(self, port: u16, directory: &Path, settings: &ServerSettings) -> Command {
        let durable = settings.durable;
        let mut command;
        match self {
            Kind::Redis => {
                command = Command::new("redis-server");
                // The arguments come first, because one of them may be a configuration file.
                if settings.port.is_none() {
                    command.args(["--port", &port.to_string()]);
                    command.args(if durable {
                        &["--appendonly", "yes", "--appendfsync", "always"][..]
                    } else {
                        &["--appendonly", "no"]
                    });
                }
                command.args(&settings.arguments);
                command.args(["--bind", "127.0.0.1", "--save", "", "--dir"]).arg(directory);
                return command;
            }
            Kind::Postgres => {
                command = postgres("postgres");
                command.args(["-D", "data", "-p", &port.to_string()]);
                command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
                command.args(["-c", "shared_preload_libraries=pg_stat_statements"]);
                command.args(["-c", if durable { "fsync=on" } else { "fsync=off" }]);
                // A server that is killed leaves its segments of shared memory. With mmap, these are files in
                // the data directory, and are removed with it.
                command.args(["-c", "dynamic_shared_memory_type=mmap"]);
            }
            Kind::Mariadb => {
                command = mariadb("mariadbd", directory);
                command.args([&format!("--port={port}"), "--bind-address=127.0.0.1", "--skip-name-resolve"]);
                command.arg(format!("--init-file={}", directory.join("init.sql").display()));
                // Counts statements by their text.
                command.arg("--performance-schema=on");
                let flush = if durable { "1" } else { "0" };
                command.arg(format!("--innodb-flush-log-at-trx-commit={flush}"));
                if mysqld().is_some() {
                    command.args(["--mysqlx=off", "--secure-file-priv=NULL"]);
                }
            }
            Kind::Etcd => {
                command = Command::new("etcd");
                let client = format!("http://127.0.0.1:{port}");
                // The cluster has one member, so the advertised peer URL is never used.
                let peer = "http://127.0.0.1:1";
                command.args(["--data-dir", "data", "--listen-peer-urls", "http://127.0.0.1:0"]);
                command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
                command.args(["--initial-advertise-peer-urls", peer]);
                command.args(["--initial-cluster", &format!("default={peer}")]);
                // The only member elects itself soon.
                command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
            }
            Kind::Tikv => {
                command = Command::new(unistore().unwrap());
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                command.args(durable.then_some("--dir=data"));
            }
        }
        command.args(&settings.arguments);
        command
    }

    /// Runs once, after the first start of the server.
    pub(crate) fn set_up(self, port: u16) {
        if self == Kind::Postgres {
            self.sql(port, "CREATE EXTENSION pg_stat_statements");
        }
    }

    pub(crate) fn is_up(self, port: u16, settings: &ServerSettings) -> bool {
        match self {
            // With TLS, Redis answers no command without encryption.
            Kind::Redis if settings.arguments.iter().any(|argument| argument == "--tls-port") => {
                connect(port).is_some()
            }
            // While Redis loads its log, it answers with another error.
            Kind::Redis => redis(port, "PING")
                .is_some_and(|line| line.starts_with("+PONG") || line.starts_with("-NOAUTH")),
            // While PostgreSQL recovers, it refuses connections.
            Kind::Postgres => {
                let parameters = b"\0\x03\0\0user\0limen\0database\0postgres\0\0";
                let length = (parameters.len() as u32 + 4).to_be_bytes();
                first_bytes(port, &[&length, &parameters[..]].concat())
                    .is_some_and(|[first, ..]| first == b'R')
            }
            // The server first sends a packet that begins with the protocol version.
            Kind::Mariadb => first_bytes(port, b"").is_some_and(|[.., version]| version == 10),
            Kind::Etcd => get(port, "/health").is_some_and(|answer| answer.contains("\"true\"")),
            Kind::Tikv => get(port, "/counts").is_some(),
        }
    }

    /// A URL with timeouts that are short, for mounts whose server hangs or dies.
    pub fn url(self, port: u16, database: &str) -> String {
        self.url_with_timeouts(port, database, "op_timeout=2s&connect_timeout=1s")
    }

    /// A URL with timeouts that even a busy machine does not exceed.
    pub fn url_with_long_timeouts(self, port: u16, database: &str) -> String {
        self.url_with_timeouts(port, database, "op_timeout=60s&connect_timeout=60s")
    }

    fn url_with_timeouts(self, port: u16, database: &str, timeouts: &str) -> String {
        let address = match self {
            Kind::Redis => format!("redis://127.0.0.1:{port}/?"),
            // Use no TLS, because the proxy has to read the data of the connection.
            Kind::Postgres => format!("postgres://limen@127.0.0.1:{port}/postgres?sslmode=disable&"),
            Kind::Mariadb => format!("mysql://root@127.0.0.1:{port}/limen?"),
            Kind::Etcd => format!("etcd://127.0.0.1:{port}/?"),
            Kind::Tikv => format!("tikv://127.0.0.1:{port}/?"),
        };
        format!("{address}table_prefix={database}_&{timeouts}")
    }

    /// Bytes that the client sends over the connection of its stream of changes, and over no other
    /// connection. (On TiKV, the client has only one connection to each server.)
    pub(crate) fn of_stream(self) -> &'static [u8] {
        match self {
            Kind::Redis => b"XREAD",
            Kind::Postgres => b"pg_snapshot_xmax",
            Kind::Mariadb => b"SELECT 0, epoch",
            // A watch request: the end of the range of the log's keys, and the filter against deletions.
            Kind::Etcd => b"/m*\x01\x01",
            // A scan of the heads of all shards: the start of their keys, and the protobuf tag of the limit.
            Kind::Tikv => b"/b\x18",
        }
    }

    /// The server's name as in the output of `limen status`, with the space before the version.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Redis => "Redis ",
            Kind::Postgres => "PostgreSQL ",
            Kind::Mariadb => "MariaDB ",
            Kind::Etcd => "etcd ",
            Kind::Tikv => "TiKV ",
        }
    }

    /// Whether the server can run without durability, and then reports that it does.
    pub fn can_skip_durability(self) -> bool {
        !matches!(self, Kind::Etcd | Kind::Tikv)
    }

    /// The maximum number of requests that one change of a record takes; a read takes no more. On TiKV: a
    /// timestamp, a read of keys and of two ranges at the same time, and a commit.
    pub fn requests_a_change(self) -> u64 {
        if self == Kind::Tikv { 5 } else { 1 }
    }

    /// The number of client requests that the server has executed, by its own count. Requests of the stream
    /// of changes are left out, and so are those that wait for the disk in the background.
    pub(crate) fn requests(self, port: u16) -> u64 {
        match self {
            // Each request of the engine is one script.
            Kind::Redis => {
                let calls = redis_calls(port);
                calls.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| calls).sum()
            }
            Kind::Postgres => {
                let counted = "SELECT sum(calls)::bigint FROM pg_stat_statements \
                               WHERE query !~ 'pg_snapshot_xmax|pg_logical_emit_message|pg_stat_statements'";
                self.sql(port, counted).parse().unwrap()
            }
            Kind::Mariadb => {
                let counted = "SELECT variable_value - COALESCE((SELECT SUM(count_star) \
                               FROM performance_schema.events_statements_summary_by_digest \
                               WHERE digest_text LIKE 'SELECT ? , `epoch`%'), 0) \
                               FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'";
                self.sql(port, counted).parse().unwrap()
            }
            Kind::Etcd => {
                let metrics = get(port, "/metrics").unwrap();
                let calls = metrics.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
                // The stream of changes reads by this method, and nothing else does.
                let of_stream = |line: &&str| line.contains("grpc_method=\"Range\"");
                let calls = calls.filter(|line| line.contains("grpc_type=\"unary\"") && !of_stream(line));
                calls.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
            }
            // A poll takes a timestamp and reads the heads; if there are changes, it also reads these.
            Kind::Tikv => {
                let counts = unistore_counts(port);
                let count = |what: &str| counts.get(what).copied().unwrap_or_default();
                count("Requests") + count("Timestamps") - 2 * count("Polls") - count("ReadsOfChanges")
            }
        }
    }

    /// The names of all tables, functions, types or keys.
    pub(crate) fn everything(self, port: u16) -> BTreeSet<String> {
        let listed = match self {
            Kind::Redis => {
                run(Command::new("redis-cli").args(["-p", &port.to_string(), "--no-raw", "KEYS", "*"]))
            }
            Kind::Postgres => {
                let names = [
                    ("relname", "rel", "pg_class"),
                    ("proname", "pro", "pg_proc"),
                    ("typname", "typ", "pg_type"),
                ];
                let select = |(name, letters, table)| {
                    format!("SELECT {name} FROM {table} WHERE {letters}namespace = 'public'::regnamespace")
                };
                self.sql(port, &names.map(select).join(" UNION ALL "))
            }
            Kind::Mariadb => self.sql(
                port,
                "SELECT table_name FROM information_schema.tables WHERE table_schema = 'limen' UNION ALL \
                 SELECT routine_name FROM information_schema.routines WHERE routine_schema = 'limen'",
            ),
            Kind::Etcd => {
                let all = r#"{"key": "AA==", "range_end": "AA==", "keys_only": true}"#;
                let request =
                    format!("POST /v3/kv/range HTTP/1.0\r\nContent-Length: {}\r\n\r\n{all}", all.len());
                let answer = ask_http(port, &request).unwrap();
                let (_, body) = answer.split_once("\r\n\r\n").unwrap();
                let answer: serde_json::Value = serde_json::from_str(body).unwrap();
                let keys = answer["kvs"].as_array().into_iter().flatten();
                keys.map(|kv| kv["key"].as_str().unwrap().to_owned() + "\n").collect()
            }
            Kind::Tikv => get_body(port, "/keys"),
        };
        // redis-cli numbers the keys.
        let name = |line: &str| {
            line.trim_start_matches(|c: char| c == ' ' || c == ')' || c.is_ascii_digit()).to_owned()
        };
        listed.lines().map(name).filter(|name| !name.is_empty()).collect()
    }

    /// The server's own client for SQL: it prints rows without a frame.
    pub(crate) fn client(self, port: u16) -> Command {
        let port = port.to_string();
        let mut command;
        match self {
            Kind::Postgres => {
                command = Command::new("psql");
                command.args(["--host=127.0.0.1", "--username=limen", "--dbname=postgres", "--port", &port]);
                command.args(["--no-psqlrc", "-qAt"]);
            }
            Kind::Mariadb => {
                command = Command::new("mariadb");
                command.args(["--no-defaults", "--host=127.0.0.1", "--user=root", "--port", &port]);
                command.args(["--batch", "--skip-column-names"]);
            }
            Kind::Redis | Kind::Etcd | Kind::Tikv => panic!("{self:?} has no SQL"),
        }
        command
    }

    pub(crate) fn sql(self, port: u16, sql: &str) -> String {
        // psql's short form of --command and the other client's of --execute.
        let option = if self == Kind::Postgres { "-c" } else { "-e" };
        run(self.client(port).args([option, sql]))
    }
}

/// The output of a program, which must succeed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let hint = "install what tests need: scripts/install-deps.sh test";
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}; {hint}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// One of PostgreSQL's programs, of the newest installed version unless `LIMEN_TEST_POSTGRES` names the
/// directory of the programs. If this process is root, the program runs as user postgres, because it refuses
/// to run as root.
fn postgres(program: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbers = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let newest = || {
        let version = numbers.max().expect("PostgreSQL is needed: scripts/install-deps.sh test");
        PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"))
    };
    let path = env::var_os("LIMEN_TEST_POSTGRES").map_or_else(newest, PathBuf::from).join(program);
    if !geteuid().is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(path);
    command
}

/// One of MariaDB's programs that work on a directory.
fn mariadb(program: &str, directory: &Path) -> Command {
    let installed = || {
        let places = ["/usr/sbin", "/usr/bin"].map(|place| Path::new(place).join(program));
        let found = places.into_iter().find(|path| path.exists());
        found.expect("MariaDB is needed: scripts/install-deps.sh test")
    };
    let mut command = Command::new(mysqld().unwrap_or_else(installed));
    let at = |name: &str| directory.join(name).display().to_string();
    command.args(["--no-defaults", &format!("--datadir={}", at("data"))]);
    command.args(geteuid().is_root().then_some("--user=root"));
    // A server removes leftover temporary tables of other servers when it starts, so it gets its own
    // directory for them.
    command.args([format!("--tmpdir={}", at("tmp")), format!("--socket={}", at("sock"))]);
    command
}

/// The program of a MySQL server, if the tests are to run on one instead of MariaDB.
fn mysqld() -> Option<PathBuf> {
    env::var_os("LIMEN_TEST_MYSQLD").map(PathBuf::from)
}

/// Whether the tests run on MySQL instead of MariaDB: `LIMEN_TEST_MYSQLD` names its `mysqld`.
pub fn is_mysql() -> bool {
    mysqld().is_some()
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(START_TIMEOUT)).ok()?;
    Some(stream)
}

/// The first bytes of the server's answer.
fn first_bytes(port: u16, request: &[u8]) -> Option<[u8; 5]> {
    let mut stream = connect(port)?;
    stream.write_all(request).ok()?;
    let mut first = [0; 5];
    stream.read_exact(&mut first).ok()?;
    Some(first)
}

/// The response of an HTTP server to GET, with its headers.
fn get(port: u16, path: &str) -> Option<String> {
    ask_http(port, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

pub(crate) fn ask_http(port: u16, request: &str) -> Option<String> {
    let mut stream = connect(port)?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The body of a response.
pub(crate) fn get_body(port: u16, path: &str) -> String {
    let answer = get(port, path).expect("an answer");
    answer.split_once("\r\n\r\n").expect("a response of HTTP").1.to_owned()
}

/// The program of `tests/tikv`, or why it cannot be built.
fn unistore() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tikv/build.sh");
        let output =
            Command::new(&script).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if output.status.success() {
            Ok(PathBuf::from(stdout.trim_end()))
        } else {
            Err(format!("a server for TiKV's tests, which Go 1.20 or later builds: {}", stderr.trim_end()))
        }
    };
    PROGRAM.get_or_init(build).clone()
}

/// The counts of the server of `tests/tikv`: calls by method, and others.
pub(crate) fn unistore_counts(port: u16) -> BTreeMap<String, u64> {
    serde_json::from_str(&get_body(port, "/counts")).expect("an object of numbers")
}

/// The number of calls of each command.
pub(crate) fn redis_calls(port: u16) -> BTreeMap<String, u64> {
    let stats = redis(port, "INFO commandstats").unwrap();
    let calls = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    calls.collect()
}

/// The reply to one command: a line, or the value of a bulk string.
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
