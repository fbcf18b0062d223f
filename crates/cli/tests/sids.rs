//! Windows identities in the ACLs of a mounted volume: they are stored as SIDs, and match only the callers
//! that the volume's rules map them to.

mod common;
mod harness;
mod wire;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use acl::nfs4::{GrowingTable, Nfs4Acl, Scope};
use common::{Said, command, json_lines, limen};
use harness::{Mounted, as_member, as_user, refused};
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use wire::{NFS4_ACL, NFS4_DACL, get, value};

const ANN: &str = "S-1-5-21-1004336348-1177238915-682003330-1105";
const STAFF: &str = "S-1-5-21-1004336348-1177238915-682003330-513";
const ADMINS: &str = "S-1-5-32-544";

/// The value of `system.nfs4_acl`: type, flags, permissions and name of each entry.
fn blob(entries: &[(u32, u32, u32, &str)]) -> Vec<u8> {
    let mut value = (entries.len() as u32).to_be_bytes().to_vec();
    for (kind, flags, mask, who) in entries {
        let words = [*kind, *flags, *mask, who.len() as u32];
        value.extend(words.into_iter().flat_map(u32::to_be_bytes));
        value.extend(who.as_bytes());
        value.resize(value.len().next_multiple_of(4), 0);
    }
    value
}

fn put(path: &Path, entries: &[(u32, u32, u32, &str)]) -> Result<(), Errno> {
    setxattr(path, NFS4_ACL, &blob(entries), XattrFlags::empty())
}

const GROUP: u32 = 0x40;
const READ: u32 = 1;
const OWNER_ALL: (u32, u32, u32, &str) = (0, 0, 0x0016_01ff, "OWNER@");

#[test]
fn sids_are_stored_and_shown_across_mounts() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let (f, g) = (volume.at("f"), volume.at("g"));
    fs::write(&f, "text").unwrap();
    fs::write(&g, "text").unwrap();
    let of_f = [(0, 0, READ, ANN), (0, GROUP, READ, STAFF), OWNER_ALL];
    let of_g = [(1, GROUP, READ, ADMINS), (0, 0, READ, ANN), (0, 0, READ, "7"), OWNER_ALL];
    put(&f, &of_f).unwrap();
    put(&g, &of_g).unwrap();
    for round in ["now", "after the next mount", "after a crash"] {
        assert_eq!(value(&f, NFS4_ACL).unwrap(), blob(&of_f), "{round}");
        assert_eq!(value(&g, NFS4_ACL).unwrap(), blob(&of_g), "{round}");
        let dacl = [&[0; 4], &blob(&of_g)[..]].concat();
        assert_eq!(value(&g, NFS4_DACL).unwrap(), dacl, "{round}");
        if round == "now" { volume.remount() } else { volume.kill_and_remount() }
    }
    // A mount that has not read the domain table appends to it.
    let h = volume.at("h");
    fs::write(&h, "text").unwrap();
    let of_h = [(0, 0, READ, "S-1-5-21-9-9-9-1"), (0, 0, READ, ADMINS), (0, 0, READ, ANN), OWNER_ALL];
    put(&h, &of_h).unwrap();
    assert_eq!(value(&h, NFS4_ACL).unwrap(), blob(&of_h));
    assert_eq!(value(&f, NFS4_ACL).unwrap(), blob(&of_f));
    // SIDs come back in canonical form, and Samba's SIDs of Unix users and groups as numbers.
    let odd =
        [(0, 0, READ, "s-1-0x5-032-0544"), (0, 0, READ, "S-1-22-1-1000"), (0, GROUP, READ, "S-1-22-2-50")];
    put(&h, &odd).unwrap();
    assert_eq!(
        value(&h, NFS4_ACL).unwrap(),
        blob(&[(0, 0, READ, ADMINS), (0, 0, READ, "1000"), (0, GROUP, READ, "50")])
    );
    // New files inherit the entries.
    let d = volume.at("d");
    fs::create_dir(&d).unwrap();
    put(&d, &[(0, 3, READ, ANN), (0, 0, 0x0016_01ff, "OWNER@")]).unwrap();
    fs::write(d.join("heir"), "").unwrap();
    let acl = Nfs4Acl::from_xattr(
        &value(&d.join("heir"), NFS4_ACL).unwrap(),
        Scope::Entries,
        &GrowingTable::default(),
    );
    assert!(acl.unwrap().to_storage().starts_with("A:I:1-1105:r,"));
    let tool = Command::new("nfs4_getfacl").arg(&f).output().unwrap();
    let shown = String::from_utf8(tool.stdout).unwrap();
    assert!(shown.contains(&format!("A::{ANN}:r")) && shown.contains(&format!("A:g:{STAFF}:r")), "{shown}");
    let said = limen(&["access", "explain", f.to_str().unwrap(), "--user", "3999999999", "--groups", "9"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    volume.place.umount(&[]).ok();
    assert_eq!(limen(&["fsck", &volume.place.url()]).code, Some(0));
}

#[test]
fn ls_and_access_show_full_sids() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let (d, f) = (volume.at("d"), volume.at("d/f"));
    fs::create_dir(&d).unwrap();
    fs::write(&f, "text").unwrap();
    put(&f, &[(0, 0, READ, ANN), (1, GROUP, READ, ADMINS), (0, 0, READ, "7"), OWNER_ALL]).unwrap();
    put(&d, &[(0, GROUP, 1, STAFF), (0, 0, 0x21, "7"), OWNER_ALL]).unwrap();
    let entries = [&format!("A::{ANN}:r"), &format!("D:g:{ADMINS}:r"), "A::7:r"];
    let acl_of = |line: &serde_json::Value, key: &str| -> Vec<String> {
        let all = line[key].as_array().unwrap_or_else(|| panic!("{line}")).iter();
        all.map(|entry| entry.as_str().unwrap().to_owned()).collect()
    };
    for top in [volume.place.mnt(), format!("{}:", volume.place.url())] {
        let (dir, file) = (format!("{top}/d"), format!("{top}/d/f"));
        for listed in [&dir, &file] {
            let lines = json_lines(&limen(&["ls", "--json", listed]).ok());
            assert_eq!(acl_of(&lines[0], "access_acl")[..3], entries, "{listed}");
        }
        let explain = |user: &str, groups: &str, more: &[&str]| {
            limen(&[&["access", "explain", &file, "--user", user, "--groups", groups], more].concat())
        };
        let said: serde_json::Value = serde_json::from_str(&explain("7", "7", &["--json"]).ok()).unwrap();
        let acls: Vec<&str> =
            said["checks"].as_array().unwrap().iter().filter_map(|check| check["acl"].as_str()).collect();
        assert!(acls[0].starts_with(&format!("A:g:{STAFF}:r,A::7:rx,")), "{said}");
        assert!(acls[1].starts_with(&entries.join(",")), "{said}");
        // Only Samba's SIDs of Unix users and groups (S-1-22) name local users.
        let granted = explain("S-1-22-1-7", "S-1-22-2-9", &[]).ok();
        assert!(granted.starts_with("granted:") && granted.contains("(uid 7; "), "{granted}");
        explain(ANN, "7", &[]).failed(2, &["Windows identity", ANN]);
        explain("7", STAFF, &[]).failed(2, &["Windows identity", STAFF]);
    }
    let shown = limen(&["info", f.to_str().unwrap()]).ok();
    assert!(shown.contains(&entries.join(",")), "{shown}");
}

#[test]
fn no_local_caller_matches_a_sid() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(volume.at(""), open).unwrap();
    let (d, f) = (volume.at("d"), volume.at("d/f"));
    fs::create_dir(&d).unwrap();
    fs::write(&f, "text").unwrap();
    for path in [&d, &f] {
        chown(path, Some(1), Some(1)).unwrap();
    }
    const ALL: u32 = 0x0016_01ff;
    put(&f, &[(0, 0, ALL, ANN), (0, GROUP, ALL, STAFF), (1, 0, READ, ADMINS), (0, 0, READ, "2")]).unwrap();
    put(&d, &[(0, 0, ALL, "S-1-1-0"), (0, 0, 0x20, "2"), (0, 0, 0x20, "3"), OWNER_ALL]).unwrap();
    for _ in 0..3 {
        as_user(2, 2, || assert_eq!(fs::read(&f).unwrap(), b"text"));
        as_member(1105, 513, &[544, 1105, 513, 1], || {
            refused(fs::metadata(&f), Errno::ACCESS);
            refused(fs::read_dir(&d).map(drop), Errno::ACCESS);
        });
        as_member(3, 513, &[544, 1105], || {
            fs::metadata(&f).unwrap();
            refused(fs::read(&f), Errno::ACCESS);
            // A caller that may not set the ACL cannot add a domain.
            refused(put(&f, &[(0, 0, ALL, "S-1-5-21-6-6-6-6")]), Errno::PERM);
        });
    }
}

#[test]
fn full_domain_table_refuses_new_domains() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let f = volume.at("f");
    fs::write(&f, "text").unwrap();
    let sid = |n: u32| format!("S-1-5-21-{n}-4294967295-4294967295-7");
    let mut next = 1_000_000_000;
    let full = loop {
        let sids: Vec<String> = (next..next + 500).map(sid).collect();
        let entries: Vec<_> = sids.iter().map(|sid| (0, 0, READ, sid.as_str())).collect();
        match put(&f, &entries) {
            Ok(()) => next += 500,
            Err(errno) => break errno,
        }
    };
    assert_eq!(full, Errno::NOSPC);
    assert!(next > 1_000_000_000, "some domains were stored");
    // The remaining room fits some more domains, added one by one.
    let refused_one = (next..next + 500).map(sid).find(|sid| put(&f, &[(0, 0, READ, sid)]).is_err());
    assert!(refused_one.is_some());
    let known = sid(1_000_000_000);
    put(&f, &[(0, 0, READ, &known), OWNER_ALL]).unwrap();
    volume.remount();
    assert_eq!(value(&f, NFS4_ACL).unwrap(), blob(&[(0, 0, READ, &known), OWNER_ALL]));
    let before = get(&volume.at("")).unwrap();
    let new = "S-1-5-21-4000000000-4294967295-4294967295-7";
    refused(put(&volume.at(""), &[(0, 0, READ, &known), (0, 0, READ, new)]), Errno::NOSPC);
    assert_eq!(get(&volume.at("")).unwrap(), before, "the ACL is unchanged");
}

const DOMAIN: &str = "S-1-5-21-1004336348-1177238915-682003330";
/// RID 1105 of [`DOMAIN`], RID 513 of it, and RID 544 of S-1-5-32, as the rules of [`map`] map them.
const ANN_UID: u32 = 101_105;
const STAFF_GID: u32 = 100_513;
const ADMINS_GID: u32 = 200_544;

fn map(volume: &Mounted) {
    let url = volume.place.url();
    limen(&["sid", "set", &url, DOMAIN, "--range", "100000-199999"]).ok();
    limen(&["sid", "set", &volume.place.mnt(), "S-1-5-32", "--range", "200000-200999"]).ok();
}

/// Waits until the mount has applied changed settings. It reads them every five seconds.
#[track_caller]
fn wait_until(is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "the mount has not applied the change");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Two directories and a file. Only their ACL entries for SIDs, which the NFSv4 tools set, let other users
/// use them. Access-based enumeration is on.
fn shared() -> Option<Mounted> {
    let volume = Mounted::new(&["--acl", "nfsv4"])?;
    volume.remount_with(&["--abe"]);
    fs::set_permissions(volume.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["team", "private"] {
        fs::create_dir(volume.at(name)).unwrap();
        fs::write(volume.at(name).join("f"), "text").unwrap();
    }
    let set = |path: &str, acl: &str| {
        let done = Command::new("nfs4_setfacl").args(["-s", acl]).arg(volume.at(path)).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    // The DENY entry comes first. It names a group without the group flag, which an entry for a SID does not
    // need.
    let acl = format!("D::{ADMINS}:rwx,A:g:{STAFF}:rxtncy,A::{ANN}:rwxatTnNcCy,A::OWNER@:rwaxDtTnNcCoy");
    set("team", &acl);
    set("team/f", &acl);
    set("private", &format!("A::{ANN}:rxtncy,A::OWNER@:rwaxDtTnNcCoy"));
    Some(volume)
}

/// Checks the access of mapped callers by the entries of [`shared`].
#[track_caller]
fn entries_decide(volume: &Mounted) {
    let (team, f) = (volume.at("team"), volume.at("team/f"));
    let many: Vec<u32> = (STAFF_GID - 300..STAFF_GID + 100).collect();
    for _ in 0..3 {
        as_user(ANN_UID, 9, || {
            assert_eq!(names(&volume.at("")), ["private", "team"]);
            assert_eq!(fs::read(&f).unwrap(), b"text");
            fs::OpenOptions::new().write(true).open(&f).unwrap();
        });
        as_member(7, 9, &many, || {
            assert_eq!(names(&volume.at("")), ["team"]);
            assert_eq!(names(&team), ["f"]);
            assert_eq!(fs::read(&f).unwrap(), b"text");
            refused(fs::OpenOptions::new().write(true).open(&f), Errno::ACCESS);
            refused(fs::read_dir(volume.at("private")).map(drop), Errno::ACCESS);
        });
        as_member(7, 9, &[STAFF_GID, ADMINS_GID], || {
            assert_eq!(names(&volume.at("")), [""; 0], "denied before the entry that allows");
            refused(fs::read(&f), Errno::ACCESS);
        });
        as_member(1105, 513, &[513], || refused(fs::read(&f), Errno::ACCESS));
    }
}

#[test]
fn entries_for_domains_decide_for_mapped_callers() {
    let Some(volume) = shared() else { return };
    let f = volume.at("team/f");
    let may_read = || as_member(7, 9, &[STAFF_GID], || fs::read(&f).is_ok());
    let before = value(&f, NFS4_ACL).unwrap();
    for _ in 0..3 {
        assert!(!may_read() && as_user(ANN_UID, 9, || fs::read(&f).is_err()));
    }
    // A running mount applies added and removed rules, even to what the kernel has cached.
    map(&volume);
    wait_until(may_read);
    wait_until(|| as_member(7, 9, &[STAFF_GID, ADMINS_GID], || fs::read(&f).is_err()));
    entries_decide(&volume);
    volume.remount_with(&["--abe"]);
    entries_decide(&volume);
    assert_eq!(value(&f, NFS4_ACL).unwrap(), before, "the ACL keeps its SIDs");
    let listed = limen(&["sid", "list", &volume.place.mnt()]).ok();
    assert!(listed.contains("100000-199999") && listed.contains("200000-200999"), "{listed}");
    // A chmod keeps entries for SIDs like those for other users and groups.
    fs::set_permissions(&f, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(may_read());
    fs::set_permissions(&f, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!may_read());
    fs::set_permissions(volume.at("team"), fs::Permissions::from_mode(0o750)).unwrap();
    // No entry of this directory denies, so the kernel searches it by the POSIX ACL that it has cached.
    let may_search = || as_user(ANN_UID, 9, || fs::metadata(volume.at("private/f")).is_ok());
    assert!(may_search() && may_search());
    limen(&["sid", "delete", &volume.place.url(), DOMAIN]).ok();
    wait_until(|| !may_search());
    as_member(7, 9, &[STAFF_GID], || refused(fs::read_dir(volume.at("team")).map(drop), Errno::ACCESS));
    volume.place.umount(&[]).ok();
    assert_eq!(limen(&["fsck", &volume.place.url()]).code, Some(0));
}

#[test]
fn explain_and_audit_name_the_entry_and_the_sid() {
    let Some(volume) = shared() else { return };
    map(&volume);
    let list = volume.place.path("names");
    fs::write(&list, format!("{ANN} DOM\\ann\n{STAFF} DOM\\Domain Users\n")).unwrap();
    let list = list.to_str().unwrap();
    let ids = |sids: &[&str]| sids.join(",");
    for file in [volume.place.mnt() + "/team/f", volume.place.url() + ":/team/f"] {
        let explain = |user: &str, groups: &str, want: &str| {
            let args = ["access", "explain", &file, "--user", user, "--groups", groups, "--want", want];
            limen(&[&args[..], &["--sid-names", list]].concat())
        };
        let by_staff = explain("7", &ids(&["9", STAFF]), "r");
        assert!(by_staff.out.contains(&format!("A:g:{STAFF}:rx")), "{by_staff:?}");
        assert!(by_staff.ok().contains("(DOM\\Domain Users)"));
        for ann in [ANN, "DOM\\ann", "dom\\ANN", "101105"] {
            let by_ann = explain(ann, "9", "rw").ok();
            assert!(by_ann.contains("(uid 101105; ") && by_ann.contains(&format!("A::{ANN}:")), "{by_ann}");
        }
        let denied = explain("7", &ids(&[STAFF, ADMINS]), "r");
        assert_eq!(denied.code, Some(1));
        assert!(denied.out.contains(&format!("D::{ADMINS}:")), "{denied:?}");
        assert_eq!(explain("7", "9", "r").code, Some(1));
        explain("S-1-5-21-5-5-5-5", "9", "r").failed(2, &["Windows identity", "limen sid set"]);
        explain("DOM\\nobody", "9", "r").failed(2, &["there is no user"]);
        let who = limen(&["access", "audit", "--who", &file, "--sid-names", list]).ok();
        let row = who.lines().find(|line| line.starts_with("101105")).unwrap_or_else(|| panic!("{who}"));
        assert!(row.contains("rw") && row.contains("(DOM\\ann)"), "{who}");
        assert!(!who.contains("100513") && !who.contains("200544"), "a group is no user: {who}");
    }
    let audit = |user: &str, groups: &str| -> serde_json::Value {
        let args = ["access", "audit", &volume.place.url(), "--user", user, "--groups", groups, "--json"];
        serde_json::from_str(&limen(&args).ok()).unwrap()
    };
    let reached = |said: &serde_json::Value| said["totals"]["files"]["read"].as_u64();
    assert_eq!(reached(&audit("7", STAFF)), Some(1));
    assert_eq!(reached(&audit(ANN, "9")), Some(2));
    assert_eq!(reached(&audit("7", "9")), Some(0));
    assert_eq!(reached(&audit("7", &ids(&[STAFF, ADMINS]))), Some(0));
    let moved = limen(&[
        "access",
        "audit",
        &volume.place.url(),
        "--user",
        "7",
        "--groups",
        "9",
        "--what-if",
        &format!("add user 7 to group {STAFF_GID}"),
    ]);
    assert!(moved.ok().contains("Access to 2 names is gained"));
}

#[test]
fn rules_that_contradict_each_other_are_refused() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let url = volume.place.url();
    map(&volume);
    let list = || limen(&["sid", "list", &url, "--json"]).ok();
    let before = list();
    let set = |domain: &str, more: &[&str]| limen(&[&["sid", "set", &url, domain], more].concat());
    let other = "S-1-5-21-7-8-9";
    set(other, &["--range", "199999-300000"])
        .failed(1, &["overlaps with 100000-199999", DOMAIN, "nothing was changed"]);
    set(DOMAIN, &["--range", "300000-300001", "--first-rid", "99999"])
        .failed(1, &["already mapped to 100000-199999"]);
    set(other, &["--range", "300000-300001", "--first-rid", "4294967295"]).failed(1, &["the highest RID"]);
    set("S-1-22-1", &["--range", "300000-300001"]).failed(1, &["Samba"]);
    set(ANN, &["--range", "300000-300001"]).failed(1, &["without a RID", ANN]);
    for range in ["0-5", "6-5", "5", "5-4294967295", "x-5"] {
        set(other, &["--range", range]).failed(2, &[range, "100000-199999"]);
    }
    for domain in ["S-1-5-21-x", "DOM"] {
        set(domain, &["--range", "5-6"]).failed(2, &[domain, "SID of a domain"]);
    }
    limen(&["sid", "delete", &url, other]).failed(1, &["no such rule", other]);
    limen(&["sid", "delete", &url, DOMAIN, "--first-rid", "1"]).failed(1, &["no such rule", DOMAIN]);
    assert_eq!(list(), before);
    set(DOMAIN, &["--range", "100000-199999"]).ok();
    assert_eq!(list(), before, "the same rule again");
    let posix = common::Place::formatted();
    limen(&["sid", "set", &posix.url(), other, "--range", "5-6"]).failed(2, &["no NFSv4 ACLs"]);
}

/// The program `timeout` of this test behaves as if every lookup took too long.
#[test]
fn names_are_given_up_once_the_user_database_does_not_answer() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let tools = volume.place.path("tools");
    fs::create_dir(&tools).unwrap();
    let (tool, calls) = (tools.join("timeout"), volume.place.path("calls"));
    fs::write(&tool, format!("#!/bin/sh\necho \"$@\" >>'{}'\nexit 124\n", calls.display())).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    for id in 3_999_000_001..3_999_000_004_u32 {
        let file = volume.at(&id.to_string());
        fs::write(&file, "").unwrap();
        chown(&file, Some(id), Some(id)).unwrap();
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut ls = command(&["ls", "-l", &volume.place.mnt()]);
    let said = Said::from(ls.env("PATH", path).output().unwrap());
    assert!(said.err.contains("the user database did not answer"), "{said:?}");
    let listed = said.ok();
    for id in 3_999_000_001..3_999_000_004_u32 {
        assert_eq!(listed.matches(&id.to_string()).count(), 3, "{listed}");
    }
    let calls = fs::read_to_string(calls).unwrap();
    assert_eq!(calls.lines().count(), 1, "{calls}");
    assert!(calls.contains("getent -- passwd 399900000"), "{calls}");
}
