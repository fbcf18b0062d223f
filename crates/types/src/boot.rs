//! A clock that also runs while the machine is suspended.

use std::ops::Add;
use std::time::Duration;

use host::time_since_boot;

/// A moment of `CLOCK_BOOTTIME` (`clock_gettime(2)`): it never goes back, and it includes the time of a
/// suspend.
///
/// [`std::time::Instant`] stops during a suspend. A lease that is agreed with other machines must not use it,
/// because time goes on there while this machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    pub fn now() -> Self {
        BootInstant(time_since_boot())
    }

    /// The time since this moment; zero if it is in the future.
    pub fn elapsed(self) -> Duration {
        BootInstant::now().saturating_duration_since(self)
    }

    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// `None` if the result would be before the start of the machine.
    pub fn checked_sub(self, duration: Duration) -> Option<Self> {
        self.0.checked_sub(duration).map(BootInstant)
    }

    /// Nanoseconds since the machine started, for an atomic variable.
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Saturates at the largest value.
impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        BootInstant(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_in_order_and_count_from_the_start_of_the_machine() {
        let before = BootInstant::now();
        let after = BootInstant::now();
        assert!(before <= after && before.nanos() > 0);
        let second = Duration::from_secs(1);
        assert_eq!((before + second).saturating_duration_since(before), second);
        assert_eq!((before + second).checked_sub(second), Some(before));
        assert_eq!((before + second * 3600).elapsed(), Duration::ZERO);
        assert_eq!(before.checked_sub(Duration::MAX), None);
        assert_eq!((before + Duration::MAX).nanos(), u64::MAX);
    }
}
