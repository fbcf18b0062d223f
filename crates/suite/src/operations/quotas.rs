//! Quotas of directories, users and groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use client::QuotaError;
use meta::{Counting, Engine, Quota, QuotaKey, QuotaRule, QuotaState};
use ops::{GetQuotasOf, MakeOrphan, QuotaLimits, Reap, Rename, RenameFlags, SetAttr, Whiteout, XattrMode};
use types::{Errno, Ino, QuotaId};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, REPLACE, ROOT, client, fresh, n, volume};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("a_directory_quota_limits_what_is_below_it", a_directory_quota_limits_what_is_below_it),
    ("a_create_under_three_nested_quotas_is_one_round_trip", nested_quotas_cost_one_round_trip),
    ("a_moved_file_moves_its_usage_and_a_directory_stays", moves_between_quotas),
    ("a_file_with_several_names_stays_in_its_quota", several_names),
    ("the_directory_of_a_quota_moves_within_the_quota_around_it", the_directory_of_a_quota_moves),
    ("a_quota_counts_an_existing_tree_and_is_removed_from_it", an_existing_tree),
    ("an_interrupted_walk_is_completed_by_the_next_one", interrupted_walks),
    ("a_walk_reaches_inodes_that_others_move_meanwhile", a_walk_reaches_inodes_that_others_move),
    ("quotas_nest_from_the_outside_in", quotas_nest_from_the_outside_in),
    ("a_changed_limit_is_in_force_at_once_everywhere", changed_limits),
    ("users_and_groups_are_limited_and_the_superuser_is_not", users_and_groups),
    ("a_change_of_owner_moves_usage", a_change_of_owner_moves_usage),
    ("many_clients_under_nested_quotas_count_exactly", many_clients),
];

pub(super) const NONE: QuotaLimits =
    QuotaLimits { max_inodes: None, max_blocks: None, soft_inodes: None, soft_blocks: None };

pub(super) fn inodes(most: u64) -> QuotaLimits {
    QuotaLimits { max_inodes: Some(most), ..NONE }
}

fn blocks(most: u64) -> QuotaLimits {
    QuotaLimits { max_blocks: Some(most), ..NONE }
}

impl Client {
    pub(super) fn limit(&self, dir: Ino, limits: QuotaLimits) -> Result<QuotaId, QuotaError> {
        self.meta.set_directory_quota(dir, limits, &mut |_| true)
    }

    pub(super) fn quota(&self, key: QuotaKey) -> Quota {
        let quotas = self.meta.quotas().unwrap();
        let found = quotas.iter().find(|(found, _)| *found == key);
        found.unwrap_or_else(|| panic!("no quota {key:?}")).1
    }

    /// The inodes and blocks that a directory quota counts.
    pub(super) fn used(&self, id: QuotaId) -> (i64, i64) {
        let quota = self.quota(QuotaKey::Directory(id));
        (quota.inodes, quota.blocks)
    }

    fn owned(&self, key: QuotaKey) -> (i64, i64) {
        (self.quota(key).inodes, self.quota(key).blocks)
    }

    fn chown(&self, ino: Ino, uid: Option<u32>, gid: Option<u32>, is_superuser: bool) -> Result<(), Errno> {
        self.run(&SetAttr { ino, uid, gid, is_superuser, ..SetAttr::default() }).map(drop)
    }
}

fn a_directory_quota_limits_what_is_below_it(factory: Factory<'_>) {
    let c = fresh(factory);
    let d = c.mkdir(ROOT, "d").unwrap();
    let id = c.limit(d, QuotaLimits { max_inodes: Some(5), max_blocks: Some(10), ..NONE }).unwrap();
    assert_eq!(c.used(id), (1, 0));
    assert_eq!(c.quota(QuotaKey::Directory(id)).rule.state, QuotaState::Settled);
    let sub = c.mkdir(d, "sub").unwrap();
    let f = c.create(sub, "f").unwrap();
    assert_eq!((c.inode(sub).quota, c.inode(f).quota), (c.inode(d).quota, c.inode(d).quota));
    // Each operation that adds blocks is refused if they do not fit.
    c.write(f, 0, 8 * 4096, 1).unwrap();
    assert_eq!(c.used(id), (3, 8));
    assert_eq!(c.write(f, 8 * 4096, 3 * 4096, 2), Err(Errno::EDQUOT));
    c.write(f, 0, 4096, 3).unwrap();
    assert_eq!(c.truncate(f, 11 * 4096), Err(Errno::EDQUOT));
    c.truncate(f, 9 * 4096).unwrap();
    c.set_xattr(f, "user.a", "1", XattrMode::Set).unwrap();
    assert_eq!(c.set_xattr(sub, "user.a", "1", XattrMode::Set), Err(Errno::EDQUOT));
    assert_eq!(c.used(id), (3, 10));
    let append = ops::Append { ino: f, source: types::SliceSource::Hole, len: 1 };
    assert_eq!(c.run(&append), Err(Errno::EDQUOT));
    let allocate = ops::Allocate { ino: f, offset: 0, len: 10 * 4096, mode: ops::AllocateMode::Extend };
    assert_eq!(c.run(&allocate), Err(Errno::EDQUOT));
    c.truncate(f, 1).unwrap();
    assert_eq!(c.used(id), (3, 2));
    let copy = ops::CopyRange { from: f, offset: 0, to: f, to_offset: 10 * 4096, len: 1 };
    assert_eq!(c.run(&copy), Err(Errno::EDQUOT));
    // The same holds for inodes.
    c.symlink(d, "l", "target").unwrap();
    c.create(d, "g").unwrap();
    for refused in [c.create(d, "h"), c.mkdir(sub, "h"), c.symlink(d, "h", "t")] {
        assert_eq!(refused, Err(Errno::EDQUOT));
    }
    assert_eq!(
        c.run(&MakeOrphan(c.make_op(d, "tmp", ops::MakeKind::Regular, 0o600))).map(drop),
        Err(Errno::EDQUOT)
    );
    let whiteout = Some(Whiteout { ino: c.next_ino(), uid: 0, gid: 0 });
    let (name, new_name, flags) = (n("g"), n("gg"), RenameFlags::default());
    let rename = Rename { parent: d, name, new_parent: d, new_name, flags, whiteout, open: None };
    assert_eq!(c.run(&rename).map(drop), Err(Errno::EDQUOT));
    c.link(f, d, "f2").unwrap();
    c.create(ROOT, "outside").unwrap();
    // A removed file makes room; one that is open does so when it is closed.
    c.unlink_open(d, "g", Some(c.at(d, "g").ino)).unwrap();
    let orphan = c.at(d, "l").ino;
    assert_eq!(c.create(d, "h"), Err(Errno::EDQUOT));
    c.unlink(d, "l").unwrap();
    assert_ne!(orphan, Ino(0));
    c.create(d, "h").unwrap();
    check(&c);
    c.unlink(d, "f2").unwrap();
    c.unlink(sub, "f").unwrap();
    c.rmdir(d, "sub").unwrap();
    assert_eq!(c.used(id).1, 0);
    check(&c.stranger());
}

fn nested_quotas_cost_one_round_trip(factory: Factory<'_>) {
    let engine = Arc::new(Counting::new(factory()));
    volume().format(&*engine).unwrap();
    let shared: Arc<dyn Engine> = engine.clone();
    let c = client(&shared);
    let mut dir = ROOT;
    for name in ["a", "b", "c"] {
        dir = c.mkdir(dir, name).unwrap();
        c.limit(dir, inodes(1000)).unwrap();
    }
    c.meta.set_owner_quota(QuotaKey::User(7), inodes(1000), &mut |_| true).unwrap();
    let f = c.create(dir, "first").unwrap();
    let cost = |act: &dyn Fn()| {
        let before = engine.counts();
        act();
        (engine.counts() - before).round_trips()
    };
    assert_eq!(cost(&|| _ = c.create(dir, "f").unwrap()), 1);
    assert_eq!(cost(&|| c.write(f, 0, 5000, 1).unwrap()), 1);
    assert_eq!(cost(&|| _ = c.unlink(dir, "f").unwrap()), 1);
    assert_eq!(c.lookup(dir, "other"), Ok(None));
    assert_eq!(cost(&|| _ = c.rename(dir, "first", dir, "other", REPLACE).unwrap()), 1);
    let quotas = c.run(&GetQuotasOf(f)).unwrap();
    assert_eq!(
        quotas.iter().map(|quota| (quota.inodes, quota.blocks)).collect::<Vec<_>>(),
        [(2, 2), (3, 2), (4, 2)]
    );
    check(&c);
}

fn moves_between_quotas(factory: Factory<'_>) {
    let c = fresh(factory);
    let [a, b, free] = ["a", "b", "free"].map(|name| c.mkdir(ROOT, name).unwrap());
    let (qa, qb) = (
        c.limit(a, NONE).unwrap(),
        c.limit(b, QuotaLimits { max_inodes: Some(3), max_blocks: Some(4), ..NONE }).unwrap(),
    );
    let f = c.create(a, "f").unwrap();
    c.write(f, 0, 3 * 4096, 1).unwrap();
    c.set_xattr(f, "user.a", "1", XattrMode::Set).unwrap();
    assert_eq!((c.used(qa), c.used(qb)), ((2, 4), (1, 0)));
    c.rename(a, "f", b, "f", REPLACE).unwrap();
    assert_eq!((c.used(qa), c.used(qb)), ((1, 0), (2, 4)));
    // Moves into a full quota: to a free name, in exchange for a file, and over a file.
    let g = c.create(a, "g").unwrap();
    c.write(g, 0, 1, 2).unwrap();
    assert_eq!(c.rename(a, "g", b, "g", REPLACE).map(drop), Err(Errno::EDQUOT));
    c.rename(a, "g", b, "f", EXCHANGE).unwrap();
    assert_eq!((c.used(qa), c.used(qb)), ((2, 4), (2, 1)));
    c.rename(b, "f", a, "g", REPLACE).unwrap();
    assert_eq!((c.used(qa), c.used(qb)), ((2, 1), (1, 0)));
    // Move a file to a directory without a quota, and back.
    c.rename(a, "g", free, "g", REPLACE).unwrap();
    assert_eq!((c.used(qa), c.inode(g).quota), ((1, 0), c.inode(free).quota));
    c.rename(free, "g", a, "g", REPLACE).unwrap();
    assert_eq!(c.used(qa), (2, 1));
    // A directory does not move to another quota, because everything below it would have to count there too.
    c.mkdir(a, "sub").unwrap();
    c.mkdir(free, "sub").unwrap();
    for (from, name, to) in [(a, "sub", b), (a, "sub", free), (free, "sub", b)] {
        assert_eq!(c.rename(from, name, to, "moved", REPLACE).map(drop), Err(Errno::EXDEV));
    }
    assert_eq!(c.rename(a, "sub", b, "sub", EXCHANGE).map(drop), Err(Errno::ENOENT));
    c.rename(a, "sub", a, "renamed", REPLACE).unwrap();
    check(&c);
}

fn several_names(factory: Factory<'_>) {
    let c = fresh(factory);
    let [a, b] = ["a", "b"].map(|name| c.mkdir(ROOT, name).unwrap());
    let (qa, qb) = (c.limit(a, NONE).unwrap(), c.limit(b, NONE).unwrap());
    let f = c.create(a, "f").unwrap();
    assert_eq!(c.link(f, b, "f"), Err(Errno::EXDEV));
    assert_eq!(c.link(f, ROOT, "f"), Err(Errno::EXDEV));
    c.link(f, a, "g").unwrap();
    assert_eq!(c.rename(a, "g", b, "g", REPLACE).map(drop), Err(Errno::EXDEV));
    c.rename(a, "g", a, "h", REPLACE).unwrap();
    c.unlink(a, "f").unwrap();
    c.rename(a, "h", b, "h", REPLACE).unwrap();
    assert_eq!((c.used(qa), c.used(qb)), ((1, 0), (2, 0)));
    // A file without a name counts in the quota in which it was created.
    let orphan = c.run(&MakeOrphan(c.make_op(b, "tmp", ops::MakeKind::Regular, 0o600))).unwrap().ino;
    assert_eq!((c.used(qb), c.link(orphan, a, "o")), ((3, 0), Err(Errno::EXDEV)));
    c.run(&Reap { session: c.meta.session(), ino: orphan }).unwrap();
    assert_eq!(c.used(qb), (2, 0));
    check(&c);
}

fn the_directory_of_a_quota_moves(factory: Factory<'_>) {
    let c = fresh(factory);
    let [a, b] = ["a", "b"].map(|name| c.mkdir(ROOT, name).unwrap());
    let q = c.mkdir(ROOT, "q").unwrap();
    let id = c.limit(q, NONE).unwrap();
    c.create(q, "f").unwrap();
    c.rename(ROOT, "q", a, "q", REPLACE).unwrap();
    c.rename(a, "q", b, "q", REPLACE).unwrap();
    let qb = c.limit(a, NONE).unwrap();
    assert_eq!(
        c.rename(b, "q", a, "q", REPLACE).map(drop),
        Err(Errno::EXDEV),
        "it would count in another quota"
    );
    assert_eq!((c.used(id), c.used(qb)), ((2, 0), (1, 0)));
    // A directory inside the quota does not move out of it.
    c.mkdir(q, "sub").unwrap();
    assert_eq!(c.rename(q, "sub", b, "sub", REPLACE).map(drop), Err(Errno::EXDEV));
    check(&c);
}

/// Creates a tree with directories, files with blocks and xattrs, symlinks and a second name. Returns the
/// numbers of its inodes and blocks, including the top.
pub(super) fn tree(c: &Client, top: Ino) -> (i64, i64) {
    for name in ["x", "y", "z"] {
        let dir = c.mkdir(top, name).unwrap();
        for (at, file) in ["f", "g"].into_iter().enumerate() {
            let ino = c.create(dir, file).unwrap();
            c.write(ino, 0, 5000, 1 + at as u64).unwrap();
        }
        c.symlink(dir, "l", "f").unwrap();
    }
    let f = c.at(c.at(top, "x").ino, "f").ino;
    c.set_xattr(f, "user.a", "1", XattrMode::Set).unwrap();
    c.link(f, top, "second").unwrap();
    (1 + 3 * 4, 3 * 2 * 2 + 1)
}

fn an_existing_tree(factory: Factory<'_>) {
    let c = fresh(factory);
    let d = c.mkdir(ROOT, "d").unwrap();
    let size = tree(&c, d);
    let many = c.mkdir(d, "many").unwrap();
    for at in 0..40 {
        c.create(many, &format!("f{at}")).unwrap();
    }
    let size = (size.0 + 41, size.1);
    // A limit can be lower than the usage. Then nothing can be added.
    let id = c.limit(d, QuotaLimits { max_inodes: Some(5), max_blocks: Some(1), ..NONE }).unwrap();
    assert_eq!(c.used(id), size);
    assert_eq!(c.create(many, "more"), Err(Errno::EDQUOT));
    c.unlink(many, "f1").unwrap();
    assert_eq!(c.create(many, "more"), Err(Errno::EDQUOT));
    check(&c);
    c.meta.remove_directory_quota(id, &mut |_| true).unwrap();
    assert_eq!(c.meta.quotas().unwrap(), []);
    c.create(many, "more").unwrap();
    check(&c);
    assert!(matches!(c.meta.remove_directory_quota(id, &mut |_| true), Err(QuotaError::NoQuota)));
    // A quota of the volume's root, which also counts an unlinked inode; its removal must find that inode,
    // too.
    let id = c.limit(ROOT, NONE).unwrap();
    let open = c.at(many, "more").ino;
    c.unlink_open(many, "more", Some(open)).unwrap();
    c.meta.remove_directory_quota(id, &mut |_| true).unwrap();
    assert_eq!(c.meta.quotas().unwrap(), []);
    c.run(&Reap { session: c.meta.session(), ino: open }).unwrap();
    check(&c.stranger());
}

fn interrupted_walks(factory: Factory<'_>) {
    let c = fresh(factory);
    let d = c.mkdir(ROOT, "d").unwrap();
    let size = tree(&c, d);
    // Each attempt is interrupted after its second page of entries.
    let mut seen = Vec::new();
    let id = loop {
        let mut first = true;
        match c
            .stranger()
            .meta
            .set_directory_quota(d, inodes(100), &mut |_| std::mem::replace(&mut first, false))
        {
            Ok(id) => break id,
            Err(QuotaError::Interrupted) => {}
            Err(error) => panic!("{error}"),
        }
        check(&c);
        let quotas = c.meta.quotas().unwrap();
        let [(QuotaKey::Directory(id), quota)] = quotas[..] else { panic!("{quotas:?}") };
        assert_eq!(quota.rule.state, QuotaState::Building);
        seen.push(quota.inodes);
        if seen.len() == 3 {
            break c.limit(d, NONE).inspect(|same| assert_eq!(*same, id)).unwrap();
        }
    };
    assert_eq!((c.used(id), c.quota(QuotaKey::Directory(id)).rule.max_inodes), (size, 100));
    assert!(seen.iter().all(|count| *count < size.0), "{seen:?}");
    let removed = c.meta.remove_directory_quota(id, &mut |_| false);
    assert!(matches!(removed, Err(QuotaError::Interrupted)), "{removed:?}");
    assert!(matches!(c.limit(d, NONE), Err(QuotaError::Removing)));
    check(&c);
    c.meta.remove_directory_quota(id, &mut |_| true).unwrap();
    check(&c);
    assert_eq!(c.meta.quotas().unwrap(), []);

    // Another tool begins to remove the quota while a walk adds to it.
    let other = c.stranger();
    let mut removed = None;
    let set = c.meta.set_directory_quota(d, NONE, &mut |_| {
        let [(QuotaKey::Directory(id), _)] = other.meta.quotas().unwrap()[..] else { panic!("one quota") };
        removed.get_or_insert_with(|| (id, other.meta.remove_directory_quota(id, &mut |_| false)));
        true
    });
    assert!(matches!(set, Err(QuotaError::Removing)), "{set:?}");
    let (id, removed) = removed.unwrap();
    assert!(matches!(removed, Err(QuotaError::Interrupted)), "{removed:?}");
    c.meta.remove_directory_quota(id, &mut |_| true).unwrap();

    // No quota can be set inside an incomplete one, whether or not the walk of the incomplete one has reached
    // the directory.
    let deep = c.mkdir(c.at(d, "x").ino, "deep").unwrap();
    let set = c.meta.set_directory_quota(d, NONE, &mut |_| false);
    assert!(matches!(set, Err(QuotaError::Interrupted)), "{set:?}");
    let [(QuotaKey::Directory(outer), _)] = c.meta.quotas().unwrap()[..] else { panic!("one quota") };
    let inner = c.mkdir(d, "inner").unwrap();
    let dirs = [inner, deep];
    assert_eq!(dirs.map(|dir| c.inode(dir).quota.directory()), [outer, QuotaId(0)]);
    let require_refusal = || {
        for dir in dirs {
            let set = c.limit(dir, NONE);
            assert!(matches!(set, Err(QuotaError::Unfinished { dir }) if dir == d), "{set:?}");
        }
        check(&c);
    };
    require_refusal();
    let removed = c.meta.remove_directory_quota(outer, &mut |_| false);
    assert!(matches!(removed, Err(QuotaError::Interrupted)), "{removed:?}");
    require_refusal();
    c.meta.remove_directory_quota(outer, &mut |_| true).unwrap();
    check(&c);
    assert_eq!(c.meta.quotas().unwrap(), []);
    let outer = c.limit(d, NONE).unwrap();
    let ids = dirs.map(|dir| c.limit(dir, NONE).unwrap());
    assert_eq!(c.used(outer), (size.0 + 2, size.1));
    assert!(ids.iter().all(|id| c.quota(QuotaKey::Directory(*id)).rule.outer == outer));
    check(&c);
}

/// Between any two commits of a walk, another client moves inodes that the walk has not visited to
/// directories that it has visited.
fn a_walk_reaches_inodes_that_others_move(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let d = c.mkdir(ROOT, "d").unwrap();
    let other = c.stranger();
    for name in ["a", "m", "z"] {
        let dir = c.mkdir(d, name).unwrap();
        for at in 0..20 {
            c.create(dir, &format!("f{at:02}")).unwrap();
            c.mkdir(dir, &format!("d{at:02}")).unwrap();
        }
    }
    let [a, m, z] = ["a", "m", "z"].map(|name| c.at(d, name).ino);
    let mut turn = 0;
    let mut refused = 0;
    let id = c
        .meta
        .set_directory_quota(d, NONE, &mut |_| {
            for (from, to) in [(a, z), (z, a), (m, a), (z, m), (m, m), (z, z)] {
                for name in [format!("f{:02}", turn % 20), format!("d{:02}", turn % 20)] {
                    match other.rename(from, &name, to, &format!("{name}-{turn}"), REPLACE) {
                        Ok(_) | Err(Errno::ENOENT) => {}
                        Err(Errno::EXDEV) => refused += 1,
                        Err(errno) => panic!("{errno}"),
                    }
                    turn += 1;
                }
            }
            other.create(z, &format!("new{turn}")).unwrap();
            true
        })
        .unwrap();
    assert!(turn > 20 && refused > 0, "{turn} moves, {refused} refused");
    // Every inode below the directory has its tag.
    let all = super::invariants::inodes(c.engine());
    let count = all.values().filter(|inode| inode.quota.directory() == id).count();
    assert_eq!((count, c.used(id).0), (all.len() - 1, all.len() as i64 - 1));
    check(&c.stranger());
}

fn quotas_nest_from_the_outside_in(factory: Factory<'_>) {
    let c = fresh(factory);
    let a = c.mkdir(ROOT, "a").unwrap();
    let b = c.mkdir(a, "b").unwrap();
    let inner = c.limit(b, NONE).unwrap();
    assert!(matches!(c.limit(a, NONE), Err(QuotaError::Inside { dir }) if dir == b));
    assert!(matches!(c.limit(ROOT, NONE), Err(QuotaError::Inside { dir }) if dir == b));
    assert_eq!(c.meta.quotas().unwrap().len(), 1, "nothing was changed");
    c.meta.remove_directory_quota(inner, &mut |_| true).unwrap();
    let outer = c.limit(a, inodes(4)).unwrap();
    let inner = c.limit(b, inodes(3)).unwrap();
    assert_ne!(inner, outer);
    assert_eq!((c.used(outer), c.used(inner)), ((2, 0), (1, 0)));
    // Both limits hold.
    c.create(b, "1").unwrap();
    c.create(b, "2").unwrap();
    assert_eq!(c.create(b, "3"), Err(Errno::EDQUOT), "the inner one");
    assert_eq!(c.create(a, "3"), Err(Errno::EDQUOT), "the outer one");
    c.limit(b, inodes(9)).unwrap();
    assert_eq!(c.create(b, "3"), Err(Errno::EDQUOT), "now the outer one");
    // A file that moves out of the inner quota still counts in the outer one.
    c.rename(b, "1", a, "1", REPLACE).unwrap();
    assert_eq!((c.used(outer), c.used(inner)), ((4, 0), (2, 0)));
    let removed = c.meta.remove_directory_quota(outer, &mut |_| true);
    assert!(matches!(removed, Err(QuotaError::Inside { dir }) if dir == b), "{removed:?}");
    assert_eq!(c.quota(QuotaKey::Directory(outer)).rule.state, QuotaState::Settled);
    c.meta.remove_directory_quota(inner, &mut |_| true).unwrap();
    assert_eq!(c.used(outer), (4, 0));
    check(&c);
    // Quotas nest only to a certain depth.
    c.limit(a, inodes(QuotaRule::NO_LIMIT)).unwrap();
    let (mut dir, mut depth) = (a, 1);
    let refused = loop {
        dir = c.mkdir(dir, "deep").unwrap();
        match c.limit(dir, NONE) {
            Ok(_) => depth += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(depth, ops::MAX_NESTED_QUOTAS);
    assert!(matches!(refused, QuotaError::Failed(client::Failure::Operation(Errno::ELOOP))), "{refused:?}");
}

fn changed_limits(factory: Factory<'_>) {
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let d = c.mkdir(ROOT, "d").unwrap();
    let (tool, other) = (c.stranger(), c.stranger());
    // The other client has cached the directory when it had no quota.
    other.create(d, "before").unwrap();
    let id = tool.limit(d, inodes(3)).unwrap();
    other.create(d, "one").unwrap();
    assert_eq!(other.create(d, "two"), Err(Errno::EDQUOT));
    tool.limit(d, inodes(4)).unwrap();
    other.create(d, "two").unwrap();
    assert_eq!(other.create(d, "three"), Err(Errno::EDQUOT));
    tool.meta.remove_directory_quota(id, &mut |_| true).unwrap();
    other.create(d, "three").unwrap();
    // Set an outer quota around the one that the other client has cached.
    let id = tool.limit(d, inodes(9)).unwrap();
    other.create(d, "four").unwrap();
    tool.meta.remove_directory_quota(id, &mut |_| true).unwrap();
    tool.limit(ROOT, inodes(8)).unwrap();
    tool.limit(d, inodes(9)).unwrap();
    other.create(d, "five").unwrap();
    assert_eq!(other.create(d, "six"), Err(Errno::EDQUOT));
    check(&c.stranger());
}

fn users_and_groups(factory: Factory<'_>) {
    let mut c = fresh(factory);
    (c.uid, c.gid) = (7, 70);
    let d = c.mkdir(ROOT, "d").unwrap();
    let f = c.create(d, "f").unwrap();
    c.write(f, 0, 4097, 1).unwrap();
    let (user, group) = (QuotaKey::User(7), QuotaKey::Group(70));
    c.meta.set_owner_quota(user, inodes(3), &mut |_| true).unwrap();
    assert_eq!((c.owned(user), c.owned(group)), ((2, 2), (2, 2)));
    assert_eq!(c.owned(QuotaKey::User(0)), (1, 0), "the root");
    check(&c);
    let g = c.create(d, "g").unwrap();
    assert_eq!(c.create(d, "h"), Err(Errno::EDQUOT));
    c.uid = 8;
    c.create(d, "h").unwrap();
    c.meta.set_owner_quota(group, blocks(3), &mut |_| true).unwrap();
    c.write(g, 0, 4096, 2).unwrap();
    assert_eq!(c.write(f, 0, 2 * 4096 + 1, 3), Err(Errno::EDQUOT), "the group of the file");
    // The quota of a group does not limit root, but limits other members of the group.
    (c.uid, c.gid) = (0, 70);
    c.meta.set_owner_quota(group, inodes(1), &mut |_| true).unwrap();
    c.create(d, "by root").unwrap();
    c.uid = 9;
    assert_eq!(c.create(d, "not by root"), Err(Errno::EDQUOT));
    // A quota of a directory limits root, too.
    c.limit(d, inodes(5)).unwrap();
    c.uid = 0;
    assert_eq!(c.create(d, "more"), Err(Errno::EDQUOT));
    check(&c.stranger());
}

fn a_change_of_owner_moves_usage(factory: Factory<'_>) {
    let mut c = fresh(factory);
    (c.uid, c.gid) = (7, 70);
    let f = c.create(ROOT, "f").unwrap();
    c.write(f, 0, 4097, 1).unwrap();
    c.set_xattr(f, "user.a", "1", XattrMode::Set).unwrap();
    c.meta.set_owner_quota(QuotaKey::User(8), blocks(2), &mut |_| true).unwrap();
    c.meta.set_owner_quota(QuotaKey::Group(80), inodes(0), &mut |_| true).unwrap();
    assert_eq!(c.chown(f, Some(8), None, false), Err(Errno::EDQUOT));
    assert_eq!(c.chown(f, None, Some(80), false), Err(Errno::EDQUOT));
    assert_eq!(c.owned(QuotaKey::User(7)), (1, 3));
    c.chown(f, Some(8), Some(80), true).unwrap();
    let used = [QuotaKey::User(7), QuotaKey::Group(70), QuotaKey::User(8), QuotaKey::Group(80)];
    assert_eq!(used.map(|key| c.owned(key)), [(0, 0), (0, 0), (1, 3), (1, 3)]);
    // Change the owner and the size in the same call.
    let op = SetAttr { ino: f, uid: Some(7), size: Some(3 * 4096), ..SetAttr::default() };
    c.run(&op).unwrap();
    assert_eq!([QuotaKey::User(7), QuotaKey::User(8)].map(|key| c.owned(key)), [(1, 4), (0, 0)]);
    check(&c.stranger());
}

/// Clients create, write, move and remove under nested quotas with little room, while a tool changes limits,
/// and sets and removes a quota. All counters stay exact, and no hard limit is exceeded.
fn many_clients(factory: Factory<'_>) {
    const CLIENTS: u64 = 4;
    const TURNS: u64 = 30;
    let c = fresh(factory);
    c.meta.set_exclusive(false);
    let mut dirs = vec![ROOT];
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        let dir = c.mkdir(*dirs.last().unwrap(), name).unwrap();
        ids.push(c.limit(dir, QuotaLimits { max_inodes: Some(40), max_blocks: Some(30), ..NONE }).unwrap());
        dirs.push(dir);
    }
    let free = c.mkdir(dirs[1], "free").unwrap();
    let is_done = AtomicBool::new(false);
    let clients: Vec<Client> = (0..CLIENTS).map(|_| c.stranger()).collect();
    std::thread::scope(|scope| {
        let work = clients.iter().zip(0..).map(|(client, number)| {
            let dirs = &dirs;
            scope.spawn(move || {
                let allowed = |done: Result<(), Errno>| match done {
                    Ok(()) | Err(Errno::EDQUOT | Errno::ENOENT | Errno::EXDEV) => {}
                    Err(errno) => panic!("{errno}"),
                };
                for turn in 0..TURNS {
                    let dir = dirs[((turn + number) % 4) as usize];
                    let name = format!("f{number}-{turn}");
                    let Ok(file) = client.create(dir, &name) else { continue };
                    allowed(client.write(file, 0, 4096 * (1 + turn as u32 % 3), turn + 1));
                    let to = dirs[((turn * 7 + number) % 4) as usize];
                    allowed(client.rename(dir, &name, to, &name, REPLACE).map(drop));
                    if turn % 2 == 0 {
                        allowed(client.unlink(to, &name).map(drop));
                    }
                }
            })
        });
        let work: Vec<_> = work.collect();
        let tool = scope.spawn(|| {
            let tool = c.stranger();
            for turn in 0.. {
                tool.limit(dirs[2], inodes(20 + turn % 30)).unwrap();
                let id = tool.limit(free, NONE).unwrap();
                tool.meta.remove_directory_quota(id, &mut |_| true).unwrap();
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        work.into_iter().for_each(|thread| thread.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
        tool.join().unwrap();
    });
    for id in ids {
        let (inodes, blocks) = c.used(id);
        assert!(inodes <= 50 && blocks <= 30, "{inodes}, {blocks}");
    }
    check(&c.stranger());
}
