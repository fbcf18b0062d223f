//! SIDs in NFSv4 ACLs, and the volume's table of domains.

use std::sync::Arc;
use std::time::Duration;

use acl::identity::{DomainTable, Id};
use acl::nfs4::{GrowingTable, Nfs4Acl, Policy, Principals, Scope};
use meta::{AclKind, Effect, Record, RecordKey, Txn, Volume};
use ops::{
    AddSidRule, Authority, CheckAccess, GetNfs4Acl, GetProjection, Numbering, RemoveSidRules, SetNfs4Acl,
    SidRulesRefusal, XattrMode,
};
use types::{Caps, Cred, Errno, Ino, OpId};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, fresh_with, volume};
use super::invariants::check;

pub(super) const CASES: &[Case] = &[
    ("domains_are_added_and_keep_their_numbers", domains_are_added_and_keep_their_numbers),
    ("a_refused_acl_adds_no_domain", a_refused_acl_adds_no_domain),
    ("a_full_or_damaged_table_refuses_new_domains_only", a_full_or_damaged_table_refuses_new_domains_only),
    ("sid_rules_let_entries_for_domains_decide", sid_rules_let_entries_for_domains_decide),
    ("contradictory_sid_rules_change_nothing", contradictory_sid_rules_change_nothing),
];

const ANN: &str = "S-1-5-21-1-2-3-1105";
const BOB: &str = "S-1-5-21-7-8-9-1105";
const ADMINS: &str = "S-1-5-32-544";

fn fresh(factory: Factory<'_>) -> Client {
    let volume = Volume { acl: AclKind::Nfs4, policy: Policy::default(), ..volume() };
    let c = fresh_with(factory, &volume);
    c.meta.set_exclusive(false);
    c.meta.set_lifetime(Duration::ZERO);
    c
}

/// Another client with an empty cache.
fn other(c: &Client) -> Client {
    let other = c.stranger();
    other.meta.set_lifetime(Duration::ZERO);
    other
}

/// The operation to set an ACL that grants read to each of these SIDs. `c` numbers their domains by its
/// cached table.
fn allow(c: &Client, ino: Ino, sids: &[&str]) -> SetNfs4Acl {
    let table = c.meta.domains(0).unwrap();
    let known = table.domains().len();
    let growing = GrowingTable::new(table);
    let entries = sids.iter().map(|sid| format!("A::{}:r", growing.id_of(sid, false).unwrap()));
    let text = entries.chain(["A::OWNER@:rwC".to_owned()]).collect::<Vec<_>>().join(",");
    SetNfs4Acl {
        ino,
        acl: Some((Nfs4Acl::from_storage(&text).unwrap(), Scope::Entries)),
        mode: XattrMode::Set,
        numbering: Numbering { table: growing.into_table(), known },
    }
}

fn ids(c: &Client, ino: Ino) -> Vec<Id> {
    let acl = c.run(&GetNfs4Acl(ino)).unwrap();
    acl.named()
        .map(|principal| match principal {
            acl::nfs4::Who::User(id) => id,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn sids(c: &Client, ino: Ino) -> Vec<String> {
    let reach = c.run(&GetNfs4Acl(ino)).unwrap().highest_domain();
    let table = c.meta.domains(reach).unwrap();
    ids(c, ino).into_iter().map(|id| table.name_of(id, false).unwrap()).collect()
}

fn domains_are_added_and_keep_their_numbers(factory: Factory<'_>) {
    let c = fresh(factory);
    let [f, g, h] = ["f", "g", "h"].map(|name| c.create(ROOT, name).unwrap());
    // A client that has not read the additions of others assigns different numbers.
    let late = other(&c);
    c.run(&allow(&c, f, &[ANN, ADMINS])).unwrap();
    late.run(&allow(&late, g, &[BOB, ADMINS, ANN])).unwrap();
    c.run(&allow(&c, h, &[BOB])).unwrap();
    for client in [&c, &late, &other(&c)] {
        assert_eq!(sids(client, f), [ANN, ADMINS]);
        assert_eq!(sids(client, g), [BOB, ADMINS, ANN]);
        assert_eq!(sids(client, h), [BOB]);
        let table = client.meta.domains(3).unwrap();
        assert_eq!(table.to_storage(), "S-1-5-21-1-2-3 S-1-5-32 S-1-5-21-7-8-9");
    }
    assert_eq!(ids(&c, h), [ids(&c, g)[0]], "each domain has one number");
    // If the domains are cached, the table is not read again.
    let again = allow(&c, f, &[BOB, ANN]);
    assert_eq!(again.numbering.known, 3);
    c.run(&again).unwrap();
    assert_eq!(sids(&late, f), [BOB, ANN]);
    // No caller has any of these SIDs.
    let read = CheckAccess { ino: f, want: acl::nfs4::Mask::READ_DATA };
    let caller = Authority::Daemon(Cred::new(1105, 1105, &[1105], Caps::NONE));
    assert_eq!(c.run_as(&read, &caller), Err(Errno::EACCES));
    check(&c);
}

fn a_refused_acl_adds_no_domain(factory: Factory<'_>) {
    let c = fresh(factory);
    let f = c.create(ROOT, "f").unwrap();
    let stranger = Authority::Daemon(Cred::new(5, 5, &[], Caps::NONE));
    let before = c.inode(f);
    assert_eq!(c.run_as(&allow(&c, f, &[ANN]), &stranger), Err(Errno::EPERM));
    assert!(c.meta.domains(1).unwrap().domains().is_empty());
    assert_eq!(c.inode(f), before);
    check(&c);
}

fn a_full_or_damaged_table_refuses_new_domains_only(factory: Factory<'_>) {
    let c = fresh(factory);
    let f = c.create(ROOT, "f").unwrap();
    c.run(&allow(&c, f, &[ANN])).unwrap();
    let mut full = (*c.meta.domains(1).unwrap()).clone();
    while full
        .append(format!("S-1-5-21-{}-4294967295", full.domains().len() + 1_000_000_000).parse().unwrap())
        .is_some()
    {}
    let put = |value: String, op| {
        let effects = vec![Effect::PutSetting { name: "domains", value }];
        c.engine().commit(&[Txn { op_id: OpId(op), guards: Vec::new(), effects }]).unwrap();
    };
    put(full.to_storage(), 1 << 100);
    let before = c.inode(f);
    // This client does not know that the table is full.
    assert_eq!(c.run(&allow(&c, f, &["S-1-5-21-4000000000-4294967295-7"])), Err(Errno::ENOSPC));
    assert_eq!(c.inode(f), before);
    c.run(&allow(&c, f, &[ANN])).unwrap();
    let late = other(&c);
    late.run(&allow(&late, f, &["S-1-5-21-1000000001-4294967295-7"])).unwrap();
    assert_eq!(sids(&late, f), ["S-1-5-21-1000000001-4294967295-7"]);

    put("S-1-5-21-1-2-3 S-1-5-21-1-2-3".to_owned(), 2 << 100);
    let late = other(&c);
    assert_eq!(late.meta.domains(1).map_err(Errno::from), Err(Errno::EIO));
    let unknown = allow(&late, f, &[ANN]);
    assert_eq!(
        unknown.numbering,
        Numbering { table: Arc::new(DomainTable::from_storage("S-1-5-21-1-2-3").unwrap()), known: 0 }
    );
    assert_eq!(late.run(&unknown), Err(Errno::EIO));
    assert!(late.run(&GetNfs4Acl(f)).is_ok(), "access checks do not need the table");
    late.run(&allow(&late, f, &[])).unwrap();
}

fn add(domain: &str, first_rid: u32, ids: &str) -> AddSidRule {
    AddSidRule { domain: domain.parse().unwrap(), first_rid, ids: ids.parse().unwrap() }
}

fn sid_rules_let_entries_for_domains_decide(factory: Factory<'_>) {
    let c = fresh(factory);
    let f = c.create(ROOT, "f").unwrap();
    c.run(&allow(&c, f, &[ANN, ADMINS])).unwrap();
    let stored = c.run(&GetNfs4Acl(f)).unwrap();
    let may = |c: &Client, uid, groups: &[u32]| {
        let caller = Authority::Daemon(Cred::new(uid, 9, groups, Caps::NONE));
        c.run_as(&CheckAccess { ino: f, want: acl::nfs4::Mask::READ_DATA }, &caller).is_ok()
    };
    let shown = |c: &Client| {
        let shown = c.run(&GetProjection(&c.inode(f))).unwrap().unwrap();
        shown.acl.as_ref().map(|acl| acl.to_storage()).unwrap_or_default()
    };
    let late = other(&c);
    let users: [(u32, &[u32]); 4] =
        [(101_105, &[]), (7, &[5, 200_544]), (101_106, &[101_106, 200_545]), (1105, &[544])];
    for c in [&c, &late] {
        assert_eq!(users.map(|(uid, groups)| may(c, uid, groups)), [false; 4]);
        assert!(!shown(c).contains("101105"));
    }
    c.run(&add("S-1-5-21-1-2-3", 0, "100000-199999")).unwrap().unwrap();
    c.run(&add("S-1-5-32", 500, "200500-200599")).unwrap().unwrap();
    // A client that has the volume open applies the rules when it reads the settings, and drops them
    // likewise.
    assert!(!may(&late, 101_105, &[]));
    for c in [&c, &late, &other(&c)] {
        c.meta.refresh_settings().unwrap();
        assert_eq!(users.map(|(uid, groups)| may(c, uid, groups)), [true, true, false, false]);
        assert!(shown(c).contains("u:101105:r--") && shown(c).contains("g:200544:r--"), "{}", shown(c));
        assert_eq!(c.run(&GetNfs4Acl(f)).unwrap(), stored, "the ACL keeps its SIDs");
    }
    let remove = RemoveSidRules { domain: "S-1-5-21-1-2-3".parse().unwrap(), first_rid: None };
    c.run(&remove).unwrap().unwrap();
    assert_eq!(c.run(&remove).unwrap(), Err(SidRulesRefusal::Absent));
    for c in [&c, &late] {
        c.meta.refresh_settings().unwrap();
        assert_eq!(users.map(|(uid, groups)| may(c, uid, groups)), [false, true, false, false]);
        assert!(!shown(c).contains("101105"));
    }
    check(&c);
}

fn contradictory_sid_rules_change_nothing(factory: Factory<'_>) {
    let c = fresh(factory);
    c.run(&add("S-1-5-21-1-2-3", 1000, "100000-199999")).unwrap().unwrap();
    let settings = || match c.engine().read(&[RecordKey::Settings]).unwrap().records.first() {
        Some(Record::Settings(settings)) => Arc::clone(settings),
        other => panic!("{other:?}"),
    };
    let before = settings();
    assert_eq!(before.get("sid_rules").map(String::as_str), Some("1:1000:100000-199999"));
    for (rule, why) in [
        (
            add("S-1-5-21-1-2-3", 1500, "300000-300000"),
            "RIDs from 1000 on are already mapped to 100000-199999",
        ),
        (
            add("S-1-5-21-7-8-9", 0, "199999-300000"),
            "overlaps with 100000-199999, to which domain S-1-5-21-1-2-3 is",
        ),
        (add("S-1-5-21-7-8-9", u32::MAX, "5-6"), "RIDs above 4294967295"),
        (add("S-1-22-1", 0, "5-6"), "Samba"),
    ] {
        let refusal = c.run(&rule).unwrap().unwrap_err().to_string();
        assert!(refusal.contains(why), "{refusal}");
        assert_eq!(settings(), before);
    }
    c.run(&add("S-1-5-21-1-2-3", 1000, "100000-199999")).unwrap().unwrap();
    assert_eq!(settings(), before, "the same rule again");
    let put = |name: &'static str, value: &str, op| {
        let effects = vec![Effect::PutSetting { name, value: value.to_owned() }];
        c.engine().commit(&[Txn { op_id: OpId(op), guards: Vec::new(), effects }]).unwrap();
    };
    // A rule for a domain that the table lacks is damage: another domain could get its number.
    put("sid_rules", "1:1000:100000-199999 2:0:7-8", 1 << 100);
    assert_eq!(c.run(&add("S-1-5-21-7-8-9", 0, "300000-300001")), Err(Errno::EIO));
    // If the rules are damaged, a running client keeps the previous ones.
    put("sid_rules", "1:1000:100000", 2 << 100);
    assert_eq!(c.run(&add("S-1-5-21-7-8-9", 0, "300000-300001")), Err(Errno::EIO));
    assert!(c.meta.refresh_settings().is_err());
    put("sid_rules", &before["sid_rules"], 3 << 100);
    c.meta.refresh_settings().unwrap();
    assert_eq!(c.meta.volume().sid_rules.to_storage(), "1:1000:100000-199999");
}
