//! Object stores for tests.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::kind::{START_TIMEOUT, ask_http, get_body, run};
use crate::server::{children, free_port};

/// A kind of object store other than S3 (`tests/s3`) and directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Apache with `mod_dav`.
    Webdav,
    /// OpenSSH.
    Sftp,
    /// Azurite.
    Azblob,
    /// `fake-gcs-server`, which checks no credentials.
    Gcs,
    /// A NameNode and a DataNode of Hadoop.
    Hdfs,
}

impl StoreKind {
    /// The name of the kind as `limen format --storage` takes it.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Webdav => "webdav",
            StoreKind::Sftp => "sftp",
            StoreKind::Azblob => "azblob",
            StoreKind::Gcs => "gcs",
            StoreKind::Hdfs => "hdfs",
        }
    }

    /// Why this machine cannot run the server: the program that it lacks. Installs the server if
    /// `tests/stores/build.sh` can do that and it is not installed yet.
    pub fn missing(self) -> Option<String> {
        self.program().err()
    }

    fn program(self) -> Result<PathBuf, String> {
        let debian = |path: &str| {
            let hint = format!("{path}; install it: scripts/install-deps.sh test");
            Path::new(path).exists().then(|| PathBuf::from(path)).ok_or(hint)
        };
        match self {
            StoreKind::Webdav => debian("/usr/sbin/apache2"),
            StoreKind::Sftp => debian("/usr/sbin/sshd"),
            StoreKind::Azblob => built("azurite"),
            StoreKind::Gcs => built("fake-gcs-server"),
            StoreKind::Hdfs => built("hdfs"),
        }
    }
}

/// The path of a program that `tests/stores/build.sh` installs, or why the script failed.
fn built(name: &str) -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/stores/build.sh");
    let output = Command::new(script).arg(name).stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
    } else {
        Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim_end()))
    }
}

/// An object store on a loopback port, with an empty bucket. It is killed when this is dropped or when the
/// thread that started it ends. When this is dropped, its directory is removed.
#[derive(Debug)]
pub struct Store {
    pub kind: StoreKind,
    port: u16,
    program: PathBuf,
    server: Option<Child>,
    directory: TempDir,
}

/// The account of Azurite, and its key, which the emulator's documentation names.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

impl Store {
    /// # Panics
    /// If the server does not start, or [`StoreKind::missing`] names something.
    pub fn start(kind: StoreKind) -> Store {
        let program = kind.program().unwrap();
        let directory = tempfile::Builder::new().prefix("limen-store.").tempdir().unwrap();
        // Apache's workers do not run as root.
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut store = Store { kind, port: free_port(), program, server: None, directory };
        store.prepare();
        store.start_again();
        match kind {
            StoreKind::Azblob => store.create_container(),
            StoreKind::Hdfs => store.create_home(),
            _ => {}
        }
        store
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The address of the bucket, with a prefix.
    pub fn bucket(&self) -> String {
        self.bucket_at(self.port)
    }

    /// As [`Store::bucket`], through a proxy on this port.
    pub fn bucket_at(&self, port: u16) -> String {
        match self.kind {
            StoreKind::Webdav => format!("http://127.0.0.1:{port}/dav/home"),
            StoreKind::Sftp => format!("sftp://root@127.0.0.1:{port}{}/home", self.path("data")),
            StoreKind::Azblob => format!("http://127.0.0.1:{port}/{ACCOUNT}/container/home"),
            StoreKind::Gcs => "gs://bucket/home".to_owned(),
            StoreKind::Hdfs => format!("webhdfs://127.0.0.1:{port}/home"),
        }
    }

    /// The environment with which `limen` logs in.
    pub fn login(&self) -> Vec<(&'static str, String)> {
        match self.kind {
            StoreKind::Webdav => {
                vec![("WEBDAV_USERNAME", "limen".to_owned()), ("WEBDAV_PASSWORD", "secret".to_owned())]
            }
            StoreKind::Sftp => {
                let path = std::env::var("PATH").unwrap_or_default();
                vec![("PATH", format!("{}:{path}", self.path("bin")))]
            }
            StoreKind::Azblob => vec![("AZURE_STORAGE_KEY", KEY.to_owned())],
            StoreKind::Gcs => vec![("STORAGE_EMULATOR_HOST", format!("http://127.0.0.1:{}", self.port))],
            StoreKind::Hdfs => vec![("HADOOP_USER_NAME", "limen".to_owned())],
        }
    }

    /// The paths of all files in which the server stores objects, for HDFS below its own root; `None` if it
    /// stores them in another form.
    pub fn objects(&self) -> Option<Vec<PathBuf>> {
        fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() { walk(&path, found) } else { found.push(path) }
            }
        }
        let mut found = Vec::new();
        if self.kind == StoreKind::Hdfs {
            self.find_in_hdfs("/home", &mut found);
            return Some(found);
        }
        // fake-gcs-server keeps the properties of a bucket beside it.
        let directory = if self.kind == StoreKind::Gcs { "data/bucket" } else { "data" };
        walk(&self.directory.path().join(directory), &mut found);
        // Apache keeps properties of directories in `.DAV`.
        found.retain(|path| !path.iter().any(|part| part == ".DAV"));
        (self.kind != StoreKind::Azblob).then_some(found)
    }

    /// Starts the server on its existing data.
    pub fn start_again(&mut self) {
        let port = self.port.to_string();
        // The kernel kills the server when the thread that started it ends, even if the tests are killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.program);
        match self.kind {
            // `-X`: one process with threads, which does not detach.
            StoreKind::Webdav => command.args(["-X", "-f", &self.path("httpd.conf")]),
            StoreKind::Sftp => command.args(["-D", "-e", "-f", &self.path("sshd_config")]),
            StoreKind::Azblob => {
                command.args([
                    "--silent",
                    "--skipApiVersionCheck",
                    "--disableTelemetry",
                    "--blobPort",
                    &port,
                ]);
                command.args(["--location", &self.path("data")])
            }
            StoreKind::Gcs => {
                let (address, root) = (format!("127.0.0.1:{port}"), self.path("data"));
                command.args(["-backend", "filesystem", "-filesystem-root", &root, "-scheme", "http"]);
                command.args(["-host", "127.0.0.1", "-port", &port, "-public-host", &address])
            }
            StoreKind::Hdfs => {
                let (data, up) = (self.path("data"), self.path("up"));
                // The server writes this file when both nodes are up.
                let _ = fs::remove_file(&up);
                if fs::read_dir(&data).unwrap().next().is_none() {
                    command.arg("-format");
                }
                command.args(["-httpport", &port, "-writeDetails", &up]);
                // With so few names in an answer, tests list directories in several requests.
                command.args(["-D", &format!("hdfs.minidfs.basedir={data}"), "-D", "dfs.ls.limit=10"]);
                // How long a DataNode waits, in ms, if it completes a file before the NameNode knows all its
                // blocks. The default is 400.
                command.args(["-D", "dfs.client.block.write.locateFollowingBlock.initial.delay.ms=10"])
            }
        };
        let output = || fs::File::options().create(true).append(true).open(self.path("output")).unwrap();
        command.stdin(Stdio::null()).stdout(output()).stderr(output());
        self.server = Some(command.spawn().unwrap());
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.is_up() {
            let output = fs::read_to_string(self.path("output")).unwrap_or_default();
            assert!(Instant::now() < deadline, "{:?} does not start\n{output}", self.kind);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server and its connections. It gets SIGKILL, except Azurite, which would lose its index.
    pub fn kill(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let signal = if self.kind == StoreKind::Azblob { Signal::TERM } else { Signal::KILL };
        // OpenSSH has a process for each connection, which outlives the server.
        for pid in [vec![Pid::from_child(&server)], descendants(server.id())].concat() {
            // The process may be gone.
            let _ = kill_process(pid, signal);
        }
        server.wait().unwrap();
    }

    fn is_up(&self) -> bool {
        match self.kind {
            StoreKind::Sftp => TcpStream::connect(("127.0.0.1", self.port)).is_ok(),
            StoreKind::Hdfs => fs::metadata(self.path("up")).is_ok_and(|up| up.len() > 0),
            _ => ask_http(self.port, "GET / HTTP/1.0\r\n\r\n")
                .is_some_and(|answer| answer.starts_with("HTTP/")),
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn prepare(&self) {
        fs::create_dir(self.path("data")).unwrap();
        let write = |name: &str, text: &str| fs::write(self.path(name), text).unwrap();
        let (port, directory) = (self.port, self.directory.path().display());
        match self.kind {
            StoreKind::Webdav => {
                // {SHA} is the hash of "secret".
                write("users", "limen:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
                let modules =
                    "mpm_event alias authn_core authn_file authz_core authz_user auth_basic dav dav_fs";
                let modules = modules
                    .split(' ')
                    .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
                write(
                    "httpd.conf",
                    &format!(
                        "{}ServerRoot {directory}\nServerName 127.0.0.1\nListen 127.0.0.1:{port}\nPidFile pid\n\
                         ErrorLog error.log\nUser www-data\nGroup www-data\nMutex pthread\n\
                         DocumentRoot {directory}\nDavLockDB {directory}/locks/db\n\
                         Alias /dav {directory}/data\n\
                         <Directory {directory}/data>\nDav On\nDavMinTimeout 60\nAuthType Basic\nAuthName dav\n\
                         AuthUserFile {directory}/users\nRequire valid-user\n</Directory>\n",
                        modules.collect::<String>()
                    ),
                );
                fs::create_dir(self.path("locks")).unwrap();
                run(Command::new("chown").args(["www-data", &self.path("data"), &self.path("locks")]));
            }
            StoreKind::Sftp => {
                // sshd exits if the directory for its unprivileged process does not exist.
                fs::create_dir_all("/run/sshd").unwrap();
                for key in ["host", "user"] {
                    run(Command::new("ssh-keygen").args([
                        "-q",
                        "-t",
                        "ed25519",
                        "-N",
                        "",
                        "-f",
                        &self.path(key),
                    ]));
                }
                write(
                    "sshd_config",
                    &format!(
                        "ListenAddress 127.0.0.1:{port}\nHostKey {directory}/host\nPidFile none\n\
                         AuthorizedKeysFile {directory}/user.pub\nStrictModes no\nPermitRootLogin prohibit-password\n\
                         PasswordAuthentication no\nUsePAM no\nSubsystem sftp internal-sftp\n"
                    ),
                );
                let host = fs::read_to_string(self.path("host.pub")).unwrap();
                write("known_hosts", &format!("[127.0.0.1]:{port} {host}"));
                write(
                    "ssh_config",
                    &format!(
                        "IdentityFile {directory}/user\nIdentitiesOnly yes\nUserKnownHostsFile {directory}/known_hosts\n"
                    ),
                );
                // OpenSSH reads the configuration of the user's real home directory, whatever HOME is.
                fs::create_dir(self.path("bin")).unwrap();
                write("bin/ssh", &format!("#!/bin/sh\nexec /usr/bin/ssh -F {directory}/ssh_config \"$@\"\n"));
                fs::set_permissions(self.path("bin/ssh"), PermissionsExt::from_mode(0o755)).unwrap();
            }
            StoreKind::Azblob | StoreKind::Hdfs => {}
            StoreKind::Gcs => fs::create_dir(self.path("data/bucket")).unwrap(),
        }
    }

    /// Creates the container, by a request that is signed with the key of the account ("Authorize with Shared
    /// Key" in the reference of Azure Storage). The script runs on Node.js, which Azurite needs anyway.
    fn create_container(&self) {
        let script = format!(
            "const date = new Date().toUTCString(), version = '2020-10-02';
            const text = 'PUT' + '\\n'.repeat(12) + `x-ms-date:${{date}}\\nx-ms-version:${{version}}\\n`
                + '/{ACCOUNT}/{ACCOUNT}/container\\nrestype:container';
            const key = Buffer.from('{KEY}', 'base64');
            const signature = require('crypto').createHmac('sha256', key).update(text).digest('base64');
            const headers = {{'x-ms-date': date, 'x-ms-version': version, 'Content-Length': 0,
                Authorization: 'SharedKey {ACCOUNT}:' + signature}};
            const options = {{method: 'PUT', headers, host: '127.0.0.1', port: {},
                path: '/{ACCOUNT}/container?restype=container'}};
            require('http').request(options, answer => process.exit(answer.statusCode === 201 ? 0 : 1)).end();",
            self.port
        );
        run(Command::new("node").args(["-e", &script]));
    }

    /// Creates the directory `/home` for the user `limen`. The user that runs the server, here root, is the
    /// superuser of HDFS.
    fn create_home(&self) {
        for op in ["MKDIRS&permission=700", "SETOWNER&owner=limen"] {
            let path = format!("/webhdfs/v1/home?op={op}&user.name=root");
            let answer = ask_http(self.port, &format!("PUT {path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n"));
            assert!(answer.as_ref().is_some_and(|answer| answer.contains(" 200 ")), "{op}: {answer:?}");
        }
    }

    fn find_in_hdfs(&self, directory: &str, found: &mut Vec<PathBuf>) {
        let path = format!("/webhdfs/v1{directory}?op=LISTSTATUS&user.name=root");
        let answer: Value = serde_json::from_str(&get_body(self.port, &path)).unwrap();
        for status in answer["FileStatuses"]["FileStatus"].as_array().unwrap() {
            let below = format!("{directory}/{}", status["pathSuffix"].as_str().unwrap());
            if status["type"] == "DIRECTORY" {
                self.find_in_hdfs(&below, found);
            } else {
                found.push(PathBuf::from(below));
            }
        }
    }
}

fn descendants(pid: u32) -> Vec<Pid> {
    let children = children(pid);
    let below = children.iter().flat_map(|child| descendants(child.as_raw_nonzero().get() as u32));
    below.chain(children.iter().copied()).collect()
}

impl Drop for Store {
    fn drop(&mut self) {
        self.kill();
    }
}
