//! The signal that ends the background threads of a mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How much of the background work continues. All clones are one signal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicU8>);

const RUNNING: u8 = 0;
/// All threads of [`crate::housekeeping`] end, except the heartbeat's.
const HOUSEKEEPING_ENDS: u8 = 1;
/// The heartbeat's thread ends too: the session is being handed over.
const HEARTBEAT_ENDS: u8 = 2;
const ENDED: u8 = 3;

impl Stop {
    /// Tells all threads to end permanently. Called when the session ends.
    pub(crate) fn set(&self) {
        self.0.store(ENDED, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) == ENDED
    }

    /// Tells the threads of housekeeping to end, and with `heartbeat` also the heartbeat's thread. Has no
    /// effect after [`Stop::set`].
    pub(crate) fn pause(&self, heartbeat: bool) {
        self.change(if heartbeat { HEARTBEAT_ENDS } else { HOUSEKEEPING_ENDS });
    }

    /// Undoes [`Stop::pause`]. Has no effect after [`Stop::set`].
    pub(crate) fn unpause(&self) {
        self.change(RUNNING);
    }

    /// Whether the threads of housekeeping must end.
    pub(crate) fn ends_housekeeping(&self) -> bool {
        self.0.load(Ordering::Acquire) >= HOUSEKEEPING_ENDS
    }

    /// Whether the heartbeat's thread must end.
    pub(crate) fn ends_heartbeat(&self) -> bool {
        self.0.load(Ordering::Acquire) >= HEARTBEAT_ENDS
    }

    fn change(&self, to: u8) {
        // This fails after `set`, and then the state must stay `ENDED`.
        let _ =
            self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| (state != ENDED).then_some(to));
    }
}
