//! The inodes and blocks that quotas count.

use std::collections::BTreeMap;

use meta::{Engine, EngineError, Inode, Quota, QuotaKey, Record, Scan};
use types::QuotaId;

use super::{Problem, walk};

/// The inodes and blocks of each directory quota, without those of the quotas inside it, and of each owner
/// and group. There is one entry for each quota, owner and group, so the memory does not depend on the number
/// of files.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<QuotaKey, (i64, i64)>);

impl Counts {
    pub(crate) fn add(&mut self, inode: &Inode) {
        let used = (1, inode.blocks() as i64);
        if inode.quota.directory != QuotaId(0) {
            self.add_to(QuotaKey::Directory(inode.quota.directory), used);
        }
        if inode.quota.owners {
            self.add_to(QuotaKey::User(inode.uid), used);
            self.add_to(QuotaKey::Group(inode.gid), used);
        }
    }

    fn add_to(&mut self, key: QuotaKey, (inodes, blocks): (i64, i64)) {
        let used = self.0.entry(key).or_default();
        *used = (used.0 + inodes, used.1.wrapping_add(blocks));
    }
}

/// Compares what quotas say with what their inodes count.
pub(crate) fn check(
    engine: &dyn Engine,
    counts: &Counts,
    report: &mut dyn FnMut(Problem),
) -> Result<(), EngineError> {
    let mut quotas: BTreeMap<QuotaKey, Quota> = BTreeMap::new();
    walk::records(engine, Scan::Quotas { after: None, limit: walk::PAGE }, |record| {
        if let Record::Quota(key, Some(quota)) = record {
            quotas.insert(*key, *quota);
        }
        Ok::<_, EngineError>(())
    })?;
    let mut is = Counts::default();
    for (key, used) in &counts.0 {
        let mut at = Some(*key);
        // The loop has a bound, because damaged records could form a cycle of quotas.
        for _ in 0..=quotas.len() {
            let Some(key) = at else { break };
            is.add_to(key, *used);
            let outer = quotas.get(&key).map_or(QuotaId(0), |quota| quota.rule.outer);
            at = (outer != QuotaId(0)).then_some(QuotaKey::Directory(outer));
        }
    }
    for (key, quota) in &quotas {
        let is = is.0.remove(key).unwrap_or_default();
        if (quota.inodes, quota.blocks) != is {
            report(Problem::Quota { key: *key, says: Some((quota.inodes, quota.blocks)), is });
        }
    }
    for (key, is) in is.0 {
        report(Problem::Quota { key, says: None, is });
    }
    Ok(())
}
