//! The URL of a database, and the options to open it.

use std::path::PathBuf;
use std::thread::available_parallelism;

/// How to open a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Create the database if it does not exist, as `limen format` does. If false, a missing database is an
    /// error.
    pub create: bool,
    /// The maximum number of concurrent reads; further reads wait. Each needs a connection with a cache of up
    /// to 8 MiB.
    pub readers: usize,
}

impl Default for Options {
    /// An existing database, and two readers per CPU.
    fn default() -> Self {
        Options { create: false, readers: 2 * available_parallelism().map_or(2, |n| n.get()) }
    }
}

/// Why a URL is not a valid SQLite URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("'{0}' is not an SQLite URL: write sqlite:///absolute/path.db")]
    Scheme(String),
    #[error("'{0}' contains no file name: write sqlite:///absolute/path.db, with three slashes")]
    Empty(String),
    #[error("'{url}' has a relative path: write sqlite:///absolute/{path}, with three slashes")]
    Relative { url: String, path: String },
    #[error("'{0}' names a directory: write sqlite:///absolute/path.db, ending with a file name")]
    Directory(String),
}

/// Returns the path in `sqlite:///absolute/path.db` (or `sqlite3://`). The path is literal: no escapes, no
/// options.
///
/// # Errors
/// [`UrlError`], whose message says how to write the URL.
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
    fn invalid_urls_are_rejected_with_a_correction() {
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
