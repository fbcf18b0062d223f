//! Access times: reads are noted in memory and reach the records in batches, so that no read waits for a commit of its own.
//!
//! The kernel keeps no access time of a FUSE inode (`S_NOATIME`): it asks again after each READ, READDIR and READLINK
//! (`fuse_invalidate_atime`), and what is read from its page cache it tells nobody. So where a read is to be seen, whoever
//! opens has to be denied what the kernel has in memory: see [`Vfs::is_access_due`].
//!
//! Lock order: `order` before an open file's data, and both before `noted`.

use host::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use meta::ops::{Accessed, AtimeMode};
use types::{Errno, Ino, Time};

use crate::attr::Attr;
use crate::vfs::Vfs;

/// As many inodes are noted before who reads the next one writes them down.
const MAX_NOTED: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Accesses {
    mode: AtimeMode,
    /// Held while a batch is on its way to the records, and while an atime is set.
    order: Mutex<()>,
    /// When inodes were read last, as far as the records do not say so.
    noted: Mutex<HashMap<Ino, Time>>,
}

impl Accesses {
    pub(crate) fn new(mode: AtimeMode) -> Self {
        Accesses { mode, ..Accesses::default() }
    }

    /// Puts what is noted in the place of what the records say.
    pub(crate) fn overlay(&self, attr: Attr) -> Attr {
        if self.mode == AtimeMode::Never {
            return attr;
        }
        Attr { atime: self.noted().get(&attr.ino).copied().unwrap_or(attr.atime), ..attr }
    }

    /// Keeps batches from being written while an atime is set to what no read must overtake.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, ino: Ino) {
        self.noted().remove(&ino);
    }

    fn noted(&self) -> MutexGuard<'_, HashMap<Ino, Time>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vfs {
    pub fn atime_mode(&self) -> AtimeMode {
        self.accesses.mode
    }

    /// An inode was read: its contents, its names, its target.
    pub fn accessed(&self, ino: Ino) {
        if !self.is_access_due(ino) {
            return;
        }
        let mut noted = self.accesses.noted();
        noted.insert(ino, Time::now());
        let full = noted.len() >= MAX_NOTED;
        drop(noted);
        if full && let Err(errno) = self.write_accesses() {
            tracing::warn!(%errno, "access times could not be written down and are given up");
            self.accesses.noted().clear();
        }
    }

    /// Whether a read of the inode would move its atime, so that it must not be answered by what the kernel holds.
    pub fn is_access_due(&self, ino: Ino) -> bool {
        match self.accesses.mode {
            AtimeMode::Never => false,
            AtimeMode::Always => true,
            mode => self
                .getattr(ino)
                .is_ok_and(|attr| mode.is_due(attr.atime, attr.mtime, attr.ctime, Time::now())),
        }
    }

    /// Writes down what was noted, in one transaction.
    ///
    /// # Errors
    /// Those of the database; what was noted stays.
    pub(crate) fn write_accesses(&self) -> Result<(), Errno> {
        let _order = self.accesses.hold();
        let batch: Vec<(Ino, Time)> = self.accesses.noted().iter().map(|(&ino, &time)| (ino, time)).collect();
        if batch.is_empty() {
            return Ok(());
        }
        self.change(&Accessed(batch.clone()))?;
        // Until here they are seen in both places rather than in neither.
        let mut noted = self.accesses.noted();
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
    fn a_commit_is_for_a_thousand_inodes_and_not_for_each_read() {
        let (vfs, engine) = volume(AtimeMode::Always);
        let inos: Vec<Ino> = (0..MAX_NOTED).map(|n| make(&vfs, &n.to_string())).collect();
        let before = engine.counts();
        for _ in 0..10 {
            inos[1..].iter().for_each(|&ino| vfs.accessed(ino));
        }
        assert_eq!((engine.counts() - before).round_trips(), 0);
        vfs.accessed(inos[0]);
        assert_eq!((engine.counts() - before).round_trips(), 1, "as many as are held in memory");
        assert!(vfs.accesses.noted().is_empty());
        let written = vfs.getattr(inos[0]).unwrap();
        assert!(written.atime > written.mtime && written.ctime == written.mtime);
    }

    #[test]
    fn what_was_read_before_never_overtakes_an_atime_that_is_set() {
        let (vfs, _) = volume(AtimeMode::Relative);
        let ino = make(&vfs, "f");
        vfs.accessed(ino);
        let noted = vfs.getattr(ino).unwrap().atime;
        assert!(noted > vfs.getattr(ino).unwrap().mtime);
        vfs.accessed(ino);
        assert_eq!(vfs.getattr(ino).unwrap().atime, noted, "once is enough until the file changes");
        let past = Time::new(5, 5);
        let set =
            vfs.setattr(&root(), ino, AttrChange { atime: Some(past), ..AttrChange::default() }).unwrap();
        assert_eq!(set.atime, past);
        vfs.write_accesses().unwrap();
        assert_eq!(vfs.getattr(ino).unwrap().atime, past);
        vfs.accessed(ino);
        vfs.write_accesses().unwrap();
        assert!(vfs.getattr(ino).unwrap().atime > set.ctime, "older than the change that set it");
    }
}
