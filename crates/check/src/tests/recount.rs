//! Quotas are counted again while other clients change the volume.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use client::Failure;
use meta::QuotaKey;
use ops::{CorrectQuotas, QuotaLimits, Reap, Rename, RenameFlags, SetAttr};
use types::Errno;

use super::*;
use crate::{Difference, Recount, recount};

const TOOL: Authority<'static> = Authority::Kernel { revisions: None };
const WRITERS: u64 = 4;

/// Directories `a`, `a/b` and `c`, with quotas of their own, each with 600 files.
struct Tree {
    engine: Arc<dyn Engine>,
    dirs: [Ino; 3],
    keys: [QuotaKey; 3],
}

impl Tree {
    fn new() -> Self {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let client = Client::new(&engine);
        client.meta.set_owner_quota(QuotaKey::User(0), QuotaLimits::default(), &mut |_| true).unwrap();
        let a = client.make(Ino::ROOT, "a", MakeKind::Directory).unwrap();
        let b = client.make(a, "b", MakeKind::Directory).unwrap();
        let c = client.make(Ino::ROOT, "c", MakeKind::Directory).unwrap();
        let dirs = [a, b, c];
        let keys = dirs.map(|dir| {
            let id = client.meta.set_directory_quota(dir, QuotaLimits::default(), &mut |_| true).unwrap();
            (0..600).for_each(|n| _ = client.make(dir, &format!("old{n}"), MakeKind::Regular).unwrap());
            QuotaKey::Directory(id)
        });
        Tree { engine, dirs, keys }
    }

    fn recount(&self) -> Recount {
        recount(&self.engine, tempfile::tempfile, &mut |_| true).unwrap()
    }
}

struct Client {
    meta: Meta,
    random: u64,
}

impl Client {
    fn new(engine: &Arc<dyn Engine>) -> Self {
        Client { meta: Meta::open(Arc::clone(engine), 1000).unwrap(), random: 1 }
    }

    fn below(&mut self, limit: u64) -> u64 {
        // The linear congruential generator of Knuth's MMIX.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    fn op(&self, parent: Ino, text: &str, kind: MakeKind, uid: u32) -> Make {
        let ino = Ino(self.meta.lease(Counter::Ino, 1).unwrap());
        let mode = Mode::new(0o755);
        Make { parent, name: name(text), ino, kind, mode, umask: 0, uid, gid: uid }
    }

    fn make(&self, parent: Ino, text: &str, kind: MakeKind) -> Result<Ino, Failure> {
        self.meta.run(&self.op(parent, text, kind, 0), &TOOL).map(|made| made.ino)
    }

    /// A random change. It may fail.
    fn change(&mut self, dirs: &[Ino; 3]) {
        let [dir, to] = [(); 2].map(|()| dirs[self.below(3) as usize]);
        let [one, other] = [(); 2].map(|()| name(&format!("old{}", self.below(600))));
        let uid = self.below(3) as u32;
        let found = self.meta.run(&ops::Lookup { parent: dir, name: one.clone() }, &TOOL);
        let found = found.ok().flatten().map(|inode| inode.ino);
        let _ = match (self.below(6), found) {
            (0, Some(ino)) => {
                let end = self.below(9) * 4096;
                self.meta.run(&Write { ino, slices: Vec::new(), end, mtime: Time::now() }, &TOOL)
            }
            (1, Some(_)) => self.meta.run(&Unlink { parent: dir, name: one, open: None }, &TOOL).map(drop),
            (2, Some(_)) => {
                let flags = RenameFlags::default();
                let rename = Rename {
                    parent: dir,
                    name: one,
                    new_parent: to,
                    new_name: other,
                    flags,
                    whiteout: None,
                    open: None,
                };
                self.meta.run(&rename, &TOOL).map(drop)
            }
            (3, Some(ino)) => {
                let change = SetAttr {
                    ino,
                    uid: Some(uid),
                    size: Some(self.below(9) * 4096),
                    is_superuser: true,
                    ..SetAttr::default()
                };
                self.meta.run(&change, &TOOL).map(drop)
            }
            (4, _) => {
                let made = self.meta.run(&MakeOrphan(self.op(dir, "x", MakeKind::Regular, uid)), &TOOL);
                made.and_then(|made| {
                    let (session, ino) = (self.meta.session(), made.ino);
                    thread::sleep(Duration::from_micros(100));
                    self.meta.run(&Reap { session, ino }, &TOOL)
                })
            }
            _ => self
                .meta
                .run(&self.op(dir, &format!("old{}", self.random % 600), MakeKind::Regular, uid), &TOOL)
                .map(drop),
        };
    }
}

/// Stops the writers, even if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn quotas_are_counted_exactly_and_corrected_beside_writers() {
    let tree = Tree::new();
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for number in 0..WRITERS {
            let (tree, stop, changes) = (&tree, &stop, &changes);
            scope.spawn(move || {
                let mut client = Client::new(&tree.engine);
                client.random = number;
                while !stop.load(Ordering::Relaxed) {
                    client.change(&tree.dirs);
                    changes.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(200));
                }
            });
        }
        let wait = |more| {
            let before = changes.load(Ordering::Relaxed);
            while changes.load(Ordering::Relaxed) < before + more {
                thread::sleep(Duration::from_micros(100));
            }
        };
        for _ in 0..30 {
            wait(20);
            assert_eq!(tree.recount().differences, []);
        }
        // The counters of the inner quota and of a user are wrong. The counter of the quota around the inner
        // one is right.
        let drift = [(tree.keys[1], 3, -99), (QuotaKey::User(2), -7, 5)];
        let effects = drift.map(|(key, inodes, blocks)| Effect::Charge { key, inodes, blocks });
        let txn = Txn { op_id: OpId(1 << 120), guards: Vec::new(), effects: effects.to_vec() };
        tree.engine.commit(&[txn]).unwrap();
        let mut found = tree.recount();
        let mut again = tree.recount();
        for recount in [&found, &again] {
            let by = |Difference { key, stored, actual }: &Difference| {
                let stored = stored.unwrap_or_default();
                (*key, stored.0 - actual.0, stored.1 - actual.1)
            };
            assert_eq!(recount.differences.iter().map(by).collect::<Vec<_>>(), drift);
        }
        let tool = Client::new(&tree.engine);
        let corrections = drift.map(|(key, inodes, blocks)| (key, -inodes, -blocks)).to_vec();
        let correct = CorrectQuotas { next: found.next.take(), corrections };
        wait(20);
        tool.meta.run(&correct, &TOOL).unwrap();
        let correct = CorrectQuotas { next: again.next.take(), ..correct };
        assert_eq!(tool.meta.run(&correct, &TOOL), Err(Errno::EAGAIN.into()), "it was corrected before");
        wait(20);
        assert_eq!(tree.recount().differences, []);
    });
    let mut problems = Vec::new();
    let mut report = |problem: Problem| problems.push(problem.code());
    check_in_windows(&*tree.engine, &CheckScope::Volume, WINDOW, &mut report, &mut |_, _| {}).unwrap();
    problems.retain(|code| *code == "quota");
    assert!(problems.is_empty(), "{problems:?}");
}

/// An engine on which another tool sets a quota right after the quotas were listed for the first time.
#[derive(Debug)]
struct SetsQuota {
    inner: Arc<dyn Engine>,
    dir: Ino,
    is_set: AtomicBool,
}

impl Engine for SetsQuota {
    meta::pass_on! { (.inner) read commit open_snapshot sync wipe remove watch }

    fn scan(&self, scan: &meta::Scan) -> Result<meta::Page, meta::EngineError> {
        let page = self.inner.scan(scan);
        if matches!(scan, meta::Scan::Quotas { .. }) && !self.is_set.swap(true, Ordering::Relaxed) {
            let client = Client::new(&self.inner);
            client.meta.set_directory_quota(self.dir, QuotaLimits::default(), &mut |_| true).unwrap();
        }
        page
    }
}

#[test]
fn a_quota_set_during_the_count_makes_no_other_quota_wrong() {
    let tree = Tree::new();
    let client = Client::new(&tree.engine);
    let inside = client.make(tree.dirs[2], "inside", MakeKind::Directory).unwrap();
    (0..3).for_each(|n| _ = client.make(inside, &n.to_string(), MakeKind::Regular).unwrap());
    let engine = SetsQuota { inner: Arc::clone(&tree.engine), dir: inside, is_set: AtomicBool::new(false) };
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let found = recount(&engine, tempfile::tempfile, &mut |_| true).unwrap();
    assert_eq!(found.differences, []);
    let directories = found.quotas.keys().filter(|key| matches!(key, QuotaKey::Directory(_)));
    assert_eq!(directories.count(), 4, "the new one is compared too");
}

#[test]
fn inodes_of_a_quota_that_does_not_exist_are_found() {
    let tree = Tree::new();
    let effects = vec![Effect::DropQuota { key: tree.keys[2] }];
    tree.engine.commit(&[Txn { op_id: OpId(1 << 120), guards: Vec::new(), effects }]).unwrap();
    let found = tree.recount();
    assert_eq!(found.differences, [Difference { key: tree.keys[2], stored: None, actual: (601, 0) }]);
    assert_eq!(found.quotas.len(), 4, "two directories, a user and a group");
}

#[test]
fn a_count_that_is_interrupted_ends() {
    let tree = Tree::new();
    let mut calls = 0;
    let ended = recount(&tree.engine, tempfile::tempfile, &mut |_| {
        calls += 1;
        false
    });
    assert!(matches!(ended, Err(crate::RecountError::Interrupted)) && calls == 1);
}
