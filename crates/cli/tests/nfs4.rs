//! NFSv4 ACLs on a mount: the kernel checks a projection of each ACL, the daemon checks the ACL itself, and
//! together they grant exactly what the ACL grants.

mod common;
mod harness;
mod wire;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use acl::nfs4::{AclFlags, Nfs4Acl, Scope};
use acl::posix::PosixAcl;
use common::{Place, limen};
use harness::{Mounted, as_member, as_user, refused};
use rustix::fs::{
    CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, fallocate,
    fcntl_getfl, fcntl_setfl, ftruncate, getxattr_query, listxattr, lsetxattr, open, openat, removexattr,
    setxattr, utimensat,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use wire::{NFS4_ACL, NFS4_DACL, acl, blob, get, set, value};

const POSIX: &str = "system.posix_acl_access";

fn nfs4(more: &[&str]) -> Option<Mounted> {
    Mounted::new(&[&["--acl", "nfsv4"], more].concat())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// A directory of user 1 and group 1 with this ACL.
fn dir(volume: &Mounted, name: &str, text: &str) -> PathBuf {
    let path = volume.at(name);
    fs::create_dir(&path).unwrap();
    chown(&path, Some(1), Some(1)).unwrap();
    set(&path, text).unwrap();
    path
}

/// A file of user 1 and group 1 with this ACL.
fn file(path: PathBuf, text: &str) -> PathBuf {
    fs::write(&path, "text").unwrap();
    chown(&path, Some(1), Some(1)).unwrap();
    set(&path, text).unwrap();
    path
}

#[test]
fn acl_is_stored_and_shown() {
    let Some(volume) = nfs4(&[]) else { return };
    let (f, d) = (volume.at("f"), volume.at("d"));
    fs::create_dir(&d).unwrap();
    fs::write(&f, "text").unwrap();
    fs::set_permissions(&f, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        get(&f).unwrap(),
        "A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:tncy",
        "the ACL of the mode"
    );
    let text = "D::7:w,A::7:rwx,A:g:8:r,U:S:EVERYONE@:w,A::OWNER@:rwatTnNcCoy,A::EVERYONE@:tcy";
    set(&f, text).unwrap();
    assert_eq!(mode(&f), 0o650, "the kernel's attributes are invalidated at once");
    for round in ["now", "after the next mount"] {
        assert_eq!(get(&f).unwrap(), text, "{round}");
        assert_eq!(mode(&f), 0o650, "{round}");
        let shown = PosixAcl::from_xattr(&value(&f, POSIX).unwrap()).unwrap().unwrap();
        let shown = shown.to_storage();
        // After the group entries there is an entry whose group number identifies the file.
        assert!(shown.starts_with("u::rw-,u:7:r-x,g::---,g:8:r--,g:2"), "{round}: {shown}");
        assert!(shown.ends_with(":---,m::r-x,o::---"), "{round}: {shown}");
        volume.remount();
    }
    // The DACL attribute has the list's flags, and only ALLOW and DENY entries.
    let dacl = blob(&acl("flags:p,A::9:r"), Scope::Access);
    refused(setxattr(&f, NFS4_DACL, &dacl, XattrFlags::CREATE), Errno::EXIST);
    setxattr(&f, NFS4_DACL, &dacl, XattrFlags::REPLACE).unwrap();
    assert_eq!(get(&f).unwrap(), "A::9:r,U:S:EVERYONE@:w");
    assert_eq!(value(&f, NFS4_DACL).unwrap(), dacl);
    let mut names = vec![0; 1000];
    let len = listxattr(&f, &mut names[..]).unwrap();
    assert_eq!(&names[..len], b"system.nfs4_acl\0system.nfs4_dacl\0");
    removexattr(&f, NFS4_ACL).unwrap();
    assert_eq!(get(&f).unwrap(), "A::OWNER@:tTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:tncy");
    assert_eq!(mode(&f), 0);
    // A POSIX ACL is converted to entries; symbolic links have no ACL.
    let posix = PosixAcl::from_text("u::rw,u:5:rw,g::r,m::rw,o::-").unwrap().to_xattr();
    setxattr(&f, POSIX, &posix, XattrFlags::empty()).unwrap();
    assert!(get(&f).unwrap().contains("A::5:rwatncy,D::5:x,A::GROUP@:rtncy,"), "{:?}", get(&f));
    assert_eq!(mode(&f), 0o660);
    refused(removexattr(&f, POSIX), Errno::OPNOTSUPP);
    refused(setxattr(&d, "system.posix_acl_default", &posix, XattrFlags::empty()), Errno::OPNOTSUPP);
    refused(getxattr_query(&f, "system.posix_acl_default"), Errno::NODATA);
    symlink("f", volume.at("l")).unwrap();
    refused(
        lsetxattr(volume.at("l"), NFS4_ACL, &blob(&acl("A::1:r"), Scope::Entries), XattrFlags::empty()),
        Errno::OPNOTSUPP,
    );
    volume.place.umount(&[]).ok();
    assert_eq!(limen(&["fsck", &volume.place.url()]).code, Some(0));
}

#[test]
fn nfs4_acl_tools_set_and_show_acls() {
    let Some(volume) = nfs4(&[]) else { return };
    let run = |program: &str, args: &[&str], path: &Path| {
        let done = Command::new(program).args(args).arg(path).output().unwrap();
        assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let entries = |text: &str| -> Vec<String> {
        text.lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let (d, f) = (volume.at("d"), volume.at("f"));
    fs::create_dir(&d).unwrap();
    fs::write(&f, "").unwrap();
    run("nfs4_setfacl", &["-a", "A::1000:rxtncy"], &f);
    run("nfs4_setfacl", &["-a", "D:g:50:wa"], &f);
    assert!(get(&f).unwrap().starts_with("D:g:50:wa,A::1000:rxtncy,A::OWNER@:"), "{:?}", get(&f));
    let shown = entries(&run("nfs4_getfacl", &[], &f));
    assert_eq!(shown[..2], ["D:g:50:wa", "A::1000:rxtncy"]);
    run("nfs4_setfacl", &["-s", "A:fd:7:RX,A::OWNER@:rwaxDtTnNcCoy,A:g:GROUP@:rxtncy"], &d);
    let before = get(&d).unwrap();
    assert_eq!(entries(&run("nfs4_getfacl", &[], &d))[0], "A:fd:7:rxtncy");
    // The output of nfs4_getfacl can be set again and gives the same ACL.
    let all = entries(&run("nfs4_getfacl", &[], &d)).join(",");
    run("nfs4_setfacl", &["-s", &all], &d);
    assert_eq!(get(&d).unwrap(), before);
    fs::write(d.join("heir"), "").unwrap();
    // The tool does not show the INHERITED flag. The file was created without `x`.
    assert!(get(&d.join("heir")).unwrap().starts_with("A:I:7:rtncy,"));
    assert_eq!(entries(&run("nfs4_getfacl", &[], &d.join("heir")))[0], "A::7:rtncy");
    run("nfs4_setfacl", &["-x", "1"], &d);
    assert!(!get(&d).unwrap().contains(":7:"));
    let unknown =
        Command::new("nfs4_setfacl").args(["-a", "A::no-such@example.org:r"]).arg(&f).output().unwrap();
    assert!(!unknown.status.success());
    // An entry can name a user or group by name if the mount knows the domain.
    volume.place.umount(&[]).ok();
    volume.place.mount(&["-o", "acl_domain=example.org"]).ok();
    run("nfs4_setfacl", &["-s", "A::daemon@example.org:r,A:g:daemon@EXAMPLE.org:x,A::OWNER@:rw"], &f);
    let shown = entries(&run("nfs4_getfacl", &[], &f));
    assert_eq!(shown[..2], ["A::daemon@example.org:r", "A:g:daemon@example.org:x"]);
    let explained =
        |user| common::limen(&["access", "explain", f.to_str().unwrap(), "--user", user, "--want", "r"]);
    assert!(explained("daemon").ok().starts_with("granted: r for daemon"));
    assert_eq!(explained("bin").code, Some(1), "the ACL is read, and grants nothing to others");
    volume.remount();
    assert_eq!(get(&f).unwrap(), "A::1:r,A:g:1:x,A::OWNER@:rw", "names are stored as numbers");
}

/// A script named `getent` stands for the directory service.
#[test]
fn names_of_a_directory_service_are_set_and_shown_and_no_request_waits_for_it_for_long() {
    let Some(volume) = nfs4(&[]) else { return };
    let f = file(volume.at("f"), "A::OWNER@:rw");
    let (tools, calls) = (volume.place.path("tools"), volume.place.path("calls"));
    fs::create_dir(&tools).unwrap();
    let script = format!(
        r#"#!/bin/sh
echo "$2 $3" >>'{}'
case "$2 $3" in
    'passwd lena' | 'passwd 70001') echo 'lena:x:70001:5::/:/bin/sh' ;;
    'passwd max@example.org' | 'passwd 70002') echo 'max@example.org:x:70002:5::/:/bin/sh' ;;
    'group domain users' | 'group 70003') echo "domain users:x:70003:$(seq -s , 20000)" ;;
    'passwd late') sleep 3 && echo 'late:x:70004:5::/:/bin/sh' ;;
    'passwd 70005') echo 'eve@example.com:x:70005:5::/:/bin/sh' ;;
    'passwd 70006') echo 'daemon@example.org:x:70006:5::/:/bin/sh' ;;
    'passwd away') exit 124 ;;
    *) exit 2 ;;
esac
"#,
        calls.display()
    );
    fs::write(tools.join("getent"), script).unwrap();
    fs::set_permissions(tools.join("getent"), fs::Permissions::from_mode(0o755)).unwrap();
    volume.place.umount(&[]).ok();
    let (log, mnt, url) = (volume.place.text("log"), volume.place.mnt(), volume.place.url());
    let mut mount =
        common::command(&["mount", "-d", "--log", &log, "-o", "acl_domain=example.org", &url, &mnt]);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    common::Said::from(mount.env("PATH", path).output().unwrap()).ok();
    let calls = || fs::read_to_string(&calls).unwrap_or_default();
    let named = |entries: &[(&str, bool)]| {
        let mut value: Vec<u8> = (entries.len() as u32).to_be_bytes().into();
        for (who, is_group) in entries {
            let words = [0, if *is_group { 0x40 } else { 0 }, 1, who.len() as u32];
            value.extend(words.iter().flat_map(|word: &u32| word.to_be_bytes()));
            value.extend(who.as_bytes());
            value.resize(value.len().next_multiple_of(4), 0);
        }
        value
    };
    let set_names = |entries: &[(&str, bool)]| setxattr(&f, NFS4_ACL, &named(entries), XattrFlags::empty());

    let known = [("lena@example.org", false), ("max@EXAMPLE.org", false), ("domain users@example.org", true)];
    set_names(&known).unwrap();
    // The first look asks for the names of the numbers, and does not wait for them.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let names = known.map(|(who, is_group)| (who.to_lowercase(), is_group));
    let shown: Vec<_> = names.iter().map(|(who, is_group)| (who.as_str(), *is_group)).collect();
    while value(&f, NFS4_ACL).unwrap() != named(&shown) {
        assert!(std::time::Instant::now() < until, "{:?}", value(&f, NFS4_ACL));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let asked = calls();
    set_names(&known).unwrap();
    value(&f, NFS4_ACL).unwrap();
    assert_eq!(calls(), asked, "the answers are remembered");
    assert_eq!(asked.lines().count(), 7, "{asked}");

    // A name of another domain, and a name that a local user has too, are not shown. A name of another
    // domain, and an unknown name, cannot be set.
    set(&f, "A::70005:r,A::70006:r,A::OWNER@:rw").unwrap();
    let before = get(&f).unwrap();
    while !calls().contains("70006") {
        assert!(std::time::Instant::now() < until, "{}", calls());
        value(&f, NFS4_ACL).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    for wrong in [
        "nobody-knows@example.org",
        "eve@example.com",
        "--help@example.org",
        "70001@example.org",
        "+0@example.org",
    ] {
        refused(set_names(&[(wrong, false)]), Errno::INVAL);
    }
    assert!(!calls().contains("help"), "{}", calls());
    assert_eq!(get(&f).unwrap(), before);

    // The answer comes too late for the first attempt, but not for a later one.
    refused(set_names(&[("late@example.org", false)]), Errno::TIMEDOUT);
    assert_eq!(get(&f).unwrap(), before);
    while let Err(error) = set_names(&[("late@example.org", false)]) {
        assert_eq!(error, Errno::TIMEDOUT);
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }

    // A service that has not answered is not queried for a while. Known names can still be set.
    refused(set_names(&[("away@example.org", false)]), Errno::TIMEDOUT);
    let asked = calls();
    refused(set_names(&[("other@example.org", false)]), Errno::TIMEDOUT);
    set_names(&[("lena@example.org", false)]).unwrap();
    assert_eq!(calls(), asked);
    let warned = fs::read_to_string(&log).unwrap().matches("no answer within 10 seconds").count();
    assert_eq!(warned, 1);
}

#[test]
fn malformed_nfs4_acls_are_refused_and_change_nothing() {
    let Some(volume) = nfs4(&[]) else { return };
    let f = file(volume.at("f"), "A::5:r,A::2:C,A::OWNER@:rw");
    let before = (get(&f).unwrap(), mode(&f), fs::metadata(&f).unwrap().ctime_nsec());
    let put = |name: &str, value: &[u8]| setxattr(&f, name, value, XattrFlags::empty());
    let good = blob(&acl("A::1000:rwx,D:g:50:w,A::EVERYONE@:r"), Scope::Entries);
    for len in 0..good.len() {
        refused(put(NFS4_ACL, &good[..len]), Errno::INVAL);
    }
    let word = |at: usize, word: u32| {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&word.to_be_bytes());
        bad
    };
    let ones = |bytes: usize| vec![0xff; bytes];
    let one = |who: &str| {
        let mut value: Vec<u8> =
            [1, 0, 0, 1, who.len() as u32].iter().flat_map(|word| word.to_be_bytes()).collect();
        value.extend(who.as_bytes());
        value.resize(value.len().next_multiple_of(4), 0);
        value
    };
    for (what, value, errno) in [
        ("trailing bytes", [&good[..], &[0; 4]].concat(), Errno::INVAL),
        ("a count too large", word(0, 4), Errno::INVAL),
        ("a huge count", word(0, u32::MAX), Errno::TOOBIG),
        ("an unknown type", word(4, 9), Errno::INVAL),
        ("unknown flags", word(8, 0x8000), Errno::INVAL),
        ("unknown permissions", word(12, 0x8000_0000), Errno::INVAL),
        ("a name of 4 GiB", word(16, u32::MAX), Errno::INVAL),
        ("noise", ones(4_000), Errno::TOOBIG),
        ("64 KiB of noise", ones(65_536), Errno::TOOBIG),
        ("64 KiB of zeros", vec![0; 65_536], Errno::INVAL),
        ("more than any xattr", vec![0; 65_537], Errno::TOOBIG),
        ("an unknown user", one("no-such@example.org"), Errno::INVAL),
        ("a name without a domain", one("root"), Errno::INVAL),
        ("an ID that is not valid", one("4294967295"), Errno::INVAL),
        ("a SID without a relative ID", one("S-1-5"), Errno::INVAL),
        ("a SID with too many parts", one(&format!("S-1-5{}", "-1".repeat(16))), Errno::INVAL),
        ("a user's SID for a group", one("S-1-22-2-50"), Errno::INVAL),
        ("a stored domain ID", one("1-5"), Errno::INVAL),
        ("an empty name", one(""), Errno::INVAL),
        ("a name with a NUL byte", one("\u{0}"), Errno::INVAL),
    ] {
        assert_eq!(put(NFS4_ACL, &value), Err(errno), "{what}");
        let dacl = [&[0; 4], &value[..]].concat();
        assert!(put(NFS4_DACL, &dacl).is_err(), "{what}");
    }
    refused(put(NFS4_DACL, &good), Errno::INVAL);
    // A caller without permission to change the ACL fails with EPERM.
    for uid in [3, 5] {
        as_user(uid, uid, || {
            refused(put(NFS4_ACL, &good), Errno::PERM);
            refused(put(NFS4_DACL, &[&[0; 4], &good[..]].concat()), Errno::PERM);
            refused(removexattr(&f, NFS4_ACL), Errno::PERM);
            refused(value(&f, NFS4_ACL), Errno::ACCESS);
        });
    }
    assert_eq!((get(&f).unwrap(), mode(&f), fs::metadata(&f).unwrap().ctime_nsec()), before);
    as_user(2, 2, || set(&f, "A::2:c,A::OWNER@:rw")).unwrap();
    assert_eq!(get(&f).unwrap(), "A::2:c,A::OWNER@:rw", "user 2 has WRITE_ACL");
    // The longest ACL that an extended attribute can hold, and a new file that inherits it.
    let entry = acl("A:fd:1000:r").entries()[0];
    let long = Nfs4Acl::new(AclFlags::NONE, vec![entry; 3_276]).unwrap();
    let d = volume.at("d");
    fs::create_dir(&d).unwrap();
    wire::set_acl(&d, &long).unwrap();
    assert_eq!(get(&d).unwrap(), long.to_storage());
    fs::write(d.join("heir"), "").unwrap();
    refused(value(&d.join("heir"), NFS4_ACL), Errno::TOOBIG);
    volume.remount();
    assert_eq!(get(&d).unwrap(), long.to_storage());
    assert_eq!(fs::read(d.join("heir")).unwrap(), b"");
}

/// The maximum number of groups of a caller (`NGROUPS_MAX`): each group counts, wherever it is in the list.
#[test]
fn caller_in_65536_groups_has_the_permissions_of_each() {
    let Some(volume) = nfs4(&[]) else { return };
    let many: Vec<u32> = (100_000..165_536).collect();
    let d = dir(&volume, "d", "A:g:165535:rx,A::OWNER@:rwaxD");
    let allowed = ["100000", "132768", "165535"]
        .map(|group| file(d.join(group), &format!("A:g:{group}:r,A::OWNER@:rw")));
    let denied = ["100000", "165535"]
        .map(|group| file(d.join(format!("not-{group}")), &format!("D:g:{group}:r,A::EVERYONE@:r")));
    let foreign = file(d.join("foreign"), "A:g:99999:r,A:g:165536:r,A::OWNER@:rw");
    // The longest ACL that an extended attribute can hold; only its last entry matches.
    let mut entries: Vec<String> = (0..2_600).map(|n| format!("A:g:{}:r", 200_000 + n)).collect();
    entries.push("A:g:150000:r".to_owned());
    let long = file(d.join("long"), &entries.join(","));
    for options in [&[][..], &["--abe"]] {
        volume.remount_with(options);
        for _ in 0..2 {
            as_member(1000, 1000, &many, || {
                for path in allowed.iter().chain([&long]) {
                    assert_eq!(fs::read(path).unwrap(), b"text", "{path:?}");
                }
                for path in denied.iter().chain([&foreign]) {
                    refused(fs::read(path), Errno::ACCESS);
                }
                let shown = if options.is_empty() { 7 } else { 4 };
                assert_eq!(fs::read_dir(&d).unwrap().count(), shown, "{options:?}");
            });
            as_member(1000, 1000, &many[..65_535], || refused(fs::read(&long), Errno::ACCESS));
        }
    }
}

/// Denies search to group 20, and grants it to everyone else. No POSIX ACL can express this for callers that
/// are also members of the owning group.
const INEXACT: &str = "A::OWNER@:rwaxD,D:g:20:x,A::EVERYONE@:rx";

/// The kernel walks cached names without a request. If a directory's search permission cannot be projected
/// exactly, the directory's attributes must not be served with the usual lifetime: otherwise members of group
/// 20 could walk the names that user 1000 has just used.
#[test]
fn search_is_checked_on_cached_names() {
    let Some(volume) = nfs4(&[]) else { return };
    let exact = dir(&volume, "exact", "A::OWNER@:rwaxD,A::1000:x,D::EVERYONE@:x");
    let inexact = dir(&volume, "inexact", INEXACT);
    for (d, groups) in [(&exact, &[][..]), (&inexact, &[20])] {
        let sub = d.join("sub");
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("f"), "text").unwrap();
        let (f, look) = (sub.join("f"), |path: &Path| fs::metadata(path).map(drop));
        let directory = open(d, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for round in 0..20 {
            assert_eq!(fs::read(&f).unwrap(), b"text");
            as_member(1000, 2, &[], || assert_eq!(fs::read(&f).unwrap(), b"text", "{round}"));
            // A member of group 1, which owns the directory.
            as_member(1001, 1, groups, || {
                refused(look(&f), Errno::ACCESS);
                refused(look(&sub), Errno::ACCESS);
                refused(fs::read(&f), Errno::ACCESS);
                refused(fs::remove_file(&f), Errno::ACCESS);
                refused(fs::create_dir(sub.join("new")), Errno::ACCESS);
                refused(openat(&directory, "sub", OFlags::PATH, Mode::empty()), Errno::ACCESS);
            });
            if groups.is_empty() {
                continue;
            }
            as_member(1001, 1, &[21], || look(&f).unwrap());
        }
    }
    // A permission that is granted or revoked takes effect at once.
    set(&exact, "A::EVERYONE@:x").unwrap();
    as_user(1001, 1, || fs::read(exact.join("sub/f")).unwrap());
    set(&exact, "A::1000:x").unwrap();
    as_user(1001, 1, || refused(fs::read(exact.join("sub/f")), Errno::ACCESS));
    set(&inexact, "A::EVERYONE@:rx").unwrap();
    as_member(1001, 1, &[20], || fs::read(inexact.join("sub/f")).unwrap());
    set(&inexact, INEXACT).unwrap();
    as_member(1001, 1, &[20], || refused(fs::read(inexact.join("sub/f")), Errno::ACCESS));
}

/// A child process that is killed when dropped, even if the test panics.
#[derive(Debug)]
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// If a LOOKUP fails, the kernel drops the name, and unmounts what is mounted on it. So a member of group 20
/// must fail in another request than LOOKUP. If names below such a directory had a lifetime of zero, a stat
/// by a member would unmount the file system.
#[test]
fn denied_lookup_does_not_unmount_or_drop_names() {
    let Some(volume) = nfs4(&[]) else { return };
    let d = dir(&volume, "d", INEXACT);
    for name in ["mounted", "work"] {
        fs::create_dir(d.join(name)).unwrap();
    }
    let there = d.join("mounted");
    mount("none", &there, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(there.join("f"), "text").unwrap();
    let mut sleep = Command::new("sleep");
    let other = Ended(sleep.arg("600").current_dir(d.join("work")).stdin(Stdio::null()).spawn().unwrap());
    let cwd = || fs::read_link(format!("/proc/{}/cwd", other.0.id())).unwrap();
    let before = cwd();
    for _ in 0..20 {
        as_member(1001, 1, &[20], || {
            for name in ["mounted", "work", "mounted/f", "none"] {
                refused(fs::metadata(d.join(name)), Errno::ACCESS);
            }
        });
        assert_eq!(fs::read(there.join("f")).unwrap(), b"text", "the tmpfs is still mounted");
        assert_eq!(cwd(), before, "the name is still cached");
    }
    drop(other);
    unmount(&there, UnmountFlags::empty()).unwrap();
}

#[test]
fn names_are_created_and_removed_by_acl() {
    let Some(volume) = nfs4(&[]) else { return };
    let d = dir(&volume, "d", "A::2:rwx,A::3:rax,A::4:rxD,A::5:rx,A::EVERYONE@:x");
    let at = |name: &str| d.join(name);
    file(at("plain"), "A::EVERYONE@:r");
    file(at("free"), "A::EVERYONE@:rd");
    file(at("kept"), "D::EVERYONE@:d,A::EVERYONE@:r");
    let may = |uid, act: &(dyn Fn() -> std::io::Result<()> + Sync)| as_user(uid, uid, act);
    may(2, &|| fs::write(at("by2"), "")).unwrap();
    refused(may(2, &|| fs::create_dir(at("d2"))), Errno::ACCESS);
    may(3, &|| fs::create_dir(at("d3"))).unwrap();
    refused(may(3, &|| fs::write(at("by3"), "")), Errno::ACCESS);
    refused(may(3, &|| symlink("t", at("l3"))), Errno::ACCESS);
    refused(may(4, &|| fs::write(at("by4"), "")), Errno::ACCESS);
    refused(may(5, &|| fs::remove_file(at("plain"))), Errno::ACCESS);
    refused(may(5, &|| fs::rename(at("plain"), at("other"))), Errno::ACCESS);
    may(5, &|| fs::remove_file(at("free"))).unwrap();
    for uid in [2, 4, 5] {
        refused(may(uid, &|| fs::remove_file(at("kept"))), Errno::ACCESS);
    }
    may(4, &|| fs::remove_file(at("plain"))).unwrap();
    refused(may(6, &|| fs::read_dir(&d).map(drop)), Errno::ACCESS);
    may(5, &|| fs::read_dir(&d).map(drop)).unwrap();
    fs::remove_file(at("kept")).unwrap();
    // Without an ACL on the directory, the kernel checks the mode and requires w, whatever the file's ACL
    // says.
    let plain = volume.at("plain");
    fs::create_dir(&plain).unwrap();
    file(plain.join("free"), "A::EVERYONE@:rd");
    assert_eq!(mode(&plain), 0o755);
    refused(may(5, &|| fs::remove_file(plain.join("free"))), Errno::ACCESS);
}

#[test]
fn files_are_opened_and_executed_by_acl() {
    let Some(volume) = nfs4(&[]) else { return };
    let f = file(volume.at("f"), "A::2:r,A::3:w,A::4:ra,A::EVERYONE@:x");
    let options = |read, write, append, truncate| {
        let mut options = OpenOptions::new();
        options.read(read).write(write).append(append).truncate(truncate);
        options.open(&f)
    };
    as_user(2, 2, || {
        options(true, false, false, false).unwrap();
        refused(options(true, true, false, false), Errno::ACCESS);
        refused(options(false, false, true, false), Errno::ACCESS);
    });
    as_user(3, 3, || {
        options(false, true, false, true).unwrap().write_all(b"text").unwrap();
        refused(options(true, false, false, false), Errno::ACCESS);
    });
    as_user(4, 4, || {
        refused(options(false, true, false, false), Errno::ACCESS);
        refused(options(false, true, false, true), Errno::ACCESS);
        let truncated = open(&f, OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC, Mode::empty());
        refused(truncated, Errno::ACCESS);
        let mut log = options(true, false, true, false).unwrap();
        log.write_all(b" more").unwrap();
        // With O_APPEND, Linux appends data and ignores the offset (pwrite(2)).
        log.write_all_at(b"!", 0).unwrap();
        refused(ftruncate(&log, 0), Errno::PERM);
        refused(fallocate(&log, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4), Errno::PERM);
        let flags = fcntl_getfl(&log).unwrap();
        fcntl_setfl(&log, flags.difference(OFlags::APPEND)).unwrap();
        refused(log.write_all_at(b"X", 0), Errno::PERM);
        // A shared mapping is refused, because any byte could be written through it.
        let mapped = Command::new("python3")
            .args(["-c", "import mmap,sys; mmap.mmap(0, 4)"])
            .stdin(log.try_clone().unwrap())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&mapped.stderr).into_owned();
        assert!(error.contains("Errno 19"), "{error}");
        assert_eq!(fs::read(&f).unwrap(), b"text more!");
    });
    as_user(5, 5, || refused(fs::read(&f), Errno::ACCESS));
    // A program that a user may execute but not read runs.
    let program = volume.at("program");
    fs::copy("/bin/true", &program).unwrap();
    set(&program, "A::EVERYONE@:x").unwrap();
    as_user(5, 5, || {
        assert!(Command::new(&program).status().unwrap().success());
        refused(fs::read(&program), Errno::ACCESS);
    });
    set(&program, "A::EVERYONE@:r").unwrap();
    as_user(5, 5, || refused(Command::new(&program).status(), Errno::ACCESS));
    // An open file keeps the access that it was opened with.
    let g = file(volume.at("g"), "A::2:rw");
    let mut held = as_user(2, 2, || OpenOptions::new().read(true).write(true).open(&g).unwrap());
    set(&g, "A::3:r").unwrap();
    as_user(2, 2, || {
        held.write_all(b"held").unwrap();
        ftruncate(&held, 2).unwrap();
        refused(File::open(&g), Errno::ACCESS);
    });
    assert_eq!(fs::read(&g).unwrap(), b"he");
    // A new file is open with the access that was requested, whatever its mode.
    let d = dir(&volume, "d", "A::2:wx");
    as_user(2, 2, || {
        let mut made =
            OpenOptions::new().write(true).create_new(true).mode(0o000).open(d.join("made")).unwrap();
        made.write_all(b"x").unwrap();
    });
}

#[test]
fn attributes_change_by_acl() {
    let Some(volume) = nfs4(&[]) else { return };
    let f = file(volume.at("f"), "A::2:w,A::3:TC,A::4:rwnN,A::5:o,A::OWNER@:rwaxtTnNcCoy");
    let time = |nsec| Timespec { tv_sec: 5, tv_nsec: nsec };
    let times = |nsec| {
        let times = Timestamps { last_access: time(nsec), last_modification: time(nsec) };
        utimensat(CWD, &f, &times, rustix::fs::AtFlags::empty())
    };
    let mtime = || fs::metadata(&f).unwrap().mtime();
    as_user(2, 2, || {
        times(UTIME_NOW).unwrap();
        refused(times(7), Errno::PERM);
    });
    assert_ne!(mtime(), 5);
    as_user(1, 1, || times(7)).unwrap();
    assert_eq!(mtime(), 5);
    as_user(3, 3, || {
        // The kernel allows explicit times, modes and owners to the owner only, whatever the ACL says.
        refused(times(8), Errno::PERM);
        refused(fs::set_permissions(&f, fs::Permissions::from_mode(0o777)), Errno::PERM);
        set(&f, &get(&f).unwrap_or_else(|_| "A::3:cC,A::4:rwnN,A::OWNER@:rw".to_owned())).unwrap();
    });
    as_user(5, 5, || refused(chown(&f, Some(5), Some(5)), Errno::PERM));
    let put = |name: &str| setxattr(&f, name, b"1", XattrFlags::empty());
    as_user(4, 4, || {
        put("user.a").unwrap();
        assert_eq!(value(&f, "user.a").unwrap(), b"1");
    });
    as_user(3, 3, || {
        refused(put("user.b"), Errno::ACCESS);
        refused(value(&f, "user.a"), Errno::ACCESS);
        refused(removexattr(&f, "user.a"), Errno::ACCESS);
    });
    let omitted = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_OMIT) };
    utimensat(CWD, &f, &omitted, rustix::fs::AtFlags::empty()).unwrap();
}

#[test]
fn acl_policies_are_settings_of_the_volume() {
    let Some(volume) = nfs4(&[]) else { return };
    let config = |policy: &[&str]| {
        volume.place.umount(&[]).ok();
        let url = volume.place.url();
        let said = limen(&[&["config", &url], policy].concat()).ok();
        volume.place.mount(&[]).ok();
        said
    };
    let old = "A:fd:7:rwC,A::8:r,A::OWNER@:rwaxDtTnNcCoy,A::EVERYONE@:tncy";
    let d = dir(&volume, "d", old);
    let made = |name: &str| {
        fs::write(d.join(name), "").unwrap();
        get(&d.join(name)).unwrap()
    };
    assert!(made("restricted").starts_with("A:I:7:rw,A::OWNER@:"));
    assert!(config(&["--aclinherit", "passthrough"]).contains("passthrough"));
    assert!(made("passthrough").starts_with("A:I:7:rwC,"));
    config(&["--aclinherit", "discard"]);
    assert!(!made("discard").contains(":7:"));
    let chmod = |mode: u32| fs::set_permissions(&d, fs::Permissions::from_mode(mode));
    config(&["--aclmode", "restricted"]);
    refused(chmod(0o750), Errno::PERM);
    assert_eq!(get(&d).unwrap(), old);
    config(&["--aclmode", "passthrough"]);
    chmod(0o750).unwrap();
    assert!(get(&d).unwrap().starts_with("A::7:rC,A:fdi:7:rwC,A::8:r,A::OWNER@:rwaxD"));
    config(&["--aclmode", "groupmask"]);
    chmod(0o710).unwrap();
    assert!(get(&d).unwrap().starts_with("A::7:,A:fdi:7:rwC,A::8:,A::OWNER@:"), "{}", get(&d).unwrap());
    config(&["--aclmode", "discard"]);
    chmod(0o2750).unwrap();
    assert_eq!(mode(&d), 0o2750);
    assert!(!get(&d).unwrap().contains(":7:"));
    // `chmod g+s` passes the mode that stat shows; the ACL must stay the same.
    config(&["--aclmode", "groupmask"]);
    set(&d, "A::OWNER@:rwaxD,A::7:rwx,A::EVERYONE@:rx").unwrap();
    assert_eq!(mode(&d), 0o2775);
    chmod(mode(&d)).unwrap();
    assert_eq!(get(&d).unwrap(), "A::OWNER@:rwaxD,A::7:rwx,A::EVERYONE@:rx", "no entry gained w");
    let place = Place::formatted();
    limen(&["config", &place.url(), "--aclmode", "discard"]).failed(2, &["NFSv4"]);
    limen(&["config", &volume.place.url(), "--acl", "posix"]).failed(2, &["cannot be changed"]);
}

#[test]
fn permission_revoked_on_another_mount_is_enforced() {
    let Some(volume) = nfs4(&[]) else { return };
    let place = &volume.place;
    place.umount(&[]).ok();
    place.mount(&["-o", "shared"]).ok();
    let second = place.path("second");
    fs::create_dir(&second).unwrap();
    let (url, there) = (place.url(), place.text("second"));
    limen(&["mount", "-d", "--log", &place.text("log2"), "-o", "shared", &url, &there]).ok();
    let d = dir(&volume, "d", "A::2:rwxD,A::OWNER@:rwaxD");
    let f = file(d.join("f"), "A::2:rw");
    let other = second.join("d");
    as_user(2, 2, || assert_eq!(fs::read(other.join("f")).unwrap(), b"text"));
    set(&f, "A::2:w").unwrap();
    as_user(2, 2, || refused(fs::read(other.join("f")), Errno::ACCESS));
    for _ in 0..5 {
        set(&d, INEXACT).unwrap();
        as_member(3, 1, &[20], || refused(fs::metadata(other.join("f")), Errno::ACCESS));
        as_member(3, 1, &[], || fs::metadata(other.join("f")).map(drop)).unwrap();
        set(&d, "A::3:x").unwrap();
        as_member(3, 1, &[20], || fs::metadata(other.join("f")).map(drop)).unwrap();
    }
    as_user(2, 2, || refused(fs::remove_file(other.join("f")), Errno::ACCESS));
    limen(&["umount", &there]).ok();
}
