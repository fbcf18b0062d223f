//! ACLs: setting, storage, inheritance, and how an ACL and the mode change each other.

use acl::posix;
use meta::{Access, AclKind, Effect, Inode, Txn, Volume};
use ops::{AclType, GetAcl, MakeKind, SetAcl};
use types::{AclId, Errno, Ino, Mode, OpId};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, acl, fresh, fresh_with, volume};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("an_access_acl_sets_the_mode", an_access_acl_sets_the_mode),
    ("a_minimal_acl_is_only_a_mode", a_minimal_acl_is_only_a_mode),
    ("equal_acls_share_one_id", equal_acls_share_one_id),
    ("an_acl_must_match_its_hash", an_acl_must_match_its_hash),
    ("setting_a_missing_acl_stores_it", setting_a_missing_acl_stores_it),
    ("chmod_changes_the_mask", chmod_changes_the_mask),
    ("new_files_inherit", new_files_inherit),
    ("inheritance_is_the_same_cached_or_not", inheritance_is_the_same_cached_or_not),
    ("set_acl_checks_errors_in_order", set_acl_checks_errors_in_order),
    ("a_volume_can_be_without_acls", a_volume_can_be_without_acls),
];

const NAMED: &str = "u::rwx,u:1000:rw-,g::r-x,m::rwx,o::---";

fn an_access_acl_sets_the_mode(factory: Factory<'_>) {
    let c = fresh(factory);
    let made = c.make(ROOT, "f", MakeKind::Regular, 0o2644).unwrap();
    let named = acl(NAMED);
    c.set_acl(made.ino, AclType::Access, Some(&named)).unwrap();
    for client in [&c, &c.stranger()] {
        let inode = client.inode(made.ino);
        assert_eq!((inode.mode, inode.access_acl), (Mode::new(0o2770), named.id()));
        assert_eq!(client.acl(inode.access_acl).as_deref(), Some(&named));
    }
    let inode = c.inode(made.ino);
    assert!(inode.ctime > made.ctime && inode.mtime == made.mtime && inode.access_rev > made.access_rev);
    let set = SetAcl { ino: made.ino, which: AclType::Access, acl: Some(named), kill_sgid: true };
    c.run(&set).unwrap();
    assert_eq!(c.inode(made.ino).mode, Mode::new(0o770), "a caller outside the group loses SGID");
    c.set_acl(made.ino, AclType::Access, None).unwrap();
    c.set_acl(made.ino, AclType::Access, None).unwrap();
    let plain = c.inode(made.ino);
    assert_eq!((plain.mode, plain.access_acl), (Mode::new(0o770), AclId::NONE), "the bits of the mask stay");
    check(&c);
}

fn a_minimal_acl_is_only_a_mode(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    c.set_acl(ino, AclType::Access, Some(&acl(NAMED))).unwrap();
    let minimal = acl("u::rw-,g::r--,o::--x");
    c.set_acl(ino, AclType::Access, Some(&minimal)).unwrap();
    let inode = c.inode(ino);
    assert_eq!((inode.mode, inode.access_acl), (Mode::new(0o641), AclId::NONE));
    assert_eq!(c.stranger().run(&GetAcl(minimal.id())), Err(Errno::EIO), "a minimal ACL is not stored");
    let dir = c.mkdir(ROOT, "d").unwrap();
    c.set_acl(dir, AclType::Default, Some(&minimal)).unwrap();
    assert_eq!(
        c.inode(dir).default_acl,
        minimal.id(),
        "a minimal default ACL replaces the umask, so it is stored"
    );
    c.set_acl(dir, AclType::Default, None).unwrap();
    assert_eq!(c.inode(dir).default_acl, AclId::NONE);
    check(&c);
}

fn equal_acls_share_one_id(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.mkdir(ROOT, "b").unwrap());
    c.set_acl(a, AclType::Access, Some(&acl(NAMED))).unwrap();
    let reordered = acl("o::---,m::rwx,g::r-x,u:1000:rw-,u::rwx");
    c.stranger().set_acl(b, AclType::Access, Some(&reordered)).unwrap();
    c.set_acl(b, AclType::Default, Some(&reordered)).unwrap();
    let (s, id) = (c.stranger(), acl(NAMED).id());
    assert_eq!((s.inode(a).access_acl, s.inode(b).access_acl, s.inode(b).default_acl), (id, id, id));
    check(&c);
}

/// Reading a valid ACL whose hash is not its id fails with EIO, because another ACL must have been replaced
/// by it.
fn an_acl_must_match_its_hash(factory: Factory<'_>) {
    let c = fresh(factory);
    let texts = [NAMED, "u::rwx,u:1000:rwx,g::rwx,m::rwx,o::rwx", "", "A::1000:rwx"];
    for (id, text) in (1..).map(AclId).zip(texts) {
        let effects = vec![Effect::PutAcl { id, text: text.into() }];
        c.engine().commit(&[Txn { op_id: OpId(id.0 << 64), guards: Vec::new(), effects }]).unwrap();
        assert_eq!(c.stranger().run(&GetAcl(id)), Err(Errno::EIO), "{text}");
    }
    let put = vec![Effect::PutAcl { id: acl(NAMED).id(), text: NAMED.into() }];
    c.engine().commit(&[Txn { op_id: OpId(1 << 80), guards: Vec::new(), effects: put }]).unwrap();
    assert_eq!(c.stranger().acl(acl(NAMED).id()).as_deref(), Some(&acl(NAMED)));
}

/// The inode refers to an ACL that is not stored.
fn setting_a_missing_acl_stores_it(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    let access = Access { access_acl: acl(NAMED).id(), ..Access::from(&c.inode(ino)) };
    let effects = vec![Effect::SetAccess { ino, access }];
    c.engine().commit(&[Txn { op_id: OpId(1 << 80), guards: Vec::new(), effects }]).unwrap();
    assert_eq!(c.stranger().run(&GetAcl(access.access_acl)), Err(Errno::EIO));
    c.stranger().set_acl(ino, AclType::Access, Some(&acl(NAMED))).unwrap();
    assert_eq!(c.stranger().acl(access.access_acl).as_deref(), Some(&acl(NAMED)));
    check(&c.stranger());
}

fn chmod_changes_the_mask(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    c.set_acl(ino, AclType::Access, Some(&acl(NAMED))).unwrap();
    let moved = acl("u::rw-,u:1000:rw-,g::r-x,m::--x,o::--x");
    // The second round uses the results that the client cached in the first one.
    for _ in 0..2 {
        c.chmod(ino, 0o4611).unwrap();
        let inode = c.inode(ino);
        assert_eq!(inode.mode, Mode::new(0o4611));
        assert_eq!(c.stranger().acl(inode.access_acl).as_deref(), Some(&moved));
        c.chmod(ino, 0o770).unwrap();
        assert_eq!(c.inode(ino).access_acl, acl(NAMED).id(), "the same ACL as before");
    }
    check(&c);
}

fn new_files_inherit(factory: Factory<'_>) {
    let mut c = fresh(factory);
    c.umask = 0o077;
    let dir = c.mkdir(ROOT, "d").unwrap();
    let default = acl("u::rwx,u:1000:rwx,g::r-x,m::rwx,o::r-x");
    c.set_acl(dir, AclType::Default, Some(&default)).unwrap();
    assert_eq!(
        c.inode(dir).mode,
        Mode::new(0o700),
        "a default ACL does not affect the mode of its own directory"
    );
    let file = c.make(dir, "f", MakeKind::Regular, 0o666).unwrap();
    assert_eq!((file.mode, file.default_acl), (Mode::new(0o664), AclId::NONE), "the umask is ignored");
    let expected = acl("u::rw-,u:1000:rwx,g::r-x,m::rw-,o::r--");
    assert_eq!(c.stranger().acl(file.access_acl).as_deref(), Some(&expected));
    let twin = c.make(dir, "g", MakeKind::Regular, 0o666).unwrap();
    assert_eq!(twin.access_acl, file.access_acl);
    let sub = c.make(dir, "d", MakeKind::Directory, 0o777).unwrap();
    assert_eq!(
        (sub.access_acl, sub.default_acl),
        (default.id(), default.id()),
        "both have the id of the directory's default ACL"
    );
    let link = c.make(dir, "l", MakeKind::Symlink(b"t".as_slice().into()), 0o777).unwrap();
    assert_eq!((link.mode, link.access_acl, link.default_acl), (Mode::new(0o777), AclId::NONE, AclId::NONE));
    c.set_acl(sub.ino, AclType::Default, Some(&acl("u::rwx,g::r-x,o::r-x"))).unwrap();
    let plain = c.make(sub.ino, "f", MakeKind::Regular, 0o666).unwrap();
    assert_eq!(
        (plain.mode, plain.access_acl),
        (Mode::new(0o644), AclId::NONE),
        "a minimal ACL becomes only a mode"
    );
    assert_eq!(c.make(sub.ino, "d", MakeKind::Directory, 0o777).unwrap().mode, Mode::new(0o755));
    check(&c);
}

/// `Make` caches the results of a default ACL. With a warm and with a cold cache, the result must follow the
/// rule.
fn inheritance_is_the_same_cached_or_not(factory: Factory<'_>) {
    let c = fresh(factory);
    let defaults = [
        "u::rwx,g::r-x,o::---",
        NAMED,
        "u::r-x,g::rwx,m::r-x,o::--x",
        "u::---,u:5:rwx,g::---,g:7:rwx,m::---,o::rwx",
    ];
    for (i, text) in defaults.iter().enumerate() {
        let default = acl(text);
        let dir = c.mkdir(ROOT, &format!("d{i}")).unwrap();
        c.set_acl(dir, AclType::Default, Some(&default)).unwrap();
        for round in 0..2 {
            for mode in [0o777, 0o666, 0o640, 0o070, 0o007, 0, 0o6711] {
                let stranger = c.stranger();
                for (number, client) in [&c, &stranger].into_iter().enumerate() {
                    for kind in [MakeKind::Regular, MakeKind::Directory] {
                        let name = format!("{kind:?}-{round}-{mode:o}-{number}");
                        let made = client.make(dir, &name, kind.clone(), mode).unwrap();
                        let rule = posix::inherit(Some(&default), Mode::new(mode), 0o022, made.kind);
                        let id = |acl: Option<posix::PosixAcl>| acl.map_or(AclId::NONE, |acl| acl.id());
                        let expected = (rule.mode, id(rule.access), id(rule.default));
                        assert_eq!((made.mode, made.access_acl, made.default_acl), expected, "{text} {name}");
                    }
                }
            }
        }
    }
    check(&c);
}

fn set_acl_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh(factory);
    let (file, link) = (c.create(ROOT, "f").unwrap(), c.symlink(ROOT, "l", "t").unwrap());
    let named = acl(NAMED);
    assert_eq!(c.set_acl(Ino(1 << 40), AclType::Access, Some(&named)), Err(Errno::ESTALE));
    assert_eq!(c.set_acl(link, AclType::Access, Some(&named)), Err(Errno::EOPNOTSUPP));
    assert_eq!(c.set_acl(file, AclType::Default, Some(&named)), Err(Errno::EACCES));
    let before: Inode = c.inode(file);
    assert_eq!(c.set_acl(file, AclType::Default, None), Ok(()));
    assert_eq!(c.inode(file), before);
    check(&c);
}

fn a_volume_can_be_without_acls(factory: Factory<'_>) {
    let c: Client = fresh_with(factory, &Volume { acl: AclKind::Off, ..volume() });
    let dir = c.mkdir(ROOT, "d").unwrap();
    for which in [AclType::Access, AclType::Default] {
        assert_eq!(c.set_acl(dir, which, Some(&acl(NAMED))), Err(Errno::EOPNOTSUPP));
        assert_eq!(c.set_acl(dir, which, None), Err(Errno::EOPNOTSUPP));
    }
    check(&c);
}
