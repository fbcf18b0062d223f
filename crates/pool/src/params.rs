//! The parameters of a metadata URL that every engine on a network has.

use std::time::Duration;

use crate::open::OpenError;
use crate::query::Query;

/// The maximum number of connections that a URL may ask for.
const MAX: usize = 10_000;

/// How connections are kept, and the prefix of tables or keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// The maximum number of connections; a caller that needs one more waits.
    pub max_open_conns: usize,
    /// The maximum number of idle connections that stay open for more than ten seconds.
    pub max_idle_conns: usize,
    /// A connection that was idle for this time is closed when a connection is taken from the pool.
    pub max_idle_time: Duration,
    /// A connection of this age is closed when it is returned, or when another one is taken; zero = never.
    pub max_life_time: Duration,
    pub connect_timeout: Duration,
    /// How long to wait for the reply to a request, and for a connection if all are in use.
    pub op_timeout: Duration,
    /// The prefix of the names of tables or keys, so that several volumes may share a database.
    pub table_prefix: String,
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

impl Query {
    /// Takes the parameters that every engine has.
    ///
    /// # Errors
    /// [`OpenError::Config`].
    pub fn params(&mut self) -> Result<Params, OpenError> {
        let usual = Params::default();
        let max_open_conns = self.number("max_open_conns", usual.max_open_conns, 1..=MAX)?;
        let max_idle_conns = usual.max_idle_conns.min(max_open_conns);
        let least = Duration::from_millis(1);
        let params = Params {
            max_open_conns,
            max_idle_conns: self.number("max_idle_conns", max_idle_conns, 0..=MAX)?,
            max_idle_time: self.time("max_idle_time", usual.max_idle_time, Duration::ZERO)?,
            max_life_time: self.time("max_life_time", usual.max_life_time, Duration::ZERO)?,
            connect_timeout: self.time("connect_timeout", usual.connect_timeout, least)?,
            op_timeout: self.time("op_timeout", usual.op_timeout, least)?,
            table_prefix: self.take("table_prefix").unwrap_or(usual.table_prefix),
        };
        let prefix = &params.table_prefix;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if prefix.len() > 32 || !prefix.chars().all(fits) || prefix.starts_with(|c: char| c.is_ascii_digit())
        {
            let expected = "use at most 32 of a-z, 0-9 and _, with no digit first";
            return Err(self.wrong(format!("table_prefix={prefix} is not a valid prefix: {expected}")));
        }
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Url;

    fn take(pairs: &[(&str, &str)]) -> Result<Params, String> {
        let mut query = Query::new(&Url::parse("x://h").unwrap());
        pairs.iter().for_each(|(name, value)| query.put(name, value));
        let params = query.params().and_then(|params| query.end().map(|()| params));
        params.map_err(|error| error.to_string())
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
            let error = take(&[pair]).unwrap_err();
            assert!(error.contains(pair.0), "{error}");
        }
    }
}
