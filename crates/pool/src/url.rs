//! Metadata URLs: `scheme://[user[:password]@]host[:port][,host[:port]...][/path][?name=value[&...]]`.

use std::collections::BTreeMap;
use std::{env, fmt, fs};

use crate::secret::Secret;

/// The address of a server, the user and the parameters. It is displayed without the password and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub scheme: String,
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// At least one, unless the path is that of a socket.
    pub hosts: Vec<Host>,
    /// The part after the hosts, without its first slash; percent-decoded.
    pub path: String,
    /// The parameters after `?`; percent-decoded.
    pub query: BTreeMap<String, String>,
}

/// A server's name or address, and its port unless it is the default port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub port: Option<u16>,
}

/// Why a URL is invalid. The message contains no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("it has no ://")]
    NoScheme,
    #[error("the port of '{0}' is not a number between 1 and 65535")]
    Port(String),
    #[error("a host has no name")]
    NoHost,
    #[error("the address [{0}] is followed by text that is not a port: write [{0}]:PORT")]
    AfterAddress(String),
    #[error(
        "an @ after the first / or ? may end the password or belong to the path or the parameters: write it as %40, and / and ? in a password as %2F and %3F"
    )]
    Ambiguous,
    #[error("a % is not followed by two hexadecimal digits, or the decoded text is not UTF-8")]
    Escape,
    #[error("the parameter '{0}' is given twice")]
    Twice(String),
    #[error("cannot read the password file {path}: {error}")]
    PasswordFile { path: String, error: String },
}

/// The environment variable with the password, for URLs without one.
const PASSWORD_VARIABLE: &str = "LIMEN_META_PASSWORD";
/// The parameter that names a file whose first line is the password.
const PASSWORD_FILE: &str = "password_file";

impl Url {
    /// Parses a URL. If it has no password, the password is the first line of the file that the parameter
    /// `password_file` names. Without this parameter, the password is the value of the environment variable
    /// `LIMEN_META_PASSWORD`. So the password need not be in the command line, which `ps` shows.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let mut url = Self::split(text)?;
        if url.password.is_none() {
            url.password = match url.query.remove(PASSWORD_FILE) {
                Some(path) => Some(read_password(path)?),
                None => env::var(PASSWORD_VARIABLE).ok().filter(|p| !p.is_empty()).map(Secret::new),
            };
        }
        Ok(url)
    }

    fn split(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::NoScheme)?;
        let (userinfo, address) = match userinfo_end(rest)? {
            Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
            None => (None, rest),
        };
        let (address, query) = address.split_once('?').unwrap_or((address, ""));
        let (user, password) = match userinfo.map(|info| info.split_once(':').unwrap_or((info, ""))) {
            Some((user, password)) => (decode(user)?, decode(password)?),
            None => Default::default(),
        };
        let (hosts, path) = address.split_once('/').unwrap_or((address, ""));
        let hosts = match hosts {
            "" => Vec::new(),
            hosts => hosts.split(',').map(Host::parse).collect::<Result<_, _>>()?,
        };
        if hosts.is_empty() && path.is_empty() {
            return Err(UrlError::NoHost);
        }
        let mut parameters = BTreeMap::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if parameters.insert(decode(name)?, decode(value)?).is_some() {
                return Err(UrlError::Twice(decode(name)?));
            }
        }
        Ok(Url {
            scheme: scheme.to_owned(),
            user: Some(user).filter(|user| !user.is_empty()),
            password: Some(password).filter(|password| !password.is_empty()).map(Secret::new),
            hosts,
            path: decode(path)?,
            query: parameters,
        })
    }
}

impl Host {
    /// The address `name:port`; an IPv6 address is in brackets. `usual` is the default port.
    pub fn address(&self, usual: u16) -> String {
        let port = self.port.unwrap_or(usual);
        if self.name.contains(':') {
            format!("[{}]:{port}", self.name)
        } else {
            format!("{}:{port}", self.name)
        }
    }

    fn parse(text: &str) -> Result<Self, UrlError> {
        // An IPv6 address is in brackets, because it contains colons.
        let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, None),
            Some((name, port)) => {
                (name, Some(port.strip_prefix(':').ok_or_else(|| UrlError::AfterAddress(name.to_owned()))?))
            }
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        if name.is_empty() {
            return Err(UrlError::NoHost);
        }
        let number = |port: &str| port.parse().ok().filter(|&port| port != 0);
        let port =
            port.map(|port| number(port).ok_or_else(|| UrlError::Port(name.to_owned()))).transpose()?;
        Ok(Host { name: decode(name)?, port })
    }
}

/// The index of the @ that ends user and password; `None` if the URL has neither. `rest` is the URL after
/// `://`.
///
/// A password may contain `?`, `/` and `@` without an escape, although RFC 3986, section 3.2 ends the hosts
/// at the first `?` or `/`. If both readings are possible, the URL is rejected, because one of them names the
/// wrong server.
///
/// # Errors
/// [`UrlError::Ambiguous`].
pub fn userinfo_end(rest: &str) -> Result<Option<usize>, UrlError> {
    let authority = rest.find(['/', '?']).map_or(rest, |end| &rest[..end]);
    let (standard, last) = (authority.rfind('@'), rest.rfind('@'));
    // Neither a user nor a host contains / or ?. So if a later @ ends a password, the password begins in
    // `authority`, after the first colon.
    let user = authority.split_once(':').map(|(user, _)| user);
    if standard == last || user.is_none_or(|user| user.contains(['@', '['])) {
        return Ok(standard);
    }
    let hosts = standard.map_or(authority, |at| &authority[at + 1..]);
    let has_hosts = hosts.is_empty() || hosts.split(',').all(|host| Host::parse(host).is_ok());
    let is_parameter = |text: &str| {
        let name = text.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let query = rest.split_once('?').map(|(_, query)| query);
    let has_query = query.is_none_or(|query| query.split('&').any(is_parameter));
    if has_hosts && has_query { Err(UrlError::Ambiguous) } else { Ok(last) }
}

/// Shows neither the password nor the parameters, which may contain one.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if self.user.is_some() || self.password.is_some() {
            let password = if self.password.is_some() { ":***" } else { "" };
            write!(f, "{}{password}@", self.user.as_deref().unwrap_or_default())?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let brackets = if host.name.contains(':') { ("[", "]") } else { ("", "") };
            write!(f, "{comma}{}{}{}", brackets.0, host.name, brackets.1)?;
            host.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        }
        if self.path.is_empty() { Ok(()) } else { write!(f, "/{}", self.path) }
    }
}

fn read_password(path: String) -> Result<Secret, UrlError> {
    let error = match fs::read_to_string(&path) {
        Ok(text) => match text.lines().next() {
            Some(password) if !password.is_empty() => return Ok(Secret::new(password.to_owned())),
            _ => "the first line is empty, but must be the password".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    Err(UrlError::PasswordFile { path, error })
}

fn decode(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>().ok_or(UrlError::Escape)?;
        let digits = str::from_utf8(digits).map_err(|_| UrlError::Escape)?;
        // `from_str_radix` would accept a sign.
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(UrlError::Escape);
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| UrlError::Escape)?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_displayed_without_the_password() {
        let url = Url::parse("redis://u%40x:p/w?@h:1,[::1]:2/a%20b?max_open_conns=3&x=%3D").unwrap();
        assert_eq!(url.user.as_deref(), Some("u@x"));
        assert_eq!(url.password.as_ref().unwrap().reveal(), "p/w?");
        assert_eq!(url.hosts[0], Host { name: "h".into(), port: Some(1) });
        assert_eq!(url.hosts[1], Host { name: "::1".into(), port: Some(2) });
        assert_eq!((url.path.as_str(), url.query["x"].as_str()), ("a b", "="));
        assert_eq!(url.to_string(), "redis://u@x:***@h:1,[::1]:2/a b");
        assert!(!format!("{url:?}").contains("p/w"));
    }

    #[test]
    fn an_at_in_a_parameter_does_not_change_the_host() {
        let host = |text| Url::split(text).map(|url| (url.hosts[0].name.clone(), url.user));
        let alone = |name: &str| Ok((name.to_owned(), None));
        let by_user = |name: &str| Ok((name.to_owned(), Some("u".to_owned())));
        assert_eq!(host("x://h?password_file=/etc/limen@host/pw"), alone("h"));
        assert_eq!(host("x://[::1]:2?password_file=/a@b"), alone("::1"));
        assert_eq!(host("x://h/db@1?a=b"), alone("h"));
        assert_eq!(host("x://u@h:1?password_file=/a@b"), by_user("h"));
        assert_eq!(Url::split("x:///run/s?a=/b@c").unwrap().path, "run/s");
        // The text before the last @ is a password if it cannot be hosts, a path and parameters.
        for text in ["x://u:p@h", "x://u:p@w@h", "x://u:p/w?a=b@h", "x://u:12?w@h", "x://u:p/w@h?a=%40"] {
            assert_eq!(host(text), by_user("h"), "{text}");
        }
        for text in ["x://h:1?a=/b@c", "x://u:p@h?a=/b@c", "x://u:p@h/db@c", "x://h:1/db@c?a=b"] {
            assert_eq!(host(text), Err(UrlError::Ambiguous), "{text}");
        }
    }

    #[test]
    fn a_socket_needs_no_host() {
        let url = Url::parse("redis+unix:///run/redis.sock?db=1").unwrap();
        assert_eq!((url.hosts.len(), url.path.as_str()), (0, "run/redis.sock"));
    }

    #[test]
    fn invalid_urls_are_reported() {
        for (text, error) in [
            ("host/path", UrlError::NoScheme),
            ("x://", UrlError::NoHost),
            ("x://a,,b", UrlError::NoHost),
            ("x://h:0", UrlError::Port("h".into())),
            ("x://h:65536", UrlError::Port("h".into())),
            ("x://[::1]2379", UrlError::AfterAddress("::1".into())),
            ("x://[::1]:", UrlError::Port("::1".into())),
            ("x://h/%+1", UrlError::Escape),
            ("x://h/%f", UrlError::Escape),
            ("x://h/%ff", UrlError::Escape),
            ("x://h?a=1&a=2", UrlError::Twice("a".into())),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
        }
        let missing = Url::parse("x://h?password_file=/nowhere/at/all").unwrap_err();
        assert!(missing.to_string().contains("/nowhere/at/all"));
    }

    #[test]
    fn the_password_is_read_from_the_named_file() {
        let path = env::temp_dir().join(format!("limen-password-{}", std::process::id()));
        fs::write(&path, "s3cret\n").unwrap();
        let url = Url::parse(&format!("x://u@h?password_file={}", path.display())).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(url.password.unwrap().reveal(), "s3cret");
        assert!(url.query.is_empty(), "it is not left for the engine");
    }

    #[test]
    fn a_password_file_with_an_empty_first_line_is_an_error() {
        let path = env::temp_dir().join(format!("limen-no-password-{}", std::process::id()));
        for text in ["", "\n", "\r\ns3cret\n"] {
            fs::write(&path, text).unwrap();
            let url = Url::parse(&format!("x://u@h?password_file={}", path.display()));
            let error = url.unwrap_err().to_string();
            assert!(error.contains(&format!("{}: the first line is empty", path.display())), "{error}");
        }
        fs::remove_file(&path).unwrap();
    }
}
