//! Access times: reads are recorded in memory and committed in batches, so that no read waits for a commit of
//! its own.
//!
//! [`PendingAtimes`] holds the recorded access times, and depends on [`Commits`] only.
//!
//! The kernel does not update the access time of a FUSE inode (`S_NOATIME`). After each READ, READDIR and
//! READLINK, it discards its copy (`fuse_invalidate_atime`). It does not report reads from its page cache. So
//! if the next read must change the atime, an open must not let the kernel keep cached data: see
//! [`PendingAtimes::is_due`].
//!
//! Lock order: `order` before an open file's data, and both before `noted`.

use host::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ops::{AtimeMode, SetAtimes};
use types::{Errno, Ino, Time};

use crate::attr::Attr;
use crate::commits::Commits;

/// The number of recorded inodes at which a read commits all of them.
const MAX_NOTED: usize = 1024;

#[derive(Debug)]
pub(crate) struct PendingAtimes {
    commits: Arc<Commits>,
    mode: AtimeMode,
    /// Held while a batch is committed, and while an atime is set.
    order: Mutex<()>,
    /// The access times that are not committed yet.
    noted: Mutex<HashMap<Ino, Time>>,
}

impl PendingAtimes {
    pub(crate) fn new(mode: AtimeMode, commits: &Arc<Commits>) -> Self {
        PendingAtimes { commits: Arc::clone(commits), mode, order: Mutex::default(), noted: Mutex::default() }
    }

    pub(crate) fn mode(&self) -> AtimeMode {
        self.mode
    }

    /// Whether a read of an inode changes its atime. If so, the kernel must not answer the read from its
    /// cache. `attr` returns the inode's attributes; it is called only if the result depends on them.
    pub(crate) fn is_due(&self, attr: impl FnOnce() -> Result<Attr, Errno>) -> bool {
        match self.mode {
            AtimeMode::Never => false,
            AtimeMode::Always => true,
            mode => attr().is_ok_and(|attr| mode.is_due(attr.atime, attr.mtime, attr.ctime, Time::now())),
        }
    }

    /// Records that an inode was read now.
    pub(crate) fn note(&self, ino: Ino) {
        let mut noted = host::lock(&self.noted);
        noted.insert(ino, Time::now());
        let full = noted.len() >= MAX_NOTED;
        drop(noted);
        if full && let Err(errno) = self.write() {
            tracing::warn!(%errno, "cannot store access times; they are discarded");
            host::lock(&self.noted).clear();
        }
    }

    /// Replaces the stored atime by the recorded one, if there is one.
    pub(crate) fn overlay(&self, attr: Attr) -> Attr {
        if self.mode == AtimeMode::Never {
            return attr;
        }
        Attr { atime: host::lock(&self.noted).get(&attr.ino).copied().unwrap_or(attr.atime), ..attr }
    }

    /// Keeps batches from being committed while the returned guard exists. Hold the guard while an atime is
    /// set, so that the time of an earlier read cannot overwrite it.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        host::lock(&self.order)
    }

    pub(crate) fn forget(&self, ino: Ino) {
        host::lock(&self.noted).remove(&ino);
    }

    /// Commits the recorded access times in one transaction.
    ///
    /// # Errors
    /// Those of the database; the recorded times are kept.
    pub(crate) fn write(&self) -> Result<(), Errno> {
        let _order = self.hold();
        let batch: Vec<(Ino, Time)> =
            host::lock(&self.noted).iter().map(|(&ino, &time)| (ino, time)).collect();
        if batch.is_empty() {
            return Ok(());
        }
        self.commits.change(&SetAtimes(batch.clone()))?;
        // Remove the times only after the commit. In the other order, a getattr between the two would find
        // them in neither place.
        let mut noted = host::lock(&self.noted);
        for (ino, time) in batch {
            if noted.get(&ino) == Some(&time) {
                noted.remove(&ino);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AttrChange;
    use crate::fixture::{make, root, volume};

    #[test]
    fn one_commit_stores_the_access_times_of_many_reads() {
        let (vfs, engine) = volume(AtimeMode::Always);
        let inos: Vec<Ino> = (0..MAX_NOTED).map(|n| make(&vfs, &n.to_string())).collect();
        let before = engine.counts();
        for _ in 0..10 {
            inos[1..].iter().for_each(|&ino| vfs.attributes.note_atime(ino));
        }
        assert_eq!((engine.counts() - before).round_trips(), 0);
        vfs.attributes.note_atime(inos[0]);
        assert_eq!((engine.counts() - before).round_trips(), 1, "one commit when the limit is reached");
        assert!(host::lock(&vfs.base.pending_atimes.noted).is_empty());
        let written = vfs.attributes.getattr(inos[0]).unwrap();
        assert!(written.atime > written.mtime && written.ctime == written.mtime);
    }

    #[test]
    fn earlier_read_never_overwrites_an_atime_that_was_set() {
        let (vfs, _) = volume(AtimeMode::Relative);
        let ino = make(&vfs, "f");
        vfs.attributes.note_atime(ino);
        let noted = vfs.attributes.getattr(ino).unwrap().atime;
        assert!(noted > vfs.attributes.getattr(ino).unwrap().mtime);
        vfs.attributes.note_atime(ino);
        assert_eq!(
            vfs.attributes.getattr(ino).unwrap().atime,
            noted,
            "relatime does not count a second read"
        );
        let past = Time::new(5, 5);
        let set =
            vfs.setattr(&root(), ino, AttrChange { atime: Some(past), ..AttrChange::default() }).unwrap();
        assert_eq!(set.atime, past);
        vfs.base.pending_atimes.write().unwrap();
        assert_eq!(vfs.attributes.getattr(ino).unwrap().atime, past);
        vfs.attributes.note_atime(ino);
        vfs.base.pending_atimes.write().unwrap();
        assert!(
            vfs.attributes.getattr(ino).unwrap().atime > set.ctime,
            "the atime was older than the ctime, so the read counts"
        );
    }
}
