//! `limen ls` and `limen access` against the kernel's results on real mounts.
//!
//! The trees have random owners, groups, modes and ACLs, and random users open, stat, create and remove. The
//! result of each call must equal the explanation. The seed is printed, and `ACCESS_SEED=...` replays it.

mod common;
mod harness;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use acl::posix::PosixAcl;
use common::{LIMEN, json_lines, limen};
use engine_sqlite::{Options, SqliteEngine};
use harness::{Mounted, Random, as_cred, errno, random_cred};
use inspect::{LocalTree, Operation, PathChecks, VolumeTree};
use meta::AclKind;
use rustix::fs::{Access, AtFlags, CWD, XattrFlags, accessat, setxattr, utimensat};
use rustix::io::Errno;
use serde_json::Value;
use types::Cred;

const ACCESS_ACL: &str = "system.posix_acl_access";

/// IDs begin here, so that they do not belong to real users of this machine.
const FIRST_ID: u32 = 7000;
const IDS: u64 = 6;
/// The user with the last id owns no file, and no ACL names it.
const CALLERS: Range<u32> = FIRST_ID..FIRST_ID + IDS as u32 + 1;

fn id(random: &mut Random) -> u32 {
    // Root in one of twelve cases.
    if random.below(12) == 0 { 0 } else { FIRST_ID + random.below(IDS) as u32 }
}

fn mode(random: &mut Random, is_dir: bool) -> u32 {
    let rwx = match random.below(4) {
        0 => 0o777,
        1 => 0o755,
        _ => random.below(0o1000) as u32 | if is_dir { 0o111 & random.below(0o1000) as u32 } else { 0 },
    };
    rwx | if is_dir && random.below(3) == 0 { 0o1000 } else { 0 }
}

fn posix_acl(random: &mut Random) -> PosixAcl {
    let perm = |random: &mut Random| acl::posix::Perm::new((random.below(8) | random.below(8)) as u32);
    let mut text = format!("u::{},g::{},o::{}", perm(random), perm(random), perm(random));
    let mut named = BTreeMap::new();
    for _ in 0..random.below(4) {
        let letter = if random.below(2) == 0 { 'u' } else { 'g' };
        let (id, granted) = (FIRST_ID + random.below(IDS) as u32, perm(random));
        named.insert((letter, id), granted);
    }
    for ((letter, id), granted) in named {
        text.push_str(&format!(",{letter}:{id}:{granted}"));
    }
    text.push_str(&format!(",m::{}", perm(random)));
    PosixAcl::from_text(&text).unwrap()
}

/// A random tree; returns all paths in it, the top first.
fn tree(top: PathBuf, random: &mut Random, names: usize) -> Vec<PathBuf> {
    let mut dirs = vec![top.clone()];
    let mut all = vec![top];
    for number in 0..names {
        let parent = dirs[random.below(dirs.len() as u64) as usize].clone();
        let path = parent.join(format!("n{number}"));
        match random.below(9) {
            0..4 => {
                DirBuilder::new().mode(0o700).create(&path).unwrap();
                dirs.push(path.clone());
            }
            4 => {
                let target = &all[random.below(all.len() as u64) as usize];
                symlink(target, &path).unwrap();
            }
            _ => drop(OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap()),
        }
        all.push(path);
    }
    // Go from the bottom up, so that the permissions of a directory are set after its entries were changed.
    for path in all.iter().rev() {
        let metadata = fs::symlink_metadata(path).unwrap();
        let (uid, gid) = (id(random), id(random));
        if metadata.is_symlink() {
            lchown(path, Some(uid), Some(gid)).unwrap();
            continue;
        }
        chown(path, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode(random, metadata.is_dir()))).unwrap();
        if random.below(2) == 0 {
            setxattr(path, ACCESS_ACL, &posix_acl(random).to_xattr(), XattrFlags::empty()).unwrap();
        }
    }
    all
}

/// Makes the call as this user. If it creates a file, root removes the file afterwards.
fn real_outcome(cred: &Cred, path: &Path, want: Operation) -> Result<(), Errno> {
    let done = as_cred(cred, || -> Result<(), Errno> {
        let from_io = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
        match want {
            Operation::Access(perm) => {
                let mut access = Access::empty();
                access.set(Access::READ_OK, perm.bits() & 4 != 0);
                access.set(Access::WRITE_OK, perm.bits() & 2 != 0);
                access.set(Access::EXEC_OK, perm.bits() & 1 != 0);
                let allowed = accessat(CWD, path, access, AtFlags::EACCESS);
                let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
                if is_file && perm.bits() & 6 != 0 && perm.bits() & 1 == 0 {
                    let opened = OpenOptions::new()
                        .read(perm.bits() & 4 != 0)
                        .write(perm.bits() & 2 != 0)
                        .open(path)
                        .map(drop)
                        .map_err(from_io);
                    assert_eq!(opened, allowed, "{path:?} {perm}");
                }
                allowed
            }
            Operation::Stat => fs::metadata(path).map(drop).map_err(from_io),
            Operation::Create => {
                OpenOptions::new().write(true).create_new(true).open(path).map(drop).map_err(from_io)
            }
            Operation::Delete => match fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_dir() => fs::remove_dir(path).map_err(from_io),
                _ => fs::remove_file(path).map_err(from_io),
            },
            Operation::Chmod => {
                let mode = fs::metadata(path).map_err(from_io)?.permissions();
                fs::set_permissions(path, mode).map_err(from_io)
            }
            Operation::Chown => chown(path, Some(cred.uid ^ 1), None).map_err(from_io),
            Operation::SetTimes => {
                let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
                utimensat(
                    CWD,
                    path,
                    &rustix::fs::Timestamps { last_access: now, last_modification: now },
                    AtFlags::empty(),
                )
            }
        }
    });
    if done.is_ok() && want == Operation::Create {
        fs::remove_file(path).unwrap();
    }
    done
}

/// A file's state, to recreate it after its removal.
struct Kept {
    path: PathBuf,
    metadata: fs::Metadata,
    target: Option<PathBuf>,
    acl: Option<Vec<u8>>,
}

impl Kept {
    fn of(path: &Path) -> Self {
        let metadata = fs::symlink_metadata(path).unwrap();
        let mut value = vec![0; 4096];
        let acl = rustix::fs::lgetxattr(path, ACCESS_ACL, value.as_mut_slice()).ok();
        let acl = acl.filter(|_| !metadata.is_symlink()).map(|length| value[..length].to_vec());
        Kept { path: path.to_owned(), target: fs::read_link(path).ok(), metadata, acl }
    }

    fn restore(&self) {
        use std::os::unix::fs::MetadataExt;
        if fs::symlink_metadata(&self.path).is_err() {
            match &self.target {
                Some(target) => symlink(target, &self.path).unwrap(),
                None if self.metadata.is_dir() => fs::create_dir(&self.path).unwrap(),
                None => drop(fs::File::create(&self.path).unwrap()),
            }
        }
        lchown(&self.path, Some(self.metadata.uid()), Some(self.metadata.gid())).unwrap();
        if self.target.is_none() {
            fs::set_permissions(&self.path, self.metadata.permissions()).unwrap();
            if let Some(acl) = &self.acl {
                setxattr(&self.path, ACCESS_ACL, acl, XattrFlags::empty()).unwrap();
            }
        }
    }
}

fn random_operation(random: &mut Random) -> Operation {
    match random.below(12) {
        0 => Operation::Stat,
        1 | 2 => Operation::Create,
        3..6 => Operation::Delete,
        6 => Operation::Chmod,
        7 => Operation::Chown,
        8 => Operation::SetTimes,
        _ => Operation::Access(acl::posix::Perm::new(1 + random.below(7) as u32)),
    }
}

#[test]
fn explanation_matches_the_result() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let mut random = Random::seeded("ACCESS_SEED");
    let (mut asked, mut granted) = (0, 0);
    for round in 0..4 {
        let top = volume.at(&format!("round{round}"));
        fs::create_dir(&top).unwrap();
        fs::set_permissions(volume.at(""), Permissions::from_mode(0o755)).unwrap();
        let all = tree(top.clone(), &mut random, 40);
        for _ in 0..400 {
            let want = random_operation(&mut random);
            let mut path = all[random.below(all.len() as u64) as usize].clone();
            if want == Operation::Create || random.below(20) == 0 {
                path = path.join("new");
            }
            if want == Operation::Delete && path == top {
                continue;
            }
            let cred = random_cred(&mut random, CALLERS);
            let path_checks =
                PathChecks::find(&LocalTree::default(), path.as_os_str().as_bytes(), want).unwrap();
            let explained = errno(&path_checks.explain(&cred));
            let kept: Vec<Kept> = [path.clone(), fs::canonicalize(&path).unwrap_or(path.clone())]
                .iter()
                .filter(|path| fs::symlink_metadata(path).is_ok())
                .map(|path| Kept::of(path))
                .collect();
            let real = real_outcome(&cred, &path, want);
            kept.iter().rev().for_each(Kept::restore);
            // The permission checks come before the check that the directory is empty, so they have passed.
            let real = if real == Err(Errno::NOTEMPTY) { Ok(()) } else { real };
            assert_eq!(explained, real, "{want} {path:?} {cred:?} {path_checks:#?}");
            asked += 1;
            granted += u32::from(real.is_ok());
        }
    }
    eprintln!("{asked} requests, {granted} of them granted");
    assert!(granted > asked / 10 && granted < asked * 9 / 10, "{granted} of {asked}");
}

#[test]
fn volume_and_mount_give_the_same_explanation() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let mut random = Random::seeded("ACCESS_SEED");
    fs::set_permissions(volume.at(""), Permissions::from_mode(0o755)).unwrap();
    let all = tree(volume.at(""), &mut random, 60);
    volume.commit_answered();
    let engine = SqliteEngine::open(&volume.place.path("vol.db"), &Options::default()).unwrap();
    let tree = VolumeTree::new(&engine, AclKind::Posix);
    let top = volume.at("");
    let mut compared = 0;
    for _ in 0..600 {
        let want = random_operation(&mut random);
        let path = &all[random.below(all.len() as u64) as usize];
        let inside = path.strip_prefix(&top).unwrap();
        let cred = random_cred(&mut random, CALLERS);
        // Symbolic links in this tree are absolute, so they lead out of the volume.
        let Ok(path_checks) = PathChecks::find(&tree, &[b"/", inside.as_os_str().as_bytes()].concat(), want)
        else {
            continue;
        };
        let local = PathChecks::find(&LocalTree::default(), path.as_os_str().as_bytes(), want).unwrap();
        if path == &top {
            continue;
        }
        compared += 1;
        assert_eq!(
            errno(&path_checks.explain(&cred)),
            errno(&local.explain(&cred)),
            "{want} {path:?} {cred:?}"
        );
    }
    assert!(compared > 200, "{compared}");
}

#[test]
fn audit_matches_access_of_every_name() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let mut random = Random::seeded("ACCESS_SEED");
    let all = tree(volume.at(""), &mut random, 80);
    for by_url in [true, false] {
        let cred = loop {
            let cred = random_cred(&mut random, CALLERS);
            if cred.uid != 0 {
                break cred;
            }
        };
        let groups: Vec<String> = [cred.gid].iter().chain(cred.groups()).map(ToString::to_string).collect();
        let (url, mnt) = (volume.place.url(), volume.place.mnt());
        let target = if by_url { &url } else { &mnt };
        let (uid, groups) = (cred.uid.to_string(), groups.join(","));
        let args = ["access", "audit", target, "--user", &uid, "--groups", &groups, "--list", "--json"];
        let mut lines = json_lines(&limen(&args).ok());
        let sums = lines.pop().unwrap();
        let mut found: BTreeMap<PathBuf, String> = BTreeMap::new();
        for line in lines {
            let path = line["path"].as_str().unwrap();
            let path = if by_url { volume.at(path.trim_start_matches('/')) } else { path.into() };
            found.insert(path.components().collect(), line["rights"].as_str().unwrap()[..3].to_owned());
        }
        // The directories above the mount point are open to everybody.
        let expected: BTreeMap<PathBuf, String> = as_cred(&cred, || {
            let may = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
            let of = |path: &PathBuf| {
                let metadata = fs::symlink_metadata(path).ok()?;
                let rights = [(Access::READ_OK, 'r'), (Access::WRITE_OK, 'w'), (Access::EXEC_OK, 'x')]
                    .map(|(access, letter)| if may(path, access) { letter } else { '-' });
                let rights = if metadata.is_symlink() { ['-'; 3] } else { rights };
                Some((path.components().collect(), rights.into_iter().collect()))
            };
            all.iter().filter_map(of).collect()
        });
        assert_eq!(found, expected, "{cred:?}");
        let names = |kind: &str| sums["totals"][kind]["names"].as_u64().unwrap();
        assert_eq!(names("directories") + names("files") + names("others"), all.len() as u64);
    }
}

/// The result of `limen` run as another user.
fn limen_as(volume: &Mounted, uid: u32, args: &[&str]) -> common::Said {
    let id = uid.to_string();
    // Other users may have no access to the build directory, so they run a copy.
    let program = volume.place.path("limen");
    if !program.exists() {
        fs::copy(LIMEN, &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let command = ["--reuid", &id, "--regid", &id, "--clear-groups", program.to_str().unwrap()];
    Command::new("setpriv").args(command).args(args).output().unwrap().into()
}

#[test]
fn ls_shows_what_the_caller_may_see() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let dir = volume.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "12345").unwrap();
    fs::write(dir.join(".hidden"), "").unwrap();
    fs::write(dir.join("odd\nname\u{1b}[2J"), "").unwrap();
    symlink("file", dir.join("link")).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/below"), "").unwrap();
    let acl = PosixAcl::from_text("u::rw-,u:7001:r--,g::r--,m::r--,o::---").unwrap();
    setxattr(dir.join("file"), ACCESS_ACL, &acl.to_xattr(), XattrFlags::empty()).unwrap();
    chown(dir.join("file"), Some(7002), Some(7003)).unwrap();

    let (local, url) = (dir.to_str().unwrap().to_owned(), format!("{}:/d", volume.place.url()));
    for target in [&local, &url] {
        assert_eq!(limen(&["ls", target]).ok(), "file\nlink\nodd\\nname\\u{1b}[2J\nsub\n");
        assert_eq!(limen(&["ls", "-a", target]).ok().lines().next(), Some(".hidden"));
        let long = limen(&["ls", "-l", target]).ok();
        let file = long.lines().find(|line| line.ends_with(" file")).unwrap();
        assert!(file.starts_with("-rw-r-----+ 1 7002"), "{long}");
        assert!(file.contains(" 7003 ") && file.contains(" 5 "), "{long}");
        assert!(long.contains("lrwxrwxrwx ") && long.contains(" link -> file\n"), "{long}");
        let tree = limen(&["ls", "-R", target]).ok();
        assert!(tree.ends_with("/d/sub:\nbelow\n") && tree.contains("/d:\nfile\n"), "{tree}");
        let lines = json_lines(&limen(&["ls", "-R", "--json", target]).ok());
        assert_eq!(lines.len(), 6);
        let file = lines.iter().find(|line| line["name"] == "file").unwrap();
        let entries: Vec<&str> =
            file["access_acl"].as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).collect();
        assert_eq!(entries.join(","), acl.to_string());
        assert_eq!((&file["uid"], &file["mode"]), (&7002.into(), &"0640".into()));
        let file = format!("{target}/file");
        assert!(limen(&["ls", "-l", &file]).ok().starts_with("-rw-r-----+ 1 7002"));
        limen(&["ls", &format!("{target}/none")]).failed(2, &["cannot access", "none", "No such file"]);
    }
    // A listing by path and a listing by URL agree, except for the beginning of the path.
    let without_path = |target: &str| {
        let mut lines = json_lines(&limen(&["ls", "-R", "--json", target]).ok());
        lines.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("path")));
        lines
    };
    assert_eq!(without_path(&local), without_path(&url));

    // Another user sees what the kernel permits: both ways of listing leave the check to the kernel.
    let mode = |bits: u32| fs::set_permissions(&dir, Permissions::from_mode(bits)).unwrap();
    mode(0o755);
    assert_eq!(limen_as(&volume, 7009, &["ls", &local]).ok(), "file\nlink\nodd\\nname\\u{1b}[2J\nsub\n");
    mode(0o711);
    limen_as(&volume, 7009, &["ls", &local]).failed(2, &["cannot open directory", "Permission denied"]);
    mode(0o744);
    let said = limen_as(&volume, 7009, &["ls", "-l", &local]);
    said.failed(1, &["cannot access"]);
    assert!(said.out.contains("????????? ? ? ? ? ? file"), "{said:?}");
    mode(0o700);
    limen_as(&volume, 7009, &["ls", "-R", &local]).failed(2, &["Permission denied"]);
    limen_as(&volume, 7009, &["ls", &url]).failed(2, &["limen: "]);
    mode(0o755);
    fs::set_permissions(dir.join("sub"), Permissions::from_mode(0o700)).unwrap();
    let said = limen_as(&volume, 7009, &["ls", "-R", &local]);
    said.failed(1, &["cannot open directory", "sub"]);
    assert!(said.out.contains("file\n"), "{said:?}");
}

#[test]
fn access_commands_print_their_findings() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let dir = volume.at("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "").unwrap();
    fs::set_permissions(dir.join("f"), Permissions::from_mode(0o640)).unwrap();
    let acl = PosixAcl::from_text("u::rw-,u:7001:rw-,g::r--,g:7050:r--,m::r--,o::---").unwrap();
    setxattr(dir.join("f"), ACCESS_ACL, &acl.to_xattr(), XattrFlags::empty()).unwrap();
    let url = volume.place.url();
    let (local, in_volume) = (dir.join("f").to_str().unwrap().to_owned(), format!("{url}:/d/f"));
    for target in [&local, &in_volume] {
        let explain = |more: &[&str]| limen(&[&["access", "explain", target], more].concat());
        let said = explain(&["--user", "7001", "--groups", "7001", "--want", "rw"]);
        assert_eq!(said.code, Some(1), "{said:?}");
        for part in ["denied:", "user:7001:rw- under mask::r--", "EACCES", "other::r-x"] {
            assert!(said.out.contains(part), "{part}: {said:?}");
        }
        assert!(explain(&["--user", "7001", "--groups", "7001"]).ok().starts_with("granted:"));
        assert!(explain(&["--want", "rw"]).ok().contains("u"), "root is the user by default");
        let json = explain(&["--user", "7002", "--groups", "7002,7050", "--json"]).ok();
        let json: Value = serde_json::from_str(&json).unwrap();
        let last = json["checks"].as_array().unwrap().last().unwrap();
        assert_eq!((&json["granted"], &last["by"]["entry"]), (&true.into(), &"g:7050:r--".into()));
        let said = explain(&["--user", "7002", "--groups", "7002", "--want", "delete"]);
        assert_eq!(said.code, Some(1), "{said:?}");
        explain(&["--user", "7001"]).failed(2, &["--groups"]);
        explain(&["--user", "no such user"]).failed(2, &["no user"]);
        explain(&["--want", "fly"]).failed(2, &["unknown access type"]);

        let audit_who = |more: &[&str]| limen(&[&["access", "audit", "--who", target], more].concat()).ok();
        let text = audit_who(&[]);
        assert!(text.contains("7001") && text.contains("r--  user:7001:rw- under mask::r--"), "{text}");
        let json: Value = serde_json::from_str(&audit_who(&["--json"])).unwrap();
        let users = json["users"].as_array().unwrap();
        let of = |uid: u32| users.iter().find(|user| user["uid"] == uid).unwrap();
        assert_eq!((&of(7001)["rights"], &of(0)["rights"]), (&"r--".into(), &"rw-".into()));
        let change = format!("setfacl -x u:7001 {target}");
        let text = audit_who(&["--what-if", &change]);
        assert!(text.contains("r--    -> ---"), "{text}");
    }
    let nobody = ["--user", "7009", "--groups", "7009"];
    let said = limen(&[&["access", "explain", &format!("{url}:/d/none")], &nobody[..]].concat());
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("the name does not exist"), "{said:?}");

    let audit = |more: &[&str]| limen(&[&["access", "audit", &url], more].concat());
    let text = audit(&nobody).ok();
    let files = text.lines().find(|line| line.starts_with("files ")).unwrap();
    let figures: Vec<&str> = files.split_whitespace().skip(1).collect();
    assert_eq!(figures, ["1", "1", "0", "0", "0", "0", "0"], "{text}");
    let text = audit(&[&nobody[..], &["--list", "--what-if", "setfacl -m o::r /d/f"]].concat()).ok();
    assert!(
        text.contains("- -----  -> r----   /d/f\n") && text.contains("Access to 1 name is gained"),
        "{text}"
    );
    let csv = audit(&[&nobody[..], &["--list", "--csv"]].concat()).ok();
    assert_eq!(
        csv,
        "path,type,reached,rights\n\"/\",directory,1,r-x--\n\"/d\",directory,1,r-x--\n\"/d/f\",file,1,-----\n"
    );
    let sums: Value = serde_json::from_str(&audit(&[&nobody[..], &["--json"]].concat()).ok()).unwrap();
    assert_eq!(sums["totals"]["directories"]["reached"], 2);
    let joined = audit(&["--what-if", "add user root to group 7050"]).ok();
    assert!(joined.contains("Access to 0 names is gained"), "{joined}");

    audit(&[]).failed(2, &["--user"]);
    audit(&[&nobody[..], &["--what-if", "rm -rf /"]].concat()).failed(2, &["unknown change"]);
    audit(&[&nobody[..], &["--what-if", "chmod 700 /none"]].concat()).failed(2, &["No such file"]);
    limen(&[&["access", "audit", &in_volume], &nobody[..]].concat()).failed(2, &["not a directory"]);
    limen(&[&["access", "audit", "/proc"], &nobody[..]].concat()).failed(2, &["not on a limenfs volume"]);
    limen(&["access", "audit", &url, "--who", "/d/none"]).failed(2, &["No such file"]);
}
