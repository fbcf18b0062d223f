//! Values of options that several commands have.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use command::units::parse_size;

/// A value of an option, and its help.
pub(crate) type Choice<T> = (T, &'static str);

/// Parses one of these values, by its name.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let shown = choices.iter().map(move |(value, help)| PossibleValue::new(name(*value)).help(*help));
    PossibleValuesParser::new(shown).try_map(move |given| {
        let found = choices.iter().find(|(value, _)| name(*value) == given);
        found.map(|(value, _)| *value).ok_or("not one of the possible values")
    })
}

/// The longest name of a volume; it becomes part of file names.
const MAX_NAME_BYTES: usize = 63;

pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    if (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("a volume's name has 1 to {MAX_NAME_BYTES} characters of a-z, 0-9, - and _"))
}

/// Larger rows would slow down all other work of the database.
const MAX_INLINE_BYTES: u64 = 64 << 10;

pub(crate) fn parse_inline(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        bytes if bytes <= MAX_INLINE_BYTES => Ok(bytes as u32),
        _ => Err("the metadata can hold files of at most 64K".to_owned()),
    }
}

/// A length of time, such as `90s` or `1h`.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a length of time: write a number with s, m, h or d, e.g. 1h");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

pub(crate) fn parse_on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names_are_checked() {
        for good in ["a", "home-2_x", &"a".repeat(63)] {
            assert_eq!(parse_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "A", "a b", "a/b", "a.b", "ä", &"a".repeat(64)] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_of_time_are_parsed() {
        let seconds = |text| parse_span(text).map(|span| span.as_secs());
        assert_eq!((seconds("0"), seconds("90s"), seconds("30m")), (Ok(0), Ok(90), Ok(1800)));
        assert_eq!((seconds("1h"), seconds("2d")), (Ok(3600), Ok(172_800)));
        for text in ["", "h", "-1h", "1.5h", "1w", "1 h", "99999999999999999999d", "9999999999999999999d"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn inline_size_is_bounded() {
        assert_eq!((parse_inline("0"), parse_inline("64K")), (Ok(0), Ok(65_536)));
        assert!(parse_inline("65537").is_err());
    }
}
