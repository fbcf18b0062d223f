//! The parameters of one URL. An engine takes each parameter that it knows; any that is left is an error.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::open::OpenError;
use crate::url::Url;

/// The parameters that were not taken yet, and the URL, which messages name.
#[derive(Debug)]
pub struct Query {
    url: String,
    left: BTreeMap<String, String>,
}

/// The file that a parameter names, if the parameter is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    pub(crate) parameter: &'static str,
    path: Option<PathBuf>,
}

impl Query {
    pub fn new(url: &Url) -> Self {
        Query { url: url.to_string(), left: url.query.clone() }
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        self.left.remove(name)
    }

    /// Adds a parameter as if it were in the URL.
    pub fn put(&mut self, name: &str, value: &str) {
        self.left.insert(name.to_owned(), value.to_owned());
    }

    /// Takes a parameter whose value must be one of the words, and returns what the word stands for; `usual`
    /// if the parameter is not given.
    ///
    /// # Errors
    /// [`OpenError::Config`].
    pub fn one_of<T: Copy>(&mut self, name: &str, usual: T, words: &[(&str, T)]) -> Result<T, OpenError> {
        let Some(value) = self.take(name) else { return Ok(usual) };
        let known = words.iter().find(|(word, _)| *word == value);
        known.map(|(_, meant)| *meant).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(format!("{name}={value} is not one of {}", words.join(", ")))
        })
    }

    /// Takes a number that must be in `range`; `usual` if it is not given.
    ///
    /// # Errors
    /// [`OpenError::Config`].
    pub fn number<T: FromStr + PartialOrd + Display>(
        &mut self,
        name: &str,
        usual: T,
        range: RangeInclusive<T>,
    ) -> Result<T, OpenError> {
        let Some(value) = self.take(name) else { return Ok(usual) };
        value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.wrong(format!("{name}={value} is not a number between {least} and {most}"))
        })
    }

    /// Takes a time of at least `least`, such as `500ms`, `30s`, `5m` or `1h`; a number without a unit is in
    /// seconds. `usual` if it is not given. `least` must be zero or 1 ms, because the message says "above
    /// zero".
    pub(crate) fn time(
        &mut self,
        name: &str,
        usual: Duration,
        least: Duration,
    ) -> Result<Duration, OpenError> {
        let Some(value) = self.take(name) else { return Ok(usual) };
        let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let millis = match &value[digits.len()..] {
            "ms" => Some(1),
            "s" | "" => Some(1000),
            "m" => Some(60_000),
            "h" => Some(3_600_000),
            _ => None,
        };
        let time = millis.zip(digits.parse::<u32>().ok());
        let time = time.map(|(millis, number)| Duration::from_millis(millis * u64::from(number)));
        time.filter(|time| *time >= least).ok_or_else(|| {
            let above = if least.is_zero() { "" } else { " above zero" };
            self.wrong(format!("{name}={value} is not a time{above}, such as 500ms, 30s, 5m or 1h"))
        })
    }

    pub fn file(&mut self, parameter: &'static str) -> NamedFile {
        NamedFile { parameter, path: self.take(parameter).map(PathBuf::from) }
    }

    /// Fails if a parameter was not taken, because the engine does not know it.
    ///
    /// # Errors
    /// [`OpenError::Config`].
    pub fn end(&self) -> Result<(), OpenError> {
        let left = self.left.keys().next();
        left.map_or(Ok(()), |name| Err(self.wrong(format!("unknown parameter '{name}'"))))
    }

    /// The error for a mistake in the URL.
    pub fn wrong(&self, what: impl Display) -> OpenError {
        OpenError::Config(format!("{}: {what}", self.url))
    }
}

impl NamedFile {
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Reads the file; `None` if the parameter is not given.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> Result<Option<Vec<u8>>, String> {
        self.path().map(fs::read).transpose().map_err(|error| self.wrong(error))
    }

    /// The error for a file that cannot be used.
    pub(crate) fn wrong(&self, what: impl Display) -> String {
        let path = self.path().unwrap_or(Path::new(""));
        format!("{}={}: {what}", self.parameter, path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_and_errors_name_the_url() {
        let mut query =
            Query::new(&Url::parse("x://u:s3cret@h?gc=off&op_timeout=2s&ca=/nowhere&more=1").unwrap());
        assert_eq!(query.params().unwrap().op_timeout.as_secs(), 2);
        let words = [("on", true), ("off", false)];
        assert!(!query.one_of("gc", true, &words).unwrap());
        assert!(query.one_of("gc", true, &words).unwrap(), "the parameter was taken");
        let error = query.file("ca").read().unwrap_err();
        assert!(error.starts_with("ca=/nowhere: "), "{error}");
        assert_eq!(query.file("key").read(), Ok(None));
        let error = query.end().unwrap_err().to_string();
        assert!(error.contains("x://u:***@h: ") && error.contains("'more'"), "{error}");
        assert!(
            query.one_of("more", 1, &[("one", 1), ("two", 2)]).unwrap_err().to_string().contains("one, two")
        );
    }
}
