//! Tests of quotas: their records, guards and charges, and that no limit is ever exceeded.

use meta::{
    Access, Effect, Engine, Guard, Inode, Outcome, Quota, QuotaKey, QuotaRule, QuotaState, QuotaTag, Record,
    RecordKey, Scan, Txn,
};
use types::{Ino, QuotaId};

use super::fixture::*;
use super::guards::{fails, holds};

const DIRECTORY: QuotaKey = QuotaKey::Directory(QuotaId(3));
const USER: QuotaKey = QuotaKey::User(u32::MAX);
const GROUP: QuotaKey = QuotaKey::Group(100);

fn quota(engine: &dyn Engine, key: QuotaKey) -> Option<Quota> {
    match read(engine, &[RecordKey::Quota(key)])[..] {
        [Record::Quota(found, quota)] if found == key => quota,
        ref other => panic!("not the record of the quota: {other:?}"),
    }
}

fn limits(max_inodes: u64, max_blocks: u64) -> QuotaRule {
    QuotaRule { max_inodes, max_blocks, ..QuotaRule::default() }
}

fn charge(key: QuotaKey, inodes: i64, blocks: i64) -> Effect {
    Effect::Charge { key, inodes, blocks }
}

pub fn quota_guard(engine: &dyn Engine) {
    let room = |key, inodes, blocks| Guard::Quota { key, outer: None, inodes, blocks };
    let below = |outer| Guard::Quota { key: DIRECTORY, outer: Some(QuotaId(outer)), inodes: 0, blocks: 0 };
    // Only a guard that names the outer quota requires that the quota exists.
    holds(engine, room(USER, 1 << 40, 1 << 60));
    fails(engine, below(0));
    let rule = QuotaRule { outer: QuotaId(2), ..limits(5, 7) };
    apply(engine, vec![Effect::PutQuota { key: DIRECTORY, rule }, charge(DIRECTORY, 4, 5)]);
    holds(engine, below(2));
    fails(engine, below(0));
    fails(engine, below(3));
    holds(engine, room(DIRECTORY, 1, 2));
    fails(engine, room(DIRECTORY, 2, 0));
    fails(engine, room(DIRECTORY, 0, 3));
    fails(engine, room(DIRECTORY, QuotaRule::NO_LIMIT, 0));
    holds(engine, Guard::Quota { key: DIRECTORY, outer: Some(QuotaId(2)), inodes: 1, blocks: 2 });
    fails(engine, Guard::Quota { key: DIRECTORY, outer: Some(QuotaId(2)), inodes: 2, blocks: 2 });
    fails(engine, Guard::Quota { key: DIRECTORY, outer: Some(QuotaId(1)), inodes: 1, blocks: 2 });
    // If the usage exceeds the limit, nothing can be added; a guard that adds nothing holds.
    apply(engine, vec![charge(DIRECTORY, 4, 0)]);
    holds(engine, room(DIRECTORY, 0, 2));
    fails(engine, room(DIRECTORY, 1, 0));
    apply(engine, vec![charge(DIRECTORY, -9, 100)]);
    holds(engine, room(DIRECTORY, 6, 0));
    fails(engine, room(DIRECTORY, 7, 0));
    fails(engine, room(DIRECTORY, 0, 1));
    // A charge alone creates a quota without limits.
    apply(engine, vec![charge(GROUP, 1 << 40, 1 << 50)]);
    holds(engine, room(GROUP, 1 << 40, 1 << 50));
    holds(engine, Guard::Quota { key: GROUP, outer: Some(QuotaId(0)), inodes: 1, blocks: 1 });
    apply(engine, vec![Effect::PutQuota { key: GROUP, rule: limits(0, 0) }]);
    holds(engine, room(GROUP, 0, 0));
    fails(engine, room(GROUP, 1, 0));
    fails(engine, room(GROUP, 0, 1));
}

pub fn quotas_are_put_charged_and_dropped(engine: &dyn Engine) {
    assert_eq!(quota(engine, DIRECTORY), None);
    let rule = QuotaRule {
        outer: QuotaId(i64::MAX as u64 >> 1),
        max_inodes: 1,
        max_blocks: 2,
        soft_inodes: 3,
        soft_blocks: 4,
        root: Ino(i64::MAX as u64),
        state: QuotaState::Building,
    };
    apply(engine, vec![Effect::PutQuota { key: DIRECTORY, rule }]);
    assert_eq!(quota(engine, DIRECTORY), Some(Quota { inodes: 0, blocks: 0, rule }));
    apply(engine, vec![charge(DIRECTORY, 3, 1 << 50), charge(DIRECTORY, -1, 2), charge(USER, -1, -7)]);
    assert_eq!(quota(engine, DIRECTORY), Some(Quota { inodes: 2, blocks: (1 << 50) + 2, rule }));
    let charged = Quota { inodes: -1, blocks: -7, rule: QuotaRule::default() };
    assert_eq!(quota(engine, USER), Some(charged));
    // A new rule keeps the counters, even between charges of the same transaction.
    for state in [QuotaState::Settled, QuotaState::Removing] {
        let rule = QuotaRule { state, ..limits(9, 8) };
        let put = Effect::PutQuota { key: DIRECTORY, rule };
        apply(engine, vec![charge(DIRECTORY, 1, 0), put, charge(DIRECTORY, 1, 0)]);
        let Some(found) = quota(engine, DIRECTORY) else { panic!("the quota is gone") };
        assert_eq!((found.rule, found.blocks), (rule, (1 << 50) + 2));
    }
    assert_eq!(quota(engine, DIRECTORY).map(|quota| quota.inodes), Some(6));
    apply(engine, vec![Effect::DropQuota { key: DIRECTORY }, Effect::DropQuota { key: GROUP }]);
    assert_eq!((quota(engine, DIRECTORY), quota(engine, USER)), (None, Some(charged)));
    // A charge after the removal starts from zero.
    apply(engine, vec![Effect::DropQuota { key: USER }, charge(USER, 5, 0), charge(GROUP, 1, 1)]);
    assert_eq!(quota(engine, USER), Some(Quota { inodes: 5, ..Quota::default() }));
    assert_eq!(quota(engine, GROUP), Some(Quota { inodes: 1, blocks: 1, ..Quota::default() }));
    // A sum beyond the range of a counter does not fail the transaction: the counter keeps the limit of its
    // range, whether the charges are in one transaction or in several.
    apply(engine, vec![charge(USER, i64::MAX, i64::MIN)]);
    apply(
        engine,
        vec![charge(USER, 1, -1), charge(GROUP, i64::MAX, 1 << 62), charge(GROUP, 1 << 40, 1 << 62)],
    );
    for key in [USER, GROUP] {
        let found = quota(engine, key).map(|quota| (quota.inodes, quota.blocks));
        assert_eq!(found, Some((i64::MAX, if key == USER { i64::MIN } else { i64::MAX })));
    }
    apply(engine, vec![charge(USER, -i64::MAX, i64::MAX), charge(GROUP, -3, -4)]);
    assert_eq!(quota(engine, USER), Some(Quota { inodes: 0, blocks: -1, ..Quota::default() }));
    assert_eq!(
        quota(engine, GROUP),
        Some(Quota { inodes: i64::MAX - 3, blocks: i64::MAX - 4, ..Quota::default() })
    );
}

pub fn quotas_are_scanned_in_order(engine: &dyn Engine) {
    let keys = [
        QuotaKey::Directory(QuotaId(1)),
        QuotaKey::Directory(QuotaId(256)),
        QuotaKey::Directory(QuotaId(i64::MAX as u64 >> 1)),
        QuotaKey::User(0),
        QuotaKey::User(10),
        QuotaKey::User(u32::MAX),
        QuotaKey::Group(0),
        QuotaKey::Group(u32::MAX),
    ];
    assert_eq!(scan(engine, &Scan::Quotas { after: None, limit: 9 }).snapshot.records, []);
    let effects = keys.iter().rev().enumerate().map(|(at, key)| charge(*key, at as i64, 1)).collect();
    apply(engine, effects);
    let found = |after, limit| {
        let page = scan(engine, &Scan::Quotas { after, limit });
        let key = |record: &Record| match record {
            Record::Quota(key, Some(_)) => *key,
            other => panic!("not a quota: {other:?}"),
        };
        (page.snapshot.records.iter().map(key).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(found(None, 8), (keys.to_vec(), false));
    assert_eq!(found(None, 7), (keys[..7].to_vec(), true));
    assert_eq!(found(Some(keys[2]), 3), (keys[3..6].to_vec(), true));
    assert_eq!(found(Some(QuotaKey::User(9)), 9), (keys[4..].to_vec(), false));
    assert_eq!(found(Some(keys[7]), 9), (vec![], false));
}

/// A quota tag is stored with the inode, and changed together with the access fields.
pub fn quota_tags_are_kept(engine: &dyn Engine) {
    let tags = [
        QuotaTag::NONE,
        QuotaTag::new(QuotaId(0), true),
        QuotaTag::new(QuotaId(i64::MAX as u64 >> 1), false),
        QuotaTag::new(QuotaId(7), true),
        QuotaTag::from_number(i64::MAX as u64),
    ];
    for (ino, tag) in (2..).zip(tags) {
        let inode = Inode { quota: tag, ..inode(ino, FILE) };
        apply(engine, vec![Effect::PutInode(inode)]);
        assert_eq!(read_inode(engine, ino), Some(inode));
    }
    for tag in tags {
        let before = inode(9, FILE);
        let access = Access { quota: tag, ..Access::from(&before) };
        let changed =
            apply(engine, vec![Effect::PutInode(before), Effect::SetAccess { ino: Ino(9), access }]);
        let after = Inode { quota: tag, access_rev: before.access_rev + 1, ..before };
        assert_eq!((changed, read_inode(engine, 9)), (vec![after], Some(after)));
        // The tag also changes in a transaction of its own.
        let none = Access { quota: QuotaTag::NONE, ..access };
        apply(engine, vec![Effect::SetAccess { ino: Ino(9), access: none }]);
        let found = read_inode(engine, 9).map(|inode| (inode.quota, inode.access_rev));
        assert_eq!(found, Some((QuotaTag::NONE, before.access_rev + 2)));
    }
}

/// Files are created under three nested quotas near a limit. Each create sees the room that earlier ones
/// left, however the engine groups them, and its charges are applied with its other effects or not at all.
pub fn charges_are_granted_in_order(engine: &dyn Engine) {
    let keys = [1, 2, 3].map(|id| QuotaKey::Directory(QuotaId(id)));
    let rules = keys.iter().zip([0, 1, 2]).zip([1000, 24, 100]);
    let rules = rules.map(|((key, outer), max)| {
        let rule = QuotaRule { outer: QuotaId(outer), ..limits(max, QuotaRule::NO_LIMIT) };
        Effect::PutQuota { key: *key, rule }
    });
    let mut effects: Vec<Effect> = rules.collect();
    effects.push(put(2, DIR));
    apply(engine, effects);
    let create = |ino: u64| {
        let entry = format!("f{ino}");
        let mut guards = vec![Guard::DirentAbsent { parent: Ino(2), name: name(&entry) }];
        let chain = keys.iter().zip([0, 1, 2]).rev();
        guards.extend(chain.map(|(&key, outer)| Guard::Quota {
            key,
            outer: Some(QuotaId(outer)),
            inodes: 1,
            blocks: 0,
        }));
        let mut effects = vec![put(ino, FILE), put_dirent(2, &entry, ino)];
        effects.extend(keys.map(|key| charge(key, 1, 0)));
        txn(guards, effects)
    };
    let remove = |ino: u64| {
        let mut effects = vec![Effect::DropInode { ino: Ino(ino) }];
        effects.extend(keys.map(|key| charge(key, -1, 0)));
        txn(Vec::new(), effects)
    };
    let done = |batch: &[Txn]| -> Vec<bool> {
        let outcomes = engine.commit(batch).expect("a commit");
        for outcome in &outcomes {
            if let Outcome::Conflict(snapshot) = outcome {
                let is_quota = |record: &&Record| matches!(record, Record::Quota(..));
                assert_eq!(snapshot.records.iter().filter(is_quota).count(), 3, "{snapshot:?}");
            }
        }
        outcomes.iter().map(|outcome| matches!(outcome, Outcome::Committed { .. })).collect()
    };
    let used = || keys.map(|key| quota(engine, key).map_or(-1, |quota| quota.inodes));
    assert_eq!(done(&(10..30).map(create).collect::<Vec<_>>()), [true; 20]);
    assert_eq!(used(), [20; 3]);
    let held: Vec<bool> = (0..10).map(|at| at < 4).collect();
    assert_eq!(done(&(30..40).map(create).collect::<Vec<_>>()), held);
    assert_eq!(used(), [24; 3]);
    let turns = [create(50), remove(10), create(51), create(52), remove(11), create(53)];
    assert_eq!(done(&turns), [false, true, true, false, true, true]);
    assert_eq!((used(), read_usage(engine).inodes), ([24; 3], 25));
    // A lower limit is in force for the next transaction of the same batch.
    let rule = QuotaRule { outer: QuotaId(1), ..limits(20, QuotaRule::NO_LIMIT) };
    let lower = txn(Vec::new(), vec![Effect::PutQuota { key: keys[1], rule }]);
    assert_eq!(done(&[remove(12), lower, create(54), remove(13)]), [true, true, false, true]);
    assert_eq!(used(), [22; 3]);
}

/// Many threads charge two quotas in both orders, with and without room. No charge is lost, no usage exceeds
/// its limit, and no thread waits forever.
pub fn concurrent_charges_never_exceed_a_limit(engine: &dyn Engine) {
    const THREADS: u64 = 8;
    const EACH: u64 = 12;
    const MAX: u64 = 50;
    let effects = [DIRECTORY, USER].map(|key| Effect::PutQuota { key, rule: limits(MAX, MAX * 3) });
    apply(engine, effects.into());
    let granted: u64 = std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            scope.spawn(move || {
                let mut keys = [DIRECTORY, USER];
                if thread % 2 == 1 {
                    keys.reverse();
                }
                let work = (0..EACH).filter(|at| {
                    let ino = 100 + thread * EACH + at;
                    let guards = keys.map(|key| Guard::Quota { key, outer: None, inodes: 1, blocks: 3 });
                    let mut effects = vec![put(ino, FILE)];
                    effects.extend(keys.map(|key| charge(key, 1, 3)));
                    let txn = txn(guards.into(), effects);
                    // Send the same transaction again, because the server may have chosen it as the victim of
                    // a deadlock.
                    let tried = crate::files::persistently(|| engine.commit(std::slice::from_ref(&txn)));
                    matches!(tried[..], [Outcome::Committed { .. }])
                });
                work.count() as u64
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert_eq!(granted, MAX);
    for key in [DIRECTORY, USER] {
        let found = quota(engine, key).map(|quota| (quota.inodes, quota.blocks));
        assert_eq!(found, Some((MAX as i64, MAX as i64 * 3)));
    }
    assert_eq!(read_usage(engine).inodes, MAX);
}
