//! The inodes and blocks that quotas count.

use std::collections::BTreeMap;

use meta::{Engine, EngineError, Inode, Quota, QuotaKey, QuotaTag, Record, Scan};
use types::QuotaId;

use super::{Problem, walk};

/// The inodes and blocks of each directory quota, without those of the quotas inside it, and of each owner
/// and group. There is one entry for each quota, owner and group, so the memory does not depend on the number
/// of files.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<QuotaKey, (i64, i64)>);

/// The usage of an inode: the quotas in which it counts, and its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InodeUsage {
    pub(crate) tag: QuotaTag,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) blocks: u64,
}

impl From<&Inode> for InodeUsage {
    fn from(inode: &Inode) -> Self {
        InodeUsage { tag: inode.quota, uid: inode.uid, gid: inode.gid, blocks: inode.blocks() }
    }
}

/// A quota whose counter is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub key: QuotaKey,
    /// The stored numbers of inodes and blocks; `None` if the quota does not exist, although inodes count in
    /// it.
    pub stored: Option<(i64, i64)>,
    /// The number of inodes that count in the quota, and of their blocks.
    pub actual: (i64, i64),
}

impl Counts {
    pub(crate) fn add(&mut self, inode: &Inode) {
        self.add_usage(&InodeUsage::from(inode), 1);
    }

    /// Adds the usage of an inode if `sign` is 1; subtracts it if `sign` is -1.
    pub(crate) fn add_usage(&mut self, usage: &InodeUsage, sign: i64) {
        let used = (sign, sign.wrapping_mul(usage.blocks as i64));
        if usage.tag.directory() != QuotaId(0) {
            self.add_to(QuotaKey::Directory(usage.tag.directory()), used);
        }
        if usage.tag.owners() {
            self.add_to(QuotaKey::User(usage.uid), used);
            self.add_to(QuotaKey::Group(usage.gid), used);
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = QuotaKey> {
        self.0.keys().copied()
    }

    fn add_to(&mut self, key: QuotaKey, (inodes, blocks): (i64, i64)) {
        let used = self.0.entry(key).or_default();
        *used = (used.0 + inodes, used.1.wrapping_add(blocks));
    }
}

/// Compares the counters of quotas with the usage of their inodes.
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
    for Difference { key, stored, actual } in compare(counts, &quotas) {
        report(Problem::Quota { key, stored, actual });
    }
    Ok(())
}

/// The quotas whose counters differ from the usage of their inodes: first those that exist, then those that
/// do not exist, each in the order of their keys.
pub(crate) fn compare(counts: &Counts, quotas: &BTreeMap<QuotaKey, Quota>) -> Vec<Difference> {
    let mut actual = Counts::default();
    for (key, used) in &counts.0 {
        let mut at = Some(*key);
        // The loop has a bound, because damaged records could form a cycle of quotas.
        for _ in 0..=quotas.len() {
            let Some(key) = at else { break };
            actual.add_to(key, *used);
            let outer = quotas.get(&key).map_or(QuotaId(0), |quota| quota.rule.outer);
            at = (outer != QuotaId(0)).then_some(QuotaKey::Directory(outer));
        }
    }
    let mut differences = Vec::new();
    for (key, quota) in quotas {
        let actual = actual.0.remove(key).unwrap_or_default();
        if (quota.inodes, quota.blocks) != actual {
            differences.push(Difference { key: *key, stored: Some((quota.inodes, quota.blocks)), actual });
        }
    }
    let missing = actual.0.into_iter().filter(|(_, actual)| *actual != (0, 0));
    differences.extend(missing.map(|(key, actual)| Difference { key, stored: None, actual }));
    differences
}
