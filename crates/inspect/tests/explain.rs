//! Access checks and their reasons on a volume in memory. `cli/tests/access.rs` compares with the kernel on
//! real mounts.

mod common;

use acl::posix::{Entry, Perm, Tag};
use common::{Fixture, ROOT, user};
use inspect::{CheckReason, LocalTree, Operation, PathChecks, QueryError, Requirement};
use meta::Effect;
use types::{AclId, Caps, Cred, Errno, FileType, Ino, Name};

fn entry(tag: Tag, perm: &str) -> Entry {
    let bits = perm.bytes().zip([4, 2, 1]).filter(|(byte, _)| *byte != b'-').map(|(_, bit)| bit).sum();
    Entry { tag, perm: Perm::new(bits) }
}

/// /a (rwxr-x--x, ACL for group 50) and /a/b (sticky, writable by everybody), both of user 1; /a/b/f of user
/// 2; and links.
fn volume() -> Fixture {
    let volume = Fixture::new();
    let a = volume.dir(ROOT, "a", 0o751, (1, 10));
    volume.acl(a, "u::rwx,g::r-x,g:50:rwx,m::r-x,o::--x");
    let b = volume.dir(a, "b", 0o1777, (1, 10));
    let f = volume.file(b, "f", 0o640, (2, 20));
    volume.acl(f, "u::rw-,u:3:rw-,g::r--,m::r--,o::---");
    volume.link(a, "to-f", "b/./f", (1, 10));
    volume.link(b, "up", "../b/../../a/b/f", (2, 20));
    volume.link(ROOT, "out", "/etc/passwd", (1, 10));
    volume.link(ROOT, "circle", "circle", (1, 10));
    volume
}

#[test]
fn explanation_has_every_check_on_the_way() {
    let volume = volume();
    let path_checks = volume.path_checks("/a/b/f", "rw").unwrap();
    let places: Vec<String> =
        path_checks.checks.iter().map(|c| String::from_utf8_lossy(&c.path).into()).collect();
    assert_eq!(places, ["/", "/a", "/a/b", "/a/b/f"]);
    let answer = path_checks.explain(&user(3, 30, &[50]));
    assert_eq!(answer.errno, Some(Errno::EACCES));
    let reasons: Vec<&CheckReason> = answer.results.iter().map(|result| &result.reason).collect();
    assert_eq!(reasons[0], &CheckReason::Mode(entry(Tag::Other, "r-x")));
    assert_eq!(reasons[1], &CheckReason::Entry(entry(Tag::Group(50), "rwx"), Some(Perm::new(5))));
    assert_eq!(reasons[2], &CheckReason::Mode(entry(Tag::Other, "rwx")));
    assert_eq!(reasons[3], &CheckReason::Entry(entry(Tag::User(3), "rw-"), Some(Perm::READ)));
    assert_eq!(path_checks.explain(&user(2, 30, &[])).errno, None);
    assert_eq!(volume.explain("/a/b/f", "r", &user(3, 3, &[])).errno, None);
    let refused = volume.explain("/a/b/f", "r", &user(4, 4, &[]));
    assert_eq!(refused.results.last().unwrap().reason, CheckReason::Entry(entry(Tag::Other, "---"), None));
    // The group bits are not clear, so the ACL decides for the owning group.
    let group = volume.explain("/a/b/f", "r", &user(4, 4, &[20]));
    assert_eq!(group.results.last().unwrap().reason, CheckReason::Entry(entry(Tag::GroupObj, "r--"), None));
}

#[test]
fn create_and_delete_depend_on_the_directory() {
    let volume = volume();
    let errno = |path, want, cred: &Cred| volume.explain(path, want, cred).errno;
    assert_eq!(errno("/a/new", "create", &user(1, 1, &[])), None);
    // The mask takes w from the entry of group 50.
    assert_eq!(errno("/a/new", "create", &user(3, 3, &[50])), Some(Errno::EACCES));
    assert_eq!(errno("/a/b/new", "create", &user(3, 3, &[])), None);
    assert_eq!(errno("/a/b/f", "create", &user(3, 3, &[])), Some(Errno::EEXIST));
    for (uid, expected) in [(1, None), (2, None), (3, Some(Errno::EPERM)), (0, Some(Errno::EPERM))] {
        assert_eq!(errno("/a/b/f", "delete", &user(uid, 9, &[])), expected, "{uid}");
    }
    assert_eq!(errno("/a/b/f", "delete", &Cred::root()), None);
    assert_eq!(errno("/a/b", "delete", &user(2, 2, &[])), Some(Errno::EACCES));
    assert_eq!(errno("/a/b/none", "delete", &user(2, 2, &[])), Some(Errno::ENOENT));
    assert_eq!(errno("/", "delete", &Cred::root()), Some(Errno::EBUSY));
    assert_eq!(errno("/a/b/f/", "delete", &user(2, 2, &[])), Some(Errno::ENOTDIR));
    let result = volume.explain("/a/b/f", "delete", &user(1, 9, &[])).results.pop().unwrap();
    assert_eq!(result.reason, CheckReason::OwnsDirectory);
    for path in ["/a/b/.", "/a/b/..", "/."] {
        assert!(matches!(volume.path_checks(path, "delete"), Err(QueryError::Path { .. })), "{path}");
    }
}

#[test]
fn chmod_chown_and_touch_depend_on_owner_and_capabilities() {
    let volume = volume();
    let errno = |want, cred: &Cred| volume.explain("/a/b/f", want, cred).errno;
    assert_eq!(errno("chmod", &user(2, 2, &[])), None);
    assert_eq!(errno("chmod", &user(1, 1, &[])), Some(Errno::EPERM));
    assert_eq!(errno("chmod", &Cred::root()), None);
    assert_eq!(errno("chown", &user(2, 2, &[])), Some(Errno::EPERM));
    assert_eq!(errno("chown", &Cred::root()), None);
    assert_eq!(errno("touch", &user(2, 2, &[])), None);
    assert_eq!(errno("touch", &user(3, 3, &[])), Some(Errno::EACCES));
    assert_eq!(errno("stat", &user(4, 4, &[])), None);
    assert_eq!(errno("rw", &Cred::root()), None);
    let root = volume.explain("/a/b/f", "rw", &Cred::root());
    assert_eq!(root.results.last().unwrap().reason, CheckReason::Capability(Caps::DAC_OVERRIDE));
    // Nobody may execute it, so no capability grants that.
    assert_eq!(errno("x", &Cred::root()), Some(Errno::EACCES));
}

#[test]
fn links_are_followed_as_in_the_kernel() {
    let volume = volume();
    let at = |path: &str, want: &str| {
        let path_checks = volume.path_checks(path, want).unwrap();
        let last = path_checks.checks.last().map(|check| String::from_utf8_lossy(&check.path).into_owned());
        (last.unwrap_or_default(), path_checks.end)
    };
    assert_eq!(at("/a/to-f", "r"), ("/a/b/f".to_owned(), Ok(())));
    assert_eq!(at("/a/b/up", "r"), ("/a/b/f".to_owned(), Ok(())));
    assert_eq!(at("../../a//b/../to-f", "r"), ("/a/b/f".to_owned(), Ok(())));
    // A removal applies to the link itself.
    assert_eq!(at("/a/to-f", "delete").0, "/a");
    assert_eq!(at("/circle", "r").1, Err(Errno::ELOOP));
    assert_eq!(at("/a/b/f/x", "r").1, Err(Errno::ENOTDIR));
    assert_eq!(at("/a/to-f/", "r").1, Err(Errno::ENOTDIR));
    assert_eq!(at("/none/x", "r").1, Err(Errno::ENOENT));
    assert_eq!(at("", "r").1, Err(Errno::ENOENT));
    assert_eq!(at(&"/a".repeat(3000), "r").1, Err(Errno::ENAMETOOLONG));
    assert_eq!(at(&format!("/{}", "n".repeat(256)), "r").1, Err(Errno::ENAMETOOLONG));
    assert!(matches!(volume.path_checks("/out", "r"), Err(QueryError::LeadsOut { .. })));
    assert!(matches!(volume.path_checks("/a\0b", "r"), Err(QueryError::Path { .. })));
    // In a sticky directory that everybody may write to, links of others at the end of a path are not
    // followed.
    assert_eq!(volume.explain("/a/b/up", "stat", &user(2, 2, &[])).errno, None);
    let foreign = volume.explain("/a/b/up", "stat", &user(3, 3, &[]));
    assert_eq!(foreign.errno, Some(Errno::EACCES));
    assert_eq!(foreign.results.last().unwrap().reason, CheckReason::LinkOfOther);
}

#[test]
fn damage_is_an_error_and_grants_nothing() {
    let volume = volume();
    let path_checks = volume.path_checks("/a/b/f", "chmod").unwrap();
    let ino = Ino(path_checks.checks.last().unwrap().access_attrs.ino);
    let (mut inode, _) = volume.tree().inode(ino).unwrap();
    inode.access_acl = AclId(4711);
    volume.apply(vec![Effect::PutInode(inode)]);
    assert!(matches!(volume.path_checks("/a/b/f", "r"), Err(QueryError::Acl { .. })));
    let name = Name::new(b"lost").unwrap();
    volume.apply(vec![Effect::PutDirent { parent: ROOT, name, ino: Ino(9999), kind: FileType::Regular }]);
    assert!(matches!(volume.path_checks("/lost", "r"), Err(QueryError::Damaged { ino: 9999, .. })));
    assert!(matches!(volume.tree().inode(Ino(9999)), Err(QueryError::Damaged { .. })));
}

#[test]
fn local_tree_reads_the_files_of_this_machine() {
    let path_checks =
        PathChecks::find(&LocalTree::default(), b"/proc/self/status", Operation::Access(Perm::READ)).unwrap();
    assert_eq!(path_checks.end, Ok(()));
    assert!(matches!(path_checks.checks.first().unwrap().requirement, Requirement::Search));
    let none = PathChecks::find(&LocalTree::default(), b"/proc/no such file", Operation::Stat).unwrap();
    assert_eq!(none.end, Err(Errno::ENOENT));
}
