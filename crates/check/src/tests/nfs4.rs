//! Damage to NFSv4 ACLs and to the table of domains: the check reports each kind with its code, and no repair
//! grants a caller more access than before.

use std::sync::Arc;

use acl::identity::DomainTable;
use acl::nfs4::{Mask, Nfs4Acl, Scope};
use meta::{AclKind, Effect, Record, RecordKey};
use ops::{Authority, CheckAccess, GetInode, Numbering, SetNfs4Acl, XattrMode};
use types::{AclId, Caps, Cred, Ino, Mode};

use super::{Sample, WINDOW, access};
use crate::{AclCounts, unused_acls};

const TABLE: &str = "S-1-5-21-1-2-3 S-1-5-32";
const ACL: &str = "D::7:w,A::5:rwa,A::1-1105:rwax,A:g:2-544:r,A::OWNER@:rwaxC,A::EVERYONE@:r";

fn set_text(ino: Ino, text: &str, table: &str) -> SetNfs4Acl {
    let acl = Some((Nfs4Acl::from_storage(text).unwrap(), Scope::Entries));
    let table = Arc::new(DomainTable::from_storage(table).unwrap());
    SetNfs4Acl { ino, acl, mode: XattrMode::Set, numbering: Numbering { table, known: 0 } }
}

/// Gives an inode an ACL with users, groups and Windows identities.
pub(super) fn set(ino: Ino) -> SetNfs4Acl {
    set_text(ino, ACL, TABLE)
}

/// Stores `text` under `id`, and makes it the ACL of inode `f`.
fn stored(s: &Sample, id: AclId, text: &str) -> Vec<Effect> {
    let put = Effect::PutAcl { id, text: text.into() };
    [vec![put], access(s, |it| it.access_acl = id)].concat()
}

/// Gives inode `f` this ACL under its right ID, and the mode that it implies.
fn named(s: &Sample, text: &str) -> Vec<Effect> {
    let acl = Nfs4Acl::from_storage(text).unwrap();
    let change = |it: &mut meta::Access| {
        it.access_acl = acl.id();
        it.mode = Mode::new(acl.mode_bits());
    };
    [vec![Effect::PutAcl { id: acl.id(), text: text.into() }], access(s, change)].concat()
}

fn table(text: &str) -> Effect {
    Effect::PutSetting { name: "domains", value: text.to_owned() }
}

type Case = (&'static str, fn(&Sample) -> Vec<Effect>, &'static [&'static str], &'static [&'static str]);

/// A description, the damage, the codes that the check reports, and the codes that remain after a repair.
const CASES: &[Case] = &[
    (
        "an ACL that is not stored",
        |s| access(s, |it| it.access_acl = AclId(5)),
        &["acl-missing"],
        &["acl-missing"],
    ),
    ("random text", |s| stored(s, AclId(6), "\u{0}\u{1}nonsense"), &["acl-damaged"], &["acl-damaged"]),
    ("an empty text", |s| stored(s, AclId(6), ""), &["acl-damaged"], &["acl-damaged"]),
    ("an ACL cut off in an entry", |s| stored(s, AclId(6), &ACL[..20]), &["acl-damaged"], &["acl-damaged"]),
    (
        "an ACL that lost its first entry",
        |s| {
            // The rest is a valid ACL, but the ID is not its hash. The ID is a new one, because PutAcl does
            // not replace a stored ACL.
            let id = Nfs4Acl::from_storage(ACL).unwrap().id();
            stored(s, AclId(id.0 ^ 1), ACL.split_once(',').unwrap().1)
        },
        &["acl-damaged"],
        &["acl-damaged"],
    ),
    ("a POSIX ACL", |s| stored(s, AclId(6), "u::rwx,g::r-x,o::r-x"), &["acl-damaged"], &["acl-damaged"]),
    ("a mode that grants more", |s| access(s, |it| it.mode = Mode::new(0o6777)), &["acl-mode"], &[]),
    ("a mode that grants less", |s| access(s, |it| it.mode = Mode::new(0)), &["acl-mode"], &[]),
    (
        "a domain that the volume does not know",
        |s| named(s, "A::5-1105:rw,A:g:3-7:r,A::OWNER@:rwa"),
        &["acl-domain"],
        &[],
    ),
    ("a domain for which no table has room", |s| named(s, "A::65535-1:r"), &["acl-domain"], &["acl-domain"]),
    ("a table that lost its end", |_| vec![table("S-1-5-21-1-2-3")], &["acl-domain"], &[]),
    ("a table that lost all domains", |_| vec![table("")], &["acl-domain"], &[]),
    (
        "a table with a domain twice",
        |_| vec![table("S-1-5-21-1-2-3 S-1-5-21-1-2-3")],
        &["domains"],
        &["domains"],
    ),
    ("a malformed table", |_| vec![table("S-1-5-21-1-2-3 \u{ff}")], &["domains"], &["domains"]),
    // Replacing an ACL leaves the old one stored. That is not damage: limen gc counts it.
    (
        "an ACL that no inode has",
        |_| vec![Effect::PutAcl { id: Nfs4Acl::from_storage("A::9:r").unwrap().id(), text: "A::9:r".into() }],
        &[],
        &[],
    ),
];

/// The permissions of some callers on some inodes.
fn rights(s: &Sample) -> Vec<Mask> {
    let callers =
        [(0, Caps::NONE), (0, Caps::DAC_OVERRIDE), (5, Caps::NONE), (7, Caps::NONE), (1105, Caps::NONE)];
    let mut rights = Vec::new();
    for ino in [s.f, s.d, Ino::ROOT] {
        for (uid, caps) in callers {
            let caller = Authority::Daemon(Cred::new(uid, 544, &[544], caps));
            let may = |want: Mask| s.meta.run(&CheckAccess { ino, want }, &caller).is_ok();
            let bits = (0..32).filter_map(|bit| Mask::from_bits(1 << bit)).filter(|one| may(*one));
            rights.push(bits.fold(Mask::NONE, |all, one| all | one));
        }
    }
    rights
}

fn domains(s: &Sample) -> Option<DomainTable> {
    match s.engine.read(&[RecordKey::Settings]).unwrap().records.first() {
        Some(Record::Settings(settings)) => ops::domains_in(settings),
        other => panic!("{other:?}"),
    }
}

#[test]
fn damage_is_found_under_its_code_and_a_repair_grants_nothing() {
    for (what, damage, codes, left) in CASES {
        let s = Sample::of(AclKind::Nfs4);
        let whole = rights(&s);
        s.damage(damage(&s));
        for window in [2, 5, WINDOW] {
            assert_eq!(s.codes(window), *codes, "{what}, windows of {window}");
        }
        let damaged = rights(&s);
        assert_eq!(s.repaired(), *left, "{what}");
        s.meta.set_exclusive(true);
        let repaired = rights(&s);
        for (after, before) in repaired.iter().zip(&damaged) {
            assert!(before.has(*after), "{what}: {after:?} of {before:?}");
        }
        match *codes {
            ["acl-missing" | "acl-damaged"] => {
                assert!(repaired[2..5].iter().all(|may| may.is_none()), "{what}: {repaired:?}");
                assert!(whole[2..5].iter().all(|may| !may.is_none()), "{what}: {whole:?}");
            }
            // If there is an ACL, permissions do not depend on the mode. They do not depend on the table
            // either, because the callers have no SIDs and the volume has no rules.
            ["acl-mode" | "domains"] => assert_eq!(repaired, whole, "{what}"),
            _ => assert_eq!(repaired, damaged, "{what}"),
        }
    }
    let s = Sample::of(AclKind::Nfs4);
    s.damage(CASES.last().unwrap().1(&s));
    assert_eq!(unused_acls(&*s.engine).unwrap(), AclCounts { stored: 2, unused: 1, dropped: 0 });
}

#[test]
fn a_repair_sets_the_mode_that_the_acl_implies() {
    let s = Sample::of(AclKind::Nfs4);
    let before = s.run(&GetInode(s.f));
    s.damage(access(&s, |it| it.mode = Mode::new(0o6777)));
    assert!(s.repaired().is_empty());
    let after = s.run(&GetInode(s.f));
    assert_eq!((after.mode, after.access_acl), (before.mode.with(0o6000), before.access_acl));
    assert_eq!(after.mode.rwx(), 0o744);
}

/// The number of a lost domain is never given to another domain, which would get its permissions.
#[test]
fn the_number_of_a_lost_domain_is_never_reused() {
    let s = Sample::of(AclKind::Nfs4);
    s.damage([named(&s, "A::4-1105:rw,A::OWNER@:rwaC"), vec![table("S-1-0-1")]].concat());
    assert!(s.repaired().is_empty());
    assert_eq!(domains(&s).unwrap().to_storage(), "S-1-0-1 S-1-0-0 S-1-0-2 S-1-0-3");
    s.meta.set_exclusive(true);
    s.run(&set_text(s.d, "A::1-1105:r,A::OWNER@:rwaxD", "S-1-5-21-9-9-9"));
    let table = domains(&s).unwrap();
    assert_eq!(table.domains().last().unwrap().as_str(), "S-1-5-21-9-9-9");
    assert_eq!(table.domains().len(), 5);
    assert!(s.codes(WINDOW).is_empty());
}
