//! Compares the rules of this crate with those of the running kernel, on a private tmpfs without a mount
//! point, which disappears with the test. Needs root.
//!
//! Every run takes a new seed and prints it; `ACL_SEED=...` replays one.

mod common;

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use acl::cache::{self, DecisionCache};
use acl::credential::{Credential, Credentials};
use acl::evaluate::Denial;
use acl::posix::{self, AclError, FileAttrs, Perm, PosixAcl, inherit, permits, set_access};
use common::{Rng, cases, cred, posix_acl};
use rustix::fs::{self, AtFlags, FileType as RawType, Mode as RawMode, OFlags, XattrFlags};
use rustix::io::Errno as RawErrno;
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::{self, CapabilitySet, CapabilitySets, Gid, Uid};
use types::{AclId, Caps, Cred, Errno, FileType, Mode};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

#[test]
fn checks_agree() {
    let Some((dir, mut rng)) = setup("checks_agree") else { return };
    let (credentials, cache) = (Credentials::new(1 << 20), DecisionCache::new(1 << 12));
    let (mut asked, mut round) = (0, 0);
    let goal = cases(30_000);
    while asked < goal {
        // With few ids, callers and entries match often; with many, lists are long.
        let ids = if round % 5 == 4 { 800 } else { 10 };
        round += 1;
        let inodes: Vec<Subject> =
            (0..48).map(|index| subject(&dir, format!("{round}-{index}"), ids, &mut rng)).collect();
        for _ in 0..20 {
            let cred = cred(ids, &some_caps(), &mut rng);
            let answers = run_as(&cred, || inodes.iter().map(|inode| ask(&dir, inode)).collect::<Vec<_>>());
            for (subject, answers) in inodes.iter().zip(answers) {
                let inode = FileAttrs {
                    uid: subject.uid,
                    gid: subject.gid,
                    mode: subject.mode,
                    is_dir: subject.is_dir,
                    acl: subject.acl.as_ref(),
                };
                let compiled = subject.acl.clone().map(|acl| Arc::new(posix::Compiled::new(acl)));
                let cached = cached(&cache, &credentials.intern(&cred, &[]), subject, compiled);
                for (how, want, kernel) in answers {
                    asked += 1;
                    if cred.caps == Caps::NONE {
                        let refused = (!cached.allows(want)).then_some(Errno::EACCES);
                        assert_eq!(refused, kernel, "cached: {} {how} {want} {cred:?} {inode:?}", rng.name());
                    }
                    let ours = permits(&cred, want, &inode).err().map(Denial::errno);
                    assert_eq!(ours, kernel, "{} {how} {want} {cred:?} {inode:?}", rng.name());
                }
            }
        }
    }
    eprintln!("checks_agree: {asked} decisions compared, {} of them not cached", cache.misses());
}

/// The decision by the compiled ACL, and the same decision from the cache.
fn cached(
    cache: &DecisionCache,
    caller: &Credential,
    subject: &Subject,
    compiled: Option<Arc<posix::Compiled>>,
) -> posix::Decision {
    let inode = cache::FileAttrs {
        uid: subject.uid,
        gid: subject.gid,
        mode: subject.mode,
        is_dir: subject.is_dir,
        acl: compiled.as_ref().map_or(AclId::NONE, |compiled| compiled.id()),
        sid_rules: 0,
    };
    let first = cache.posix(caller, &inode, || Ok::<_, Infallible>(compiled.unwrap())).unwrap();
    let again = cache.posix(caller, &inode, || -> Result<_, Infallible> { unreachable!("cached") }).unwrap();
    assert_eq!(first, again);
    first
}

#[test]
fn setting_and_removing_an_acl_agree() {
    let Some((dir, mut rng)) = setup("setting_and_removing_an_acl_agree") else { return };
    for index in 0..600 {
        let before = subject(&dir, index.to_string(), 10, &mut rng);
        let caps = rng.pick(&[Caps::NONE, Caps::FSETID]);
        let caller = Cred::new(before.uid, rng.below(10), &[rng.below(10), rng.below(10)], caps);
        let new = if rng.one_in(5) { None } else { Some(posix_acl(10, &mut rng)) };
        // Root opens the file, because its owner may not have permission to do so.
        let fd = open(&dir, &before.name);
        run_as(&caller, || match &new {
            Some(acl) => fs::fsetxattr(&fd, ACCESS, &shuffled(acl), XattrFlags::empty()),
            None => fs::fremovexattr(&fd, ACCESS),
        })
        .unwrap();
        let kill_sgid = !caller.in_group(before.gid) && !caller.caps.has(Caps::FSETID);
        let ours = set_access(before.mode, new.clone(), kill_sgid);
        assert_eq!(ours, (mode(&fd), get(&fd, ACCESS)), "{} {before:?} {caller:?} {new:?}", rng.name());
    }
}

#[test]
fn inheritance_agrees() {
    let Some((dir, mut rng)) = setup("inheritance_agrees") else { return };
    for index in 0..600 {
        let parent = format!("parent-{index}");
        fs::mkdirat(&dir, &parent, RawMode::RWXU).unwrap();
        let parent = open(&dir, &parent);
        let default = if rng.one_in(6) { None } else { Some(posix_acl(10, &mut rng)) };
        if let Some(acl) = &default {
            fs::fsetxattr(&parent, DEFAULT, &shuffled(acl), XattrFlags::empty()).unwrap();
        }
        assert_eq!(get(&parent, DEFAULT), default, "{}", rng.name());
        assert_eq!(get(&parent, ACCESS), None, "{}", rng.name());

        let umask = rng.pick(&[0, 0o022, 0o027, 0o077, 0o777, 0o137]);
        let asked = Mode::new(rng.below(0o10000));
        let raw = RawMode::from_raw_mode(asked.bits());
        // The umask belongs to the process. It does not disturb other tests: they set every mode by fchmod.
        let old_umask = rustix::process::umask(RawMode::from_raw_mode(umask));
        fs::openat(&parent, "file", OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, raw).unwrap();
        fs::mknodat(&parent, "fifo", RawType::Fifo, raw, 0).unwrap();
        fs::mkdirat(&parent, "dir", raw).unwrap();
        fs::symlinkat("target", &parent, "link").unwrap();
        rustix::process::umask(old_umask);

        for (name, file_type, asked) in [
            ("file", FileType::Regular, asked),
            ("fifo", FileType::Fifo, asked),
            // mkdir(2) drops SUID and SGID before it applies ACLs.
            ("dir", FileType::Directory, asked.without(Mode::SUID | Mode::SGID)),
        ] {
            let child = open(&parent, name);
            let ours = inherit(default.as_ref(), asked, umask, file_type);
            let context = format!("{} {name} {asked:?} {umask:o} {default:?}", rng.name());
            assert_eq!(ours.mode, mode(&child), "{context}");
            assert_eq!(ours.access, get(&child, ACCESS), "{context}");
            let kernel_default = if file_type.is_dir() { get(&child, DEFAULT) } else { None };
            assert_eq!(ours.default, kernel_default, "{context}");
        }
        let link = fs::statat(&parent, "link", AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let ours = inherit(default.as_ref(), Mode::new(0o777), umask, FileType::Symlink);
        assert_eq!(ours.mode, Mode::new(link.st_mode));
    }
}

#[test]
fn validity_agrees() {
    let Some((dir, mut rng)) = setup("validity_agrees") else { return };
    fs::mkdirat(&dir, "target", RawMode::RWXU).unwrap();
    let target = open(&dir, "target");
    let (mut valid, mut doubled) = (0, 0);
    for _ in 0..6000 {
        let value = spoiled(&posix_acl(6, &mut rng), &mut rng);
        let kernel = fs::fsetxattr(&target, DEFAULT, &value, XattrFlags::empty()).map_err(errno);
        let context = format!("{} {value:?}", rng.name());
        match PosixAcl::from_xattr(&value) {
            Ok(acl) => {
                valid += 1;
                assert_eq!(kernel, Ok(()), "{context}");
                assert_eq!(get(&target, DEFAULT), acl, "{context}");
            }
            // The one rule that is stricter in this crate: the same user or group named twice.
            Err(AclError::Duplicate) if kernel.is_ok() => {
                doubled += 1;
                let named = value[4..].chunks(8).filter(|entry| matches!(entry[0], 2 | 8));
                let mut seen = std::collections::HashSet::new();
                assert!(named.map(|entry| (entry[0], &entry[4..])).any(|key| !seen.insert(key)), "{context}");
            }
            Err(error) => assert_eq!(kernel, Err(Errno::from(error)), "{error} {context}"),
        }
    }
    assert!(valid > 500 && doubled > 10, "{valid} {doubled}");
}

/// A file or directory on the tmpfs, with its current mode and ACL according to this crate.
#[derive(Debug)]
struct Subject {
    name: String,
    uid: u32,
    gid: u32,
    is_dir: bool,
    mode: Mode,
    acl: Option<PosixAcl>,
}

/// Creates a file or directory with random owner, mode and ACL, sometimes followed by a chmod. Compares mode
/// and ACL after each step.
fn subject(dir: &OwnedFd, name: String, ids: u32, rng: &mut Rng) -> Subject {
    let (uid, gid, is_dir) = (rng.below(ids), rng.below(ids), rng.one_in(2));
    if is_dir {
        fs::mkdirat(dir, &name, RawMode::RWXU).unwrap();
    } else {
        fs::openat(dir, &name, OFlags::CREATE | OFlags::EXCL, RawMode::RWXU).unwrap();
    }
    let fd = open(dir, &name);
    fs::fchown(&fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).unwrap();
    let mut subject = Subject { name, uid, gid, is_dir, mode: random_mode(rng), acl: None };
    fs::fchmod(&fd, RawMode::from_raw_mode(subject.mode.bits())).unwrap();
    if !rng.one_in(6) {
        let acl = posix_acl(ids, rng);
        fs::fsetxattr(&fd, ACCESS, &shuffled(&acl), XattrFlags::empty()).unwrap();
        (subject.mode, subject.acl) = set_access(subject.mode, Some(acl), false);
        assert_eq!((subject.mode, &subject.acl), (mode(&fd), &get(&fd, ACCESS)), "{}", rng.name());
    }
    if rng.one_in(3) {
        subject.mode = random_mode(rng);
        fs::fchmod(&fd, RawMode::from_raw_mode(subject.mode.bits())).unwrap();
        subject.acl = subject.acl.map(|acl| acl.chmod(subject.mode));
        assert_eq!((subject.mode, &subject.acl), (mode(&fd), &get(&fd, ACCESS)), "{}", rng.name());
    }
    subject
}

/// Asks the kernel for every permission, as the calling thread, by `faccessat2` and by `open`.
fn ask(dir: &OwnedFd, subject: &Subject) -> Vec<(&'static str, Perm, Option<Errno>)> {
    let mut answers = Vec::new();
    for want in (1..8).map(Perm::new) {
        let access = fs::Access::from_bits_retain(want.bits());
        let answer = fs::accessat(dir, &subject.name, access, AtFlags::EACCESS);
        answers.push(("access", want, answer.err().map(errno)));
    }
    let opens = [
        (Perm::READ, OFlags::RDONLY),
        (Perm::WRITE, OFlags::WRONLY),
        (Perm::READ | Perm::WRITE, OFlags::RDWR),
    ];
    for (want, flags) in opens.into_iter().take(if subject.is_dir { 1 } else { 3 }) {
        let answer = fs::openat(dir, &subject.name, flags, RawMode::empty());
        answers.push(("open", want, answer.err().map(errno)));
    }
    answers
}

/// Runs `task` in a thread with these credentials. Credentials belong to a thread, not to the process, if the
/// system calls are made directly.
fn run_as<T: Send>(cred: &Cred, task: impl FnOnce() -> T + Send) -> T {
    let become_cred = || -> rustix::io::Result<()> {
        let groups: Vec<Gid> = cred.groups().iter().map(|&gid| Gid::from_raw(gid)).collect();
        let (uid, gid) = (Uid::from_raw(cred.uid), Gid::from_raw(cred.gid));
        let held = [
            (Caps::DAC_OVERRIDE, CapabilitySet::DAC_OVERRIDE),
            (Caps::DAC_READ_SEARCH, CapabilitySet::DAC_READ_SEARCH),
            (Caps::FSETID, CapabilitySet::FSETID),
        ];
        let caps = held
            .into_iter()
            .filter(|(ours, _)| cred.caps.has(*ours))
            .fold(CapabilitySet::empty(), |caps, (_, kernel)| caps | kernel);
        thread::set_keep_capabilities(true)?;
        thread::set_thread_groups(&groups)?;
        thread::set_thread_res_gid(gid, gid, gid)?;
        thread::set_thread_res_uid(uid, uid, uid)?;
        let sets = CapabilitySets { effective: caps, permitted: caps, inheritable: CapabilitySet::empty() };
        thread::set_capabilities(None, sets)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_cred().unwrap();
            task()
        });
        thread.join().unwrap()
    })
}

/// The capabilities of callers; mostly none.
fn some_caps() -> [Caps; 6] {
    let none = Caps::NONE;
    let (read, all) = (Caps::DAC_READ_SEARCH, Caps::DAC_OVERRIDE);
    [none, none, none, read, all, all | read]
}

fn random_mode(rng: &mut Rng) -> Mode {
    let mode = Mode::new(rng.below(0o10000));
    if rng.one_in(4) { mode.without(0o070) } else { mode }
}

/// The attribute with ids in descending order, which the kernel accepts and keeps.
fn shuffled(acl: &PosixAcl) -> Vec<u8> {
    let value = acl.to_xattr();
    let mut entries: Vec<&[u8]> = value[4..].chunks(8).collect();
    entries.reverse();
    entries.sort_by_key(|entry| entry[0]);
    [&value[..4], &entries.concat()].concat()
}

/// The attribute after up to three random faults.
fn spoiled(acl: &PosixAcl, rng: &mut Rng) -> Vec<u8> {
    let mut value = shuffled(acl);
    for _ in 0..rng.below(4) {
        let count = (value.len().saturating_sub(4) / 8) as u32;
        if count == 0 {
            break;
        }
        let at = 4 + 8 * rng.below(count) as usize;
        let other = 4 + 8 * rng.below(count) as usize;
        match rng.below(9) {
            0 => value[at] = rng.pick(&[0, 1, 2, 4, 8, 0x10, 0x20, 0x40]),
            1 => value[at + 1] = rng.below(2) as u8,
            2 => value[at + 2] = rng.below(16) as u8,
            3 => value[at + 4..at + 8].fill(0xff),
            4 => value[at + 4] = rng.below(6) as u8,
            5 => drop(value.drain(at..at + 8)),
            6 => {
                let again = value[at..at + 8].to_vec();
                value.splice(at..at, again);
            }
            7 => (0..8).for_each(|byte| value.swap(at + byte, other + byte)),
            _ => match rng.below(3) {
                0 => value.truncate(rng.below(value.len() as u32 + 1) as usize),
                1 => value[0] = rng.below(4) as u8,
                _ => value.truncate(4),
            },
        }
    }
    value
}

fn open(dir: &OwnedFd, name: &str) -> OwnedFd {
    // The open must not wait for the other end of a FIFO.
    fs::openat(dir, name, OFlags::RDONLY | OFlags::NONBLOCK, RawMode::empty()).unwrap()
}

fn mode(fd: &OwnedFd) -> Mode {
    Mode::new(fs::fstat(fd).unwrap().st_mode)
}

fn get(fd: &OwnedFd, name: &str) -> Option<PosixAcl> {
    let mut value = vec![0; 1 << 16];
    match fs::fgetxattr(fd, name, &mut value[..]) {
        Ok(length) => Some(PosixAcl::from_xattr(&value[..length]).unwrap().unwrap()),
        Err(RawErrno::NODATA) => None,
        Err(error) => panic!("getxattr {name}: {error}"),
    }
}

fn errno(raw: RawErrno) -> Errno {
    Errno::from_raw(raw.raw_os_error())
}

/// A private tmpfs, and the seed of this run. None, with a message, if the system does not allow this.
fn setup(test: &str) -> Option<(OwnedFd, Rng)> {
    if !skip::is_root() {
        return None;
    }
    let tmpfs = || -> rustix::io::Result<OwnedFd> {
        let context = mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_set_string(&context, "mode", "0755")?;
        mount::fsconfig_create(&context)?;
        let root =
            mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
        // fsmount returns an `O_PATH` descriptor, on which no attribute can be set.
        let root = fs::openat(&root, ".", OFlags::RDONLY | OFlags::DIRECTORY, RawMode::empty())?;
        let minimal = PosixAcl::from_text("u::rwx,g::r-x,o::r-x").unwrap().to_xattr();
        fs::fsetxattr(&root, ACCESS, &minimal, XattrFlags::empty())?;
        Ok(root)
    };
    match tmpfs() {
        Ok(root) => Some((root, Rng::new(test))),
        Err(error @ (RawErrno::PERM | RawErrno::NOSYS | RawErrno::OPNOTSUPP)) => {
            skip::unsupported(&format!("a tmpfs with ACLs: {error}"));
            None
        }
        Err(error) => panic!("creating a tmpfs: {error}"),
    }
}
