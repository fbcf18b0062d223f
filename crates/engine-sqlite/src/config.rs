//! What a person says about the database: its URL, and how to open it.

use std::path::PathBuf;
use std::thread::available_parallelism;

/// How to open a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether a database that is not there is made, as `limen format` does; else its absence is an error.
    pub create: bool,
    /// The most reads served at once; a further one waits. Each costs a connection with a cache of a few MiB.
    pub readers: usize,
}

impl Default for Options {
    /// An existing database, two readers a CPU.
    fn default() -> Self {
        Options { create: false, readers: 2 * available_parallelism().map_or(2, |n| n.get()) }
    }
}

/// Why a URL names no SQLite database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("'{0}' is no SQLite URL: write sqlite:///absolute/path.db")]
    Scheme(String),
    #[error("'{0}' names no file: write sqlite:///absolute/path.db, with three slashes")]
    Empty(String),
    #[error("'{url}' has a relative path: write sqlite:///absolute/{path}, with three slashes")]
    Relative { url: String, path: String },
    #[error("'{0}' names a directory: write sqlite:///absolute/path.db, with the name of a file at its end")]
    Directory(String),
}

/// The path in `sqlite:///absolute/path.db` (or `sqlite3://`), taken literally: no escapes, no options.
///
/// # Errors
/// [`UrlError`] says what to write instead.
pub fn parse_url(url: &str) -> Result<PathBuf, UrlError> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite3://"));
    let path = path.filter(|path| !path.contains('\0')).ok_or_else(|| UrlError::Scheme(url.to_owned()))?;
    if path.trim_matches('/').is_empty() {
        return Err(UrlError::Empty(url.to_owned()));
    }
    if !path.starts_with('/') {
        return Err(UrlError::Relative {
            url: url.to_owned(),
            path: path.trim_start_matches("./").to_owned(),
        });
    }
    if path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..") {
        return Err(UrlError::Directory(url.to_owned()));
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_are_taken_literally() {
        assert_eq!(parse_url("sqlite:///var/lib/a b%20?c.db"), Ok(PathBuf::from("/var/lib/a b%20?c.db")));
        assert_eq!(parse_url("sqlite3:///v.db"), Ok(PathBuf::from("/v.db")));
    }

    #[test]
    fn other_urls_are_refused_with_what_to_write() {
        for url in ["", "v.db", "/v.db", "sqlite:/v.db", "redis://host", "sqlite:///a\0b"] {
            assert_eq!(parse_url(url), Err(UrlError::Scheme(url.to_owned())), "{url}");
        }
        for url in ["sqlite://", "sqlite:///", "sqlite3://"] {
            assert_eq!(parse_url(url), Err(UrlError::Empty(url.to_owned())), "{url}");
        }
        let relative = parse_url("sqlite://./data/v.db").unwrap_err().to_string();
        assert!(relative.contains("write sqlite:///absolute/data/v.db"), "{relative}");
        for url in ["sqlite:///data/", "sqlite:///data/.", "sqlite:///data/.."] {
            assert_eq!(parse_url(url), Err(UrlError::Directory(url.to_owned())), "{url}");
        }
    }
}
