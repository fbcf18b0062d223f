//! The directories that exist and may be taken, because this client has created files in them lately; see
//! `taking.rs`.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use host::{HashMap, Instant};
use meta::Invalidation;
use types::Ino;

/// The maximum number of directories whose creations are counted.
const MAX_CANDIDATES: usize = 1024;
/// How long to wait before a directory that could not be taken is tried again. This time doubles with each
/// failure, up to [`LONGEST_RETRY`].
const RETRY_AFTER: Duration = Duration::from_secs(60);
const LONGEST_RETRY: Duration = Duration::from_secs(4 * 3600);

/// When a directory that exists is taken.
#[derive(Clone, Copy, Debug)]
pub struct TakePolicy {
    /// It is taken after this many files were created in it.
    pub creations: u32,
    /// They must be created within this time.
    pub within: Duration,
    /// After another client has recalled a directory, no directory is taken for this many seconds. The pause
    /// is longer if directories that were taken are recalled again and again.
    pub pauses: u32,
}

impl Default for TakePolicy {
    fn default() -> Self {
        TakePolicy { creations: 8, within: Duration::from_secs(2), pauses: 10 }
    }
}

/// The directories in which this client has created files lately.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// If this is not set, no directory is taken.
    pub(crate) policy: OnceLock<TakePolicy>,
    directories: Mutex<HashMap<Ino, Candidate>>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    creations: u32,
    /// When the count began.
    since: Instant,
    not_before: Option<Instant>,
    /// The last pause before another attempt.
    pause: Duration,
}

/// The directory that is being taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taking {
    pub(crate) dir: Ino,
    /// Whether it must be given back at once.
    pub(crate) is_recalled: bool,
}

impl Candidates {
    pub(crate) fn policy(&self) -> TakePolicy {
        self.policy.get().copied().unwrap_or_default()
    }

    /// Counts a file that this client has created. Returns whether the directory is to be taken.
    pub(crate) fn count(&self, dir: Ino, now: Instant) -> bool {
        let TakePolicy { creations, within, .. } = self.policy();
        let mut directories = host::lock(&self.directories);
        if !directories.contains_key(&dir) && !make_room(&mut directories, within, now) {
            return false;
        }
        let new = Candidate { creations: 0, since: now, not_before: None, pause: Duration::ZERO };
        let candidate = directories.entry(dir).or_insert(new);
        if candidate.not_before.is_some_and(|until| now < until) {
            return false;
        }
        if now.saturating_duration_since(candidate.since) > within {
            (candidate.creations, candidate.since) = (0, now);
        }
        candidate.creations += 1;
        let is_wanted = candidate.creations >= creations;
        if is_wanted {
            candidate.creations = 0;
        }
        is_wanted
    }

    /// Restarts the count of each directory that another client has changed.
    pub(crate) fn disturb(&self, parts: &[Invalidation]) {
        let mut directories = host::lock(&self.directories);
        if directories.is_empty() {
            return;
        }
        for part in parts {
            let (Invalidation::Inode(ino)
            | Invalidation::Dirent(ino, _)
            | Invalidation::Data(ino)
            | Invalidation::Names(ino, _)
            | Invalidation::Xattrs(ino)
            | Invalidation::Locks(ino)) = part;
            if let Some(candidate) = directories.get_mut(ino) {
                (candidate.creations, candidate.since) = (0, Instant::now());
            }
        }
    }

    /// Makes [`Candidates::count`] ignore a directory that could not be taken, for a while.
    pub(crate) fn put_off(&self, dir: Ino, now: Instant) {
        if let Some(candidate) = host::lock(&self.directories).get_mut(&dir) {
            candidate.pause = (candidate.pause * 2).clamp(RETRY_AFTER, LONGEST_RETRY);
            candidate.not_before = Some(now + candidate.pause);
        }
    }

    /// Notes that a directory was taken.
    pub(crate) fn taken(&self, dir: Ino) {
        if let Some(candidate) = host::lock(&self.directories).get_mut(&dir) {
            candidate.pause = Duration::ZERO;
        }
    }
}

/// Makes room for one more directory. Returns false if that is not possible.
fn make_room(directories: &mut HashMap<Ino, Candidate>, within: Duration, now: Instant) -> bool {
    if directories.len() >= MAX_CANDIDATES {
        directories.retain(|_, candidate| {
            now.saturating_duration_since(candidate.since) <= within
                || candidate.not_before.is_some_and(|until| now < until)
        });
    }
    directories.len() < MAX_CANDIDATES
}

#[cfg(test)]
mod tests {
    use types::Name;

    use super::*;

    const DIR: Ino = Ino(7);

    #[test]
    fn a_directory_is_taken_after_enough_creations_in_a_short_time() {
        let candidates = Candidates::default();
        let TakePolicy { creations, within, .. } = candidates.policy();
        let now = Instant::now();
        let count = |times: u32, at| (0..times).filter(|_| candidates.count(DIR, at)).count();
        assert_eq!(count(creations - 1, now), 0);
        let later = now + within + Duration::from_millis(1);
        assert_eq!(count(creations - 1, later), 0, "the first ones were too long ago");
        assert_eq!(count(1, later), 1);
        assert_eq!(count(creations - 1, later), 0, "the count begins again");
        candidates.put_off(DIR, later);
        assert_eq!(count(creations, later), 0);
        assert_eq!(count(creations, later + RETRY_AFTER), 1);
        candidates.put_off(DIR, later + RETRY_AFTER);
        assert_eq!(count(creations, later + RETRY_AFTER * 2), 0, "the second time it takes longer");
        assert_eq!(count(creations, later + RETRY_AFTER * 3), 1);
    }

    #[test]
    fn a_change_by_another_client_makes_the_count_begin_again() {
        let candidates = Candidates::default();
        let creations = candidates.policy().creations;
        let name = Name::new(b"f").unwrap();
        for part in [Invalidation::Dirent(DIR, name), Invalidation::Locks(DIR), Invalidation::Inode(DIR)] {
            let count = |times: u32| (0..times).filter(|_| candidates.count(DIR, Instant::now())).count();
            assert_eq!(count(creations - 1), 0);
            candidates.disturb(&[part]);
            assert_eq!(count(creations - 1), 0);
            candidates.disturb(&[Invalidation::Inode(Ino(8))]);
            assert_eq!(count(1), 1);
        }
    }

    #[test]
    fn candidates_are_bounded() {
        let candidates = Candidates::default();
        let now = Instant::now();
        (0..3 * MAX_CANDIDATES as u64).for_each(|ino| _ = candidates.count(Ino(ino), now));
        assert_eq!(host::lock(&candidates.directories).len(), MAX_CANDIDATES);
        let later = now + candidates.policy().within * 2;
        candidates.count(DIR, later);
        candidates.count(Ino(u64::MAX), later);
        assert!(host::lock(&candidates.directories).contains_key(&Ino(u64::MAX)));
    }
}
