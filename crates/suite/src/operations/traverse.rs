//! Volumes with NFSv4 ACLs on which some callers may search every directory. This privilege includes no other
//! right.

use acl::nfs4::{Nfs4Acl, Policy, Scope, Traversers};
use meta::{AclKind, Volume};
use ops::{
    Authority, GetNfs4Acl, GetProjection, Lookup, MakeKind, Open, OpenAccess, Rename, SetAttr, SetNfs4Acl,
    Unlink, XattrMode,
};
use types::{Caps, Cred, Errno, Ino, Mode};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, fresh_with, n, volume};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("traversers_search_every_directory_and_no_more", traversers_search_every_directory_and_no_more),
    ("chmod_does_not_store_traversal_bits", chmod_does_not_store_traversal_bits),
];

const HOLDER: u32 = 7;
const GROUP: u32 = 70;

fn fresh(factory: Factory<'_>) -> Client {
    let volume = Volume { acl: AclKind::Nfs4, policy: Policy::default(), ..volume() };
    let c = fresh_with(factory, &volume);
    c.meta.set_traversers(Traversers::new(&[HOLDER], &[GROUP]).unwrap());
    c
}

fn by(uid: u32, groups: &[u32]) -> Authority<'static> {
    Authority::Daemon(Cred::new(uid, uid, groups, Caps::NONE))
}

fn set(c: &Client, ino: Ino, text: &str) {
    let acl = Some((Nfs4Acl::from_storage(text).unwrap(), Scope::Entries));
    c.run(&SetNfs4Acl { ino, acl, mode: XattrMode::Set, numbering: Default::default() }).unwrap();
}

fn traversers_search_every_directory_and_no_more(factory: Factory<'_>) {
    let c = fresh(factory);
    for text in [None, Some("D::EVERYONE@:x,A::OWNER@:rwaxD"), Some("A::OWNER@:rwaxD,D:g:70:x")] {
        let d = c.make(ROOT, &format!("{text:?}"), MakeKind::Directory, 0o700).unwrap().ino;
        if let Some(text) = text {
            set(&c, d, text);
        }
        let f = c.create(d, "f").unwrap();
        let lookup = Lookup { parent: d, name: n("f") };
        let many: Vec<u32> = (1000..1400).chain([GROUP]).collect();
        for caller in [by(HOLDER, &[]), by(8, &[GROUP]), by(8, &many), by(GROUP, &[GROUP])] {
            assert_eq!(c.run_as(&lookup, &caller).unwrap().unwrap().ino, f, "{text:?} {caller:?}");
            let make = c.make_op(d, "g", MakeKind::Regular, 0o644);
            assert_eq!(c.run_as(&make, &caller), Err(Errno::EACCES));
            assert_eq!(c.run_as(&c.link_op(f, d, "h"), &caller), Err(Errno::EACCES));
            let unlink = Unlink { parent: d, name: n("f"), open: None };
            assert_eq!(c.run_as(&unlink, &caller).unwrap_err(), Errno::EACCES);
            let (parent, new_parent, name, new_name) = (d, d, n("f"), n("g"));
            let flags = Default::default();
            let rename = Rename { parent, name, new_parent, new_name, flags, whiteout: None, open: None };
            assert_eq!(c.run_as(&rename, &caller).unwrap_err(), Errno::EACCES);
            let list = Open { ino: d, open_access: OpenAccess { read: true, ..OpenAccess::default() } };
            assert_eq!(c.run_as(&list, &caller), Err(Errno::EACCES));
        }
        let of_number = Authority::Daemon(Cred::new(GROUP, 8, &[HOLDER], Caps::NONE));
        for caller in [by(8, &[]), of_number, by(8, &[1000, 1001])] {
            assert_eq!(c.run_as(&lookup, &caller), Err(Errno::EACCES), "{text:?} {caller:?}");
        }
    }
    // The privilege does not include the execution of files.
    let program = c.make(ROOT, "program", MakeKind::Regular, 0o700).unwrap().ino;
    let execute = Open { ino: program, open_access: OpenAccess { execute: true, ..OpenAccess::default() } };
    assert_eq!(c.run_as(&execute, &by(HOLDER, &[])), Err(Errno::EACCES));
    check(&c);
}

fn chmod_does_not_store_traversal_bits(factory: Factory<'_>) {
    let c = fresh(factory);
    let shown = |ino| c.run(&GetProjection(&c.inode(ino))).unwrap().map(|shown| shown.rwx);
    let d = c.make(ROOT, "d", MakeKind::Directory, 0o700).unwrap().ino;
    assert_eq!(shown(d), Some(0o710));
    let f = c.make(ROOT, "f", MakeKind::Regular, 0o700).unwrap().ino;
    assert_eq!(shown(f), None, "the mode of files is not changed");
    for (asked, mode) in [(0o2710, 0o2700), (0o750, 0o750), (0o700, 0o700), (0o755, 0o755), (0o710, 0o710)] {
        c.run(&SetAttr { ino: d, mode: Some(Mode::new(asked)), ..SetAttr::default() }).unwrap();
        assert_eq!(c.inode(d).mode, Mode::new(mode), "{asked:o}");
    }
    for (asked, mode) in [(0o1710, 0o1700), (0o750, 0o750)] {
        set(&c, d, "A::OWNER@:rwaxD");
        assert_eq!((c.inode(d).mode.rwx(), shown(d)), (0o700, Some(0o710)));
        c.chmod(d, asked).unwrap();
        assert_eq!(c.inode(d).mode, Mode::new(mode), "{asked:o}");
    }
    assert!(c.run(&GetNfs4Acl(d)).is_ok());
    check(&c);
}
