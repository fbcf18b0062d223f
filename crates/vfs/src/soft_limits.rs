//! Warnings about quotas above their soft limits.

use std::collections::BTreeMap;
use std::time::Duration;

use client::{Failure, Meta};
use host::Instant;
use meta::{Quota, QuotaKey, QuotaRule, Record, Scan, Usage};
use types::counted;

/// Quotas read at a time.
const PAGE: usize = 256;

/// After a quota was logged, it is not logged again within this time, even if it goes below its soft limit
/// and above it again.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// At most this many quotas are logged at once.
const MAX_LOGGED: usize = 20;

/// The quotas that were logged, and when.
#[derive(Debug, Default)]
pub(crate) struct SoftLimits {
    logged: BTreeMap<QuotaKey, Instant>,
}

impl SoftLimits {
    /// Reads all quotas, and logs those that went above their soft limits since the last call. Returns how
    /// many.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn log_new(&mut self, meta: &Meta) -> Result<usize, Failure> {
        let (mut above, mut new) = (BTreeMap::new(), 0);
        for page in (Scan::Quotas { after: None, limit: PAGE }).pages(|scan| meta.scan(scan)) {
            for record in page? {
                let Record::Quota(key, Some(quota)) = record else { continue };
                if !quota.is_above_soft_limit() {
                    continue;
                }
                let since = self.logged.get(&key).copied();
                above.insert(key, since.unwrap_or_else(Instant::now));
                if since.is_none() {
                    new += 1;
                    if new <= MAX_LOGGED {
                        log(key, &quota);
                    }
                }
            }
        }
        if new > MAX_LOGGED {
            let more = new - MAX_LOGGED;
            tracing::warn!(
                "{}: see limen quota list",
                counted(
                    more,
                    "more quota is above its soft limit",
                    "more quotas are above their soft limits"
                )
            );
        }
        self.logged.retain(|key, since| above.contains_key(key) || since.elapsed() < AGAIN_AFTER);
        self.logged.extend(above);
        Ok(new)
    }
}

fn log(key: QuotaKey, quota: &Quota) {
    let whose = match key {
        QuotaKey::Directory(_) => format!("the directory with inode {}", quota.rule.root),
        QuotaKey::User(uid) => format!("user {uid}"),
        QuotaKey::Group(gid) => format!("group {gid}"),
    };
    let limit = |limit: u64, unit: u64| match limit {
        QuotaRule::NO_LIMIT => "any number".to_owned(),
        limit => limit.saturating_mul(unit).to_string(),
    };
    let bytes = quota.blocks.saturating_mul(Usage::BLOCK_BYTES as i64);
    tracing::warn!(
        "the quota of {whose} is above its soft limit: {bytes} bytes of {}, {} inodes of {}; see limen quota list",
        limit(quota.rule.soft_blocks, Usage::BLOCK_BYTES),
        quota.inodes,
        limit(quota.rule.soft_inodes, 1),
    );
}

#[cfg(test)]
mod tests {
    use meta::{Effect, Engine, Txn};
    use types::{OpId, QuotaId};

    use super::*;
    use crate::fixture::{NO_WAIT, Shared};

    #[test]
    fn a_quota_is_logged_once_when_it_goes_above_its_soft_limit() {
        let shared = Shared::new();
        let vfs = shared.mount(NO_WAIT);
        let mut next = 1 << 120;
        let mut commit = |effects: Vec<Effect>| {
            next += 1;
            let txn = Txn { op_id: OpId(next), guards: Vec::new(), effects };
            vfs.meta().engine().commit(&[txn]).unwrap();
        };
        let key = |n| QuotaKey::Directory(QuotaId(n));
        let charge = |n, blocks| Effect::Charge { key: key(n), inodes: 0, blocks };
        let rule = QuotaRule { soft_blocks: 10, ..QuotaRule::default() };
        commit((1..=30).map(|n| Effect::PutQuota { key: key(n), rule }).collect());
        let mut limits = SoftLimits::default();
        let mut log_new = || limits.log_new(vfs.meta()).unwrap();
        assert_eq!(log_new(), 0);
        commit(vec![charge(1, 10), charge(2, 11)]);
        assert_eq!((log_new(), log_new()), (1, 0));
        // Usage that moves around the limit is logged once.
        commit(vec![charge(1, 1), charge(2, -1)]);
        assert_eq!(log_new(), 1);
        commit(vec![charge(2, 1)]);
        assert_eq!(log_new(), 0);
        commit((3..=30).map(|n| charge(n, 99)).collect());
        assert_eq!((log_new(), log_new()), (28, 0));
    }
}
