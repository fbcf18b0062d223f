//! The three clocks (monotonic, since boot, and wall-clock time), and sleeping.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

#[cfg(not(feature = "sim"))]
pub use std::time::Instant;

#[cfg(feature = "sim")]
pub use crate::sim::Instant;

/// `CLOCK_BOOTTIME` (`clock_gettime(2)`): it includes the time of a suspend.
pub fn time_since_boot() -> Duration {
    #[cfg(feature = "sim")]
    if let Some(time) = crate::sim::with(|machine| machine.since_boot()) {
        return time;
    }
    let now = clock_gettime(ClockId::Boottime);
    // POSIX guarantees the range of both values.
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// `CLOCK_REALTIME`, which can be set at any moment. Negative before 1970.
pub fn nanos_since_epoch() -> i128 {
    #[cfg(feature = "sim")]
    if let Some(nanos) = crate::sim::with(|machine| machine.nanos_since_epoch()) {
        return nanos;
    }
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

/// As [`std::thread::sleep`].
pub fn sleep(time: Duration) {
    #[cfg(feature = "sim")]
    if crate::sim::with(|machine| machine.sleep(time)).is_some() {
        return;
    }
    std::thread::sleep(time);
}
