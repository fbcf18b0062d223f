//! Quotas while another client or tool changes the volume.

use std::time::Duration;

use client::QuotaError;
use meta::{QuotaKey, QuotaState};
use ops::{
    Allocate, AllocateMode, Append, BeginQuota, GetQuotas, GetXattrs, QuotaLimits, Retag, RetagAt, TagChange,
    XattrMode,
};
use types::{Errno, QuotaId, SliceSource};

use super::case::{Case, Factory};
use super::fixture::{Client, REPLACE, ROOT, fresh};
use super::invariants::check;
use super::quotas::{NONE, inodes, tree};
use super::races::Race;
use crate::faulty::Fault;

pub(super) const CASES: &[Case] = &[
    ("a_full_quota_refuses_only_additions", a_full_quota_refuses_only_additions),
    ("stale_xattrs_are_charged_exactly", stale_xattrs_are_charged_exactly),
    ("stale_sizes_are_charged_exactly", stale_sizes_are_charged_exactly),
    ("a_walk_ends_if_another_tool_removes_the_quota", a_walk_ends_if_another_tool_removes_the_quota),
    ("a_removal_that_gives_up_calls_no_quota_complete", a_removal_that_gives_up_calls_no_quota_complete),
];

/// The quota is full only while the name exists. In that time, EEXIST is the correct error. After the name is
/// removed, the create must succeed.
fn a_full_quota_refuses_only_additions(factory: Factory<'_>) {
    let race = Race::new(factory);
    let rival = race.rival.lock().unwrap();
    let outer = rival.mkdir(ROOT, "outer").unwrap();
    rival.limit(outer, inodes(100)).unwrap();
    let d = rival.mkdir(outer, "d").unwrap();
    rival.limit(d, inodes(2)).unwrap();
    rival.create(d, "n").unwrap();
    drop(rival);
    // The client has cached the directory, but neither its quota nor the name.
    assert_eq!(race.client.at(outer, "d").ino, d);
    let made =
        race.lose(|r| r.unlink(r.at(r.at(ROOT, "outer").ino, "d").ino, "n").unwrap(), |c| c.create(d, "n"));
    assert!(made.is_ok(), "{made:?}");
    // A file moves from one quota to a full one. Both are inside a third one, whose counters do not change.
    let c = &race.client;
    let e = c.mkdir(outer, "e").unwrap();
    c.limit(e, NONE).unwrap();
    c.create(e, "f").unwrap();
    let counts = || race.faulty.inner().counts();
    let before = counts();
    assert_eq!(c.rename(e, "f", d, "f", REPLACE).map(drop), Err(Errno::EDQUOT));
    assert!((counts() - before).round_trips() <= 3, "{:?}", counts() - before);
    check(c);
}

/// If the cached inode is older than the cached xattrs, it records fewer xattr blocks than the operation
/// removes.
fn stale_xattrs_are_charged_exactly(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let d = c.mkdir(ROOT, "d").unwrap();
    let id = c.limit(d, NONE).unwrap();
    let f = c.create(d, "f").unwrap();
    let other = c.stranger();
    other.meta.set_lifetime(Duration::from_secs(3600));
    assert_eq!(other.inode(f).xattr_blocks, 0);
    c.set_xattr(f, "user.a", &"a".repeat(8193), XattrMode::Set).unwrap();
    assert_eq!(other.run(&GetXattrs(f)).unwrap().len(), 1);
    assert_eq!(other.inode(f).xattr_blocks, 0, "the cached inode");
    other.set_xattr(f, "user.a", "a", XattrMode::Set).unwrap();
    assert_eq!(c.used(id), (2, 1));
    check(&c.stranger());
}

/// A client with a stale cached size must charge the difference from the current size.
fn stale_sizes_are_charged_exactly(factory: Factory<'_>) {
    const BLOCK: u32 = 4096;
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let d = c.mkdir(ROOT, "d").unwrap();
    let id = c.limit(d, QuotaLimits { max_blocks: Some(4), ..NONE }).unwrap();
    let [f, g] = ["f", "g"].map(|name| c.create(d, name).unwrap());
    let allocate = Allocate { ino: f, offset: 0, len: (2 * BLOCK).into(), mode: AllocateMode::Extend };
    let append = Append { ino: f, source: SliceSource::Hole, len: 2 * BLOCK };
    type Grow<'a> = &'a dyn Fn(&Client) -> Result<(), Errno>;
    let grow: [Grow<'_>; 4] = [
        &|other| other.write(f, 0, 2 * BLOCK, 2),
        &|other| other.truncate(f, (2 * BLOCK).into()),
        &|other| other.run(&allocate),
        &|other| other.run(&append).map(drop),
    ];
    // The cached size is smaller than the present one, or larger, or so large that the operation would not
    // enlarge the file; in the last case, the quota is full.
    for (cached, present, full) in [(0, 1, false), (3, 0, false), (2, 0, false), (2, 0, true)] {
        for (at, grow) in grow.iter().enumerate() {
            c.truncate(g, 0).unwrap();
            c.truncate(f, u64::from(cached * BLOCK)).unwrap();
            let other = c.stranger();
            other.meta.set_lifetime(Duration::from_secs(3600));
            assert_eq!(other.inode(f).size, u64::from(cached * BLOCK));
            c.truncate(f, u64::from(present * BLOCK)).unwrap();
            c.truncate(g, if full { 4 * u64::from(BLOCK) } else { 0 }).unwrap();
            assert_eq!(other.inode(f).size, u64::from(cached * BLOCK), "the cached inode");
            let done = grow(&other);
            assert_eq!(
                done,
                if full { Err(Errno::EDQUOT) } else { Ok(()) },
                "{at}, from {cached}, {present}"
            );
            let used = match (full, at) {
                (true, _) => 4,
                (false, 3) => i64::from(present) + 2,
                (false, _) => 2,
            };
            assert_eq!(c.used(id), (3, used), "{at}, from {cached}, {present}");
        }
    }
    check(&c.stranger());
}

/// No inode may get the tag of a quota that does not exist any more.
fn a_walk_ends_if_another_tool_removes_the_quota(factory: Factory<'_>) {
    let race = Race::new(factory);
    let c = &race.client;
    let d = c.mkdir(ROOT, "d").unwrap();
    tree(c, d);
    let remove = |r: &Client| {
        let [(QuotaKey::Directory(id), _)] = r.meta.quotas().unwrap()[..] else { panic!("one quota") };
        r.meta.remove_directory_quota(id, &mut |_| true).unwrap();
    };
    // The other tool acts right before the first commit of the walk.
    let next = c.run(&GetQuotas).unwrap().0;
    let to = c.run(&BeginQuota { dir: d, next, limits: NONE }).unwrap();
    let change = TagChange::Directory { from: QuotaId(0), to };
    let first = || Retag { change, at: RetagAt::Inode(d) };
    assert_eq!(race.lose(remove, |c| c.run(&first())), Err(Errno::EBUSY));
    assert_eq!(c.run(&first()), Err(Errno::EBUSY));
    check(c);
    // The other tool acts later in the walk.
    let set = c.meta.set_directory_quota(d, NONE, &mut |done| {
        if done.seen < 10 {
            remove(&race.rival.lock().unwrap());
        }
        true
    });
    assert!(matches!(set, Err(QuotaError::NoQuota)), "{set:?}");
    check(c);
    // Another tool completes the walk, or the removal.
    let set = c.meta.set_directory_quota(d, NONE, &mut |_| {
        race.rival.lock().unwrap().limit(d, NONE).unwrap();
        true
    });
    let id = set.unwrap();
    assert_eq!(c.quota(QuotaKey::Directory(id)).rule.state, QuotaState::Settled);
    check(c);
    let removed = c.meta.remove_directory_quota(id, &mut |_| {
        remove(&race.rival.lock().unwrap());
        true
    });
    assert!(matches!(removed, Err(QuotaError::NoQuota)), "{removed:?}");
    assert_eq!(c.meta.quotas().unwrap(), []);
    check(c);
}

/// The removal of a quota finds that another tool has set a quota inside it, and gives up. Meanwhile the
/// inner quota is removed, and another removal takes some inodes out of the outer quota.
fn a_removal_that_gives_up_calls_no_quota_complete(factory: Factory<'_>) {
    let race = Race::new(factory);
    let c = &race.client;
    let d = c.mkdir(ROOT, "d").unwrap();
    let size = tree(c, d);
    let id = c.limit(d, NONE).unwrap();
    let rival = race.rival.clone();
    race.faulty.set_rival(move |_| {
        let r = rival.lock().unwrap();
        let quotas = r.meta.quotas().unwrap();
        match (r.quota(QuotaKey::Directory(id)).rule.state, &quotas[..]) {
            (QuotaState::Settled, [_]) => _ = r.limit(r.at(d, "x").ino, NONE).unwrap(),
            (QuotaState::Removing, [_, (QuotaKey::Directory(inner), _)]) => {
                r.meta.remove_directory_quota(*inner, &mut |_| true).unwrap();
                let removed = r.meta.remove_directory_quota(id, &mut |_| false);
                assert!(matches!(removed, Err(QuotaError::Interrupted)), "{removed:?}");
            }
            _ => {}
        }
    });
    race.faulty.script([Fault::Rival; 40]);
    let removed = c.meta.remove_directory_quota(id, &mut |_| true);
    race.faulty.script([]);
    assert!(matches!(removed, Err(QuotaError::Inside { .. })), "{removed:?}");
    assert_eq!(c.quota(QuotaKey::Directory(id)).rule.state, QuotaState::Building);
    assert!(c.used(id).0 < size.0, "some inodes are not in the quota");
    assert_eq!(c.limit(d, NONE).unwrap(), id);
    assert_eq!(c.used(id), size);
    check(c);
}
