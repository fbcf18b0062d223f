//! The boot of this machine.

use std::fs;

/// The id of the current boot of the machine, which differs after each boot
/// (`/proc/sys/kernel/random/boot_id`, random(4)); empty if it cannot be read.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
