//! Access checks by the daemon, and by a kernel whose revisions may be stale.

use ops::{
    AclType, Authority, Link, Lookup, MakeKind, RemoveXattr, Rename, RenameFlags, Rmdir, SetAcl, SetAttr,
    SetXattr, Unlink, XattrMode,
};
use types::{Caps, Cred, Errno, Ino, Mode, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, REPLACE, ROOT, acl, client, fresh, n, x};

pub(super) const CASES: &[Case] = &[
    ("the_daemon_checks_directories", the_daemon_checks_directories),
    ("the_daemon_checks_acls", the_daemon_checks_acls),
    ("the_sticky_bit_protects", the_sticky_bit_protects),
    ("a_directory_that_changes_parents_must_be_writable", a_directory_that_changes_parents_must_be_writable),
    ("the_daemon_checks_owners", the_daemon_checks_owners),
    ("chown_needs_ownership_or_cap_chown", chown_needs_ownership_or_cap_chown),
    ("the_daemon_checks_attributes", the_daemon_checks_attributes),
    ("the_daemon_checks_xattrs", the_daemon_checks_xattrs),
    ("anyone_may_search_and_nothing_else", anyone_may_search_and_nothing_else),
    ("a_kernel_with_stale_revisions_gets_estale", a_kernel_with_stale_revisions_gets_estale),
    ("changes_of_an_inode_depend_on_its_revision", changes_of_an_inode_depend_on_its_revision),
    ("rights_revoked_by_another_client_end_at_once", rights_revoked_by_another_client_end_at_once),
];

fn user(uid: u32) -> Authority<'static> {
    Authority::Daemon(Cred::new(uid, uid, &[], Caps::NONE))
}

fn dir_of(c: &Client, name: &str, uid: u32, mode: u32) -> Ino {
    let ino = c.mkdir(ROOT, name).unwrap();
    c.run(&SetAttr { ino, uid: Some(uid), gid: Some(uid), ..SetAttr::default() }).unwrap();
    c.chmod(ino, mode).unwrap();
    ino
}

fn file_of(c: &Client, parent: Ino, name: &str, uid: u32) -> Ino {
    let ino = c.create(parent, name).unwrap();
    c.run(&SetAttr { ino, uid: Some(uid), gid: Some(uid), ..SetAttr::default() }).unwrap();
    ino
}

fn rename(parent: Ino, name: &str, new_parent: Ino, new_name: &str, flags: RenameFlags) -> Rename {
    Rename { parent, name: n(name), new_parent, new_name: n(new_name), flags, whiteout: None, open: None }
}

fn the_daemon_checks_directories(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = dir_of(&c, "d", 1, 0o755);
    let file = file_of(&c, dir, "f", 1);
    let locked = dir_of(&c, "locked", 1, 0o700);
    let lookup = |dir| Lookup { parent: dir, name: n("f") };
    assert_eq!(c.run_as(&lookup(dir), &user(2)).unwrap().unwrap().ino, file);
    assert_eq!(c.run_as(&lookup(locked), &user(2)), Err(Errno::EACCES));
    assert_eq!(c.run_as(&lookup(locked), &user(1)), Ok(None));
    let make = |name: &str| c.make_op(dir, name, MakeKind::Regular, 0o644);
    assert_eq!(c.run_as(&make("x"), &user(2)).unwrap_err(), Errno::EACCES);
    assert!(c.run_as(&make("x"), &user(1)).is_ok());
    let link = Link { ino: file, parent: dir, name: n("y"), orphan_of: None };
    assert_eq!(c.run_as(&link, &user(2)), Err(Errno::EACCES));
    let unlink = Unlink { parent: dir, name: n("x"), open: None };
    assert_eq!(c.run_as(&unlink, &user(2)).unwrap_err(), Errno::EACCES);
    c.mkdir(dir, "sub").unwrap();
    let rmdir = Rmdir { parent: dir, name: n("sub") };
    assert_eq!(c.run_as(&rmdir, &user(2)).unwrap_err(), Errno::EACCES);
    let out = rename(dir, "f", ROOT, "f", REPLACE);
    assert_eq!(c.run_as(&out, &user(2)).unwrap_err(), Errno::EACCES);
    assert_eq!(c.run_as(&out, &user(1)).unwrap_err(), Errno::EACCES, "the target directory belongs to root");
    assert!(c.run_as(&out, &Authority::Daemon(Cred::root())).is_ok());
    let no_name = Unlink { parent: locked, name: n("none"), open: None };
    assert_eq!(c.run_as(&no_name, &user(1)).unwrap_err(), Errno::ENOENT);
}

fn the_daemon_checks_acls(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = dir_of(&c, "d", 1, 0o700);
    c.set_acl(dir, AclType::Access, Some(&acl("u::rwx,u:2:rwx,u:3:r-x,g::---,m::rwx,o::---"))).unwrap();
    let stranger = c.stranger();
    for client in [&c, &stranger] {
        let make = |name: &str| client.make_op(dir, name, MakeKind::Regular, 0o644);
        let name = format!("by2-{}", client.meta.session());
        assert!(client.run_as(&make(&name), &user(2)).is_ok());
        assert_eq!(client.run_as(&make("x"), &user(3)).unwrap_err(), Errno::EACCES);
        assert_eq!(client.run_as(&make("x"), &user(4)).unwrap_err(), Errno::EACCES);
        let lookup = Lookup { parent: dir, name: n(&name) };
        assert!(client.run_as(&lookup, &user(3)).unwrap().is_some());
        assert_eq!(client.run_as(&lookup, &user(4)), Err(Errno::EACCES));
    }
}

fn the_sticky_bit_protects(factory: Factory<'_>) {
    let c = fresh(factory);
    let tmp = dir_of(&c, "tmp", 1, 0o1777);
    let unlink = |name: &str| Unlink { parent: tmp, name: n(name), open: None };
    for name in ["a", "b", "c", "d"] {
        file_of(&c, tmp, name, 2);
    }
    file_of(&c, tmp, "mine", 3);
    assert_eq!(c.run_as(&unlink("a"), &user(3)).unwrap_err(), Errno::EPERM);
    assert_eq!(c.run_as(&rename(tmp, "mine", tmp, "a", REPLACE), &user(3)).unwrap_err(), Errno::EPERM);
    assert_eq!(c.run_as(&rename(tmp, "a", tmp, "x", REPLACE), &user(3)).unwrap_err(), Errno::EPERM);
    assert_eq!(c.run_as(&rename(tmp, "mine", tmp, "a", EXCHANGE), &user(3)).unwrap_err(), Errno::EPERM);
    assert!(c.run_as(&unlink("a"), &user(2)).is_ok(), "the owner of the file may");
    assert!(c.run_as(&unlink("b"), &user(1)).is_ok(), "the directory's owner may");
    c.link(c.at(tmp, "d").ino, tmp, "twin").unwrap();
    assert!(
        c.run_as(&rename(tmp, "d", tmp, "twin", REPLACE), &user(3)).is_ok(),
        "a rename between two names of one inode does nothing"
    );
    let fowner = Authority::Daemon(Cred::new(9, 9, &[], Caps::FOWNER));
    assert!(c.run_as(&unlink("c"), &fowner).is_ok());
    c.mkdir(tmp, "sub").unwrap();
    assert_eq!(c.run_as(&Rmdir { parent: tmp, name: n("sub") }, &user(3)).unwrap_err(), Errno::EPERM);
}

fn a_directory_that_changes_parents_must_be_writable(factory: Factory<'_>) {
    let c = fresh(factory);
    let (from, to) = (dir_of(&c, "from", 1, 0o777), dir_of(&c, "to", 1, 0o777));
    let sub = c.mkdir(from, "sub").unwrap();
    c.chmod(sub, 0o755).unwrap();
    assert_eq!(c.run_as(&rename(from, "sub", to, "sub", REPLACE), &user(1)).unwrap_err(), Errno::EACCES);
    assert!(
        c.run_as(&rename(from, "sub", from, "new", REPLACE), &user(1)).is_ok(),
        "the parent does not change"
    );
    c.run(&SetAttr { ino: sub, uid: Some(1), ..SetAttr::default() }).unwrap();
    assert!(c.run_as(&rename(from, "new", to, "sub", REPLACE), &user(1)).is_ok());
}

fn the_daemon_checks_owners(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = file_of(&c, ROOT, "f", 1);
    let chmod = SetAttr { ino: file, mode: Some(Mode::new(0o600)), ..SetAttr::default() };
    assert_eq!(c.run_as(&chmod, &user(2)), Err(Errno::EPERM));
    assert_eq!(c.run_as(&chmod, &user(1)).map(drop), Ok(()));
    let chown = |uid, gid| SetAttr { ino: file, uid, gid, ..SetAttr::default() };
    assert_eq!(
        c.run_as(&chown(Some(2), None), &user(1)),
        Err(Errno::EPERM),
        "owners may not give files away"
    );
    assert_eq!(c.run_as(&chown(None, Some(9)), &user(1)), Err(Errno::EPERM), "only to a group of the caller");
    let member = Authority::Daemon(Cred::new(1, 1, &[9], Caps::NONE));
    assert_eq!(c.run_as(&chown(Some(1), Some(9)), &member).map(drop), Ok(()));
    assert_eq!(c.inode(file).gid, 9);
    let set = SetAcl { ino: file, which: AclType::Access, acl: None, kill_sgid: false };
    assert_eq!(c.run_as(&set, &user(2)), Err(Errno::EPERM));
    assert_eq!(c.run_as(&set, &user(1)), Ok(()));
    let chown_cap = Authority::Daemon(Cred::new(5, 5, &[], Caps::CHOWN | Caps::FOWNER));
    assert_eq!(c.run_as(&chown(Some(2), Some(3)), &chown_cap).map(drop), Ok(()));
}

/// The rules of `chown_ok` and `chgrp_ok`, fs/attr.c: `CAP_FOWNER` does not count.
fn chown_needs_ownership_or_cap_chown(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = file_of(&c, ROOT, "f", 1);
    let by = |caps| Authority::Daemon(Cred::new(5, 5, &[1, 9], caps));
    let chown = |uid, gid, caps| {
        let op = SetAttr { ino: file, uid, gid, ..SetAttr::default() };
        c.run_as(&op, &by(caps)).map(drop)
    };
    for (uid, gid) in [(Some(1), None), (None, Some(1)), (None, Some(9)), (Some(5), Some(9))] {
        assert_eq!(chown(uid, gid, Caps::FOWNER), Err(Errno::EPERM), "{uid:?}:{gid:?}");
    }
    assert_eq!(chown(Some(2), Some(3), Caps::CHOWN), Ok(()));
    assert_eq!((c.inode(file).uid, c.inode(file).gid), (2, 3));
    assert_eq!(chown(Some(1), None, Caps::CHOWN), Ok(()));
    assert_eq!(chown(None, Some(9), Caps::CHOWN), Ok(()));
    assert_eq!((c.inode(file).uid, c.inode(file).gid), (1, 9));
    // To set the mode in the same request, the caller must own the file or have `CAP_FOWNER`.
    let both = SetAttr { ino: file, uid: Some(2), mode: Some(Mode::new(0o600)), ..SetAttr::default() };
    assert_eq!(c.run_as(&both, &by(Caps::CHOWN)), Err(Errno::EPERM));
    assert_eq!(c.run_as(&both, &by(Caps::CHOWN | Caps::FOWNER)).map(drop), Ok(()));
}

fn the_daemon_checks_attributes(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = file_of(&c, ROOT, "f", 1);
    c.chmod(file, 0o646).unwrap();
    let set = |set: SetAttr, by: u32| c.run_as(&SetAttr { ino: file, ..set }, &user(by)).map(drop);
    let time = || Some(Time::new(5, 5));
    let cut = || SetAttr { size: Some(1), ..SetAttr::default() };
    let touch = || SetAttr { atime: time(), mtime: time(), sets_times_to_now: true, ..SetAttr::default() };
    let give = || SetAttr { sets_times_to_now: false, ..touch() };
    assert_eq!((set(cut(), 2), set(touch(), 2), set(give(), 2)), (Ok(()), Ok(()), Err(Errno::EPERM)));
    c.chmod(file, 0o444).unwrap();
    assert_eq!((set(cut(), 2), set(touch(), 2)), (Err(Errno::EACCES), Err(Errno::EACCES)));
    assert_eq!((set(cut(), 1), set(touch(), 1), set(give(), 1)), (Err(Errno::EACCES), Ok(()), Ok(())));
    assert_eq!(set(SetAttr { is_open: true, ..cut() }, 2), Ok(()), "the file was opened for writing");
    let dir = dir_of(&c, "d", 1, 0o777);
    let cut_dir = SetAttr { ino: dir, ..cut() };
    assert_eq!(c.run_as(&cut_dir, &user(2)), Err(Errno::EISDIR));

    // SGID is cleared if the caller is not in the group; truncation clears both bits.
    let chmod = |mode| SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() };
    assert_eq!(set(chmod(0o6755), 1), Ok(()));
    assert_eq!(c.inode(file).mode, Mode::new(0o6755));
    assert_eq!(set(cut(), 1), Ok(()));
    assert_eq!(c.inode(file).mode, Mode::new(0o755));
    c.run(&SetAttr { ino: file, gid: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(set(chmod(0o6755), 1), Ok(()));
    assert_eq!(c.inode(file).mode, Mode::new(0o4755));
    let member = Authority::Daemon(Cred::new(1, 1, &[9], Caps::NONE));
    assert_eq!(c.run_as(&SetAttr { ino: file, ..chmod(0o2755) }, &member).map(drop), Ok(()));
    assert_eq!(c.inode(file).mode, Mode::new(0o2755));
    let minimal = acl("u::rwx,g::r-x,o::r-x");
    let set_acl = SetAcl { ino: file, which: AclType::Access, acl: Some(minimal), kill_sgid: false };
    assert_eq!(c.run_as(&set_acl, &user(1)), Ok(()));
    assert_eq!(c.inode(file).mode, Mode::new(0o755));
}

fn the_daemon_checks_xattrs(factory: Factory<'_>) {
    let c = fresh(factory);
    let file = file_of(&c, ROOT, "f", 1);
    let set = |ino, name: &str, authority: &Authority| {
        let value = b"v"[..].into();
        c.run_as(&SetXattr { ino, name: x(name), value, mode: XattrMode::Set }, authority)
    };
    let remove =
        |ino, name: &str, authority: &Authority| c.run_as(&RemoveXattr { ino, name: x(name) }, authority);
    assert_eq!(set(file, "user.a", &user(2)), Err(Errno::EACCES));
    assert_eq!(set(file, "user.a", &user(1)), Ok(()));
    assert_eq!(remove(file, "user.a", &user(2)), Err(Errno::EACCES));
    assert_eq!(remove(file, "user.a", &user(1)), Ok(()));
    let admin = Authority::Daemon(Cred::new(2, 2, &[], Caps::SYS_ADMIN));
    for name in ["trusted.a", "security.a"] {
        assert_eq!(set(file, name, &user(1)), Err(Errno::EPERM));
        assert_eq!(set(file, name, &admin), Ok(()));
        assert_eq!(remove(file, name, &user(1)), Err(Errno::EPERM));
    }
    let tmp = dir_of(&c, "tmp", 1, 0o1777);
    assert_eq!((set(tmp, "user.a", &user(2)), set(tmp, "user.a", &user(1))), (Err(Errno::EPERM), Ok(())));
}

fn anyone_may_search_and_nothing_else(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = dir_of(&c, "d", 1, 0o777);
    c.create(dir, "f").unwrap();
    let lookup = Lookup { parent: dir, name: n("f") };
    let search = || c.run_as(&lookup, &Authority::Anyone).map(|found| found.is_some());
    assert_eq!(search(), Ok(true));
    let refused = [
        c.run_as(&c.make_op(dir, "x", MakeKind::Regular, 0o644), &Authority::Anyone).map(drop),
        c.run_as(&Unlink { parent: dir, name: n("f"), open: None }, &Authority::Anyone).map(drop),
        c.run_as(&rename(dir, "f", dir, "g", REPLACE), &Authority::Anyone).map(drop),
    ];
    assert_eq!(refused, [Err(Errno::EACCES); 3]);
    let chmod = SetAttr { ino: dir, mode: Some(Mode::new(0)), ..SetAttr::default() };
    assert_eq!(c.run_as(&chmod, &Authority::Anyone), Err(Errno::EACCES));
    for (mode, passes) in [(0o711, true), (0o710, false), (0o701, false), (0o611, false)] {
        c.chmod(dir, mode).unwrap();
        assert_eq!(search(), if passes { Ok(true) } else { Err(Errno::EACCES) }, "{mode:o}");
    }
    c.chmod(dir, 0o711).unwrap();
    for (text, passes) in [
        ("u::rwx,u:5:r-x,g::--x,m::r-x,o::--x", true),
        ("u::rwx,u:5:r--,g::--x,m::r-x,o::--x", false),
        ("u::rwx,u:5:r-x,g::--x,m::r--,o::--x", false),
        ("u::rw-,u:5:r-x,g::--x,m::r-x,o::--x", false),
    ] {
        c.set_acl(dir, AclType::Access, Some(&acl(text))).unwrap();
        for _ in 0..2 {
            assert_eq!(search(), if passes { Ok(true) } else { Err(Errno::EACCES) }, "{text}");
        }
    }
    // As in the kernel, the ACL is not used if the group bits of the mode are clear.
    c.set_acl(dir, AclType::Access, Some(&acl("u::rwx,u:5:r-x,g::--x,m::r-x,o::--x"))).unwrap();
    c.chmod(dir, 0o701).unwrap();
    assert_eq!(search(), Err(Errno::EACCES));
}

fn a_kernel_with_stale_revisions_gets_estale(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = c.mkdir(ROOT, "d").unwrap();
    c.create(dir, "f").unwrap();
    let before = [(dir, c.inode(dir).access_rev)];
    let by_kernel = Authority::Kernel { revisions: Some(&before) };
    c.chmod(dir, 0o700).unwrap();
    let make = c.make_op(dir, "x", MakeKind::Regular, 0o644);
    for client in [&c, &c.stranger()] {
        assert_eq!(client.run_as(&make, &by_kernel).unwrap_err(), Errno::ESTALE);
        let unlink = Unlink { parent: dir, name: n("f"), open: None };
        assert_eq!(client.run_as(&unlink, &by_kernel).unwrap_err(), Errno::ESTALE);
        let link = c.link_op(c.at(dir, "f").ino, dir, "g");
        assert_eq!(client.run_as(&link, &by_kernel).unwrap_err(), Errno::ESTALE);
        let renamed = client.run_as(&rename(dir, "f", dir, "g", REPLACE), &by_kernel);
        assert_eq!(renamed.unwrap_err(), Errno::ESTALE);
    }
    let now = [(dir, c.inode(dir).access_rev)];
    assert!(c.run_as(&make, &Authority::Kernel { revisions: Some(&now) }).is_ok());
    assert_eq!(c.inode(dir).access_rev, now[0].1, "new names do not change the access revision");
}

/// The owner, mode and ACL of an inode decide access to it, so the kernel must have checked their current
/// values.
fn changes_of_an_inode_depend_on_its_revision(factory: Factory<'_>) {
    let c = fresh(factory);
    let (dir, other) = (dir_of(&c, "d", 1, 0o1777), c.mkdir(ROOT, "other").unwrap());
    let (file, sub) = (file_of(&c, dir, "f", 2), dir_of(&c, "sub", 2, 0o755));
    c.set_xattr(file, "user.old", "1", XattrMode::Set).unwrap();
    c.set_xattr(file, "trusted.old", "1", XattrMode::Set).unwrap();
    let dirs = [ROOT, dir, other].map(|dir| (dir, c.inode(dir).access_rev));
    let [of_root, of_dir, of_other] = dirs;
    let revisions = |c: &Client| {
        [of_root, of_dir, of_other, (file, c.inode(file).access_rev), (sub, c.inode(sub).access_rev)]
    };
    let before = revisions(&c);
    let chown = |ino| SetAttr { ino, uid: Some(3), ..SetAttr::default() };
    c.run(&chown(file)).unwrap();
    c.run(&chown(sub)).unwrap();

    let now = Some(Time::now());
    let set = SetAttr { ino: file, ..SetAttr::default() };
    let changes = [
        SetAttr { mode: Some(Mode::new(0o666)), ..set },
        SetAttr { uid: Some(2), ..set },
        SetAttr { gid: Some(2), ..set },
        SetAttr { atime: now, mtime: now, ..set },
        SetAttr { atime: now, mtime: now, sets_times_to_now: true, ..set },
        SetAttr { size: Some(0), ..set },
    ];
    let acl_of = |text: Option<&str>| SetAcl {
        ino: file,
        which: AclType::Access,
        acl: text.map(acl),
        kill_sgid: false,
    };
    let xattr = |name| SetXattr { ino: file, name: x(name), value: (*b"1").into(), mode: XattrMode::Set };
    let remove = |name| RemoveXattr { ino: file, name: x(name) };
    let unlink = Unlink { parent: dir, name: n("f"), open: None };
    let by_stale = Authority::Kernel { revisions: Some(&before) };
    for client in [&c, &c.stranger()] {
        for change in &changes {
            assert_eq!(client.run_as(change, &by_stale), Err(Errno::ESTALE), "{change:?}");
        }
        for text in [Some("u::rw-,u:2:rw-,g::---,m::rw-,o::---"), None] {
            assert_eq!(client.run_as(&acl_of(text), &by_stale), Err(Errno::ESTALE));
        }
        assert_eq!(client.run_as(&xattr("user.new"), &by_stale), Err(Errno::ESTALE));
        assert_eq!(client.run_as(&remove("user.old"), &by_stale), Err(Errno::ESTALE));
        // An unlink in a sticky directory and the move of a directory depend on the inode's revision too.
        assert_eq!(client.run_as(&unlink, &by_stale).unwrap_err(), Errno::ESTALE);
        let moved = rename(ROOT, "sub", other, "sub", REPLACE);
        assert_eq!(client.run_as(&moved, &by_stale).unwrap_err(), Errno::ESTALE);
        assert_eq!((c.inode(file).uid, c.inode(file).mode, c.inode(file).size), (3, Mode::new(0o644), 0));
    }
    // Changes whose permission depends only on capabilities or on an open file do not depend on the revision.
    c.run_as(&xattr("trusted.new"), &by_stale).unwrap();
    c.run_as(&remove("trusted.old"), &by_stale).unwrap();
    c.run_as(&SetAttr { size: Some(0), is_open: true, ..set }, &by_stale).unwrap();
    for change in &changes {
        c.run_as(change, &Authority::Kernel { revisions: Some(&revisions(&c)) }).unwrap();
    }
    let run = |op: &SetAcl| c.run_as(op, &Authority::Kernel { revisions: Some(&revisions(&c)) });
    run(&acl_of(Some("u::rw-,u:2:rw-,g::---,m::rw-,o::---"))).unwrap();
    run(&acl_of(None)).unwrap();
    c.run_as(&xattr("user.new"), &Authority::Kernel { revisions: Some(&revisions(&c)) }).unwrap();
    c.run_as(&remove("user.old"), &Authority::Kernel { revisions: Some(&revisions(&c)) }).unwrap();
    c.run_as(&unlink, &Authority::Kernel { revisions: Some(&revisions(&c)) }).unwrap();
}

/// The kernel of one client has granted access by a cached mode, which another client has just changed.
fn rights_revoked_by_another_client_end_at_once(factory: Factory<'_>) {
    let a = fresh(factory);
    a.meta.set_exclusive(false);
    let dir = a.mkdir(ROOT, "d").unwrap();
    let rev = a.at(ROOT, "d").access_rev;
    let b = client(a.engine());
    b.chmod(dir, 0o700).unwrap();
    assert_eq!(a.inode(dir).access_rev, rev, "client a still has the old revision cached");
    let make = a.make_op(dir, "x", MakeKind::Regular, 0o644);
    assert_eq!(
        a.run_as(&make, &Authority::Kernel { revisions: Some(&[(dir, rev)]) }).unwrap_err(),
        Errno::ESTALE
    );
    assert_eq!(b.lookup(dir, "x"), Ok(None));
    b.chmod(dir, 0o777).unwrap();
    assert!(a.run_as(&make, &user(5)).is_ok(), "a right that was just granted takes effect too");
    assert_eq!(a.run(&ops::RemoveXattr { ino: dir, name: x("user.none") }), Err(Errno::ENODATA));
}
