//! Changes of quotas through the mount. The end of the session stops such a change and waits for it.

use client::{QuotaChange, QuotaError, Retagging};
use meta::QuotaKey;

use crate::vfs::Vfs;

impl Vfs {
    /// Changes a quota, which may walk through inodes. `progress` is called after each step, and ends the
    /// walk if it returns `false`. No access is checked, so the caller must be the superuser or the user that
    /// runs the mount.
    ///
    /// # Errors
    /// Those of [`client::Meta::change_quota`]; [`QuotaError::Interrupted`] if the session ends during the
    /// walk.
    pub fn change_quota(
        &self,
        change: QuotaChange,
        progress: &mut dyn FnMut(&Retagging) -> bool,
    ) -> Result<QuotaKey, QuotaError> {
        let _running = host::read(&self.lifecycle.tools);
        if self.base.stop.is_set() {
            return Err(QuotaError::Interrupted);
        }
        let mut go_on = |done: &Retagging| progress(done) && !self.base.stop.is_set();
        let changed = self.base.meta.change_quota(change, &mut go_on);
        self.base.commits.note_change();
        if changed.is_ok() {
            // The quota is in force even if this sync fails, and the background thread tries again.
            if let Err(errno) = self.base.commits.make_durable_if_dirty() {
                tracing::warn!(%errno, "cannot sync after a change of a quota; retrying");
            }
        }
        changed
    }
}
