//! The parameters of a metadata URL that every engine on a network has.

use std::collections::BTreeMap;
use std::time::Duration;

/// How connections are kept, and the prefix of tables or keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// The maximum number of connections; a caller that needs one more waits.
    pub max_open_conns: usize,
    /// The maximum number of idle connections that stay open.
    pub max_idle_conns: usize,
    /// An idle connection is closed after this time.
    pub max_idle_time: Duration,
    /// A connection is closed after this time, even if it is in use; zero = never.
    pub max_life_time: Duration,
    pub connect_timeout: Duration,
    /// The time after which a request counts as failed and the server as lost.
    pub op_timeout: Duration,
    /// The prefix of the names of tables or keys, so that several volumes may share a database.
    pub table_prefix: String,
}

/// A parameter that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    #[error("{name}={value} is not {expected}")]
    Value { name: &'static str, value: String, expected: &'static str },
    #[error("unknown parameter '{0}'")]
    Unknown(String),
}

impl Default for Params {
    fn default() -> Self {
        Params {
            max_open_conns: 16,
            max_idle_conns: 8,
            max_idle_time: Duration::from_secs(300),
            max_life_time: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(5),
            op_timeout: Duration::from_secs(10),
            table_prefix: "limen_".to_owned(),
        }
    }
}

impl Params {
    /// Takes the common parameters out of a URL's query. The rest is for the engine, which finally calls
    /// [`Params::refuse_rest`].
    ///
    /// # Errors
    /// [`ParamError::Value`].
    pub fn take(query: &mut BTreeMap<String, String>) -> Result<Self, ParamError> {
        let mut params = Params::default();
        take_count(query, "max_open_conns", &mut params.max_open_conns)?;
        params.max_idle_conns = params.max_idle_conns.min(params.max_open_conns);
        take_count(query, "max_idle_conns", &mut params.max_idle_conns)?;
        take_time(query, "max_idle_time", &mut params.max_idle_time)?;
        take_time(query, "max_life_time", &mut params.max_life_time)?;
        take_time(query, "connect_timeout", &mut params.connect_timeout)?;
        take_time(query, "op_timeout", &mut params.op_timeout)?;
        let value_error =
            |name, value: &str, expected| Err(ParamError::Value { name, value: value.to_owned(), expected });
        for (name, time) in [("connect_timeout", params.connect_timeout), ("op_timeout", params.op_timeout)] {
            if time.is_zero() {
                return value_error(name, "0", "a time above zero");
            }
        }
        if params.max_open_conns == 0 {
            return value_error("max_open_conns", "0", "at least 1");
        }
        if let Some(prefix) = query.remove("table_prefix") {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if prefix.len() > 32
                || !prefix.chars().all(fits)
                || prefix.starts_with(|c: char| c.is_ascii_digit())
            {
                let expected = "at most 32 of a-z, 0-9 and _, with no digit first";
                return value_error("table_prefix", &prefix, expected);
            }
            params.table_prefix = prefix;
        }
        Ok(params)
    }

    /// Refuses parameters that the engine did not take either: they are mistakes in the URL.
    ///
    /// # Errors
    /// [`ParamError::Unknown`].
    pub fn refuse_rest(query: &BTreeMap<String, String>) -> Result<(), ParamError> {
        query.keys().next().map_or(Ok(()), |name| Err(ParamError::Unknown(name.clone())))
    }
}

fn take_count(
    query: &mut BTreeMap<String, String>,
    name: &'static str,
    count: &mut usize,
) -> Result<(), ParamError> {
    if let Some(value) = query.remove(name) {
        let parsed = value.parse().ok().filter(|&count: &usize| count <= 10_000);
        *count = parsed.ok_or(ParamError::Value { name, value, expected: "a number up to 10000" })?;
    }
    Ok(())
}

/// Takes a time: `500ms`, `30s` or `30`, `5m`, `1h`.
fn take_time(
    query: &mut BTreeMap<String, String>,
    name: &'static str,
    time: &mut Duration,
) -> Result<(), ParamError> {
    if let Some(value) = query.remove(name) {
        let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let millis = match &value[digits.len()..] {
            "ms" => Some(1),
            "s" | "" => Some(1000),
            "m" => Some(60_000),
            "h" => Some(3_600_000),
            _ => None,
        };
        let parsed = millis.zip(digits.parse::<u32>().ok());
        let (millis, number) = parsed.ok_or(ParamError::Value {
            name,
            value,
            expected: "a time such as 500ms, 30s, 5m or 1h",
        })?;
        *time = Duration::from_millis(millis * u64::from(number));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pairs: &[(&str, &str)]) -> Result<Params, ParamError> {
        let mut query = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let params = Params::take(&mut query)?;
        Params::refuse_rest(&query)?;
        Ok(params)
    }

    #[test]
    fn missing_parameters_have_their_defaults() {
        assert_eq!(take(&[]), Ok(Params::default()));
        assert_eq!(take(&[("max_open_conns", "2")]).unwrap().max_idle_conns, 2);
    }

    #[test]
    fn times_have_units() {
        let params = take(&[
            ("op_timeout", "250ms"),
            ("max_idle_time", "2m"),
            ("max_life_time", "0"),
            ("connect_timeout", "7"),
        ]);
        let params = params.unwrap();
        assert_eq!(params.op_timeout, Duration::from_millis(250));
        assert_eq!(params.max_idle_time, Duration::from_secs(120));
        assert_eq!(params.max_life_time, Duration::ZERO);
        assert_eq!(params.connect_timeout, Duration::from_secs(7));
    }

    #[test]
    fn invalid_parameters_are_refused_by_name() {
        for pair in [
            ("max_open_conns", "0"),
            ("max_open_conns", "-1"),
            ("op_timeout", "0s"),
            ("max_idle_time", "5 parsecs"),
            ("table_prefix", "a; drop"),
            ("table_prefix", "1a"),
            ("max_conns", "1"),
        ] {
            let error = take(&[pair]).unwrap_err().to_string();
            assert!(error.contains(pair.0), "{error}");
        }
    }
}
