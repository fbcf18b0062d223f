//! Numbers in messages, with their nouns and verbs in the singular or plural.

use std::fmt::Display;

/// A number with its noun: `counted(1, "file", "files")` is `1 file`.
pub fn counted<N: Display + Copy + TryInto<i128>>(number: N, one: &str, many: &str) -> String {
    format!("{number} {}", plural(number, one, many))
}

/// `one` for the number 1, otherwise `many`.
pub fn plural<'a>(number: impl TryInto<i128>, one: &'a str, many: &'a str) -> &'a str {
    if number.try_into().is_ok_and(|number: i128| number == 1) { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        for (number, text) in [(0, "0 entries"), (1, "1 entry"), (2, "2 entries"), (-1, "-1 entries")] {
            assert_eq!(counted(number, "entry", "entries"), text);
        }
        assert_eq!((plural(1_usize, "is", "are"), plural(u64::MAX, "is", "are")), ("is", "are"));
    }
}
