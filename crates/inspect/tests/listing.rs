//! Directory listings in bulk: the entries, and the number of requests.

mod common;

use common::{Fixture, ROOT};
use inspect::{DirEntry, Rules, read_dir_plus};
use meta::{AclKind, Effect};
use ops::AclType;
use types::{AclId, FileType, Ino, Name};

fn list(volume: &Fixture, dir: Ino) -> Vec<DirEntry> {
    read_dir_plus(volume.dyn_engine(), AclKind::Posix, dir).map(Result::unwrap).collect()
}

#[test]
fn listing_costs_one_round_trip_for_each_directory() {
    const DIRECTORIES: usize = 20;
    let volume = Fixture::new();
    let mut dirs = Vec::new();
    for d in 0..DIRECTORIES {
        let dir = volume.dir(ROOT, &format!("d{d}"), 0o755, (1, 1));
        volume.set_acl(dir, AclType::Default, &format!("u::rwx,u:{}:r--,g::r-x,m::r-x,o::---", 100 + d));
        for f in 0..100 {
            volume.file(dir, &format!("f{f}"), 0o640, (1, 1));
        }
        dirs.push(dir);
    }
    let before = volume.engine.counts();
    let entries: Vec<DirEntry> = dirs.iter().flat_map(|dir| list(&volume, *dir)).collect();
    let counts = volume.engine.counts() - before;
    assert_eq!(entries.len(), DIRECTORIES * 100);
    assert!(entries.iter().all(|entry| entry.access.as_ref().is_some_and(Rules::has_acl)));
    assert_eq!(counts.round_trips(), DIRECTORIES as u64, "{counts:?}");

    // A page holds 1,024 entries. One request reads all links of a page.
    let large = volume.dir(ROOT, "large", 0o755, (1, 1));
    for f in 0..2048 {
        volume.file(large, &format!("{f:05}"), 0o640, (1, 1));
    }
    let before = volume.engine.counts();
    assert_eq!(list(&volume, large).len(), 2048);
    assert_eq!((volume.engine.counts() - before).round_trips(), 2);
    for f in 0..10 {
        volume.link(large, &format!("{f:05}-link"), "x", (1, 1));
    }
    let before = volume.engine.counts();
    assert_eq!(list(&volume, large).len(), 2058);
    let counts = volume.engine.counts() - before;
    assert_eq!((counts.scans, counts.reads), (3, 1));
}

#[test]
fn entries_come_in_order_with_attributes_acls_and_targets() {
    let volume = Fixture::new();
    let file = volume.file(ROOT, "b", 0o640, (7, 8));
    volume.acl(file, "u::rw-,u:9:r--,g::r--,m::r--,o::---");
    let dir = volume.dir(ROOT, "a", 0o2755, (7, 8));
    volume.set_acl(dir, AclType::Default, "u::rwx,g::r-x,o::---");
    volume.link(ROOT, "c", "../b", (7, 8));
    let entries = list(&volume, ROOT);
    let [a, b, c] = &entries[..] else { panic!("{entries:?}") };
    let name = |entry: &DirEntry| entry.name.to_string();
    assert_eq!([name(a), name(b), name(c)], ["a", "b", "c"]);
    assert_eq!(a.default.as_ref().unwrap().to_string(), "u::rwx,g::r-x,o::---");
    assert_eq!(a.access, Some(Rules::Posix(None)));
    let access = b.access.as_ref().unwrap().acl_text().unwrap();
    assert_eq!(access, "u::rw-,u:9:r--,g::r--,m::r--,o::---");
    assert_eq!(b.inode.unwrap().uid, 7);
    assert_eq!(c.target.as_deref(), Some(&b"../b"[..]));
    let resumed = read_dir_plus(volume.dyn_engine(), AclKind::Posix, ROOT).from_after(Some(a.name.clone()));
    assert_eq!(resumed.map(|entry| name(&entry.unwrap())).collect::<Vec<_>>(), ["b", "c"]);
    assert!(list(&volume, dir).is_empty() && list(&volume, Ino(999)).is_empty());
}

#[test]
fn missing_inodes_and_damaged_acls_are_none() {
    let volume = Fixture::new();
    let file = volume.file(ROOT, "acl", 0o640, (7, 8));
    let mut inode = *list(&volume, ROOT)[0].inode.as_ref().unwrap();
    inode.access_acl = AclId(99);
    let name = Name::new(b"lost").unwrap();
    let dirent = Effect::PutDirent { parent: ROOT, name, ino: Ino(77), kind: FileType::Regular };
    volume.apply(vec![Effect::PutInode(inode), dirent]);
    volume.apply(vec![Effect::PutAcl { id: AclId(98), text: "no ACL".into() }]);
    let entries = list(&volume, ROOT);
    assert_eq!((entries[0].dirent.ino, entries[0].access.clone()), (file, None));
    assert!(entries[0].inode.is_some());
    assert_eq!((entries[1].inode, entries[1].access.clone()), (None, None));
    // A valid ACL, but not the one with this id.
    volume.apply(vec![Effect::PutAcl { id: AclId(97), text: "u::rwx,g::r-x,o::---".into() }]);
    inode.default_acl = AclId(97);
    volume.apply(vec![Effect::PutInode(inode)]);
    assert_eq!(list(&volume, ROOT)[0].default, None);
    inode.access_acl = AclId(98);
    volume.apply(vec![Effect::PutInode(inode)]);
    assert_eq!(list(&volume, ROOT)[0].access, None);
}
