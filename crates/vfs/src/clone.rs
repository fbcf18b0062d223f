//! Copies by reference on a mounted volume. The end of the session stops them and waits for them.

use client::{CloneError, CloneFailure, CloneProgress, CloneRequest, Failure};
use meta::Inode;
use types::{Errno, Ino, Name};

use crate::vfs::Vfs;

impl Vfs {
    /// Copies a file or tree by reference, including the data that programs have written on this mount until
    /// now. No access is checked, so the caller must be the superuser or the user that runs the mount.
    ///
    /// # Errors
    /// EPERM if this mount squashes callers; those of a flush; those of [`client::Meta::clone_tree`].
    pub fn clone_tree(
        &self,
        request: &CloneRequest,
        progress: &CloneProgress,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Inode, CloneFailure> {
        let failed = |errno: Errno| CloneFailure {
            error: CloneError::Failed(Failure::Operation(errno)),
            is_removed: true,
        };
        if self.access.is_squashing() {
            return Err(failed(Errno::EPERM));
        }
        let _running = host::read(&self.lifecycle.tools);
        let stop = || stop() || self.base.stop.is_set();
        self.base.flush_all().and(self.base.pending_atimes.write()).map_err(failed)?;
        let cloned = self.base.meta.clone_tree(request, progress, &stop, &|| self.base.stop.is_set());
        self.base.commits.note_change();
        if cloned.is_ok() {
            self.caches.entry_added(request.parent, &request.name);
            // Programs see the copy, but it may not be on disk yet. It is complete even if this sync fails,
            // and the background thread tries again.
            if let Err(errno) = self.base.commits.make_durable_if_dirty() {
                tracing::warn!(%errno, "cannot sync after a copy; retrying");
            }
        }
        cloned
    }

    /// Makes the kernel look up a name again after this mount has added the name without a request of the
    /// kernel.
    pub fn expire_entry(&self, parent: Ino, name: &Name) {
        self.caches.entry_added(parent, name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use meta::{Record, Scan};
    use types::SessionId;

    use super::*;
    use crate::fixture::{NO_WAIT, Shared, make, root};

    fn request(source: Ino) -> CloneRequest {
        CloneRequest { source, parent: Ino::ROOT, name: Name::new(b"copy").unwrap(), threads: 1 }
    }

    fn orphans(vfs: &Vfs) -> usize {
        let scan = Scan::Orphans { after: (SessionId(0), Ino(0)), limit: 10 };
        vfs.meta().scan(&scan).unwrap().snapshot.records.len()
    }

    #[test]
    fn a_copy_contains_what_programs_wrote_before_it() {
        let shared = Shared::new();
        let vfs = shared.mount(NO_WAIT);
        let ino = make(&vfs, "f");
        vfs.files.write(ino, 0, b"not flushed").unwrap();
        let copy = vfs.clone_tree(&request(ino), &CloneProgress::default(), &|| false).unwrap();
        let found = vfs.names.lookup(&root(), Ino::ROOT, b"copy").unwrap().unwrap();
        let inode = vfs.meta().run(&ops::GetInode(found.ino), &crate::caller::BY_KERNEL).unwrap();
        assert_eq!((found.ino, inode.size), (copy.ino, 11));
    }

    /// The end of a session stops the copies in progress and waits for them.
    #[test]
    fn a_copy_ends_with_the_session_and_is_removed() {
        let shared = Shared::new();
        let vfs = shared.mount(NO_WAIT);
        make(&vfs, "f");
        let calls = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let clone = scope.spawn(|| {
                let stop = || {
                    calls.fetch_add(1, Ordering::Relaxed);
                    while !vfs.base.stop.is_set() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    false
                };
                vfs.clone_tree(&request(Ino::ROOT), &CloneProgress::default(), &stop)
            });
            while calls.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(orphans(&vfs), 1);
            vfs.lifecycle.end().unwrap();
            let failure = clone.join().unwrap().unwrap_err();
            assert!(matches!(failure, CloneFailure { error: CloneError::Interrupted, is_removed: true }));
        });
        assert_eq!(orphans(&vfs), 0);
    }

    /// The start of a session does not wait for the removal of an unfinished copy.
    #[test]
    fn an_unfinished_copy_is_removed_in_the_background() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        make(&old, "f");
        let source = ops::CloneSource::new(
            &old.meta().run(&ops::GetInode(Ino::ROOT), &crate::caller::BY_KERNEL).unwrap(),
        );
        let ino = Ino(old.meta().lease(meta::Counter::Ino, 2).unwrap());
        let begin = ops::BeginClone {
            source: source.clone(),
            ino,
            parent: Ino::ROOT,
            name: Name::new(b"copy").unwrap(),
            max_chunks: 1,
        };
        let (_, session) = old.commits.change(&begin).unwrap();
        let entry = ops::CloneEntry {
            source,
            parent: ino,
            name: Name::new(b"sub").unwrap(),
            ino: Ino(ino.0 + 1),
            is_linked: false,
        };
        old.commits
            .change(&ops::CloneEntries { session, root: ino, entries: &[entry], max_chunks: 1 })
            .unwrap();
        let record = shared.session(session).unwrap();
        assert!(new.meta().remove_session(record.id, record.heartbeat).unwrap());
        new.lifecycle.cleanup.clean_leftovers(false).unwrap();
        assert_eq!(orphans(&new), 1);
        let later = shared.mount(NO_WAIT);
        later.lifecycle.start_threads().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        new.lifecycle.start_threads().unwrap();
        while orphans(&new) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(orphans(&new), 0);
        let left = new.meta().scan(&Scan::Inodes { after: Ino(0), limit: 100 }).unwrap().snapshot.records;
        let left = left.iter().filter(|record| matches!(record, Record::Inode(_, Some(_)))).count();
        assert_eq!(left, 2, "the root and the file");
        for vfs in [new, later] {
            vfs.lifecycle.end().unwrap();
        }
    }
}
