//! HDFS, through its REST interface (WebHDFS): translates a bucket's address to opendal's settings, and adds
//! what opendal's service lacks.
//!
//! - While a file is written, it already has its name, and if the connection breaks, it keeps the bytes that
//!   have arrived. So a `put` writes below `tmp/` and renames. opendal's service has no rename; [`Renaming`]
//!   adds it.
//! - The servers answer most failures with status 403 and the name of a Java exception. opendal reports each
//!   of them as a lack of permission, and retries none. [`Transport`] evaluates the exception.

use std::env;
use std::io;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use opendal::raw::{
    Layer, OpCopy, OpCreateDir, OpList, OpPresign, OpRead, OpRename, OpStat, OpWrite, RpCreateDir, RpPresign,
    RpRename, RpStat, Service, ServiceInfo, Servicer, build_abs_path, build_rooted_abs_path, get_parent, oio,
    percent_encode_path,
};
use opendal::{
    Buffer, Capability, Error, ErrorKind, HttpBody, HttpTransport, HttpTransporter, OperationContext,
    Operator, services,
};
use serde_json::Value;
use types::Errno;

use crate::ChunkError;
use crate::address::{Address, root_of};
use crate::kinds::address as address_of;

const USER: &str = "HADOOP_USER_NAME";
const TOKEN: &str = "HADOOP_TOKEN";

/// Opens a bucket `webhdfs://[USER@]HOST[:PORT]/PATH`, or `swebhdfs://` with TLS. These are Hadoop's own
/// schemes, and the variables are those of Hadoop's clients.
pub(crate) fn hdfs(bucket: &str) -> Result<Operator, ChunkError> {
    let address = address_of("hdfs", bucket)?;
    let endpoint = endpoint(&address);
    let in_address = address.authority.rsplit_once('@').map(|(user, _)| user.to_owned());
    let from_env = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let login = Login::new(from_env(TOKEN), in_address.or_else(|| from_env(USER)))?;
    let mut builder = services::Webhdfs::default().endpoint(&endpoint).root(&root_of(&address.segments));
    builder = match &login {
        Login::Token(token) => builder.delegation(token),
        Login::User(user) => builder.user_name(user),
        Login::None => builder,
    };
    let operator = Operator::new(builder)
        .map_err(|error| ChunkError::Config(format!("cannot use bucket {bucket:?}: {error}")))?;
    Ok(operator.layer(Additions { endpoint, login: login.query() }))
}

/// The address of the server, with Hadoop's standard port if the bucket has none.
fn endpoint(address: &Address) -> String {
    let (scheme, port) = if address.scheme == "swebhdfs" { ("https", 9871) } else { ("http", 9870) };
    let host = address.authority.rsplit_once('@').map_or(address.authority.as_str(), |(_, host)| host);
    if host == address.host() { format!("{scheme}://{host}:{port}") } else { format!("{scheme}://{host}") }
}

enum Login {
    /// A delegation token, in the form in which Hadoop prints it.
    Token(String),
    User(String),
    /// The server chooses the user.
    None,
}

impl Login {
    /// opendal does not escape these values in the query of a request, so they must contain no character that
    /// needs it.
    fn new(token: Option<String>, user: Option<String>) -> Result<Self, ChunkError> {
        let is_plain = |text: &str, more: &str| {
            text.chars().all(|char| char.is_ascii_alphanumeric() || more.contains(char))
        };
        match (token, user) {
            (Some(token), _) if is_plain(&token, "-_") => Ok(Login::Token(token)),
            (Some(_), _) => Err(ChunkError::Config(format!(
                "{TOKEN} does not contain a delegation token: a token is URL-safe base64 without padding"
            ))),
            (None, Some(user)) if is_plain(&user, "-_.$") => Ok(Login::User(user)),
            (None, Some(user)) => Err(ChunkError::Config(format!(
                "{user:?} is not the name of an HDFS user: use only letters, digits, '-', '_', '.' and '$'"
            ))),
            (None, None) => Ok(Login::None),
        }
    }

    fn query(&self) -> String {
        match self {
            Login::Token(token) => format!("&delegation={token}"),
            Login::User(user) => format!("&user.name={user}"),
            Login::None => String::new(),
        }
    }
}

/// Adds [`Renaming`] and [`Transport`] to opendal's service.
struct Additions {
    endpoint: String,
    /// Ends the query of each request. It may contain a secret.
    login: String,
}

impl std::fmt::Debug for Additions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Additions").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Layer for Additions {
    fn apply_service(&self, inner: Servicer) -> Servicer {
        Arc::new(Renaming { inner, endpoint: self.endpoint.clone(), login: self.login.clone() })
    }

    fn apply_context(&self, _: Servicer, context: OperationContext) -> OperationContext {
        let inner = context.http_transport().clone();
        context.with_http_transport(HttpTransporter::new(Transport(inner)))
    }
}

/// opendal's service, with a rename that replaces an existing file.
struct Renaming {
    inner: Servicer,
    endpoint: String,
    login: String,
}

impl std::fmt::Debug for Renaming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renaming").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Renaming {
    /// Returns false if there is no file `from` or no directory for `to`. A NameNode then answers with status
    /// 404, and a server that ignores `renameoptions`, as HttpFS does, with `{"boolean":false}`.
    async fn try_rename(&self, context: &OperationContext, from: &str, to: &str) -> opendal::Result<bool> {
        let root = self.inner.info().root();
        let url = format!(
            "{}/webhdfs/v1/{}?op=RENAME&renameoptions=OVERWRITE&destination={}{}",
            self.endpoint,
            percent_encode_path(&build_abs_path(&root, from)),
            percent_encode_path(&build_rooted_abs_path(&root, to)),
            self.login
        );
        let request = Request::put(url).body(Buffer::new());
        let request = request.map_err(|error| {
            Error::new(ErrorKind::ConfigInvalid, "the address of the bucket is not valid").set_source(error)
        })?;
        let response = context.http_transport().send(request).await?;
        let answer: Option<Value> = serde_json::from_slice(&response.body().to_bytes()).ok();
        let is_refused = answer.is_some_and(|answer| answer["boolean"] == false);
        Ok(response.status() != StatusCode::NOT_FOUND && !is_refused)
    }
}

impl Service for Renaming {
    type Reader = oio::Reader;
    type Writer = oio::Writer;
    type Lister = oio::Lister;
    type Deleter = oio::Deleter;
    type Copier = oio::Copier;
    type Composer = oio::Composer;

    fn info(&self) -> ServiceInfo {
        self.inner.info()
    }

    fn capability(&self) -> Capability {
        Capability { rename: true, ..self.inner.capability() }
    }

    async fn create_dir(
        &self,
        context: &OperationContext,
        path: &str,
        args: OpCreateDir,
    ) -> opendal::Result<RpCreateDir> {
        self.inner.create_dir(context, path, args).await
    }

    async fn stat(&self, context: &OperationContext, path: &str, args: OpStat) -> opendal::Result<RpStat> {
        self.inner.stat(context, path, args).await
    }

    fn read(&self, context: &OperationContext, path: &str, args: OpRead) -> opendal::Result<Self::Reader> {
        self.inner.read(context, path, args)
    }

    fn write(&self, context: &OperationContext, path: &str, args: OpWrite) -> opendal::Result<Self::Writer> {
        self.inner.write(context, path, args)
    }

    fn delete(&self, context: &OperationContext) -> opendal::Result<Self::Deleter> {
        self.inner.delete(context)
    }

    fn list(&self, context: &OperationContext, path: &str, args: OpList) -> opendal::Result<Self::Lister> {
        self.inner.list(context, path, args)
    }

    fn copy(
        &self,
        context: &OperationContext,
        from: &str,
        to: &str,
        args: OpCopy,
    ) -> opendal::Result<Self::Copier> {
        self.inner.copy(context, from, to, args)
    }

    async fn rename(
        &self,
        context: &OperationContext,
        from: &str,
        to: &str,
        _: OpRename,
    ) -> opendal::Result<RpRename> {
        if self.try_rename(context, from, to).await? {
            return Ok(RpRename::default());
        }
        self.inner.create_dir(context, get_parent(to), OpCreateDir::new()).await?;
        if self.try_rename(context, from, to).await? {
            return Ok(RpRename::default());
        }
        // Either an earlier attempt renamed the file and its answer was lost, or the file was removed.
        Err(Error::new(ErrorKind::Unexpected, "it is unknown whether the object was stored"))
    }

    async fn presign(
        &self,
        context: &OperationContext,
        path: &str,
        args: OpPresign,
    ) -> opendal::Result<RpPresign> {
        self.inner.presign(context, path, args).await
    }
}

/// Turns each answer that reports a failure into an error. The exception is status 404: opendal handles it.
struct Transport(HttpTransporter);

impl HttpTransport for Transport {
    async fn fetch(&self, request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        let response = self.0.fetch(request).await?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_FOUND {
            return Ok(response);
        }
        let body = response.into_body().to_buffer().await?.to_bytes();
        Err(failure(status, &body))
    }
}

/// Exceptions that mean a full quota.
const QUOTA: &[&str] =
    &["DSQuotaExceededException", "NSQuotaExceededException", "QuotaByStorageTypeExceededException"];

/// Exceptions that occur again if the request is repeated.
const PERMANENT: &[&str] = &[
    "FileAlreadyExistsException",
    "IllegalArgumentException",
    "InvalidPathException",
    "ParentNotDirectoryException",
    "PathIsNotDirectoryException",
    "UnsupportedOperationException",
];

/// The error that an answer reports. An unknown exception is a temporary error: most are a plain
/// `IOException`, for example while too few DataNodes are up.
fn failure(status: StatusCode, body: &[u8]) -> Error {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = |name: &str| answer["RemoteException"][name].as_str().unwrap_or_default();
    // The message of a DataNode contains a stack trace.
    let said = field("message").lines().next().unwrap_or_default();
    match field("exception") {
        "" if status == StatusCode::UNAUTHORIZED => Error::new(
            ErrorKind::PermissionDenied,
            format!("the server requires Kerberos: put a delegation token into {TOKEN}"),
        ),
        "" => {
            let error = Error::new(ErrorKind::Unexpected, format!("the server answered {status}"));
            if status.is_server_error() { error.set_temporary() } else { error }
        }
        "AccessControlException" | "AuthorizationException" | "SecurityException" | "InvalidToken" => {
            Error::new(ErrorKind::PermissionDenied, said)
        }
        "StandbyException" => Error::new(
            ErrorKind::Unexpected,
            "the NameNode is in standby: give the address of the active one",
        )
        .set_temporary(),
        "IOException" if said.contains(" out of the range [") => {
            Error::new(ErrorKind::RangeNotSatisfied, said)
        }
        exception if QUOTA.contains(&exception) => Error::new(ErrorKind::Unexpected, said)
            .set_source(io::Error::from_raw_os_error(Errno::EDQUOT.raw())),
        exception if PERMANENT.contains(&exception) => Error::new(ErrorKind::ConfigInvalid, said),
        _ => Error::new(ErrorKind::Unexpected, said).set_temporary(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_port_has_the_standard_one() {
        let endpoint = |bucket: &str| endpoint(&Address::parse(bucket).unwrap());
        assert_eq!(endpoint("webhdfs://name/home"), "http://name:9870");
        assert_eq!(endpoint("webhdfs://me@[fd00::1]/home"), "http://[fd00::1]:9870");
        assert_eq!(endpoint("webhdfs://me@name:14000/home"), "http://name:14000");
        assert_eq!(endpoint("swebhdfs://name"), "https://name:9871");
    }

    #[test]
    fn token_takes_precedence_and_no_login_contains_more_than_a_name() {
        let login = |token: Option<&str>, user: Option<&str>| {
            Login::new(token.map(str::to_owned), user.map(str::to_owned)).map(|login| login.query())
        };
        assert_eq!(login(Some("IAAD-_7"), Some("ann")).unwrap(), "&delegation=IAAD-_7");
        assert_eq!(login(None, Some("ann.b")).unwrap(), "&user.name=ann.b");
        assert_eq!(login(None, None).unwrap(), "");
        assert!(login(None, Some("ann&op=DELETE")).is_err());
        let error = login(Some("hunter2&x"), None).unwrap_err().to_string();
        assert!(error.contains(TOKEN) && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn exceptions_decide_the_kind_of_an_error() {
        let failed = |exception: &str, message: &str| {
            let answer =
                serde_json::json!({ "RemoteException": { "exception": exception, "message": message } });
            failure(StatusCode::FORBIDDEN, answer.to_string().as_bytes())
        };
        let denied = failed("AccessControlException", "Permission denied: user=ann\n\tat org.apache.Hadoop");
        assert_eq!((denied.kind(), denied.is_temporary()), (ErrorKind::PermissionDenied, false));
        assert!(denied.to_string().ends_with("Permission denied: user=ann"), "{denied}");
        let beyond = failed("IOException", "Offset=6 out of the range [0, 6); OPEN, path=/home/x");
        assert_eq!(beyond.kind(), ErrorKind::RangeNotSatisfied);
        for exception in ["SafeModeException", "StandbyException", "IOException"] {
            assert!(failed(exception, "later").is_temporary(), "{exception}");
        }
        assert!(!failed("InvalidPathException", "Invalid path name /a:b").is_temporary());
        assert!(!failed("DSQuotaExceededException", "full").is_temporary());
        assert!(failure(StatusCode::BAD_GATEWAY, b"<html>").is_temporary());
        assert!(!failure(StatusCode::UNAUTHORIZED, b"<html>").is_temporary());
    }
}
