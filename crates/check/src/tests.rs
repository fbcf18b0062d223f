//! Each kind of damage is found and reported with its code, and is repaired if the documentation says so. The
//! tests also run with windows of a few records.

mod below;
mod nfs4;
mod recount;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use client::Meta;
use meta::{
    Access, AclKind, Counter, Effect, Engine, EngineError, Inode, MemEngine, QuotaKey, QuotaRule, QuotaTag,
    Session, Txn, Volume,
};
use ops::{
    AclType, Authority, CopyRange, Housekeeping, Link, Make, MakeKind, MakeOrphan, Op, SetAcl, SetXattr,
    Unlink, Write, XattrMode,
};
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, OpId, QuotaId, SessionId, Slice, SliceId, SliceSource,
    Time, XattrName,
};

use super::acls::drop_in_windows;
use super::{
    AclCounts, CheckScope, Checked, Problem, WINDOW, check_in_windows, find_paths, for_each_slice_window,
    repair, unused_acls,
};

const DIR: FileType = FileType::Directory;
const FILE: FileType = FileType::Regular;

/// `/d/sub`, `/d/f` and its hard link `/g`, `/d/copy` with a copy of its data, `/d/l`, an orphan, and more
/// directories than fit in a small window.
struct Sample {
    engine: Arc<dyn Engine>,
    meta: Meta,
    d: Ino,
    sub: Ino,
    f: Ino,
    l: Ino,
    orphan: Ino,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).unwrap()
}

fn blocks(pos: u32, len: u32, id: u64, offset: u32, size: u32) -> Slice {
    Slice { pos, len, source: SliceSource::Blocks { id: SliceId(id), offset, size } }
}

impl Sample {
    fn new() -> Self {
        Self::of(AclKind::Posix)
    }

    fn of(kind: AclKind) -> Self {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        let volume = Volume { acl: kind, ..Volume::in_memory("test") };
        volume.format(&*engine).unwrap();
        let meta = Meta::open(engine.clone(), 1000).unwrap();
        meta.set_exclusive(true);
        let mut s = Sample { engine, meta, d: Ino(0), sub: Ino(0), f: Ino(0), l: Ino(0), orphan: Ino(0) };
        s.d = s.make(Ino::ROOT, "d", MakeKind::Directory);
        s.sub = s.make(s.d, "sub", MakeKind::Directory);
        s.f = s.make(s.d, "f", MakeKind::Regular);
        s.l = s.make(s.d, "l", MakeKind::Symlink(b"target"[..].into()));
        s.run(&Link { ino: s.f, parent: Ino::ROOT, name: name("g"), orphan_of: None });
        let copy = s.make(s.d, "copy", MakeKind::Regular);
        let first = s.meta.lease(Counter::Slice, 10).unwrap();
        let slices = vec![(ChunkIndex(0), blocks(0, 100, first, 0, 100))];
        s.run(&Write { ino: s.f, slices, end: 100, mtime: Time::now() });
        let inline = Slice { pos: 50, len: 3, source: SliceSource::Inline(b"abc"[..].into()) };
        s.run(&Write { ino: s.f, slices: vec![(ChunkIndex(0), inline)], end: 53, mtime: Time::now() });
        s.run(&CopyRange { from: s.f, offset: 10, to: copy, to_offset: 0, len: 80 });
        if kind == AclKind::Nfs4 {
            s.run(&nfs4::set(s.f));
        } else {
            let acl = acl::posix::PosixAcl::from_text("u::rw,u:5:rw,g::r,m::rw,o::-").unwrap();
            s.run(&SetAcl { ino: s.f, which: AclType::Access, acl: Some(acl), kill_sgid: false });
        }
        let value = vec![7; 5000].into();
        s.run(&SetXattr { ino: s.f, name: xattr("user.a"), value, mode: XattrMode::Set });
        s.orphan = s.run(&MakeOrphan(s.make_op(s.d, "x", MakeKind::Regular))).ino;
        for at in 0..20 {
            let dir = s.make(s.sub, &format!("dir{at}"), MakeKind::Directory);
            s.make(dir, "file", MakeKind::Regular);
        }
        let removed = s.make(s.d, "removed", MakeKind::Regular);
        let slices = vec![(ChunkIndex(3), blocks(0, 9, first + 1, 0, 9))];
        s.run(&Write { ino: removed, slices, end: 9, mtime: Time::now() });
        s.run(&Unlink { parent: s.d, name: name("removed"), open: None });

        let session = Session::new(s.meta.session(), Time::now());
        s.run(&Housekeeping(vec![Effect::PutSession(session)]));
        s
    }

    fn run<O: Op>(&self, op: &O) -> O::Reply {
        self.meta.run(op, &Authority::Kernel { revisions: None }).unwrap()
    }

    fn make_op(&self, parent: Ino, name: &str, kind: MakeKind) -> Make {
        let ino = Ino(self.meta.lease(Counter::Ino, 1).unwrap());
        let name = Name::new(name.as_bytes()).unwrap();
        Make { parent, name, ino, kind, mode: Mode::new(0o755), umask: 0, uid: 0, gid: 0 }
    }

    fn make(&self, parent: Ino, name: &str, kind: MakeKind) -> Ino {
        self.run(&self.make_op(parent, name, kind)).ino
    }

    fn damage(&self, effects: Vec<Effect>) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let op_id = OpId((1 << 120) + u128::from(COUNT.fetch_add(1, Ordering::Relaxed)));
        self.engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
        self.meta.set_exclusive(true);
    }

    fn problems(&self, window: usize) -> Vec<Problem> {
        self.problems_in(&CheckScope::Volume, window).0
    }

    fn problems_in(&self, scope: &CheckScope, window: usize) -> (Vec<Problem>, Checked) {
        let mut problems = Vec::new();
        let mut report = |problem| problems.push(problem);
        let checked = check_in_windows(&*self.engine, scope, window, &mut report, &mut |_, _| {}).unwrap();
        (problems, checked)
    }

    fn codes(&self, window: usize) -> Vec<&'static str> {
        let mut codes: Vec<_> = self.problems(window).iter().map(Problem::code).collect();
        codes.sort_unstable();
        codes
    }

    /// Repairs until nothing more can be repaired. Returns the codes of the remaining problems.
    fn repaired(&self) -> Vec<&'static str> {
        for _ in 0..10 {
            let problems = self.problems(WINDOW);
            let done = problems.iter().filter(|problem| repair(&self.meta, problem).unwrap());
            if done.count() == 0 {
                break;
            }
        }
        self.codes(WINDOW)
    }
}

type Damage = fn(&Sample) -> Vec<Effect>;

fn access(s: &Sample, change: impl Fn(&mut Access)) -> Vec<Effect> {
    let inode = s.run(&ops::GetInode(s.f));
    let mut access = Access::from(&inode);
    change(&mut access);
    vec![Effect::SetAccess { ino: s.f, access }]
}

/// A directory without a name, which is the root of a copy with a file and a subdirectory.
fn unfinished_copy(s: &Sample) -> Vec<Effect> {
    let first = s.meta.lease(Counter::Ino, 3).unwrap();
    let [root, file, sub] = [0, 1, 2].map(|number| Ino(first + number));
    vec![
        Effect::PutInode(Inode { nlink: 0, parent: s.d, ..inode(root, DIR) }),
        Effect::PutOrphan { session: s.meta.session(), ino: root },
        Effect::PutInode(inode(file, FILE)),
        Effect::PutInode(Inode { parent: root, ..inode(sub, DIR) }),
        dirent(root, "file", file, FILE),
        dirent(root, "sub", sub, DIR),
    ]
}

fn inode(ino: Ino, kind: FileType) -> Inode {
    Inode::new(ino, kind, Mode::new(0o700), Time::from_nanos(1))
}

fn row(s: &Sample, slice: Slice) -> Vec<Effect> {
    vec![Effect::AppendSlice { ino: s.f, chunk: ChunkIndex(1), slice }]
}

/// The damage, the codes of its problems, and the codes that remain after a repair.
const CASES: &[(Damage, &[&str], &[&str])] = &[
    (|s| vec![Effect::DropInode { ino: s.l }], &["entry-without-inode"], &[]),
    (|s| vec![dirent(s.d, "l", s.l, FILE)], &["entry-kind"], &[]),
    (|s| vec![dirent(s.d, "sub", s.sub, FILE)], &["entry-kind", "links"], &[]),
    (|s| vec![dirent(Ino::ROOT, "again", s.sub, DIR)], &["links", "second-name"], &[]),
    (|s| vec![dirent(s.sub, "root", Ino::ROOT, DIR)], &["links", "second-name"], &[]),
    (|s| vec![Effect::SetParent { ino: s.sub, parent: Ino::ROOT }], &["parent"], &[]),
    (|s| vec![Effect::SetParent { ino: s.sub, parent: Ino(1 << 40) }], &["parent"], &[]),
    (|_| vec![Effect::SetParent { ino: Ino::ROOT, parent: Ino(9) }], &["parent"], &[]),
    (|s| vec![drop_dirent(s.d, "sub")], &["links", "lost"], &[]),
    (|s| vec![drop_dirent(s.d, "l")], &["lost"], &[]),
    (|s| vec![drop_dirent(s.d, "f")], &["links"], &[]),
    (|s| vec![drop_dirent(s.d, "f"), drop_dirent(Ino::ROOT, "g")], &["lost"], &[]),
    (|s| vec![Effect::DropOrphan { session: s.meta.session(), ino: s.orphan }], &["lost"], &[]),
    (
        // `d` is moved into its own subdirectory `sub`.
        |s| {
            let (from, to) = (Ino::ROOT, s.sub);
            vec![
                drop_dirent(from, "d"),
                dirent(to, "d", s.d, DIR),
                Effect::SetParent { ino: s.d, parent: to },
                Effect::AddLinks { ino: from, delta: -1 },
                Effect::AddLinks { ino: to, delta: 1 },
            ]
        },
        &["circle"],
        &[],
    ),
    (|s| vec![Effect::AddLinks { ino: s.f, delta: 3 }], &["links"], &[]),
    (|s| vec![Effect::AddLinks { ino: s.d, delta: -2 }], &["links"], &[]),
    (|s| vec![Effect::AddXattrBlocks { ino: s.f, delta: 3 }], &["xattr-blocks"], &[]),
    (|s| vec![Effect::AddXattrBlocks { ino: s.f, delta: -2 }], &["xattr-blocks"], &[]),
    (|s| vec![Effect::DropXattr { ino: s.f, name: xattr("user.a") }], &["xattr-blocks"], &[]),
    (
        |s| vec![Effect::PutXattr { ino: s.d, name: xattr("user.a"), value: [0; 9000].into() }],
        &["xattr-blocks"],
        &[],
    ),
    (unfinished_copy, &[], &[]),
    (|s| vec![Effect::PutOrphan { session: SessionId(1), ino: s.f }], &["stale-orphan"], &[]),
    (|_| vec![Effect::PutOrphan { session: SessionId(1), ino: Ino(9) }], &[], &[]),
    (|s| access(s, |it| it.access_acl = AclId(5)), &["acl-missing"], &["acl-missing"]),
    (
        |s| {
            let put = Effect::PutAcl { id: AclId(6), text: "nonsense".into() };
            [vec![put], access(s, |it| it.default_acl = AclId(6))].concat()
        },
        &["acl-damaged"],
        &["acl-damaged"],
    ),
    (
        // A valid ACL, but not the one with this id.
        |s| {
            let put = Effect::PutAcl { id: AclId(6), text: "u::rwx,g::r-x,o::r-x".into() };
            [vec![put], access(s, |it| it.default_acl = AclId(6))].concat()
        },
        &["acl-damaged"],
        &["acl-damaged"],
    ),
    (|s| access(s, |it| it.mode = Mode::new(0o777)), &["acl-mode"], &["acl-mode"]),
    (|s| vec![Effect::PutSymlink { ino: s.l, target: b"elsewhere"[..].into() }], &["target-length"], &[]),
    (|s| vec![Effect::PutInode(s.run(&ops::GetInode(s.l)))], &["no-target"], &["no-target"]),
    (|s| row(s, blocks(0, 10, 5, 91, 100)), &["row"], &["row"]),
    (|s| row(s, blocks(67_108_860, 5, 5, 0, 100)), &["row"], &["row"]),
    (|s| row(s, Slice { pos: 0, len: 0, source: SliceSource::Hole }), &["row"], &["row"]),
    (
        |s| row(s, Slice { pos: 0, len: 4, source: SliceSource::Inline(b"abc"[..].into()) }),
        &["row"],
        &["row"],
    ),
    (|s| row(s, blocks(0, 5, 1, 0, 90)), &["shared", "slice-size"], &["slice-size"]),
    (|s| row(s, blocks(0, 5, 1, 0, 100)), &["shared"], &[]),
    (|_| vec![Effect::Share { slice: SliceId(1), rows: 1 }], &["shared"], &["shared"]),
    (|_| vec![Effect::Share { slice: SliceId(77), rows: 1 }], &["shared"], &["shared"]),
    (
        |s| {
            // Twice, a row for a slice is added without a share count, and dropped again. Each time, the
            // slice also loses one of the references that were recorded for its other rows.
            let (append, ino) = (row(s, blocks(0, 5, 1, 0, 100)), s.f);
            let drop = vec![Effect::DropSlices { ino, from: ChunkIndex(1), to: ChunkIndex(2) }];
            [append.clone(), drop.clone(), append, drop].concat()
        },
        &["garbage-in-use", "shared"],
        &[],
    ),
    (|_| vec![Effect::AddUsage { inodes: -3, blocks: 99 }], &["usage"], &[]),
    (|_| vec![Effect::AddUsage { inodes: -3000, blocks: -99 }], &["usage"], &[]),
    (|_| vec![charge(QuotaKey::User(7), 3, -99)], &["quota"], &[]),
    (
        |s| {
            // A file counts in quota 3, which does not exist, and quota 5, which is inside quota 4, counts
            // too much.
            let tag = |directory| QuotaTag::new(QuotaId(directory), true);
            let outer = QuotaRule { outer: QuotaId(4), ..QuotaRule::default() };
            let put = |id, rule| Effect::PutQuota { key: QuotaKey::Directory(QuotaId(id)), rule };
            let inner = charge(QuotaKey::Directory(QuotaId(5)), 1, 1);
            vec![
                retag(s, s.f, tag(3)),
                retag(s, s.l, tag(5)),
                put(5, outer),
                put(4, QuotaRule::default()),
                inner,
                charge(QuotaKey::Directory(QuotaId(4)), 1, 7),
            ]
        },
        &["quota"],
        &[],
    ),
    (|_| vec![Effect::SetCounter { counter: Counter::Ino, value: 5 }], &["counter"], &[]),
    (|_| vec![Effect::SetCounter { counter: Counter::Slice, value: 1 }], &["counter"], &[]),
    (|_| vec![Effect::SetCounter { counter: Counter::Session, value: 1 }], &["counter"], &[]),
    (
        |s| vec![drop_dirent(s.d, "l"), Effect::SetCounter { counter: Counter::Ino, value: 5 }],
        &["counter", "lost"],
        &[],
    ),
    (
        |s| vec![drop_dirent(s.d, "l"), dirent(Ino::ROOT, "lost+found", s.f, FILE)],
        &["links", "lost"],
        &["lost"],
    ),
    (|_| vec![Effect::DropInode { ino: Ino::ROOT }], &["no-root"], &["no-root"]),
];

fn charge(key: QuotaKey, inodes: i64, blocks: i64) -> Effect {
    Effect::Charge { key, inodes, blocks }
}

fn retag(s: &Sample, ino: Ino, quota: QuotaTag) -> Effect {
    let inode = s.run(&ops::GetInode(ino));
    Effect::SetAccess { ino, access: Access { quota, ..Access::from(&inode) } }
}

fn dirent(parent: Ino, text: &str, ino: Ino, kind: FileType) -> Effect {
    Effect::PutDirent { parent, name: name(text), ino, kind }
}

fn drop_dirent(parent: Ino, text: &str) -> Effect {
    Effect::DropDirent { parent, name: name(text) }
}

#[test]
fn an_undamaged_volume_has_no_problems() {
    for kind in [AclKind::Posix, AclKind::Nfs4] {
        let s = Sample::of(kind);
        for window in [2, 3, 7, WINDOW] {
            assert_eq!(s.problems(window), [], "{kind:?}, windows of {window}");
        }
        assert_eq!(unused_acls(&*s.engine).unwrap(), AclCounts { stored: 1, ..AclCounts::default() });
    }
}

#[test]
fn unused_acls_are_removed_in_windows_and_parts() {
    for window in [7, WINDOW] {
        let s = Sample::new();
        for uid in 2000..2100 {
            let acl =
                acl::posix::PosixAcl::from_text(&format!("u::rw-,u:{uid}:rw-,g::r--,m::rw-,o::r--")).unwrap();
            s.run(&SetAcl { ino: s.f, which: AclType::Access, acl: Some(acl), kill_sgid: false });
        }
        let before = unused_acls(&*s.engine).unwrap();
        assert!(before.unused > 90, "{before:?}");
        let tool = Meta::open(s.engine.clone(), 1000).unwrap();
        let done = drop_in_windows(&tool, window).unwrap();
        assert_eq!(done, AclCounts { dropped: before.unused, ..before }, "windows of {window}");
        let left = unused_acls(&*s.engine).unwrap();
        assert_eq!(left, AclCounts { stored: before.stored - before.unused, ..AclCounts::default() });
        assert_eq!(s.problems(WINDOW), []);
        // Another tool may begin at any time.
        drop_in_windows(&Meta::open(s.engine.clone(), 1000).unwrap(), window).unwrap();
    }
}

#[test]
fn damage_is_found_under_its_code_and_repaired() {
    for (at, (damage, codes, left)) in CASES.iter().enumerate() {
        let s = Sample::new();
        s.damage(damage(&s));
        let found = s.codes(WINDOW);
        for code in *codes {
            assert!(found.contains(code), "case {at}: {code} is not among {found:?}");
        }
        for window in [2, 5] {
            assert_eq!(s.codes(window), found, "case {at}, windows of {window}");
        }
        let after = s.repaired();
        for code in *left {
            assert!(after.contains(code), "case {at}: {code} is not among {after:?}");
        }
        assert!(!left.is_empty() || after.is_empty(), "case {at}: {:?}", s.problems(WINDOW));
    }
}

/// If the counter were raised above such a number, it would never be lowered again.
#[test]
fn damaged_numbers_do_not_raise_the_counter_of_inodes() {
    const LAST: Ino = Ino(Ino::TRASH.0 - 1);
    const FAR: Ino = Ino(1 << 60);
    // The damage, and the codes before and after a repair.
    type Case = (Damage, &'static [&'static str], &'static [&'static str]);
    let cases: &[Case] = &[
        (|s| vec![dirent(s.d, "no", LAST, FILE)], &["entry-without-inode"], &[]),
        (|s| vec![dirent(s.d, "no", Ino::TRASH, FILE)], &["entry-without-inode"], &[]),
        (|s| vec![dirent(s.d, "no", FAR, FILE)], &["entry-without-inode"], &[]),
        (|_| vec![Effect::PutInode(inode(FAR, FILE))], &["lost"], &[]),
        (|_| vec![Effect::PutOrphan { session: SessionId(1), ino: FAR }], &["stale-orphan"], &[]),
        // No number is left above this one.
        (|_| vec![Effect::PutInode(inode(LAST, FILE))], &["counter", "lost"], &["counter"]),
    ];
    for (at, (damage, codes, left)) in cases.iter().enumerate() {
        let s = Sample::new();
        s.damage(damage(&s));
        assert_eq!(s.codes(WINDOW), *codes, "case {at}");
        assert_eq!(s.repaired(), *left, "case {at}");
        assert!(s.meta.lease(Counter::Ino, 1).unwrap() < 1000, "case {at}");
    }
}

#[test]
fn lost_inodes_are_linked_into_lost_and_found_with_their_subtrees() {
    let s = Sample::new();
    s.damage(vec![drop_dirent(s.d, "sub"), drop_dirent(s.d, "f"), drop_dirent(Ino::ROOT, "g")]);
    assert!(s.repaired().is_empty());
    let below = s.run(&ops::Lookup { parent: s.sub, name: name("dir7") }).unwrap().ino;
    let paths =
        find_paths(&*s.engine, &CheckScope::Volume, &[s.sub, s.f, below, s.l, Ino::ROOT].into()).unwrap();
    let path = |ino| String::from_utf8(paths[&ino].clone()).unwrap();
    assert_eq!(path(s.sub), format!("/lost+found/#{}", s.sub));
    assert_eq!(path(s.f), format!("/lost+found/#{}", s.f));
    assert_eq!(path(below), format!("/lost+found/#{}/dir7", s.sub));
    assert_eq!((path(s.l), path(Ino::ROOT)), ("/d/l".to_owned(), "/".to_owned()));
}

#[test]
fn slices_are_listed_with_their_references() {
    let s = Sample::new();
    let mut all = Vec::new();
    for_each_slice_window(&*s.engine, |window| {
        all.extend(window.iter().map(|(slice, used)| (slice.0, used.rows, used.size, used.garbage)));
        Ok::<_, EngineError>(())
    })
    .unwrap();
    assert_eq!(all, [(1, 2, 100, false), (2, 0, 9, true)]);
}

#[test]
fn problems_beyond_the_bound_are_counted() {
    const MANY: u64 = 10_005;
    let s = Sample::new();
    s.damage((0..MANY).map(|at| dirent(s.d, &format!("again{at}"), s.sub, DIR)).collect());
    let (problems, checked) = s.problems_in(&CheckScope::Volume, WINDOW);
    let names = problems.iter().filter(|problem| problem.code() == "second-name").count();
    assert_eq!((names as u64 + checked.unlisted, checked.unlisted), (MANY, 5));
    let s = Sample::new();
    let empty = Slice { pos: 0, len: 0, source: SliceSource::Hole };
    let row = |at| Effect::AppendSlice { ino: s.f, chunk: ChunkIndex(at), slice: empty.clone() };
    s.damage((1..=MANY).map(row).collect());
    assert_eq!(s.codes(WINDOW), ["row"; MANY as usize]);
}

/// The root of the trash has no name, and no counter gives out its number.
#[test]
fn a_trash_is_no_damage() {
    let s = Sample::of(AclKind::Posix);
    s.run(&ops::Configure { trash_days: Some(1), ..ops::Configure::default() });
    s.meta.refresh_settings().unwrap();
    let hour = ops::TrashHour::of(Time::now());
    let first = s.meta.lease(Counter::Ino, 2).unwrap();
    let [_, bin] = s.run(&ops::MakeTrash { uid: 0, hour, inos: [Ino(first), Ino(first + 1)] });
    s.meta.trash().put(0, hour, bin);
    let gone = s.make(s.d, "gone", MakeKind::Regular);
    let unlinked = s.run(&Unlink { parent: s.d, name: name("gone"), open: None });
    assert_eq!(unlinked.outcome, ops::UnlinkOutcome::Trashed { hour: bin });
    for window in [1, 7, WINDOW] {
        assert_eq!(s.problems(window), []);
    }
    let paths = find_paths(&*s.engine, &CheckScope::Volume, &[gone, Ino::TRASH].into()).unwrap();
    assert_eq!(paths[&Ino::TRASH], b"/.trash");
    assert!(paths[&gone].starts_with(b"/.trash/0/"));
    s.damage(vec![Effect::SetParent { ino: Ino::TRASH, parent: Ino(9) }]);
    for window in [1, WINDOW] {
        assert_eq!(s.codes(window), ["parent"]);
    }
    assert_eq!(s.repaired(), [""; 0]);
    s.damage(vec![dirent(s.d, "second", Ino::TRASH, DIR)]);
    for window in [1, WINDOW] {
        assert_eq!(s.codes(window), ["links", "second-name"]);
    }
    assert_eq!(s.repaired(), [""; 0]);
}
