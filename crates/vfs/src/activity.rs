//! Counts since a mount started, and its present state, as far as only the VFS knows them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An event that background threads count.
#[derive(Debug, Default)]
pub(crate) struct Event(AtomicU64);

impl Event {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts since the mount started, and its state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    pub open_files: u64,
    /// Inodes that the kernel is believed to hold; 0 if this mount is exclusive.
    pub kernel_inodes: u64,
    /// The limit of [`Vfs::unstored_bytes`](crate::Vfs::unstored_bytes).
    pub write_buffer_bytes: u64,
    /// The time since the last successful renewal of the session began.
    pub session_age: Duration,
    /// The number of sessions of the volume when they were last read, including this one.
    pub sessions: u64,
    /// Whether this mount removes dead sessions and garbage for all mounts.
    pub is_elected: bool,
    /// The time until the lease on cached records expires; zero if there is no lease.
    pub lease: Duration,
    /// Answers of the stream of changes, including empty ones.
    pub stream_answers: u64,
    /// Changes by this client and others that the stream delivered.
    pub stream_changes: u64,
    /// Failures of the stream, and failed attempts to open it.
    pub stream_failures: u64,
    /// Slices without a row whose blocks were removed.
    pub garbage_removed: u64,
    /// Slices without a row whose blocks could not be removed, counted at each attempt.
    pub garbage_failures: u64,
}
