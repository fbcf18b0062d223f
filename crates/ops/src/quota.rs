//! Counts usage in the quotas of inodes. The charges of an operation follow from its effects, so no operation
//! computes them: [`plan`] adds the guards and charges to every plan.

use meta::{Access, Effect, Guard, Inode, QuotaKey, QuotaTag};
use types::{Errno, FileType, Ino, QuotaId};

use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::trash_names::is_in_trash;
use crate::view::{PlanStop, View};

/// The maximum number of directory quotas in which an inode counts.
pub const MAX_NESTED_QUOTAS: usize = 16;

/// Plans an operation ([`Op::plan`]), ensures that the ACLs to which its effects refer stay stored
/// (`acl::keep`), and adds the guards and charges of its quotas.
///
/// # Errors
/// Those of the operation; EIO if an ACL to which an effect refers is missing or corrupt; then EDQUOT if
/// an inode or block that the operation adds does not fit below a hard limit.
pub fn plan<O: Op>(op: &O, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<O::Reply>, PlanStop> {
    let mut planned = op.plan(view, ctx);
    if let Ok(plan) = &mut planned {
        crate::acl::keep(view, &mut plan.effects)?;
        count(view, &mut plan.effects, op.bound_by())?;
    }
    planned
}

/// An inode before and after a transaction: `before` is absent if the transaction creates it, `after` if it
/// removes it.
struct Counted {
    ino: Ino,
    before: Option<Inode>,
    after: Option<Inode>,
    is_resized: bool,
}

/// Adds the charges for effects, and the guards of the limits that apply to the operation (`bound`).
fn count(view: &mut View<'_>, effects: &mut Vec<Effect>, bound: BoundBy) -> Result<(), PlanStop> {
    if !is_any_tagged(view, effects)? {
        return Ok(());
    }
    let mut all: Vec<Counted> = Vec::new();
    for effect in &effects[..] {
        if let Effect::PutInode(inode) = effect {
            all.retain(|counted| counted.ino != inode.ino);
            let (ino, after) = (inode.ino, Some(*inode));
            all.push(Counted { ino, before: None, after, is_resized: false });
            continue;
        }
        let Some(ino) = counted_inode(effect) else { continue };
        let at = match all.iter().position(|counted| counted.ino == ino) {
            Some(at) => at,
            None => {
                let before = view.find_inode(ino)?;
                all.push(Counted { ino, before, after: before, is_resized: false });
                all.len() - 1
            }
        };
        let counted = &mut all[at];
        counted.is_resized |= matches!(effect, Effect::SetSize { .. } | Effect::Extend { .. });
        if let Effect::AddXattrBlocks { delta, .. } = effect {
            counted.make_room_for(*delta);
        }
        match &mut counted.after {
            after if matches!(effect, Effect::DropInode { .. }) => *after = None,
            Some(after) => _ = effect.apply_to(after),
            None => {}
        }
    }
    let is_tagged = |inode: &Option<Inode>| inode.is_some_and(|inode| inode.quota != QuotaTag::NONE);
    let mut charges = Charges::default();
    for counted in all.iter().filter(|counted| is_tagged(&counted.before) || is_tagged(&counted.after)) {
        counted.guard_exactly(view);
        if !counted.is_charged() {
            continue;
        }
        for (inode, sign) in [(&counted.before, -1), (&counted.after, 1)] {
            if let Some(inode) = inode {
                charges.add(view, inode, sign)?;
            }
        }
    }
    charges.apply_charges(view, bound, effects)
}

/// Whether an inode that the effects create, change or remove counts in a quota before or after them. On most
/// volumes none does.
fn is_any_tagged(view: &mut View<'_>, effects: &[Effect]) -> Result<bool, PlanStop> {
    for (at, effect) in effects.iter().enumerate() {
        let tag = match effect {
            Effect::PutInode(inode) => inode.quota,
            Effect::SetAccess { access, .. } => access.quota,
            _ => QuotaTag::NONE,
        };
        if tag != QuotaTag::NONE {
            return Ok(true);
        }
        let Some(ino) = counted_inode(effect) else { continue };
        let is_made = |other: &Effect| matches!(other, Effect::PutInode(made) if made.ino == ino);
        if !effects[..at].iter().any(is_made)
            && view.find_inode(ino)?.is_some_and(|before| before.quota != QuotaTag::NONE)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The existing inode whose usage in quotas an effect may change.
fn counted_inode(effect: &Effect) -> Option<Ino> {
    match effect {
        Effect::DropInode { ino }
        | Effect::SetAccess { ino, .. }
        | Effect::SetSize { ino, .. }
        | Effect::Extend { ino, .. }
        | Effect::AddXattrBlocks { ino, .. } => Some(*ino),
        _ => None,
    }
}

impl Counted {
    /// The cached inode may be older than the known size of the xattr that is removed. It may then have fewer
    /// xattr blocks than `delta` removes. This raises its xattr blocks to that number, so that the
    /// subtraction does not stop at zero.
    fn make_room_for(&mut self, delta: i32) {
        let removed = u16::try_from(delta.min(0).unsigned_abs()).unwrap_or(u16::MAX);
        let missing = self.after.map_or(0, |after| removed.saturating_sub(after.xattr_blocks));
        for inode in [&mut self.before, &mut self.after].into_iter().flatten() {
            inode.xattr_blocks = inode.xattr_blocks.saturating_add(missing);
        }
    }

    /// Whether the inode counts differently after the transaction.
    fn is_charged(&self) -> bool {
        let of = |inode: &Inode| (inode.quota, inode.uid, inode.gid, inode.blocks());
        self.before.as_ref().map(of) != self.after.as_ref().map(of)
    }

    /// Guards the size and the xattr blocks of this inode, if its charges depend on them. The charges also
    /// depend on its owner, group and tag, which the guard of its access revision covers, and on the change
    /// of its xattrs, which [`Guard::Xattr`] covers.
    fn guard_exactly(&self, view: &mut View<'_>) {
        let Some(before) = &self.before else { return };
        let of = |inode: &Inode| (inode.quota, inode.uid, inode.gid);
        let is_moved = self.after.as_ref().map(of) != Some(of(before));
        let ino = self.ino;
        if before.kind == FileType::Regular && (is_moved || self.is_resized) {
            view.guard(Guard::Size { ino, size: before.size });
        }
        if is_moved {
            let blocks = before.xattr_blocks;
            view.guard(Guard::XattrBlocks { ino, least: blocks, most: blocks });
        }
    }
}

/// The charges of a transaction to quotas. They are few, so a linear search finds them.
#[derive(Default)]
struct Charges(Vec<Charge>);

struct Charge {
    key: QuotaKey,
    /// The next quota of the chain; `None` for a user, a group and the trash.
    outer: Option<QuotaId>,
    inodes: i64,
    blocks: i64,
}

impl Charges {
    /// Adds the usage of the inode, `sign` times.
    fn add(&mut self, view: &mut View<'_>, inode: &Inode, sign: i64) -> Result<(), PlanStop> {
        let blocks = sign * i64::try_from(inode.blocks()).unwrap_or(i64::MAX);
        if is_in_trash(inode) {
            // This quota has no limits and no outer quota, and always exists. So nothing is read or guarded,
            // and removals do not conflict with each other because of it.
            self.add_to(QuotaKey::Directory(QuotaId::TRASH), None, sign, blocks);
        } else {
            self.add_to_chain(view, inode, sign, blocks)?;
        }
        if inode.quota.owners() {
            self.add_to(QuotaKey::User(inode.uid), None, sign, blocks);
            self.add_to(QuotaKey::Group(inode.gid), None, sign, blocks);
        }
        Ok(())
    }

    fn add_to_chain(
        &mut self,
        view: &mut View<'_>,
        inode: &Inode,
        sign: i64,
        blocks: i64,
    ) -> Result<(), PlanStop> {
        for (id, outer) in chain(view, inode.quota.directory())? {
            self.add_to(QuotaKey::Directory(id), Some(outer), sign, blocks);
        }
        Ok(())
    }

    fn add_to(&mut self, key: QuotaKey, outer: Option<QuotaId>, inodes: i64, blocks: i64) {
        match self.0.iter_mut().find(|charge| charge.key == key) {
            Some(charge) => {
                charge.inodes += inodes;
                charge.blocks = charge.blocks.saturating_add(blocks);
            }
            None => self.0.push(Charge { key, outer, inodes, blocks }),
        }
    }

    /// Checks the limits, and adds the charges to the effects.
    fn apply_charges(
        self,
        view: &mut View<'_>,
        bound: BoundBy,
        effects: &mut Vec<Effect>,
    ) -> Result<(), PlanStop> {
        for Charge { key, outer, inodes, blocks } in self.0 {
            if (inodes, blocks) == (0, 0) {
                continue;
            }
            let more = |delta: i64| delta.max(0).unsigned_abs();
            let is_bound = match bound {
                _ if key == QuotaKey::Directory(QuotaId::TRASH) => false,
                BoundBy::AllQuotas => true,
                BoundBy::DirectoryQuotas => outer.is_some(),
                BoundBy::NoQuota => false,
            };
            if !is_bound {
                view.guard_chain(key, outer);
            } else if !view.fits_quota(key, outer, more(inodes), more(blocks)) {
                return Err(Errno::EDQUOT.into());
            }
            effects.push(Effect::Charge { key, inodes, blocks });
        }
        Ok(())
    }
}

/// The tag of an inode that gets a name in the directory. An inode that already counts in the quotas of its
/// owner and group continues to count there.
pub(crate) fn tag_in(dir: &Inode, inode: &Inode) -> QuotaTag {
    QuotaTag::new(dir.quota.directory(), dir.quota.owners() || inode.quota.owners())
}

/// Gives an inode that moves to another directory the tag for that directory, so that its usage moves too.
/// But a directory keeps its tag, because otherwise the tags of everything below it would have to change. So
/// a directory can be moved only to a directory with the same tag, or, if it is the directory of a quota, to
/// one in the outer quota. An empty directory can also be moved into the trash and out of it.
///
/// # Errors
/// EXDEV for a directory that would have to change its tag, and for a file with several names. XFS returns
/// the same error for project quotas (`xfs_rename`).
pub(crate) fn move_between(
    view: &mut View<'_>,
    inode: &Inode,
    [from, to]: [&Inode; 2],
    effects: &mut Vec<Effect>,
) -> Result<(), PlanStop> {
    let (ino, quota) = (inode.ino, tag_in(to, inode));
    if quota == inode.quota {
        return Ok(());
    }
    if inode.kind.is_dir() {
        let id = inode.quota.directory();
        let rule = if id == QuotaId(0) || id == QuotaId::TRASH { None } else { view.directory_quota(id)? };
        let own = rule.filter(|rule| rule.root == ino);
        let outer = own.filter(|rule| rule.outer == quota.directory()).map(|rule| rule.outer);
        view.guard_chain(QuotaKey::Directory(id), outer);
        let is_removed_or_restored = [from, to].into_iter().any(is_in_trash);
        return match outer {
            Some(_) if quota.owners() == inode.quota.owners() => Ok(()),
            None if own.is_none() && is_removed_or_restored && view.is_empty(ino) => {
                effects.push(Effect::SetAccess { ino, access: Access { quota, ..Access::from(inode) } });
                Ok(())
            }
            _ => Err(Errno::EXDEV.into()),
        };
    }
    if from.quota != to.quota && view.links(ino)? > 1 {
        return Err(Errno::EXDEV.into());
    }
    effects.push(Effect::SetAccess { ino, access: Access { quota, ..Access::from(inode) } });
    Ok(())
}

/// The directory quotas from this one outwards, each with the next one. An inode that refers to a quota which
/// does not exist counts in no directory quota, until `limen quota check --repair` creates that quota without
/// limits.
///
/// # Errors
/// EIO if the chain has more than [`MAX_NESTED_QUOTAS`] quotas: it is then a cycle, which only damage can
/// cause.
pub(crate) fn chain(view: &mut View<'_>, from: QuotaId) -> Result<Vec<(QuotaId, QuotaId)>, PlanStop> {
    let mut chain = Vec::new();
    let mut at = from;
    while at != QuotaId(0)
        && let Some(rule) = view.directory_quota(at)?
    {
        if chain.len() == MAX_NESTED_QUOTAS {
            return Err(Errno::EIO.into());
        }
        chain.push((at, rule.outer));
        at = rule.outer;
    }
    Ok(chain)
}
