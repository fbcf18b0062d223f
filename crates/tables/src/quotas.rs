//! Refuses quotas, which the engines on SQL servers do not keep yet.

use meta::{Access, Effect, EngineError, Guard, Inode, QuotaTag, Txn};
use types::Errno;

/// Refuses transactions that would set, check or charge a quota. Without quotas, no operation does.
///
/// # Errors
/// EOPNOTSUPP, determinate: nothing was changed.
pub fn refuse_quotas(txns: &[Txn]) -> Result<(), EngineError> {
    let needs = |effect: &Effect| match effect {
        Effect::PutQuota { .. } | Effect::DropQuota { .. } | Effect::Charge { .. } => true,
        Effect::PutInode(Inode { quota, .. }) | Effect::SetAccess { access: Access { quota, .. }, .. } => {
            *quota != QuotaTag::NONE
        }
        _ => false,
    };
    let is_quota = |guard: &Guard| matches!(guard, Guard::Quota { .. });
    if txns.iter().any(|txn| txn.guards.iter().any(is_quota) || txn.effects.iter().any(needs)) {
        return Err(EngineError::permanent("quotas are not available on SQL servers yet")
            .with_errno(Errno::EOPNOTSUPP));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use meta::{QuotaKey, QuotaRule};
    use types::{FileType, Ino, Mode, OpId, QuotaId, Time};

    use super::*;

    #[test]
    fn only_transactions_with_quotas_are_refused() {
        let key = QuotaKey::User(1);
        let inode = Inode::new(Ino(3), FileType::Regular, Mode::new(0o600), Time::MIN);
        let tagged = Inode { quota: QuotaTag { directory: QuotaId(1), owners: false }, ..inode };
        let set = |inode: &Inode| Effect::SetAccess { ino: inode.ino, access: Access::from(inode) };
        let refused = |guards, effects| {
            refuse_quotas(&[Txn { op_id: OpId(1), guards, effects }]).map_err(|error| error.errno)
        };
        assert_eq!(refused(Vec::new(), vec![Effect::PutInode(inode), set(&inode)]), Ok(()));
        for effect in [
            Effect::PutInode(tagged),
            set(&tagged),
            Effect::PutQuota { key, rule: QuotaRule::default() },
            Effect::DropQuota { key },
            Effect::Charge { key, inodes: 1, blocks: 0 },
        ] {
            assert_eq!(refused(Vec::new(), vec![effect]), Err(Errno::EOPNOTSUPP));
        }
        let guard = Guard::Quota { key, outer: None, inodes: 0, blocks: 0 };
        assert_eq!(refused(vec![guard], Vec::new()), Err(Errno::EOPNOTSUPP));
    }
}
