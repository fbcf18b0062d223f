//! ACLs that no inode refers to any more.

use std::collections::BTreeSet;

use meta::{Engine, EngineError, Record, Scan};
use types::AclId;

use super::{WINDOW, walk};

/// The number of stored ACLs, and how many of them no inode refers to. Unused ACLs are harmless but take
/// space: an ACL has a hundred to a few thousand bytes, and is stored once.
///
/// # Errors
/// Those of the database.
pub fn unused_acls(engine: &dyn Engine) -> Result<(u64, u64), EngineError> {
    let (mut stored, mut unused) = (0, 0);
    let mut after = AclId::NONE;
    loop {
        let mut left: BTreeSet<AclId> = BTreeSet::new();
        for page in (Scan::Acls { after, limit: walk::PAGE }).pages(|scan| engine.scan(scan)) {
            left.extend(page?.iter().filter_map(|record| match record {
                Record::Acl(id, _) => Some(*id),
                _ => None,
            }));
            if left.len() >= WINDOW {
                break;
            }
        }
        let is_last = left.len() < WINDOW;
        after = left.last().copied().unwrap_or(after);
        stored += left.len() as u64;
        walk::inodes(engine, |inode| {
            left.remove(&inode.access_acl);
            left.remove(&inode.default_acl);
            Ok::<_, EngineError>(())
        })?;
        unused += left.len() as u64;
        if is_last {
            return Ok((stored, unused));
        }
    }
}
