//! Tests of checks below a path: a check finds what the records there prove, and nothing else.

use super::*;

fn scope(s: &Sample, path: &str) -> CheckScope {
    let names: Vec<Name> = path.split('/').filter(|name| !name.is_empty()).map(name).collect();
    CheckScope::find(&*s.engine, &names).unwrap().unwrap()
}

fn codes(s: &Sample, path: &str, window: usize) -> Vec<&'static str> {
    let mut codes: Vec<_> = s.problems_in(&scope(s, path), window).0.iter().map(Problem::code).collect();
    codes.sort_unstable();
    codes
}

#[test]
fn undamaged_paths_have_no_problems_and_say_what_is_elsewhere() {
    for kind in [AclKind::Posix, AclKind::Nfs4] {
        let s = Sample::of(kind);
        for window in [1, 2, 7, WINDOW] {
            let checked = |path| {
                let (problems, checked) = s.problems_in(&scope(&s, path), window);
                assert_eq!(problems, [], "{kind:?}, {path}, windows of {window}");
                let Checked { inodes, entries, rows, linked_elsewhere, shared_elsewhere, .. } = checked;
                ([inodes, entries, rows], [linked_elsewhere, shared_elsewhere])
            };
            // `d`, `sub`, `f`, `copy`, `l`, and 20 directories with a file. `g` is another name of `f`.
            assert_eq!(checked("d"), ([45, 45, 5], [1, 0]));
            assert_eq!(checked("d/sub"), ([41, 41, 0], [0, 0]));
            // `f` and `copy` share a slice.
            assert_eq!(checked("d/f"), ([1, 1, 2], [1, 1]));
            assert_eq!(checked("d/copy"), ([1, 1, 3], [0, 1]));
            assert_eq!(checked("d/l"), ([1, 1, 0], [0, 0]));
        }
        assert!(matches!(scope(&s, "/"), CheckScope::Volume));
        for missing in ["no", "d/no", "d/f/no", "d/l/no", ".trash"] {
            let names: Vec<Name> = missing.split('/').map(name).collect();
            assert!(CheckScope::find(&*s.engine, &names).unwrap().is_none(), "{missing}");
        }
    }
}

/// Each path is checked on its own: what is wrong in one directory is not reported for another.
#[test]
fn damage_is_found_below_its_path_only() {
    // The damage, and the problems below `d`, `d/sub` and `d/f`.
    type Case = (Damage, &'static [&'static str], &'static [&'static str], &'static [&'static str]);
    let cases: &[Case] = &[
        (|s| vec![Effect::DropInode { ino: s.l }], &["entry-without-inode"], &[], &[]),
        (|s| vec![Effect::DropInode { ino: s.f }], &["entry-without-inode"], &[], &["entry-without-inode"]),
        (|s| vec![dirent(s.d, "no", Ino((1 << 52) - 1), FILE)], &["entry-without-inode"], &[], &[]),
        (|s| vec![dirent(s.d, "no", Ino(1 << 60), FILE)], &["entry-without-inode"], &[], &[]),
        (
            |s| {
                let far = Ino(1 << 60);
                vec![Effect::PutInode(inode(far, FILE)), dirent(s.d, "far", far, FILE)]
            },
            &[],
            &[],
            &[],
        ),
        (|s| vec![dirent(s.d, "l", s.l, FILE)], &["entry-kind"], &[], &[]),
        (|s| vec![dirent(s.d, "sub", s.sub, FILE)], &["entry-kind", "links"], &["entry-kind"], &[]),
        (|s| vec![dirent(s.d, "again", s.sub, DIR)], &["links", "second-name"], &[], &[]),
        (
            |s| vec![dirent(s.sub, "root", Ino::ROOT, DIR)],
            &["links", "second-name"],
            &["links", "second-name"],
            &[],
        ),
        // A walk that followed this name would not end.
        (|s| vec![dirent(s.sub, "d", s.d, DIR)], &["links", "second-name"], &["links", "second-name"], &[]),
        (|s| vec![Effect::SetParent { ino: s.sub, parent: Ino(1 << 40) }], &["parent"], &["parent"], &[]),
        (|s| vec![Effect::SetParent { ino: s.d, parent: s.sub }], &["parent"], &[], &[]),
        (
            |s| vec![Effect::SetParent { ino: s.d, parent: s.sub }, dirent(s.sub, "d", s.d, DIR)],
            &["links", "second-name", "second-name"],
            &["links", "second-name"],
            &[],
        ),
        // Only a search of the whole volume finds an inode without a name.
        (|s| vec![drop_dirent(s.d, "l")], &[], &[], &[]),
        (|s| vec![dirent(s.d, "third", s.f, FILE), dirent(s.sub, "4th", s.f, FILE)], &["links"], &[], &[]),
        (|s| vec![Effect::AddLinks { ino: s.f, delta: -1 }], &[], &[], &[]),
        (|s| vec![Effect::AddLinks { ino: s.f, delta: -2 }], &["links"], &[], &["links"]),
        (|s| vec![Effect::AddLinks { ino: s.d, delta: 1 }], &["links"], &[], &[]),
        (|s| vec![Effect::AddXattrBlocks { ino: s.f, delta: 3 }], &["xattr-blocks"], &[], &["xattr-blocks"]),
        (
            |s| vec![Effect::PutOrphan { session: SessionId(1), ino: s.f }],
            &["stale-orphan"],
            &[],
            &["stale-orphan"],
        ),
        (|s| access(s, |it| it.access_acl = AclId(5)), &["acl-missing"], &[], &["acl-missing"]),
        (|s| vec![Effect::PutInode(s.run(&ops::GetInode(s.l)))], &["no-target"], &[], &[]),
        (|s| row(s, blocks(0, 10, 5, 91, 100)), &["row"], &[], &["row"]),
        (|s| row(s, blocks(0, 5, 1, 0, 90)), &["shared", "slice-size"], &[], &["slice-size"]),
        (|s| row(s, blocks(0, 5, 1, 0, 100)), &["shared"], &[], &[]),
        (|_| vec![Effect::Share { slice: SliceId(1), rows: 1 }], &[], &[], &[]),
        (
            |s| {
                let (append, ino) = (row(s, blocks(0, 5, 1, 0, 100)), s.f);
                let drop = vec![Effect::DropSlices { ino, from: ChunkIndex(1), to: ChunkIndex(2) }];
                [append.clone(), drop.clone(), append, drop].concat()
            },
            &["garbage-in-use", "shared"],
            &[],
            &["garbage-in-use"],
        ),
        (|_| vec![Effect::AddUsage { inodes: -3, blocks: 99 }], &[], &[], &[]),
        (|_| vec![charge(QuotaKey::User(7), 3, -99)], &[], &[], &[]),
        (|_| vec![Effect::SetCounter { counter: Counter::Slice, value: 1 }], &["counter"], &[], &["counter"]),
        (|_| vec![Effect::DropInode { ino: Ino::ROOT }], &[], &[], &[]),
    ];
    for (at, (damage, in_d, in_sub, in_f)) in cases.iter().enumerate() {
        for (path, expected) in [("d", in_d), ("d/sub", in_sub), ("d/f", in_f)] {
            let s = Sample::new();
            let effects = damage(&s);
            s.damage(effects);
            for window in [1, 2, WINDOW] {
                assert_eq!(codes(&s, path, window), *expected, "case {at}, {path}, windows of {window}");
            }
        }
    }
}

#[test]
fn problems_below_a_path_have_the_paths_of_the_whole_check() {
    let s = Sample::new();
    let dir7 = s.run(&ops::Lookup { parent: s.sub, name: name("dir7") }).unwrap().ino;
    s.damage(vec![Effect::AddLinks { ino: dir7, delta: 1 }]);
    let (problems, _) = s.problems_in(&scope(&s, "d/sub"), WINDOW);
    assert_eq!(problems, [Problem::Links { ino: dir7, stored: 3, actual: 2 }]);
    let inos = [dir7, s.sub, s.d, s.f, Ino::ROOT].into();
    let paths = find_paths(&*s.engine, &scope(&s, "d/sub"), &inos).unwrap();
    let path = |ino| paths.get(&ino).map(|path| std::str::from_utf8(path).unwrap());
    assert_eq!([dir7, s.sub, s.d].map(path), [Some("/d/sub/dir7"), Some("/d/sub"), Some("/d")]);
    assert_eq!([s.f, Ino::ROOT].map(path), [None, Some("/")]);
}

#[test]
fn trash_is_checked_by_its_path() {
    let s = Sample::of(AclKind::Posix);
    s.run(&ops::Configure { trash_days: Some(1), ..ops::Configure::default() });
    s.meta.refresh_settings().unwrap();
    let hour = ops::TrashHour::of(Time::now());
    let first = s.meta.lease(Counter::Ino, 2).unwrap();
    let [_, bin] = s.run(&ops::MakeTrash { uid: 0, hour, inos: [Ino(first), Ino(first + 1)] });
    s.meta.trash().put(0, hour, bin);
    s.run(&Unlink { parent: s.d, name: name("l"), open: None });
    let (problems, checked) = s.problems_in(&scope(&s, ".trash"), WINDOW);
    assert_eq!((problems, checked.inodes, checked.entries), (vec![], 4, 3));
    s.damage(vec![Effect::AddLinks { ino: bin, delta: 1 }]);
    assert_eq!(codes(&s, ".trash/0", WINDOW), ["links"]);
    assert_eq!(codes(&s, "d", WINDOW), [""; 0]);
}
