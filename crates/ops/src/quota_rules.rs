//! Quotas as an administrator sets them: their rules, and the tags of the inodes that existed before the
//! quota.
//!
//! All changes of rules are serialized by guards on one setting, which holds the next id of a directory
//! quota.
//!
//! A walk gives inodes the tag of a new quota, or takes it away ([`Retag`]): each directory before its
//! entries, and entries only while they are in that directory. An inode that gets a name in a directory with
//! the tag gets the tag at once, and moving a directory without the tag there fails with EXDEV (see
//! [`crate::quota`]). So one walk reaches all inodes, whatever other clients change meanwhile. After a crash
//! another walk can begin again, because it leaves inodes alone that have the tag already.

use meta::{Access, Effect, Inode, Quota, QuotaKey, QuotaRule, QuotaState, QuotaTag, RecordKey};
use types::{Errno, Ino, Name, QuotaId};

use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::quota::{MAX_NESTED_QUOTAS, chain};
use crate::view::{PlanStop, View};

const NEXT: &str = Quota::NEXT_SETTING;
const OWNERS: &str = Quota::OWNERS_SETTING;

/// Limits to set, in inodes and blocks. `None` leaves a limit unchanged; [`QuotaRule::NO_LIMIT`] removes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    pub max_inodes: Option<u64>,
    pub max_blocks: Option<u64>,
    pub soft_inodes: Option<u64>,
    pub soft_blocks: Option<u64>,
}

impl QuotaLimits {
    fn apply_to(&self, rule: QuotaRule) -> QuotaRule {
        QuotaRule {
            max_inodes: self.max_inodes.unwrap_or(rule.max_inodes),
            max_blocks: self.max_blocks.unwrap_or(rule.max_blocks),
            soft_inodes: self.soft_inodes.unwrap_or(rule.soft_inodes),
            soft_blocks: self.soft_blocks.unwrap_or(rule.soft_blocks),
            ..rule
        }
    }
}

/// The next id, guarded, and the effect that increments it.
fn next(view: &mut View<'_>) -> Result<(u64, Effect), PlanStop> {
    let next = match view.setting(NEXT)? {
        None => 1,
        Some(number) => number.parse::<u64>().map_err(|_| Errno::EIO)?,
    };
    Ok((next, Effect::PutSetting { name: NEXT, value: (next + 1).to_string() }))
}

/// Reads the next id of a directory quota, and whether inodes count in the quotas of their owners (`None` if
/// not, else the state of the walk).
#[derive(Debug)]
pub struct GetQuotas;

impl Op for GetQuotas {
    type Reply = (u64, Option<QuotaState>);
    const NAME: &'static str = "get quotas";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let owners = match view.setting(OWNERS)?.as_deref() {
            None => None,
            Some("on") => Some(QuotaState::Settled),
            Some(_) => Some(QuotaState::Building),
        };
        Ok(Plan::answer((next(view)?.0, owners)))
    }
}

/// Reads the directory quotas in which an inode counts, from the nearest outwards. The reply is empty if the
/// inode does not exist.
#[derive(Debug)]
pub struct GetQuotasOf(pub Ino);

impl Op for GetQuotasOf {
    type Reply = Vec<Quota>;
    const NAME: &'static str = "get quotas of a directory";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Vec<Quota>>, PlanStop> {
        let Some(inode) = view.find_inode(self.0)? else { return Ok(Plan::answer(Vec::new())) };
        let mut quotas = Vec::new();
        for (id, _) in chain(view, inode.quota.directory())? {
            quotas.extend(view.quota(QuotaKey::Directory(id))?);
        }
        Ok(Plan::answer(quotas))
    }
}

/// Creates the quota of a directory. It counts nothing until a walk has begun. Replies with its id.
///
/// # Errors
/// EAGAIN if a rule was changed since `next` was read (the caller must then check again whether the directory
/// has a quota); ENOENT if the directory does not exist; ENOTDIR if `dir` is not a directory; EPERM if it is
/// in the trash; ELOOP if it is in [`MAX_NESTED_QUOTAS`] quotas; EBUSY if a walk for its present quota is not
/// done.
#[derive(Debug)]
pub struct BeginQuota {
    pub dir: Ino,
    pub next: u64,
    pub limits: QuotaLimits,
}

impl Op for BeginQuota {
    type Reply = QuotaId;
    const NAME: &'static str = "begin quota";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<QuotaId>, PlanStop> {
        let (id, increment) = next(view)?;
        if id != self.next {
            return Err(Errno::EAGAIN.into());
        }
        let dir = view.dir(self.dir)?;
        let outer = dir.quota.directory();
        if outer == QuotaId::TRASH {
            return Err(Errno::EPERM.into());
        }
        if chain(view, outer)?.len() >= MAX_NESTED_QUOTAS {
            return Err(Errno::ELOOP.into());
        }
        if outer != QuotaId(0)
            && view.quota(QuotaKey::Directory(outer))?.is_some_and(|q| q.rule.state != QuotaState::Settled)
        {
            return Err(Errno::EBUSY.into());
        }
        let rule = QuotaRule { outer, root: self.dir, state: QuotaState::Building, ..QuotaRule::default() };
        let put =
            Effect::PutQuota { key: QuotaKey::Directory(QuotaId(id)), rule: self.limits.apply_to(rule) };
        Ok(Plan { reply: QuotaId(id), effects: vec![increment, put] })
    }
}

/// Changes the rule of a quota: its limits and, of a directory quota, the state of the walk. A user or group
/// gets a quota if it has none.
///
/// # Errors
/// EPERM for the quota of the trash; ENOENT if the directory quota does not exist; EBUSY if its state is not
/// the expected one.
#[derive(Debug)]
pub struct ChangeQuota {
    pub key: QuotaKey,
    pub limits: QuotaLimits,
    /// The expected state of the walk, and the state to set.
    pub state: Option<(QuotaState, QuotaState)>,
}

impl Op for ChangeQuota {
    /// The usage of the quota, and the new rule.
    type Reply = Quota;
    const NAME: &'static str = "change quota";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Quota>, PlanStop> {
        if self.key == QuotaKey::Directory(QuotaId::TRASH) {
            return Err(Errno::EPERM.into());
        }
        let (_, increment) = next(view)?;
        let quota = match (view.quota(self.key)?, self.key) {
            (None, QuotaKey::Directory(_)) => return Err(Errno::ENOENT.into()),
            (quota, _) => quota.unwrap_or_default(),
        };
        let rule = self.limits.apply_to(quota.rule);
        let (from, to) = self.state.unwrap_or((rule.state, rule.state));
        if rule.state != from {
            return Err(Errno::EBUSY.into());
        }
        let rule = QuotaRule { state: to, ..rule };
        let put = Effect::PutQuota { key: self.key, rule };
        Ok(Plan { reply: Quota { rule, ..quota }, effects: vec![increment, put] })
    }
}

/// Removes a directory quota that has no inodes left. No inode can get its tag any more, neither before the
/// commit nor after it: no directory has the tag, and [`Retag`] gives it only while the quota is being built.
///
/// # Errors
/// EBUSY if it has inodes, or is not being removed.
#[derive(Debug)]
pub struct DropQuota(pub QuotaId);

impl Op for DropQuota {
    type Reply = ();
    const NAME: &'static str = "drop quota";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let key = QuotaKey::Directory(self.0);
        let (_, increment) = next(view)?;
        let Some(quota) = view.quota(key)? else { return Ok(Plan::answer(())) };
        if quota.inodes != 0 || quota.rule.state != QuotaState::Removing {
            return Err(Errno::EBUSY.into());
        }
        Ok(Plan { reply: (), effects: vec![increment, Effect::DropQuota { key }] })
    }
}

/// Corrects the counters of quotas, by the difference that a check has found. The difference does not depend
/// on the moment, because each transaction changes inodes and counters by the same amount.
///
/// # Errors
/// EAGAIN if a quota was corrected or a rule was changed since the check read `next`.
#[derive(Debug)]
pub struct CorrectQuotas {
    pub next: Option<String>,
    /// Each quota, and how many inodes and blocks to add.
    pub corrections: Vec<(QuotaKey, i64, i64)>,
}

impl Op for CorrectQuotas {
    /// The value for the next correction by the same check.
    type Reply = String;
    const NAME: &'static str = "correct quotas";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<String>, PlanStop> {
        let (id, increment) = next(view)?;
        if view.setting(NEXT)? != self.next {
            return Err(Errno::EAGAIN.into());
        }
        let charge = |&(key, inodes, blocks): &_| Effect::Charge { key, inodes, blocks };
        let charges = self.corrections.iter().map(charge);
        let effects = [increment].into_iter().chain(charges).collect();
        Ok(Plan { reply: (id + 1).to_string(), effects })
    }
}

/// Sets whether inodes count in the quotas of their owners and groups.
#[derive(Debug)]
pub struct SetOwnerQuotas(pub QuotaState);

impl Op for SetOwnerQuotas {
    type Reply = ();
    const NAME: &'static str = "set owner quotas";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let value = if self.0 == QuotaState::Settled { "on" } else { "building" };
        let is_set = view.setting(OWNERS)?.as_deref() == Some(value);
        let effects =
            if is_set { Vec::new() } else { vec![Effect::PutSetting { name: OWNERS, value: value.into() }] };
        Ok(Plan { reply: (), effects })
    }
}

/// How a walk changes tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChange {
    /// From one directory quota to another; 0 for none.
    Directory { from: QuotaId, to: QuotaId },
    /// Lets inodes count in the quotas of their owners and groups.
    Owners,
}

impl TagChange {
    /// The new tag; `None` if the inode is in another directory quota, which remains.
    pub fn of(self, tag: QuotaTag) -> Option<QuotaTag> {
        match self {
            TagChange::Directory { from, to } if [from, to].contains(&tag.directory()) => {
                Some(QuotaTag::new(to, tag.owners()))
            }
            TagChange::Directory { .. } => None,
            TagChange::Owners => Some(QuotaTag::new(tag.directory(), true)),
        }
    }

    /// Requires that the quota is being built or removed by a walk that makes this change, and guards that.
    fn require_walk(self, view: &mut View<'_>) -> Result<(), PlanStop> {
        let TagChange::Directory { from, to } = self else { return Ok(()) };
        // Reading this setting adds a guard on it, and every change of a rule increments it.
        view.setting(NEXT)?;
        for (id, outer, state) in [(to, from, QuotaState::Building), (from, to, QuotaState::Removing)] {
            let quota = view.quota(QuotaKey::Directory(id))?;
            if quota.is_some_and(|quota| quota.rule.state == state && quota.rule.outer == outer) {
                return Ok(());
            }
        }
        Err(Errno::EBUSY.into())
    }
}

/// The inodes that get other tags.
#[derive(Debug)]
pub enum RetagAt {
    /// This one, wherever its names are.
    Inode(Ino),
    /// Those that are still entries of this directory, whose own tag has been changed.
    Entries { dir: Ino, entries: Vec<(Name, Ino)> },
}

/// Changes the tags of a few inodes, and counts them in their new quotas instead of the old ones. Limits do
/// not matter. An inode that no longer exists or has moved is skipped. So is a damaged directory, whose
/// parent is not the directory that names it.
///
/// # Errors
/// EBUSY unless the quota is being built or removed by this change: another tool has ended the walk.
#[derive(Debug)]
pub struct Retag {
    pub change: TagChange,
    pub at: RetagAt,
}

/// The result of [`Retag`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retagged {
    /// The directories among the inodes that now have the tag.
    pub directories: Vec<Ino>,
    /// The directories in other quotas, whose tags were kept.
    pub foreign: Vec<Ino>,
    /// The number of tags that were changed.
    pub changed: u64,
}

impl Op for Retag {
    type Reply = Retagged;
    const NAME: &'static str = "retag";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Retagged>, PlanStop> {
        self.prefetch(view)?;
        self.change.require_walk(view)?;
        let mut done = Retagged::default();
        let mut effects = Vec::new();
        let mut retag = |inode: &Inode| match self.change.of(inode.quota) {
            None if inode.kind.is_dir() => done.foreign.push(inode.ino),
            // A file with several names may count elsewhere.
            None => {}
            Some(quota) => {
                if inode.kind.is_dir() {
                    done.directories.push(inode.ino);
                }
                if quota != inode.quota {
                    done.changed += 1;
                    let access = Access { quota, ..Access::from(inode) };
                    effects.push(Effect::SetAccess { ino: inode.ino, access });
                }
            }
        };
        match &self.at {
            RetagAt::Inode(ino) => {
                if let Some(inode) = view.find_inode(*ino)? {
                    retag(&inode);
                }
            }
            RetagAt::Entries { dir, entries } => {
                let Some(parent) = view.find_inode(*dir)? else { return Ok(Plan::answer(done)) };
                // The directory was moved to another quota together with its content.
                if self.change.of(parent.quota) != Some(parent.quota) {
                    return Ok(Plan::answer(done));
                }
                for (name, ino) in entries {
                    if view.dirent(*dir, name)?.is_none_or(|dirent| dirent.ino != *ino) {
                        continue;
                    }
                    let Some(inode) = view.find_inode(*ino)? else { continue };
                    // If a walk entered a damaged directory, it could go in a circle.
                    if inode.kind.is_dir()
                        && (ino == dir || inode.parent != *dir && view.parent_of(*ino)? != *dir)
                    {
                        continue;
                    }
                    retag(&inode);
                }
            }
        }
        Ok(Plan { reply: done, effects })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::NoQuota
    }
}

impl Retag {
    /// Reads all records in one request. The rules must not be older than the setting that guards them.
    fn prefetch(&self, view: &mut View<'_>) -> Result<(), PlanStop> {
        let (at, entries) = match &self.at {
            RetagAt::Inode(ino) => (*ino, &[][..]),
            RetagAt::Entries { dir, entries } => (*dir, &entries[..]),
        };
        let entries = entries.iter().map(|(name, _)| RecordKey::Dirent(at, name.clone()));
        let rules = match self.change {
            TagChange::Directory { from, to } => {
                let quotas = [from, to].map(|id| RecordKey::Quota(QuotaKey::Directory(id)));
                quotas.into_iter().chain([RecordKey::Settings]).collect()
            }
            TagChange::Owners => Vec::new(),
        };
        view.prefetch(entries.chain([RecordKey::Inode(at)]).chain(rules))
    }
}
