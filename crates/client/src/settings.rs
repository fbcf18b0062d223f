//! The volume's settings of a running client: replaced while operations use them, and read without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use meta::{Volume, VolumeError};

use crate::driver::{Failure, Meta};

/// How many changes of the settings a client can apply. Every version is kept, because an operation may still
/// use it.
const MOST_CHANGES: usize = 1000;

/// The current settings and all previous versions.
#[derive(Debug)]
pub(crate) struct VolumeSettings {
    versions: Box<[OnceLock<Volume>]>,
    current: AtomicUsize,
    first: Volume,
}

impl VolumeSettings {
    pub(crate) fn new(first: Volume) -> Self {
        let versions = std::iter::repeat_with(OnceLock::new).take(MOST_CHANGES).collect();
        VolumeSettings { versions, current: AtomicUsize::new(0), first }
    }

    pub(crate) fn current(&self) -> &Volume {
        let current = self.current.load(Ordering::Acquire).checked_sub(1);
        current.and_then(|at| self.versions.get(at)?.get()).unwrap_or(&self.first)
    }

    /// Makes these settings the current ones. Returns `false` if there is no room for another version.
    fn replace(&self, volume: Volume) -> bool {
        let Some(at) = self.versions.iter().position(|version| version.get().is_none()) else { return false };
        let is_set = self.versions.get(at).is_some_and(|version| version.set(volume).is_ok());
        if is_set {
            self.current.store(at + 1, Ordering::Release);
        }
        is_set
    }
}

impl Meta {
    /// Reads the settings again, in one read, and uses them from now on if they changed. Returns whether they
    /// changed.
    ///
    /// # Errors
    /// Those of the database; EIO if the settings are damaged or belong to another volume. The current
    /// settings then remain.
    pub fn refresh_settings(&self) -> Result<bool, Failure> {
        let found = match Volume::load(&**self.engine()) {
            Ok(found) => found,
            Err(VolumeError::Failed(error)) => return Err(error.into()),
            Err(error) => {
                tracing::error!(%error, "cannot read the volume's settings; the previous ones remain in force");
                return Err(types::Errno::EIO.into());
            }
        };
        if found == *self.volume() {
            return Ok(false);
        }
        if !found.is_same_volume(self.volume()) {
            tracing::error!(
                uuid = found.uuid,
                "the database holds another volume now; its settings are ignored"
            );
            return Err(types::Errno::EIO.into());
        }
        let followed = self.settings().replace(found);
        match followed {
            true => tracing::info!("the volume's settings were changed"),
            false => tracing::warn!(
                "the settings changed too often for this mount to follow; remount to apply the change"
            ),
        }
        Ok(followed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use types::Errno;

    use super::*;
    use meta::{Engine, MemEngine};
    use ops::{Authority, Configure, GetInode, Op};

    fn run<O: Op>(meta: &Meta, op: &O) -> Result<O::Reply, Failure> {
        meta.run(op, &Authority::Kernel { told: None })
    }

    #[test]
    fn a_running_client_applies_changed_settings_when_it_reads_them() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let [running, tool] = [(); 2].map(|()| Meta::open(Arc::clone(&engine), 100).unwrap());
        assert!(!running.refresh_settings().unwrap());
        run(&tool, &Configure { max_inodes: Some(7), ..Configure::default() }).unwrap();
        let before = running.volume();
        assert!(running.refresh_settings().unwrap());
        assert_eq!((before.max_inodes, running.volume().max_inodes), (0, 7));
        for limit in 0..MOST_CHANGES as u64 - 1 {
            assert!(running.settings().replace(Volume { max_inodes: limit, ..running.volume().clone() }));
        }
        assert!(!running.refresh_settings().unwrap(), "there is no room for one more");
        assert!(run(&running, &GetInode(types::Ino::ROOT)).is_ok());
    }

    #[test]
    fn settings_of_another_volume_are_ignored() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let meta = Meta::open(Arc::clone(&engine), 100).unwrap();
        engine.wipe().unwrap();
        Volume { uuid: "other".into(), max_inodes: 1, ..Volume::in_memory("test") }.format(&*engine).unwrap();
        assert_eq!(meta.refresh_settings(), Err(Errno::EIO.into()));
        assert_eq!(meta.volume().max_inodes, 0);
    }
}
