//! The volume's settings in a running client: they can be replaced while operations use them, and are read
//! without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use meta::Volume;

/// How many changes of the settings a client can apply. Every version is kept, because an operation may still
/// use it.
const MAX_CHANGES: usize = 1000;

/// The current settings and all previous versions.
#[derive(Debug)]
pub(crate) struct VolumeSettings {
    versions: Box<[OnceLock<Volume>]>,
    current: AtomicUsize,
    first: Volume,
}

impl VolumeSettings {
    pub(crate) fn new(first: Volume) -> Self {
        let versions = std::iter::repeat_with(OnceLock::new).take(MAX_CHANGES).collect();
        VolumeSettings { versions, current: AtomicUsize::new(0), first }
    }

    pub(crate) fn current(&self) -> &Volume {
        let current = self.current.load(Ordering::Acquire).checked_sub(1);
        current.and_then(|at| self.versions.get(at)?.get()).unwrap_or(&self.first)
    }

    /// Makes these settings the current ones. Returns `false` if there is no room for another version.
    pub(crate) fn replace(&self, volume: Volume) -> bool {
        let Some(at) = self.versions.iter().position(|version| version.get().is_none()) else { return false };
        let is_set = self.versions.get(at).is_some_and(|version| version.set(volume).is_ok());
        if is_set {
            self.current.store(at + 1, Ordering::Release);
        }
        is_set
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meta::{AclKind, Engine, MemEngine};
    use types::Errno;

    use super::*;
    use crate::driver::Meta;
    use crate::failure::Failure;
    use ops::{Authority, BeginSession, Configure, GetInode, MoveStore, Op};

    fn run<O: Op>(meta: &Meta, op: &O) -> Result<O::Reply, Failure> {
        meta.run(op, &Authority::Kernel { revisions: None })
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
        for limit in 0..MAX_CHANGES as u64 - 1 {
            assert!(running.settings.replace(Volume { max_inodes: limit, ..running.volume().clone() }));
        }
        assert!(!running.refresh_settings().unwrap(), "there is no room for one more");
        assert!(run(&running, &GetInode(types::Ino::ROOT)).is_ok());
    }

    #[test]
    fn posix_acls_are_turned_on_and_later_settings_followed() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume { acl: AclKind::Off, ..Volume::in_memory("test") }.format(&*engine).unwrap();
        let [running, tool] = [(); 2].map(|()| Meta::open(Arc::clone(&engine), 100).unwrap());
        run(&tool, &Configure { posix_acls: true, ..Configure::default() }).unwrap();
        assert!(running.refresh_settings().unwrap());
        assert_eq!(running.volume().acl, AclKind::Posix);
        run(&tool, &Configure { max_inodes: Some(7), ..Configure::default() }).unwrap();
        assert!(running.refresh_settings().unwrap());
        assert_eq!(running.volume().max_inodes, 7);
        let changed = |from: AclKind, to: AclKind| {
            let [from, to] = [from, to].map(|acl| Volume { acl, ..Volume::in_memory("test") });
            to.is_same_volume(&from)
        };
        assert!(!changed(AclKind::Posix, AclKind::Off) && !changed(AclKind::Off, AclKind::Nfs4));
        assert!(!changed(AclKind::Nfs4, AclKind::Posix) && changed(AclKind::Nfs4, AclKind::Nfs4));
    }

    #[test]
    fn client_of_the_old_store_begins_no_session_after_a_move_to_a_copy() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let open = || Meta::open(Arc::clone(&engine), 100).unwrap();
        let (old, tool) = (open(), open());
        let place = |bucket: &str| ("memory".to_owned(), bucket.to_owned());
        let begin = |meta: &Meta| {
            let session = meta::Session::new(meta.session(), types::Time::from_nanos(1));
            run(meta, &BeginSession(session))
        };
        run(&tool, &MoveStore { from: place(""), to: place("same"), is_copy: false }).unwrap();
        assert!(old.refresh_settings().unwrap());
        assert_eq!(begin(&old), Ok(None));
        run(&tool, &MoveStore { from: place("same"), to: place("copy"), is_copy: true }).unwrap();
        assert_eq!(old.refresh_settings(), Err(Errno::EIO.into()));
        assert_eq!(begin(&old), Err(Errno::ESTALE.into()));
        assert_eq!(begin(&open()), Ok(None));
        assert_eq!(open().volume().moves, 1);
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
