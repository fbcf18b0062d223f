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
        let mut more = true;
        while more && left.len() < WINDOW {
            let page = engine.scan(&Scan::Acls { after, limit: walk::PAGE })?;
            more = page.more && !page.snapshot.records.is_empty();
            for record in page.snapshot.records {
                if let Record::Acl(id, _) = record {
                    left.insert(id);
                    after = id;
                }
            }
        }
        stored += left.len() as u64;
        walk::inodes(engine, |inode| {
            left.remove(&inode.access_acl);
            left.remove(&inode.default_acl);
            Ok::<_, EngineError>(())
        })?;
        unused += left.len() as u64;
        if !more {
            return Ok((stored, unused));
        }
    }
}
