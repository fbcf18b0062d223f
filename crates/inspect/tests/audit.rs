//! Compares the audit of a volume in memory with an explanation of each name, and planned changes with real
//! ones.

mod common;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use acl::posix::PosixAcl;
use common::{Fixture, ROOT, Random, user};
use inspect::{
    Audit, AuditError, AuditView, Kind, OnName, PlannedChange, QueryError, Rights, Seen, Start, Totals,
    UserDatabase, VisitedName, audit, list_as, parse_change,
};
use meta::{AclKind, Effect, Engine, EngineError, Inode, RecordKey, Snapshot, Volume};
use ops::{AclType, SetAcl, SetAttr};
use types::{AclId, Caps, Cred, FileType, Ino, Mode, Name};

type Listed = BTreeMap<String, (Kind, Seen, Seen)>;

fn list(
    volume: &Fixture,
    dir: Ino,
    path: &str,
    before: &AuditView,
    after: Option<&AuditView>,
) -> (Audit, Listed) {
    list_on(volume.dyn_engine(), dir, path, before, after)
}

fn list_on(
    engine: &dyn Engine,
    dir: Ino,
    path: &str,
    before: &AuditView,
    after: Option<&AuditView>,
) -> (Audit, Listed) {
    let mut listed = Listed::new();
    let mut each = |met: VisitedName<'_>| -> Result<(), AuditError> {
        let path = String::from_utf8(met.path.to_vec()).unwrap();
        assert!(listed.insert(path, (met.kind, met.before, met.after)).is_none());
        Ok(())
    };
    let start = Start { dir, path: path.into() };
    let found =
        audit(engine, &Volume::in_memory("audited"), &start, (before, after), 1, Some(&mut each), &|_| {})
            .unwrap();
    (found, listed)
}

fn count(volume: &Fixture, before: &AuditView, after: Option<&AuditView>, threads: usize) -> Audit {
    let start = Start { dir: ROOT, path: b"/".to_vec() };
    let each: Option<&mut OnName<'_, AuditError>> = None;
    let engine = volume.dyn_engine();
    let met = AtomicU64::new(1);
    let progress = |names| {
        met.fetch_add(names, Ordering::Relaxed);
    };
    let found =
        audit(engine, &Volume::in_memory("audited"), &start, (before, after), threads, each, &progress)
            .unwrap();
    let Totals { directories, files, others } = found.before;
    assert_eq!(
        directories.names + files.names + others.names,
        met.into_inner(),
        "the start, and the reported progress"
    );
    found
}

/// Creates a tree of random owners, groups, modes and ACLs; returns all inodes.
fn random_tree(volume: &Fixture, random: &mut Random, names: usize) -> Vec<(Ino, bool)> {
    let mut all = vec![(ROOT, true)];
    for number in 0..names {
        let dirs: Vec<Ino> = all.iter().filter(|(_, is_dir)| *is_dir).map(|(ino, _)| *ino).collect();
        let parent = dirs[random.below(dirs.len() as u64) as usize];
        let owner = (random.small(6), random.small(6));
        let name = format!("n{number}");
        let is_dir = random.small(3) == 0;
        let ino = match (is_dir, random.small(8)) {
            (true, _) => volume.dir(parent, &name, random.mode(), owner),
            (false, 0) => volume.link(parent, &name, "nowhere", owner),
            (false, _) => volume.file(parent, &name, random.mode(), owner),
        };
        let is_link = volume.tree().inode(ino).unwrap().0.kind == FileType::Symlink;
        if random.small(2) == 0 && !is_link {
            volume.acl(ino, &random.acl(6));
        }
        all.push((ino, is_dir));
    }
    all
}

fn random_cred(random: &mut Random) -> Cred {
    let uid = random.small(7);
    let groups: Vec<u32> = (0..random.small(4)).map(|_| random.small(6)).collect();
    let caps = if uid == 0 && random.small(2) == 0 { Caps::ALL } else { Caps::NONE };
    Cred::new(uid, random.small(6), &groups, caps)
}

/// The expected result for a name, from explanations of each operation.
fn naive(volume: &Fixture, path: &str, kind: Kind, is_link: bool, cred: &Cred) -> Seen {
    let may = |want: &str| volume.explain(path, want, cred).errno.is_none();
    // A name is reached if all directories above it may be searched. The removal of the name requires the
    // same, and does not follow a link either.
    let path_checks = volume.path_checks(path, "delete").unwrap();
    let reached = path == "/" || {
        let above = path_checks
            .checks
            .iter()
            .filter(|check| check.requirement == inspect::Requirement::Search)
            .count();
        path_checks.explain(cred).results.iter().take(above).all(inspect::CheckResult::is_granted)
    };
    if !reached {
        return Seen::default();
    }
    let delete = path != "/" && may("delete");
    if is_link {
        return Seen { reached, rights: Rights { delete, own: false, ..Rights::default() } };
    }
    let rights = Rights { read: may("r"), write: may("w"), execute: may("x"), delete, own: may("chmod") };
    assert!(kind != Kind::Other);
    Seen { reached, rights }
}

#[test]
fn audit_agrees_with_the_explanation_of_each_name() {
    let mut random = Random(20);
    for _ in 0..12 {
        let volume = Fixture::new();
        random_tree(&volume, &mut random, 60);
        for _ in 0..6 {
            let cred = random_cred(&mut random);
            let (found, listed) = list(&volume, ROOT, "/", &AuditView::of(cred.clone()), None);
            let mut totals = Totals::default();
            for (path, (kind, seen, _)) in &listed {
                let is_link = *kind == Kind::Other;
                let mut expected = naive(&volume, path, *kind, is_link, &cred);
                if is_link {
                    expected.rights.own = seen.rights.own;
                }
                assert_eq!(*seen, expected, "{path} {cred:?}");
                let counts = match kind {
                    Kind::Directory => &mut totals.directories,
                    Kind::File => &mut totals.files,
                    Kind::Other => &mut totals.others,
                };
                counts.names += 1;
                counts.reached += u64::from(seen.reached);
                counts.read += u64::from(seen.rights.read);
                counts.write += u64::from(seen.rights.write);
                counts.execute += u64::from(seen.rights.execute);
                counts.delete += u64::from(seen.rights.delete);
                counts.own += u64::from(seen.rights.own);
            }
            assert_eq!(found.before, totals);
            assert_eq!((found.after, found.difference), (found.before, Default::default()));
            for threads in [1, 3] {
                let counted = count(&volume, &AuditView::of(cred.clone()), None, threads);
                assert_eq!(counted.before, totals, "{threads} threads");
            }
        }
    }
}

#[test]
fn distinct_combinations_are_decided_once() {
    let volume = Fixture::new();
    for d in 0..5 {
        let dir = volume.dir(ROOT, &format!("d{d}"), 0o755, (1, 1));
        for f in 0..200 {
            let file = volume.file(dir, &format!("f{f}"), 0o640, (1, 1));
            volume.acl(file, &format!("u::rw-,u:{}:r--,g::r--,m::r--,o::---", 100 + f % 40));
        }
    }
    let found = count(&volume, &AuditView::of(user(105, 7, &[])), None, 1);
    // One decision for the root, one for all directories, and one for each of forty ACLs.
    assert_eq!(found.decisions, 42);
    assert_eq!((found.before.files.names, found.before.files.read), (1000, 25));
    assert_eq!(found.before.directories.names, 6);
    for threads in [1, 2] {
        let before = volume.engine.counts();
        count(&volume, &AuditView::of(user(105, 7, &[])), None, threads);
        let trips = (volume.engine.counts() - before).round_trips();
        // One request for the root, one for each directory, and one for the ACLs in each thread.
        assert!((8..=7 + threads as u64).contains(&trips), "{trips}");
    }
}

struct NoNames;

impl UserDatabase for NoNames {
    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn group(&self, _: &str) -> Option<u32> {
        None
    }

    fn login_group(&self, _: &str) -> Option<u32> {
        None
    }
}

/// A planned change gives the same result as the real change.
#[test]
fn planned_change_agrees_with_the_real_change() {
    let mut random = Random(77);
    for round in 0..60 {
        let volume = Fixture::new();
        let all = random_tree(&volume, &mut random, 50);
        let cred = random_cred(&mut random);
        let (target, _) = all[random.below(all.len() as u64) as usize];
        let (inode, _) = volume.tree().inode(target).unwrap();
        if inode.kind == FileType::Symlink {
            continue;
        }
        let recursive = random.small(2) == 0;
        let flag = if recursive { "-R" } else { "" };
        let (a, b, c) = (random.small(6), random.small(6), random.small(8));
        let command = match random.small(4) {
            0 => format!("setfacl {flag} -m u:{a}:{c},g:{b}:rwX /x"),
            1 => format!("setfacl {flag} -b /x"),
            2 => format!("chmod {flag} {:o} /x", random.mode()),
            _ => format!("chown {flag} {a}:{b} /x"),
        };
        let PlannedChange::Edit { edit, .. } = parse_change(&command, &NoNames).unwrap() else {
            panic!("{command}")
        };
        let (before, after) = (
            AuditView::of(cred.clone()),
            AuditView { cred: cred.clone(), edit: Some((target, recursive, edit.clone())) },
        );
        let (found, thought) = list(&volume, ROOT, "/", &before, Some(&after));
        let counted = count(&volume, &before, Some(&after), 3);
        assert_eq!((counted.after, counted.difference), (found.after, found.difference));

        let is_below = |mut ino: Ino, parents: &BTreeMap<Ino, Ino>| loop {
            match parents.get(&ino) {
                _ if ino == target => return true,
                Some(parent) if recursive && *parent != ino => ino = *parent,
                _ => return false,
            }
        };
        let parents = parents(&volume);
        for (ino, _) in all.iter().filter(|(ino, _)| is_below(*ino, &parents)) {
            let (inode, access_attrs) = volume.tree().inode(*ino).unwrap();
            if inode.kind == FileType::Symlink {
                continue;
            }
            let made = edit.apply(&access_attrs).unwrap();
            let set = |mode| SetAttr {
                ino: *ino,
                mode,
                uid: Some(made.uid),
                gid: Some(made.gid),
                ..SetAttr::default()
            };
            volume.run(&set(None));
            let acl = made.rules.acl_text().map(|text| PosixAcl::from_storage(&text).unwrap());
            volume.run(&SetAcl { ino: *ino, which: AclType::Access, acl, kill_sgid: false });
            volume.run(&set(Some(made.mode)));
        }
        let (real, listed) = list(&volume, ROOT, "/", &AuditView::of(cred), None);
        assert_eq!(found.after, real.before, "round {round}: {command}");
        for (path, (_, _, after)) in &thought {
            assert_eq!(*after, listed[path].1, "round {round}: {command}: {path}");
        }
    }
}

/// The directory of each inode.
fn parents(volume: &Fixture) -> BTreeMap<Ino, Ino> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![ROOT];
    while let Some(dir) = waiting.pop() {
        for entry in inspect::read_dir_plus(volume.dyn_engine(), AclKind::Posix, dir) {
            let entry = entry.unwrap();
            found.insert(entry.dirent.ino, dir);
            waiting.extend(entry.dirent.kind.is_dir().then_some(entry.dirent.ino));
        }
    }
    found
}

#[test]
fn audit_of_a_subtree_checks_the_directories_above() {
    let volume = Fixture::new();
    let dir = volume.dir(ROOT, "d", 0o750, (1, 50));
    let sub = volume.dir(dir, "s", 0o755, (1, 50));
    volume.file(sub, "f", 0o644, (1, 50));
    let (out, inside) = (AuditView::of(user(2, 2, &[])), AuditView::of(user(2, 2, &[50])));
    let (found, listed) = list(&volume, sub, "/d/s", &out, Some(&inside));
    assert_eq!(listed.len(), 2);
    assert!(!listed["/d/s/f"].1.reached, "directories above the start count");
    assert!(listed["/d/s/f"].2.reached && listed["/d/s/f"].2.rights.read);
    assert_eq!((found.difference.gained, found.difference.lost), (2, 0));
    let not_dir = Start { dir: volume.file(ROOT, "x", 0o644, (1, 1)), path: b"/x".to_vec() };
    let each: Option<&mut OnName<'_, AuditError>> = None;
    let refused =
        audit(volume.dyn_engine(), &Volume::in_memory("audited"), &not_dir, (&out, None), 1, each, &|_| {});
    assert!(matches!(refused, Err(AuditError::NoDirectory)));
}

#[test]
fn audit_of_a_damaged_volume_ends() {
    let volume = Fixture::new();
    let dir = volume.dir(ROOT, "d", 0o777, (1, 1));
    let inner = volume.dir(dir, "inner", 0o777, (1, 1));
    let file = volume.file(inner, "f", 0o777, (1, 1));
    // A loop, a name without an inode, and an ACL that is not stored.
    let dirent = |parent, name: &[u8], ino, kind| Effect::PutDirent {
        parent,
        name: Name::new(name).unwrap(),
        ino,
        kind,
    };
    volume.apply(vec![
        dirent(inner, b"circle", dir, FileType::Directory),
        dirent(inner, b"lost", Ino(99_999_999), FileType::Regular),
    ]);
    let (mut inode, _) = volume.tree().inode(file).unwrap();
    inode.access_acl = AclId(5);
    inode.mode = Mode::new(0o777);
    volume.apply(vec![Effect::PutInode(inode)]);
    let (found, listed) = list(&volume, ROOT, "/", &AuditView::of(Cred::root()), None);
    assert_eq!(found.damaged, 2);
    assert_eq!(listed.len(), 6, "{listed:?}");
    let rights = Rights { delete: true, own: true, ..Rights::default() };
    assert_eq!(listed["/d/inner/f"].1.rights, rights, "they do not depend on the ACL");
    assert_eq!(listed["/d/inner/lost"].1.rights, Rights::default());
}

#[test]
fn removed_start_is_not_damage() {
    let volume = Fixture::new();
    let dir = volume.dir(ROOT, "d", 0o755, (1, 1));
    let inner = volume.dir(dir, "inner", 0o755, (1, 1));
    let view = AuditView::of(Cred::root());
    let error =
        |dir| list_as(volume.dyn_engine(), &Volume::in_memory("audited"), &view, dir, (None, 1)).unwrap_err();
    let dirent = |parent, name: &[u8]| Effect::DropDirent { parent, name: Name::new(name).unwrap() };
    volume.apply(vec![dirent(ROOT, b"d"), Effect::DropInode { ino: dir }]);
    assert!(matches!(error(inner), AuditError::QueryError(QueryError::Damaged { .. })));
    volume.apply(vec![dirent(dir, b"inner"), Effect::DropInode { ino: inner }]);
    assert!(matches!(error(inner), AuditError::Gone));
}

#[test]
fn damaged_acl_leaves_the_rights_that_do_not_depend_on_it() {
    let fixture = Fixture::new();
    let dir = fixture.dir(ROOT, "d", 0o777, (1, 1));
    let file = fixture.file(dir, "f", 0o674, (5, 1));
    let (inode, _) = fixture.tree().inode(file).unwrap();
    fixture.apply(vec![Effect::PutInode(Inode { access_acl: AclId(5), ..inode })]);
    let rights = |kind, cred| {
        let volume = Volume { acl: kind, ..Volume::in_memory("audited") };
        let view = AuditView::of(cred);
        let (entries, _) = list_as(fixture.dyn_engine(), &volume, &view, dir, (None, 10)).unwrap();
        let Rights { read, write, execute, delete, own } = entries[0].seen.rights;
        let letters = [(read, 'r'), (write, 'w'), (execute, 'x'), (delete, 'd'), (own, 'o')];
        letters.into_iter().filter_map(|(has, letter)| has.then_some(letter)).collect::<String>()
    };
    for (kind, of_owner, of_other, of_root) in
        [(AclKind::Posix, "rwdo", "d", "do"), (AclKind::Nfs4, "o", "", "rwdo")]
    {
        assert_eq!(rights(kind, user(5, 5, &[])), of_owner, "{kind:?}");
        assert_eq!(rights(kind, user(6, 6, &[])), of_other, "{kind:?}");
        assert_eq!(rights(kind, Cred::root()), of_root, "{kind:?}");
    }
}

/// Calls `change` before the first read of ACLs, which is after the read of the inodes that have them.
struct Meanwhile<'a> {
    inner: &'a dyn Engine,
    change: Mutex<Option<&'a (dyn Fn() + Sync)>>,
}

impl fmt::Debug for Meanwhile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Engine for Meanwhile<'_> {
    meta::pass_on! { (.inner) commit scan sync wipe }

    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        if matches!(keys, [RecordKey::Acl(_), ..])
            && let Some(change) = self.change.lock().unwrap().take()
        {
            change();
        }
        self.inner.read(keys)
    }
}

/// Three files share one ACL. The first file gets another ACL, the second one loses its ACL, and the third
/// one is removed.
#[test]
fn acl_that_is_removed_after_its_inode_was_read_is_no_damage() {
    const OLD: &str = "u::rw-,u:7:---,g::---,m::rwx,o::---";
    let id = PosixAcl::from_text(OLD).unwrap().id();
    for as_entries in [false, true] {
        let volume = Fixture::new();
        let [replaced, plain, gone, other] =
            ["a", "b", "c", "d"].map(|name| volume.file(ROOT, name, 0o640, (1, 1)));
        [replaced, plain, gone].into_iter().for_each(|file| volume.acl(file, OLD));
        volume.acl(other, "u::rw-,u:7:-w-,g::---,m::rwx,o::---");
        let change = || {
            volume.acl(replaced, "u::rw-,u:7:r--,g::---,m::rwx,o::---");
            volume.run(&SetAcl { ino: plain, which: AclType::Access, acl: None, kill_sgid: false });
            volume.run(&SetAttr { ino: plain, mode: Some(Mode::new(0o646)), ..SetAttr::default() });
            let name = Name::new(b"c").unwrap();
            volume.apply(vec![
                Effect::DropDirent { parent: ROOT, name },
                Effect::DropInode { ino: gone },
                Effect::CondemnAcl { id },
                Effect::DropAcl { id },
            ]);
        };
        let meanwhile = || Meanwhile { inner: volume.dyn_engine(), change: Mutex::new(Some(&change)) };
        let view = AuditView::of(user(7, 7, &[]));
        if as_entries {
            let (entries, _) =
                list_as(&meanwhile(), &Volume::in_memory("audited"), &view, ROOT, (None, 10)).unwrap();
            let seen: Vec<_> = entries.iter().map(|entry| (entry.inode.unwrap().ino, entry.listed)).collect();
            assert_eq!(seen, [(replaced, true), (plain, true), (other, false)]);
            continue;
        }
        let (found, listed) = list_on(&meanwhile(), ROOT, "/", &view, Some(&view));
        assert_eq!(found.damaged, 0, "{listed:?}");
        let rights = |name: &str| {
            let rights = listed[name].1.rights;
            (rights.read, rights.write)
        };
        assert_eq!([rights("/a"), rights("/b"), rights("/d")], [(true, false), (true, true), (false, true)]);
        assert!(!listed.contains_key("/c"), "{listed:?}");
    }
}
