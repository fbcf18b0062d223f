//! `limen access` and `limen ls` on volumes with NFSv4 ACLs, against the results of real calls on a mount.
//!
//! The trees have random owners, groups, modes and ACLs, and random users open, execute, stat, create and
//! remove. The seed is printed, and `ACCESS_SEED=...` replays it; `ACCESS_ROUNDS` sets the number of rounds.

mod common;
mod harness;
mod wire;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use acl::nfs4::{Kind, Nfs4Acl, OWNER_RIGHTS, Reason, Who};
use acl::posix::Perm;
use common::{json_lines, limen};
use engine_sqlite::{Options, SqliteEngine};
use harness::{Mounted, Random, as_cred, errno, random_cred};
use inspect::{CheckReason, LocalTree, Operation, PathAnswer, PathChecks, Rules, VolumeTree};
use meta::AclKind;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::io::Errno;
use serde_json::Value;
use types::Cred;
use wire::{random_acl, set_acl};

/// IDs begin here, so that they do not belong to real users of this machine.
const FIRST_ID: u32 = 7000;
const IDS: u64 = 5;
const CALLERS: Range<u32> = FIRST_ID..FIRST_ID + IDS as u32;

fn id(random: &mut Random) -> u32 {
    FIRST_ID + random.below(IDS) as u32
}

/// The intended state of a name.
#[derive(Debug)]
struct Thing {
    uid: u32,
    gid: u32,
    is_dir: bool,
    mode: u32,
    acl: Option<Nfs4Acl>,
    target: Option<PathBuf>,
}

impl Thing {
    fn random(random: &mut Random, is_dir: bool) -> Self {
        let rwx = match random.below(3) {
            0 => 0o777,
            1 => 0o755,
            _ => random.below(0o1000) as u32,
        };
        let mode = rwx | if is_dir && random.below(4) == 0 { 0o1000 } else { 0 };
        let entries = random.below(6) + 1;
        let acl = (random.below(4) > 0).then(|| random_acl(random, entries, id));
        let acl = acl.map(|acl| if is_dir && random.below(2) == 0 { passable(&acl) } else { acl });
        Thing { uid: id(random), gid: id(random), is_dir, mode, acl, target: None }
    }

    /// Creates the name if it is missing and gives it its owner, mode and ACL.
    fn restore(&self, path: &Path) {
        if fs::symlink_metadata(path).is_err() {
            match &self.target {
                Some(target) => symlink(target, path).unwrap(),
                None if self.is_dir => fs::create_dir(path).unwrap(),
                None => fs::write(path, "").unwrap(),
            }
        }
        lchown(path, Some(self.uid), Some(self.gid)).unwrap();
        if self.target.is_none() {
            fs::set_permissions(path, Permissions::from_mode(self.mode)).unwrap();
            if let Some(acl) = &self.acl {
                set_acl(path, acl).unwrap();
            }
        }
    }
}

/// Adds a first entry that grants search to everyone, so that more of a tree is reachable.
fn passable(acl: &Nfs4Acl) -> Nfs4Acl {
    let text = format!("A::EVERYONE@:x,{}", acl.to_storage());
    Nfs4Acl::from_storage(&text).unwrap()
}

type Things = BTreeMap<PathBuf, Thing>;

/// A random tree, including its top.
fn tree(top: PathBuf, random: &mut Random, names: usize) -> Things {
    let mut things =
        Things::from([(top.clone(), Thing { acl: None, mode: 0o777, ..Thing::random(random, true) })]);
    let mut dirs = vec![top];
    for number in 0..names {
        let parent = dirs[random.below(dirs.len() as u64) as usize].clone();
        let path = parent.join(format!("n{number}"));
        let is_dir = random.below(9) < 4;
        let mut thing = Thing::random(random, is_dir);
        if !is_dir && random.below(6) == 0 {
            let at = random.below(things.len() as u64) as usize;
            thing.target = things.keys().nth(at).cloned();
        }
        dirs.extend(is_dir.then(|| path.clone()));
        things.insert(path, thing);
    }
    // All names are created before permissions are set, because permissions could make some paths
    // inaccessible.
    for (path, thing) in &things {
        if fs::symlink_metadata(path).is_err() {
            match &thing.target {
                Some(target) => symlink(target, path).unwrap(),
                None if thing.is_dir => fs::create_dir(path).unwrap(),
                None => fs::write(path, "").unwrap(),
            }
        }
    }
    things.iter().for_each(|(path, thing)| thing.restore(path));
    things
}

/// Whether the file may be executed. An empty file fails with ENOEXEC, but only after the permission checks.
fn run(path: &Path) -> Result<(), Errno> {
    match Command::new(path).spawn() {
        Ok(mut child) => child.wait().map(drop).map_err(errno_of),
        Err(error) => match errno_of(error) {
            Errno::NOEXEC => Ok(()),
            errno => Err(errno),
        },
    }
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap()
}

/// Opens, lists, executes or searches. Write permission of a directory is tested by creating files instead.
fn access(path: &Path, want: Perm, is_dir: bool) -> Result<(), Errno> {
    let [read, write, execute] = [Perm::READ, Perm::WRITE, Perm::EXECUTE].map(|one| want.has(one));
    if is_dir {
        if read {
            fs::read_dir(path).map_err(errno_of)?;
        }
        return if execute { fs::metadata(path.join("./.")).map(drop).map_err(errno_of) } else { Ok(()) };
    }
    if read || write {
        OpenOptions::new().read(read).write(write).open(path).map_err(errno_of)?;
    }
    if execute { run(path) } else { Ok(()) }
}

fn remove(path: &Path) -> Result<(), Errno> {
    // There is no stat before the removal, because the user may have no permission for it.
    match fs::remove_file(path).map_err(errno_of) {
        Err(Errno::ISDIR) => match fs::remove_dir(path).map_err(errno_of) {
            // The permission checks come before the check that the directory is empty, so they have passed.
            Err(Errno::NOTEMPTY) => Ok(()),
            done => done,
        },
        done => done,
    }
}

fn attempt(cred: &Cred, path: &Path, want: Operation) -> Result<(), Errno> {
    // Root finds the type of the file, because the credential may not be allowed to.
    let found = fs::metadata(path).ok();
    let is_dir = found.as_ref().is_some_and(fs::Metadata::is_dir);
    let is_own_dir = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    as_cred(cred, || match want {
        Operation::Access(perm) => access(path, perm, is_dir),
        Operation::Stat => fs::metadata(path).map(drop).map_err(errno_of),
        Operation::Create => {
            OpenOptions::new().write(true).create_new(true).open(path).map(drop).map_err(errno_of)
        }
        Operation::Delete if is_own_dir => match fs::remove_dir(path).map_err(errno_of) {
            Err(Errno::NOTEMPTY) => Ok(()),
            done => done,
        },
        Operation::Delete => remove(path),
        Operation::Chmod => {
            let mode = found.as_ref().map_or(0o700, |metadata| metadata.permissions().mode());
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(errno_of)
        }
        Operation::Chown => chown(path, Some(cred.uid ^ 1), None).map_err(errno_of),
        Operation::SetTimes => {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            utimensat(CWD, path, &times, AtFlags::empty())
        }
    })
}

fn random_operation(random: &mut Random, is_dir: bool) -> Operation {
    match random.below(12) {
        0 => Operation::Stat,
        1 | 2 => Operation::Create,
        3..6 => Operation::Delete,
        6 => Operation::Chmod,
        7 => Operation::Chown,
        8 => Operation::SetTimes,
        _ if is_dir => Operation::Access(
            [Perm::READ, Perm::EXECUTE, Perm::READ | Perm::EXECUTE][random.below(3) as usize],
        ),
        _ => Operation::Access(Perm::new(1 + random.below(7) as u32)),
    }
}

/// Checks that the ACL entry that the answer names for each permission is the first one that applies to the
/// caller and mentions the permission. Returns the number of entries that the answer names.
fn check_that_first_entries_decide(path_checks: &PathChecks, answer: &PathAnswer, cred: &Cred) -> usize {
    let mut named = 0;
    for (check, result) in path_checks.checks.iter().zip(&answer.results) {
        let CheckReason::Nfs4(reasons) = &result.reason else { continue };
        // For a removal, the directory's ACL may decide instead.
        let subjects = match &check.requirement {
            inspect::Requirement::Remove { dir } => vec![&check.access_attrs, &**dir],
            _ => vec![&check.access_attrs],
        };
        let agrees = |access_attrs: &inspect::AccessAttrs| {
            let Rules::Nfs4(acl) = &access_attrs.rules else { return false };
            let entries = acl.as_ref().map(|acl| acl.stored().entries()).unwrap_or_default();
            let owns = cred.uid == access_attrs.uid;
            let applies = |who: Who| match who {
                Who::Owner => owns,
                Who::Group => cred.in_group(access_attrs.gid),
                Who::Everyone => true,
                Who::User(id) => id.to_system() == Some(cred.uid),
                Who::NamedGroup(id) => id.to_system().is_some_and(|gid| cred.in_group(gid)),
            };
            reasons.iter().all(|(one, entry)| {
                if acl.is_none() {
                    return entry.is_none()
                        && matches!(one.reason, Reason::Mode(_) | Reason::OwnerRight | Reason::NotMentioned);
                }
                if owns && OWNER_RIGHTS.has(one.permission) {
                    return one.granted && entry.is_none();
                }
                let first = entries.iter().find(|entry| {
                    matches!(entry.kind, Kind::Allow | Kind::Deny)
                        && entry.is_effective()
                        && entry.mask.has(one.permission)
                        && applies(entry.who)
                });
                entry.as_ref() == first && one.granted == first.is_some_and(|entry| entry.kind == Kind::Allow)
            })
        };
        assert!(subjects.into_iter().any(agrees), "{cred:?} {check:#?} {result:#?}");
        let all = reasons.iter().all(|(one, _)| one.granted);
        // A removal needs one of two permissions, not both.
        let is_removal = matches!(check.requirement, inspect::Requirement::Remove { .. });
        assert!(is_removal || all == result.is_granted(), "{check:#?} {result:#?}");
        named += reasons.iter().filter(|(_, entry)| entry.is_some()).count();
    }
    named
}

#[test]
fn explanation_matches_the_result() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let mut random = Random::seeded("ACCESS_SEED");
    fs::set_permissions(volume.at(""), Permissions::from_mode(0o755)).unwrap();
    let engine = SqliteEngine::open(&volume.place.path("vol.db"), &Options::default()).unwrap();
    let in_volume = VolumeTree::new(&engine, AclKind::Nfs4);
    let rounds = env::var("ACCESS_ROUNDS").map_or(6, |rounds| rounds.parse().unwrap());
    let (mut asked, mut granted, mut named, mut both) = (0, 0, 0, 0);
    for round in 0..rounds {
        let top = volume.at(&format!("round{round}"));
        let things = tree(top.clone(), &mut random, 40);
        for _ in 0..400 {
            let mut path = things.keys().nth(random.below(things.len() as u64) as usize).unwrap().clone();
            let want = random_operation(&mut random, path.is_dir());
            if want == Operation::Create || random.below(20) == 0 {
                path = path.join("new");
            }
            if want == Operation::Delete && path == top {
                continue;
            }
            let cred = random_cred(&mut random, CALLERS);
            let path_checks =
                PathChecks::find(&LocalTree::default(), path.as_os_str().as_bytes(), want).unwrap();
            let answer = path_checks.explain(&cred);
            named += check_that_first_entries_decide(&path_checks, &answer, &cred);
            let explained = errno(&answer);
            let inside = path.strip_prefix(volume.at("")).unwrap();
            volume.commit_answered();
            // Symbolic links in this tree are absolute, so they lead out of the volume.
            if let Ok(same) =
                PathChecks::find(&in_volume, &[b"/", inside.as_os_str().as_bytes()].concat(), want)
            {
                assert_eq!(errno(&same.explain(&cred)), explained, "{want} {path:?} {cred:?} {same:#?}");
                both += 1;
            }
            let end = fs::canonicalize(&path).unwrap_or_default();
            let real = attempt(&cred, &path, want);
            if want == Operation::Create && real.is_ok() {
                fs::remove_file(&path).unwrap();
            }
            for changed in [&path, &end] {
                if let Some(thing) = things.get(changed) {
                    thing.restore(changed);
                }
            }
            assert_eq!(explained, real, "{want} {path:?} {cred:?} {answer:#?} {path_checks:#?}");
            asked += 1;
            granted += u32::from(real.is_ok());
        }
    }
    eprintln!(
        "{asked} requests, {granted} granted, {named} entries named, {both} compared with the volume's records"
    );
    assert!(granted > asked / 10 && granted < asked * 9 / 10, "{granted} of {asked}");
    assert!(named > asked as usize / 2 && both > asked / 2);
}

#[test]
fn audit_matches_the_result_for_every_name() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let mut random = Random::seeded("ACCESS_SEED");
    fs::set_permissions(volume.at(""), Permissions::from_mode(0o755)).unwrap();
    let top = volume.at("top");
    let things = tree(top.clone(), &mut random, 80);
    let (mut reached, mut removed) = (0, 0);
    for by_url in [true, false, true, false] {
        let cred = random_cred(&mut random, CALLERS);
        let groups: Vec<String> = [cred.gid].iter().chain(cred.groups()).map(ToString::to_string).collect();
        let (url, mnt) = (volume.place.url(), volume.place.mnt());
        let target = if by_url { &url } else { &mnt };
        let (uid, groups) = (cred.uid.to_string(), groups.join(","));
        let args = ["access", "audit", target, "--user", &uid, "--groups", &groups, "--list", "--json"];
        let mut lines = json_lines(&limen(&args).ok());
        let sums = lines.pop().unwrap();
        let names = |kind: &str| sums["totals"][kind]["names"].as_u64().unwrap();
        let root = 1;
        assert_eq!(names("directories") + names("files") + names("others"), things.len() as u64 + root);
        let mut found: BTreeMap<PathBuf, String> = BTreeMap::new();
        for line in &lines {
            let path = line["path"].as_str().unwrap();
            let path = if by_url { volume.at(path.trim_start_matches('/')) } else { path.into() };
            found.insert(path.components().collect(), line["rights"].as_str().unwrap().to_owned());
        }
        for (path, thing) in &things {
            let rights = found.get(path);
            let has = |letter: char| rights.is_some_and(|rights| rights.contains(letter));
            // A directory may be reachable although its attributes are not; readlinkat needs only search
            // permission.
            let attempted = as_cred(&cred, || rustix::fs::readlinkat(CWD, path, Vec::new()).map(drop));
            assert_eq!(
                rights.is_some(),
                attempted != Err(Errno::ACCESS),
                "{path:?} {cred:?} {rights:?} {attempted:?}"
            );
            reached += u32::from(rights.is_some());
            let real = |what: Operation| attempt(&cred, path, what).is_ok();
            if thing.target.is_none() {
                for (letter, perm) in [('r', Perm::READ), ('x', Perm::EXECUTE)] {
                    assert_eq!(
                        has(letter),
                        real(Operation::Access(perm)),
                        "{letter} {path:?} {cred:?} {thing:?}"
                    );
                }
                if thing.is_dir {
                    let new = path.join("new");
                    let made = attempt(&cred, &new, Operation::Create);
                    assert_eq!(has('w') && has('x'), made.is_ok(), "create in {path:?} {cred:?} {thing:?}");
                    let _ = fs::remove_file(&new);
                } else {
                    assert_eq!(
                        has('w'),
                        real(Operation::Access(Perm::WRITE)),
                        "w {path:?} {cred:?} {thing:?}"
                    );
                }
                assert_eq!(has('o'), real(Operation::Chmod), "o {path:?} {cred:?} {thing:?}");
                thing.restore(path);
            }
            if *path != top {
                let attempted = attempt(&cred, path, Operation::Delete);
                assert_eq!(has('d'), attempted.is_ok(), "d {path:?} {cred:?} {thing:?} {attempted:?}");
                thing.restore(path);
                removed += u32::from(attempted.is_ok());
            }
        }
    }
    eprintln!("{reached} names reached, {removed} removed");
    assert!(reached > 0 && removed > 0);
}

#[test]
fn listings_show_nfs4_acls() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let dir = volume.at("d");
    fs::create_dir(&dir).unwrap();
    for name in ["named", "plain"] {
        fs::write(dir.join(name), "").unwrap();
        fs::set_permissions(dir.join(name), Permissions::from_mode(0o640)).unwrap();
    }
    let text = "D::7001:w,A::7001:rwx,A:g:7002:r,A::OWNER@:rwatTnNcCoy,A::EVERYONE@:tcy";
    wire::set(&dir.join("named"), text).unwrap();
    let inherited = "A:fd:7001:rx,A:fdig:7002:r,A::OWNER@:rwaxdDtTnNcCoy,A::EVERYONE@:rx";
    wire::set(&dir, inherited).unwrap();
    let local = dir.to_str().unwrap().to_owned();
    for (target, above) in
        [(local.clone(), volume.place.mnt()), (format!("{}:/d", volume.place.url()), volume.place.url())]
    {
        let lines = json_lines(&limen(&["ls", "--json", &target]).ok());
        let of = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap();
        let entries = |line: &Value| -> String {
            let entries: Vec<&str> =
                line["access_acl"].as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).collect();
            entries.join(",")
        };
        assert_eq!(entries(of("named")), text, "{target}");
        assert_eq!(of("plain")["access_acl"], Value::Null, "{target}");
        assert_eq!(of("named")["default_acl"], Value::Null, "{target}");
        let long = limen(&["ls", "-l", &target]).ok();
        let line = |name: &str| long.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
        assert_eq!(line("named").split(' ').next().map(|mode| mode.ends_with('+')), Some(true), "{long}");
        assert!(line("plain").starts_with("-rw-r----- "), "{long}");
        let lines = json_lines(&limen(&["ls", "--json", &above]).ok());
        assert_eq!(entries(&lines[0]), wire::acl(inherited).to_storage(), "{above}");
    }
    let explained = limen(&[
        "access",
        "explain",
        &format!("{local}/named"),
        "--user",
        "7001",
        "--groups",
        "7001",
        "--want",
        "w",
    ]);
    assert_eq!(explained.code, Some(1), "{explained:?}");
    assert!(explained.out.contains("D::7001:w") && explained.out.contains("EACCES"), "{explained:?}");
}
