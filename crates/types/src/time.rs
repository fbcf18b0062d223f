//! Points in time.
//!
//! A time is a signed 64-bit number of nanoseconds, because every engine can store and sort one integer.

use std::fmt;

use host::nanos_since_epoch;
use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01 UTC, negative before that. The range is 1677-09-21 to 2262-04-11; times
/// outside it are clamped to its ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(i64);

const NANOS_PER_SEC: i128 = 1_000_000_000;

impl Time {
    /// The smallest value: no time is before it.
    pub const MIN: Time = Time(i64::MIN);

    pub fn now() -> Self {
        Time::clamp(nanos_since_epoch())
    }

    /// `sec` may be negative; `nsec` is added to it (`timespec(3type)`).
    pub fn new(sec: i64, nsec: u32) -> Self {
        Time::clamp(sec as i128 * NANOS_PER_SEC + nsec as i128)
    }

    pub fn from_nanos(nanos: i64) -> Self {
        Time(nanos)
    }

    pub fn nanos(self) -> i64 {
        self.0
    }

    /// Whole seconds, rounded towards the past.
    pub fn sec(self) -> i64 {
        self.0.div_euclid(NANOS_PER_SEC as i64)
    }

    /// Nanoseconds after [`Time::sec`], 0 to 999,999,999.
    pub fn nsec(self) -> u32 {
        self.0.rem_euclid(NANOS_PER_SEC as i64) as u32
    }

    fn clamp(nanos: i128) -> Self {
        Time(nanos.clamp(i64::MIN as i128, i64::MAX as i128) as i64)
    }
}

/// `2026-11-20 18:52:07 UTC`, in the proleptic Gregorian calendar. The fraction of the second is left out.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.sec().div_euclid(86_400), self.sec().rem_euclid(86_400));
        // The algorithm `civil_from_days` of Howard Hinnant ("chrono-Compatible Low-Level Date Algorithms").
        // Years start on 1 March, so that the leap day is the last day of a year. An era has 400 years and
        // 146,097 days. Days are counted from 0000-03-01, which is 719,468 days before 1970-01-01.
        let days = days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = era * 400 + year + carry;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_nanoseconds_up_from_their_second() {
        let t = Time::new(-2, 999_999_999);
        assert_eq!((t.sec(), t.nsec()), (-2, 999_999_999));
        assert!(t < Time::new(-1, 0));
    }

    #[test]
    fn times_outside_the_stored_range_clamp() {
        assert_eq!(Time::new(i64::MAX, 0).nanos(), i64::MAX);
        assert_eq!(Time::new(i64::MIN, 0).nanos(), i64::MIN);
    }

    #[test]
    fn times_print_as_dates() {
        assert_eq!(Time::new(0, 0).to_string(), "1970-01-01 00:00:00 UTC");
        assert_eq!(Time::new(951_782_399, 5).to_string(), "2000-02-28 23:59:59 UTC");
        assert_eq!(Time::new(951_782_400, 0).to_string(), "2000-02-29 00:00:00 UTC");
        assert_eq!(Time::new(-1, 0).to_string(), "1969-12-31 23:59:59 UTC");
        assert_eq!(Time::new(4_102_444_800, 0).to_string(), "2100-01-01 00:00:00 UTC");
    }
}
