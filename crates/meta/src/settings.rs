//! The volume's settings as a running client has them: replaced while operations use them, read without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::{Failure, Meta};
use crate::volume::{Volume, VolumeError};

/// How many changes of the settings a client follows. Each one is kept, because an operation may still use it.
const MOST_CHANGES: usize = 1000;

/// The settings in force and those before.
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

    /// Puts other settings in force; says whether there was room for them.
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
    /// Reads the settings again and goes by them from now on, if they are others; says whether they are. One read.
    ///
    /// # Errors
    /// Those of the database; EIO if the settings are damaged or those of another volume. What was in force stays so.
    pub fn refresh_settings(&self) -> Result<bool, Failure> {
        let found = match Volume::load(&**self.engine()) {
            Ok(found) => found,
            Err(VolumeError::Failed(failure)) => return Err(failure),
            Err(error) => {
                tracing::error!(%error, "the volume's settings cannot be read; those known before stay in force");
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
            false => tracing::warn!("the settings changed too often to follow; remount to see the change"),
        }
        Ok(followed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use types::Errno;

    use super::*;
    use crate::ops::GetNode;
    use crate::{Configure, Engine, MemEngine, Op, Vouch};

    fn run<O: Op>(meta: &Meta, op: &O) -> Result<O::Reply, Failure> {
        meta.run(op, &Vouch::Kernel { told: None })
    }

    #[test]
    fn a_running_client_goes_by_changed_settings_once_it_reads_them() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        crate::check::test_volume().format(&*engine).unwrap();
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
        assert!(run(&running, &GetNode(types::Ino::ROOT)).is_ok());
    }

    #[test]
    fn settings_of_another_volume_are_ignored() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        crate::check::test_volume().format(&*engine).unwrap();
        let meta = Meta::open(Arc::clone(&engine), 100).unwrap();
        engine.wipe().unwrap();
        Volume { uuid: "other".into(), max_inodes: 1, ..crate::check::test_volume() }
            .format(&*engine)
            .unwrap();
        assert_eq!(meta.refresh_settings(), Err(Errno::EIO.into()));
        assert_eq!(meta.volume().max_inodes, 0);
    }
}
