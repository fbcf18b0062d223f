//! What can be put right without losing anything.
//!
//! Each repair is an operation like any other: it looks again, through a view that guards every look, and does nothing if
//! the problem is not there any more.

use types::{AclId, Errno, FileType, Ino, Mode, Name};

use super::Problem;
use crate::driver::{Ctx, Failure, Meta, Op, Plan, Vouch};
use crate::ops::reserve;
use crate::record::{Counter, Node, Want};
use crate::txn::{Access, Effect};
use crate::view::{Stop, View};
use crate::volume::{AclKind, DIR_BYTES};

/// The directory in the root, made when needed, that takes what has no name.
pub const LOST_AND_FOUND: &str = "lost+found";

/// How many rows one repair adds to what a slice is said to have.
const MOST_SHARES: u64 = 10_000;

/// Puts a problem right, and says whether that was possible. What remains afterwards, or comes of it, another check finds.
///
/// # Errors
/// Those of the database.
pub fn repair(meta: &Meta, problem: &Problem) -> Result<bool, Failure> {
    match meta.run(&Repair(problem), &Vouch::Kernel { told: None }) {
        Ok(()) => Ok(true),
        Err(Failure::Refused(_)) => Ok(false),
        Err(failure) => Err(failure),
    }
}

struct Repair<'a>(&'a Problem);

/// The problem is not there any more.
const GONE: Stop = Stop::Refused(Errno::EAGAIN);
/// There is no repair without loss.
const HOPELESS: Stop = Stop::Refused(Errno::EIO);

impl Op for Repair<'_> {
    type Reply = ();
    const NAME: &'static str = "repair";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        let mut effects = Vec::new();
        match self.0 {
            Problem::EntryWithoutInode { dir, name, ino } => {
                find(view, *dir, name, *ino)?;
                if view.node(*ino)?.is_some() {
                    return Err(GONE);
                }
                effects.push(Effect::DropEdge { parent: *dir, name: name.clone() });
            }
            Problem::EntryKind { dir, name, ino, .. } => {
                find(view, *dir, name, *ino)?;
                let kind = view.node(*ino)?.ok_or(GONE)?.kind;
                effects.push(Effect::PutEdge { parent: *dir, name: name.clone(), ino: *ino, kind });
            }
            Problem::SecondName { dir, name, ino } => {
                find(view, *dir, name, *ino)?;
                effects.push(Effect::DropEdge { parent: *dir, name: name.clone() });
            }
            Problem::Parent { ino, says, is } => {
                if view.parent_of(*ino)? != *says {
                    return Err(GONE);
                }
                effects.push(Effect::SetParent { ino: *ino, parent: *is });
            }
            Problem::Circle { ino, parent, name } => {
                find(view, *parent, name, *ino)?;
                effects.push(Effect::DropEdge { parent: *parent, name: name.clone() });
                effects.push(Effect::AddLinks { ino: *parent, delta: -1 });
                rescue(view, ctx, *ino, &mut effects)?;
            }
            Problem::Lost { ino, .. } => rescue(view, ctx, *ino, &mut effects)?,
            Problem::Links { ino, says, is } => {
                if view.links(*ino)? != *says {
                    return Err(GONE);
                }
                set_links(*ino, *says, *is, &mut effects);
            }
            Problem::StaleOrphan { session, ino } => {
                if view.node(*ino)?.is_some() && view.links(*ino)? == 0 {
                    return Err(GONE);
                }
                effects.push(Effect::DropOrphan { session: *session, ino: *ino });
            }
            // An NFSv4 ACL decides whatever the mode says, so nobody may more by a mode that agrees with it.
            Problem::AclMode { ino, says, .. } if ctx.volume.acl == AclKind::Nfs4 => {
                let node = view.node(*ino)?.ok_or(GONE)?;
                let acl = view.nfs4_acl(node.access_acl)?.ok_or(GONE)?;
                if node.mode.rwx() != *says {
                    return Err(GONE);
                }
                let mode = node.mode.without(0o777).with(acl.acl().mode_bits());
                effects.push(Effect::SetAccess { ino: *ino, access: Access { mode, ..Access::from(&node) } });
            }
            Problem::AclDomain { says, .. } => {
                reserve(view, *says, &mut effects)?;
                if effects.is_empty() {
                    return Err(GONE);
                }
            }
            Problem::TargetLength { ino, .. } => {
                view.inode(*ino)?;
                let target = view.symlink(*ino)?.ok_or(GONE)?;
                effects.push(Effect::SetSize { ino: *ino, size: target.len() as u64 });
            }
            // Too few would let blocks go that are in use; too many only keep some that are not.
            Problem::Shared { slice, says, is } if says < is => {
                let missing = (is - says).min(MOST_SHARES);
                effects.extend((0..missing).map(|_| Effect::Share { slice: *slice }));
            }
            Problem::GarbageInUse { slice, ino } => {
                view.inode(*ino)?;
                effects.push(Effect::DropGarbage { slice: *slice });
            }
            Problem::Usage { says, is } => {
                if view.usage()? != *says {
                    return Err(GONE);
                }
                let inodes = is.inodes.wrapping_sub(says.inodes) as i64;
                let blocks = is.blocks.wrapping_sub(says.blocks) as i64;
                effects.push(Effect::AddUsage { inodes, blocks });
            }
            Problem::Counter { counter, last, .. } => {
                let counter = *counter;
                let next = last.checked_add(1).filter(|&next| next <= i64::MAX as u64).ok_or(HOPELESS)?;
                if view.counter(counter)? > *last {
                    return Err(GONE);
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
            | Problem::Shared { .. } => return Err(HOPELESS),
        }
        Ok(Plan { reply: (), effects })
    }
}

/// Requires the entry to be there still.
fn find(view: &mut View<'_>, dir: Ino, name: &Name, ino: Ino) -> Result<(), Stop> {
    match view.edge(dir, name)? {
        Some(edge) if edge.ino == ino => Ok(()),
        _ => Err(GONE),
    }
}

fn set_links(ino: Ino, says: u32, is: u32, effects: &mut Vec<Effect>) {
    let delta = (i64::from(is) - i64::from(says)).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
    effects.push(Effect::AddLinks { ino, delta });
}

/// Gives an inode its number as a name in lost+found, which is made if need be.
fn rescue(view: &mut View<'_>, ctx: &Ctx<'_>, ino: Ino, effects: &mut Vec<Effect>) -> Result<(), Stop> {
    let node = view.node(ino)?.ok_or(GONE)?;
    let nlink = view.links(ino)?;
    let home = lost_and_found(view, ctx, effects)?;
    let name = valid(format!("#{ino}"))?;
    if view.edge_unlikely(home, &name)?.is_some() {
        return Err(HOPELESS);
    }
    effects.push(Effect::PutEdge { parent: home, name, ino, kind: node.kind });
    if node.kind.is_dir() {
        effects.push(Effect::SetParent { ino, parent: home });
        effects.push(Effect::AddLinks { ino: home, delta: 1 });
    } else {
        set_links(ino, nlink, 1, effects);
    }
    Ok(())
}

fn lost_and_found(view: &mut View<'_>, ctx: &Ctx<'_>, effects: &mut Vec<Effect>) -> Result<Ino, Stop> {
    let name = valid(LOST_AND_FOUND.to_owned())?;
    view.prefetch([Want::Entry(Ino::ROOT, name.clone())])?;
    match view.edge(Ino::ROOT, &name)? {
        Some(edge) if edge.kind == FileType::Directory => return Ok(view.dir(edge.ino)?.ino),
        Some(_) => return Err(HOPELESS),
        None => {}
    }
    let next = view.counter(Counter::Ino)?;
    let ino = Ino(next);
    // A counter that is behind has to be put right before.
    if view.node(ino)?.is_some() || view.node(Ino::ROOT)?.is_none() {
        return Err(HOPELESS);
    }
    effects.push(Effect::SetCounter { counter: Counter::Ino, value: next + 1 });
    effects.push(Effect::PutNode(Node {
        ino,
        kind: FileType::Directory,
        mode: Mode::new(0o700),
        uid: 0,
        gid: 0,
        rdev: 0,
        nlink: 2,
        size: DIR_BYTES,
        atime: ctx.now,
        mtime: ctx.now,
        ctime: ctx.now,
        access_acl: AclId::NONE,
        default_acl: AclId::NONE,
        parent: Ino::ROOT,
        access_rev: 1,
    }));
    effects.push(Effect::PutEdge { parent: Ino::ROOT, name, ino, kind: FileType::Directory });
    effects.push(Effect::AddLinks { ino: Ino::ROOT, delta: 1 });
    Ok(ino)
}

fn valid(name: String) -> Result<Name, Stop> {
    Name::new(name.as_bytes()).map_err(|_| HOPELESS)
}
