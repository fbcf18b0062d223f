//! Malformed and unusual extended attributes through setxattr(2), as root: each fails with its errno and
//! changes nothing.

mod common;
mod harness;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use harness::{Mounted, NOBODY, Random, as_user, refused};
use rustix::fs::{XattrFlags, getxattr, getxattr_query, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Tags of linux/posix_acl.h.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

type Entry = (u16, u16, u32);

/// The format of linux/posix_acl_xattr.h: a version, then tag, permissions and ID of each entry,
/// little-endian.
fn acl(entries: &[Entry]) -> Vec<u8> {
    let entry =
        |(tag, perm, id): &Entry| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    [2u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

fn entries(acl: &[u8]) -> Vec<Entry> {
    let entry = |e: &[u8]| {
        let short = |at: usize| u16::from_le_bytes([e[at], e[at + 1]]);
        (short(0), short(2), u32::from_le_bytes([e[4], e[5], e[6], e[7]]))
    };
    acl[4..].chunks_exact(8).map(entry).collect()
}

/// An ACL of `count` entries, most of them named users.
fn large(count: usize) -> Vec<Entry> {
    let users = (0..count as u32 - 4).map(|id| (USER, 7, 100_000 + id));
    let rest = [(GROUP_OBJ, 5, NO_ID), (MASK, 7, NO_ID), (OTHER, 1, NO_ID)];
    [(USER_OBJ, 7, NO_ID)].into_iter().chain(users).chain(rest).collect()
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

/// Everything that a failed change must leave unchanged.
#[derive(Debug, PartialEq, Eq)]
struct State {
    acls: [Result<Vec<u8>, Errno>; 2],
    mode: u32,
    ctime: (i64, i64),
}

fn state(path: &Path) -> State {
    let found = fs::metadata(path).unwrap();
    let ctime = (found.ctime(), found.ctime_nsec());
    State { acls: [ACCESS, DEFAULT].map(|name| get(path, name)), mode: found.mode(), ctime }
}

#[test]
fn malformed_acls_are_refused_and_change_nothing() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let dir = volume.at("d");
    fs::create_dir(&dir).unwrap();
    let good = acl(&[
        (USER_OBJ, 7, NO_ID),
        (USER, 5, 1000),
        (GROUP_OBJ, 5, NO_ID),
        (GROUP, 1, 100),
        (MASK, 5, NO_ID),
        (OTHER, 0, NO_ID),
    ]);
    for name in [ACCESS, DEFAULT] {
        set(&dir, name, &good).unwrap();
    }
    let base = [(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 5, NO_ID)];
    let with = |extra: &[Entry]| {
        let mut all = [&base[..], extra].concat();
        all.sort_by_key(|entry| entry.0);
        acl(&all)
    };
    let version = |version: u32| [&version.to_le_bytes()[..], &acl(&base)[4..]].concat();
    let masked = (MASK, 7, NO_ID);
    let cases: &[(&str, Vec<u8>, Errno)] = &[
        ("one byte", vec![2], Errno::INVAL),
        ("half a header", vec![2, 0, 0], Errno::INVAL),
        ("half an entry", acl(&base)[..24].to_vec(), Errno::INVAL),
        ("a byte too many", [&acl(&base)[..], &[0]].concat(), Errno::INVAL),
        ("version 0", version(0), Errno::OPNOTSUPP),
        ("version 1", version(1), Errno::OPNOTSUPP),
        ("version 3", version(3), Errno::OPNOTSUPP),
        ("a version with another byte order", version(2u32.swap_bytes()), Errno::OPNOTSUPP),
        ("text", b"u::rwx,g::rx,o::rx".to_vec(), Errno::OPNOTSUPP),
        ("no owner", acl(&base[1..]), Errno::INVAL),
        ("no group", acl(&[base[0], base[2]]), Errno::INVAL),
        ("no other", acl(&base[..2]), Errno::INVAL),
        ("two owners", with(&[(USER_OBJ, 7, NO_ID)]), Errno::INVAL),
        ("two groups", with(&[(GROUP_OBJ, 7, NO_ID)]), Errno::INVAL),
        ("two masks", with(&[masked, masked]), Errno::INVAL),
        ("two others", with(&[(OTHER, 7, NO_ID)]), Errno::INVAL),
        ("a named user without a mask", with(&[(USER, 7, 1)]), Errno::INVAL),
        ("a named group without a mask", with(&[(GROUP, 7, 1)]), Errno::INVAL),
        ("the same user twice", with(&[(USER, 7, 1), (USER, 1, 1), masked]), Errno::INVAL),
        ("the same group twice", with(&[(GROUP, 7, 1), (GROUP, 7, 1), masked]), Errno::INVAL),
        ("a user with an invalid ID", with(&[(USER, 7, NO_ID), masked]), Errno::INVAL),
        ("a group with an invalid ID", with(&[(GROUP, 7, NO_ID), masked]), Errno::INVAL),
        ("tag 0", with(&[(0, 7, NO_ID)]), Errno::INVAL),
        ("an unknown tag", with(&[(0x40, 7, NO_ID)]), Errno::INVAL),
        ("two tags in one", with(&[(USER | GROUP, 7, 1), masked]), Errno::INVAL),
        ("a permission beyond rwx", acl(&[(USER_OBJ, 8, NO_ID), base[1], base[2]]), Errno::INVAL),
        ("all permission bits", with(&[(USER, !0, 1), masked]), Errno::INVAL),
        ("reverse order", acl(&[base[2], base[1], base[0]]), Errno::INVAL),
        ("groups before users", acl(&[base[0], base[1], (USER, 7, 1), masked, base[2]]), Errno::INVAL),
        ("the mask last", acl(&[base[0], (USER, 7, 1), base[1], base[2], masked]), Errno::INVAL),
        ("512 entries", acl(&large(512)), Errno::TOOBIG),
        ("8,191 entries, 64 KiB", acl(&large(8_191)), Errno::TOOBIG),
        ("more than any xattr", vec![2; 65_537], Errno::TOOBIG),
    ];
    let before = state(&dir);
    for (what, bytes, errno) in cases {
        for name in [ACCESS, DEFAULT] {
            assert_eq!(set(&dir, name, bytes), Err(*errno), "{what} as {name}");
            assert_eq!(state(&dir), before, "{what} as {name}");
        }
    }
    volume.remount();
    assert_eq!(state(&dir), before, "nothing was stored either");
    assert_eq!(get(&dir, ACCESS).unwrap(), good);

    // The maximum number of entries, and named users in any order.
    let most = acl(&large(511));
    set(&dir, ACCESS, &most).unwrap();
    set(&dir, DEFAULT, &most).unwrap();
    let mut shuffled = large(100);
    shuffled[1..97].reverse();
    volume.remount();
    assert_eq!((get(&dir, ACCESS), get(&dir, DEFAULT)), (Ok(most.clone()), Ok(most)));
    File::create(dir.join("heir")).unwrap();
    assert_eq!(entries(&get(&dir.join("heir"), ACCESS).unwrap()).len(), 511);
    set(&dir, ACCESS, &acl(&shuffled)).unwrap();
    assert_eq!(get(&dir, ACCESS), Ok(acl(&large(100))), "IDs are stored sorted");
    // An ACL is removed by setting an ACL without entries, or an empty value.
    set(&dir, ACCESS, &acl(&[])).unwrap();
    set(&dir, DEFAULT, b"").unwrap();
    assert_eq!((get(&dir, ACCESS), get(&dir, DEFAULT)), (Err(Errno::NODATA), Err(Errno::NODATA)));
    removexattr(&dir, ACCESS).unwrap();
    removexattr(&dir, DEFAULT).unwrap();
}

#[test]
fn acls_are_set_only_where_permitted() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let (file, link) = (volume.at("f"), volume.at("l"));
    fs::write(&file, "").unwrap();
    symlink("f", &link).unwrap();
    let value = acl(&[
        (USER_OBJ, 6, NO_ID),
        (USER, 4, 1),
        (GROUP_OBJ, 4, NO_ID),
        (MASK, 4, NO_ID),
        (OTHER, 4, NO_ID),
    ]);
    let before = state(&file);
    refused(set(&file, DEFAULT, &value), Errno::ACCESS);
    refused(lsetxattr(&link, ACCESS, &value, XattrFlags::empty()), Errno::OPNOTSUPP);
    as_user(NOBODY, NOBODY, || {
        refused(set(&file, ACCESS, &value), Errno::PERM);
        refused(removexattr(&file, ACCESS), Errno::PERM);
    });
    assert_eq!(state(&file), before);
}

/// A tmpfs next to the volume, for comparison.
struct Twin<'a>(&'a Path);

impl<'a> Twin<'a> {
    fn mount(path: &'a Path) -> Self {
        fs::create_dir(path).unwrap();
        assert!(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(path).status().unwrap().success());
        Twin(path)
    }
}

impl Drop for Twin<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// A random ACL. In four of six cases a random change is made to it, after which it may be malformed.
fn random_acl(random: &mut Random) -> Vec<u8> {
    let mut entry = |tag: u16, named: bool| -> Entry {
        let id = if named { random.below(40) as u32 } else { NO_ID };
        (tag, random.below(8) as u16, id)
    };
    let mut all = vec![entry(USER_OBJ, false), entry(GROUP_OBJ, false), entry(OTHER, false)];
    let extra = entry(0, true).2 % 5;
    for n in 0..extra {
        all.push(if n % 2 == 0 { entry(USER, true) } else { entry(GROUP, true) });
    }
    if extra > 0 || random.below(4) == 0 {
        all.push((MASK, random.below(8) as u16, NO_ID));
    }
    all.sort_by_key(|entry| entry.0);
    let mut bytes = acl(&all);
    match random.below(6) {
        0 => {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        1 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
        2 => {
            let (a, b) = (random.below(all.len() as u64) as usize, random.below(all.len() as u64) as usize);
            all.swap(a, b);
            bytes = acl(&all);
        }
        3 => {
            all.remove(random.below(all.len() as u64) as usize);
            bytes = acl(&all);
        }
        _ => {}
    }
    bytes
}

#[test]
fn random_acls_have_the_same_effect_as_on_tmpfs() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let twin_path = volume.place.path("twin");
    let twin = Twin::mount(&twin_path);
    let (here, there) = (volume.at("d"), twin.0.join("d"));
    for dir in [&here, &there] {
        fs::create_dir(dir).unwrap();
    }
    if let Err(errno) = set(&there, ACCESS, &acl(&[])) {
        skip::unsupported(&format!("ACLs of tmpfs: {errno}"));
        return;
    }
    // Two differences are documented in SEMANTICS.md: IDs are stored sorted, and a duplicate ID fails.
    let sorted = |value: Vec<u8>| {
        let mut all = entries(&value);
        all.sort_by_key(|(tag, _, id)| (*tag, *id));
        acl(&all)
    };
    let twice = |value: &[u8]| {
        let mut all: Vec<_> =
            entries(value).into_iter().filter(|entry| entry.0 & (USER | GROUP) != 0).collect();
        all.sort();
        all.windows(2).any(|pair| (pair[0].0, pair[0].2) == (pair[1].0, pair[1].2))
    };
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    let mut random = Random(0xac1);
    for round in 0..3_000 {
        let name = if random.below(3) == 0 { DEFAULT } else { ACCESS };
        let bytes = random_acl(&mut random);
        let well_formed = bytes.len() >= 4 && bytes.len() % 8 == 4;
        let mode = [0o755, 0o2750, 0o6711][random.below(3) as usize];
        let set_on = |dir: &Path| {
            fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
            set(dir, name, &bytes)
        };
        let (mine, theirs) = (set_on(&here), set_on(&there));
        let expected =
            if theirs.is_ok() && well_formed && twice(&bytes) { Err(Errno::INVAL) } else { theirs };
        assert_eq!(mine, expected, "round {round}: {name} {bytes:?}");
        if mine != theirs {
            // The twin accepted the ACL; copy the volume's state to it.
            let value = get(&here, name).unwrap_or_default();
            set(&there, name, &value).unwrap();
            fs::set_permissions(&there, fs::metadata(&here).unwrap().permissions()).unwrap();
        }
        let shape = |dir: &Path| {
            let acls = [ACCESS, DEFAULT].map(|name| get(dir, name).map(sorted));
            (acls, format!("{:o}", fs::metadata(dir).unwrap().mode()))
        };
        assert_eq!(shape(&here), shape(&there), "round {round}: {name} {bytes:?}");
        *outcomes.entry(format!("{mine:?}")).or_default() += 1;
    }
    println!("{outcomes:?}");
    assert!(outcomes.len() >= 3 && outcomes.values().all(|&count| count > 20), "{outcomes:?}");
}

#[test]
fn xattr_names_outside_the_namespaces_are_refused() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("f");
    fs::write(&path, "").unwrap();
    let cases = [
        ("", Errno::RANGE),
        ("plain", Errno::OPNOTSUPP),
        ("user", Errno::OPNOTSUPP),
        ("user.", Errno::INVAL),
        ("trusted.", Errno::INVAL),
        ("security.", Errno::INVAL),
        ("User.a", Errno::OPNOTSUPP),
        ("os2.a", Errno::OPNOTSUPP),
        ("system.", Errno::OPNOTSUPP),
        ("system.posix_acl", Errno::OPNOTSUPP),
        ("system.posix_acl_accessx", Errno::OPNOTSUPP),
        ("system.nfs4_acl", Errno::OPNOTSUPP),
        ("system.data", Errno::OPNOTSUPP),
        ("security.selinux", Errno::OPNOTSUPP),
        (".user.a", Errno::OPNOTSUPP),
    ];
    let before = state(&path);
    for (name, errno) in cases {
        assert_eq!(set(&path, name, b"value"), Err(errno), "set {name:?}");
        let read = if name.is_empty() { Errno::RANGE } else { errno };
        assert_eq!(getxattr_query(&path, name), Err(read), "get {name:?}");
        assert_eq!(removexattr(&path, name), Err(read), "remove {name:?}");
    }
    as_user(NOBODY, NOBODY, || {
        refused(set(&path, "trusted.a", b""), Errno::PERM);
        refused(set(&path, "security.a", b""), Errno::PERM);
    });
    assert_eq!(state(&path), before);
    let odd = "user.\u{1}\n\u{ff}=\"..//";
    set(&path, odd, &[0, 1, 255]).unwrap();
    volume.remount();
    assert_eq!(get(&path, odd).unwrap(), [0, 1, 255], "any name is allowed after the namespace");
    removexattr(&path, odd).unwrap();
}
