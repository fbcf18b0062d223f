//! Sets and removes quotas while others use the volume. A walk over the tree adds the existing inodes to a
//! new quota, or takes the inodes out of a quota that is removed. `ops/src/quota_rules.rs` explains why one
//! walk meets all of them, and why a walk can begin anew after a crash.

use meta::{Quota, QuotaKey, QuotaRule, QuotaState, Record, Scan, ScanInclude};
use ops::{
    Authority, BeginQuota, ChangeQuota, DropQuota, GetInode, GetQuotas, QuotaLimits, Retag, RetagAt,
    Retagged, SetOwnerQuotas, TagChange,
};
use types::{Errno, Ino, Name, QuotaId};

use crate::driver::Meta;
use crate::failure::Failure;

/// Why a quota was not set or removed.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// An outer quota must be set before the quotas inside it, and removed after them, because a walk does
    /// not change the tags of inodes that belong to a quota inside.
    #[error("directory {dir} below it has a quota of its own")]
    Inside { dir: Ino },
    #[error("the directory has no quota")]
    NoQuota,
    #[error("the quota is being removed")]
    Removing,
    /// While the walk of a quota is not done, some inodes below its directory count in it and some do not. A
    /// quota that begins below that directory would miss some of them.
    #[error("the quota of directory {dir} around it is incomplete")]
    Unfinished { dir: Ino },
    #[error("the walk was interrupted")]
    Interrupted,
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A change of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// Sets limits of a directory, as [`Meta::set_directory_quota`] does.
    SetDirectory { dir: Ino, limits: QuotaLimits },
    /// Sets limits of a user or group, as [`Meta::set_owner_quota`] does.
    SetOwner { key: QuotaKey, limits: QuotaLimits },
    /// Removes the quota of a directory, as [`Meta::remove_directory_quota`] does.
    RemoveDirectory(QuotaId),
}

/// Called after each step of a walk. If it returns `false`, the walk ends.
type Progress<'a> = &'a mut dyn FnMut(&Retagging) -> bool;

const BY_TOOL: Authority<'static> = Authority::Kernel { revisions: None };

/// How many entries one commit changes: few, so that the commit seldom conflicts with the users of the
/// directory.
const PAGE: usize = 16;

/// The greatest depth of a directory. A longer path is a cycle, which only damage can cause.
const MAX_DEPTH: u32 = 1 << 20;

/// How many inodes or quotas are read at once.
const ROWS: usize = 256;

/// The progress of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retagging {
    /// Inodes that were met.
    pub seen: u64,
    /// Tags that were changed.
    pub changed: u64,
    /// Directories below the root of the walk that belong to other quotas.
    pub foreign: Vec<Ino>,
}

/// A directory in progress: its own tag and those of its entries up to `after` have been changed.
struct Frame {
    dir: Ino,
    after: Option<Name>,
    has_more: bool,
    /// Subdirectories that are still to be walked.
    below: Vec<Ino>,
}

impl Meta {
    /// All quotas, in the order of their keys.
    ///
    /// # Errors
    /// Those of the database.
    pub fn quotas(&self) -> Result<Vec<(QuotaKey, Quota)>, Failure> {
        let mut quotas: Vec<(QuotaKey, Quota)> = Vec::new();
        let scan = Scan::Quotas { after: None, limit: ROWS };
        for page in scan.pages(|scan| self.scan(scan)) {
            quotas.extend(page?.iter().filter_map(|record| match record {
                Record::Quota(key, Some(quota)) => Some((*key, *quota)),
                _ => None,
            }));
        }
        Ok(quotas)
    }

    /// Changes a quota. Returns the key of the quota.
    ///
    /// # Errors
    /// Those of the function that [`QuotaChange`] names.
    pub fn change_quota(&self, change: QuotaChange, progress: Progress<'_>) -> Result<QuotaKey, QuotaError> {
        match change {
            QuotaChange::SetDirectory { dir, limits } => {
                self.set_directory_quota(dir, limits, progress).map(QuotaKey::Directory)
            }
            QuotaChange::SetOwner { key, limits } => {
                self.set_owner_quota(key, limits, progress).map(|()| key)
            }
            QuotaChange::RemoveDirectory(id) => {
                self.remove_directory_quota(id, progress).map(|()| QuotaKey::Directory(id))
            }
        }
    }

    /// Sets the limits of a directory's quota, which are in force at once. If the directory has no quota,
    /// this creates one, and a walk counts the inodes below the directory. After an interrupted walk, another
    /// call completes it.
    ///
    /// # Errors
    /// [`QuotaError`]; those of [`BeginQuota`] except EAGAIN.
    pub fn set_directory_quota(
        &self,
        dir: Ino,
        limits: QuotaLimits,
        progress: Progress<'_>,
    ) -> Result<QuotaId, QuotaError> {
        let (id, quota) = loop {
            let (next, _) = self.run(&GetQuotas, &BY_TOOL)?;
            let quotas = self.quotas()?;
            if let Some((id, quota)) = quota_at(&quotas, dir) {
                if quota.rule.state == QuotaState::Removing {
                    return Err(QuotaError::Removing);
                }
                let change = ChangeQuota { key: QuotaKey::Directory(id), limits, state: None };
                match self.run(&change, &BY_TOOL) {
                    // Another tool has just removed the quota.
                    Err(Failure::Operation(Errno::ENOENT)) => continue,
                    changed => break (id, changed?),
                }
            }
            for QuotaRule { root, state, .. } in quotas.iter().map(|(_, quota)| quota.rule) {
                if ![Ino(0), Ino::TRASH].contains(&root) && self.is_below(root, dir)? {
                    return Err(QuotaError::Inside { dir: root });
                }
                if state != QuotaState::Settled && self.is_below(dir, root)? {
                    return Err(QuotaError::Unfinished { dir: root });
                }
            }
            match self.run(&BeginQuota { dir, next, limits }, &BY_TOOL) {
                // Another tool changed a quota meanwhile: look again.
                Err(Failure::Operation(Errno::EAGAIN)) => {}
                Err(failure) => return Err(failure.into()),
                Ok(_) => {}
            }
        };
        if quota.rule.state == QuotaState::Removing {
            return Err(QuotaError::Removing);
        }
        if quota.rule.state == QuotaState::Building {
            let change = TagChange::Directory { from: quota.rule.outer, to: id };
            let done = self
                .walk(dir, change, progress)
                .and_then(|()| Ok(self.change_state(id, QuotaState::Building, QuotaState::Settled)?));
            match done {
                // Another tool has completed the walk, or removes the quota.
                Err(QuotaError::Failed(Failure::Operation(Errno::EBUSY))) => {
                    if self.directory_quota(id)?.rule.state != QuotaState::Settled {
                        return Err(QuotaError::Removing);
                    }
                }
                done => done?,
            }
        }
        Ok(id)
    }

    /// Removes a directory quota: a walk takes all inodes out of it, which then count only in the quota
    /// around it. After an interrupted walk, another call completes it.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub fn remove_directory_quota(&self, id: QuotaId, progress: Progress<'_>) -> Result<(), QuotaError> {
        // If there are quotas inside, this usually finds them before anything is changed.
        self.require_none_inside(id)?;
        let rule = loop {
            let rule = self.directory_quota(id)?.rule;
            match self.change_state(id, rule.state, QuotaState::Removing) {
                // Another tool has changed the state.
                Err(Failure::Operation(Errno::EBUSY)) => {}
                changed => break changed.map(|()| rule)?,
            }
        };
        // From here on no quota can be created inside.
        if let Err(inside) = self.require_none_inside(id) {
            // Another tool may have taken some inodes out of this quota meanwhile, so the quota may be
            // incomplete. A walk must count its inodes again.
            if rule.state != QuotaState::Removing {
                self.change_state(id, QuotaState::Removing, QuotaState::Building)?;
            }
            return Err(inside);
        }
        let change = TagChange::Directory { from: id, to: rule.outer };
        let done = self.walk(rule.root, change, progress).and_then(|()| {
            // Files without a name, and files whose names are elsewhere, still count in the quota.
            if self.directory_quota(id)?.inodes != 0 {
                self.retag_inodes(change, progress)?;
            }
            Ok(self.run(&DropQuota(id), &BY_TOOL)?)
        });
        if let Err(QuotaError::Failed(Failure::Operation(Errno::EBUSY))) = done {
            // Most likely another tool has completed the removal.
            self.directory_quota(id)?;
        }
        done
    }

    /// Sets the limits of a user or group, which are in force at once. For the first such quota of a volume,
    /// a walk counts the inodes of every user and group.
    ///
    /// # Errors
    /// [`QuotaError`].
    pub fn set_owner_quota(
        &self,
        key: QuotaKey,
        limits: QuotaLimits,
        progress: Progress<'_>,
    ) -> Result<(), QuotaError> {
        // This comes first because it fails on an engine without quotas.
        self.run(&ChangeQuota { key, limits, state: None }, &BY_TOOL)?;
        if self.run(&GetQuotas, &BY_TOOL)?.1 != Some(QuotaState::Settled) {
            self.run(&SetOwnerQuotas(QuotaState::Building), &BY_TOOL)?;
            self.walk(Ino::ROOT, TagChange::Owners, progress)?;
            self.walk(Ino::TRASH, TagChange::Owners, progress)?;
            self.run(&SetOwnerQuotas(QuotaState::Settled), &BY_TOOL)?;
        }
        Ok(())
    }

    fn require_none_inside(&self, id: QuotaId) -> Result<(), QuotaError> {
        let quotas = self.quotas()?;
        let inside = quotas.iter().find(|(_, quota)| quota.rule.outer == id);
        inside.map_or(Ok(()), |(_, inside)| Err(QuotaError::Inside { dir: inside.rule.root }))
    }

    fn directory_quota(&self, id: QuotaId) -> Result<Quota, QuotaError> {
        let quotas = self.quotas()?;
        let found = quotas.iter().find(|(key, _)| *key == QuotaKey::Directory(id));
        found.map(|(_, quota)| *quota).ok_or(QuotaError::NoQuota)
    }

    /// Fails with EBUSY if the quota is not in state `from`.
    fn change_state(&self, id: QuotaId, from: QuotaState, to: QuotaState) -> Result<(), Failure> {
        let (key, limits) = (QuotaKey::Directory(id), QuotaLimits::default());
        self.run(&ChangeQuota { key, limits, state: Some((from, to)) }, &BY_TOOL).map(drop)
    }

    /// Walks a tree; fails if the walk was interrupted or met a quota inside.
    fn walk(&self, root: Ino, change: TagChange, progress: Progress<'_>) -> Result<(), QuotaError> {
        let mut goes_on = true;
        let done = self.retag_tree(root, change, &mut |done| {
            goes_on = progress(done);
            goes_on
        })?;
        match done.foreign.first() {
            _ if !goes_on => Err(QuotaError::Interrupted),
            Some(dir) => Err(QuotaError::Inside { dir: *dir }),
            None => Ok(()),
        }
    }

    /// Whether directory `at` is below `dir`. A directory that no longer exists is not.
    ///
    /// # Errors
    /// Those of the database; ELOOP if the directories are damaged.
    pub fn is_below(&self, mut at: Ino, dir: Ino) -> Result<bool, Failure> {
        for _ in 0..MAX_DEPTH {
            if at == Ino::ROOT {
                return Ok(false);
            }
            at = match self.run(&GetInode(at), &BY_TOOL) {
                Err(Failure::Operation(Errno::ESTALE)) => return Ok(false),
                inode => inode?.parent,
            };
            if at == dir {
                return Ok(true);
            }
        }
        Err(Errno::ELOOP.into())
    }

    /// Changes the tags of a directory and of everything below it. `progress` is called after each page of
    /// entries. Memory is bounded by the depth of the tree and the number of quotas in it.
    ///
    /// # Errors
    /// Those of the database.
    pub fn retag_tree(
        &self,
        root: Ino,
        change: TagChange,
        progress: Progress<'_>,
    ) -> Result<Retagging, Failure> {
        let mut done = Retagging::default();
        let first = self.retag(change, RetagAt::Inode(root), 1, &mut done)?;
        let mut frames: Vec<Frame> = first.directories.into_iter().map(Frame::new).collect();
        while let Some(frame) = frames.last_mut() {
            if let Some(dir) = frame.below.pop() {
                frames.push(Frame::new(dir));
            } else if frame.has_more {
                self.retag_page(frame, change, &mut done)?;
                if !progress(&done) {
                    return Ok(done);
                }
            } else {
                frames.pop();
            }
        }
        Ok(done)
    }

    /// Changes the tags of all inodes of the volume, including those without a name.
    ///
    /// # Errors
    /// Those of the database.
    pub fn retag_inodes(&self, change: TagChange, progress: Progress<'_>) -> Result<Retagging, Failure> {
        let mut done = Retagging::default();
        let scan = Scan::Inodes { after: Ino(0), limit: ROWS };
        for page in scan.pages(|scan| self.scan(scan)) {
            for record in page?.iter() {
                let Record::Inode(ino, Some(inode)) = record else { continue };
                if change.of(inode.quota).is_some_and(|quota| quota != inode.quota) {
                    self.retag(change, RetagAt::Inode(*ino), 1, &mut done)?;
                } else {
                    done.seen += 1;
                }
            }
            if !progress(&done) {
                break;
            }
        }
        Ok(done)
    }

    fn retag_page(&self, frame: &mut Frame, change: TagChange, done: &mut Retagging) -> Result<(), Failure> {
        let (parent, after) = (frame.dir, frame.after.take());
        let page = self.scan(&Scan::Dir { parent, after, limit: PAGE, include: ScanInclude::Nothing })?;
        let entries: Vec<(Name, Ino)> = page
            .snapshot
            .records
            .into_iter()
            .filter_map(|record| match record {
                Record::Dirent(_, name, Some(dirent)) => Some((name, dirent.ino)),
                _ => None,
            })
            .collect();
        frame.after = entries.last().map(|(name, _)| name.clone());
        frame.has_more = page.more && frame.after.is_some();
        if entries.is_empty() {
            return Ok(());
        }
        let count = entries.len() as u64;
        let at = RetagAt::Entries { dir: parent, entries: entries.clone() };
        match self.retag(change, at, count, done) {
            Ok(retagged) => frame.below.extend(retagged.directories),
            // Most likely others change these inodes all the time. A commit that changes one inode meets
            // fewer conflicts.
            Err(Failure::Engine(error)) if error.is_refusal() => {
                for entry in entries {
                    let at = RetagAt::Entries { dir: parent, entries: vec![entry] };
                    frame.below.extend(self.retag(change, at, 1, done)?.directories);
                }
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn retag(
        &self,
        change: TagChange,
        at: RetagAt,
        seen: u64,
        done: &mut Retagging,
    ) -> Result<Retagged, Failure> {
        let mut retagged = self.run(&Retag { change, at }, &BY_TOOL)?;
        done.seen += seen;
        done.changed += retagged.changed;
        done.foreign.append(&mut retagged.foreign);
        Ok(retagged)
    }
}

/// The quota of this directory.
pub(crate) fn quota_at(quotas: &[(QuotaKey, Quota)], dir: Ino) -> Option<(QuotaId, Quota)> {
    quotas.iter().find_map(|(key, quota)| match key {
        QuotaKey::Directory(id) if quota.rule.root == dir => Some((*id, *quota)),
        _ => None,
    })
}

impl Frame {
    fn new(dir: Ino) -> Frame {
        Frame { dir, after: None, has_more: true, below: Vec::new() }
    }
}
