//! The limit of a walk.

use std::time::Instant;

/// The limits at which a walk ends before it is complete.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit {
    pub(crate) names: Option<u64>,
    pub(crate) until: Option<Instant>,
}

impl Limit {
    /// Whether a walk that has counted `names` names ends now.
    pub(super) fn is_reached(&self, names: u64) -> bool {
        self.names.is_some_and(|limit| names >= limit)
            || self.until.is_some_and(|until| Instant::now() >= until)
    }
}
