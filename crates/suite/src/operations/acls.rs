//! ACLs: how they are set, stored, inherited, and how they and the mode move each other.

use acl::posix;
use meta::ops::{AclType, GetAcl, MakeKind, SetAcl};
use meta::{Access, AclKind, Effect, Node, Txn, Volume};
use types::{AclId, Errno, Ino, Mode, OpId};

use super::fixture::{Client, ROOT, acl, fresh, fresh_with, volume};
use super::invariants::check;
use super::{Case, Factory};

pub(super) const CASES: &[Case] = &[
    ("an_access_acl_sets_the_mode", an_access_acl_sets_the_mode),
    ("a_minimal_acl_is_only_a_mode", a_minimal_acl_is_only_a_mode),
    ("equal_acls_are_one", equal_acls_are_one),
    ("an_acl_is_known_by_its_hash", an_acl_is_known_by_its_hash),
    ("an_acl_that_is_missing_is_there_once_it_is_set", an_acl_that_is_missing_is_there_once_it_is_set),
    ("chmod_moves_the_mask", chmod_moves_the_mask),
    ("new_files_inherit", new_files_inherit),
    ("inheritance_is_the_same_remembered_or_not", inheritance_is_the_same_remembered_or_not),
    ("set_acl_refuses_in_order", set_acl_refuses_in_order),
    ("a_volume_may_be_without_acls", a_volume_may_be_without_acls),
];

const NAMED: &str = "u::rwx,u:1000:rw-,g::r-x,m::rwx,o::---";

fn an_access_acl_sets_the_mode(factory: Factory<'_>) {
    let c = fresh(factory);
    let made = c.make(ROOT, "f", MakeKind::Regular, 0o2644).unwrap();
    let named = acl(NAMED);
    c.set_acl(made.ino, AclType::Access, Some(&named)).unwrap();
    for client in [&c, &c.stranger()] {
        let node = client.node(made.ino);
        assert_eq!((node.mode, node.access_acl), (Mode::new(0o2770), named.id()));
        assert_eq!(client.acl(node.access_acl).as_deref(), Some(&named));
    }
    let node = c.node(made.ino);
    assert!(node.ctime > made.ctime && node.mtime == made.mtime && node.access_rev > made.access_rev);
    let set = SetAcl { ino: made.ino, which: AclType::Access, acl: Some(named), kill_sgid: true };
    c.run(&set).unwrap();
    assert_eq!(c.node(made.ino).mode, Mode::new(0o770), "who may not keep SGID loses it");
    c.set_acl(made.ino, AclType::Access, None).unwrap();
    c.set_acl(made.ino, AclType::Access, None).unwrap();
    let plain = c.node(made.ino);
    assert_eq!((plain.mode, plain.access_acl), (Mode::new(0o770), AclId::NONE), "the mask's bits stay");
    check(&c);
}

fn a_minimal_acl_is_only_a_mode(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    c.set_acl(ino, AclType::Access, Some(&acl(NAMED))).unwrap();
    let minimal = acl("u::rw-,g::r--,o::--x");
    c.set_acl(ino, AclType::Access, Some(&minimal)).unwrap();
    let node = c.node(ino);
    assert_eq!((node.mode, node.access_acl), (Mode::new(0o641), AclId::NONE));
    assert_eq!(c.stranger().run(&GetAcl(minimal.id())), Err(Errno::EIO), "it was not even stored");
    let dir = c.mkdir(ROOT, "d").unwrap();
    c.set_acl(dir, AclType::Default, Some(&minimal)).unwrap();
    assert_eq!(c.node(dir).default_acl, minimal.id(), "as a default it replaces the umask, so it is kept");
    c.set_acl(dir, AclType::Default, None).unwrap();
    assert_eq!(c.node(dir).default_acl, AclId::NONE);
    check(&c);
}

fn equal_acls_are_one(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.mkdir(ROOT, "b").unwrap());
    c.set_acl(a, AclType::Access, Some(&acl(NAMED))).unwrap();
    let reordered = acl("o::---,m::rwx,g::r-x,u:1000:rw-,u::rwx");
    c.stranger().set_acl(b, AclType::Access, Some(&reordered)).unwrap();
    c.set_acl(b, AclType::Default, Some(&reordered)).unwrap();
    let (s, id) = (c.stranger(), acl(NAMED).id());
    assert_eq!((s.node(a).access_acl, s.node(b).access_acl, s.node(b).default_acl), (id, id, id));
    check(&c);
}

/// What reads well under an id that is not its own has taken the place of something else.
fn an_acl_is_known_by_its_hash(factory: Factory<'_>) {
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

/// The damage comes along with the inode, as what is not stored.
fn an_acl_that_is_missing_is_there_once_it_is_set(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    let access = Access { access_acl: acl(NAMED).id(), ..Access::from(&c.node(ino)) };
    let effects = vec![Effect::SetAccess { ino, access }];
    c.engine().commit(&[Txn { op_id: OpId(1 << 80), guards: Vec::new(), effects }]).unwrap();
    assert_eq!(c.stranger().run(&GetAcl(access.access_acl)), Err(Errno::EIO));
    c.stranger().set_acl(ino, AclType::Access, Some(&acl(NAMED))).unwrap();
    assert_eq!(c.stranger().acl(access.access_acl).as_deref(), Some(&acl(NAMED)));
    check(&c.stranger());
}

fn chmod_moves_the_mask(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    c.set_acl(ino, AclType::Access, Some(&acl(NAMED))).unwrap();
    c.chmod(ino, 0o4611).unwrap();
    let node = c.node(ino);
    assert_eq!(node.mode, Mode::new(0o4611));
    let moved = acl("u::rw-,u:1000:rw-,g::r-x,m::--x,o::--x");
    assert_eq!(c.stranger().acl(node.access_acl).as_deref(), Some(&moved));
    c.chmod(ino, 0o770).unwrap();
    assert_eq!(c.node(ino).access_acl, acl(NAMED).id(), "back to the very same ACL");
    check(&c);
}

fn new_files_inherit(factory: Factory<'_>) {
    let mut c = fresh(factory);
    c.umask = 0o077;
    let dir = c.mkdir(ROOT, "d").unwrap();
    let default = acl("u::rwx,u:1000:rwx,g::r-x,m::rwx,o::r-x");
    c.set_acl(dir, AclType::Default, Some(&default)).unwrap();
    assert_eq!(c.node(dir).mode, Mode::new(0o700), "a default ACL does not bear on its own directory");
    let file = c.make(dir, "f", MakeKind::Regular, 0o666).unwrap();
    assert_eq!((file.mode, file.default_acl), (Mode::new(0o664), AclId::NONE), "the umask is ignored");
    let expected = acl("u::rw-,u:1000:rwx,g::r-x,m::rw-,o::r--");
    assert_eq!(c.stranger().acl(file.access_acl).as_deref(), Some(&expected));
    let twin = c.make(dir, "g", MakeKind::Regular, 0o666).unwrap();
    assert_eq!(twin.access_acl, file.access_acl);
    let sub = c.make(dir, "d", MakeKind::Directory, 0o777).unwrap();
    assert_eq!((sub.access_acl, sub.default_acl), (default.id(), default.id()), "the directory's very ids");
    let link = c.make(dir, "l", MakeKind::Symlink(b"t".as_slice().into()), 0o777).unwrap();
    assert_eq!((link.mode, link.access_acl, link.default_acl), (Mode::new(0o777), AclId::NONE, AclId::NONE));
    c.set_acl(sub.ino, AclType::Default, Some(&acl("u::rwx,g::r-x,o::r-x"))).unwrap();
    let plain = c.make(sub.ino, "f", MakeKind::Regular, 0o666).unwrap();
    assert_eq!((plain.mode, plain.access_acl), (Mode::new(0o644), AclId::NONE), "minimal: only a mode");
    assert_eq!(c.make(sub.ino, "d", MakeKind::Directory, 0o777).unwrap().mode, Mode::new(0o755));
    check(&c);
}

/// Make remembers what a default ACL gives; each time, warm and cold, it must be what the rule says.
fn inheritance_is_the_same_remembered_or_not(factory: Factory<'_>) {
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
                for (who, client) in [&c, &stranger].into_iter().enumerate() {
                    for kind in [MakeKind::Regular, MakeKind::Directory] {
                        let name = format!("{kind:?}-{round}-{mode:o}-{who}");
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

fn set_acl_refuses_in_order(factory: Factory<'_>) {
    let c = fresh(factory);
    let (file, link) = (c.create(ROOT, "f").unwrap(), c.symlink(ROOT, "l", "t").unwrap());
    let named = acl(NAMED);
    assert_eq!(c.set_acl(Ino(1 << 40), AclType::Access, Some(&named)), Err(Errno::ESTALE));
    assert_eq!(c.set_acl(link, AclType::Access, Some(&named)), Err(Errno::EOPNOTSUPP));
    assert_eq!(c.set_acl(file, AclType::Default, Some(&named)), Err(Errno::EACCES));
    let before: Node = c.node(file);
    assert_eq!(c.set_acl(file, AclType::Default, None), Ok(()));
    assert_eq!(c.node(file), before);
    check(&c);
}

fn a_volume_may_be_without_acls(factory: Factory<'_>) {
    let c: Client = fresh_with(factory, &Volume { acl: AclKind::Off, ..volume() });
    let dir = c.mkdir(ROOT, "d").unwrap();
    for which in [AclType::Access, AclType::Default] {
        assert_eq!(c.set_acl(dir, which, Some(&acl(NAMED))), Err(Errno::EOPNOTSUPP));
        assert_eq!(c.set_acl(dir, which, None), Err(Errno::EOPNOTSUPP));
    }
    check(&c);
}
