//! Sizes and numbers for command lines and output.

pub use types::{counted, plural};

/// Parses a number of bytes, with or without a binary suffix: `4096`, `64K`, `10G`, `1.5TiB`.
///
/// # Errors
/// A message that says what to write.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("'{text}' is not a size: write a number of bytes, or a number with K, M, G, T or P, e.g. 10G")
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.trim().to_ascii_uppercase();
    let suffix = suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix);
    let shift = match suffix {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let whole = whole
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("'{text}' is too large: write at most 16383P"))?;
    if !fraction.chars().all(|c| c.is_ascii_digit()) {
        return Err(wrong());
    }
    if fraction.is_empty() {
        return if number.ends_with('.') { Err(wrong()) } else { Ok(whole) };
    }
    // Use integer arithmetic, because floating point would round. Digits after the sixth are ignored.
    let fraction = fraction.get(..6).unwrap_or(fraction);
    let part: u64 = fraction.parse().map_err(|_| wrong())?;
    let part = u128::from(part) * (1u128 << shift) / 10u128.pow(fraction.len() as u32);
    Ok(whole.saturating_add(part as u64))
}

/// Parses a whole number, such as a number of files.
///
/// # Errors
/// A message that says what to write.
pub fn parse_whole(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|_| !text.starts_with('+'));
    number.ok_or_else(|| format!("'{text}' is not a whole number: write only digits, e.g. 1000000"))
}

/// More threads than this would only wait for each other on any machine.
const MAX_THREADS: usize = 1024;

/// Parses a number of threads.
///
/// # Errors
/// A message that says what to write.
pub fn parse_threads(text: &str) -> Result<usize, String> {
    parse_count(text, MAX_THREADS)
}

/// Parses a number from 1 to `most`.
///
/// # Errors
/// A message that says what to write.
pub fn parse_count(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("'{text}' is not a number from 1 to {most}"))
}

/// Formats a size: `1.5 GiB`, or `512 B` below 1 KiB.
pub fn show_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = bytes.max(1).ilog2().checked_div(10).filter(|&power| power > 0) else {
        return format!("{bytes} B");
    };
    let tenths = u128::from(bytes) * 10 / (1u128 << (10 * power));
    format!("{}.{} {}", tenths / 10, tenths % 10, units[power as usize - 1])
}

/// The number of files and that of directories, for messages.
pub fn files_and_directories(files: u64, directories: u64) -> String {
    let directories = counted(directories, "directory", "directories");
    format!("{} and {directories}", counted(files, "file", "files"))
}

/// A number of files and directories together, for messages.
pub fn files_or_directories(number: u64) -> String {
    counted(number, "file or directory", "files or directories")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_binary_suffixes() {
        let good = [
            ("0", 0),
            ("4096", 4096),
            ("64k", 64 << 10),
            ("10G", 10 << 30),
            ("1.5TiB", 3 << 39),
            ("2 MiB", 2 << 20),
            ("7B", 7),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "G", "-1", "1X", "1.2.3G", "1.123456.7G", "1.G", ".5G", "99999999999999999999", "20000000P"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_numbers_have_no_sign_and_no_suffix() {
        assert_eq!(parse_whole("1000000"), Ok(1_000_000));
        for text in ["-5", "+5", "1K", "", "1.5", "99999999999999999999"] {
            assert!(parse_whole(text).unwrap_err().contains("whole number"), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        let shown = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 30, "1.0 GiB")];
        for (bytes, text) in shown {
            assert_eq!(show_size(bytes), text);
        }
        assert_eq!(show_size(u64::MAX), "15.9 EiB");
    }
}
