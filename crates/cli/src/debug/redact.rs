//! Removes secrets from texts: the secrets that this process knows, and the values in places that hold
//! secrets, such as the password of a URL.

use std::env;

use crate::network::without_password;

/// A secret that is shorter than this is removed only as a word of its own, because it may be a part of other
/// words.
const SHORT_BYTES: usize = 6;

/// Parts of the names of variables that hold secrets, such as `AWS_SECRET_ACCESS_KEY`.
const NAMES: &[&str] =
    &["PASSWORD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIAL", "HEADERS", "ACCESS_KEY", "LIMEN_KEY"];

/// Ends of the names of parameters whose value is a secret, in lower case.
const PARAMETERS: &[&str] =
    &["password", "passwd", "passphrase", "secret", "secret_access_key", "secret_key", "token"];

/// The characters that end a URL or the value of a parameter.
const ENDS: &[char] = &['"', '\'', '`', '<', '>', ',', ';', ')', '\0'];

/// Secrets that must not be in an archive.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// Ordered from the longest to the shortest, because one can be a part of another.
    values: Vec<String>,
}

impl Secrets {
    pub(crate) const REMOVED: &str = "[removed]";

    /// The secrets in this process's environment.
    pub(crate) fn of_environment() -> Self {
        let all = env::vars_os();
        let text =
            all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Secrets::of(text)
    }

    /// The secrets in an environment.
    pub(crate) fn of<N: AsRef<str>, V: Into<String>>(variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let mut secrets = Secrets::default();
        let is_secret = |name: &str| NAMES.iter().any(|part| name.to_uppercase().contains(part));
        let found = variables.into_iter().filter(|(name, _)| is_secret(name.as_ref()));
        secrets.add_all(found.map(|(_, value)| value.into()));
        secrets
    }

    pub(crate) fn add_all(&mut self, values: impl IntoIterator<Item = String>) {
        for value in values {
            // JSON and `Debug` output escape quotes and backslashes; a URL escapes most punctuation.
            let escaped = value.escape_debug().to_string();
            let in_url = percent_encoded(value.trim());
            for value in [value.trim().to_owned(), escaped, in_url] {
                if !value.is_empty() && !self.values.contains(&value) {
                    self.values.push(value);
                }
            }
        }
        self.values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    }

    pub(crate) fn merge(&mut self, other: Secrets) {
        self.add_all(other.values);
    }

    /// The text without secrets.
    pub(crate) fn remove_from(&self, text: &str) -> String {
        // Known secrets first: a part of one can look like a URL or a parameter.
        let known = self.without_known(text);
        self.without_known(&without_values(&without_userinfo(&known)))
    }

    fn without_known(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for value in &self.values {
            clean = if value.len() < SHORT_BYTES {
                without_word(&clean, value)
            } else {
                clean.replace(value.as_str(), Self::REMOVED)
            };
        }
        clean
    }
}

/// The form of a text in a URL (RFC 3986 section 2.1).
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Removes the passwords of URLs.
fn without_userinfo(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let is_scheme = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '-' | '.');
        let start = rest[..at].trim_end_matches(is_scheme).len();
        // A comma can be in a password, and between the hosts of one URL.
        let is_end = |letter: char| letter.is_whitespace() || ENDS.contains(&letter) && letter != ',';
        let end = rest[at + 3..].find(is_end).map_or(rest.len(), |end| at + 3 + end);
        clean.push_str(&rest[..start]);
        clean.push_str(&without_password(&rest[start..end]));
        rest = &rest[end..];
    }
    clean + rest
}

/// Removes the values of parameters such as `password=`.
fn without_values(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let (before, after) = rest.split_at(at + 1);
        clean.push_str(before);
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let name = &before[before[..at].trim_end_matches(is_name).len()..at];
        let name = name.to_ascii_lowercase();
        if PARAMETERS.iter().any(|parameter| name.ends_with(parameter)) {
            let quote = after.chars().next().filter(|letter| matches!(letter, '"' | '\''));
            // In quotes, spaces belong to the value.
            let is_end = |letter: char| match quote {
                Some(quote) => letter == quote || letter == '\n',
                None => letter.is_whitespace() || letter == '&' || ENDS.contains(&letter),
            };
            let after = &after[quote.map_or(0, char::len_utf8)..];
            let end = after.find(is_end).unwrap_or(after.len());
            clean.push_str(Secrets::REMOVED);
            rest = &after[end..];
        } else {
            rest = after;
        }
    }
    clean + rest
}

/// Removes a word wherever it is not a part of a longer one.
fn without_word(text: &str, word: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let is_part = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        let is_word = !is_part(before.chars().next_back()) && !is_part(after.chars().next());
        clean.push_str(before);
        clean.push_str(if is_word { Secrets::REMOVED } else { word });
        rest = after;
    }
    clean + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_wherever_they_stand() {
        let mut secrets = Secrets::of([
            ("LIMEN_META_PASSWORD", "pass\"word"),
            ("AWS_SECRET_ACCESS_KEY", "wJalr/XUtn"),
            ("LIMEN_KEY", "00ff00ff"),
            ("HOME", "/home/ann"),
            ("MY_TOKEN", "db"),
        ]);
        secrets.add_all(["00ff00ff11\n".to_owned()]);
        for (text, clean) in [
            ("key 00ff00ff11, 00ff00ff", "key [removed], [removed]"),
            ("x pass\"word {pass\\\"word}", "x [removed] {[removed]}"),
            ("wJalr/XUtnwJalr/XUtn wJalr%2FXUtn", "[removed][removed] [removed]"),
            ("/home/ann a db, dbx, a_db_", "/home/ann a [removed], dbx, a_[removed]_"),
        ] {
            assert_eq!(secrets.remove_from(text), clean);
        }
    }

    #[test]
    fn passwords_in_urls_and_parameters_are_removed_though_unknown() {
        for (text, clean) in [
            ("redis://:p@w@h:1/2 failed: redis://h", "redis://h:1/2 failed: redis://h"),
            (
                "\"url\": \"postgres://u:x,y@h/db?password_file=/f\"",
                "\"url\": \"postgres://u@h/db?password_file=/f\"",
            ),
            (
                "host=h password=abc user=u&token=\"x y\"",
                "host=h password=[removed] user=u&token=[removed]\"",
            ),
            ("PASSWORD='abc' = b", "PASSWORD=[removed]' = b"),
            ("sqlite:///a@b.db, key_file=/etc/k", "sqlite:///a@b.db, key_file=/etc/k"),
            ("ä://b@c", "ä://b@c"),
        ] {
            assert_eq!(Secrets::default().remove_from(text), clean);
        }
    }
}
