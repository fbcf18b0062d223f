//! Two nested quotas around the whole tree, and quotas of its owner and group. Every inode counts in all of
//! them, so each must always equal the usage of the volume, and the model needs to know only their limits.
//! Moves between quotas are covered by the tests of the crate `suite`.

use meta::{Access, Effect, Engine, MemEngine, Quota, QuotaKey, QuotaRule, QuotaTag, Record, RecordKey, Txn};
use types::{Ino, OpId, QuotaId};

use crate::rng::Rng;

/// The quotas with limits, from the inside out.
pub(crate) const LIMITED: [QuotaKey; 2] = [QuotaKey::Directory(QuotaId(2)), QuotaKey::Directory(QuotaId(1))];

pub(crate) const ALL: [QuotaKey; 4] = [LIMITED[0], LIMITED[1], QuotaKey::User(0), QuotaKey::Group(0)];

/// The hard limits of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) inodes: u64,
    pub(crate) blocks: u64,
}

impl Limits {
    /// Draws limits that a history can reach, because it has few inodes, and files of up to two chunks.
    pub(crate) fn draw(rng: &mut Rng) -> Limits {
        let none = QuotaRule::NO_LIMIT;
        Limits {
            inodes: rng.pick(&[3, 6, 10, 15, none]),
            blocks: rng.pick(&[1, 20, 250, 16_390, 33_000, none]),
        }
    }
}

/// Sets quotas on a new volume, for every second seed. Returns their limits.
pub(crate) fn set_up(engine: &MemEngine, rng: &mut Rng) -> Option<[Limits; 2]> {
    if rng.one_in(2) {
        return None;
    }
    let limits = [(); 2].map(|()| Limits::draw(rng));
    let snapshot = engine.read(&[RecordKey::Inode(Ino::ROOT)]).ok()?;
    let Some(Record::Inode(_, Some(root))) = snapshot.records.first() else { return None };
    let quota = QuotaTag::new(QuotaId(2), true);
    let mut effects = vec![
        Effect::PutSetting { name: Quota::NEXT_SETTING, value: "3".to_owned() },
        Effect::PutSetting { name: Quota::OWNERS_SETTING, value: "on".to_owned() },
        Effect::SetAccess { ino: Ino::ROOT, access: Access { quota, ..Access::from(root) } },
    ];
    for ((key, Limits { inodes, blocks }), outer) in LIMITED.into_iter().zip(limits).zip([1, 0]) {
        let outer = QuotaId(outer);
        let (max_inodes, max_blocks) = (inodes, blocks);
        let rule = QuotaRule { outer, max_inodes, max_blocks, root: Ino::ROOT, ..QuotaRule::default() };
        effects.push(Effect::PutQuota { key, rule });
    }
    effects.extend(ALL.map(|key| Effect::Charge { key, inodes: 1, blocks: 0 }));
    engine.commit(&[Txn { op_id: OpId(1), guards: Vec::new(), effects }]).ok()?;
    Some(limits)
}

/// All quotas; none if the volume has no quotas.
pub(crate) fn all(engine: &MemEngine) -> Vec<(QuotaKey, Quota)> {
    let found = engine.read(&ALL.map(RecordKey::Quota)).map(|snapshot| snapshot.records);
    let of = |record| match record {
        Record::Quota(key, Some(quota)) => Some((key, quota)),
        _ => None,
    };
    found.unwrap_or_default().into_iter().filter_map(of).collect()
}
