//! ACLs that no inode refers to any more, and their removal.
//!
//! While a tool looks for such ACLs, other clients may make inodes refer to them. So an ACL is removed in two
//! steps, each after a walk over all inodes. The first step condemns the ACLs that its walk has not found.
//! From then on, a transaction that makes an inode refer to one of them either fails or ends the condemnation
//! (`acl::keep` in the crate `ops`). The second walk finds every reference from before the condemnation. The
//! second step removes those ACLs that this walk has not found either, and that are still condemned, and ends
//! the condemnation of the others.

use std::collections::BTreeSet;

use client::{Failure, Meta};
use meta::{Engine, EngineError, Record, Scan};
use ops::{AclSweep, Authority, BeginAclSweep, SweepAcls};
use types::AclId;

use super::{WINDOW, walk};

/// The number of ACLs that one commit condemns or drops. An etcd server may permit only 100 comparisons in a
/// transaction.
const AT_ONCE: usize = 24;

/// The result of [`unused_acls`] and [`drop_unused_acls`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AclCounts {
    pub stored: u64,
    /// Stored ACLs that no inode refers to.
    pub unused: u64,
    pub dropped: u64,
}

/// Counts the stored ACLs, and the unused ones among them. An ACL has a hundred to a few thousand bytes, and
/// is stored once.
///
/// # Errors
/// Those of the database.
pub fn unused_acls(engine: &dyn Engine) -> Result<AclCounts, EngineError> {
    let mut counts = AclCounts::default();
    for_each_window(engine, WINDOW, &mut counts, |_| Ok::<_, EngineError>(()))?;
    Ok(counts)
}

/// Removes the ACLs that no inode refers to. Safe while other clients change the volume. If another client
/// begins such a removal meanwhile, this call fails.
///
/// # Errors
/// Those of the database. EBUSY: another client began to remove ACLs; this one may have removed some.
pub fn drop_unused_acls(meta: &Meta) -> Result<AclCounts, Failure> {
    drop_in_windows(meta, WINDOW)
}

pub(crate) fn drop_in_windows(meta: &Meta, window: usize) -> Result<AclCounts, Failure> {
    let by_tool = Authority::Kernel { revisions: None };
    let engine = &**meta.engine();
    let (mut counts, mut dropped, mut next_step) = (AclCounts::default(), 0, 0);
    let mut begin = || {
        let step = next_step;
        next_step += 1;
        meta.run(&BeginAclSweep { step }, &by_tool).map(|()| step)
    };
    let sweep = |ids: &BTreeSet<AclId>, step: u32, sweep: AclSweep| {
        let ids: Vec<AclId> = ids.iter().copied().collect();
        ids.chunks(AT_ONCE).try_for_each(|ids| meta.run(&SweepAcls { ids, step, sweep }, &by_tool))
    };
    for_each_window(engine, window, &mut counts, |condemned| {
        sweep(&condemned, begin()?, AclSweep::Condemn)?;
        let mut unused = condemned.clone();
        retain_unused(engine, &mut unused)?;
        let step = begin()?;
        sweep(&unused, step, AclSweep::Drop)?;
        sweep(&condemned.difference(&unused).copied().collect(), step, AclSweep::Keep)?;
        dropped += unused.len() as u64;
        Ok::<_, Failure>(())
    })?;
    Ok(AclCounts { dropped, ..counts })
}

/// Reads the stored ACLs, `window` at a time, and calls `each` with the unused ones among them.
fn for_each_window<E: From<EngineError>>(
    engine: &dyn Engine,
    window: usize,
    counts: &mut AclCounts,
    mut each: impl FnMut(BTreeSet<AclId>) -> Result<(), E>,
) -> Result<(), E> {
    let mut after = AclId::NONE;
    loop {
        let mut left: BTreeSet<AclId> = BTreeSet::new();
        for page in (Scan::Acls { after, limit: walk::PAGE.min(window) }).pages(|scan| engine.scan(scan)) {
            left.extend(page?.iter().filter_map(|record| match record {
                Record::Acl(id, _) => Some(*id),
                _ => None,
            }));
            if left.len() >= window {
                break;
            }
        }
        let is_last = left.len() < window;
        after = left.last().copied().unwrap_or(after);
        counts.stored += left.len() as u64;
        if !left.is_empty() {
            retain_unused(engine, &mut left)?;
        }
        counts.unused += left.len() as u64;
        if !left.is_empty() {
            each(left)?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Removes from `ids` the ACLs that an inode refers to.
fn retain_unused(engine: &dyn Engine, ids: &mut BTreeSet<AclId>) -> Result<(), EngineError> {
    walk::inodes(engine, |inode| {
        ids.remove(&inode.access_acl);
        ids.remove(&inode.default_acl);
        Ok::<_, EngineError>(())
    })
}
