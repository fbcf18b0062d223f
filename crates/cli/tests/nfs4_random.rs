//! Random NFSv4 ACLs, callers and requests on a mount: the results match the decision by the entries in their
//! order.
//!
//! The seed is printed; `NFS4_SEED` replays it, `NFS4_ROUNDS` sets the number of rounds.

mod common;
mod harness;
mod wire;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use acl::nfs4::{
    self, Decision, FileAttrs, Mask, Nfs4Acl, Removal, Traversers, explain, may_open, may_remove, project_for,
};
use acl::posix::{self, Perm, PosixAcl};
use harness::{Mounted, Random, as_member};
use rustix::fs::{CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use types::{Caps, Cred, Mode};
use wire::{NFS4_ACL, random_acl, set_acl, value};

/// User and group IDs are 1 to this number, few enough to collide.
const IDS: u64 = 5;

/// The test's model of an inode.
#[derive(Debug)]
struct Thing {
    uid: u32,
    gid: u32,
    acl: Nfs4Acl,
    is_dir: bool,
}

impl Thing {
    fn random(random: &mut Random, is_dir: bool) -> Self {
        let count = random.below(6) + 1;
        let acl = random_acl(random, count, id);
        Thing { uid: id(random), gid: id(random), acl, is_dir }
    }

    /// Whether the ACL is equivalent to a mode; then only the mode is stored.
    fn is_plain(&self) -> bool {
        self.stored().is_trivial(self.is_dir)
    }

    fn stored(&self) -> Nfs4Acl {
        if self.is_dir { self.acl.clone() } else { self.acl.for_file() }
    }

    fn decide(&self, cred: &Cred) -> Decision {
        let acl = self.stored();
        let mode = Mode::new(acl.mode_bits());
        let acl = (!self.is_plain()).then_some(&acl);
        let inode = FileAttrs { uid: self.uid, gid: self.gid, mode, is_dir: self.is_dir, acl };
        let decision = nfs4::decide(cred, &[], &inode);
        for verdict in explain(cred, &[], &inode, Mask::ALL) {
            assert_eq!(verdict.granted, decision.granted.has(verdict.permission), "{verdict:?}");
        }
        decision
    }

    /// The mode and ACL that the kernel gets, and whether they are exact for search.
    fn shown(&self, holders: &Traversers) -> (u32, Option<PosixAcl>, bool) {
        let acl = self.stored();
        let mode = Mode::new(acl.mode_bits());
        let stored = (!self.is_plain()).then_some(&acl);
        match project_for(stored, mode, (self.uid, self.gid), self.is_dir, holders) {
            Some(shown) => (shown.rwx, shown.acl, shown.search_is_exact),
            None => (mode.rwx(), None, true),
        }
    }

    /// Whether the kernel's own check passes for these permissions.
    fn lets(&self, cred: &Cred, want: Perm, holders: &Traversers) -> bool {
        let (rwx, acl, _) = self.shown(holders);
        let (uid, gid, mode) = (self.uid, self.gid, Mode::new(rwx));
        let inode = posix::FileAttrs { uid, gid, mode, is_dir: self.is_dir, acl: acl.as_ref() };
        posix::permits(cred, want, &inode).is_ok()
    }

    fn apply(&self, path: &Path) {
        chown(path, Some(self.uid), Some(self.gid)).unwrap();
        set_acl(path, &self.acl).unwrap();
    }
}

fn id(random: &mut Random) -> u32 {
    random.below(IDS) as u32 + 1
}

/// A request: its name, whether it must succeed, and how to make it.
type Try<'a> = (&'static str, bool, Box<dyn Fn() -> io::Result<()> + Sync + 'a>);

fn attempts<'a>(dir: &Thing, file: &Thing, cred: &Cred, at: &'a Path, holders: &Traversers) -> Vec<Try<'a>> {
    let (of_dir, of_file) = (dir.decide(cred), file.decide(cred));
    let search = of_dir.allows(Mask::SEARCH) || holders.holds(cred);
    let open = |read, write, append| search && may_open(of_file.granted, read, write, append);
    let add = |mask| search && of_dir.allows(mask);
    let removal = Removal {
        parent: of_dir,
        target: of_file,
        parent_mode: Mode::new(0o755),
        parent_uid: dir.uid,
        target_uid: file.uid,
    };
    // The kernel requires `w` on the directory, whatever the file's ACL says, if the directory has no ACL or
    // if the caller owns the directory.
    let lets = dir.lets(cred, Perm::WRITE | Perm::EXECUTE, holders);
    let remove = search && lets && may_remove(cred.uid, cred.caps, &removal).is_ok();
    let opening = |read: bool, write: bool, append: bool| -> Box<dyn Fn() -> io::Result<()> + Sync + 'a> {
        Box::new(move || {
            OpenOptions::new().read(read).write(write).append(append).open(at.join("file")).map(drop)
        })
    };
    let times = search && of_file.granted.has_any(Mask::WRITE_DATA | Mask::WRITE_ATTRIBUTES);
    // The kernel allows the attempt only to the owner and to callers that may write.
    let touch = times && (cred.uid == file.uid || file.lets(cred, Perm::WRITE, holders));
    // If the projection of a directory is not exact for search, the kernel sends GETATTR for each caller,
    // which fails without search permission; so listing needs search too.
    let (.., is_exact) = dir.shown(holders);
    let list = of_dir.allows(Mask::LIST_DIRECTORY) && (is_exact || search);
    vec![
        ("stat", search, Box::new(move || fs::metadata(at.join("file")).map(drop))),
        ("list", list, Box::new(move || fs::read_dir(at).map(drop))),
        ("read", open(true, false, false), opening(true, false, false)),
        ("write", open(false, true, false), opening(false, true, false)),
        ("append", open(false, true, true), opening(false, false, true)),
        ("read and write", open(true, true, false), opening(true, true, false)),
        (
            "truncate",
            search && of_file.allows(Mask::WRITE_DATA),
            Box::new(move || OpenOptions::new().write(true).truncate(true).open(at.join("file")).map(drop)),
        ),
        (
            "touch",
            touch,
            Box::new(move || {
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                let times = Timestamps { last_access: now, last_modification: now };
                Ok(utimensat(CWD, at.join("file"), &times, rustix::fs::AtFlags::empty())?)
            }),
        ),
        (
            "see the ACL",
            search && of_file.allows(Mask::READ_ACL),
            Box::new(move || Ok(value(&at.join("file"), NFS4_ACL).map(drop)?)),
        ),
        (
            "set the ACL",
            search && of_file.allows(Mask::WRITE_ACL),
            Box::new({
                let acl = file.acl.clone();
                move || Ok(set_acl(&at.join("file"), &acl)?)
            }),
        ),
        (
            "create",
            add(Mask::ADD_FILE),
            Box::new(move || {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o600).open(at.join("new")).map(drop)
            }),
        ),
        ("mkdir", add(Mask::ADD_SUBDIRECTORY), Box::new(move || fs::create_dir(at.join("newdir")))),
        (
            "rename",
            remove && add(Mask::ADD_FILE),
            Box::new(move || {
                fs::rename(at.join("file"), at.join("moved"))?;
                fs::rename(at.join("moved"), at.join("file"))
            }),
        ),
        ("remove", remove, Box::new(move || fs::remove_file(at.join("file")))),
    ]
}

#[test]
fn results_match_the_acl_entries() {
    run(&[], &Traversers::default());
}

/// With only five IDs, callers with this user or group and callers without them both occur often.
#[test]
fn bypass_traverse_adds_search_and_nothing_else() {
    let options = ["--bypass-traverse", "u:2", "--bypass-traverse", "g:4"];
    run(&options, &Traversers::new(&[2], &[4]).unwrap());
}

fn run(options: &[&str], holders: &Traversers) {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    volume.remount_with(options);
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("NFS4_SEED").unwrap_or(clock) | 1;
    eprintln!("NFS4_SEED={seed}");
    let mut random = Random(seed);
    let (mut granted, mut refused) = (0, 0);
    for round in 0..number("NFS4_ROUNDS").unwrap_or(150) {
        let (dir, file) = (Thing::random(&mut random, true), Thing::random(&mut random, false));
        let at = volume.at(&format!("d{round}"));
        fs::create_dir(&at).unwrap();
        fs::write(at.join("file"), "text").unwrap();
        file.apply(&at.join("file"));
        dir.apply(&at);
        for _ in 0..3 {
            let groups: Vec<u32> = (0..random.below(4)).map(|_| id(&mut random)).collect();
            let (uid, gid) = (id(&mut random), id(&mut random));
            let cred = Cred::new(uid, gid, &groups, Caps::NONE);
            let tries = attempts(&dir, &file, &cred, &at, holders);
            as_member(uid, gid, &groups, || {
                for (what, allowed, attempt) in &tries {
                    let happened = attempt();
                    let shown =
                        || format!("seed {seed}, round {round}: {what} by {cred:?} with {dir:?} {file:?}");
                    assert_eq!(happened.is_ok(), *allowed, "{}: {happened:?}", shown());
                    if let Err(error) = happened {
                        let kind = error.raw_os_error();
                        assert!(matches!(kind, Some(1 | 13)), "{}: {error}", shown());
                    }
                }
            });
            for (_, allowed, _) in &tries {
                *(if *allowed { &mut granted } else { &mut refused }) += 1;
            }
            // Restores the directory and the file.
            if !at.join("file").exists() {
                fs::write(at.join("file"), "text").unwrap();
            }
            file.apply(&at.join("file"));
            let _ = (fs::remove_file(at.join("new")), fs::remove_dir(at.join("newdir")));
        }
    }
    eprintln!("{granted} granted, {refused} refused");
    let all = granted + refused;
    assert!(granted * 20 > all && refused * 20 > all, "{granted} of {all} were granted");
    assert!(fs::metadata(volume.at("")).unwrap().permissions().mode() & 0o777 == 0o755);
}
