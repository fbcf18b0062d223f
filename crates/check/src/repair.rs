//! Repairs that lose no data.
//!
//! Each repair is an ordinary operation: it reads the records again through a view that guards every lookup,
//! and does nothing if the problem no longer exists.

use client::{Failure, Meta};
use meta::{Access, AclKind, Counter, DIR_BYTES, Effect, Inode, RecordKey};
use ops::{Authority, Ctx, Op, Plan, PlanStop, View, reserve_domains};
use types::{Errno, FileType, Ino, Mode, Name};

use super::Problem;

/// The directory in the root that receives inodes without a name. It is created when needed.
pub const LOST_AND_FOUND: &str = "lost+found";

/// Repairs a problem, and returns whether that was possible. To find the problems that remain, or that the
/// repair causes, check again.
///
/// # Errors
/// Those of the database.
pub fn repair(meta: &Meta, problem: &Problem) -> Result<bool, Failure> {
    match meta.run(&Repair(problem), &Authority::Kernel { revisions: None }) {
        Ok(()) => Ok(true),
        Err(Failure::Operation(_)) => Ok(false),
        Err(failure) => Err(failure),
    }
}

struct Repair<'a>(&'a Problem);

/// The problem no longer exists.
const CHANGED: PlanStop = PlanStop::Failed(Errno::EAGAIN);
/// There is no repair without loss of data.
const UNREPAIRABLE: PlanStop = PlanStop::Failed(Errno::EIO);

impl Op for Repair<'_> {
    type Reply = ();
    const NAME: &'static str = "repair";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let mut effects = Vec::new();
        match self.0 {
            Problem::EntryWithoutInode { dir, name, ino } => {
                require_entry(view, *dir, name, *ino)?;
                if view.find_inode(*ino)?.is_some() {
                    return Err(CHANGED);
                }
                effects.push(Effect::DropDirent { parent: *dir, name: name.clone() });
            }
            Problem::EntryKind { dir, name, ino, .. } => {
                require_entry(view, *dir, name, *ino)?;
                let kind = view.find_inode(*ino)?.ok_or(CHANGED)?.kind;
                effects.push(Effect::PutDirent { parent: *dir, name: name.clone(), ino: *ino, kind });
            }
            Problem::SecondName { dir, name, ino } => {
                require_entry(view, *dir, name, *ino)?;
                effects.push(Effect::DropDirent { parent: *dir, name: name.clone() });
            }
            Problem::Parent { ino, stored, actual } => {
                if view.parent_of(*ino)? != *stored {
                    return Err(CHANGED);
                }
                effects.push(Effect::SetParent { ino: *ino, parent: *actual });
            }
            Problem::Cycle { ino, parent, name } => {
                require_entry(view, *parent, name, *ino)?;
                effects.push(Effect::DropDirent { parent: *parent, name: name.clone() });
                effects.push(Effect::AddLinks { ino: *parent, delta: -1 });
                rescue(view, ctx, *ino, &mut effects)?;
            }
            Problem::Lost { ino, .. } => rescue(view, ctx, *ino, &mut effects)?,
            Problem::Links { ino, stored, actual } => {
                if view.links(*ino)? != *stored {
                    return Err(CHANGED);
                }
                set_links(*ino, *stored, *actual, &mut effects);
            }
            Problem::XattrBlocks { ino, stored, .. } => {
                let inode = view.inode(*ino)?;
                let xattrs = view.xattrs(*ino)?;
                let actual =
                    xattrs.keys().map(|name| i32::from(view.xattr_blocks(&inode, name, 0))).sum::<i32>();
                if inode.xattr_blocks != *stored || !view.xattrs_fit(*ino, *stored) {
                    return Err(CHANGED);
                }
                effects.push(Effect::AddXattrBlocks { ino: *ino, delta: actual - i32::from(*stored) });
            }
            Problem::StaleOrphan { session, ino } => {
                if view.find_inode(*ino)?.is_some() && view.links(*ino)? == 0 {
                    return Err(CHANGED);
                }
                effects.push(Effect::DropOrphan { session: *session, ino: *ino });
            }
            // On this volume the ACL alone decides access, so changing the mode to agree with the ACL grants
            // nothing new.
            Problem::AclMode { ino, stored, .. } if ctx.volume.acl == AclKind::Nfs4 => {
                let inode = view.find_inode(*ino)?.ok_or(CHANGED)?;
                let acl = view.nfs4_acl(inode.access_acl)?.ok_or(CHANGED)?;
                if inode.mode.rwx() != *stored {
                    return Err(CHANGED);
                }
                let mode = inode.mode.without(0o777).with(acl.acl().mode_bits());
                effects
                    .push(Effect::SetAccess { ino: *ino, access: Access { mode, ..Access::from(&inode) } });
            }
            Problem::AclDomain { stored, .. } => {
                reserve_domains(view, *stored, &mut effects)?;
                if effects.is_empty() {
                    return Err(CHANGED);
                }
            }
            Problem::TargetLength { ino, .. } => {
                view.inode(*ino)?;
                let target = view.symlink(*ino)?.ok_or(CHANGED)?;
                effects.push(Effect::SetSize { ino: *ino, size: target.len() as u64 });
            }
            // If the count were too low, blocks that are in use could be deleted. A count that is too high
            // only keeps unused blocks.
            Problem::Shared { slice, stored, actual } if stored < actual => {
                let missing = (actual - stored).min(u32::MAX.into());
                effects.push(Effect::Share { slice: *slice, rows: missing as u32 });
            }
            Problem::GarbageInUse { slice, ino } => {
                view.inode(*ino)?;
                effects.push(Effect::DropGarbage { slice: *slice });
            }
            Problem::Usage { stored, actual } => {
                if view.usage()? != *stored {
                    return Err(CHANGED);
                }
                let inodes = actual.inodes.wrapping_sub(stored.inodes) as i64;
                let blocks = actual.blocks.wrapping_sub(stored.blocks) as i64;
                effects.push(Effect::AddUsage { inodes, blocks });
            }
            Problem::Quota { key, stored, actual } => {
                if view.quota(*key)?.map(|quota| (quota.inodes, quota.blocks)) != *stored {
                    return Err(CHANGED);
                }
                let stored = stored.unwrap_or_default();
                let (inodes, blocks) = (actual.0.wrapping_sub(stored.0), actual.1.wrapping_sub(stored.1));
                effects.push(Effect::Charge { key: *key, inodes, blocks });
            }
            Problem::Counter { counter, last, .. } => {
                let counter = *counter;
                let end = if counter == Counter::Ino { Ino::TRASH.0 } else { i64::MAX as u64 };
                let next = last.checked_add(1).filter(|&next| next < end).ok_or(UNREPAIRABLE)?;
                if view.counter(counter)? > *last {
                    return Err(CHANGED);
                }
                effects.push(Effect::SetCounter { counter, value: next });
            }
            Problem::NoRoot
            | Problem::AclMissing { .. }
            | Problem::AclDamaged { .. }
            | Problem::AclMode { .. }
            | Problem::Domains
            | Problem::NoTarget { .. }
            | Problem::Row { .. }
            | Problem::SliceSize { .. }
            | Problem::Shared { .. } => return Err(UNREPAIRABLE),
        }
        Ok(Plan { reply: (), effects })
    }
}

/// Requires that the entry still exists.
fn require_entry(view: &mut View<'_>, dir: Ino, name: &Name, ino: Ino) -> Result<(), PlanStop> {
    match view.dirent(dir, name)? {
        Some(dirent) if dirent.ino == ino => Ok(()),
        _ => Err(CHANGED),
    }
}

fn set_links(ino: Ino, stored: u32, actual: u32, effects: &mut Vec<Effect>) {
    let delta =
        (i64::from(actual) - i64::from(stored)).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
    effects.push(Effect::AddLinks { ino, delta });
}

/// Links an inode into lost+found, with its number as the name. The directory is created if needed.
fn rescue(view: &mut View<'_>, ctx: &Ctx<'_>, ino: Ino, effects: &mut Vec<Effect>) -> Result<(), PlanStop> {
    let inode = view.find_inode(ino)?.ok_or(CHANGED)?;
    let nlink = view.links(ino)?;
    let lost_found = lost_and_found(view, ctx, effects)?;
    let name = valid(format!("#{ino}"))?;
    if view.dirent_unlikely(lost_found, &name)?.is_some() {
        return Err(UNREPAIRABLE);
    }
    effects.push(Effect::PutDirent { parent: lost_found, name, ino, kind: inode.kind });
    if inode.kind.is_dir() {
        effects.push(Effect::SetParent { ino, parent: lost_found });
        effects.push(Effect::AddLinks { ino: lost_found, delta: 1 });
    } else {
        set_links(ino, nlink, 1, effects);
    }
    Ok(())
}

fn lost_and_found(view: &mut View<'_>, ctx: &Ctx<'_>, effects: &mut Vec<Effect>) -> Result<Ino, PlanStop> {
    let name = valid(LOST_AND_FOUND.to_owned())?;
    view.prefetch([RecordKey::Dirent(Ino::ROOT, name.clone())])?;
    match view.dirent(Ino::ROOT, &name)? {
        Some(dirent) if dirent.kind == FileType::Directory => return Ok(view.dir(dirent.ino)?.ino),
        Some(_) => return Err(UNREPAIRABLE),
        None => {}
    }
    let next = view.counter(Counter::Ino)?;
    let ino = Ino(next);
    // A counter that is too low must be repaired first.
    if view.find_inode(ino)?.is_some() || view.find_inode(Ino::ROOT)?.is_none() {
        return Err(UNREPAIRABLE);
    }
    effects.push(Effect::SetCounter { counter: Counter::Ino, value: next + 1 });
    effects.push(Effect::PutInode(Inode {
        size: DIR_BYTES,
        parent: Ino::ROOT,
        ..Inode::new(ino, FileType::Directory, Mode::new(0o700), ctx.now)
    }));
    effects.push(Effect::PutDirent { parent: Ino::ROOT, name, ino, kind: FileType::Directory });
    effects.push(Effect::AddLinks { ino: Ino::ROOT, delta: 1 });
    Ok(ino)
}

fn valid(name: String) -> Result<Name, PlanStop> {
    Name::new(name.as_bytes()).map_err(|_| UNREPAIRABLE)
}
