//! Values of options that several commands have.

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
    fn inline_size_is_bounded() {
        assert_eq!((parse_inline("0"), parse_inline("64K")), (Ok(0), Ok(65_536)));
        assert!(parse_inline("65537").is_err());
    }
}
