//! Tests of each guard: when it holds, and when it fails.

use meta::{Counter, Effect, Engine, Guard, Outcome, Record, RecordKey, Session};
use types::{AclId, Ino, SessionId, Time, XattrName};

use super::fixture::*;

/// Asserts that the guard holds, in a transaction without effects and in one with an effect.
pub(super) fn holds(engine: &dyn Engine, guard: Guard) {
    committed(commit(engine, txn(vec![guard.clone()], Vec::new())));
    let effect = Effect::PutSetting { name: "held", value: format!("{guard:?}") };
    committed(commit(engine, txn(vec![guard], vec![effect])));
}

/// Asserts that the guard fails, that no effect of its transaction is applied, and that the conflict contains
/// the current record that decides the guard.
pub(super) fn fails(engine: &dyn Engine, guard: Guard) {
    for effects in [Vec::new(), vec![Effect::PutSetting { name: "failed", value: String::new() }]] {
        match commit(engine, txn(vec![guard.clone()], effects)) {
            Outcome::Conflict(snapshot) => {
                assert_eq!(snapshot.records, read(engine, &[guard.key()]), "{guard:?}")
            }
            outcome => panic!("{guard:?} held: {outcome:?}"),
        }
    }
    holds(engine, Guard::Setting { name: "failed", value: None });
}

pub fn dirent_guards(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), put(3, FILE), put_dirent(2, "a", 3)]);
    let (parent, a, b) = (Ino(2), name("a"), name("b"));
    holds(engine, Guard::DirentIs { parent, name: a.clone(), ino: Ino(3) });
    fails(engine, Guard::DirentIs { parent, name: a.clone(), ino: Ino(4) });
    fails(engine, Guard::DirentIs { parent, name: b.clone(), ino: Ino(3) });
    holds(engine, Guard::DirentAbsent { parent, name: b });
    fails(engine, Guard::DirentAbsent { parent, name: a.clone() });
    holds(engine, Guard::DirentAbsent { parent: Ino(9), name: a });
}

pub fn inode_guards(engine: &dyn Engine) {
    let mut dir = inode(2, DIR);
    (dir.parent, dir.nlink, dir.access_rev) = (Ino(7), 3, 11);
    apply(engine, vec![Effect::PutInode(dir)]);
    let ino = Ino(2);
    holds(engine, Guard::Access { ino, rev: 11 });
    fails(engine, Guard::Access { ino, rev: 10 });
    fails(engine, Guard::Access { ino, rev: u64::MAX });
    holds(engine, Guard::Links { ino, nlink: 3 });
    fails(engine, Guard::Links { ino, nlink: 2 });
    holds(engine, Guard::ParentIs { ino, parent: Ino(7) });
    fails(engine, Guard::ParentIs { ino, parent: Ino(8) });
    holds(engine, Guard::InodeAbsent { ino: Ino(3) });
    fails(engine, Guard::InodeAbsent { ino });
}

pub fn empty_guard(engine: &dyn Engine) {
    apply(engine, vec![put(2, DIR), put(4, DIR), put_dirent(2, "a", 3)]);
    fails(engine, Guard::Empty { ino: Ino(2) });
    holds(engine, Guard::Empty { ino: Ino(4) });
    apply(engine, vec![Effect::DropDirent { parent: Ino(2), name: name("a") }]);
    holds(engine, Guard::Empty { ino: Ino(2) });
}

pub fn xattr_guard(engine: &dyn Engine) {
    let (ino, here, gone) = (Ino(3), xattr("user.here"), xattr("user.gone"));
    let xattr = |name: &XattrName, blocks| Guard::Xattr { ino, name: name.clone(), blocks };
    apply(engine, vec![put(3, FILE)]);
    for (len, blocks) in [(0, 1), (1, 1), (4096, 1), (4097, 2), (65_536, 16)] {
        apply(engine, vec![Effect::PutXattr { ino, name: here.clone(), value: vec![b'v'; len].into() }]);
        holds(engine, xattr(&here, blocks));
        fails(engine, xattr(&here, blocks - 1));
        fails(engine, xattr(&here, blocks + 1));
    }
    holds(engine, xattr(&gone, 0));
    fails(engine, xattr(&gone, 1));
    holds(engine, Guard::Xattr { ino: Ino(4), name: here, blocks: 0 });
}

pub fn xattr_blocks_guard(engine: &dyn Engine) {
    for (ino, kind) in [(3, FILE), (4, DIR)] {
        apply(engine, vec![put(ino, kind)]);
        let ino = Ino(ino);
        holds(engine, Guard::XattrBlocks { ino, least: 0, most: 0 });
        apply(engine, vec![Effect::AddXattrBlocks { ino, delta: 256 }]);
        holds(engine, Guard::XattrBlocks { ino, least: 0, most: 256 });
        holds(engine, Guard::XattrBlocks { ino, least: 256, most: 256 });
        fails(engine, Guard::XattrBlocks { ino, least: 257, most: u16::MAX });
        holds(engine, Guard::XattrBlocks { ino, least: 0, most: u16::MAX });
        fails(engine, Guard::XattrBlocks { ino, least: 0, most: 255 });
        fails(engine, Guard::XattrBlocks { ino, least: 0, most: 0 });
    }
    fails(engine, Guard::XattrBlocks { ino: Ino(5), least: 0, most: u16::MAX });
}

pub fn setting_guard(engine: &dyn Engine) {
    apply(engine, vec![Effect::PutSetting { name: "name", value: "v".to_owned() }]);
    holds(engine, Guard::Setting { name: "name", value: Some("v".to_owned()) });
    fails(engine, Guard::Setting { name: "name", value: Some("w".to_owned()) });
    fails(engine, Guard::Setting { name: "name", value: None });
    holds(engine, Guard::Setting { name: "other", value: None });
    fails(engine, Guard::Setting { name: "other", value: Some(String::new()) });
}

pub fn counter_guard(engine: &dyn Engine) {
    let counter = Counter::Slice;
    holds(engine, Guard::Counter { counter, value: 0 });
    apply(engine, vec![Effect::SetCounter { counter, value: 40 }]);
    holds(engine, Guard::Counter { counter, value: 40 });
    fails(engine, Guard::Counter { counter, value: 0 });
    holds(engine, Guard::Counter { counter: Counter::Ino, value: 0 });
}

pub fn room_guard(engine: &dyn Engine) {
    let mut file = inode(3, FILE);
    file.size = 4097;
    apply(engine, vec![put(2, DIR), Effect::PutInode(file)]);
    // The volume has 2 inodes, and 2 blocks in use. The guard requires fewer than its limits.
    holds(engine, Guard::Room { max_inodes: 3, max_blocks: 3 });
    holds(engine, Guard::Room { max_inodes: u64::MAX, max_blocks: u64::MAX });
    fails(engine, Guard::Room { max_inodes: 2, max_blocks: 3 });
    fails(engine, Guard::Room { max_inodes: 3, max_blocks: 2 });
}

pub fn session_guard(engine: &dyn Engine) {
    let later = Session { heartbeat: Time::from_nanos(99), ..session(4) };
    let guard = |id, heartbeat: Option<Time>| Guard::Session { session: SessionId(id), heartbeat };
    fails(engine, guard(4, None));
    apply(engine, vec![Effect::PutSession(session(4)), Effect::PutSession(session(5))]);
    holds(engine, guard(4, None));
    holds(engine, guard(4, Some(session(4).heartbeat)));
    fails(engine, guard(4, Some(later.heartbeat)));
    fails(engine, guard(6, None));
    fails(engine, guard(6, Some(session(4).heartbeat)));
    // After a renewal, a guard with the old heartbeat fails: a session that was renewed is not removed.
    committed(commit(engine, txn(vec![guard(4, None)], vec![Effect::PutSession(later.clone())])));
    fails(engine, guard(4, Some(session(4).heartbeat)));
    holds(engine, guard(4, Some(later.heartbeat)));
    // A removed session cannot change anything, not even in the batch that removes it.
    let drop = Effect::DropSession { session: SessionId(4) };
    let renew = txn(vec![guard(4, None)], vec![Effect::PutSession(later.clone())]);
    let create = txn(vec![guard(4, None)], vec![put(3, FILE)]);
    let remove = txn(vec![guard(5, None), guard(4, Some(later.heartbeat))], vec![drop]);
    let outcomes = engine.commit(&[remove, renew, create]).expect("a commit");
    assert!(matches!(outcomes[..], [Outcome::Committed { .. }, Outcome::Conflict(_), Outcome::Conflict(_)]));
    assert_eq!(read(engine, &[RecordKey::Session(SessionId(4))]), [Record::Session(SessionId(4), None)]);
    assert_eq!(read_inode(engine, 3), None);
    fails(engine, guard(4, None));
    holds(engine, guard(5, None));
}

pub fn guards_on_absent_records(engine: &dyn Engine) {
    for ino in [Ino(0), Ino(9), Ino(i64::MAX as u64), Ino(u64::MAX)] {
        fails(engine, Guard::Access { ino, rev: 0 });
        fails(engine, Guard::Links { ino, nlink: 0 });
        fails(engine, Guard::ParentIs { ino, parent: Ino(0) });
        holds(engine, Guard::InodeAbsent { ino });
        holds(engine, Guard::Empty { ino });
    }
}

pub fn a_conflict_returns_the_records_of_every_guard(engine: &dyn Engine) {
    let acl = AclId(77);
    let mut file = inode(3, FILE);
    file.access_acl = acl;
    apply(
        engine,
        vec![
            put(2, DIR),
            Effect::PutAcl { id: acl, text: "u::rw-".into() },
            Effect::PutInode(file),
            put_dirent(2, "a", 3),
        ],
    );
    let guards = vec![
        Guard::Access { ino: Ino(2), rev: 5 },
        Guard::DirentAbsent { parent: Ino(2), name: name("a") },
        Guard::Empty { ino: Ino(3) },
        Guard::Room { max_inodes: 0, max_blocks: 0 },
    ];
    let keys: Vec<RecordKey> = guards.iter().map(Guard::key).collect();
    let Outcome::Conflict(snapshot) = commit(engine, txn(guards, vec![put(4, FILE)])) else {
        panic!("failing guards held")
    };
    assert_eq!(snapshot.records, read(engine, &keys));
    // The records of a directory entry include the inode that it refers to, and that inode's ACL.
    assert!(snapshot.records.contains(&Record::Acl(acl, Some("u::rw-".into()))));
    assert_eq!(read_inode(engine, 4), None);
}
