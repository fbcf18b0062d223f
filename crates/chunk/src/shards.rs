//! The address of a store whose objects are spread over several buckets, and the bucket of each object.
//!
//! ```text
//! shards:s3://home-{0..15}/prefix      16 buckets, home-0 to home-15
//! shards:/mnt/disk{01..12}/home        12 directories
//! ```
//!
//! The prefix `shards:` is part of the address, because braces alone are not enough: an address without the
//! prefix is one bucket, even if its name contains `{0..15}`. No address of a single bucket begins with
//! `shards:`, because the address of a directory begins with a slash, and every other address with the scheme
//! of its kind.

use crate::ChunkError;

/// The beginning of the address of several buckets.
pub const SHARDS: &str = "shards:";

/// The maximum number of buckets. Each check and each listing sends a request to all of them.
const MAX_BUCKETS: usize = 256;

/// The maximum length of a number in an address, with its leading zeros.
const MAX_DIGITS: usize = 20;

/// The addresses of the buckets that an address names: one, or those of its range, in order.
///
/// # Errors
/// [`ChunkError::Config`] if the address begins with [`SHARDS`], but does not name 2 to 256 buckets.
pub(crate) fn addresses(address: &str) -> Result<Vec<String>, ChunkError> {
    let Some(pattern) = address.strip_prefix(SHARDS) else { return Ok(vec![address.to_owned()]) };
    let fail = |what: String| ChunkError::Config(format!("the address {address:?} {what}"));
    let Some((before, range, after)) = split(pattern) else {
        return Err(fail(format!("needs exactly one range such as {{0..15}} after {SHARDS}")));
    };
    let Some((first, last)) = bounds(range) else {
        return Err(fail(format!("has {{{range}}}, which is not a range of numbers such as {{0..15}}")));
    };
    // As in bash: if a bound has leading zeros, all numbers have the same length.
    let is_padded = |text: &&str| text.len() > 1 && text.starts_with('0');
    let width = [first, last].iter().find(|text| is_padded(text)).map_or(0, |_| first.len().max(last.len()));
    let number = |text: &str| {
        text.parse::<u32>().map_err(|_| fail(format!("has the number {text}, which is too large")))
    };
    let (first, last) = (number(first)?, number(last)?);
    match (u64::from(last) + 1).saturating_sub(first.into()) {
        0 => Err(fail(format!("has an empty range: {first} is greater than {last}"))),
        1 => Err(fail(format!("names only one bucket: write its address without {SHARDS}"))),
        count if count > MAX_BUCKETS as u64 => {
            Err(fail(format!("names {count} buckets; the maximum is {MAX_BUCKETS}")))
        }
        _ => Ok((first..=last).map(|number| format!("{before}{number:0width$}{after}")).collect()),
    }
}

/// Whether an address contains a range such as `{0..15}`.
pub fn has_range(address: &str) -> bool {
    let mut rest = address;
    while let Some((_, after)) = rest.split_once('{') {
        if after.split_once('}').is_some_and(|(range, _)| bounds(range).is_some()) {
            return true;
        }
        rest = after;
    }
    false
}

/// The bucket that the object `key` is in. `buckets` are those that
/// [`StorageConfig::buckets`](crate::StorageConfig::buckets) returns.
pub fn bucket_of<'a>(buckets: &'a [String], key: &str) -> Option<&'a str> {
    buckets.get(index_of(key, buckets.len())).map(String::as_str)
}

/// The index of the bucket that an object is in: the CRC-32 of the key modulo the number of buckets, so that
/// a script can compute it too. This rule must never change, because the objects of existing volumes are
/// stored by it.
pub(crate) fn index_of(key: &str, buckets: usize) -> usize {
    (crc32(key.as_bytes()) as usize).checked_rem(buckets).unwrap_or(0)
}

/// The CRC-32 of zlib and gzip.
fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let shift = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc)))
}

/// The parts of a pattern before, within and after its braces; `None` unless it has exactly one pair.
fn split(pattern: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = pattern.split_once('{')?;
    let (range, after) = rest.split_once('}')?;
    (![before, range, after].concat().contains(['{', '}'])).then_some((before, range, after))
}

/// The bounds of a range `FIRST..LAST` of decimal numbers.
fn bounds(range: &str) -> Option<(&str, &str)> {
    let is_number =
        |text: &str| (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    range.split_once("..").filter(|(first, last)| is_number(first) && is_number(last))
}

#[cfg(test)]
mod tests {
    use types::SliceId;

    use super::*;
    use crate::block::object_key;

    #[test]
    fn a_range_names_buckets_and_a_wrong_one_is_refused() {
        let all = |address: &str| addresses(address).unwrap();
        assert_eq!(all("shards:s3://b-{0..2}/p"), ["s3://b-0/p", "s3://b-1/p", "s3://b-2/p"]);
        assert_eq!(all("shards:/d{8..11}"), ["/d8", "/d9", "/d10", "/d11"]);
        assert_eq!(all("shards:/d{08..11}/x"), ["/d08/x", "/d09/x", "/d10/x", "/d11/x"]);
        assert_eq!(all("shards:/d{00..1}"), ["/d00", "/d01"]);
        assert_eq!(all("shards:/d{1..256}").len(), 256);
        for (bad, says) in [
            ("shards:/d", "exactly one range"),
            ("shards:", "exactly one range"),
            ("shards:/d{0..1}{0..1}", "exactly one range"),
            ("shards:/d{0..1}}", "exactly one range"),
            ("shards:/d}0..1{", "exactly one range"),
            ("shards:/d{0..{1..2}}", "exactly one range"),
            ("shards:/d{}", "not a range"),
            ("shards:/d{a..c}", "not a range"),
            ("shards:/d{0,1}", "not a range"),
            ("shards:/d{-1..2}", "not a range"),
            ("shards:/d{0...2}", "not a range"),
            ("shards:/d{2..1}", "empty range"),
            ("shards:/d{4294967295..0}", "empty range"),
            ("shards:/d{3..3}", "only one bucket"),
            ("shards:/d{0..256}", "257 buckets"),
            ("shards:/d{0..4294967296}", "too large"),
            (&format!("shards:/d{{0..{}1}}", "0".repeat(70_000)), "not a range"),
        ] {
            let error = addresses(bad).unwrap_err();
            assert!(
                matches!(error, ChunkError::Config(_)) && error.to_string().contains(says),
                "{bad}: {error}"
            );
        }
    }

    /// The directory of an older volume may have such a name.
    #[test]
    fn braces_without_the_prefix_are_part_of_the_name() {
        for one in ["/d{0..2}", "s3://b/p{0..2}", "/srv/shards:{0..2}", "Shards:/d{0..2}", ""] {
            assert_eq!(addresses(one).unwrap(), [one]);
        }
        assert!(has_range("/d{0..2}") && has_range("s3://{x{0..15}"));
        for without in ["/d", "/d{}", "/d{a..b}", "/d{0..2", "/d0..2}"] {
            assert!(!has_range(without), "{without}");
        }
    }

    /// If one of these values changes, the objects of existing volumes are not found any more.
    #[test]
    fn the_bucket_of_an_object_never_changes() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let key = object_key(SliceId(1_234_567), 3, 4_194_304);
        assert_eq!(key, "chunks/1/1234/1234567_3_4194304");
        let of = |key: &str| [2, 3, 16, 256].map(|buckets| index_of(key, buckets));
        assert_eq!(of(&key), [1, 0, 1, 97]);
        assert_eq!(of("backups/1795472189123456789.json"), [1, 1, 15, 47]);
        let buckets = ["/d0", "/d1", "/d2"].map(str::to_owned);
        assert_eq!(bucket_of(&buckets, &key), Some("/d0"));
        assert_eq!(bucket_of(&[], &key), None);
    }

    #[test]
    fn buckets_get_about_the_same_number_of_blocks() {
        for buckets in [2, 3, 4, 7, 16, 64] {
            for step in [1, 2, 10] {
                let mut counts = vec![0_u32; buckets];
                for slice in 1..=10_000 {
                    for block in 0..2 {
                        counts[index_of(&object_key(SliceId(slice * step), block, 131_072), buckets)] += 1;
                    }
                }
                let mean = 20_000 / buckets as u32;
                let bounds = mean * 3 / 4..mean * 5 / 4;
                assert!(counts.iter().all(|count| bounds.contains(count)), "{buckets} {step}: {counts:?}");
            }
        }
    }
}
