//! Volumes with NFSv4 ACLs: which rights operations need, and how ACLs change.

use std::time::Duration;

use acl::nfs4::{self, AclInherit, AclMode, Mask, Nfs4Acl, Policy, Scope};
use meta::{Access, AclKind, Effect, Txn, Volume};
use ops::{
    AclType, Authority, CheckAccess, Configure, CopiedAcl, CopyAcl, GetNfs4Acl, GetProjection, Lookup,
    MakeKind, MakeOrphan, Open, OpenAccess, Opened, Rename, RenameFlags, Rmdir, SetAcl, SetAttr, SetNfs4Acl,
    SetXattr, Unlink, XattrMode,
};
use types::{AclId, Caps, Cred, Errno, FileType, Ino, Mode, OpId};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, REPLACE, ROOT, fresh, fresh_with, n, volume, x};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("a_volume_keeps_its_policies", a_volume_keeps_its_policies),
    ("an_acl_sets_the_mode_and_is_stored_once", an_acl_sets_the_mode_and_is_stored_once),
    ("setting_an_acl_checks_errors_in_order", setting_an_acl_checks_errors_in_order),
    ("adding_a_name_needs_the_right_for_its_kind", adding_a_name_needs_the_right_for_its_kind),
    ("removing_a_name_needs_either_right", removing_a_name_needs_either_right),
    ("a_rename_needs_rights_to_remove_and_add", a_rename_needs_rights_to_remove_and_add),
    ("opening_a_file_needs_rights", opening_a_file_needs_rights),
    ("setting_attributes_needs_rights", setting_attributes_needs_rights),
    ("chmod_follows_the_volumes_policy", chmod_follows_the_volumes_policy),
    ("chmod_shows_the_requested_bits_and_grants_no_more", chmod_shows_the_requested_bits_and_grants_no_more),
    ("new_inodes_inherit_the_same_cached_or_not", new_inodes_inherit_the_same_cached_or_not),
    ("a_damaged_acl_permits_only_its_replacement", a_damaged_acl_permits_only_its_replacement),
    ("the_longest_acl_is_stored_and_enforced", the_longest_acl_is_stored_and_enforced),
    ("a_copied_acl_is_that_of_its_source_at_the_commit", a_copied_acl_is_that_of_its_source_at_the_commit),
];

pub(super) fn nfs4_volume(policy: Policy) -> Volume {
    Volume { acl: AclKind::Nfs4, policy, ..volume() }
}

pub(super) fn fresh_nfs4(factory: Factory<'_>) -> Client {
    fresh_with(factory, &nfs4_volume(Policy::default()))
}

fn acl(text: &str) -> Nfs4Acl {
    Nfs4Acl::from_storage(text).unwrap()
}

fn user(uid: u32) -> Authority<'static> {
    able(uid, Caps::NONE)
}

pub(super) fn able(uid: u32, caps: Caps) -> Authority<'static> {
    Authority::Daemon(Cred::new(uid, uid, &[], caps))
}

pub(super) fn set(ino: Ino, text: &str) -> SetNfs4Acl {
    let acl = Some((acl(text), Scope::Entries));
    SetNfs4Acl { ino, acl, mode: XattrMode::Set, numbering: Default::default() }
}

/// Creates an inode of user 1 and group 1 with this ACL.
fn with_acl(c: &Client, parent: Ino, name: &str, kind: MakeKind, text: &str) -> Ino {
    let ino = c.make(parent, name, kind, 0o755).unwrap().ino;
    c.run(&SetAttr { ino, uid: Some(1), gid: Some(1), ..SetAttr::default() }).unwrap();
    c.run(&set(ino, text)).unwrap();
    ino
}

pub(super) fn dir(c: &Client, name: &str, text: &str) -> Ino {
    with_acl(c, ROOT, name, MakeKind::Directory, text)
}

pub(super) fn file(c: &Client, parent: Ino, name: &str, text: &str) -> Ino {
    with_acl(c, parent, name, MakeKind::Regular, text)
}

fn a_volume_keeps_its_policies(factory: Factory<'_>) {
    let policy = Policy { mode: AclMode::Passthrough, inherit: AclInherit::NoAllow };
    let c = fresh_with(factory, &nfs4_volume(policy));
    assert_eq!(Volume::load(&**c.engine()).unwrap(), nfs4_volume(policy));
    let change = Configure {
        aclmode: Some(AclMode::GroupMask),
        aclinherit: Some(AclInherit::PassthroughX),
        ..Configure::default()
    };
    c.run(&change).unwrap();
    let changed = Policy { mode: AclMode::GroupMask, inherit: AclInherit::PassthroughX };
    assert_eq!(Volume::load(&**c.engine()).unwrap(), nfs4_volume(changed));
    assert_eq!(c.meta.volume().policy, policy);
    assert!(c.meta.refresh_settings().unwrap());
    assert_eq!(c.meta.volume().policy, changed, "a running client uses settings once it has read them again");
}

fn an_acl_sets_the_mode_and_is_stored_once(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let made = c.make(ROOT, "f", MakeKind::Regular, 0o2640).unwrap();
    let text = "D::7:w,A::7:rw,A::OWNER@:rwatTnNcCoy,A:f:EVERYONE@:r";
    c.run(&set(made.ino, text)).unwrap();
    let stored = acl(&text.replace("A:f:", "A::"));
    for client in [&c, &c.stranger()] {
        let inode = client.inode(made.ino);
        assert_eq!(
            (inode.mode, inode.access_acl),
            (Mode::new(0o2644), stored.id()),
            "the ACL without flags for directories"
        );
        assert_eq!(client.run(&GetNfs4Acl(made.ino)).unwrap(), stored);
        assert!(inode.ctime > made.ctime && inode.access_rev > made.access_rev);
    }
    let twin = file(&c, ROOT, "g", &stored.to_storage());
    assert_eq!(c.inode(twin).access_acl, stored.id());
    // `Scope::Entries` replaces all entries and keeps the flags of the list; `Scope::Access` keeps only audit
    // entries.
    c.run(&set(made.ino, "A::7:r,U:S:EVERYONE@:w")).unwrap();
    let access = SetNfs4Acl { acl: Some((acl("flags:p,A::8:r"), Scope::Access)), ..set(made.ino, "A::7:r") };
    c.run(&access).unwrap();
    assert_eq!(c.run(&GetNfs4Acl(made.ino)).unwrap(), acl("flags:p,A::8:r,U:S:EVERYONE@:w"));
    c.run(&SetNfs4Acl { acl: None, ..set(made.ino, text) }).unwrap();
    // An ACL equal to that of a mode is stored only as a mode.
    let plain = nfs4::from_mode(Mode::new(0o751), false);
    c.run(&set(made.ino, &plain.to_storage())).unwrap();
    let inode = c.inode(made.ino);
    assert_eq!((inode.mode, inode.access_acl), (Mode::new(0o2751), AclId::NONE));
    assert_eq!(c.run(&GetNfs4Acl(made.ino)).unwrap(), plain);
    c.run(&set(made.ino, text)).unwrap();
    c.run(&SetNfs4Acl { acl: None, mode: XattrMode::Replace, ..set(made.ino, text) }).unwrap();
    let inode = c.inode(made.ino);
    assert_eq!((inode.mode, inode.access_acl), (Mode::new(0o2644), AclId::NONE), "the mode stays");
    check(&c);
}

fn setting_an_acl_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let link = c.symlink(ROOT, "l", "t").unwrap();
    let ino = file(&c, ROOT, "f", "A::2:C,D::3:C,A::GROUP@:r");
    let create = SetNfs4Acl { mode: XattrMode::Create, ..set(ino, "A::5:r") };
    assert_eq!(c.run(&set(Ino(1 << 40), "A::5:r")), Err(Errno::ESTALE));
    assert_eq!(c.run(&set(link, "A::5:r")), Err(Errno::EOPNOTSUPP));
    assert_eq!(c.run(&GetNfs4Acl(link)), Err(Errno::EOPNOTSUPP));
    assert_eq!(c.run_as(&create, &user(3)), Err(Errno::EEXIST), "every inode has an ACL");
    let before = c.inode(ino);
    for stranger in [user(3), user(4), able(4, Caps::DAC_OVERRIDE)] {
        assert_eq!(c.run_as(&set(ino, "A::4:r"), &stranger), Err(Errno::EPERM));
    }
    assert_eq!(c.run_as(&GetNfs4Acl(ino), &user(4)), Err(Errno::EACCES), "READ_ACL");
    assert!(c.run_as(&GetNfs4Acl(ino), &user(1)).is_ok(), "owners may always read the ACL");
    assert_eq!(c.inode(ino), before);
    for (able, text) in [
        (user(2), "A::2:C,D::OWNER@:cC"),
        (user(1), "A::GROUP@:r"),
        (able(9, Caps::FOWNER), "A::EVERYONE@:r"),
    ] {
        assert_eq!(c.run_as(&set(ino, text), &able), Ok(()), "{text}");
        assert_eq!(c.run(&GetNfs4Acl(ino)).unwrap(), acl(text));
    }
    // SGID is kept only for callers in the group.
    c.chmod(ino, 0o2750).unwrap();
    c.run_as(&set(ino, "A::1:r,A::2:C"), &user(1)).unwrap();
    assert!(c.inode(ino).mode.has(Mode::SGID));
    c.run_as(&set(ino, "A::1:r"), &user(2)).unwrap();
    assert!(!c.inode(ino).mode.has(Mode::SGID));
    let posix = SetAcl { ino, which: AclType::Access, acl: None, kill_sgid: false };
    assert_eq!(c.run(&posix), Err(Errno::EOPNOTSUPP));
    check(&c);
    let other = fresh(factory);
    let ino = other.create(ROOT, "f").unwrap();
    assert_eq!(other.run(&set(ino, "A::5:r")), Err(Errno::EOPNOTSUPP));
    assert_eq!(other.run(&GetNfs4Acl(ino)), Err(Errno::EOPNOTSUPP));
}

fn adding_a_name_needs_the_right_for_its_kind(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let d = dir(&c, "d", "A::2:wx,A::3:ax,A::4:wa,A::5:rx,A::EVERYONE@:r");
    let f = c.create(ROOT, "f").unwrap();
    let make = |name: &str, kind: MakeKind| c.make_op(d, name, kind, 0o644);
    let link = |name: &str| c.link_op(f, d, name);
    let orphan = || MakeOrphan(c.make_op(d, "o", MakeKind::Regular, 0o644));
    let (regular, directory) = (MakeKind::Regular, MakeKind::Directory);
    let symlink = MakeKind::Symlink(b"t".as_slice().into());
    assert!(c.run_as(&make("2", regular.clone()), &user(2)).is_ok());
    assert!(c.run_as(&make("2l", symlink.clone()), &user(2)).is_ok());
    assert!(c.run_as(&link("2h"), &user(2)).is_ok());
    assert!(c.run_as(&orphan(), &user(2)).is_ok());
    assert_eq!(c.run_as(&make("x", directory.clone()), &user(2)).unwrap_err(), Errno::EACCES);
    assert!(c.run_as(&make("3", directory.clone()), &user(3)).is_ok());
    assert_eq!(c.run_as(&make("x", regular.clone()), &user(3)).unwrap_err(), Errno::EACCES);
    assert_eq!(c.run_as(&link("x"), &user(3)), Err(Errno::EACCES));
    assert_eq!(c.run_as(&orphan(), &user(3)).unwrap_err(), Errno::EACCES);
    for uid in [4, 5, 6] {
        for kind in [&regular, &directory, &symlink] {
            let made = c.run_as(&make("x", kind.clone()), &user(uid));
            assert_eq!(made.unwrap_err(), Errno::EACCES, "user {uid}");
        }
    }
    assert!(c.run_as(&make("able", directory), &able(6, Caps::DAC_OVERRIDE)).is_ok());
    let lookup = Lookup { parent: d, name: n("2") };
    assert!(c.run_as(&lookup, &user(5)).unwrap().is_some());
    assert_eq!(c.run_as(&lookup, &user(6)), Err(Errno::EACCES));
    assert!(c.run_as(&lookup, &able(6, Caps::DAC_READ_SEARCH)).is_ok());
    check(&c);
}

fn removing_a_name_needs_either_right(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let search = dir(&c, "search", "A::2:x,A::3:xD,D::4:D,A::4:wx,A::5:wx");
    let unlink = |name: &str| Unlink { parent: search, name: n(name), open: None };
    let remove = |name: &str, text: &str, by: &Authority<'_>| {
        file(&c, search, name, text);
        let removed = c.run_as(&unlink(name), by);
        if removed.is_err() {
            c.run(&unlink(name)).unwrap();
        }
        removed.map(drop)
    };
    let (plain, delete, denied) = ("A::EVERYONE@:r", "A::EVERYONE@:d", "D::EVERYONE@:d");
    for (uid, may) in [(2, [false, true, false]), (3, [true, true, false]), (4, [false, true, false])] {
        for (text, may) in [plain, delete, denied].into_iter().zip(may) {
            let expected = if may { Ok(()) } else { Err(Errno::EACCES) };
            assert_eq!(remove("f", text, &user(uid)), expected, "user {uid}, {text}");
        }
    }
    assert_eq!(remove("f", plain, &user(5)), Ok(()), "WRITE_DATA includes the right to remove");
    assert_eq!(
        remove("f", delete, &user(6)),
        Err(Errno::EACCES),
        "without search permission nothing is found"
    );
    assert_eq!(remove("f", denied, &able(6, Caps::DAC_OVERRIDE)), Ok(()));
    // In a sticky directory, the directory's DELETE_CHILD is not enough.
    c.run(&SetAttr { ino: search, mode: Some(Mode::new(0o1000)), ..SetAttr::default() }).unwrap();
    c.run(&set(search, "A::3:xD,A::2:x")).unwrap();
    assert!(c.inode(search).mode.has(Mode::STICKY));
    assert_eq!(remove("f", plain, &user(3)), Err(Errno::EPERM));
    assert_eq!(remove("f", delete, &user(3)), Ok(()));
    with_acl(&c, search, "sub", MakeKind::Directory, "A::2:d");
    let rmdir = Rmdir { parent: search, name: n("sub") };
    assert_eq!(c.run_as(&rmdir, &user(3)).unwrap_err(), Errno::EPERM);
    assert!(c.run_as(&rmdir, &user(2)).is_ok());
    check(&c);
}

fn a_rename_needs_rights_to_remove_and_add(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let from = dir(&c, "from", "A::2:xD,A::3:wx,A::4:xD,A::5:xD");
    let to = dir(&c, "to", "A::2:wx,A::3:wx,A::4:ax,A::5:xD");
    let rename = |name: &str, flags: RenameFlags, new: &str| {
        let (name, new_name) = (n(name), n(new));
        Rename { parent: from, name, new_parent: to, new_name, flags, whiteout: None, open: None }
    };
    let file_at = |parent, name| file(&c, parent, name, "A::EVERYONE@:r");
    file_at(from, "a");
    assert!(c.run_as(&rename("a", REPLACE, "a"), &user(2)).is_ok());
    file_at(from, "b");
    for uid in [4, 5, 6] {
        assert_eq!(c.run_as(&rename("b", REPLACE, "b"), &user(uid)).unwrap_err(), Errno::EACCES, "{uid}");
    }
    // To replace a name, the caller needs the right to remove it and the right to add a name.
    assert_eq!(c.run_as(&rename("b", REPLACE, "a"), &user(5)).unwrap_err(), Errno::EACCES);
    assert!(c.run_as(&rename("b", REPLACE, "a"), &user(2)).is_ok());
    file_at(from, "c");
    assert_eq!(c.run_as(&rename("c", EXCHANGE, "a"), &user(2)).unwrap_err(), Errno::EACCES, "no ADD_FILE");
    assert!(c.run_as(&rename("c", EXCHANGE, "a"), &user(3)).is_ok());
    // Moving a directory to another parent writes to the directory.
    with_acl(&c, from, "sub", MakeKind::Directory, "A::3:w");
    c.run(&set(to, "A::2:ax,A::3:ax")).unwrap();
    assert_eq!(c.run_as(&rename("sub", REPLACE, "sub"), &user(2)).unwrap_err(), Errno::EACCES);
    assert!(c.run_as(&rename("sub", REPLACE, "sub"), &user(3)).is_ok());
    check(&c);
}

fn opening_a_file_needs_rights(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let f = file(&c, ROOT, "f", "A::2:r,A::3:w,A::4:a,A::5:x,A::6:rw");
    let open = |read, write, append, execute| Open {
        ino: f,
        open_access: OpenAccess { read, write, append, execute },
    };
    let try_open =
        |how: &Open, by: &Authority<'_>| c.run_as(how, by).map(|Opened { append_only, .. }| append_only);
    let (read, write) = (open(true, false, false, false), open(false, true, false, false));
    let (append, both) = (open(false, true, true, false), open(true, true, false, false));
    let execute = open(false, false, false, true);
    for (uid, expected) in [
        (2, [Some(false), None, None, None, None]),
        (3, [None, Some(false), Some(false), None, None]),
        (4, [None, None, Some(true), None, None]),
        (5, [None, None, None, None, Some(false)]),
        (6, [Some(false), Some(false), Some(false), Some(false), None]),
        (7, [None; 5]),
    ] {
        for (how, expected) in [&read, &write, &append, &both, &execute].into_iter().zip(expected) {
            assert_eq!(try_open(how, &user(uid)), expected.ok_or(Errno::EACCES), "user {uid}, {how:?}");
        }
    }
    let over = able(7, Caps::DAC_OVERRIDE);
    assert!([&read, &write, &append, &both, &execute].iter().all(|how| try_open(how, &over) == Ok(false)));
    assert_eq!(
        try_open(&append, &able(4, Caps::DAC_OVERRIDE)),
        Ok(false),
        "a caller that may write is not limited to append"
    );
    assert_eq!(try_open(&read, &able(7, Caps::DAC_READ_SEARCH)), Ok(false));
    c.run(&set(f, "A::2:r")).unwrap();
    assert_eq!(try_open(&execute, &over), Err(Errno::EACCES), "no caller may execute it");
    let access = |want| CheckAccess { ino: f, want };
    assert_eq!(c.run_as(&access(Mask::READ_DATA), &user(2)), Ok(()));
    assert_eq!(c.run_as(&access(Mask::READ_NAMED_ATTRS), &user(2)), Err(Errno::EACCES));
    assert_eq!(c.run(&access(Mask::ALL)), Ok(()), "the kernel has checked access");
    let xattr = |name: &str| SetXattr { ino: f, name: x(name), value: b"1"[..].into(), mode: XattrMode::Set };
    assert_eq!(c.run_as(&xattr("user.a"), &user(2)), Err(Errno::EACCES));
    c.run(&set(f, "A::2:N")).unwrap();
    assert_eq!(c.run_as(&xattr("user.a"), &user(2)), Ok(()));
    assert_eq!(c.run_as(&ops::RemoveXattr { ino: f, name: x("user.a") }, &user(3)), Err(Errno::EACCES));
    check(&c);
}

fn setting_attributes_needs_rights(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let f = file(&c, ROOT, "f", "A::2:w,A::3:T,A::4:C,A::5:o,D::OWNER@:wTCo");
    let now = types::Time::new(7, 7);
    let base = || SetAttr { ino: f, ..SetAttr::default() };
    let times = || SetAttr { mtime: Some(now), ..base() };
    let touch = || SetAttr { sets_times_to_now: true, ..times() };
    let size = || SetAttr { size: Some(5), ..base() };
    let refused = |op: SetAttr, uid| c.run_as(&op, &user(uid)).unwrap_err();
    assert_eq!(c.run_as(&size(), &user(2)).map(drop), Ok(()));
    assert_eq!(c.run_as(&touch(), &user(2)).map(drop), Ok(()));
    assert_eq!(refused(times(), 2), Errno::EPERM);
    assert_eq!(c.run_as(&times(), &user(3)).map(drop), Ok(()));
    assert_eq!(c.run_as(&touch(), &user(3)).map(drop), Ok(()));
    assert_eq!((refused(size(), 3), refused(touch(), 4)), (Errno::EACCES, Errno::EACCES));
    assert_eq!(refused(size(), 1), Errno::EACCES, "owners have no implicit right to write");
    assert_eq!(
        c.run_as(&SetAttr { is_open: true, ..size() }, &user(1)).map(drop),
        Ok(()),
        "the file was opened for writing"
    );
    assert_eq!(c.run_as(&times(), &user(1)).map(drop), Ok(()), "owners may set times");
    let own = |uid, gid| SetAttr { uid, gid, ..base() };
    assert_eq!(refused(own(Some(9), None), 1), Errno::EPERM, "owners may not give files away");
    assert_eq!(refused(own(Some(4), None), 4), Errno::EPERM);
    assert_eq!(refused(own(Some(9), None), 5), Errno::EPERM, "WRITE_OWNER permits taking, not giving");
    assert_eq!(refused(own(None, Some(9)), 5), Errno::EPERM, "only to a group of the caller");
    assert_eq!(c.run_as(&own(Some(5), Some(5)), &user(5)).map(drop), Ok(()));
    assert_eq!(c.run_as(&own(Some(1), Some(1)), &able(9, Caps::CHOWN)).map(drop), Ok(()));
    let member = Authority::Daemon(Cred::new(1, 1, &[8], Caps::NONE));
    assert_eq!(
        c.run_as(&own(None, Some(8)), &member).map(drop),
        Ok(()),
        "owners may choose among their groups"
    );
    let chmod = || SetAttr { mode: Some(Mode::new(0o640)), ..base() };
    assert_eq!(refused(chmod(), 2), Errno::EPERM);
    assert_eq!(c.run_as(&chmod(), &user(4)).map(drop), Ok(()));
    assert!(!c.inode(f).access_acl.is_none(), "the entries stay");
    check(&c);
}

fn chmod_follows_the_volumes_policy(factory: Factory<'_>) {
    let old = "flags:a,D::5:w,A:fd:GROUP@:rwax,A::6:rwx,A:I:EVERYONE@:rwax";
    for mode in AclMode::ALL {
        let c = fresh_with(factory, &nfs4_volume(Policy { mode, ..Policy::default() }));
        let f = file(&c, ROOT, "f", old);
        let stored = c.run(&GetNfs4Acl(f)).unwrap();
        let changed = c.chmod(f, 0o4640);
        if mode == AclMode::Restricted {
            assert_eq!(changed, Err(Errno::EPERM));
            assert_eq!(c.run(&GetNfs4Acl(f)).unwrap(), stored);
            let plain = c.create(ROOT, "plain").unwrap();
            assert_eq!(c.chmod(plain, 0o640), Ok(()));
            continue;
        }
        changed.unwrap();
        let inode = c.inode(f);
        let asked = Mode::new(0o4640);
        let (kept, expected) =
            nfs4::chmod(Some(&stored), asked, (inode.uid, inode.gid), false, mode).unwrap();
        assert_eq!(inode.mode, kept, "{mode:?}");
        let shown = c.run(&GetProjection(&inode)).unwrap();
        assert_eq!(shown.map_or(inode.mode.rwx(), |shown| shown.rwx), 0o640, "{mode:?}");
        assert_eq!(inode.access_acl, expected.as_ref().map_or(AclId::NONE, Nfs4Acl::id), "{mode:?}");
        let now = c.stranger().run(&GetNfs4Acl(f)).unwrap();
        assert_eq!(now, expected.unwrap_or_else(|| nfs4::from_mode(Mode::new(0o640), false)));
        check(&c);
    }
}

/// `chmod u+x` sends all bits that stat(2) returned, plus one. Afterwards stat(2) must show all requested
/// bits.
fn chmod_shows_the_requested_bits_and_grants_no_more(factory: Factory<'_>) {
    for mode in [AclMode::Discard, AclMode::Passthrough, AclMode::GroupMask] {
        let c = fresh_with(factory, &nfs4_volume(Policy { mode, ..Policy::default() }));
        let shown = |ino| {
            let inode = c.inode(ino);
            let projection = c.run(&GetProjection(&inode)).unwrap();
            projection.map_or(inode.mode.rwx(), |projection| projection.rwx)
        };
        let keeps = mode != AclMode::Discard;
        let f = file(&c, ROOT, "f", "A::7:rw,A::OWNER@:rwatTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:tncy");
        assert_eq!((c.inode(f).mode.rwx(), shown(f)), (0o600, 0o660));
        c.chmod(f, 0o760).unwrap();
        let stored = if keeps { 0o700 } else { 0o760 };
        assert_eq!(
            (c.inode(f).mode.rwx(), shown(f)),
            (stored, 0o760),
            "{mode:?}: the group bits are not granted"
        );
        let d = dir(&c, "d", "A::7:rwx,A::OWNER@:rwaxD,A::EVERYONE@:rx");
        assert_eq!((c.inode(d).mode.rwx(), shown(d)), (0o755, 0o775));
        c.chmod(d, 0o2775).unwrap();
        let stored = if keeps { 0o2755 } else { 0o2775 };
        assert_eq!((c.inode(d).mode.bits(), shown(d)), (stored, 0o775), "{mode:?}");
        // Bits that were not shown are granted as requested.
        let g = file(&c, ROOT, "g", "A::OWNER@:rwa,A::7:x");
        assert_eq!(shown(g), 0o610);
        for asked in [0o664, 0o604, 0o666, 0o640, 0] {
            c.chmod(g, asked).unwrap();
            assert_eq!((c.inode(g).mode.rwx(), shown(g)), (asked, asked), "{mode:?}");
        }
        check(&c);
    }
}

/// `Make` caches the results of an ACL. With a warm and with a cold cache, the result must follow the rule.
fn new_inodes_inherit_the_same_cached_or_not(factory: Factory<'_>) {
    let parents = [
        "A:fd:5:rwxCo,D:f:6:w,A:d:8:r,A::OWNER@:rwaxD",
        "flags:a,A:fdn:OWNER@:rwax,A:fd:GROUP@:rx,A:fi:EVERYONE@:r",
        "A::5:rwx,A::OWNER@:rwax",
        "A:fd:OWNER@:rwatTnNcCoy,A:fd:GROUP@:rtncy,A:fd:EVERYONE@:rtncy",
    ];
    for inherit in AclInherit::ALL {
        let policy = Policy { inherit, mode: AclMode::GroupMask };
        let mut c = fresh_with(factory, &nfs4_volume(policy));
        for (i, text) in parents.iter().enumerate() {
            let parent = acl(text);
            let d = c.mkdir(ROOT, &format!("d{i}")).unwrap();
            c.run(&set(d, text)).unwrap();
            for round in 0..2 {
                // The last two modes are equal after the umask.
                for (mode, umask) in
                    [(0o777, 0o022), (0o640, 0o022), (0o6711, 0o022), (0o666, 0o077), (0o600, 0o077)]
                {
                    c.umask = umask;
                    let mut stranger = c.stranger();
                    stranger.umask = umask;
                    for (number, client) in [&c, &stranger].into_iter().enumerate() {
                        let link = MakeKind::Symlink(b"t".as_slice().into());
                        for kind in [MakeKind::Regular, MakeKind::Directory, MakeKind::Fifo, link] {
                            let name = format!("{number}-{round}-{mode:o}-{}", client.next_ino());
                            let made = client.make(d, &name, kind, mode).unwrap();
                            let rule =
                                nfs4::inherit(Some(&parent), Mode::new(mode), umask, made.kind, policy);
                            let rule = rule.unwrap();
                            let id = rule.acl.map_or(AclId::NONE, |acl| acl.id());
                            let got = (made.mode, made.access_acl, made.default_acl);
                            assert_eq!(got, (rule.mode, id, AclId::NONE), "{inherit:?} {text} {name}");
                            assert!(made.kind != FileType::Symlink || id.is_none());
                        }
                    }
                }
            }
        }
        check(&c);
    }
}

fn a_damaged_acl_permits_only_its_replacement(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let d = dir(&c, "d", "A::2:rwx");
    let f = file(&c, d, "f", "A::2:rwx");
    let damage = |ino: Ino, text: Option<&str>| {
        let id = AclId(u128::from(ino.0) << 64 | u128::from(text.is_some()));
        let access = Access { access_acl: id, ..Access::from(&c.inode(ino)) };
        let put = text.map(|text| Effect::PutAcl { id, text: text.into() });
        let effects = put.into_iter().chain([Effect::SetAccess { ino, access }]).collect();
        c.engine()
            .commit(&[Txn { op_id: OpId(u128::from(ino.0) << 8), guards: Vec::new(), effects }])
            .unwrap();
    };
    // A valid ACL, but not the one that had this id.
    let g = file(&c, ROOT, "g", "D::2:w,A::2:rwx");
    damage(g, Some("A::2:rwx"));
    let opened = c.stranger().run_as(&CheckAccess { ino: g, want: Mask::WRITE_DATA }, &user(2));
    assert_eq!(opened, Err(Errno::EIO));
    damage(d, None);
    damage(f, Some("u::rwx,g::r-x,o::r-x"));
    let s = c.stranger();
    let open = Open { ino: f, open_access: OpenAccess { read: true, ..OpenAccess::default() } };
    for caller in [user(1), user(2)] {
        assert_eq!(s.run_as(&open, &caller), Err(Errno::EIO));
        assert_eq!(s.run_as(&Lookup { parent: d, name: n("f") }, &caller), Err(Errno::EIO));
        let unlink = Unlink { parent: d, name: n("f"), open: None };
        assert_eq!(s.run_as(&unlink, &caller).unwrap_err(), Errno::EIO);
        assert_eq!(s.run_as(&s.make_op(d, "x", MakeKind::Regular, 0o600), &caller).unwrap_err(), Errno::EIO);
    }
    assert_eq!(s.run(&GetProjection(&s.inode(f))), Err(Errno::EIO));
    assert_eq!(s.run_as(&GetNfs4Acl(f), &user(1)), Err(Errno::EIO));
    assert_eq!(s.run_as(&set(f, "A::2:r"), &user(2)), Err(Errno::EIO));
    assert!(s.run_as(&open, &able(9, Caps::DAC_OVERRIDE)).is_ok(), "DAC_OVERRIDE bypasses the ACL");
    s.run_as(&set(f, "A::2:r"), &user(1)).unwrap();
    assert!(s.run_as(&open, &user(2)).is_ok());
    let chmod = SetAttr { ino: d, mode: Some(Mode::new(0o755)), ..SetAttr::default() };
    assert_eq!(s.run_as(&chmod, &user(1)).unwrap_err(), Errno::EIO, "there are no entries to keep");
    s.run_as(&SetNfs4Acl { acl: None, ..set(d, "A::2:r") }, &user(1)).unwrap();
    s.run_as(&chmod, &user(1)).unwrap();
    let root = able(0, Caps::DAC_OVERRIDE | Caps::FOWNER);
    assert!(s.run_as(&Unlink { parent: d, name: n("f"), open: None }, &root).is_ok());
    assert_eq!(s.inode(d).access_acl, AclId::NONE);
}

/// The ACL has more entries than fit into an xattr. Such ACLs come from chmod, which adds entries, and from
/// interfaces other than mounts.
fn the_longest_acl_is_stored_and_enforced(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    let entries = |last: &str| {
        let mut all: Vec<String> = (1..Nfs4Acl::MAX_ENTRIES)
            .map(|n| format!("A:fdg:{}:rwaxdDtTnNcCoy", 4_000_000_000 + n as u32))
            .collect();
        all.push(last.to_owned());
        all.join(",")
    };
    let text = entries("A::7:rx");
    let d = dir(&c, "d", &text);
    assert_eq!(acl(&text).entries().len(), 8_000);
    let f = file(&c, ROOT, "f", &entries("A::7:r").replace("A:fdg:", "A:g:"));
    let s = c.stranger();
    assert_eq!(s.run(&GetNfs4Acl(d)).unwrap(), acl(&text));
    let read = CheckAccess { ino: f, want: Mask::READ_DATA };
    assert_eq!((s.run_as(&read, &user(7)), s.run_as(&read, &user(8))), (Ok(()), Err(Errno::EACCES)));
    let member = Authority::Daemon(Cred::new(8, 8, &[4_000_000_001, 4_000_007_999], Caps::NONE));
    assert_eq!(s.run_as(&read, &member), Ok(()));
    // A longer ACL is refused, and nothing changes.
    let before = c.inode(d);
    let one_more = Nfs4Acl::from_storage(&format!("{text},A::8:r"));
    assert_eq!(one_more, Err(nfs4::AclError::TooLong));
    let audited = dir(&c, "audited", "U:S:EVERYONE@:w,A::OWNER@:rwaxC");
    let whole = SetNfs4Acl { acl: Some((acl(&text), Scope::Access)), ..set(audited, "A::9:r") };
    let kept = c.inode(audited);
    assert_eq!(c.run(&whole), Err(Errno::E2BIG), "the audit entry would stay");
    assert_eq!(c.inode(audited), kept);
    let made = c.make(d, "new", MakeKind::Regular, 0o644);
    assert_eq!(made.unwrap_err(), Errno::E2BIG, "entries of the mode would be added to the inherited ones");
    assert_eq!((c.inode(d).access_acl, c.inode(d).mode), (before.access_acl, before.mode));
    check(&c);
}

fn a_copied_acl_is_that_of_its_source_at_the_commit(factory: Factory<'_>) {
    let c = fresh_nfs4(factory);
    c.meta.set_exclusive(false);
    let source = file(&c, ROOT, "source", "A::2:rw,A::OWNER@:rwaxC");
    let [copy, late] = ["copy", "late"].map(|name| file(&c, ROOT, name, "A::3:C,A::OWNER@:rC"));
    // Copies the ACL as a program does that reads it from the source and sets it on another file.
    let copy_to = |ino| {
        let (uuid, id) = (&c.meta.volume().uuid, c.inode(source).access_acl);
        let read = nfs4::refer(&nfs4::minimal(Mode::new(0o640)), uuid, (source, false), id);
        let nfs4::Posix::Reference(from) = nfs4::classify(&read, false) else { panic!("{read:?}") };
        CopyAcl { ino, from: CopiedAcl::File(from), kill_sgid: false }
    };
    assert_eq!(c.run_as(&copy_to(copy), &user(2)), Err(Errno::EPERM));
    assert_eq!(
        c.run_as(&copy_to(copy), &user(3)),
        Err(Errno::EOPNOTSUPP),
        "it may not read the ACL of the source"
    );
    c.run_as(&copy_to(copy), &user(1)).unwrap();
    let of = |ino| (c.inode(ino).access_acl, c.inode(ino).mode);
    assert_eq!(of(copy), of(source));
    // Another client does not know that the source has another ACL now, or no longer exists.
    let before = of(late);
    type Change = fn(&Client, Ino) -> Result<(), Errno>;
    let changes: [Change; 2] =
        [|c, ino| c.run(&set(ino, "A::3:r")), |c, _| c.unlink(ROOT, "source").map(drop)];
    for change in changes {
        let other = c.stranger();
        other.meta.set_lifetime(Duration::from_secs(3600));
        let (stale, known) = (copy_to(late), other.inode(source).access_acl);
        change(&c, source).unwrap();
        assert_eq!(other.inode(source).access_acl, known, "the cached inode");
        assert_eq!(other.run(&stale), Err(Errno::EOPNOTSUPP));
        assert_eq!(of(late), before);
    }
    check(&c.stranger());
}
