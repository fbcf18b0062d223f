//! The signal that ends the background threads of a mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once, when the session ends. All clones are one signal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
